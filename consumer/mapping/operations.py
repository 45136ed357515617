"""Which operation an event asks for, and what a patch is: the options of a sink that keeps documents. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, get_args

from msgspec import UNSET, Struct

from consumer.mapping.paths import Path, find, parse_path
from consumer.model import Event, Operation, PatchStep, Rejection, Write
from consumer.options import WritingTexts
from tidemark.foundation.durations import parse_duration
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.sanitize import shorten

IfMissing = Literal["create", "ignore", "reject"]

LONGEST_TTL = 2**31 - 1
"""Seconds; the service's own limit."""

KEEP_TOMBSTONES = 7 * 86_400.0
"""Seconds. Event Hubs keeps events for seven days at most, except in the premium and dedicated tiers (90 days)."""

_PATH = r'(?:/(?:"[^"]+"|[^/"\s=]+))+'
_PATCH_STEP = re.compile(
    rf"(?P<op>set|increment|append|remove)\s+(?P<path>{_PATH})(?:\s+from\s+(?P<source>{_PATH})|\s*=\s*(?P<value>.+))?"
)
_QUOTED = re.compile(r"'([^'\\]*)'")
_NEVER = {"never": -1, "-1": -1}


class PatchRule(Struct, frozen=True):
    """A step of a patch, whose value is constant or at a path of the event's document."""

    op: str
    path: str
    source: Path | None = None
    value: Any = None


def parse_patch(lines: Sequence[str]) -> tuple[PatchRule, ...]:
    """Steps such as `increment /total from /amount`, `set /seen = true`, `append /log from /line`, `remove /old`.

    Without `from` and `=` the value is at the step's own path of the event's document. Raises SettingsError.
    """
    return tuple(_patch_rule(line.strip()) for line in lines if line.strip())


def _patch_rule(line: str) -> PatchRule:
    accepted = "increment /total from /amount, set /state = 1, append /log from /line, remove /old"
    match = _PATCH_STEP.fullmatch(line)
    if match is None:
        raise SettingsError(f"the patch step '{line}' is not known; accepted: steps such as {accepted}")
    op, path, source, value = match["op"], match["path"], match["source"], match["value"]
    parse_path(path)
    if value is None:
        return PatchRule(op, path, None if op == "remove" else parse_path(source or path))
    if text := _QUOTED.fullmatch(value):  # as the conditions of routes have it
        return PatchRule(op, path, value=text[1])
    try:
        return PatchRule(op, path, value=json.loads(value))
    except ValueError:
        raise SettingsError(
            f"the value in the patch step '{line}' is no JSON; a text is written in quotes: = \"text\""
        ) from None


def patch_steps(rules: Sequence[PatchRule], document: Mapping[str, Any]) -> tuple[PatchStep, ...] | Rejection:
    """The steps for a document. A value that is missing in it rejects the event."""
    steps = []
    for rule in rules:
        value = rule.value if rule.source is None else find(document, rule.source)
        if value is UNSET:
            return Rejection(
                "patch",
                f"the patch step '{rule.op} {rule.path}' finds no value at '/{'/'.join(rule.source or ())}'",
            )
        steps.append(PatchStep(rule.op, rule.path, value))
    return tuple(steps)


class OperationRule(Struct, frozen=True):
    """Finds the operation of an event in its document or its application properties."""

    path: Path | None
    property: str
    table: Mapping[str, Operation]

    @classmethod
    def parse(cls, text: str, table: Mapping[str, str] | None = None) -> OperationRule:
        """`text` is `/path` or `property:name`. `table` gives the operation of each value, compared without case; None: the
        values are the operations' own names. Raises SettingsError.
        """
        names = {name.lower(): name for name in Operation} if table is None else table
        unknown = [name for name in names.values() if name not in set(Operation)]
        if unknown:
            raise SettingsError(f"there is no operation '{unknown[0]}'; accepted: {', '.join(Operation)}")
        operations = {str(value).lower(): Operation(name) for value, name in names.items()}
        kind, _, name = text.partition(":")
        if kind == "property" and name:
            return cls(None, name, operations)
        return cls(parse_path(text), "", operations)

    def of(self, document: Mapping[str, Any] | None, event: Event) -> Operation | Rejection | None:
        """None where neither document nor properties have a value."""
        name = event.properties.get(self.property, UNSET) if self.path is None else find(document, self.path)
        if name is UNSET or name is None:
            return None
        operation = self.table.get(str(name).lower())
        if operation is None:
            where = f"the property '{self.property}'" if self.path is None else f"'/{'/'.join(self.path)}'"
            return Rejection(
                "operation", f"{where} is {shorten(str(name), 60)}; accepted: {', '.join(self.table)}"
            )
        return operation


def parse_operation_from(text: str) -> OperationRule:
    """`/op`, or with a table `/op: c=create, u=upsert, d=delete`; `property:op` likewise. Raises SettingsError."""
    where, _, pairs = text.partition(":") if not text.startswith("property:") else _split_property(text)
    if not pairs.strip():
        return OperationRule.parse(where.strip())
    table = {}
    for pair in pairs.split(","):
        value, equals, name = (part.strip() for part in pair.partition("="))
        if not (value and equals and name):
            raise SettingsError(f"'{pair.strip()}' is no pair of a value and its operation, such as d=delete")
        table[value] = name
    return OperationRule.parse(where.strip(), table)


def _split_property(text: str) -> tuple[str, str, str]:
    name, colon, pairs = text.removeprefix("property:").partition(":")
    return f"property:{name}", colon, pairs


