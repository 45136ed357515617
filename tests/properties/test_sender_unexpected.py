"""Exceptions that nobody thought of, at every call of the big-batch senders: each message is sent once, or told."""

import asyncio
import random
import threading
from collections import Counter
from types import SimpleNamespace

import pytest
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.properties.test_publisher_unexpected import EXCEPTIONS, SEEDS, Chaos
from tests.support.virtual_time import in_virtual_time
from tidemark.publisher.errors import PublishError, PublishUnavailableError
from tidemark.publisher.service_bus.claim_check import ClaimCheck, SyncClaimCheck
from tidemark.publisher.service_bus.core.claims import ClaimSettings
from tidemark.publisher.service_bus.core.errors import ClaimCheckError, PartiallySentError
from tidemark.publisher.service_bus.core.send_report import PlainMessage
from tidemark.publisher.service_bus.core.sending import SendPolicy
from tidemark.publisher.service_bus.sender import BigBatchSender
from tidemark.publisher.service_bus.sync_sender import SyncBigBatchSender

POLICY = SendPolicy(look_ahead=0, attempts=2, retry_delay=0.0)


class StubSender:
    """What is used of an SDK's sender; `stored` are the encoded messages that it took."""

    entity_name, fully_qualified_namespace = "queue", "local"
    _amqp_transport = PyamqpTransport
    _running = False
    _max_message_size_on_link = _max_batch_size_on_link = 300

    def __init__(self, chaos):
        self.chaos = chaos
        self.stored = []
        self.closed = 0
        self._config = SimpleNamespace(retry_total=3)

    def __enter__(self):
        self.chaos.strike()

    def send_messages(self, batch, *, timeout):
        with self.chaos.around():
            self.stored += [bytes(one)[-3:].decode() for one in batch._message[5]]

    def _close_handler(self):
        self.closed += 1
        self.chaos.strike()


class AsyncStubSender(StubSender):
    async def __aenter__(self):
        self.__enter__()

    async def send_messages(self, batch, *, timeout):
        super().send_messages(batch, timeout=timeout)

    async def _close_handler(self):
        super()._close_handler()


class Container:
    """Of claims."""

    def __init__(self, chaos):
        self.chaos = chaos

    def get_blob_client(self, name):
        return self

    def upload_blob(self, body, *, metadata):
        with self.chaos.around():
            pass

    def download_blob(self, name):
        self.chaos.strike()


class AsyncContainer(Container):
    async def upload_blob(self, body, *, metadata):
        super().upload_blob(body, metadata=metadata)

    async def download_blob(self, name):
        super().download_blob(name)


def check(sender, stub, error):
    report = sender.last_report
    times = Counter(int(body) for body in stub.stored)
    assert all(count == 1 for count in times.values()), "doubled"
    assert set(report.sent) <= set(times), "told as sent"
    assert set(times) <= set(report.sent) | {item.index for item in report.unknown}, "not told"
    assert (error is None) == report.complete


@settings(max_examples=60)
@given(st.lists(EXCEPTIONS, min_size=1, max_size=4), SEEDS, st.sampled_from([0.05, 0.3]), st.booleans())
@example(exceptions=[asyncio.CancelledError], seed=0, share=0.3, claims=True)
@in_virtual_time
async def test_each_message_is_told_of_by_what_became_of_it(exceptions, seed, share, claims):
    messages = [PlainMessage(b"%03d" % number, str(number)) for number in range(40)]

    chaos = Chaos(exceptions, seed, share)
    stub = AsyncStubSender(chaos)
    claim_check = ClaimCheck(AsyncContainer(chaos), ClaimSettings(above=0)) if claims else None
    sender = BigBatchSender(stub, claim_check=claim_check, policy=POLICY)
    if claims:
        stub._max_batch_size_on_link = 1000
    error = None
    try:
        await sender.send(iter(messages))
    except PublishUnavailableError:
        assert not stub.stored
        return
    except PartiallySentError as found:
        error = found
    if not claims:
        check(sender, stub, error)


