"""Publishing lines by key with the state of a version that took another partition for many keys."""

import json
from contextlib import nullcontext
from io import BytesIO
from types import SimpleNamespace

import msgspec
import pytest

from tests.support.publisher import FakeLinks, FakeService, read
from tidemark.publisher.cli import publishing_run
from tidemark.publisher.cli.publish import _refuse_state_of_other_hub
from tidemark.publisher.cli.publishing_run import LineOptions, PublishingRun
from tidemark.publisher.errors import InvalidProducerStateError, PublishError
from tidemark.publisher.event_hubs.batching import BufferLimits
from tidemark.publisher.event_hubs.core.partition_keys import partition_of_key
from tidemark.publisher.event_hubs.core.steps import FailureKind
from tidemark.publisher.event_hubs.ports.links import LinkError
from tidemark.publisher.event_hubs.producer import IdempotentProducer
from tidemark.publisher.event_hubs.states.file import FileStateStore
from tidemark.publisher.event_hubs.states.memory import MemoryStateStore
from tidemark.publisher.model import ProducerRecord, RetryPolicy, StateKey

IDS = ["0", "1", "2"]
LINES = [json.dumps({"id": number, "plane": f"N{number % 40}"}) for number in range(200)]


class PartlyAway(FakeLinks):
    """Links to all partitions but one."""

    def __init__(self, service, away):
        super().__init__(service)
        self._away = away

    async def open(self, partition_id, claims, *, timeout):
        link = await super().open(partition_id, claims, timeout=timeout)
        if partition_id == self._away:
            link.transfer = refuse
        return link


async def refuse(_events, _stamp, *, timeout):
    raise LinkError(FailureKind.UNKNOWN, f"no answer within {timeout:g} s", link_lost=True)


async def publish(service, store, lines, *, away=None):
    producer = IdempotentProducer.over(
        PartlyAway(service, away),
        state_store=store,
        retry=RetryPolicy(max_attempts=2, delay=0.001, max_delay=0.001),
    )
    text = "".join(f"{line}\n" for line in lines).encode()
    limits = BufferLimits(max_wait=0.01)
    await PublishingRun(BytesIO(text), producer, LineOptions("plane", saves=True), limits=limits).carry_out()


def as_before(store):
    """The state as versions without digests wrote it."""

    def old(text):
        found = msgspec.json.decode(text)
        return msgspec.json.encode({name: found[name] for name in found if name not in {"digest", "floored"}})

    for key, (record, token) in store._states.items():
        bookmark = None if record.bookmark is None else old(record.bookmark).decode()
        pending = record.pending
        if pending is not None and pending.bookmark is not None:
            pending = msgspec.structs.replace(pending, bookmark=old(pending.bookmark).decode())
        store._states[key] = (msgspec.structs.replace(record, bookmark=bookmark, pending=pending), token)


@pytest.mark.parametrize("away", IDS)
async def test_a_partition_that_lags_behind_gets_its_lines_by_the_old_rule_however_often_the_run_is_started(
    monkeypatch, away
):
    """Also where its first set was pending: the producer knows it again by a bookmark that is written otherwise now."""
    service, store = FakeService(partitions=3), MemoryStateStore()
    with monkeypatch.context() as before:
        before.setattr(
            publishing_run, "partition_of_key", lambda *found, **_: partition_of_key(*found, floored=True)
        )
        with pytest.raises(PublishError):
            await publish(service, store, LINES[:100], away=away)
    as_before(store)

    with pytest.raises(PublishError):
        await publish(service, store, LINES, away=away)
    await publish(service, store, LINES)

    wanted = {id_: [] for id_ in IDS}
    for number, line in enumerate(LINES, 1):
        floored = number <= 100
        wanted[partition_of_key(json.loads(line)["plane"], IDS, floored=floored)].append(line)
    assert {id_: [read(one)[0] for one in service.stored[id_]] for id_ in IDS} == wanted


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        ("ns.example", None),
        ("ns.example:5671", None),  # as an earlier version saved it, and the connection still spells it
        (
            "ns.example.",
            r"published to ns\.example\./orders, not to ns\.example/orders; give --hub and --connection as",
        ),
        ("other.example", r"published to other\.example/orders, not to ns\.example/orders"),
    ],
)
async def test_a_state_that_would_not_be_found_is_refused(tmp_path, saved, words):
    state = FileStateStore(tmp_path / "state.json")
    key = StateKey(saved, "orders", "p", "0")
    await state.save(key, ProducerRecord(1, 1, 1, None, None, "w", 1), None, deadline=None)
    producer = SimpleNamespace(fully_qualified_namespace="NS.example:5671", eventhub_name="Orders")

    refused = nullcontext() if words is None else pytest.raises(InvalidProducerStateError, match=words)
    with refused:
        await _refuse_state_of_other_hub(tmp_path / "state.json", producer, "p")
