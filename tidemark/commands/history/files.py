"""The file of a history: CSV, or Parquet where pyarrow is installed. A row a minute; empty is not known.

    t           when the minute began, in UTC; in CSV as ISO 8601
    target      the target's name, as `tidemark backtest` groups rows
    arrivals    messages that arrived in the minute
    instances   instances of the plan that ran in it
    source      what was counted: <namespace>/<entity>, or <storage account>/*

A file appears whole, or not at all.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any

from tidemark.commands.history.model import MINUTE, Minute, Minutes, PullError
from tidemark.foundation.version import install_hint

COLUMNS = ("t", "target", "arrivals", "instances", "source")
ENDINGS = (".csv", ".csv.gz", ".parquet")


def check_place(path: Path) -> None:
    """Raises PullError where no history could be written, before anything is asked for."""
    if not path.name.endswith(ENDINGS):
        raise PullError(f"--out: found '{path}'; accepted are files that end in {', '.join(ENDINGS)}")
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise PullError(
            f"--out: '{path}' needs the package pyarrow: {install_hint('analysis')}; .csv and .csv.gz need nothing"
        )
    if path.is_dir() or not path.parent.is_dir():
        raise PullError(
            f"--out: found '{path}', {'a folder' if path.is_dir() else 'in a folder that does not exist'}"
        )


def load(path: Path, target: str, source: str) -> Minutes:
    """The minutes of a file that is there; none without one. Raises PullError for what is no history of this source."""
    if not path.exists():
        return {}
    other = f"--out: {path} exists and "
    minutes: Minutes = {}
    for row in _checked_rows(path, other):
        if (row["target"], row["source"]) != (target, source):
            raise PullError(
                f"{other}holds {row['source']} for target '{row['target']}', not {source} for '{target}'; give another file"
            )
        try:
            instances = _number(row["instances"])
            minute = round(_seconds(row["t"]) / MINUTE)
            minutes[minute] = Minute(_number(row["arrivals"]), None if instances is None else int(instances))
        except (ValueError, AttributeError, TypeError, OverflowError):
            raise PullError(f"{other}cannot be read: found the row {row}; give another file") from None
    return minutes


def save(path: Path, target: str, source: str, minutes: Minutes) -> None:
    """Writes the file, in the order of time. Raises PullError when it cannot."""
    rows = ((at, minutes[at]) for at in sorted(minutes))
    data = _parquet(target, source, rows) if path.suffix == ".parquet" else _csv(target, source, rows)
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    half = path.with_name(f".{path.name}.new")
    try:
        with half.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        half.replace(path)
    except OSError as error:
        with suppress(OSError):
            half.unlink(missing_ok=True)
        raise PullError(f"--out: {path} cannot be written: {error.strerror}") from error


def _checked_rows(path: Path, other: str) -> Iterator[dict[str, Any]]:
    try:
        rows = _parquet_rows(path) if path.suffix == ".parquet" else _csv_rows(path)
        for row in rows:
            if set(COLUMNS) - row.keys():
                raise PullError(
                    f"{other}has the columns {', '.join(map(str, row))}, not {', '.join(COLUMNS)}: it is no history of "
                    "this command; give another file"
                )
            yield row
    except (OSError, EOFError, ValueError, csv.Error) as error:  # pyarrow's errors are ValueErrors
        raise PullError(f"{other}cannot be read: {error}") from error


# -- CSV ------------------------------------------------------------------------------------------------


def _csv(target: str, source: str, rows: Iterable[tuple[int, Minute]]) -> bytes:
    text = io.StringIO(newline="")
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(COLUMNS)
    for at, minute in rows:
        ran = "" if minute.instances is None else minute.instances
        lines.writerow((_time(at), target, _text(minute.arrivals), ran, source))
    return text.getvalue().encode()


def _text(value: float | None) -> str:
    if value is None:
        return ""
    return str(int(value)) if value == int(value) else repr(value)


def _time(minute: int) -> str:
    return f"{datetime.fromtimestamp(minute * MINUTE, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _csv_rows(path: Path) -> Iterator[dict[str, Any]]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    rows = csv.DictReader(io.StringIO(text))
    if not set(COLUMNS) <= set(rows.fieldnames or ()):
        yield dict.fromkeys(rows.fieldnames or ("nothing",))
        return
    yield from rows


def _number(value: Any) -> float | None:
    """Raises ValueError for what cannot be counted."""
    number = None if value in {None, ""} else float(value)
    if number is not None and not (isfinite(number) and number >= 0):
        raise ValueError(f"found {value}")
    return number


def _seconds(value: Any) -> float:
    time = datetime.fromisoformat(value) if isinstance(value, str) else value
    return float((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp())


# -- Parquet --------------------------------------------------------------------------------------------


def _parquet(target: str, source: str, rows: Iterable[tuple[int, Minute]]) -> bytes:
    import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 - of another extra: see check_place
    from pyarrow import parquet  # noqa: PLC0415

    known = list(rows)
    columns = {
        "t": pa.array([at * MINUTE * 1_000 for at, _ in known], pa.timestamp("ms", tz="UTC")),
        "target": pa.array([target] * len(known), pa.string()),
        "arrivals": pa.array([minute.arrivals for _, minute in known], pa.float64()),
        "instances": pa.array([minute.instances for _, minute in known], pa.int64()),
        "source": pa.array([source] * len(known), pa.string()),
    }
    file = io.BytesIO()
    parquet.write_table(pa.table(columns), file)
    return file.getvalue()


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    from pyarrow import parquet  # noqa: PLC0415 - as above

    table = parquet.read_table(path)
    if not set(COLUMNS) <= set(table.column_names):
        yield dict.fromkeys(table.column_names)
        return
    yield from table.select(list(COLUMNS)).to_pylist()
