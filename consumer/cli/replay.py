"""`tidemark dead-letters replay`: writes dead letters or parked events again, by the present settings."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct, structs
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from consumer.cli import support
from consumer.cli.selecting import (
    After,
    All,
    Before,
    Ids,
    Parked,
    Partition,
    ReasonOption,
    Selection,
    Text,
    named,
    selected,
    times_of,
    with_store,
)
from consumer.cli.support import DEADLINE, Hub, Root, Yes, console, fail, plain
from consumer.core.parked import has_names
from consumer.model import DeadLetter, Outcome, Record
from consumer.ports import DeadLetterStore, Sink
from consumer.running.writing.replaying import DROPPED, ComparingSink, Replay, Replayed, records_left
from consumer.versions import SUPERSEDED
from tidemark.foundation.app_settings import COMMAND_ROOT
from tidemark.foundation.errors import UnavailableError
from tidemark.foundation.wording import count_text, time_text

if TYPE_CHECKING:  # the SDKs take a second; --help needs none
    from consumer.running.assembly import Parts

_SEVERAL = re.compile(r"record \d+( for .*)?: ")
"""How the reason of an event with several rejected records begins, which is all that an older version stored of them."""

Whole = Annotated[
    bool,
    typer.Option(
        "--whole",
        help="All records of each event, also those that are not in its dead letter because they were written.",
    ),
]


def replay(
    ids: Ids = None,
    partition: Partition = None,
    reason: ReasonOption = None,
    text: Text = None,
    after: After = None,
    before: Before = None,
    all_: All = False,
    parked: Parked = False,
    whole: Whole = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what the present settings make of them, and write nothing.")
    ] = False,
    yes: Yes = False,
    root: Root = COMMAND_ROOT,
    hub: Hub = None,
) -> None:
    """Maps and writes dead letters again, or parked events now, by the present settings, and deletes those that were written.

    With a version guard nothing replaces what a later event made of the same document. Without one, an event that is
    replayed late overwrites it. With CONSUMER_PARK_ORDER=key a parked event stays while an earlier one of its key does. The command
    may be stopped at any time: started again, it goes on with those that are left. Exit status 1 when some remain.
    """
    times = times_of(before, after)
    selection = selected(ids, partition, reason, all_=all_, text=text, times=times, parked=parked)
    parts, dry_run = support.open_for(root, hub, dry_run=dry_run)
    task = Task(parts, selection, parked, whole)
    where, what = (root, hub), named(parked=parked)
    risk = _risk(parts) if dry_run or not yes else ""
    if dry_run:
        counts = with_store(where, task.try_out, parked=parked, dry_run=True)
        for outcome, count in sorted(counts.items()):
            console.print(f"{count:,} {plain(outcome)}", soft_wrap=True)
        console.print(
            f"{count_text(counts.total(), what, style=',')}; dry run: nothing was written. {risk}",
            soft_wrap=True,
        )
        return
    support.ask(f"Write these events again? {risk}", yes=yes)
    if remain := with_store(where, task.run, parked=parked):
        for dead_letter, why in remain:
            support.errors.print(f"[red]{plain(dead_letter.id)}[/] {plain(why)}", soft_wrap=True)
        fail(count_text(len(remain), f"{what} remains", f"{what}s remain", style=","))


def _risk(parts: Parts) -> str:
    """What a replay may overwrite."""
    guards = parts.guards
    unguarded = [sink for sink, guard in guards.items() if guard == "none"]
    if unguarded:
        have = "has" if len(unguarded) == 1 else "have"
        return f"They overwrite what later events made of the same documents: {', '.join(unguarded)} {have} no version guard (docs/writing.md)."
    if set(guards.values()) == {"append"}:
        return "They come behind what later events wrote, which stays."
    return "The version guard leaves alone what later events made of the same documents."


class Task(Struct, frozen=True):
    """What is replayed, and how. `by_key`: an event waits for those before it in the store that have its key."""

    parts: Parts
    selection: Selection
    parked: bool
    whole: bool

    @property
    def by_key(self) -> bool:
        return self.parked and self.parts.config.parking.by_key

    async def _chunks(self, store: DeadLetterStore) -> AsyncIterator[list[DeadLetter]]:
        """With `by_key` one event at a time, also those that are not selected."""
        if not self.by_key:
            async for chunk in self.selection.chunks(store):
                yield chunk
            return
        if self.selection.ids:
            async for _ in self.selection.of(store):  # raises for an id that does not exist
                pass
        async for letter in store.list(partition=self.selection.partition):
            yield [letter]

    async def try_out(self, store: DeadLetterStore) -> Counter[str]:
        """What would become of the events, by the mapping, and by what is there if the sink can compare."""
        sink = self.parts.sink()
        counts: Counter[str] = Counter()
        try:
            routes = await sink.open()  # some sinks map by what their target is
            replayer = Replay(sink, routes, self.parts.preparation(sink), whole=self.whole)
            held = _Held(replayer, by_key=self.by_key)
            async for letters in self._chunks(store):
                for letter in letters:
                    outcome = await held.why(letter) or await self._outcome_of(replayer, letter)
                    if self.selection.takes(letter):
                        counts[outcome] += 1
                    if not (self.selection.takes(letter) and outcome.startswith(_GONE)):
                        await held.add(letter)
        finally:
            await sink.aclose()
        return counts

    async def _outcome_of(self, replayer: Replay, letter: DeadLetter) -> str:
        sink = replayer.sink
        try:
            records = await _records(replayer, letter)
        except UnavailableError as error:
            return f"would wait: {error}"
        several = ""
        if not self.whole:
            left = records_left(records, letter.records, letter.of)
            is_of_several = letter.of > 1 or _SEVERAL.match(letter.rejection.detail)
            if is_of_several and len(left) > 1 and not has_names(records, letter.records, letter.of):
                several = ", with all records of the event: which of them were written is unknown"
            records = left
        rejections = sorted({record.rejection.reason for record in records if record.rejection is not None})
        if rejections:
            is_all = all(record.rejection or record.dropped for record in records)
            return f"would be rejected{'' if is_all else ' in part'}: {', '.join(rejections)}"
        if all(record.dropped is not None for record in records):
            return "would be dropped"
        guarded = [
            record for record in records if record.change is not None and record.change.stamp is not None
        ]
        if not isinstance(sink, ComparingSink):
            return f"would be written{', or superseded by what is there' if guarded else ''}{several}"
        try:
            superseded = await sink.superseded(guarded, deadline=support.soon(DEADLINE))
        except UnavailableError as error:
            return f"would wait: {error}"
        is_all = bool(superseded) and all(superseded) and len(superseded) == len(records)
        return "would be superseded" if is_all else f"would be written{several}"

    async def run(self, store: DeadLetterStore) -> list[tuple[DeadLetter, str]]:
        """Writes the events and deletes those that were written, chunk by chunk. Returns the others, and why they remain."""
        sink = self.parts.sink()
        try:
            return await self._run(store, sink)
        finally:
            await sink.aclose()

    async def _run(self, store: DeadLetterStore, sink: Sink) -> list[tuple[DeadLetter, str]]:
        remain: list[tuple[DeadLetter, str]] = []
        replayer = Replay(sink, await sink.open(), self.parts.preparation(sink), whole=self.whole)
        held = _Held(replayer, by_key=self.by_key)
        settled: Counter[str] = Counter()
        with Progress(*_COLUMNS, console=console) as progress:
            bar = progress.add_task("replaying", total=None, counts="")
            async for letters in self._chunks(store):
                taken = [letter for letter in letters if self.selection.takes(letter)]
                waits = {letter.id: why for letter in taken if (why := await held.why(letter))}
                chosen = [letter for letter in taken if letter.id not in waits]
                done: list[str] = []
                for letter, result in await self._write(replayer, chosen):
                    if result.outcome is Outcome.WRITTEN and await _has_more(store, letter):
                        remain.append((letter, "another record of the event was rejected meanwhile"))
                    elif result.outcome is Outcome.WRITTEN:
                        done.append(letter.id)
                        settled[result.reason if result.reason in {DROPPED, SUPERSEDED} else "written"] += 1
                    else:
                        remain.append((letter, result.reason or f"{result.outcome} {result.status}"))
                        if (left := self._left(letter, result)) != letter:
                            # Another one may have removed it meanwhile, or stored further records; the sink may have named these.
                            named = structs.replace(letter, records=left.records, of=left.of)
                            if await store.get(letter.id) in (letter, named):
                                await store.put([left], deadline=support.soon(DEADLINE))
                await store.delete(done)
                for letter in letters:
                    if letter.id not in done:
                        if letter.id in waits:
                            remain.append((letter, waits[letter.id]))
                        await held.add(letter)
                counts = f"{settled.total():,} settled, {len(remain):,} remain"
                progress.update(bar, advance=len(letters), counts=counts)
            whole = settled.total() + len(remain)
            progress.update(bar, total=whole, completed=whole)
        _print_settled(settled)
        return remain

    def _left(self, letter: DeadLetter, result: Replayed) -> DeadLetter:
        """What is stored of an event that remains. The times of a parked one are counted from its first failure."""
        left = result.left or letter
        if result.rejection is None or self.parked:
            return left
        why = letter.rejection
        return structs.replace(
            left,
            rejection=result.rejection,
            attempts=letter.attempts + 1,
            failed_at=time.time(),
            first=letter.first or f"{time_text(letter.failed_at)} {why.reason}: {why.detail}",
        )

    async def _write(
        self, replayer: Replay, letters: Sequence[DeadLetter]
    ) -> list[tuple[DeadLetter, Replayed]]:
        if self.parked and letters and replayer.sink.transactional:
            # It writes what is a dead letter, and removes that, in one transaction.
            group, store = self.parts.config.consumer_group, self.parts.dead_letters()
            dead = [structs.replace(letter, consumer_group=group, epoch=0) for letter in letters]
            try:
                await store.put(dead, deadline=support.soon(DEADLINE))
            finally:
                await store.aclose()
        results = await replayer.write(letters, deadline=support.soon(DEADLINE))
        return list(zip(letters, results, strict=True))


_WITHOUT_WRITING = {
    SUPERSEDED: "a later event has changed the document, so nothing was written",
    DROPPED: "by the present settings nothing of them is to be written",
}


def _print_settled(settled: Counter[str]) -> None:
    console.print(f"[green]written[/] {settled['written']:,}")
    for reason, why in _WITHOUT_WRITING.items():
        if count := settled[reason]:
            console.print(f"[yellow]{reason}[/] {count:,}: {why}", soft_wrap=True)


_GONE = ("would be written", "would be dropped", "would be superseded")
_COLUMNS = (
    SpinnerColumn(),
    TextColumn("{task.description}"),
    BarColumn(),
    TextColumn("{task.fields[counts]}"),
)


class _Held:
    """The keys of events that stay parked, for which later ones of the key wait. While the schema of one cannot be fetched, its key
    is unknown, and all later ones of its partition wait.
    """

    def __init__(self, replayer: Replay, *, by_key: bool) -> None:
        self._replayer = replayer
        self._by_key = by_key
        self._keys: set[tuple[str, str]] = set()
        self._unknown: dict[str, str] = {}

    async def why(self, letter: DeadLetter) -> str:
        """Why an event must wait; '' if it need not."""
        if not self._by_key:
            return ""
        if (why := self._unknown.get(letter.event.place)) is not None:
            return f"would wait: an earlier event of its partition stays parked, whose key is unknown: {why}"
        try:
            keys = await self._keys_of(letter)
        except UnavailableError as error:
            self._unknown[letter.event.place] = str(error)
            return f"would wait: {error}"
        return "" if self._keys.isdisjoint(keys) else "would wait: an earlier event of its key stays parked"

    async def add(self, letter: DeadLetter) -> None:
        if not self._by_key or letter.event.place in self._unknown:
            return
        try:
            self._keys |= await self._keys_of(letter)
        except UnavailableError as error:
            self._unknown[letter.event.place] = str(error)

    async def _keys_of(self, letter: DeadLetter) -> set[tuple[str, str]]:
        records = await _records(self._replayer, letter)
        return {(letter.event.place, record.key) for record in records if record.dropped is None}


async def _has_more(store: DeadLetterStore, letter: DeadLetter) -> bool:
    """Whether it was stored again with further records since it was read, by a running consumer."""
    stored = await store.get(letter.id) if letter.of > 1 else None
    if stored is None or stored.records == letter.records:
        return False
    return not stored.records or not set(stored.records).issubset(letter.records)


async def _records(replayer: Replay, letter: DeadLetter) -> list[Record]:
    """What the present settings make of the event. Raises UnavailableError while its schema cannot be fetched."""
    [why] = await replayer.why_waiting([letter], deadline=support.soon(DEADLINE))
    if why:
        raise UnavailableError(why)
    return replayer.preparation.records([letter.event])
