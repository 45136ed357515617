"""The events of one partition from one sequence number to another, exactly, over lost connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from consumer.model import Event
from consumer.receiving.link import OPTIONS_OF_CLIENT, Link, LinkLostError, LinkOptions
from spark_jobs.sources.columns.event_columns import EVENT_COLUMNS, EventRow, Origin, batch_of
from spark_jobs.sources.event_hubs.positions import Range, begin_of, gone
from spark_jobs.sources.event_hubs.settings import HubSettings
from tidemark.analysis.errors import InputError
from tidemark.foundation.azure.connections import event_hub_client

_PREFETCH, _BATCH = 3000, 500  # as the consumer's receiver, which says why
_ATTEMPTS = 5  # connections in a row that give nothing
_SILENT = 2  # of them, where no event ever came: the SDK says nothing of a consumer group that is not there
_BACKOFF = 0.5  # seconds, doubled each time
_CLOSING = 3.0  # seconds
_STOLEN = "link:stolen"


def batches_of(settings: HubSettings, wanted: Range) -> Iterator[pa.RecordBatch]:
    """The batches of a task."""
    reader = RangeReader(settings, wanted)
    loop: Any = asyncio.new_event_loop()
    try:
        while (batch := loop.run_until_complete(reader.next_batch())) is not None:
            yield batch
    finally:
        with contextlib.suppress(TimeoutError):
            loop.run_until_complete(asyncio.wait_for(reader.close(), 10.0))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


class RangeReader:
    """Reads a range in order, each event once. Lives on one event loop; `close` it in any case."""

    def __init__(self, access: HubSettings, wanted: Range) -> None:
        self._access = access
        self._wanted = wanted
        self._next = wanted.first
        self._link: Link | None = None
        self._failures = 0

    async def next_batch(self) -> pa.RecordBatch | None:
        """Some of the events that are left; None when all were given.

        Raises InputError for events that are gone (unless the settings accept it), where the hub does not answer, and
        where another reader owns the partition.
        """
        while self._next <= self._wanted.last:
            events = self._fresh(await self._take())
            if events:
                self._failures = 0
                origin = Origin(self._access.hub, self._wanted.partition)
                return batch_of(map(_row, events), origin, EVENT_COLUMNS)
        return None

    @property
    def _began(self) -> bool:
        """Whether the range's events, or a gap in front of them, were ever seen."""
        return self._next > self._wanted.first

    async def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close(_CLOSING)

    def _fresh(self, events: Sequence[Event]) -> list[Event]:
        """Those of the range, which begins where the last ones ended; what is missing in between is reported."""
        fresh: list[Event] = []
        for event in events:
            number = event.sequence_number
            if number < self._next:
                continue
            if number > self._next:
                self._lose(number - 1)
            if number > self._wanted.last:
                break
            fresh.append(event)
            self._next = number + 1
        return fresh

    def _lose(self, last: int) -> None:
        last = min(last, self._wanted.last)
        self._access.report_loss(gone(self._wanted.partition, self._next, last))
        self._next = last + 1

    async def _take(self) -> Sequence[Event]:
        """Events, or none where the partition turned out to have lost what is left."""
        if self._link is None:
            self._link = await self._connected()
        try:
            events = await self._link.take(self._access.receive_timeout)
        except LinkLostError as error:
            await self._reconnect(error, _ATTEMPTS)
            return ()
        if not events:
            await self._examine()
        return events

    async def _connected(self) -> Link:
        access = self._access
        client = await asyncio.to_thread(
            event_hub_client,
            *(access.environment, access.connection, access.hub, access.consumer_group),
            **OPTIONS_OF_CLIENT,
        )
        partition, left = self._wanted.partition, self._wanted.last - self._next + 1
        prefetch = min(_PREFETCH, max(10, left))
        begin = LinkOptions(
            partition, self._next, inclusive=True, epoch=None, prefetch=prefetch, batch=_BATCH
        )
        return Link(client, begin)

    async def _reconnect(self, error: LinkLostError, attempts: int) -> None:
        """Raises InputError where trying again is of no use: this was the last of so many attempts, or no place for us."""
        await self.close()
        self._failures += 1
        where = f"event hub '{self._access.hub}', partition {self._wanted.partition}"
        if _STOLEN in error.condition:
            raise InputError(
                f"{where}: a reader that owns its partitions reads in consumer group"
                f" '{self._access.consumer_group}' and shuts others out; give consumerGroup one of its own: {error}"
            ) from error
        if self._failures >= attempts:
            hint = "" if self._began else f"; does the consumer group '{self._access.consumer_group}' exist?"
            raise InputError(
                f"{where}: {self._failures} connections in a row gave nothing: {error}{hint}"
            ) from error
        await asyncio.sleep(_BACKOFF * 2.0 ** (self._failures - 1))

    async def _examine(self) -> None:
        """Nothing came for long: are the events gone, or is the link stuck?"""
        state = await self._access.state_of(self._wanted.partition)
        if begin_of(state) > self._wanted.last:
            self._lose(self._wanted.last)
            return
        timeout = LinkLostError(TimeoutError(f"no event came in {self._access.receive_timeout} s"))
        await self._reconnect(timeout, _ATTEMPTS if self._began else _SILENT)


def _row(event: Event) -> EventRow:
    system: dict[str, str] = {}
    if event.partition_key is not None:
        system["x-opt-partition-key"] = event.partition_key
    if event.unreadable is not None:
        system["unreadable"] = event.unreadable  # the body is a rendering, as the consumer has it
    at = round(event.enqueued_at * 1_000_000)
    return EventRow(event.sequence_number, event.offset, at, event.body, event.properties, system)
