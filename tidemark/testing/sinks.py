"""The suite of tests that every sink passes: those of Tidemark, and yours.

Describe your target in a subclass of `SinkTarget`, and inherit the tests with a subclass of `SinkContract` that has a fixture
`target`. Needs pytest and pytest-asyncio. docs/adding-a-sink.md has an example.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence

import pytest
import pytest_asyncio

from consumer.errors import FencedError
from consumer.model import Batch, Event, Operation, Outcome, PatchStep, Write
from consumer.ports import Sink
from consumer.sinks.routed import ask_target
from tidemark.foundation.errors import SettingsError, UnavailableError
from tidemark.testing.sink_target import (
    PARTITION,
    Document,
    Sinks,
    SinkTarget,
    event,
    flight,
    outcomes_of,
    soon,
    tried,
    write,
)

GRACE = 2.0
"""Seconds after a deadline in which a write must have returned. Chosen: far below the consumer's own patience."""

_GATES: Mapping[Operation, Sequence[int | None]] = {
    Operation.UPSERT: [2],
    Operation.CREATE: [None],
    Operation.REPLACE: [2],
    Operation.DELETE: [],
    Operation.PATCH: [2],
}
"""The field `gate` of what is stored, after an operation that would set it to 2 in the only document."""


@pytest.mark.asyncio
class SinkContract:
    """Inherit it in a test class, with a fixture `target` that yields a SinkTarget."""

    @pytest_asyncio.fixture
    async def sinks(self, target: SinkTarget) -> AsyncIterator[Sinks]:
        """Makes sinks, and closes them at the end."""
        made = Sinks(target)
        yield made
        await made.aclose()

    # -- writing

    async def test_what_is_answered_as_written_is_stored(self, target: SinkTarget, sinks: Sinks) -> None:
        sink = await sinks.open()
        documents = [flight(n, text="Köln ✈") for n in range(250)]
        results = await write(sink, [event(n, document) for n, document in enumerate(documents)])

        assert {result.outcome for result in results} == {Outcome.WRITTEN}
        assert by_id(await target.stored()) == by_id(documents)

    async def test_an_event_that_comes_again_is_stored_once(self, target: SinkTarget, sinks: Sinks) -> None:
        sink = await sinks.open()
        await write(sink, [event(1), event(2)])
        results = await write(sink, [event(1), event(2)])

        assert [result.outcome for result in results] == [Outcome.WRITTEN] * 2
        await self.expect_stored(target, ["f1", "f2"])

    async def test_a_process_that_is_killed_after_a_write_doubles_nothing_when_it_starts_again(
        self, target: SinkTarget, sinks: Sinks
    ) -> None:
        first = await sinks.open()
        await write(first, [event(n) for n in range(1, 6)])  # its checkpoint is never saved
        second = await sinks.open()
        results = await write(second, [event(n) for n in range(1, 9)])

        assert {result.outcome for result in results} == {Outcome.WRITTEN}
        await self.expect_stored(target, [f"f{n}" for n in range(1, 9)])

    async def test_a_later_event_of_a_key_is_stored_later(self, target: SinkTarget, sinks: Sinks) -> None:
        sink = await sinks.open()
        for n in (1, 2, 3):
            await write(sink, [event(n, flight(1, gate=n))])
        stored = await target.stored()
        expected = [1, 2, 3] if target.appends else [3]

        assert [document["gate"] for document in stored] == expected

    async def test_records_of_one_id_have_one_key_unless_they_are_appended(
        self, target: SinkTarget, sinks: Sinks
    ) -> None:
        sink = await sinks.open()
        keys = [sink.prepare(Write(event(n, flight(1, gate=n)))).key for n in (1, 2)]

        assert all(keys)
        assert target.appends or keys[0] == keys[1]

    # -- results

    async def test_results_are_in_the_order_and_number_of_the_records(
        self, target: SinkTarget, sinks: Sinks
    ) -> None:
        sink = await sinks.open()
        if target.unwritable is None:
            pytest.skip("the sink writes every document")
        documents: list[Document] = [flight(1), {"id": "bad", **target.unwritable}, flight(3)]
        records = [sink.prepare(Write(event(n, document))) for n, document in enumerate(documents)]
        outcomes = await outcomes_of(sink, records)

        assert outcomes == [Outcome.WRITTEN, Outcome.REJECT, Outcome.WRITTEN]
        await self.expect_stored(target, ["f1", "f3"])

    async def test_a_rejection_has_a_reason_for_a_person(self, target: SinkTarget, sinks: Sinks) -> None:
        sink = await sinks.open()
        if target.unwritable is None:
            pytest.skip("the sink writes every document")
        record = sink.prepare(Write(event(1, target.unwritable)))
        if record.rejection is None:
            [result] = await write(sink, [event(1, target.unwritable)])
            reason = result.reason
        else:
            reason = record.rejection.detail

        assert reason

    @pytest.mark.parametrize("body", [b"", b"no json", b"[]", b'{"id":"\xff"}', b'{"a":' * 5000])
    async def test_a_body_without_a_document_is_prepared_with_its_rejection(
        self, target: SinkTarget, sinks: Sinks, body: bytes
    ) -> None:
        sink = await sinks.open()
        record = sink.prepare(Write(event(1, body)))

        assert record.event.body == body
        assert (record.rejection is not None) is target.reads_documents

    async def test_a_document_of_the_mapping_is_written_instead_of_the_body(
        self, target: SinkTarget, sinks: Sinks
    ) -> None:
        sink = await sinks.open()
        mapped = Write(event(1, b"anything"), dict(flight(5)))
        outcomes = await outcomes_of(sink, [sink.prepare(mapped)])

        assert outcomes == [Outcome.WRITTEN]
        assert [document["id"] for document in await target.stored()] == ["f5"]

    @pytest.mark.parametrize("operation", Operation)
    async def test_an_operation_is_carried_out_or_rejected_by_name(
        self, target: SinkTarget, sinks: Sinks, operation: Operation
    ) -> None:
        sink = await sinks.open()
        await outcomes_of(sink, [sink.prepare(Write(event(1), flight(5)))])
        patch = (PatchStep("set", "/gate", 2),) if operation is Operation.PATCH else ()
        record = sink.prepare(Write(event(2), flight(5, gate=2), operation=operation, patch=patch))

        if record.rejection is not None:
            assert (record.rejection.reason, operation is Operation.UPSERT) == ("operation", False)
            assert operation in record.rejection.detail
            return
        assert record.operation is operation
        assert await outcomes_of(sink, [record]) == [Outcome.WRITTEN]
        gates = [document.get("gate") for document in await target.stored()]
        assert gates == ([None, 2] if target.appends else _GATES[operation])

    async def test_every_prepared_record_has_a_lane_and_a_key(self, target: SinkTarget, sinks: Sinks) -> None:
        sink = await sinks.open()
        routes, records = await sink.routes(), [sink.prepare(Write(event(n))) for n in range(100)]

        assert all(routes.lane_of(record) and record.key for record in records)

    async def test_an_empty_batch_has_no_results(self, target: SinkTarget, sinks: Sinks) -> None:
        sink = await sinks.open()

        lane = (await sink.routes()).lanes[0]

        assert list(await sink.write(Batch(1, lane, ()), deadline=soon())) == []

    # -- faults

    async def test_a_passed_deadline_is_an_unknown_outcome_and_no_exception(
        self, target: SinkTarget, sinks: Sinks
    ) -> None:
        sink = await sinks.open()
        before = asyncio.get_running_loop().time()
        [result] = await write(sink, [event(1)], deadline=before - 1)

        assert result.outcome in {Outcome.RETRY, Outcome.WRITTEN}
        assert asyncio.get_running_loop().time() - before < GRACE
        await self.expect_written(target, sink, [event(1)])

    @pytest.mark.parametrize("seconds", [0.0, 0.001, 0.01])
    async def test_after_an_unknown_outcome_the_same_records_are_stored_once(
        self, target: SinkTarget, sinks: Sinks, seconds: float
    ) -> None:
        sink = await sinks.open()
        events = [event(n) for n in range(1, 41)]
        await write(sink, events, deadline=asyncio.get_running_loop().time() + seconds)

        await self.expect_written(target, sink, events)

    @pytest.mark.parametrize("seconds", [0.0, 0.001, 0.01])
    async def test_a_write_that_is_cancelled_in_the_middle_leaves_the_sink_usable(
        self, target: SinkTarget, sinks: Sinks, seconds: float
    ) -> None:
        sink = await sinks.open()
        events = [event(n) for n in range(1, 41)]
        writing = asyncio.create_task(write(sink, events))
        await asyncio.sleep(seconds)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)

        await self.expect_written(target, sink, events)

    async def test_a_target_that_does_not_answer_is_a_retry_by_the_deadline_and_never_a_rejection(
        self, target: SinkTarget, sinks: Sinks
    ) -> None:
        sink = await sinks.open()
        await write(sink, [event(1)])
        async with target.unreachable():
            deadline = asyncio.get_running_loop().time() + 1.0
            async with asyncio.timeout_at(deadline + GRACE):
                outcomes = await tried(sink, [event(2)], deadline=deadline)

        assert outcomes == [Outcome.RETRY]
        await self.expect_written(target, sink, [event(2)], before=["f1"])

    # -- opening and closing

    async def test_a_sink_may_be_opened_twice_and_asked_whether_its_target_answers(
        self, target: SinkTarget, sinks: Sinks
    ) -> None:
        sink = await sinks.open()
        await sink.open()
        await ask_target(sink)

        await self.expect_written(target, sink, [event(1)])

    async def test_a_missing_target_is_told_when_the_sink_is_opened(
        self, target: SinkTarget, sinks: Sinks
    ) -> None:
        await target.remove()
        sink = sinks.new()
        with pytest.raises((SettingsError, UnavailableError)) as caught:
            await asyncio.wait_for(sink.open(), 60)

        assert str(caught.value)

    async def test_a_sink_may_be_closed_twice_and_without_being_opened(
        self, target: SinkTarget, sinks: Sinks
    ) -> None:
        sink = await sinks.open()
        await sink.aclose()
        await sink.aclose()
        await sinks.new().aclose()

    # -- sinks that write in the order of the partition

    async def test_without_a_claim_an_ordered_sink_writes_nothing(
        self, target: SinkTarget, sinks: Sinks
    ) -> None:
        sink = sinks.new()
        if not (await sink.open()).by_partition:
            pytest.skip("the sink has no order by partition")
        record = sink.prepare(Write(event(1)))
        with pytest.raises(FencedError):
            await sink.write(Batch(1, PARTITION, (record,)), deadline=soon())

    async def test_a_consumer_whose_partition_another_one_took_doubles_and_loses_nothing(
        self, target: SinkTarget, sinks: Sinks
    ) -> None:
        old = await sinks.open()
        if not (await old.routes()).by_partition:
            pytest.skip("the sink has no order by partition")
        await write(old, [event(1)])
        new = await sinks.open()
        await write(new, [event(1), event(2)])
        try:
            await write(old, [event(2), event(3)])
        except FencedError:
            pass
        else:
            pytest.fail("the old consumer got no error though its claim is over")
        await write(new, [event(3), event(4)])

        await self.expect_stored(target, ["f1", "f2", "f3", "f4"])

    # -- what the tests share

    async def expect_written(
        self, target: SinkTarget, sink: Sink, events: Sequence[Event], before: Sequence[str] = ()
    ) -> None:
        """Writes the events as the consumer would, again and again, and checks that they are stored."""
        remaining = list(events)
        for _ in range(50):
            outcomes = await tried(sink, remaining)
            assert Outcome.REJECT not in outcomes
            remaining = [
                event for event, o in zip(remaining, outcomes, strict=True) if o is not Outcome.WRITTEN
            ]
            if not remaining:
                break
            await asyncio.sleep(0.1)
        assert not remaining
        await self.expect_stored(target, [*before, *(json.loads(event.body)["id"] for event in events)])

    async def expect_stored(self, target: SinkTarget, ids: Sequence[str]) -> None:
        stored = Counter(str(document["id"]) for document in await target.stored())

        assert set(stored) == set(ids)
        assert not target.exact or set(stored.values()) == {1}, f"stored more than once: {stored}"


def by_id(documents: Sequence[Document]) -> dict[str, Document]:
    return {
        str(document["id"]): {name: document[name] for name in ("id", "dest", "text")}
        for document in documents
    }
