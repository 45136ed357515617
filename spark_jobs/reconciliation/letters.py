"""Which documents of its event a dead letter is about: one names the records that were not written, or none, which is all of them.

Where settings make another number of records of an event now than when it was rejected (`of`), the names mean nothing, and a letter is
about all.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.reconciliation.schemas import Identity

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
    letter = F.struct(F.from_json("records", _NAMES).alias("names"), "of")
    named = letters.groupBy(*event).agg(
        F.collect_list(F.when(~F.col("parked"), letter)).alias("of_lettered"),
        F.collect_list(F.when(F.col("parked"), letter)).alias("of_is_parked"),
    )
    is_event = identity is Identity.POSITION
    flags = {
        flag: (F.col(count) > 0) & (_enough() if is_event else _names_row(F.col(f"of_{flag}")))
        for flag, count in _KINDS.items()
    }
    return rows.join(named, on=list(event), how="left").withColumns(flags)


def _names_row(letters: Column) -> Column:
    def is_about(letter: Column) -> Column:
        is_whole = letter["names"].isNull() | (letter["of"] != F.col("of"))
        return is_whole | F.array_contains(letter["names"], F.col("record"))

    return F.coalesce(F.exists(letters, is_about), F.lit(True)) | F.col("record").isNull()


def _enough() -> Column:
    def names_of(letter: Column) -> Column:
        return F.transform(letter["names"], lambda name: F.struct(name, letter["of"]))

    # Of a letter that names none there is null in place of the names, and so of all.
    names = F.flatten(F.transform(F.concat("of_lettered", "of_is_parked"), names_of))
    return F.coalesce(F.col("documents") + F.size(F.array_distinct(names)) >= F.col("writes"), F.lit(True))