@settings(max_examples=60)
@given(
    st.lists(EXCEPTIONS.filter(lambda make: make is not asyncio.CancelledError), min_size=1, max_size=4),
    SEEDS,
    st.sampled_from([0.05, 0.3]),
)
def test_the_blocking_sender_tells_of_each_message_too(exceptions, seed, share):
    stub = StubSender(Chaos(exceptions, seed, share))
    sender, error = SyncBigBatchSender(stub, policy=POLICY), None
    try:
        sender.send(iter([PlainMessage(b"%03d" % number, str(number)) for number in range(40)]))
    except PublishUnavailableError:
        assert not stub.stored
        return
    except PartiallySentError as found:
        error = found
    check(sender, stub, error)


def test_after_an_error_that_nobody_thought_of_the_link_is_attached_anew():
    chance = random.Random()
    chance.random = iter([1, 1, 0, 1, 1, 1, 1, 1, 1, 1]).__next__
    chaos = Chaos([IndexError], 0, 0.5)
    chaos.chance = chance
    chance.choice = lambda found: found[0]
    stub = StubSender(chaos)
    sender = SyncBigBatchSender(stub, policy=POLICY)

    with pytest.raises(PartiallySentError, match="unexpected IndexError"):
        sender.send(iter([PlainMessage(b"001", "1")]))
    assert stub.closed == 0
    sender.send(iter([PlainMessage(b"002", "2")]))

    assert (stub.closed, stub.stored) == (1, ["002"])


class InterruptedSender(StubSender):
    """An interrupt hits while the second batch is being sent."""

    def __init__(self):
        super().__init__(Chaos([OSError], 0, 0.0))
        self.calls = 0

    def send_messages(self, batch, *, timeout):
        self.calls += 1
        super().send_messages(batch, timeout=timeout)
        if self.calls == 2:
            raise KeyboardInterrupt


def test_an_interrupt_in_the_middle_leaves_a_report_to_go_on_with():
    stub = InterruptedSender()
    sender = SyncBigBatchSender(stub, policy=POLICY)
    with pytest.raises(KeyboardInterrupt):
        sender.send(iter([PlainMessage(b"%03d" % number, str(number)) for number in range(40)]))
    report = sender.last_report
    assert report.reason == "given up: KeyboardInterrupt"
    assert report.unknown
    assert [
        f"{number:03d}" for number in (*report.sent, *(item.index for item in report.unknown))
    ] == stub.stored

    resumed = sender.resume(report)

    assert resumed.unknown == report.unknown
    assert len(resumed.sent) + len(resumed.unknown) == len(stub.stored) == 40


def test_the_blocking_sender_reads_in_the_thread_that_called_it_and_within_a_loop_too():
    threads = set()

    def messages():
        for number in range(40):
            threads.add(threading.get_ident())
            yield PlainMessage(b"%03d" % number, str(number))

    async def main():
        return SyncBigBatchSender(StubSender(Chaos([OSError], 0, 0.0)), policy=POLICY).send(messages())

    assert asyncio.run(main()).complete
    assert threads == {threading.get_ident()}


def test_an_asynchronous_client_or_iterable_is_refused_by_the_blocking_sender():
    async def messages():
        yield b"x"

    stub = AsyncStubSender(Chaos([OSError], 0, 0.0))
    with pytest.raises(TypeError, match="not iterable"):
        SyncBigBatchSender(stub).send(messages())

    async def waiting(*_, **__):
        await asyncio.get_running_loop().create_future()

    stub.send_messages = waiting
    sender = SyncBigBatchSender(stub, policy=POLICY)

    async def main():
        with pytest.raises(RuntimeError, match="the client is asynchronous"):
            sender.send([b"x"])

    asyncio.run(main())
    assert not sender.last_report.sent


@pytest.mark.parametrize("error", [IndexError("x"), KeyError("x"), OSError("x")])
@in_virtual_time
async def test_a_claim_check_tells_of_whatever_happens_with_its_own_error(error):
    class Always:
        def strike(self):
            raise error

    received = SimpleNamespace(
        application_properties={
            "tidemark-claim": "b",
            "tidemark-claim-sha256": "0",
            "tidemark-claim-size": 1,
        }
    )
    with pytest.raises(ClaimCheckError, match="reading claim b: unexpected"):
        SyncClaimCheck(Container(Always())).restore(received)

    with pytest.raises(PublishError, match="reading claim b: unexpected"):
        await ClaimCheck(AsyncContainer(Always())).restore(received)
