"""How long the first event of an event hub that a consumer group has not settled has been there.

The service says when an event came with the event only. So a read of the age receives one event from each partition that the
group is behind in: a connection of its own with two questions, which takes one to two seconds, sixteen at a time, and the traffic
of that event. As long as an event stays the first one, it is not received again.

Readers with an owner level, as those of all SDKs that balance partitions, keep any other reader away from a partition in their
consumer group. A reader in another group does not disturb them: so the option `age_group` names one that nobody else uses.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from scaling.collectors.azure_entity import DEADLINE
from scaling.collectors.event_hub import lag
from scaling.collectors.event_hub.collector import PARALLEL, Clients, EventHubLagCollector
from scaling.ports import CollectError, Reading
from tidemark.foundation.azure.opening import LazyClient
from tidemark.foundation.gathering import gather

if TYPE_CHECKING:
    from azure.eventhub.aio import EventHubConsumerClient

PATIENCE = 8.0
"""Seconds for the first event of a partition. Chosen: half of what a round of reads may take; it comes in one, as measured."""

CLOSING = 3.0
"""Seconds that links get to close at the end, and before others are opened. The SDK looks once a second whether one has, and takes
two, as measured; so nobody waits for it while the age is read.
"""


class EventHubAgeCollector(EventHubLagCollector):
    """The count `oldest_age` of `event_hub_lag`. Work that is being processed is in it, for it is not settled."""

    COUNTS: ClassVar[tuple[str, ...]] = ("oldest_age",)
    GROWING: ClassVar[tuple[str, ...]] = ()
    DEFAULT_COUNT: ClassVar[str] = "oldest_age"

    def __init__(
        self, params: EventHubLagCollector.Params, settings: Mapping[str, str], *, deadline: float = DEADLINE
    ) -> None:
        super().__init__(params, settings, deadline=deadline)
        self._group = params.age_group or params.consumer_group
        self._known: dict[tuple[str, float], tuple[int, int, float]] = {}
        """By partition and hub: the number asked for, that of the first event from there on, and when it came."""
        self._receiving: set[asyncio.Task[None]] = set()

    @staticmethod
    def entity(params: EventHubLagCollector.Params) -> str:
        return f"{EventHubLagCollector.entity(params)} age by {params.age_group}"

    async def _read(self, client: Clients, now: float, /) -> Reading:
        await self._close_links()
        lags, created_at = await self._lags(client, now)
        behind = [one for one in lags if one.lag]
        known, self._known = self._known, {}

        async def came(one: lag.PartitionLag) -> float:
            place, first = (one.partition.id, created_at), one.partition.last - one.lag + 1
            asked, number, at = known.get(place, (0, -1, 0.0))
            if not asked <= first <= number:
                asked, (number, at) = first, await self._first_event(client.hub, one.partition.id, first)
            self._known[place] = asked, number, at
            return at

        oldest = min(await gather(came, behind, at_once=PARALLEL), default=None)
        return Reading(now, {"oldest_age": self._age(oldest, now)})

    async def _first_event(
        self, hub: EventHubConsumerClient, partition: str, first: int
    ) -> tuple[int, float]:
        """Number and time of the first event that is there from a sequence number on."""
        event: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def receive(_context: object, received: Any) -> None:
            if received is not None and not event.done():
                event.set_result(received)

        async def fail(_context: object, error: Exception) -> None:
            if not event.done():
                event.set_exception(error)

        receiving = asyncio.create_task(
            hub.receive(
                receive,
                partition_id=partition,
                prefetch=1,
                starting_position=first,
                starting_position_inclusive=True,
                on_error=fail,
            )
        )
        self._receiving.add(receiving)
        receiving.add_done_callback(self._ended)
        try:
            await asyncio.wait({event, receiving}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
            first_event = await event if event.done() else await self._nothing(receiving, partition, first)
        except Exception as error:
            if "stolen" not in str(getattr(error, "error", "")):
                raise
            text = (
                f"{self._label}: partition {partition} has a reader of its own in consumer group '{self._group}', which keeps any "
                "other away; give `age_group`, a consumer group of the hub that nobody else reads"
            )
            raise CollectError(text) from error
        finally:
            event.cancel()
            receiving.cancel()
        if first_event.enqueued_time is None or first_event.sequence_number is None:
            raise ValueError(f"the event {first} of partition {partition} does not say when it came")
        return first_event.sequence_number, first_event.enqueued_time.timestamp()

    async def _nothing(self, receiving: asyncio.Task[None], partition: str, first: int) -> Any:
        """Raises what receiving raised, if it did."""
        if receiving.done():
            receiving.result()
        raise ValueError(
            f"partition {partition} has events from number {first} on, but none came within {PATIENCE:g} s to a reader in consumer group "
            f"'{self._group}', which has to be there"
        )

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._receiving.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved, if nobody waits for it any more

    async def _close_links(self) -> None:
        """Waits for links of the read before. They were cancelled; to cancel the SDK again would end its clean-up, and a client
        whose link never ended cannot receive from that partition again. So if one stays, the next read has another client.
        """
        if self._receiving:
            await asyncio.wait(set(self._receiving), timeout=CLOSING)
        if self._receiving:
            left, self._client = self._client, LazyClient(self._open)
            await self._abandon(left)
            raise CollectError(
                f"{self._label}: a link of the read before has not closed; the next read opens others"
            )

    async def _abandon(self, client: LazyClient[Clients]) -> None:
        for task in self._receiving:
            task.cancel()
        with contextlib.suppress(Exception):  # whatever it is, the client is not used again
            async with asyncio.timeout(CLOSING):
                await client.aclose()
        self._receiving.clear()

    async def aclose(self) -> None:
        if self._receiving:
            await asyncio.wait(set(self._receiving), timeout=CLOSING)
        for task in self._receiving:
            task.cancel()
        await super().aclose()
