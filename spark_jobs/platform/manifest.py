"""What the folder of a job's results says of itself: where each table is, and what the runs read and counted. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

MANIFEST = "manifest"
PLACES = ("a", "b")
KEPT_RUNS = 100
WHOLE = ""
"""The key of a table that is not kept by day."""


class Part(Struct, frozen=True):
    """Where a table is, or a day of it: a path below the folder. `version` is of a Delta table, or the snapshot of an Iceberg table.

    `source` tells what the part was made of: the same text, the same rows.
    """

    path: str
    version: int | None = None
    source: str = ""


class Told(Struct, frozen=True):
    """What a run says of itself: what it read (with versions, positions or batches), what it counted, how it was asked, and
    why its gate is closed (nothing: it is open). `at` is when it finished, in seconds since 1970.
    """

    run: int
    at: float = 0.0
    inputs: dict[str, str] = {}
    counts: dict[str, float] = {}
    settings: dict[str, str] = {}
    closed: list[str] = []


class Manifest(Struct, frozen=True):
    """What one run left. `run` counts the runs from 1; `key` tells runs of the same number apart.

    `tables` has by name the parts, by day (2026-11-21) or under WHOLE. `about` are facts of the job, such as the hub. `runs`
    are the last KEPT_RUNS that finished, this one last.
    """

    run: int
    key: str
    job: str
    format: str
    tables: dict[str, dict[str, Part]]
    about: dict[str, str] = {}
    runs: list[Told] = []


def nothing_new(last: Manifest | None, inputs: Mapping[str, str], counts: Mapping[str, float | None]) -> str:
    """In words, where a stream has read nothing since the last run, or nothing yet; else ""."""
    if not counts["read"]:
        return "There was nothing to read yet: this run is over nothing."
    before = last.runs[-1] if last is not None and last.runs else None
    same = before is not None and (before.inputs, before.counts.get("read")) == (inputs, counts["read"])
    return f"Nothing is new since run {before.run}: its tables are shown again." if before and same else ""
