"""Which files of a folder hold samples, and of which types: the same with and without Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from spark_jobs.telemetry_aggregation.files.in_order import FOR_EVER, RowGroup, Span, read_times, row_groups
from tidemark.analysis.errors import InputError
from tidemark.analysis.export_text import is_hidden

NAMES = ("target", "metric")
"""Columns that may be in the names of folders, as Spark writes partitions: target=plan/."""

_NO_NAME = "__HIVE_DEFAULT_PARTITION__"


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


ACCEPTED: dict[str, tuple[str, Callable[[pa.DataType], bool]]] = {
    "target": ("text", _is_text),
    "metric": ("text", _is_text),
    "at": ("a timestamp with a zone", lambda kind: bool(pa.types.is_timestamp(kind) and kind.tz)),
    "value": ("a number", lambda kind: bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))),
}
"""By column, in words and as a question: any width, any unit of time."""


def row_groups_of(folder: Path) -> list[RowGroup]:
    """Of all files in a folder that are not hidden, or of one file. Raises InputError where there are none, and for one that is
    no Parquet or has other columns: a file that is skipped would be missing from the results.
    """
    if (folder / "_delta_log").exists():
        raise InputError(
            f"--metrics {folder} is a Delta table, and its files alone do not show which rows are live; accepted: Parquet"
            " files. `tidemark spark telemetry-aggregation` reads Delta tables"
        )
    if not folder.exists():
        raise InputError(f"--metrics {folder} does not exist; a file or a folder is accepted")
    paths = sorted(file for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else [folder]
    files = [file for file in paths if file == folder or not is_hidden(file.relative_to(folder))]
    if not files:
        raise InputError(f"--metrics {folder} holds no Parquet files")
    return [group for file in files for group in _row_groups(file, _names(file, folder))]


def _names(file: Path, folder: Path) -> dict[str, str | None]:
    """Columns that the names of the folders hold, such as target=plan/."""
    parts = (part.partition("=") for part in file.relative_to(folder).parts[:-1])
    values = {name: unquote(value) for name, equals, value in parts if equals and name in NAMES}
    return {name: None if value == _NO_NAME else value for name, value in values.items()}


def _row_groups(file: Path, names: dict[str, str | None]) -> list[RowGroup]:
    try:
        metadata = pq.read_metadata(file)
        schema = metadata.schema.to_arrow_schema()
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"--metrics: the file '{file}' cannot be read: {error}; accepted are Parquet files, and others whose names begin"
            " with _ or . are passed over"
        ) from error
    types = {field.name: str(field.type) for field in schema}
    place = metadata.schema.names.index("at") if "at" in metadata.schema.names else None
    # INT96 is a time of UTC, though Arrow shows no zone.
    int96 = place is not None and metadata.schema.column(place).physical_type == "INT96"
    wrong = {
        name: types.get(name, "missing")
        for name, (_, fits) in ACCEPTED.items()
        if name not in names
        and not (name in types and (fits(schema.field(name).type) or (name == "at" and int96)))
    }
    if wrong:
        accepted = ", ".join(f"{name} {words}" for name, (words, _) in ACCEPTED.items())
        raise InputError(f"--metrics: the file '{file}' has columns {wrong}; accepted: {accepted}")
    if twice := sorted(names.keys() & types.keys()):
        raise InputError(
            f"--metrics: the file '{file}' has the column {twice[0]}, and so has its folder; accepted is one of both"
        )
    groups = row_groups(str(file), metadata)
    if groups is None:
        ever = Span(*FOR_EVER)
        sizes = (metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
        groups = [_with_times(RowGroup(str(file), number, rows, ever)) for number, rows in enumerate(sizes)]
    return [group._replace(names=tuple(names.items())) for group in groups]


def _with_times(group: RowGroup) -> RowGroup:
    """Reads the times where there are no statistics, as with INT96: without them all rows would be in memory together."""
    ends = pc.min_max(read_times(group)).as_py()
    if ends["min"] is None:
        return group
    return group._replace(times=Span.whole_minutes(ends["min"], ends["max"]))
