"""Avro schemas, as bodies can be read with them safely, and what becomes of each type in a document. Pure.

fastavro reads a record in C, as deep as the body says, and a record of 10 KB in a recursive schema ends the process (tried with
1.13.1). So recursive and very deep schemas are read by its Python code, which raises RecursionError; a schema that would let a body without
bytes take any time or memory is refused: an array of null with 2^60 elements has ten bytes.

A type that JSON lacks has a rule here, by fastavro's own mechanism for logical types: the schema is rewritten so that each such
type has a logical type of ours. So values without a rule cost nothing.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from io import BytesIO
from typing import Any
from uuid import UUID

import fastavro
from fastavro import _read_py
from fastavro.read import LOGICAL_READERS
from fastavro.schema import fingerprint, to_parsing_canonical_form
from msgspec import Struct
from msgspec import json as msgspec_json

from consumer.decoding.bodies import NotFiniteError, finite
from consumer.formats import Integers, safe_integer
from consumer.model import Rejection
from tidemark.foundation.wording import count_text

MOST_LEVELS = 64
"""Levels of types within a schema, and of values that are read in C. Chosen: far more than people write, far less than what ends
the process."""

MOST_FREE = 16
"""Values without a byte (null, empty records) that one type may have. Chosen: a body of 1 MB may ask for so many with each byte,
and each is an entry of a dict."""

MOST_DIGITS = 1000
"""Digits behind the point of a decimal. Chosen: a schema may ask for any number of them, and each is a character."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


class SchemaError(ValueError):
    """The schema cannot be used."""


class BodyError(ValueError):
    """A body does not match its schema."""


class AvroSchema(Struct, frozen=True):
    """A schema that `read` takes. `label` names it in rejections."""

    label: str
    parsed: Any
    deep: bool
    """Whether a body can be nested so deep that it must not be read in C."""
    fingerprint: str
    """CRC-64-AVRO of the canonical form, hexadecimal, in the order of the wire; '' where there is no canonical form."""

    def read(self, stream: BytesIO) -> Any:
        """One value. Raises anything."""
        return (_read_py if self.deep else fastavro).schemaless_reader(stream, self.parsed, None)

    def decode(self, body: bytes, start: int = 0) -> Any | Rejection:
        """The value in all of the body from `start` on."""
        stream = BytesIO(body)
        stream.seek(start)
        try:
            value = self.read(stream)
            if stream.tell() != len(body):
                raise BodyError(
                    f"{count_text(len(body) - stream.tell(), 'byte follows', 'bytes follow')} the value"
                )
        except MemoryError:
            raise
        except Exception as error:
            return self.rejection(error)
        return value

    def rejection(self, error: Exception) -> Rejection:
        """Why a body cannot be read with this schema."""
        if isinstance(error, NotFiniteError):
            return Rejection("number", f"{error} ({self.label})")
        why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if isinstance(error, BodyError):
            why = str(error)
        elif isinstance(error, EOFError) or why in _TOO_SHORT:
            why = "it ends too early"
        elif isinstance(error, OverflowError):
            why = f"a date or time is out of range ({error})"
        return Rejection("avro", f"the body does not match {self.label}: {why}"[:1000])


_TOO_SHORT = ("IndexError: string index out of range",)
"""How fastavro says that there is no next byte, besides EOFError."""


def parse_schema(
    text: str | bytes, label: str, *, integers: Integers = Integers.SAFE, references: tuple[str, ...] = ()
) -> AvroSchema | Rejection:
    """The schema in a JSON text. `references` are schemas that it names, each after those that it names itself."""
    try:
        named: dict[str, Any] = {}
        for reference in references:
            fastavro.parse_schema(_rewritten(msgspec_json.decode(reference), integers), named)
        plain = msgspec_json.decode(text)
        parsed = fastavro.parse_schema(_rewritten(plain, integers), named)
        check = _Check(named)
        check.free_values(parsed)
        deep = check.levels(parsed) > MOST_LEVELS
        return AvroSchema(label, parsed, deep, _fingerprint(plain))
    except MemoryError:
        raise
    except Exception as error:  # a schema may be anything, and the parser raises anything
        why = str(error) if isinstance(error, SchemaError) else f"{type(error).__name__}: {error}"
        return Rejection("schema", f"{label} cannot be used: {why}"[:1000])


