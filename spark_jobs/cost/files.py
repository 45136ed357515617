"""Cost exports as files: CSV, .csv.gz and Parquet, as Cost Management writes them; the scaling log as entries of a target."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from msgspec import Meta, Struct
from pyarrow import parquet

from scaling.log_entry import LogEntry
from spark_jobs.cost.charges import Charge, charges_of, columns_of, newest_runs
from spark_jobs.cost.spans import Seen
from spark_jobs.errors import InputError

ENDINGS = (".csv", ".csv.gz", ".parquet")

MANIFEST = "manifest.json"


class _Run(Struct, rename="camel"):
    submitted_time: Annotated[datetime, Meta(tz=True)]


class _Manifest(Struct, rename="camel"):
    """What a run of an export says of itself, in its folder."""

    run_info: _Run


def export_files(path: Path) -> list[Path]:
    """The files that count. Raises InputError where there are none."""
    if not path.exists():
        raise InputError(f"--costs {path} does not exist; a file or a folder is accepted")
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.name.endswith(ENDINGS)]
    if not files:
        raise InputError(f"--costs {path} is a folder without files that end in {' or '.join(ENDINGS)}")
    return [Path(name) for name in newest_runs((str(file), _written(file)) for file in files)]


def _written(file: Path) -> float:
    """When its run was made: a file that was downloaded has the time of that, the manifest beside it does not."""
    try:
        manifest = msgspec.json.decode((file.parent / MANIFEST).read_bytes(), type=_Manifest)
    except (OSError, msgspec.MsgspecError):
        return file.stat().st_mtime
    return manifest.run_info.submitted_time.timestamp()


def read_export(
    name: str, data: bytes | memoryview, wanted: Collection[str], amount: str | None
) -> list[Charge]:
    """The charges of one file for the resources that are `wanted`. Raises InputError naming file, row and column."""
    try:
        columns, rows = (_parquet if name.endswith(".parquet") else _csv)(name, data)
        return list(charges_of(rows, columns_of(columns, amount, name), wanted, name))
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, pa.ArrowException) as error:
        raise InputError(f"{name} cannot be read: {error}") from error


def _csv(name: str, data: bytes | memoryview) -> tuple[Sequence[str], Iterator[Mapping[str, Any]]]:
    file: Any = io.BytesIO(data)
    if name.endswith(".gz"):
        file = gzip.GzipFile(fileobj=file)
    rows = csv.DictReader(io.TextIOWrapper(file, encoding="utf-8-sig", newline=""))
    return rows.fieldnames or (), rows


def _parquet(_name: str, data: bytes | memoryview) -> tuple[Sequence[str], Iterator[Mapping[str, Any]]]:
    file = parquet.ParquetFile(pa.BufferReader(data))
    return file.schema_arrow.names, (row for batch in file.iter_batches() for row in batch.to_pylist())


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
