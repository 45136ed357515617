"""Merges rows into tables of the user's own. They agree with the results, whatever stops a run.

The rows are merged before the run is published. A run that is killed in between merges the same rows again the next time, which
changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from pyspark.sql import functions as F

from spark_jobs.platform.progress import watch
from spark_jobs.tables.merging import merge_rows
from spark_jobs.tables.places import check_folder
from spark_jobs.tables.results import Results
from tidemark.analysis.errors import InputError

KEYS = {
    "gauges": ("window", "window_start", "subject", "part", "metric"),
    "flows": ("window", "window_start", "consumer", "hub", "consumer_group"),
    "scaling": ("window", "window_start", "target"),
}
"""The columns that identify a row of a table."""


def places_of(texts: Iterable[str]) -> dict[str, str]:
    """Of each `--merge-into`: by table of KEYS, where to. Raises InputError."""
    places: dict[str, str] = {}
    for text in texts:
        name, _, place = text.partition("=")
        if name not in KEYS or not place or set(place) & set("{}`;"):
            raise InputError(
                f"--merge-into is '{text}'; accepted: TABLE=PLACE with a table of {', '.join(KEYS)} and the path of a "
                "Delta table, or the name of a table in a catalog, such as gauges=main.ops.gauges (without backticks)"
            )
        if (
            "/" in place
        ):  # where Spark finds no table by a pattern, one would be made over that which is there
            check_folder(place, f"--merge-into {name}")
        if name in places:
            raise InputError(
                f"--merge-into is given twice for {name}: '{places[name]}' and '{place}'; accepted: one place"
            )
        if place in places.values():
            raise InputError(f"--merge-into names '{place}' for two tables; accepted: a place for each")
        places[name] = place
    return places


def merge(results: Results, places: Mapping[str, str], changed: Mapping[str, Collection[str]] | None) -> None:
    """Merges the run's tables into those in `places`; with `changed`, by table, only the rows of these days.

    Raises InputError for a table that the run does not have, and as `merge_rows`.
    """
    for name, place in places.items():
        if name not in results.new.versions:
            raise InputError(f"--merge-into {name}={place}: the inputs given make no table {name}")
        rows = results.table(name)
        if changed is not None:
            rows = rows.where(F.date_format("window_start", "yyyy-MM-dd").isin(list(changed[name])))
        if changed is None or changed[name]:
            with watch(results.spark, f"merging {name} into {place}"):
                merge_rows(rows, place, KEYS[name])