def _fingerprint(schema: Any) -> str:
    try:
        return fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO")
    except (ValueError, TypeError, KeyError):  # a reference, or a form that fastavro's parser does not know
        return ""


def _rewritten(schema: Any, integers: Integers, level: int = 0) -> Any:
    """The schema with our logical types, and without names that mean something to the parser."""
    if level > MOST_LEVELS:
        raise SchemaError(f"it is nested deeper than {MOST_LEVELS} levels")
    if isinstance(schema, str):
        rule = _rule(schema, "", integers)
        return {"type": schema, "logicalType": rule} if rule else schema
    if isinstance(schema, list):
        return [_rewritten(branch, integers, level + 1) for branch in schema]
    if not isinstance(schema, dict):
        raise SchemaError(f"a type is {schema!r}"[:200])
    kind, rest = schema.get("type"), {name: value for name, value in schema.items() if name[:2] != "__"}
    if not isinstance(kind, str):
        return _rewritten(kind, integers, level + 1)
    if kind in {"record", "error"}:
        fields = [_field(field, integers, level) for field in schema.get("fields", ())]
        return {**rest, "fields": fields}
    for inner in ("items", "values"):
        if kind in {"array", "map"} and inner in schema:
            rest[inner] = _rewritten(schema[inner], integers, level + 1)
    logical = rest.pop("logicalType", "")
    rule = _rule(kind, logical if isinstance(logical, str) else "", integers)
    if rule.endswith("decimal") and not _is_decimal(schema):
        rule = _rule(kind, "", integers)  # the specification: an invalid logical type is ignored
    return {**rest, "logicalType": rule} if rule else rest


def _field(field: Any, integers: Integers, level: int) -> Any:
    if not isinstance(field, dict) or "type" not in field:
        raise SchemaError("a field has no type")
    kept = {name: value for name, value in field.items() if name[:2] != "__" and name != "default"}
    return {**kept, "type": _rewritten(field["type"], integers, level + 1)}


def _is_decimal(schema: Mapping[str, Any]) -> bool:
    scale = schema.get("scale", 0)
    return isinstance(scale, int) and 0 <= scale <= MOST_DIGITS


