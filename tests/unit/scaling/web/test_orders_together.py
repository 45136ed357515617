"""Many orders at one moment, as of a thousand workers that acknowledge: all of them are kept, and the log says of each what became of it."""

import asyncio
import gc
import json
from weakref import ref

import msgspec
import pytest

from scaling.config.policy import DrainSpec
from scaling.config.policy_file import Config
from scaling.model import Capacity, MetricSample, MetricsReport
from scaling.service.autoscaler import Autoscaler
from scaling.service.messages import encode
from scaling.service.shell import Ports
from scaling.web import api
from tests.support.scaling.fakes import MemoryDecisionLog, MemoryPoisonQueues, MemoryStateStore
from tests.support.scaling.runner import MINUTE, NOW, metric, policy
from tidemark.foundation.errors import StoreUnavailableError
from tidemark.foundation.keys import TooLargeError


class DistantStore(MemoryStateStore):
    """Others go on while a call is on its way. `rows` are those of all processes that share them."""

    def __init__(self, rows=None) -> None:
        super().__init__()
        self.rows = {} if rows is None else rows
        self.room = 10_000

    async def load(self, target):
        await asyncio.sleep(0)
        found = await super().load(target)
        await asyncio.sleep(0)
        return found

    async def load_controls(self, target):
        found = await super().load_controls(target)
        await asyncio.sleep(0)
        return found

    async def save_controls(self, loaded, controls):
        if controls.acknowledged and sum(map(len, controls.acknowledged.workers)) > self.room:
            raise TooLargeError("controls: too large")
        await super().save_controls(loaded, controls)


def process(states, log):
    rules = policy(
        metrics={"backlog": metric(span=60.0, min_samples=1)}, drain=DrainSpec(notice=120.0), maximum=1_000
    )
    ports = Ports(collectors={}, sources=(), scalers={}, states=states, log=log, poison=MemoryPoisonQueues())
    return Autoscaler(Config({"plan": rules}, MINUTE, 86_400.0), ports, clock=lambda: NOW)


async def notice_of(autoscaler, backlog=20.0, *, at=NOW):
    """The notice of what is decided upon a report."""
    capacity = Capacity(900, at, ceiling=1_000)
    await autoscaler.evaluate(
        encode(MetricsReport("plan", at, (MetricSample("backlog", at, backlog),), (), capacity))
    )
    return json.loads((await api.drain(autoscaler, "plan")).body)["notice"]


async def acknowledge(autoscaler, notice, worker):
    order = msgspec.json.encode({"notice": notice, "worker": worker, "by": worker})
    return (await api.control(autoscaler, api.Order("plan", "acknowledge", order))).status


async def kept(autoscaler):
    return (await autoscaler.ports.states.load("plan")).controls.acknowledged


async def test_a_thousand_workers_that_acknowledge_at_one_moment_are_all_kept():
    first = process(DistantStore(), MemoryDecisionLog())
    others = [process(DistantStore(first.ports.states.rows), first.ports.log) for _ in range(3)]
    for other in others:
        other.ports.states._tags = first.ports.states._tags
    notice = await notice_of(first)

    answers = await asyncio.gather(
        *(acknowledge((first, *others)[n % 4], notice, f"worker-{n}") for n in range(1_000))
    )

    assert set(answers) == {200}
    assert set((await kept(first)).workers) == {f"worker-{n}" for n in range(1_000)}
    assert sum(each.ports.states.calls.count("controls.save") for each in (first, *others)) < 40


async def test_one_that_comes_late_takes_nothing_from_the_notice_that_stands():
    first = process(DistantStore(), MemoryDecisionLog())
    states, log = first.ports.states, first.ports.log
    old = await notice_of(first, at=NOW - 2 * MINUTE)

    async def goes_on():
        """While the answer is on its way to its second request: the need has risen, and fallen again."""
        await notice_of(first, 300.0, at=NOW - MINUTE)
        new = await notice_of(first)
        assert await acknowledge(first, new, "b") == 200
        return new

    appended = log.append

    async def append(entries):
        await appended(entries)
        if any("worker a, by a: being given" in entry.line for entry in entries):
            log.append = appended
            first.new = await goes_on()

    log.append = append
    answer = await acknowledge(first, old, "a")

    assert answer == 409
    assert ((await kept(first)).notice, (await kept(first)).workers) == (first.new, ("b",))
    lines = [entry.line for entry in (await log.read("plan")).entries if "worker a," in entry.line]
    assert lines[0].endswith(f"refused, notice: found '{old}', which is over; the notice is {first.new}")
    assert states.calls.count("controls.save") == 1


async def test_one_that_has_no_room_is_refused_and_the_others_are_kept():
    made = process(DistantStore(), MemoryDecisionLog())
    made.ports.states.room = 100
    notice = await notice_of(made)
    names = ["a", "b", "x" * 101, "c"]

    answers = await asyncio.gather(*(acknowledge(made, notice, name) for name in names))

    assert answers == [200, 200, 400, 200]
    assert set((await kept(made)).workers) == {"a", "b", "c"}


async def test_an_outage_is_every_order_s_and_is_asked_once():
    made = process(DistantStore(), MemoryDecisionLog())
    notice, calls = await notice_of(made), []

    async def save_controls(*_):
        calls.append(1)
        raise StoreUnavailableError("no answer")

    made.ports.states.save_controls = save_controls
    answers = await asyncio.gather(
        *(acknowledge(made, notice, f"{n}") for n in range(50)), return_exceptions=True
    )

    assert {type(answer) for answer in answers} == {StoreUnavailableError}
    assert len(calls) < 5


@pytest.mark.parametrize("cancelled", [0, 1])
async def test_a_caller_that_goes_away_takes_no_other_order_with_it(cancelled):
    made = process(DistantStore(), MemoryDecisionLog())
    notice = await notice_of(made)
    tasks = [asyncio.create_task(acknowledge(made, notice, f"{n}")) for n in range(3)]
    while not made.ports.states.calls.count("state.load") > 4:  # its order is on its way
        await asyncio.sleep(0)
    tasks[cancelled].cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)

    assert [answer for n, answer in enumerate(answers) if n != cancelled] == [200, 200]
    assert {f"{n}" for n in range(3) if n != cancelled} <= set((await kept(made)).workers)


async def test_a_store_that_is_gone_is_not_kept():
    made = process(DistantStore(), MemoryDecisionLog())
    await acknowledge(made, await notice_of(made), "a")
    store = ref(made.ports.states)
    del made
    gc.collect()

    assert store() is None


def test_orders_of_a_second_event_loop_wait_for_each_other_too():
    made = process(DistantStore(), MemoryDecisionLog())
    notice = asyncio.run(notice_of(made))

    async def three(first):
        return await asyncio.gather(*(acknowledge(made, notice, f"{first + n}") for n in range(3)))

    assert [asyncio.run(three(first)) for first in (0, 3)] == [[200] * 3] * 2
