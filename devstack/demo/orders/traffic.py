"""What a customer would run: a sender that follows a trace, and a fleet of workers that drains it.

One worker per ready instance of the plan, each with its own connection through the real Service Bus SDK.
A worker works on up to `concurrency` messages at once, each for `processing` seconds, and takes another as soon as it
has completed one, as the Functions' trigger does: saturated it serves `concurrency / processing` messages per second, and
as on Service Bus the messages being worked on still count as active.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import ServiceBusError

from devstack.demo.orders.counters import Totals
from devstack.demo.orders.trace import Trace

SEND_EVERY = 0.1
FOLLOW_EVERY = 0.2
SHORTEST_TURN, LONGEST_TURN = 0.02, 0.5


class Ledger:
    """Which messages were sent, and how often each was completed."""

    def __init__(self) -> None:
        self.sent = 0
        self.completed: dict[str, int] = {}

    @property
    def done(self) -> int:
        """Distinct messages completed."""
        return len(self.completed)

    def totals(self) -> Totals:
        return Totals(self.sent, self.done)

    @property
    def duplicates(self) -> int:
        """Completions beyond the first of a message."""
        return sum(self.completed.values()) - len(self.completed)

    @property
    def left(self) -> int:
        return self.sent - self.done

    def complete(self, message_id: str) -> None:
        self.completed[message_id] = self.completed.get(message_id, 0) + 1


async def send_trace(
    connection: str, topic: str, trace: Trace, ledger: Ledger, *, stop: asyncio.Event
) -> None:
    """Sends what the trace demands, when it demands it, until its end or `stop`."""
    client = ServiceBusClient.from_connection_string(connection)
    async with client, client.get_topic_sender(topic) as sender:
        began = time.monotonic()
        while not stop.is_set():
            elapsed = time.monotonic() - began
            await send_messages(sender, ledger, trace.due(elapsed) - ledger.sent)
            if elapsed >= trace.duration:
                return
            await asyncio.sleep(SEND_EVERY)


async def send_messages(sender: ServiceBusSender, ledger: Ledger, count: int) -> None:
    """Sends `count` numbered messages in as few batches as they fit."""
    batch = await sender.create_message_batch()
    for _ in range(count):
        ledger.sent += 1
        message = ServiceBusMessage(f"order {ledger.sent}", message_id=str(ledger.sent))
        try:
            batch.add_message(message)
        except ValueError:  # the batch is full
            await sender.send_messages(batch)
            batch = await sender.create_message_batch()
            batch.add_message(message)
    if len(batch):
        await sender.send_messages(batch)


class Fleet:
    """Workers that follow the instances of a plan."""

    def __init__(
        self,
        connection: str,
        topic: str,
        subscription: str,
        ledger: Ledger,
        *,
        ready: Callable[[], Iterable[str]],
        concurrency: int,
        processing: float,
    ) -> None:
        self._connection = connection
        self._entity = (topic, subscription)
        self._ledger = ledger
        self._ready = ready
        self._concurrency = concurrency
        self._processing = processing
        self._workers: dict[str, tuple[asyncio.Event, asyncio.Task[None]]] = {}
        self._leaving: list[asyncio.Task[None]] = []

    @property
    def size(self) -> int:
        return len(self._workers)

    async def follow(self, *, stop: asyncio.Event) -> None:
        """Starts and stops workers as instances become ready and go, until `stop`; then stops them all.

        A worker that fails ends the fleet with its error.
        """
        try:
            while not stop.is_set():
                self._match(set(self._ready()))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), FOLLOW_EVERY)
        finally:
            self._match(set())
            await asyncio.gather(*self._leaving)

    def _match(self, ready: set[str]) -> None:
        for instance, (leave, task) in list(self._workers.items()):
            if task.done():
                task.result()
            if instance not in ready:
                leave.set()
                self._leaving.append(task)
                del self._workers[instance]
        for instance in ready - self._workers.keys():
            leave = asyncio.Event()
            task = asyncio.create_task(self._work(leave), name=f"worker {instance}")
            self._workers[instance] = (leave, task)

    async def _work(self, leave: asyncio.Event) -> None:
        """One worker: finishes what it holds before it leaves, as a worker with a grace period does."""
        topic, subscription = self._entity
        while not leave.is_set():
            try:
                client = ServiceBusClient.from_connection_string(self._connection)
                async with client, client.get_subscription_receiver(topic, subscription) as receiver:
                    held: deque[tuple[float, ServiceBusReceivedMessage]] = deque()
                    while held or not leave.is_set():
                        await self._round(receiver, held, take=not leave.is_set())
            except ServiceBusError:
                await asyncio.sleep(FOLLOW_EVERY)  # a lost connection; what it held is delivered again

    async def _round(
        self,
        receiver: ServiceBusReceiver,
        held: deque[tuple[float, ServiceBusReceivedMessage]],
        *,
        take: bool,
    ) -> None:
        """Takes messages while there is room for them, until the first of those `held` is done; then completes what is
        done. All in turn, for a receiver is for one task.
        """
        clock = asyncio.get_running_loop().time
        turn = max(held[0][0] - clock(), SHORTEST_TURN) if held else LONGEST_TURN
        room = self._concurrency - len(held)
        if take and room:
            messages = await receiver.receive_messages(max_message_count=room, max_wait_time=turn)
            done = clock() + self._processing
            held.extend((done, message) for message in messages)
        else:
            await asyncio.sleep(turn)
        while held and held[0][0] <= clock():
            _, message = held.popleft()
            await receiver.complete_message(message)
            self._ledger.complete(str(message.message_id))