class _Check:
    """What reading with a schema may take. `named` has its named types."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._free: dict[str, int] = {}
        self._started: set[str] = set()
        self._levels: dict[str, float] = {}
        self._open: tuple[str, ...] = ()

    def free_values(self, schema: Any) -> int:
        """How many values a type has without any byte; 0 for a type with bytes. Raises SchemaError if that has no bound."""
        if isinstance(schema, str):
            return int(schema == "null") if schema in _PRIMITIVES else self.free_values(self._named[schema])
        if isinstance(schema, list):
            for branch in schema:
                self._behind(branch)
            return 0  # the number of the branch is a byte
        kind = schema["type"]
        if kind in {"record", "error"}:
            return self._of_record(schema)
        if kind == "array" and self._behind(schema["items"]):
            raise SchemaError(
                "it has an array whose elements have no bytes, so a short body can have any number"
            )
        if kind == "map":
            self._behind(schema["values"])
        if kind == "fixed" and (not isinstance(schema["size"], int) or schema["size"] < 0):
            raise SchemaError(f"a fixed type has the size {schema['size']!r}")
        return int(kind == "null" or (kind == "fixed" and not schema["size"]))

    def _behind(self, schema: Any) -> int:
        """Of a type behind a byte of its own, which therefore may be one of the records around it."""
        around, self._open = self._open, ()
        try:
            return self.free_values(schema)
        finally:
            self._open = around

    def _of_record(self, schema: Any) -> int:
        name = schema["name"]
        if name in self._open:
            raise SchemaError(f"the record {name} contains itself, so that no value of it ends")
        if name in self._started:  # one that is not done has a byte, behind which it was reached again
            return self._free.get(name, 0)
        self._started.add(name)
        self._open += (name,)
        counts = [self.free_values(field["type"]) for field in schema["fields"]]
        self._open = self._open[:-1]
        if sum(counts) > MOST_FREE:
            raise SchemaError(f"the record {name} has more than {MOST_FREE} values without any byte")
        self._free[name] = 1 + sum(counts) if all(counts) else 0
        return self._free[name]

    def levels(self, schema: Any, around: frozenset[str] = frozenset()) -> float:
        """How deep a value can be; infinite for a type that contains itself."""
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return 0
            known = math.inf if schema in around else self._levels.get(schema)
            return self.levels(self._named[schema], around) if known is None else known
        if isinstance(schema, list):
            return 1 + max((self.levels(branch, around) for branch in schema), default=0)
        kind = schema["type"]
        if kind in {"array", "map"}:
            return 1 + self.levels(schema.get("items", schema.get("values")), around)
        if kind not in {"record", "error"}:
            return 0
        name = schema["name"]
        if name not in self._levels:
            if name in around:
                return math.inf
            within = around | {name}
            self._levels[name] = 1 + max(
                (self.levels(field["type"], within) for field in schema["fields"]), default=0
            )
        return self._levels[name]


# -- rules


def _text64(data: bytes, *_: Any) -> str:
    return base64.b64encode(data).decode()


def _decimal(data: bytes, schema: Mapping[str, Any], *_: Any) -> str:
    """As text: a number would lose digits."""
    unscaled = int.from_bytes(data, signed=True)
    digits = tuple(map(int, str(abs(unscaled))))
    return format(Decimal((int(unscaled < 0), digits, -schema.get("scale", 0))), "f")


def _date(days: int, *_: Any) -> str:
    return (date(1970, 1, 1) + timedelta(days)).isoformat()


def _time(places: int) -> Callable[..., str]:
    def text(value: int, *_: Any) -> str:
        seconds, fraction = divmod(value, 10**places)
        if not 0 <= seconds < 86_400:
            raise ValueError(f"{value} is no time of a day")
        return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:0{places}d}"

    return text


def _timestamp(places: int, zone: str) -> Callable[..., str]:
    def text(value: int, *_: Any) -> str:
        seconds, fraction = divmod(value, 10**places)
        at = _EPOCH + timedelta(seconds=seconds)
        return (
            f"{at:%Y-%m-%dT%H:%M:%S}.{fraction:0{places}d}{zone}" if at.year > 999 else _early(at, fraction)
        )

    def _early(at: datetime, fraction: int) -> str:  # strftime writes such a year without its zeros
        return f"{at.year:04d}-{at:%m-%dT%H:%M:%S}.{fraction:0{places}d}{zone}"

    return text


def _uuid(data: bytes, *_: Any) -> str:
    return str(UUID(bytes=data))


def _duration(data: bytes, *_: Any) -> str:
    """ISO 8601: months, days and milliseconds, none of which can be expressed in another."""
    months, days, milliseconds = struct.unpack("<III", data)
    return f"P{months}M{days}DT{milliseconds / 1000:.3f}S"


_RULES: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("bytes", ""): _text64,
    ("fixed", ""): _text64,
    ("float", ""): lambda value, *_: finite(value),
    ("double", ""): lambda value, *_: finite(value),
    ("long", Integers.SAFE): lambda value, *_: safe_integer(value),
    ("long", Integers.TEXT): lambda value, *_: str(value),
    ("bytes", "decimal"): _decimal,
    ("fixed", "decimal"): _decimal,
    ("int", "date"): _date,
    ("int", "time-millis"): _time(3),
    ("long", "time-micros"): _time(6),
    ("fixed", "uuid"): _uuid,
    ("fixed", "duration"): _duration,
    **{
        ("long", f"{local}timestamp-{unit}"): _timestamp(places, "" if local else "Z")
        for local in ("", "local-")
        for unit, places in (("millis", 3), ("micros", 6), ("nanos", 9))
    },
}
"""By Avro type and logical type; '' where there is none, or an unknown one. All others are as JSON has them, a uuid in a string
too."""


def _rule(kind: str, logical: str, integers: Integers) -> str:
    """The name of the rule for a type; '' without one."""
    if logical and (kind, logical) in _RULES:
        return f"tidemark-{logical}"
    mode = str(integers) if kind == "long" else ""
    return f"tidemark-{mode or kind}" if (kind, mode) in _RULES else ""


LOGICAL_READERS.update(
    {f"{kind}-tidemark-{logical or kind}": rule for (kind, logical), rule in _RULES.items()}
)
