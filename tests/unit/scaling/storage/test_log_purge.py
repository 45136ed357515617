"""Purging the log: a bounded time for each purge, whatever the number of rows, and every target gets its turn."""

import asyncio

import pytest

from scaling.storage.decision_log import PAGE_MAX, PURGE_SECONDS, TableDecisionLog
from tests.support.virtual_time import virtual_time
from tidemark.foundation.errors import ConflictError, StoreUnavailableError

STORAGE = {"Storage": "UseDevelopmentStorage=true"}


class Rows:
    """A table with so many old rows per partition; a request takes a tenth of a second."""

    created = 0

    def __init__(self, counts):
        self.left = dict(counts)
        self.fail = None

    async def rows(self, query, *, select=None, limit=None):
        if "~targets" in query:
            return [{"RowKey": name} for name in sorted(self.left)]
        await asyncio.sleep(0.1)
        partition = query.split("'")[1]
        return [{"PartitionKey": partition}] * min(self.left[partition], limit)

    async def delete(self, rows):
        await asyncio.sleep(0.1)
        if self.fail is not None:
            raise self.fail
        self.left[rows[0]["PartitionKey"]] -= len(rows)


def purging(counts, *, calls=1, fail=None):
    log = TableDecisionLog(STORAGE, "Storage")
    log._table = table = Rows(counts)
    table.fail = fail

    async def purge():
        removed, took = [], []
        for _ in range(calls):
            begun = asyncio.get_running_loop().time()
            removed.append(await log.purge(before=1.0))
            took.append(asyncio.get_running_loop().time() - begun)
        return removed, took

    with virtual_time() as run:
        return (*run(purge()), table.left)


def test_a_day_of_rows_is_gone_in_one_purge():
    removed, (took,), left = purging({"plan": 10_000, "other": 1_440})

    assert removed == [11_440]
    assert set(left.values()) == {0}
    assert took < PURGE_SECONDS


def test_a_purge_ends_in_time_and_the_next_ones_go_on_with_other_targets_first():
    many = {f"t{index:02}": 20 * PAGE_MAX for index in range(40)}
    removed, took, left = purging(many, calls=5)

    assert max(took) < PURGE_SECONDS + 1.0
    assert min(removed) > 100_000
    assert sum(removed) + sum(left.values()) == 40 * 20 * PAGE_MAX
    assert max(left.values()) < 20 * PAGE_MAX


def test_whose_rows_somebody_else_deletes_meanwhile_is_left_to_that_one():
    removed, (took,), _ = purging({"plan": 500}, fail=ConflictError("gone"))

    assert removed == [0]
    assert took < PURGE_SECONDS


def test_a_table_that_does_not_answer_is_told():
    with pytest.raises(StoreUnavailableError):
        purging({"plan": 5, "other": 5}, fail=StoreUnavailableError("down"))
