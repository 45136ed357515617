"""Which documents of its event a dead letter is about: one names the records that were not written, or none, which is all of them.

Where settings make another number of records of an event now than when it was rejected, the names mean nothing, and a letter is about all.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.reconciliation.schemas import Identity

_WHOLE = "*"
_NAMES = "array<string>"
_KINDS = {"lettered": "dead_letters", "is_parked": "parked"}
"""The flags, and what counts the letters of each kind by event."""


def with_letters(rows: DataFrame, letters: DataFrame | None, identity: Identity) -> DataFrame:
    """Adds `lettered` and `is_parked`: whether a DEAD_LETTERS is about the row's `record`. Without `letters` an event has one record.

    Where ids are made of positions a row is an event: its letters are about all that is missing of it, or there are fewer of them.
    """
    if letters is None:
        return rows.withColumns({flag: F.col(count) > 0 for flag, count in _KINDS.items()})
    event = ("partition", "sequence_number")
    names = F.coalesce(F.from_json("records", _NAMES), F.array(F.lit(_WHOLE)))
    named = letters.groupBy(*event).agg(
        F.flatten(F.collect_list(F.when(~F.col("parked"), names))).alias("names_lettered"),
        F.flatten(F.collect_list(F.when(F.col("parked"), names))).alias("names_is_parked"),
    )
    is_event = identity is Identity.POSITION
    flags = {
        flag: (F.col(count) > 0) & (_enough() if is_event else _names_row(F.col(f"names_{flag}")))
        for flag, count in _KINDS.items()
    }
    return rows.join(named, on=list(event), how="left").withColumns(flags)


def _names_row(names: Column) -> Column:
    def is_about(name: Column) -> Column:
        others = F.substring_index(name, "/", -1) != F.substring_index("record", "/", -1)
        return (name == _WHOLE) | (name == F.col("record")) | others

    return F.coalesce(F.exists(names, is_about), F.lit(True)) | F.col("record").isNull()


def _enough() -> Column:
    names = F.concat("names_lettered", "names_is_parked")
    is_enough = F.col("documents") + F.size(F.array_distinct(names)) >= F.col("writes")
    return F.coalesce(F.array_contains(names, _WHOLE) | is_enough, F.lit(True))
