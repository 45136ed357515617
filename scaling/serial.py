"""How states, windows, controls and log entries become table rows, and back. Pure.

A row is a mapping of properties (int, str or bytes) without its keys. Every row carries `Schema`; fields that
a newer writer of the same schema added are ignored, a higher schema is refused. Values are JSON, split over
`Data00`, `Data01`, ... (a string property holds 32 Ki characters); sample series are zlib-compressed
little-endian float64, split over `Blob00`, ... (a binary property holds 64 KiB). The JSON is Python's: it also
knows NaN and Infinity, which a piece of evidence may be.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import zlib
from array import array
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from scaling.model import Controls, LogEntry, LogKind, MetricFailure, TargetState
from scaling.ports import NewerStateError
from scaling.window import Window

SCHEMA = 1

STRING_CHARS = 32_000  # the limit is 32 Ki UTF-16 units; chunks are ASCII
BINARY_BYTES = 64_000  # the limit is 64 KiB
ENTITY_BYTES = 1_000_000  # the limit is 1 MiB, keys and names included
TRANSACTION_BYTES = 4_000_000  # the limit is 4 MiB on the wire
TRANSACTION_ROWS = 100

KEY_CHARS = 400  # a key holds 512 characters; a row key may hold a prefix or a time besides
ROW_CHARS = 1_000  # column Reason, By; what people read in a table browser

Value = int | str | bytes
Properties = dict[str, Value]
_T = TypeVar("_T")

_MAX_MICROSECONDS = 253_402_300_800 * 1_000_000  # the end of the year 9999
_UNSAFE = re.compile(r"[^A-Za-z0-9._@:-]")


class CorruptRowError(ValueError):
    """A stored row cannot be read as what it should be."""


class TooLargeError(ValueError):
    """What is to be stored exceeds what the service can take; it names the limit."""


# -- keys --------------------------------------------------------------------------------------------------


def key_of(text: str) -> str:
    """`text` as part of a key: other characters than ASCII letters, digits and `._@:-` become `~HH` per byte.

    Distinct texts give distinct keys. Long ones end in a hash, so any text is accepted.
    """
    raw = text.encode("utf-8", "surrogatepass").decode("latin-1")
    safe = _UNSAFE.sub(lambda match: f"~{ord(match[0]):02X}", raw)
    if len(safe) > KEY_CHARS:
        digest = hashlib.sha256(raw.encode("latin-1")).hexdigest()[:32]
        return f"{safe[: KEY_CHARS - 40]}~-{digest}"
    return safe


def window_row_name(metric: str) -> str:
    return f"window:{metric}"


def inverted(at: float) -> str:
    """A time as 18 digits that sort newest first, to the microsecond.

    Raises ValueError for a time before 1970 or after the year 9999.
    """
    return f"{_inverted(at):018d}"


def after(at: float) -> str:
    """The first 18 digits that stand for a time before `at`; any `at` is accepted."""
    return f"{_inverted(min(max(at, 0.0), 253_402_300_799.0)) + 1:018d}"


def _inverted(at: float) -> int:
    microseconds = round(at * 1_000_000) if -1e12 < at < 1e12 else -1
    if not 0 <= microseconds < _MAX_MICROSECONDS:
        raise ValueError(
            f"time {at!r} cannot be stored; accepted are seconds since 1970, up to the year 9999"
        )
    return _MAX_MICROSECONDS - 1 - microseconds


def log_row_key(at: float, key: str) -> str:
    """Row key of a log entry: newest first; entries of one time in the order of their keys."""
    return f"{inverted(at)}-{key_of(key)}"


# -- states, windows, controls -----------------------------------------------------------------------------


def state_row(state: TargetState) -> Properties:
    return _checked("state", {"Schema": SCHEMA, **_text(_to_json(state))})


def read_state(row: Mapping[str, Any]) -> TargetState:
    """Raises CorruptRowError, NewerStateError."""
    return _decode(row, TargetState)


def controls_row(controls: Controls) -> Properties:
    return _checked("controls", {"Schema": SCHEMA, **_text(_to_json(controls))})


def read_controls(row: Mapping[str, Any]) -> Controls:
    """Raises CorruptRowError, NewerStateError."""
    return _decode(row, Controls)


class _WindowHead(msgspec.Struct):
    """A window without its series, which follow as `count` times and `count` values."""

    metric: str
    count: int
    failure: MetricFailure | None = None
    truncated: bool = False


def window_row(metric: str, window: Window) -> Properties:
    head = _WindowHead(metric, len(window.times), window.failure, window.truncated)
    series = array("d", window.times) + array("d", window.values)
    if sys.byteorder == "big":
        series.byteswap()
    row = {"Schema": SCHEMA, **_text(_to_json(head)), **_binary(zlib.compress(series.tobytes()))}
    return _checked(window_row_name(metric), row)


def read_window(row: Mapping[str, Any]) -> tuple[str, Window]:
    """The metric's name and its window. Raises CorruptRowError, NewerStateError."""
    head = _decode(row, _WindowHead)
    series = array("d")
    try:
        series.frombytes(zlib.decompress(_joined_binary(row)))
    except (zlib.error, ValueError) as error:
        raise CorruptRowError(f"the samples cannot be read: {error}") from error
    if sys.byteorder == "big":
        series.byteswap()
    if len(series) != 2 * head.count:
        raise CorruptRowError(f"found {len(series)} numbers where {2 * head.count} are announced")
    values = series.tolist()
    return head.metric, Window(values[: head.count], values[head.count :], head.failure, head.truncated)


