"""Files that people and Azure export: which belong to an input, and CSV by each file's own header. Pure."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any

from tidemark.analysis.errors import InputError

BYTE_ORDER_MARK = "\ufeff"


def without_marks(lines: Iterable[str]) -> Iterator[str]:
    """The lines without byte order marks before them: Azure's cost exports are known to write one before the first row, too,
    where it would become a part of the first cell.
    """
    return (line.lstrip(BYTE_ORDER_MARK) for line in lines)


def is_hidden(file: PurePath) -> bool:
    """Whether a file below an input is no part of it: as Spark has it, such names are those of a writer that is at work."""
    return any(part.startswith((".", "_")) for part in file.parts)


def check_ending(file: Path, endings: tuple[str, ...]) -> None:
    """Raises InputError for a file that Spark would not take: both ways read the same files. What is no file has no ending: the
    output of another program, handed over as /dev/fd/63.
    """
    if file.is_file() and not file.name.lower().endswith(endings):
        raise InputError(f"{file} does not end in {' or '.join(endings)}; rename it to what it is")


def csv_rows(lines: Iterable[str], where: str) -> tuple[Sequence[str], Iterator[dict[str, str]]]:
    """The header, and each row by its names. `where` is the file, for errors.

    Raises InputError, naming the row, for a name that is there twice and for a row of more or fewer cells; csv.Error for what
    is no CSV, such as a file that ends within quotes.
    """
    rows = csv.reader(without_marks(lines), strict=True)
    names = next(rows, [])
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"{where} has the column {twice[0]} twice; accepted is one of each name")
    return names, _by_name(names, rows, where)


def parquet_rows(
    name: str, data: bytes | memoryview, wanted: Collection[str] | None = None
) -> tuple[Sequence[str], Iterator[dict[str, Any]]]:
    """The columns, and each row with those that are `wanted` (all). Raises InputError for what is no Parquet, and for a file
    of which fewer rows can be read than it says.
    """
    import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 - CSV needs none of it
    from pyarrow import parquet  # noqa: PLC0415

    try:
        file = parquet.ParquetFile(pa.BufferReader(data))
        names = file.schema_arrow.names
        batches = list(
            file.iter_batches(columns=[each for each in names if wanted is None or each in wanted])
        )
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{name} cannot be read: {error}") from error
    read = sum(batch.num_rows for batch in batches)
    if read != file.metadata.num_rows:
        raise InputError(
            f"{name} is damaged: it has {file.metadata.num_rows:,} rows, of which {read:,} can be read"
        )
    return names, _as_python(batches, name)


def _as_python(batches: Sequence[Any], where: str) -> Iterator[dict[str, Any]]:
    for batch in batches:
        try:
            yield from batch.to_pylist()
        except (
            ValueError,
            OverflowError,
        ) as error:  # a time that Python has not; Arrow's errors are ValueErrors
            raise InputError(f"{where} cannot be read: {error}") from error


def _by_name(names: Sequence[str], rows: Iterator[list[str]], where: str) -> Iterator[dict[str, str]]:
    for number, cells in enumerate((row for row in rows if row), start=2):
        if len(cells) != len(names):
            more = "more" if len(cells) > len(names) else "fewer"
            raise InputError(
                f"{where}, row {number}: it has {more} cells than the file has columns: {len(cells)} for {len(names)}"
            )
        yield dict(zip(names, cells, strict=True))
