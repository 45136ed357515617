"""Cost exports as files: CSV, .csv.gz and Parquet, as Cost Management writes them; the scaling log as entries of a target."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scaling.log_entry import LogEntry
from tidemark.analysis.cost.charges import (
    MANIFEST,
    Charge,
    Origins,
    Run,
    charges_of,
    columns_of,
    newest_runs,
    run_of,
    sources_of,
)
from tidemark.analysis.cost.spans import Seen
from tidemark.analysis.errors import InputError
from tidemark.analysis.export_text import check_ending, csv_rows, is_hidden, parquet_rows

ENDINGS = (".csv", ".csv.gz", ".parquet")


def export_files(path: Path) -> list[Path]:
    """The files that count. Raises InputError where there are none."""
    return [Path(name) for name in _files(path)[0]]


def _files(path: Path) -> tuple[list[str], dict[str, Run]]:
    """The files that count, and by folder what the runs say of themselves."""
    if not path.exists():
        raise InputError(f"--costs {path} does not exist; a file or a folder is accepted")
    check_ending(path, ENDINGS)
    files = (
        [path]
        if path.is_file()
        else [
            file
            for file in path.rglob("*")
            if file.name.lower().endswith(ENDINGS) and not is_hidden(file.relative_to(path))
        ]
    )
    if not files:
        raise InputError(f"--costs {path} is a folder without files that end in {' or '.join(ENDINGS)}")
    runs = {folder: run for folder in {file.parent for file in files} if (run := _run(folder))}
    # A file that was downloaded has the time of that, the manifest beside it does not.
    times = (
        (str(file), runs[file.parent].at if file.parent in runs else file.stat().st_mtime) for file in files
    )
    known = {str(folder): run for folder, run in runs.items()} if path.is_dir() else {}
    return newest_runs(times), known


def _run(folder: Path) -> Run | None:
    try:
        return run_of((folder / MANIFEST).read_bytes())
    except OSError:
        return None


def read_exports(path: Path, wanted: Collection[str], amount: str | None) -> list[Charge]:
    """The charges of all files that count. Raises InputError, also where files have the same charges."""
    found, runs = _files(path)
    charges: list[Charge] = []
    origins, sources = Origins(), sources_of(found, runs)
    for name in found:
        own = read_export(name, Path(name).read_bytes(), wanted, amount)
        origins.add(own, sources[name])
        charges += own
    return charges


def read_export(
    name: str, data: bytes | memoryview, wanted: Collection[str], amount: str | None
) -> list[Charge]:
    """The charges of one file for the resources that are `wanted`. Raises InputError naming file, row and column."""
    try:
        columns, rows = (parquet_rows if name.lower().endswith(".parquet") else _csv)(name, data)
        return list(charges_of(rows, columns_of(columns, amount, name), wanted, name))
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        raise InputError(f"{name} cannot be read: {error}") from error


def _csv(name: str, data: bytes | memoryview) -> tuple[Sequence[str], Iterator[Mapping[str, Any]]]:
    file: Any = io.BytesIO(data)
    if name.lower().endswith(".gz"):
        file = gzip.GzipFile(fileobj=file)
    return csv_rows(io.TextIOWrapper(file, encoding="utf-8", newline=""), name)


def seen_of(entry: LogEntry) -> Seen:
    """An entry of the log as the costs need it."""
    effect = entry.effect
    return Seen(
        entry.at,
        entry.kind.value,
        entry.current,
        entry.desired,
        None if effect is None else effect.outcome.value,
        None if effect is None else effect.reached,
        entry.reason,
        entry.line,
        None if entry.shadow is None else entry.shadow.current,
        entry.metrics,
    )
