"""Reads recorded load from files, without Spark: arrivals as CSV or Parquet, the scaling log as JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec

from scaling.log_entry import LogEntry, LogKind
from scaling.model import Reason
from tidemark.analysis.backtest.replay.history import Reading
from tidemark.analysis.errors import InputError
from tidemark.analysis.input_files import TABLE_ENDINGS, bytes_of, files_in, table_rows, text_of

TIME_COLUMNS = ("t", "at", "time", "timestamp")

UNREAD = frozenset(
    reason.value
    for reason in (
        Reason.COLLECT_FAILED,
        Reason.STALE_METRIC,
        Reason.INVALID_METRIC,
        Reason.ENTITY_DISABLED,
        Reason.FALLBACK,
    )
)
"""Reasons of decisions for which a metric was not read, or its queue was disabled: rows of releases before 0.2 hold an old
value there, so nothing of that time is taken. Since then a row holds the metrics that were read, whatever its reason.
"""

Readings = dict[str, list[Reading]]
"""Readings by target."""


LOG_ENDINGS = tuple(f"{kind}{packed}" for kind in (".json", ".jsonl", ".ndjson") for packed in ("", ".gz"))
"""Of files of a scaling log, as the source "scaling_log" has them."""

LATEST = 253_402_300_800
"""Seconds: the year 10,000. A time beyond is in milliseconds or smaller units, or none."""

OTHER_COLUMNS = ("backlog", "instances")
"""Columns that may be there: messages waiting, and instances there were, at the begin of the bin."""


def read_arrivals(path: Path) -> Readings:
    """Arrivals of one CSV file (.gz too), of one in Parquet, or of all of a folder, as `tidemark history pull` writes them:
    columns `t` (or at, time, timestamp), `arrivals`, and `target`; without the last, the target is called as the file, or
    as its folder `target=...`. `instances`, those that ran, and `backlog`, messages waiting at that time, may be there, too.
    Each file's own header counts. Times are seconds, or ISO 8601. Raises InputError.
    """
    if (path / "_delta_log").exists():
        raise InputError(
            f"{path} is a Delta table, and its files alone do not tell which rows are live; CSV or Parquet files are accepted."
            " `tidemark spark` reads Delta tables"
        )
    by_target: Readings = {}
    for file in files_in(path, TABLE_ENDINGS):
        for target, reading in arrivals_in(str(file), bytes_of(file)):
            by_target.setdefault(target, []).append(reading)
    if not by_target:
        raise InputError(
            f"{path}: no arrivals; CSV or Parquet files with the columns t and arrivals are accepted"
        )
    return by_target


def arrivals_in(name: str, data: bytes | memoryview) -> Iterator[tuple[str, Reading]]:
    """Target and reading of each row of a file, by the file's own header. Raises InputError naming file, line and column."""
    columns, rows = table_rows(name, data, {*TIME_COLUMNS, "arrivals", "target", *OTHER_COLUMNS})
    check_columns(columns, name)
    file = re.sub(r"(\.csv)?(\.gz)?$|\.parquet$", "", name.rpartition("/")[2], count=1, flags=re.IGNORECASE)
    folder = re.search(r"/target=([^/]+)/", name)
    return rows_as_arrivals(rows, unquote(folder[1]) if folder else file, name)


def check_columns(columns: Collection[str], where: str) -> None:
    """Raises InputError where they are not those of arrivals."""
    if "arrivals" not in columns or not set(TIME_COLUMNS) & set(columns):
        if not columns:
            raise InputError(f"{where} is empty; accepted is a first line with the names t and arrivals")
        lacking = " or ".join(TIME_COLUMNS) if "arrivals" in columns else "arrivals"
        raise InputError(
            f"{where} has no column {lacking}: found {', '.join(columns)}; accepted are {' or '.join(TIME_COLUMNS)}, arrivals, and where "
            f"they are known {', '.join(('target', *OTHER_COLUMNS))}, with commas between them"
        )


def rows_as_arrivals(
    rows: Iterable[Mapping[str, Any]], target: str, where: str
) -> Iterator[tuple[str, Reading]]:
    """Target and reading of each row; `target` is that of rows without such a column. Rows without arrivals are bins of which
    nothing is known. Raises InputError.
    """
    for line, row in enumerate(rows, start=2):
        if row["arrivals"] not in (None, ""):
            place = f"{where}, line {line}"
            row_target = _cell(row, "target", place, _name, "a name") if "target" in row else target
            yield row_target, _reading(row, place)


