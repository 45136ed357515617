"""What every Outbox does: the one in memory and the one in Table Storage."""

import uuid

import msgspec
import pytest

from scaling.storage.documents import TableOutbox
from tests.support.scaling.fakes import MemoryOutbox
from tests.support.servers.webhooks import notice

T0 = 1_795_000_000.0


@pytest.fixture
async def outbox(backend):
    table = f"Notices{uuid.uuid4().hex}"
    made = TableOutbox({"Store": backend}, "Store", table=table) if backend else MemoryOutbox()
    yield made
    await made.aclose()


async def test_letters_wait_until_they_are_done_and_are_known_until_they_are_forgotten(outbox):
    assert await outbox.waiting("ops") == []
    odd = notice("a/b?c", text="ünd 中", counts={"held": 2}, target="plan/1")
    await outbox.put("ops", [odd, notice("b")], now=T0)
    await outbox.put("other", [odd], now=T0)

    letters = {letter.notice.id: letter for letter in await outbox.waiting("ops")}
    assert letters[odd.id].notice == odd
    assert set(letters) == {odd.id, "scaled:b"}

    done = msgspec.structs.replace(letters[odd.id], done=True)
    tried = msgspec.structs.replace(letters["scaled:b"], tries=3, due_at=T0 + 5.5)
    await outbox.save("ops", [done, tried])
    await outbox.put("ops", [odd, notice("b")], now=T0 + 60.0)

    assert await outbox.waiting("ops") == [tried]
    assert len(await outbox.waiting("other")) == 1
    assert await outbox.forget("ops", before=T0) == 0
    assert await outbox.forget("ops", before=T0 + 1.0) == 1
    await outbox.put("ops", [odd], now=T0 + 90_000.0)
    assert len(await outbox.waiting("ops")) == 2


async def test_a_hundred_letters_are_saved_at_once(outbox):
    await outbox.put("ops", [notice(f"n{index}") for index in range(100)], now=T0)

    await outbox.save(
        "ops", [msgspec.structs.replace(each, done=True) for each in await outbox.waiting("ops")]
    )

    assert await outbox.waiting("ops") == []


async def test_a_row_that_cannot_be_read_holds_up_no_other(outbox):
    if isinstance(outbox, MemoryOutbox):
        pytest.skip("it keeps letters as they are")
    await outbox.put("ops", [notice("a"), notice("b")], now=T0)
    row = await outbox._table.get("ops", "scaled:a")
    await outbox._table.put([{**row, "Data00": '{"notice": {"kind": "of a later release"}}'}])

    assert [letter.notice.id for letter in await outbox.waiting("ops")] == ["scaled:b"]
