"""Fits the values of documents to the columns of a table. Pure.

What a column takes is strict, because a table has no place for a value that is nearly right: a text is no number, 1.5 is no
whole number, and a missing value needs a column that may be null. Such a record is rejected, with the column's name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from msgspec import UNSET

from consumer.mapping.paths import find
from consumer.mapping.sources import parse_source
from consumer.model import Record, Rejection, Write
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.wording import count_text

Fit = Callable[[Any], Any]
"""The value as Arrow takes it, decimals as texts. Raises ValueError, with a sentence that ends the one about the column."""

_BOM = b"\xef\xbb\xbf"
_json_text = msgspec.json.Encoder().encode
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
"""The years 1 to 9999: Spark and Python have no times outside them."""
_EXACT = 2**53
"""Up to here every whole number is a double."""
_DOUBLES = 2**1024
"""From here on no whole number is a double."""
_FLOAT = 3.4028234663852886e38
"""The largest number of 32 bits with a fraction."""

TYPES: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "double": pa.float64(),
    "float": pa.float32(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
"""The names of Delta Lake for types without parts, which are Spark's too."""

_DECIMAL = re.compile(r"decimal\((\d+), *(\d+)\)")
_NOT_NULL = " not null"

_encode = msgspec.msgpack.Encoder(decimal_format="string").encode
_decode = msgspec.msgpack.Decoder(list[Any]).decode


def parse_schema(columns: Mapping[str, str]) -> pa.Schema:
    """The schema that options describe: `long`, `string not null`, `decimal(10,2)`. Raises SettingsError naming all that are wrong."""
    fields, problems = [], []
    for name, text in columns.items():
        words = text.strip().removesuffix(_NOT_NULL)
        kind = TYPES.get(words)
        if (matched := _DECIMAL.fullmatch(words)) and 0 <= int(matched[2]) <= int(matched[1]) <= 38:
            kind = pa.decimal128(int(matched[1]), int(matched[2])) if int(matched[1]) else None
        if kind is None:
            problems.append(f"'{text}' of column '{name}'")
        else:
            fields.append(pa.field(name, kind, nullable=not text.endswith(_NOT_NULL)))
    if problems:
        raise SettingsError(
            f"{', '.join(problems)}: no such type; accepted: {', '.join(TYPES)}, decimal(<digits up to 38>, <of them behind"
            f" the point>), each with '{_NOT_NULL.strip()}' behind it or without"
        )
    return pa.schema(fields)


class RowMapper:
    """Makes a row of each document, and a batch for Arrow of many rows.

    `sources` says by column where a value comes from; without an entry it is the document's field of that name. Raises
    SettingsError for sources of other columns, and for columns whose type cannot be written.
    """

    def __init__(self, schema: pa.Schema, sources: Mapping[str, str], topic: str) -> None:
        if unknown := sorted(sources.keys() - set(schema.names)):
            raise SettingsError(
                f"sources name {', '.join(unknown)}, which the table does not have; its columns: {', '.join(schema.names)}"
            )
        self.schema = schema
        self._topic = topic
        self._sources = [
            parse_source(name, sources[name]) if name in sources else (name,) for name in schema.names
        ]
        self._fits = [(column.name, _fit_of(column.type, column.name), column.nullable) for column in schema]
        self._stored = [_stored_type(column.type) for column in schema]

    def row(self, write: Write, document: Mapping[str, Any]) -> bytes | Rejection:
        """The row of a document, or why it can never be one."""
        row: list[Any] = []
        for (name, fit, nullable), source in zip(self._fits, self._sources, strict=True):
            value = self._of_write(write, source) if isinstance(source, str) else find(document, source)
            if value is UNSET or value is None:
                if not nullable:
                    return Rejection(
                        "value", f"column '{name}' takes no null, and the document has no value for it"
                    )
                row.append(None)
                continue
            try:
                row.append(fit(value))
            except (ValueError, TypeError, ArithmeticError) as error:
                return Rejection("value", f"column '{name}' {error}")
        return _encode(row)

    def _of_write(self, write: Write, source: str) -> Any:
        if source == "body":
            return (
                write.event.body.removeprefix(_BOM) if write.document is None else _json_text(write.document)
            )
        if source == "index":
            return write.index
        return self._topic if source == "topic" else getattr(write.event, source)

    def batch(self, records: Sequence[Record]) -> pa.RecordBatch:
        """The rows of records, in their order."""
        columns = zip(*(_decode(record.payload) for record in records), strict=True)
        arrays = [
            pa.array(values, stored).cast(field.type)
            for values, stored, field in zip(columns, self._stored, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _stored_type(kind: pa.DataType) -> pa.DataType:
    """The type that takes what `Fit` returns: texts instead of decimals."""
    if pa.types.is_decimal(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_stored_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct(
            [pa.field(member.name, _stored_type(member.type), member.nullable) for member in kind]
        )
    return kind


def _fit_of(kind: pa.DataType, column: str) -> Fit:
    """Raises SettingsError for a type that cannot be written."""
    is_ = pa.types
    if is_.is_list(kind):
        return _list(_fit_of(kind.value_type, column), nullable=kind.value_field.nullable)
    if is_.is_struct(kind):
        return _struct({member.name: (_fit_of(member.type, column), member.nullable) for member in kind})
    if is_.is_decimal(kind):
        return lambda value: _decimal(value, kind.precision, kind.scale)
    if is_.is_signed_integer(kind):
        return lambda value: _whole(value, kind.bit_width)
    if is_.is_timestamp(kind):
        return _time
    for fits, fit in _FITS:
        if fits(kind):
            return fit
    raise SettingsError(
        f"column '{column}' is {kind}, which this sink cannot write; give `columns` without it, if it may be null"
    )


def _whole(value: Any, bits: int) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"takes whole numbers; found {_found(value)}")
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError(f"takes whole numbers of {bits} bits; found {value}")
    return value


def _double(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"takes numbers; found {_found(value)}")
    if (
        isinstance(value, int)
        and abs(value) > _EXACT
        and (abs(value) >= _DOUBLES or int(float(value)) != value)
    ):
        raise ValueError(f"takes doubles; {_found(value)} is none without being rounded")
    return float(value)


def _float(value: Any) -> float:
    number = _double(value)
    if math.isfinite(number) and abs(number) > _FLOAT:
        raise ValueError(f"takes numbers of 32 bits; found {number:g}")
    return number


def _text(value: Any) -> str:
    """Objects and lists become JSON text, as in the SQL sink."""
    if isinstance(value, dict | list):
        return msgspec.json.encode(value).decode()
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise ValueError("takes text; found bytes that are no UTF-8") from None
    if not isinstance(value, str):
        raise ValueError(f"takes text; found {_found(value)}")
    value.encode()  # half of a surrogate pair: UnicodeEncodeError is a ValueError
    return value


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes):
        raise ValueError(f"takes bytes or text; found {_found(value)}")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"takes true or false; found {_found(value)}")
    return value