def size_of(row: Mapping[str, Any]) -> int:
    """Bytes of a row as the service counts them (strings are UTF-16 there), within a few per row."""
    return 200 + sum(
        2 * len(name)
        + 8
        + (2 * len(value) if isinstance(value, str) else len(value) if isinstance(value, bytes) else 8)
        for name, value in row.items()
    )


def wire_size_of(row: Mapping[str, Any]) -> int:
    """Bytes of a row in a transaction's body, at most: JSON with binary as base64, and part headers."""
    total = 2_500
    for name, value in row.items():
        length = len(value) * 4 // 3 + 4 if isinstance(value, bytes) else len(json.dumps(value))
        total += 2 * len(name) + length + 40
    return total


def _checked(name: str, row: Properties) -> Properties:
    size = size_of(row)
    if size > ENTITY_BYTES:
        raise TooLargeError(f"row '{name}' takes {size} bytes; a table row holds {ENTITY_BYTES}")
    return row


# -- log entries -------------------------------------------------------------------------------------------

LOG_COLUMNS = ("PartitionKey", "RowKey", "Schema", "Target", "Key", "Kind", "Reason", "Line", "By")
"""What a listing reads besides the entry itself: enough to show a row whose JSON is unreadable."""

LOG_DATA = tuple(f"Data{index:02d}" for index in range(ENTITY_BYTES // (2 * STRING_CHARS) + 1))


def log_row(entry: LogEntry) -> Properties:
    """The row of a log entry: columns for people, the whole entry as JSON, its inputs as binary.

    An entry that no row can hold loses its inputs, then its details; `Truncated` and the line then say so.
    Raises ValueError only for a time that cannot be stored.
    """
    at = datetime.fromtimestamp(int(inverted(0.0)) / 1e6 - int(inverted(entry.at)) / 1e6, UTC)
    left_out = ""
    row = _log_row(entry, at, left_out)
    if size_of(row) > ENTITY_BYTES and entry.inputs is not None:
        left_out = f"inputs of {len(entry.inputs)} bytes do not fit into a table row and were left out"
        row = _log_row(msgspec.structs.replace(entry, inputs=None), at, left_out)
    if size_of(row) > ENTITY_BYTES:
        left_out = f"details of {size_of(row)} bytes do not fit into a table row and were left out"
        row = _log_row(_bare(entry), at, left_out)
    return row


def _bare(entry: LogEntry) -> LogEntry:
    return LogEntry(
        entry.target[:ROW_CHARS],
        entry.at,
        entry.kind,
        entry.key[:ROW_CHARS],
        entry.line[:STRING_CHARS],
        entry.reason[:ROW_CHARS],
        entry.current,
        entry.desired,
    )


def _log_row(entry: LogEntry, at: datetime, left_out: str) -> Properties:
    line = f"{entry.line} [{left_out}]" if left_out else entry.line
    metrics = json.dumps(entry.metrics)
    stored = msgspec.structs.replace(entry, line=line, inputs=None)
    row: Properties = {
        "Schema": SCHEMA,
        "At": at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "Kind": str(entry.kind),
        "Reason": _column(entry.reason),
        "Line": _column(line, STRING_CHARS // 2),
        "Target": _column(entry.target),
        "Key": _column(entry.key),
        **_text(_to_json(stored)),
    }
    if len(metrics) <= STRING_CHARS:
        row["Metrics"] = metrics
    if entry.by is not None:
        row["By"] = _column(entry.by)
    for name, number in (("Current", entry.current), ("Desired", entry.desired)):
        if number is not None:
            # Beyond 32 bits a number has another column type; text never fails.
            row[name] = number if -(2**31) <= number < 2**31 else str(number)[:ROW_CHARS]
    if left_out:
        row["Truncated"] = left_out
    if entry.inputs is not None:
        row.update(_binary(zlib.compress(entry.inputs)))
    return row


def read_log_row(row: Mapping[str, Any], *, inputs: bool = False) -> LogEntry:
    """The entry of a row; never raises: of an unreadable row, what the columns say."""
    try:
        entry = _decode(row, LogEntry)
        if inputs and row.get("Blob00") is not None:
            return msgspec.structs.replace(entry, inputs=zlib.decompress(_joined_binary(row)))
    except (CorruptRowError, NewerStateError, zlib.error) as error:
        return _from_columns(row, error)
    return entry


def _from_columns(row: Mapping[str, Any], error: Exception) -> LogEntry:
    ticks = str(row["RowKey"])[:18]
    at = (_MAX_MICROSECONDS - 1 - int(ticks)) / 1_000_000 if ticks.isdigit() else 0.0
    kind = row.get("Kind")
    return LogEntry(
        target=str(row.get("Target") or row["PartitionKey"]),
        at=at,
        kind=LogKind(kind) if kind in set(LogKind) else LogKind.DECISION,
        key=str(row.get("Key") or str(row["RowKey"])[19:]),
        line=f"{row.get('Line') or ''} [the stored entry is unreadable: {error}]".strip(),
        reason=str(row.get("Reason") or ""),
        by=row.get("By"),
    )


def _column(text: str, limit: int = ROW_CHARS) -> str:
    # A lone surrogate has no UTF-8; the JSON keeps it, the column shows a question mark.
    return text[:limit].encode("utf-8", "replace").decode()


# -- JSON and chunks ---------------------------------------------------------------------------------------


def _to_json(value: Any) -> str:
    return json.dumps(msgspec.to_builtins(value), separators=(",", ":"))


def _decode(row: Mapping[str, Any], kind: type[_T]) -> _T:
    schema = row.get("Schema")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise CorruptRowError(f"Schema is {str(schema)[:40]!r}; expected a number up to {SCHEMA}")
    if schema > SCHEMA:
        raise NewerStateError(
            f"a stored row has schema {schema}, this release reads up to {SCHEMA}: a newer release wrote it; "
            "deploy that one, or delete the row"
        )
    text = _joined_text(row)
    try:
        return msgspec.convert(json.loads(text), kind)
    except (ValueError, RecursionError) as error:
        raise CorruptRowError(f"not a stored {kind.__name__.strip('_')}: {error}") from error


def _text(text: str) -> dict[str, Value]:
    return {
        f"Data{index:02d}": text[start : start + STRING_CHARS]
        for index, start in enumerate(range(0, len(text), STRING_CHARS))
    }


def _binary(data: bytes) -> dict[str, Value]:
    return {
        f"Blob{index:02d}": data[start : start + BINARY_BYTES]
        for index, start in enumerate(range(0, len(data), BINARY_BYTES))
    }


def _joined_text(row: Mapping[str, Any]) -> str:
    pieces = _pieces(row, "Data")
    if not all(isinstance(piece, str) for piece in pieces):
        raise CorruptRowError("a Data column is not text")
    return "".join(pieces)


def _joined_binary(row: Mapping[str, Any]) -> bytes:
    pieces = _pieces(row, "Blob")
    if not all(isinstance(piece, bytes) for piece in pieces):
        raise CorruptRowError("a Blob column is not binary")
    return b"".join(pieces)


def _pieces(row: Mapping[str, Any], prefix: str) -> list[Any]:
    pieces: list[Any] = []
    while (piece := row.get(f"{prefix}{len(pieces):02d}")) is not None:
        pieces.append(piece)
    return pieces
