"""What a process has called, in Table Storage: a row for each process, written over and over."""

import uuid

import pytest

from scaling.calls.usage import SHOWN, CallsView, ProcessCalls
from scaling.storage.documents import CALLS, TableCallCounts
from tidemark.foundation.keys import key_of

T0 = 1_795_000_000.0
VIEW = CallsView(
    "management_reads", "management.azure.com/11111111-2222", 100, 5.0, 40, 2400, 3, 12, 1, T0 + 30
)

pytestmark = pytest.mark.wire


@pytest.fixture
async def counts(azurite):
    made = TableCallCounts({"Store": azurite}, "Store", table=f"Calls{uuid.uuid4().hex}")
    yield made
    await made.aclose()


async def test_each_process_has_one_row_which_is_forgotten_when_it_is_gone(counts):
    assert list(await counts.read()) == []
    first, second = (ProcessCalls(f"machine/{n}", T0 + n, (VIEW,) * SHOWN) for n in range(2))

    for each in (ProcessCalls("machine/0", T0 - 60, ()), first, second):
        await counts.put(each)

    assert sorted(await counts.read(), key=lambda each: each.at) == [first, second]
    assert await counts.forget(before=T0 + 0.5) == 1
    assert await counts.forget(before=T0 + 0.5) == 0
    assert list(await counts.read()) == [second]


async def test_a_row_that_cannot_be_read_hides_no_other(counts):
    await counts.put(ProcessCalls("machine/1", T0, (VIEW,)))
    await counts._table.put([{"PartitionKey": CALLS, "RowKey": key_of("odd"), "At": T0, "Data0": "{"}])

    assert [each.process for each in await counts.read()] == ["machine/1"]