def _day(value: Any) -> int:
    """Days since 1970."""
    if isinstance(value, str):
        try:
            value = date.fromisoformat(value)
        except ValueError:
            raise ValueError(f"takes dates such as 2026-11-27; found {_found(value)}") from None
    if not isinstance(value, date) or isinstance(value, datetime):
        raise ValueError(f"takes dates; found {_found(value)}")
    return value.toordinal() - _EPOCH.toordinal()


def _time(value: Any) -> int:
    """Microseconds since 1970, of ISO 8601 text (UTC unless it has a time zone) or epoch seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not _FIRST_SECOND <= value < _LAST_SECOND + 1:
            raise ValueError(
                f"takes times; {_found(value)} is none in epoch seconds. Were these milliseconds, microseconds or nanoseconds?"
            )
        return round(value * 1_000_000)
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(f"takes times in ISO 8601 or epoch seconds; found {_found(value)}") from None
    if not isinstance(value, datetime):
        raise ValueError(f"takes times; found {_found(value)}")
    return ((value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND


def _decimal(value: Any, precision: int, scale: int) -> str:
    accepted = f"takes decimals of {count_text(precision, 'digit')}, {scale} of them behind the point; found {_found(value)}"
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise ValueError(accepted)
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        raise ValueError(accepted) from None
    if not number.is_finite():
        raise ValueError(accepted)
    if number == 0:
        return f"{Decimal(0):.{scale}f}"
    digits, exponent = number.as_tuple()[1:]
    zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    if number.adjusted() >= precision - scale or -(int(exponent) + zeros) > scale:
        raise ValueError(accepted)
    return f"{number:.{scale}f}"


def _list(fit: Fit, *, nullable: bool) -> Fit:
    def fit_list(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise ValueError(f"takes lists; found {_found(value)}")
        if None in value and not nullable:
            raise ValueError("takes no null in its list")
        return [None if element is None else fit(element) for element in value]

    return fit_list


def _struct(members: Mapping[str, tuple[Fit, bool]]) -> Fit:
    def fit_struct(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError(f"takes objects; found {_found(value)}")
        fitted = {}
        for name, (fit, nullable) in members.items():
            member = value.get(name)
            if member is None and not nullable:
                raise ValueError(f"takes no null in '{name}'")
            fitted[name] = None if member is None else fit(member)
        return fitted

    return fit_struct


_FITS: Sequence[tuple[Callable[[pa.DataType], bool], Fit]] = (
    (lambda kind: kind in {pa.string(), pa.large_string()}, _text),
    (pa.types.is_float64, _double),
    (pa.types.is_float32, _float),
    (pa.types.is_boolean, _flag),
    (lambda kind: kind in {pa.binary(), pa.large_binary()}, _bytes),
    (pa.types.is_date32, _day),
)


def _found(value: Any) -> str:
    """A value in an error, short: a document may be large, and the error is stored with it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
