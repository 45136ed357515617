"""Exceptions that nobody thought of, at every await of the producers: nothing is lost, doubled, silent or left hanging."""

import asyncio
import random
import struct
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.publisher import FakeLinks, FakeService, event, events, read
from tests.support.virtual_time import in_virtual_time
from tidemark.foundation.errors import TidemarkError
from tidemark.publisher.errors import Outcome, ProducerDisconnectedError, PublishError
from tidemark.publisher.event_hubs.batching import BufferLimits
from tidemark.publisher.event_hubs.buffered_producer import BufferedProducer
from tidemark.publisher.event_hubs.core.steps import FailureKind
from tidemark.publisher.event_hubs.ports.links import LinkError
from tidemark.publisher.event_hubs.producer import IdempotentProducer
from tidemark.publisher.event_hubs.states.memory import MemoryStateStore
from tidemark.publisher.model import RetryPolicy


class NeverSeenError(Exception):
    """Of a version of a library that is not written yet."""


EXCEPTIONS = st.sampled_from(
    [
        lambda: NeverSeenError("never seen"),
        lambda: IndexError("list index out of range"),  # azure-eventhub 5.15.1, of a detach without an error
        lambda: KeyError("handle"),
        lambda: TypeError("'NoneType' object is not subscriptable"),
        lambda: AttributeError("'NoneType' object has no attribute 'state'"),
        AssertionError,
        lambda: struct.error("unpack requires a buffer of 8 bytes"),
        lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        lambda: RuntimeError("read() called while another coroutine is already waiting"),
        StopAsyncIteration,
        StopIteration,
        MemoryError,
        TimeoutError,
        asyncio.InvalidStateError,
        asyncio.CancelledError,  # stray: nobody has cancelled the caller
        lambda: TidemarkError("of the other half"),
        lambda: PublishError("of ours"),
        lambda: OSError(24, "Too many open files"),
        lambda: ExceptionGroup("several", [ValueError("one")]),
        lambda: LinkError(FailureKind.UNKNOWN, "one that was thought of", link_lost=True),
    ]
)
RETRY = RetryPolicy(max_attempts=3, delay=0.01, max_delay=0.05)
SEEDS = st.integers(0, 2**32)


class Chaos:
    """Raises now and then."""

    def __init__(self, exceptions, seed, share):
        self.exceptions, self.chance, self.share = exceptions, random.Random(seed), share

    def strike(self):
        if self.chance.random() < self.share:
            make = self.chance.choice(self.exceptions)
            raise make()  # a new one: each collects where it was raised

    @contextmanager
    def around(self):
        self.strike()
        yield
        self.strike()


class ChaoticLinks(FakeLinks):
    def __init__(self, service, chaos):
        super().__init__(service)
        self.chaos = chaos

    async def partition_ids(self):
        with self.chaos.around():
            return await super().partition_ids()

    async def open(self, partition_id, claims, *, timeout):
        with self.chaos.around():
            return ChaoticLink(await super().open(partition_id, claims, timeout=timeout), self.chaos)

    async def close(self):
        self.chaos.strike()


class ChaoticLink:
    def __init__(self, link, chaos):
        self.link, self.chaos = link, chaos
        self.claims, self.max_message_size = link.claims, link.max_message_size

    async def transfer(self, encoded, stamp, *, timeout):
        with self.chaos.around():
            await self.link.transfer(encoded, stamp, timeout=timeout)

    async def close(self):
        self.chaos.strike()


class ChaoticStore(MemoryStateStore):
    def __init__(self, chaos):
        super().__init__()
        self.chaos = chaos

    async def load(self, key, *, deadline):
        with self.chaos.around():
            return await super().load(key, deadline=deadline)

    async def save(self, key, record, token, *, deadline):
        with self.chaos.around():
            return await super().save(key, record, token, deadline=deadline)

    async def aclose(self):
        self.chaos.strike()


def producer_of(chaos, *, saves):
    service = FakeService()
    store = ChaoticStore(chaos) if saves else None
    links = ChaoticLinks(service, chaos)
    return service, IdempotentProducer.over(links, state_store=store, retry=RETRY)


def stored(service):
    return [read(message)[0] for messages in service.stored.values() for message in messages]


