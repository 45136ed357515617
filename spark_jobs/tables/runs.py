"""The table `runs` of a job's output: what each run read and counted, and which version of each table is its own. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from msgspec import Struct

RUNS = "runs"
KEPT_RUNS = 100
DAY = "day"
"""The column by which a table is partitioned that is kept by day."""
COMMITS_SEARCHED = 10
"""In Delta's history for a run's own commit: more would have to come between it and the look."""
APPLICATION = "tidemark"
"""Whose transaction a new run is, in Delta's log: its number is the run's."""

_TEXTS = pa.map_(pa.string(), pa.string())
COLUMNS = pa.schema(
    [
        ("run", pa.int64()),
        ("key", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("job", pa.string()),
        ("inputs", _TEXTS),
        ("counts", pa.map_(pa.string(), pa.float64())),
        ("settings", _TEXTS),
        ("failures", pa.list_(pa.string())),
        ("about", _TEXTS),
        ("sources", pa.map_(pa.string(), _TEXTS)),
        ("versions", pa.map_(pa.string(), pa.int64())),
    ]
)


class Run(Struct, frozen=True):
    """A run that finished: what it read (with versions, positions or batches), what it counted, how it was asked, and why its
    check failed (nothing: it passed). `at` is when it finished, in seconds since 1970.

    `run` counts the runs of the folder from 1; `key` differs for two runs of the same number. `about` are facts of the job, such as
    the hub. `versions` are of the Delta tables, by name; a table that is kept by day has its days in `sources`, with what their
    rows are made of: the same text, the same rows.
    """

    run: int
    key: str = ""
    at: float = 0.0
    job: str = ""
    inputs: dict[str, str] = {}
    counts: dict[str, float] = {}
    settings: dict[str, str] = {}
    failures: list[str] = []
    about: dict[str, str] = {}
    sources: dict[str, dict[str, str]] = {}
    versions: dict[str, int] = {}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Run:
        """Of a row of the table, whose maps may be lists of pairs."""
        names = ("inputs", "counts", "settings", "about", "versions", "sources")
        maps = {name: dict(row.get(name) or ()) for name in names}
        sources = {name: dict(days) for name, days in maps["sources"].items()}
        at = row["at"].timestamp()
        failures = row.get("failures", row.get("closed"))  # the column's name before 27 November 2026
        return msgspec.convert({**row, **maps, "sources": sources, "at": at, "failures": failures}, cls)

    def row(self) -> dict[str, Any]:
        return {**msgspec.structs.asdict(self), "at": datetime.fromtimestamp(self.at, UTC)}


def newest(runs: Iterable[Run] | None) -> Run | None:
    return max(runs or (), key=lambda run: run.run, default=None)


def changes_rows(operation: str) -> bool:
    """Whether a commit of Delta's history may have changed rows: to remove files that no version names is a commit as well."""
    return not operation.startswith("VACUUM")


def nothing_new(last: Run | None, inputs: Mapping[str, str], counts: Mapping[str, float | None]) -> str:
    """In words, where a stream has read nothing since the last run, or nothing yet; else ""."""
    if not counts["read"]:
        return "There was nothing to read yet: this run is over nothing."
    if last is not None and (last.inputs, last.counts.get("read")) == (inputs, counts["read"]):
        return f"Nothing is new since run {last.run}: its tables are shown again."
    return ""
