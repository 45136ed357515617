"""Cost exports as files: CSV, .csv.gz and Parquet, as Cost Management writes them; the scaling log as entries of a target."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

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
from tidemark.analysis.cost.spans import CapacityEntry
from tidemark.analysis.input_files import TABLE_ENDINGS, bytes_of, files_in, table_rows


def export_files(path: Path) -> tuple[list[str], dict[str, Run]]:
    """The files that count, and by folder what the runs say of themselves. Raises InputError where there are none."""
    files = files_in(path, TABLE_ENDINGS, "--costs")
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
    exports, runs = export_files(path)
    charges: list[Charge] = []
    origins, sources = Origins(), sources_of(exports, runs)
    for name in exports:
        of_export = read_export(name, bytes_of(Path(name)), wanted, amount)
        origins.add(of_export, sources[name])
        charges += of_export
    return charges


def read_export(
    name: str, data: bytes | memoryview, wanted: Collection[str], amount: str | None
) -> list[Charge]:
    """The charges of one file for the resources that are `wanted`. Raises InputError naming file, row and column."""
    columns, rows = table_rows(name, data)
    return list(charges_of(rows, columns_of(columns, amount, name), wanted, name))


def seen_of(entry: LogEntry) -> CapacityEntry:
    """An entry of the log as the costs need it."""
    effect = entry.effect
    return CapacityEntry(
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