@settings(max_examples=60)
@given(st.lists(EXCEPTIONS, min_size=1, max_size=4), SEEDS, st.sampled_from([0.03, 0.2, 0.5]), st.booleans())
@in_virtual_time
async def test_a_producer_answers_each_set_with_what_became_of_it(exceptions, seed, share, saves):
    service, producer = producer_of(Chaos(exceptions, seed, share), saves=saves)
    acknowledged, outcomes = [], {}
    for body in map(str, range(12)):
        try:
            await producer.send_events(events(body), partition_id="0")
            acknowledged.append(body)
        except PublishError as error:
            outcomes[body] = error.outcome
    with_errors = set(outcomes)
    with suppress(Exception, asyncio.CancelledError):  # it is told
        await producer.close()

    found = stored(service)
    assert len(found) == len(set(found)), "doubled"
    assert set(acknowledged) <= set(found), "lost"
    assert {body for body in with_errors & set(found) if outcomes[body] is Outcome.NOT_STORED} == set()
    assert asyncio.current_task() == next(iter(asyncio.all_tasks())), "a task was left behind"


@settings(max_examples=60)
@given(st.lists(EXCEPTIONS, min_size=1, max_size=4), SEEDS, st.sampled_from([0.03, 0.2, 0.5]), st.booleans())
@in_virtual_time
async def test_a_buffered_producer_tells_of_each_event_once_and_ends(exceptions, seed, share, saves):
    chaos = Chaos(exceptions, seed, share)
    service, producer = producer_of(chaos, saves=saves)
    told, refused = {}, []

    def tell(body, outcome):
        assert body not in told, "told twice"
        told[body] = outcome

    def on_published(set_):
        for one in set_.events:
            tell(one.body_as_str(), Outcome.STORED)
        chaos.strike()

    async def on_unpublished(set_):
        for one in set_.failures:
            tell(one.event.body_as_str(), one.error.outcome)
        chaos.strike()

    buffered = BufferedProducer(
        producer,
        on_published=on_published,
        on_unpublished=on_unpublished,
        limits=BufferLimits(max_wait=0.1, max_buffered_events=7),
    )
    for number in range(30):
        try:
            await buffered.enqueue(event(str(number)))
        except (Exception, asyncio.CancelledError):  # told to the caller
            refused.append(str(number))
        if number % 10 == 9:
            await buffered.flush()
    with suppress(Exception, asyncio.CancelledError):  # it is told
        await buffered.close(timeout=None)

    assert set(told) == set(map(str, range(30))) - set(refused)
    found = stored(service)
    assert len(found) == len(set(found)), "doubled"
    assert {body for body, outcome in told.items() if outcome is Outcome.STORED} <= set(found)
    assert not {body for body, outcome in told.items() if outcome is Outcome.NOT_STORED} & set(found)
    assert not set(refused) & set(found)
    assert asyncio.current_task() == next(iter(asyncio.all_tasks())), "a task was left behind"


class ExitNowError(BaseException):
    """As KeyboardInterrupt, SystemExit and others that are no Exception."""


@pytest.mark.parametrize("error", [ExitNowError(), KeyError("x"), asyncio.CancelledError()])
@pytest.mark.parametrize("closing_fails", [False, True])
@in_virtual_time
async def test_the_numbers_of_a_set_are_used_whatever_ends_its_transfer(error, closing_fails):
    """The next, different set is not dropped as the one before it."""

    class Once(Chaos):
        def __init__(self):
            self.calls = 0

        def strike(self):
            self.calls += 1
            if self.calls == 4:  # open: 1, 2; transfer: 3, and 4 once it is stored
                raise error
            if self.calls == 5 and closing_fails:
                raise asyncio.CancelledError

    service, producer = producer_of(Once(), saves=False)
    with suppress(ExitNowError):
        await producer.send_events(events("first"), partition_id="0")
    await producer.send_events(events("second"), partition_id="0")

    assert stored(service) == ["first", "second"]
    await producer.close()


@in_virtual_time
async def test_settings_that_a_store_refuses_are_told_at_once_and_nothing_is_sent():
    from tidemark.foundation.errors import SettingsError  # noqa: PLC0415 - only here

    class Refusing(MemoryStateStore):
        loads = 0

        async def load(self, key, *, deadline):
            self.loads += 1
            raise SettingsError("the table EventHubProducer does not exist")

    service, store = FakeService(), Refusing()
    producer = IdempotentProducer.over(FakeLinks(service), state_store=store, retry=RETRY)
    with pytest.raises(PublishError, match="table EventHubProducer does not exist") as refused:
        await producer.send_events(events("a"), partition_id="0")
    assert not isinstance(refused.value, ProducerDisconnectedError)
    assert (store.loads, stored(service)) == (1, [])
    await producer.close()
