"""The results of a command on one machine: tables, then the page, then the check of --allow."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import parquet

from tidemark.analysis.errors import JobError
from tidemark.analysis.limits import Limits, exceeded_limits, raise_for_failures
from tidemark.analysis.report import Report, write_page
from tidemark.foundation.log.terminal import Console
from tidemark.foundation.wording import file_problem


def write_rows(rows: Iterable[Any], path: Path, schema: pa.Schema | None = None) -> None:
    """Rows as one Parquet file, complete or absent, whoever writes to the same path. Without a schema it is that of the rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.{os.getpid()}.part")
    parquet.write_table(pa.Table.from_pylist(list(rows), schema=schema), half)
    half.replace(path)


def finish(
    result: Any,
    output: Path,
    tables: Mapping[str, tuple[Iterable[Any], pa.Schema | None]],
    page: str,
    *,
    counts: Mapping[str, float | None],
    limited: Mapping[str, str],
    allow: Limits,
    label: str = "page",
    given: Mapping[str, object] | None = None,
) -> None:
    """Writes the tables (rows and schema, by name) and the page: what `report_of` of the module `page` makes of `result` and of `given`. The
    module is loaded here, because matplotlib takes a second. Raises JobError where the tables cannot be written, and
    CheckFailedError, when all is written, where more was found than is allowed.
    """
    try:
        for name, (rows, schema) in tables.items():
            write_rows(rows, output / f"{name}.parquet", schema)
    except OSError as error:
        raise JobError(f"--output {output} cannot be written: {file_problem(error)}") from error

    def make_page() -> Report:
        report: Report = importlib.import_module(page).report_of(result, **(given or {}))
        return report

    exceeded = exceeded_limits(allow, counts, limited)
    raise_for_failures(exceeded, write_page(make_page, output, Console(), label))
