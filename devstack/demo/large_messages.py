"""The demo's messages that are larger than Service Bus takes: bodies in blobs, and each message processed once."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from hashlib import sha256

from azure.servicebus.aio import ServiceBusClient
from msgspec import Struct
from rich.console import Console

from devstack.service_bus import STANDARD, QueueSettings, ServiceBusServer
from tidemark.publisher import BigBatchSender, ClaimCheck, ClaimReceiver, PlainMessage, Processed

QUEUE = "large-messages"
SMALL, LARGE = 400, 6
_KB = 1024
WAIT = 0.5  # seconds without a message, after which the queue counts as empty

WORDS = (
    "[bold]Large messages.[/] {messages} messages go to a queue that takes 256 KB at most, {large} of them larger: in as few batches "
    "as there can be, with the large bodies in blobs. One message is delivered twice."
)


class LargeOutcome(Struct, frozen=True):
    """`processed` counts handler calls by body. `seconds` is the time of all."""

    messages: int
    batches: int
    claims: int
    processed: Counter[str]
    duplicates: int
    left: int
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether each message was processed once, by its whole body, and none is left."""
        once = len(self.processed) == self.messages and set(self.processed.values()) == {1}
        return once and self.claims == LARGE and self.duplicates == 1 and self.left == 0


def bodies() -> list[bytes]:
    """1 KB each, and every 67th above the limit."""
    every = (SMALL + LARGE) // LARGE
    sizes = [(300 + number) * _KB if number % every == every - 1 else _KB for number in range(SMALL + LARGE)]
    return [b"%08d" % number + bytes(size) for number, size in enumerate(sizes)]


async def carry_out(service_bus: ServiceBusServer, storage: str) -> LargeOutcome:
    """Send, receive, and deliver one message twice."""
    begun, sent = time.monotonic(), bodies()
    service_bus.create_queue(QUEUE, QueueSettings(limits=STANDARD))
    processed: Counter[str] = Counter()
    container = f"claims-{uuid.uuid4().hex[:12]}"
    async with ClaimCheck.from_connection_string(storage, container) as claim_check:
        await claim_check.ensure_container()
        sender = BigBatchSender.from_connection_string(
            service_bus.connection_string, queue_name=QUEUE, claim_check=claim_check
        )
        async with sender:
            report = await sender.send(
                [PlainMessage(body, message_id=f"m{n}") for n, body in enumerate(sent)]
            )
            large = next(n for n, body in enumerate(sent) if len(body) > 256 * _KB)
            await sender.send([PlainMessage(sent[large], message_id=f"m{large}")])  # its answer was lost, say

        def handle(_message: object, body: bytes) -> None:
            processed[sha256(body).hexdigest()] += 1

        async with (
            ServiceBusClient.from_connection_string(service_bus.connection_string) as client,
            client.get_queue_receiver(QUEUE, max_wait_time=WAIT, prefetch_count=100) as receiver,
        ):
            counts = await ClaimReceiver(receiver, claim_check).process_all(handle)
    left = service_bus.counts(QUEUE)
    return LargeOutcome(
        len(sent),
        report.batches,
        report.claims,
        processed,
        counts[Processed.DUPLICATE],
        left.active + left.dead_letter,
        time.monotonic() - begun,
    )


async def show(service_bus: ServiceBusServer, storage: str, console: Console) -> bool:
    """Run it and print what happened; whether it is as it should be."""
    console.print(WORDS.format(messages=SMALL + LARGE, large=LARGE))
    outcome = await carry_out(service_bus, storage)
    verdict = (
        "[green]each was processed once[/]" if outcome.holds else f"[red]not as it should be:[/] {outcome}"
    )
    console.print(
        f"{outcome.messages} messages in {outcome.batches} batches, {outcome.claims} bodies in blobs, {outcome.duplicates} delivered twice "
        f"and recognised: {verdict} ({outcome.seconds:.1f} s)"
    )
    return outcome.holds
