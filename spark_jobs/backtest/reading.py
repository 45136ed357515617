"""Reads recorded load from files, without Spark: arrivals as CSV or Parquet, the scaling log as JSON."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from scaling.log_entry import LogEntry, LogKind
from scaling.model import Reason
from spark_jobs.backtest.replay.history import Reading
from spark_jobs.errors import InputError

TIME_COLUMNS = ("t", "at", "time", "timestamp")

UNREAD = frozenset({Reason.COLLECT_FAILED.value, Reason.STALE_METRIC.value, Reason.INVALID_METRIC.value})
"""Reasons of decisions whose newest value of a metric is an old one: the reading of that time is not known."""

Readings = dict[str, list[Reading]]
"""Readings by target."""


def read_arrivals(path: Path) -> Readings:
    """Arrivals of one CSV file (.gz too), of one in Parquet, or of all of a folder, as `tidemark history pull` writes them:
    columns `t` (or at, time, timestamp), `arrivals`, and `target`; without the last, the target is called as the file.
    `instances`, those that ran, and `backlog`, messages waiting at that time, may be there, too. Times are seconds, or ISO 8601. Raises InputError.
    """
    found: Readings = {}
    for file in _files(path, (".csv", ".csv.gz", ".parquet")):
        for target, reading in _rows(file):
            found.setdefault(target, []).append(reading)
    if not found:
        raise InputError(
            f"{path}: no arrivals; CSV or Parquet files with the columns t and arrivals are accepted"
        )
    return found


def _files(path: Path, endings: tuple[str, ...]) -> list[Path]:
    if not path.exists():
        raise InputError(f"{path} does not exist; a file or a folder is accepted")
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.name.endswith(endings))
    if not files:
        raise InputError(f"{path} is a folder without files that end in {' or '.join(endings)}")
    return files


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.name.endswith(".gz") else data).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def _rows(file: Path) -> Iterator[tuple[str, Reading]]:
    columns, rows = _parquet(file) if file.suffix == ".parquet" else _csv(file)
    time = next((name for name in TIME_COLUMNS if name in columns), None)
    if time is None or "arrivals" not in columns:
        found = ", ".join(columns) or "nothing"
        raise InputError(
            f"{file}: columns {found}; accepted: {' or '.join(TIME_COLUMNS)}, arrivals, and target"
        )
    name = file.name.removesuffix(".gz").removesuffix(".csv").removesuffix(".parquet")
    for line, row in enumerate(rows, start=2):
        if row["arrivals"] in (None, ""):
            continue  # not known; from_arrivals leaves a gap
        target = str(row["target"]) if "target" in columns else name
        yield target, _reading(row, time, f"{file}, line {line}")


def _reading(row: Mapping[str, Any], time: str, where: str) -> Reading:
    """Raises InputError naming the column."""

    def cell(column: str, read: Callable[[Any], Any], accepted: str) -> Any:
        value = row.get(column)
        if value in (None, "") and column in OTHER_COLUMNS:
            return None
        try:
            return read(value)
        except (TypeError, ValueError, OverflowError):
            raise InputError(f"{where}, column {column}: found {value!r}; accepted is {accepted}") from None

    return Reading(
        cell(time, seconds, "a time: seconds since 1970, or ISO 8601"),
        arrivals=cell("arrivals", _count, "a number of 0 or more, or nothing where it is not known"),
        backlog=cell("backlog", _count, "a number of 0 or more"),
        instances=cell("instances", int, "a whole number"),
    )


OTHER_COLUMNS = ("backlog", "instances")
"""Columns that may be there: messages waiting, and instances there were, at the begin of the bin."""


def _count(value: Any) -> float:
    found = float(value)
    if not 0 <= found < inf:
        raise ValueError
    return found


def _csv(file: Path) -> tuple[Sequence[str], Iterable[dict[str, Any]]]:
    rows = csv.DictReader(io.StringIO(_text(file)))
    return rows.fieldnames or [], rows


def _parquet(file: Path) -> tuple[Sequence[str], Iterable[dict[str, Any]]]:
    import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 - CSV needs none of it
    from pyarrow import parquet  # noqa: PLC0415

    try:
        table = parquet.read_table(file)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{file} cannot be read: {error}") from error
    return table.column_names, table.to_pylist()


def seconds(time: str | float | datetime) -> float:
    """Seconds of a number, or of a time, as such or in ISO 8601 (UTC where it has no offset). Raises ValueError."""
    if isinstance(time, datetime):
        moment = time
    else:
        try:
            return float(time)
        except ValueError:
            moment = datetime.fromisoformat(str(time))
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def read_log(path: Path, metric: str | None) -> Readings:
    """Backlogs and capacities of a scaling log: a file or folder of JSON lines, or an array as `tidemark log --json`
    prints it. Raises InputError.
    """
    entries = read_entries(path)
    found = from_entries(entries, metric)
    if not found:
        raise InputError(f"{path}: {len(entries)} entries, none of them a decision with metrics")
    return found


def read_entries(path: Path) -> list[LogEntry]:
    """All entries of a scaling log, as `read_log` accepts it. Raises InputError."""
    files = _files(path, (".json", ".jsonl", ".json.gz", ".jsonl.gz"))
    return [entry for file in files for entry in _entries(file)]


class _Entry(LogEntry, frozen=True):
    """As JSON has it: a metric that was no number is null there."""

    metrics: dict[str, float | None] = msgspec.field(default_factory=dict)  # type: ignore[assignment]


def _entries(file: Path) -> list[LogEntry]:
    text = _text(file).strip()
    try:
        if text.startswith("["):
            found = msgspec.json.decode(text, type=list[_Entry])
        else:
            found = msgspec.json.Decoder(_Entry).decode_lines(text)
    except msgspec.DecodeError as error:
        raise InputError(f"{file} is not a scaling log: {error}") from error
    return [_known(entry) if None in entry.metrics.values() else entry for entry in found]


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
    found: Readings = {}
    for (target, at), entry in sorted(newest.items()):
        reading = of_metrics(at, entry.metrics, entry.current, metric)
        if reading is not None:
            found.setdefault(target, []).append(reading)
    return found


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
    """The readings of all sources together."""
    found: Readings = {}
    for source in sources:
        for target, readings in source.items():
            found.setdefault(target, []).extend(readings)
    return found
