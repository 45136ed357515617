"""How states, windows, controls and log entries become table rows, and back. Pure.

A row is a mapping of properties (int, str or bytes) without its keys. Every row carries `Schema`; fields that
a newer writer of the same schema added are ignored, a higher schema is refused. Values are JSON, split over
`Data00`, `Data01`, ... (a string property holds 32 Ki characters); samples are little-endian float64, the inputs of
decisions zlib-compressed, both split over `Blob00`, ... (a binary property holds 64 KiB). The JSON is Python's: it
also knows NaN and Infinity, which a piece of evidence may be.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import msgspec

from scaling.increases import Readings
from scaling.log_entry import LogEntry, LogKind
from scaling.model import Controls, MetricFailure, TargetState
from scaling.ports import NewerStateError
from scaling.window import UNKNOWN_ORIGIN, Origin, Window
from tidemark.foundation.keys import STRING_CHARS, TooLargeError, in_columns, inverted, key_of, of_columns

SCHEMA = 1

BINARY_BYTES = 64_000  # the limit is 64 KiB
ENTITY_BYTES = 1_000_000  # the limit is 1 MiB, keys and names included
TRANSACTION_ROWS = 100
SAMPLE_BYTES = 16  # a time and a value, as float64
READING_BYTES = 24  # a time, a value, and which counter

ROW_CHARS = 1_000  # column Reason, By; what people read in a table browser

Value = int | str | bytes
Properties = dict[str, Value]
_T = TypeVar("_T")


class CorruptRowError(ValueError):
    """A stored row cannot be read as what it should be."""


# -- keys --------------------------------------------------------------------------------------------------


def log_row_key(at: float, key: str) -> str:
    """Row key of a log entry: newest first; entries of one time in the order of their keys."""
    return f"{inverted(at)}-{key_of(key)}"


# -- states, windows, controls -----------------------------------------------------------------------------


class _WindowHead(msgspec.Struct, omit_defaults=True):
    """A window without its series: `count` times and `count` values at its place among the samples; of a counter also `readings`
    times, values and counters, behind all samples, where releases that know no counters do not look. `fingerprint`, `since` and
    `former` are its origin, which 0.2.0 does not keep.
    """

    metric: str
    count: Annotated[int, msgspec.Meta(ge=0)]
    checksum: int
    failure: MetricFailure | None = None
    truncated: bool = False
    readings: Annotated[int, msgspec.Meta(ge=0)] = 0
    readings_checksum: int = 0
    fingerprint: str = ""
    since: float | None = None
    former: str = ""


def target_row(target: str, state: TargetState, windows: Mapping[str, Window]) -> Properties:
    """The row of a target: its state as text, what is known of each window as text, all samples as binary.

    Raises TooLargeError.
    """
    series = [_packed(window.times, window.values) for window in windows.values()]
    read = [
        b"" if readings is None else _packed(readings.times, readings.values, readings.counters)
        for readings in (window.readings for window in windows.values())
    ]
    heads = [
        _WindowHead(
            metric,
            len(window.times),
            zlib.crc32(packed),
            window.failure,
            window.truncated,
            len(counted) // READING_BYTES,
            zlib.crc32(counted),
            *msgspec.structs.astuple(window.origin),
        )
        for (metric, window), packed, counted in zip(windows.items(), series, read, strict=True)
    ]
    row: Properties = {
        "Schema": SCHEMA,
        **in_columns(_to_json(state), "Data"),
        **in_columns(_to_json(heads), "Windows"),
        **in_columns(b"".join((*series, *read)), "Blob", BINARY_BYTES),
    }
    samples = sum(head.count for head in heads)
    return _checked(row, f"row 'state' of target '{target}', with {samples} samples,")


def read_target(row: Mapping[str, Any]) -> tuple[TargetState, dict[str, Window], tuple[str, ...]]:
    """State, windows, and what of them is unreadable and reads as absent: `state`, `windows` (what they are
    called, hence all of them) or `window:<metric>`. Raises NewerStateError.
    """
    state, heads, corrupt = TargetState(), [], []
    try:
        state = _state(row)
    except CorruptRowError:
        corrupt.append("state")
    try:
        heads = _decode(row, list[_WindowHead], "Windows")
    except CorruptRowError:
        corrupt.append("windows")
    try:
        samples = _joined_binary(row)
    except CorruptRowError:
        samples = b""  # the windows that need some will miss them
    windows: dict[str, Window] = {}
    start, behind = 0, SAMPLE_BYTES * sum(head.count for head in heads)
    for head in heads:
        packed = samples[start : start + SAMPLE_BYTES * head.count]
        counted = samples[behind : behind + READING_BYTES * head.readings]
        start, behind = start + SAMPLE_BYTES * head.count, behind + READING_BYTES * head.readings
        if _is_whole(head, packed, counted):
            windows[head.metric] = _window(head, packed, counted)
        else:
            corrupt.append(f"window:{head.metric}")
    return state, windows, tuple(corrupt)


def _is_whole(head: _WindowHead, packed: bytes, counted: bytes) -> bool:
    whole = (len(packed), len(counted)) == (SAMPLE_BYTES * head.count, READING_BYTES * head.readings)
    return whole and zlib.crc32(packed) == head.checksum and zlib.crc32(counted) == head.readings_checksum


def _state(row: Mapping[str, Any]) -> TargetState:
    """The last decision may have a reason, and a notice for people a kind, that only a newer release knows (one that was rolled back,
    or runs beside this one). The rest of the state is read without them: they are shown or sent, and decide nothing.
    """
    try:
        return _decode(row, TargetState)
    except CorruptRowError:
        with suppress(CorruptRowError):
            return _decode(row, TargetState, without=("last",))
        return _decode(row, TargetState, without=("last", "telling"))


def _packed(*columns: Sequence[float]) -> bytes:
    series = [number for column in columns for number in column]
    return struct.pack(f"<{len(series)}d", *series)


def _window(head: _WindowHead, packed: bytes, counted: bytes) -> Window:
    series = list(struct.unpack(f"<{2 * head.count}d", packed))
    read, count = struct.unpack(f"<{3 * head.readings}d", counted), head.readings
    readings = Readings(read[:count], read[count : 2 * count], tuple(map(int, read[2 * count :])))
    return Window(
        series[: head.count],
        series[head.count :],
        head.failure,
        head.truncated,
        readings if count else None,
        Origin(head.fingerprint, head.since, head.former) if head.fingerprint else UNKNOWN_ORIGIN,
    )


def controls_row(controls: Controls) -> Properties:
    return _checked({"Schema": SCHEMA, **in_columns(_to_json(controls), "Data")}, "row 'controls'")


def read_controls(row: Mapping[str, Any]) -> Controls:
    """Raises CorruptRowError, NewerStateError."""
    return _decode(row, Controls)


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


def _checked(row: Properties, what: str) -> Properties:
    size = size_of(row)
    if size > ENTITY_BYTES:
        raise TooLargeError(f"{what} takes {size} bytes; a table row holds {ENTITY_BYTES}")
    return row


# -- log entries -------------------------------------------------------------------------------------------

LOG_COLUMNS = ("PartitionKey", "RowKey", "Schema", "Target", "Key", "Kind", "Reason", "Line", "By")
"""What a listing reads besides the entry itself: enough to show a row whose JSON is unreadable."""

LOG_DATA = tuple(f"Data{index:02d}" for index in range(ENTITY_BYTES // (2 * STRING_CHARS) + 1))

LOG_INPUTS = tuple(f"Blob{index:02d}" for index in range(ENTITY_BYTES // BINARY_BYTES + 1))


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
    target, key, reason = (text[:ROW_CHARS] for text in (entry.target, entry.key, entry.reason))
    line = entry.line[:STRING_CHARS]
    return LogEntry(target, entry.at, entry.kind, key, line, reason, entry.current, entry.desired)


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
        **in_columns(_to_json(stored), "Data"),
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
        # They come compressed. Wrapped as what compresses has always been here, without being tried again.
        row.update(in_columns(zlib.compress(entry.inputs, 0), "Blob", BINARY_BYTES))
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
    at = (int(inverted(0.0)) - int(ticks)) / 1_000_000 if ticks.isdecimal() else 0.0
    kind = row.get("Kind")
    return LogEntry(
        target=str(row.get("Target") or row["PartitionKey"]),
        at=at,
        kind=LogKind(kind) if kind in set(LogKind) else LogKind.DECISION,
        key=str(row.get("Key") or str(row["RowKey"])[19:]),
        line=f"{row.get('Line') or ''} [the stored entry is unreadable: {error}]".strip(),
        reason=str(row.get("Reason") or ""),
        by=None if row.get("By") is None else str(row["By"]),
    )


def _column(text: str, limit: int = ROW_CHARS) -> str:
    # A lone surrogate has no UTF-8; the JSON keeps it, the column shows a question mark.
    return text[:limit].encode("utf-8", "replace").decode()


# -- JSON and chunks ---------------------------------------------------------------------------------------


def _to_json(value: Any) -> str:
    return json.dumps(msgspec.to_builtins(value), separators=(",", ":"))


def _decode(
    row: Mapping[str, Any], kind: type[_T], prefix: str = "Data", *, without: Sequence[str] = ()
) -> _T:
    schema = row.get("Schema")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise CorruptRowError(f"Schema is {str(schema)[:40]!r}; expected a number up to {SCHEMA}")
    if schema > SCHEMA:
        raise NewerStateError(
            f"{_place(row)} has schema {schema}, this release reads up to {SCHEMA}: a newer release wrote it; "
            f"deploy that one{_FORGOTTEN.get(kind, '')}"
        )
    text = "".join(_pieces(row, prefix, str, "text"))
    try:
        value = json.loads(text)
        if isinstance(value, dict):
            value = {name: member for name, member in value.items() if name not in without}
        _drop_old_flips(value)
        return msgspec.convert(value, kind)
    except (ValueError, RecursionError) as error:
        raise CorruptRowError(f"not a stored {kind.__name__}: {error}") from error


_FORGOTTEN: dict[Any, str] = {
    TargetState: (
        ", or delete the row, which forgets the samples, what rules have learned, the changes made (their cooldowns and "
        "limits begin anew), a pending action, what is spent of the day's budget, the comparison with a shadow, and notices "
        "that have not left"
    ),
    Controls: (
        ", or delete the row, which forgets the orders of the target: its pauses, override, dry-run and promoted shadow; it is "
        "scaled as tidemark.toml says"
    ),
}
"""The other way on, and its cost, for rows that are in the way; a row of the log is not."""


def _place(row: Mapping[str, Any]) -> str:
    """The keys of a row, by which an operator deletes it."""
    partition, name = row.get("PartitionKey"), row.get("RowKey")
    return "a stored row" if name is None else f"the row '{name}' of partition '{partition}'"


def _drop_old_flips(value: Any) -> None:
    """Before version 2 of the decisions a flip had no conditions: read as today's, it would say that nothing changes them."""
    decided = value.get("recommendation", value.get("last")) if isinstance(value, dict) else None
    if isinstance(decided, dict) and isinstance(flips := decided.get("flips"), list):
        decided["flips"] = [flip for flip in flips if not isinstance(flip, dict) or "conditions" in flip]


def _joined_binary(row: Mapping[str, Any]) -> bytes:
    return b"".join(_pieces(row, "Blob", bytes, "binary"))


def _pieces(row: Mapping[str, Any], prefix: str, kind: type[_T], called: str) -> list[_T]:
    pieces = of_columns(row, prefix)
    if not all(isinstance(piece, kind) for piece in pieces):
        raise CorruptRowError(f"a {prefix} column is not {called}")
    return pieces
