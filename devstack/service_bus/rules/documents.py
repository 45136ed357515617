"""Rules as the administration API writes them (XML), and as $management does (AMQP)."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from devstack.amqp.wire.errors import AmqpError
from devstack.amqp.wire.values import Described, Timestamp, ULong
from devstack.service_bus.messages.messages import to_milliseconds
from devstack.service_bus.rules.rules import (
    CONSTANT,
    CORRELATION,
    TRUE_FILTER,
    CorrelationFilter,
    Rule,
    SqlAction,
    SqlFilter,
)

_INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
_SCHEMA = "http://www.w3.org/2001/XMLSchema"
ARGUMENT_ERROR = "com.microsoft:argument-error"

# Descriptors of AMQP lists; the filters' differ from the others by a digit, as clients expect them.
_RULE, _EMPTY_ACTION, _SQL_ACTION = (ULong(0x13700000000 + code) for code in (4, 5, 6))
_SQL_FILTER, _TRUE, _FALSE, _CORRELATION = (ULong(0x1370000000 + code) for code in (6, 7, 8, 9))
_CONSTANT_CODES = {"TrueFilter": _TRUE, "FalseFilter": _FALSE}

# In the bodies of $management, by the order in which lists have them.
_AMQP_NAMES = {
    "correlation-id": "CorrelationId",
    "message-id": "MessageId",
    "to": "To",
    "reply-to": "ReplyTo",
    "label": "Label",
    "session-id": "SessionId",
    "reply-to-session-id": "ReplyToSessionId",
    "content-type": "ContentType",
}

_READERS: dict[str, Callable[[str], Any]] = {
    "string": str,
    "boolean": lambda text: text == "true",
    "dateTime": lambda text: Timestamp(to_milliseconds(_moment(text).timestamp())),
    **dict.fromkeys(("int", "long", "short", "byte"), int),
    **dict.fromkeys(("double", "float", "decimal"), float),
}


def _moment(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


# -- XML -----------------------------------------------------------------------------------------------------


def parse_rule(name: str, description: ET.Element) -> Rule:
    """From a RuleDescription; a filter that is not given is true. Raises ValueError."""
    parts = {_local(child): child for child in description}
    action = parts.get("Action")
    expression = None if action is None else _text_of(action, "SqlExpression")
    parameters = {} if action is None else _key_values(action, "Parameters")
    return Rule(
        name,
        _parse_filter(parts.get("Filter")),
        SqlAction(expression, parameters) if expression else None,
    )


def _parse_filter(element: ET.Element | None) -> SqlFilter | CorrelationFilter:
    if element is None:
        return TRUE_FILTER
    kind = element.get(f"{{{_INSTANCE}}}type", "").rpartition(":")[2]
    if kind in CONSTANT:
        return CONSTANT[kind]
    if kind == "SqlFilter":
        return SqlFilter(_text_of(element, "SqlExpression") or "", _key_values(element, "Parameters"))
    if kind == "CorrelationFilter":
        fields = {name: text for name in CORRELATION if (text := _text_of(element, name)) is not None}
        return CorrelationFilter(fields, _key_values(element, "Properties"))
    accepted = "SqlFilter, TrueFilter, FalseFilter, CorrelationFilter"
    raise ValueError(f"the type of a filter is {kind!r}, accepted: {accepted}")


def _key_values(element: ET.Element, name: str) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for holder in element:
        for pair in holder if _local(holder) == name else ():
            value = next(child for child in pair if _local(child) == "Value")
            kind = value.get(f"{{{_INSTANCE}}}type", "string").rpartition(":")[2]
            if kind not in _READERS:
                raise ValueError(f"a value of type {kind!r}, accepted: {', '.join(_READERS)}")
            pairs[_text_of(pair, "Key") or ""] = _READERS[kind](value.text or "")
    return pairs


def _local(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _text_of(element: ET.Element, name: str) -> str | None:
    return next((child.text or "" for child in element if _local(child) == name), None)


def rule_description(rule: Rule) -> str:
    """The XML of a RuleDescription, without its namespace."""
    created = datetime.fromtimestamp(rule.created_at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    action = (
        '<Action i:type="EmptyRuleAction"/>'
        if rule.action is None
        else '<Action i:type="SqlRuleAction">'
        + _sql(rule.action.expression, rule.action.parameters)
        + "</Action>"
    )
    return f"{_filter(rule.filter)}{action}<CreatedAt>{created}</CreatedAt><Name>{escape(rule.name)}</Name>"


def _filter(of_rule: SqlFilter | CorrelationFilter) -> str:
    if isinstance(of_rule, SqlFilter):
        return f'<Filter i:type="{of_rule.kind}">{_sql(of_rule.expression, of_rule.parameters)}</Filter>'
    leaves = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in of_rule.fields.items())
    return (
        f'<Filter i:type="CorrelationFilter">{leaves}'
        f"<Properties>{_pairs(of_rule.properties)}</Properties></Filter>"
    )


def _sql(expression: str, parameters: Mapping[str, Any]) -> str:
    return (
        f"<SqlExpression>{escape(expression)}</SqlExpression><CompatibilityLevel>20</CompatibilityLevel>"
        f"<Parameters>{_pairs(parameters)}</Parameters>"
    )


def _pairs(values: Mapping[str, Any]) -> str:
    return "".join(
        f'<KeyValueOfstringanyType><Key>{escape(name)}</Key><Value xmlns:d="{_SCHEMA}" i:type="d:{kind}">'
        f"{escape(text)}</Value></KeyValueOfstringanyType>"
        for name, (kind, text) in ((name, _written(value)) for name, value in values.items())
    )


def _written(value: Any) -> tuple[str, str]:
    if isinstance(value, bool):
        return "boolean", str(value).lower()
    if isinstance(value, Timestamp):
        return "dateTime", datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
    if isinstance(value, int):
        return ("int" if -(2**31) <= value < 2**31 else "long"), str(value)
    return ("double", repr(value)) if isinstance(value, float) else ("string", str(value))


# -- AMQP ----------------------------------------------------------------------------------------------------


def decode_rule(name: str, description: Any) -> Rule:
    """From the map of an add-rule request. Raises AmqpError."""
    if not isinstance(description, dict):
        raise AmqpError(ARGUMENT_ERROR, f"rule-description is {description!r}, accepted: a map")
    sql, correlation = description.get("sql-filter"), description.get("correlation-filter")
    action = description.get("sql-rule-action")
    try:
        if correlation is not None:
            named = {
                _AMQP_NAMES[key]: value for key, value in correlation.items() if key in _AMQP_NAMES and value
            }
            of_rule: SqlFilter | CorrelationFilter = CorrelationFilter(
                named, correlation.get("properties") or {}
            )
        else:
            of_rule = TRUE_FILTER if sql is None else SqlFilter(str(sql.get("expression")))
        expression = None if action is None else action.get("expression")
        return Rule(name, of_rule, SqlAction(expression) if expression else None)
    except (AttributeError, ValueError) as error:
        raise AmqpError(ARGUMENT_ERROR, f"rule-description: {error}") from None


def encode_rules(rules: Iterable[Rule]) -> list[dict[str, Described]]:
    """The rules of an answer to enumerate-rules."""
    return [{"rule-description": _encoded(rule)} for rule in rules]


def _encoded(rule: Rule) -> Described:
    of_rule = rule.filter
    if isinstance(of_rule, CorrelationFilter):
        values: list[Any] = [of_rule.fields.get(name) for name in CORRELATION]
        encoded = Described(_CORRELATION, [*values, dict(of_rule.properties)])
    elif of_rule.kind in _CONSTANT_CODES:
        encoded = Described(_CONSTANT_CODES[of_rule.kind], [])
    else:
        encoded = Described(_SQL_FILTER, [of_rule.expression, 20])
    action = (
        Described(_EMPTY_ACTION, [])
        if rule.action is None
        else Described(_SQL_ACTION, [rule.action.expression, 20])
    )
    return Described(_RULE, [encoded, action, rule.name, Timestamp(to_milliseconds(rule.created_at))])
