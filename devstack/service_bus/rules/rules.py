"""Rules of subscriptions: which messages they take, and what they change in their copy. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from devstack.amqp.wire.errors import ProtocolError
from devstack.amqp.wire.messages import APPLICATION_PROPERTIES, PROPERTIES, section_value, sections
from devstack.service_bus.messages.messages import Sent, decode_pairs, with_sections
from devstack.service_bus.rules.sql import Evaluate, Statement, View, parse_action, parse_condition
from devstack.service_bus.rules.sql_values import EvaluationError, compare

DEFAULT_RULE = "$Default"
NOT_EVALUATED = "FilterEvaluationException"

# Where system properties are among the properties of AMQP. `label` is what `subject` was called.
_FIELDS = {
    "messageid": 0,
    "to": 2,
    "label": 3,
    "subject": 3,
    "replyto": 4,
    "correlationid": 5,
    "contenttype": 6,
    "sessionid": 10,
    "replytosessionid": 12,
}
_FIELD_COUNT = 13
_ELSEWHERE = frozenset(
    (
        *("partitionkey", "scheduledenqueuetimeutc", "timetolive"),
        *("deliverycount", "enqueuedtimeutc", "sequencenumber"),  # which a message gets behind the rules
    )
)

CORRELATION = {
    "CorrelationId": "correlationid",
    "MessageId": "messageid",
    "To": "to",
    "ReplyTo": "replyto",
    "Label": "label",
    "SessionId": "sessionid",
    "ReplyToSessionId": "replytosessionid",
    "ContentType": "contenttype",
}
"""What a correlation filter may name, in the order of the documents, and the system property it is about."""


class MessageView:
    """A message as rules see and change it."""

    def __init__(self, sent: Sent) -> None:
        self.sent = sent
        self.fields: list[Any] = []
        self.properties: dict[Any, Any] = {}
        for code, _, value_start, _ in sections(sent.bare):
            if code == PROPERTIES:
                self.fields = section_value(sent.bare, value_start, list)
            elif code == APPLICATION_PROPERTIES:
                self.properties = section_value(sent.bare, value_start, dict)
            else:
                break
        self.fields = [*self.fields, *[None] * (_FIELD_COUNT - len(self.fields))]

    def system(self, name: str) -> Any:
        key = name.casefold()
        if key in _FIELDS:
            return self.fields[_FIELDS[key]]
        if key not in _ELSEWHERE:
            raise EvaluationError(f"no message has a system property {name!r}")
        annotations = decode_pairs(self.sent.annotations, self.sent.annotation_count)
        return {
            "partitionkey": annotations.get("x-opt-partition-key"),
            "scheduledenqueuetimeutc": self.sent.scheduled_for,
            "timetolive": self.sent.ttl,
        }.get(key)

    def user(self, name: str) -> Any:
        key = self._key(name)
        return None if key is None else self.properties[key]

    def exists(self, scope: str, name: str) -> bool:
        return self._key(name) is not None if scope == "user" else self.system(name) is not None

    def _key(self, name: str) -> Any:
        if name in self.properties:
            return name
        folded = name.casefold()
        return next((key for key in self.properties if str(key).casefold() == folded), None)

    def apply(self, statement: Statement) -> None:
        """Raises EvaluationError."""
        value = None if statement.value is None else statement.value(self)
        if statement.scope == "sys":
            place = _FIELDS.get(statement.name.casefold())
            if place is None:
                raise EvaluationError(f"the system property {statement.name!r} cannot be changed")
            self.fields[place] = value
            return
        key = self._key(statement.name)
        if statement.value is not None:
            self.properties[statement.name if key is None else key] = value
        elif key is not None:
            del self.properties[key]

    def changed(self) -> Sent:
        return with_sections(self.sent, self.fields, self.properties)


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """Raises SqlError for an expression that is no condition. `kind` as the documents name it: TrueFilter, too."""

    expression: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "SqlFilter"
    _condition: Evaluate = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_condition", parse_condition(self.expression, self.parameters))

    def matches(self, view: View) -> bool:
        """What is unknown does not match. Raises EvaluationError."""
        return self._condition(view) is True


@dataclass(frozen=True, slots=True)
class CorrelationFilter:
    """Everything named has to be equal; texts are told apart by case."""

    fields: Mapping[str, str]  # by names of CORRELATION
    properties: Mapping[str, Any] = field(default_factory=dict)

    def matches(self, view: View) -> bool:
        named = all(
            compare("=", view.system(CORRELATION[name]), value) for name, value in self.fields.items()
        )
        return named and all(compare("=", view.user(name), value) for name, value in self.properties.items())


TRUE_FILTER = SqlFilter("1=1", kind="TrueFilter")
FALSE_FILTER = SqlFilter("1=0", kind="FalseFilter")
CONSTANT = {sql_filter.kind: sql_filter for sql_filter in (TRUE_FILTER, FALSE_FILTER)}


@dataclass(frozen=True, slots=True)
class SqlAction:
    """Raises SqlError for an expression that is no action."""

    expression: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    statements: list[Statement] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "statements", parse_action(self.expression, self.parameters))


@dataclass(frozen=True, slots=True)
class Rule:
    """`created_at` in seconds since 1970."""

    name: str
    filter: SqlFilter | CorrelationFilter
    action: SqlAction | None = None
    created_at: float = 0.0


def copies(rules: Collection[Rule], sent: Sent) -> tuple[list[Sent], list[str]]:
    """What a subscription with these rules gets of a message, and why rules could not be evaluated.

    Rules without an action give one copy together; each with an action gives a copy of its own.
    """
    if all(rule.filter is TRUE_FILTER and rule.action is None for rule in rules):
        return [sent] * bool(rules), []
    sents: list[Sent] = []
    failures: list[str] = []
    plain = False
    try:
        view = MessageView(sent)
    except ProtocolError as error:
        return [], [f"the properties of the message cannot be read: {error}"]
    for rule in rules:
        try:
            if not rule.filter.matches(view):
                continue
            if rule.action is None:
                plain = True
            else:
                sents.append(_acted(rule.action, sent))
        except EvaluationError as error:
            failures.append(f"rule {rule.name!r}: {error}")
    return ([sent] if plain else []) + sents, failures


def _acted(action: SqlAction, sent: Sent) -> Sent:
    view = MessageView(sent)
    for statement in action.statements:
        view.apply(statement)
    return view.changed()
