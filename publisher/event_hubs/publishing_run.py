"""Publishing a file or a pipe, line by line, from where the saved state says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import islice
from typing import BinaryIO

from azure.eventhub import EventData
from msgspec import Struct

from consumer.rate_limiter import RateLimiter
from publisher.batching import BufferLimits
from publisher.buffered_producer import BufferedProducer
from publisher.errors import PublishError, PublishSettingsError
from publisher.event_hubs.batch import Published, Unpublished
from publisher.event_hubs.event_encoding import partition_of_key
from publisher.event_hubs.input_lines import (
    Bookmark,
    InputLine,
    key_of,
    read_bookmark,
    read_csv,
    read_lines,
    write_bookmark,
)
from publisher.idempotent_producer import IdempotentProducer

_AT_ONCE = 500  # lines that are read in one turn of a thread


class LineOptions(Struct, frozen=True):
    """`key`: the field of the partition key; `partition`: all lines go there; None: in turn. `rate` in lines per
    second. `saves`: the producer has a state store. `csv`: the name of the file, if its rows are the lines.
    """

    key: str | None = None
    partition: str | None = None
    rate: float | None = None
    saves: bool = False
    csv: str | None = None


class Progress(Struct):
    """What has become of the lines so far, and how many were published `before`; `offset` in bytes."""

    before: int = 0
    published: int = 0
    offset: int = 0


async def publish_lines(
    file: BinaryIO,
    producer: IdempotentProducer,
    options: LineOptions,
    *,
    limits: BufferLimits | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Publish all lines; closes the producer. Lines that the saved state says are published are skipped.

    Raises the PublishError of the first line that cannot be published; those before it are, and the saved state says
    so.
    """
    return await _Run(file, producer, options, limits, on_progress).run()


class _Run:
    def __init__(
        self,
        file: BinaryIO,
        producer: IdempotentProducer,
        options: LineOptions,
        limits: BufferLimits | None,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._file = file
        self._producer = producer
        self._options = options
        self._progress = Progress()
        self._on_progress = on_progress
        self._failure: PublishError | None = None
        self._starts: dict[str, Bookmark] = {}
        self._ids: list[str] = []
        self._limiter = RateLimiter(options.rate, asyncio.get_running_loop().time())
        self._buffered = BufferedProducer(
            producer,
            on_published=self._published,
            on_unpublished=self._unpublished,
            limits=limits,
            stop_on_failure=True,
        )

    async def run(self) -> Progress:
        try:
            await self._find_starts()
            start = min(self._starts.values(), key=lambda start: start.offset)
            self._progress.before = start.count
            name = self._options.csv
            lines = read_lines(self._file, start) if name is None else read_csv(self._file, name, start)
            async for some in _in_threads(lines):
                await self._enqueue(some)
        except PublishError as error:
            self._failure = self._failure or error
        except BaseException:
            await self._buffered.close(flush=False)
            raise
        await self._buffered.close(timeout=None)  # attempts are bounded, so this ends
        if self._failure is not None:
            raise self._failure
        return self._progress

    async def _find_starts(self) -> None:
        self._ids = await self._producer.get_partition_ids()
        chosen = self._options.partition
        if chosen is not None and chosen not in self._ids:
            raise PublishSettingsError(
                f"--partition is {chosen}, accepted: {', '.join(self._ids)}, the partitions of {self._producer.eventhub_name}"
            )
        ids = self._ids if chosen is None else [chosen]
        for id_ in ids:
            saved = (await self._buffered.resume(id_)).bookmark if self._options.saves else None
            self._starts[id_] = read_bookmark(saved, len(self._ids), self._key)

    @property
    def _key(self) -> str | None:
        """By what lines are dealt out, for the bookmark."""
        return (
            self._options.key if self._options.partition is None else f"partition {self._options.partition}"
        )

    async def _enqueue(self, lines: Sequence[InputLine]) -> None:
        for line in lines:
            if self._failure is not None:
                raise self._failure
            self._progress.offset = line.end
            id_ = self._partition(line)
            if line.end <= self._starts[id_].offset:
                self._progress.before += 1
                continue
            await self._pace()
            bookmark = Bookmark(line.end, line.number, line.count, len(self._ids), self._key)
            await self._buffered.enqueue(
                EventData(line.body), partition_id=id_, bookmark=write_bookmark(bookmark)
            )
        self._on_progress(self._progress)

    def _partition(self, line: InputLine) -> str:
        if self._options.partition is not None:
            return self._options.partition
        if self._options.key is not None:
            return partition_of_key(key_of(line, self._options.key), self._ids)
        return self._ids[line.number % len(self._ids)]

    async def _pace(self) -> None:
        now = asyncio.get_running_loop().time
        while not self._limiter.take(1, now()):  # noqa: ASYNC110 - the limiter says when
            await asyncio.sleep(self._limiter.next_at(now()) - now())

    def _published(self, told: Published) -> None:
        self._progress.published += len(told.events)
        self._on_progress(self._progress)

    def _unpublished(self, told: Unpublished) -> None:
        self._failure = self._failure or told.failures[0].error


async def _in_threads(lines: Iterator[InputLine]) -> AsyncIterator[Sequence[InputLine]]:
    while some := await asyncio.to_thread(lambda: list(islice(lines, _AT_ONCE))):
        yield some