class WriteOptions(Struct, frozen=True):
    """How a sink writes documents. Raises SettingsError for options that mean nothing."""

    operation: Operation = Operation.UPSERT
    """The operation of writes that ask for none."""
    operation_from: OperationRule | None = None
    guard: str = "none"
    """`none`, `number`, or `field:<path>`."""
    source: str = ""
    """The hub with its namespace, in stamps."""
    ttl: str = ""
    """Seconds, a duration, `never`, or `field:<path>`; '' leaves the field out."""
    tombstone: float = KEEP_TOMBSTONES
    """Seconds for which the guard keeps a tombstone in place of a deleted document; 0 deletes it truly."""
    if_missing: IfMissing | None = None
    patch: tuple[PatchRule, ...] = ()
    patch_mark: bool = True
    """Whether a patch leaves the number of its event in the document, so that it takes place once."""
    empty: str = "reject"
    """What an empty body is: nothing, or a delete of the event's key."""

    def __post_init__(self) -> None:
        _ = self.version_path, self.ttl_rule

    def operation_of(
        self, write: Write, read: Callable[[Event], Mapping[str, Any] | Rejection]
    ) -> Operation | Rejection:
        """What a write asks for; else what its event does. `read` gives the document of a write that has none."""
        if write.operation is not Operation.UPSERT or write.patch:
            return Operation.PATCH if write.patch else write.operation
        if write.document is None and not write.event.body and write.event.unreadable is None:
            return Operation.DELETE if self.deletes_by_empty_body(write) else self.operation
        if self.operation_from is None:
            return self.operation
        document = read(write.event) if write.document is None else write.document
        if isinstance(document, Rejection):
            return document
        named = self.operation_from.of(document, write.event)
        return self.operation if named is None else named

    def deletes_by_empty_body(self, write: Write) -> bool:
        """Whether a write without a document is a delete of its key, instead of what stands in the body."""
        if write.event.body:  # a route may take a body such as null for an empty one
            return write.operation is Operation.DELETE
        return self.empty == "delete" or Operation.DELETE in {write.operation, self.operation}

    def leaves_nothing(self, operations: Collection[Operation]) -> bool:
        """Whether one of the operations does nothing where the document is missing, and nobody learns of it."""
        return self.if_missing == "ignore" and not {Operation.PATCH, Operation.REPLACE}.isdisjoint(operations)

    @property
    def guarded(self) -> bool:
        return self.guard != "none"

    @property
    def version_path(self) -> Path | None:
        kind, _, path = self.guard.partition(":")
        if kind == "field" and path:
            return parse_path(path if path.startswith("/") else f"/{path}")
        if self.guard in {"none", "number"}:
            return None
        raise SettingsError(f"the guard '{self.guard}' is not known; accepted: none, number, or field:<path>")

    @property
    def ttl_rule(self) -> int | Path | None:
        """Seconds, or the path of the field that has them."""
        kind, _, path = self.ttl.partition(":")
        if kind == "field" and path:
            return parse_path(path if path.startswith("/") else f"/{path}")
        if not self.ttl:
            return None
        try:
            seconds = _NEVER.get(self.ttl) or (
                int(self.ttl) if self.ttl.isdecimal() else int(parse_duration(self.ttl))
            )
        except ValueError:
            seconds = 0
        if not is_ttl(seconds):
            raise SettingsError(
                f"the time to live '{self.ttl}' is not known; accepted: seconds from 1 to {LONGEST_TTL}, a duration such"
                " as 30d, never, or field:<path>"
            )
        return seconds


def write_options(texts: WritingTexts, source: str = "", named: Callable[[str], str] = str) -> WriteOptions:
    """Raises SettingsError with every option that is wrong, a line each. `named` gives the name of an option that an
    error says.
    """
    made: dict[str, Any] = {"patch_mark": texts.patch_mark, "source": source}
    lines = texts.patch.split(";") if isinstance(texts.patch, str) else texts.patch
    readers: dict[str, Callable[[], Any]] = {
        "operation": lambda: Operation(_one_of(texts.operation.lower(), tuple(Operation))),
        "operation_from": lambda: (
            parse_operation_from(texts.operation_from) if texts.operation_from else None
        ),
        "guard": lambda: WriteOptions(guard=texts.guard).guard,
        "ttl": lambda: WriteOptions(ttl=str(texts.ttl)).ttl,
        "tombstone": lambda: _tombstone(texts.tombstone),
        "if_missing": lambda: _one_of(texts.if_missing, ("", *get_args(IfMissing))) or None,
        "patch": lambda: parse_patch(lines),
        "empty": lambda: _one_of(texts.empty, ("reject", "delete")),
    }
    problems = []
    for name, read in readers.items():
        try:
            made[name] = read()
        except SettingsError as error:
            problems.append(f"{named(name)}: {error}")
    if problems:
        raise SettingsError("\n".join(problems))
    return WriteOptions(**made)


def _one_of(text: str, accepted: Sequence[str]) -> str:
    if text not in accepted:
        raise SettingsError(f"'{text}' is not known; accepted: {', '.join(filter(None, accepted))}")
    return text


def _tombstone(text: str) -> float:
    if text == "off":
        return 0.0
    try:
        seconds = float(text) if text.isdecimal() else parse_duration(text)
    except ValueError:
        seconds = 0.0
    if not is_ttl(int(seconds)) or seconds < 1:
        raise SettingsError(f"'{text}' is not known; accepted: a duration from 1s, such as 7d, or off")
    return seconds


def is_ttl(value: Any) -> bool:
    """Whether the service takes a value as a time to live: whole seconds above 0, or -1 for never."""
    return type(value) is int and (value == -1 or 1 <= value <= LONGEST_TTL)
