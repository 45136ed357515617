"""Publishes the lines of a file or a pipe, from the bookmark of the saved state on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass
from itertools import islice
from typing import Any, BinaryIO

from azure.eventhub import EventData
from msgspec import Struct

from tidemark.foundation.pacing.rate_limiter import RateLimiter
from tidemark.publisher.cli import input_lines
from tidemark.publisher.cli.csv_rows import CsvFormat
from tidemark.publisher.cli.given_options import GivenOptions
from tidemark.publisher.cli.input_lines import read_bookmark
from tidemark.publisher.cli.rows.containers import RowsInput
from tidemark.publisher.cli.rows.encoding import RowEncoding
from tidemark.publisher.cli.text.event_fields import EventFields
from tidemark.publisher.cli.text.lines import Bookmark, InputLine
from tidemark.publisher.cli.text.pipe import Pipe
from tidemark.publisher.errors import MessageTooLargeError, Outcome, PublishError, PublishSettingsError
from tidemark.publisher.event_hubs.batch import Published, Unpublished
from tidemark.publisher.event_hubs.batching import BufferLimits
from tidemark.publisher.event_hubs.buffered_producer import BufferedProducer
from tidemark.publisher.event_hubs.core.partition_keys import partition_of_key
from tidemark.publisher.event_hubs.producer import IdempotentProducer
from tidemark.publisher.model import Holder, SavedState

_LINES_AT_ONCE = 500  # read in one turn of a thread; chosen: a turn takes some milliseconds
_CAPTURED = ("content-type", "message-id", "correlation-id")  # of the system properties that Capture writes
_BYTES_AT_ONCE = 4 * 1024 * 1024  # bounds the memory of a turn with long lines


class LineOptions(Struct, frozen=True):
    """`key` is the field of the partition key, `partition` the only partition; without both, lines go round robin.

    `rate` is in lines per second. `saves`: the producer has a state store. `name` is that of the input; with `csv` its rows are
    the lines, and so are those of the format `rows`. `encoding` makes the body. `fields` go with each event. `given` are the options that must equal those of the saved state.
    """

    key: str | None = None
    partition: str | None = None
    rate: float | None = None
    saves: bool = False
    name: str = "the input"
    csv: CsvFormat | None = None
    rows: str | None = None
    encoding: RowEncoding = RowEncoding()
    fields: EventFields = EventFields()
    given: GivenOptions | None = None


class Progress(Struct):
    """Counts of lines: `before` were published by earlier runs, `unknown` were sent without an answer.

    `unchecked` were published before according to a state without a digest of its input. `offset` is in bytes. Lines go to
    `partitions` of the `partitions_now` that the hub has. `unended` is that of the SavedState.
    """

    before: int = 0
    published: int = 0
    offset: int = 0
    unknown: int = 0
    unchecked: int = 0
    partitions: int = 0
    partitions_now: int = 0
    unended: Holder | None = None


@dataclass(eq=False)
class PublishingRun:
    """One run over an input. It closes the producer. Use it in the event loop of the producer."""

    file: InitVar[BinaryIO]
    _producer: IdempotentProducer
    _options: LineOptions
    _: KW_ONLY
    limits: InitVar[BufferLimits | None] = None
    on_progress: Callable[[Progress], None] = lambda _: None

    def __post_init__(self, file: BinaryIO, limits: BufferLimits | None) -> None:
        options = self._options
        self._would_wait = file.would_wait if isinstance(file, Pipe) else _never
        self._source: input_lines.PublishedInput | RowsInput
        if options.rows is None:
            self._source = input_lines.PublishedInput(file, options.name, keeps_digest=options.saves)
        else:
            self._source = RowsInput(file, options.name, options.rows)
        self._progress = Progress()
        self._failure: PublishError | None = None
        self._starts: dict[str, Bookmark] = {}
        self._pending: dict[str, tuple[int, str | None]] = {}  # where the pending set ends, and its bookmark
        self._ids: list[str] = []
        self._floored = 0
        self._limiter = RateLimiter(options.rate, asyncio.get_running_loop().time())
        self._buffered = BufferedProducer(
            self._producer,
            on_published=self._count_published,
            on_unpublished=self._keep_failure,
            limits=limits,
            stop_on_failure=True,
        )

    async def carry_out(self) -> Progress:
        """Publish all lines that the saved state does not have.

        Raises the PublishError of the first line that cannot be published; those before it are published and saved.
        Raises InvalidProducerStateError if the state is of another input.
        """
        try:
            start = await self._go_to_start()
            lines = self._read(start)
            while next_lines := await asyncio.to_thread(_read_some, lines, self._would_wait):
                await self._enqueue(next_lines)
        except PublishError as error:
            self._failure = self._failure or error
        except BaseException:
            await self._buffered.close(flush=False)
            raise
        await self._buffered.close(timeout=None)  # attempts are bounded, so this ends
        if self._failure is not None:
            raise self._failure
        return self._progress

    def _read(self, start: Bookmark) -> Iterator[InputLine]:
        if isinstance(self._source, RowsInput):
            return self._source.rows_after(start)
        if self._options.csv is None:
            return input_lines.read_lines(self._source, start)
        return input_lines.read_csv(self._source, start, self._options.csv)

    async def _go_to_start(self) -> Bookmark:
        bookmarks = await self._find_starts()
        self._floored = input_lines.last_floored_line(bookmarks)
        start = min(self._starts.values(), key=lambda start: start.offset)
        await asyncio.to_thread(self._source.begin, start, bookmarks)
        self._progress.before = start.count
        self._progress.unchecked = max(
            (bookmark.count for bookmark in bookmarks if bookmark.digest is None and bookmark.offset),
            default=0,
        )
        self.on_progress(self._progress)
        return start

    async def _find_starts(self) -> list[Bookmark]:
        self._ids = await self._producer.get_partition_ids()
        chosen = self._options.partition
        if chosen is not None and chosen not in self._ids:
            raise PublishSettingsError(
                f"--partition is {chosen}, accepted: {', '.join(self._ids)}, the partitions of {self._producer.eventhub_name}"
            )
        # All partitions: a run with another --partition has left its bookmark in another one.
        states = {id_: await self._state(id_) for id_ in self._ids}
        confirmed = {id_: self._bookmark_of(state.bookmark) for id_, state in states.items()}
        pending = {
            id_: (self._bookmark_of(state.pending.bookmark), state.pending.bookmark)
            for id_, state in states.items()
            if state.pending is not None
        }
        self._pending = {id_: (bookmark.line, text) for id_, (bookmark, text) in pending.items()}
        self._progress.unended = next(filter(None, (state.unended for state in states.values())), None)
        bookmarks = [*confirmed.values(), *(bookmark for bookmark, _ in pending.values())]
        self._progress.partitions_now = len(self._ids)
        self._ids = self._ids[: input_lines.partitions_of_input(bookmarks, len(self._ids))]
        self._progress.partitions = len(self._ids)
        self._starts = {id_: confirmed[id_] for id_ in (self._ids if chosen is None else [chosen])}
        return bookmarks

    async def _state(self, id_: str) -> SavedState:
        if not self._options.saves:
            return SavedState(None, None)
        if self._options.partition not in {None, id_}:
            return await self._producer.saved_state(id_)
        return await self._buffered.resume(id_)

    def _bookmark_of(self, text: str | None) -> Bookmark:
        return read_bookmark(text, len(self._ids), self._key, self._options.given)

    @property
    def _key(self) -> str | None:
        options = self._options
        return options.key if options.partition is None else f"partition {options.partition}"

    async def _enqueue(self, lines: Sequence[InputLine]) -> None:
        for line in lines:
            if self._failure is not None:
                raise self._failure
            self._progress.offset = self._source.position
            with self._naming_input(line):
                id_ = self._partition(line)
            if line.number <= self._starts[id_].line:  # it may have got its line end since
                self._progress.before += 1
                continue
            await self._pace()
            with self._naming_input(line):
                event = self._event(line)
            try:
                await self._buffered.enqueue(event, partition_id=id_, bookmark=self._bookmark(id_, line))
            except MessageTooLargeError as error:
                raise MessageTooLargeError(f"line {line.number} is too large: {error}") from None
        self.on_progress(self._progress)

    @contextlib.contextmanager
    def _naming_input(self, line: InputLine) -> Iterator[None]:
        """Errors of a row of a file of rows name the file; those of lines name the line as ever."""
        try:
            yield
        except PublishSettingsError as error:
            if self._options.rows is None:
                raise
            words = str(error).removeprefix(f"line {line.number} ").removeprefix(f"row {line.number} ")
            raise PublishSettingsError(f"{self._options.name}, row {line.number}: it {words}") from None

    def _event(self, line: InputLine) -> EventData:
        fields = self._options.fields
        _, captured, system = line.captured or (None, {}, {})
        encoded = self._options.encoding.encode(line, fields.content_type)
        event = EventData(encoded.body)
        read, message_id = fields.read(line.body, line.number)
        properties: dict[Any, Any] = {**captured, **encoded.properties, **read}
        if properties:
            event.properties = {name: _as_amqp(value) for name, value in properties.items()}
        for name in _CAPTURED:
            if isinstance(value := system.get(name), str):
                setattr(event, name.replace("-", "_"), value)
        if message_id is not None:
            event.message_id = message_id
        content_type = encoded.content_type or fields.content_type
        if content_type is not None:
            event.content_type = content_type
        return event

    def _bookmark(self, id_: str, line: InputLine) -> str:
        """The bookmark after this line, to be saved.

        At the end of a pending set it is the saved text itself, which an earlier version may have written differently: the
        producer recognises the set by it.
        """
        last, saved = self._pending.get(id_, (0, None))
        if saved is not None and line.number == last:
            return saved
        return input_lines.write_bookmark(
            Bookmark(
                line.end,
                line.number,
                line.count,
                len(self._ids),
                self._key,
                line.digest,
                self._floored,
                self._options.given,
            )
        )

    def _partition(self, line: InputLine) -> str:
        if self._options.partition is not None:
            return self._options.partition
        if self._options.key is not None:
            floored = line.number <= self._floored
            return partition_of_key(input_lines.key_of(line, self._options.key), self._ids, floored=floored)
        if line.captured is not None and line.captured[0] is not None:
            return partition_of_key(line.captured[0], self._ids)
        return self._ids[line.number % len(self._ids)]

    async def _pace(self) -> None:
        now = asyncio.get_running_loop().time
        while not self._limiter.take(1, now()):  # noqa: ASYNC110 - the limiter computes the wait
            await asyncio.sleep(self._limiter.next_at(now()) - now())

    def _count_published(self, published: Published) -> None:
        self._progress.published += len(published.events)
        self.on_progress(self._progress)

    def _keep_failure(self, unpublished: Unpublished) -> None:
        self._failure = self._failure or unpublished.failures[0].error
        self._progress.unknown += sum(
            failed.error.outcome is Outcome.UNKNOWN for failed in unpublished.failures
        )


def _as_amqp(value: object) -> Any:
    """Whole numbers get the AMQP type of 64 bits. Without a type the SDK encodes 32 bits and refuses larger numbers."""
    return {"TYPE": "LONG", "VALUE": value} if type(value) is int else value


def _read_some(lines: Iterator[InputLine], would_wait: Callable[[], bool]) -> list[InputLine]:
    """The next lines; none at the end. Those that were read do not wait for one that is not written yet."""
    taken: list[InputLine] = []
    size = 0
    for line in islice(lines, _LINES_AT_ONCE):
        taken.append(line)
        size += len(line.body)
        if size >= _BYTES_AT_ONCE or would_wait():
            break
    return taken


def _never() -> bool:
    return False