def _reading(row: Mapping[str, Any], where: str) -> Reading:
    time = next(name for name in TIME_COLUMNS if name in row)
    return Reading(
        _cell(row, time, where, _seconds, "a time: seconds since 1970, or ISO 8601"),
        arrivals=_cell(
            row, "arrivals", where, _count, "a number of 0 or more, or nothing where it is not known"
        ),
        backlog=_cell(row, "backlog", where, _count, "a number of 0 or more"),
        instances=_cell(row, "instances", where, _whole, "a whole number of 0 or more"),
    )


def _cell(row: Mapping[str, Any], column: str, where: str, read: Callable[[Any], Any], accepted: str) -> Any:
    value = row.get(column)
    if value in (None, "") and column in OTHER_COLUMNS:
        return None
    try:
        return read(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{where}, column {column}: found {value!r}; accepted is {accepted}") from None


def _name(value: Any) -> str:
    if value in (None, ""):
        raise ValueError
    return str(value)


def _count(value: Any) -> float:
    count = float(value)
    if not 0 <= count < inf:
        raise ValueError
    return count


def _whole(value: Any) -> int:
    count = _count(value)  # of a column of which some are missing, pandas writes 3.0
    if not count.is_integer():
        raise ValueError
    return int(count)


def _seconds(value: Any) -> float:
    at = seconds(value)
    if not abs(at) < LATEST:  # nor NaN
        raise ValueError
    return at


def seconds(time: str | float | datetime) -> float:
    """Seconds of a number, or of a time, as such or in ISO 8601 (UTC where it has no offset). Raises ValueError."""
    if isinstance(time, datetime):
        parsed = time
    else:
        try:
            return float(time)
        except ValueError:
            parsed = datetime.fromisoformat(str(time))
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def read_log(path: Path, metric: str | None) -> Readings:
    """Backlogs and capacities of a scaling log: a file or folder of JSON lines, or an array as `tidemark log --json`
    prints it. Raises InputError.
    """
    entries = read_entries(path)
    readings = from_entries(entries, metric)
    if not readings:
        raise InputError(f"{path}: {len(entries)} entries, none of them a decision with metrics")
    return readings


def read_entries(path: Path) -> list[LogEntry]:
    """All entries of a scaling log, as `read_log` accepts it. Raises InputError."""
    return [entry for file in files_in(path, LOG_ENDINGS) for entry in _entries(file)]


class _Entry(LogEntry, frozen=True):
    """As JSON has it: a metric that was no number is null there."""

    metrics: dict[str, float | None] = msgspec.field(default_factory=dict)  # type: ignore[assignment]


def _entries(file: Path) -> list[LogEntry]:
    text = text_of(file).strip()
    try:
        if text.startswith("["):
            entries = msgspec.json.decode(text, type=list[_Entry])
        else:
            entries = msgspec.json.Decoder(_Entry).decode_lines(text)
    except msgspec.DecodeError as error:
        raise InputError(f"{file} is not a scaling log: {error}") from error
    return [_known(entry) if None in entry.metrics.values() else entry for entry in entries]


def _known(entry: _Entry) -> LogEntry:
    known = {name: value for name, value in entry.metrics.items() if value is not None}
    return msgspec.structs.replace(entry, metrics=known)


def from_entries(entries: Iterable[LogEntry], metric: str | None) -> Readings:
    """One reading per decision: the metrics it saw, the capacity it found. A later copy of an entry counts."""
    newest: dict[tuple[str, float], LogEntry] = {
        (entry.target, entry.at): entry
        for entry in entries
        if entry.kind is LogKind.DECISION and entry.reason not in UNREAD
    }
    by_target: Readings = {}
    for (target, at), entry in sorted(newest.items()):
        reading = of_metrics(at, entry.metrics, entry.current, metric)
        if reading is not None:
            by_target.setdefault(target, []).append(reading)
    return by_target


def of_metrics(
    at: float, metrics: Mapping[str, float], current: int | None, metric: str | None
) -> Reading | None:
    """The reading of one decision; None where it did not know the backlog. `metric` is chosen as `grid.metric_of` does."""
    name = metric
    if name is None:
        name = "backlog" if "backlog" in metrics else next(iter(metrics)) if len(metrics) == 1 else None
    if name is None or name not in metrics:
        return None
    others = {key: value for key, value in metrics.items() if key != name}
    return Reading(at, backlog=metrics[name], instances=current, metrics=others)


def merged(*sources: Readings) -> Readings:
    by_target: Readings = {}
    for source in sources:
        for target, readings in source.items():
            by_target.setdefault(target, []).extend(readings)
    return by_target
