"""`tidemark dead-letters`: lists, shows, replays and deletes events that could not be written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from msgspec import Struct
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Column, Table

from consumer.cli import support
from consumer.cli.support import DEADLINE, Hub, Json, Root, Yes, console, fail, plain
from consumer.mapping.preparing import Preparation
from consumer.model import DeadLetter, Outcome
from consumer.ports import DeadLetterStore, Sink
from consumer.receiving.until import epoch_seconds
from consumer.running.writing.replaying import ComparingSink, Replay
from consumer.stores.dead_letter_document import to_document
from consumer.versions import SUPERSEDED
from tidemark.foundation.app_settings import COMMAND_ROOT
from tidemark.foundation.durations import parse_duration
from tidemark.foundation.errors import TidemarkError, UnavailableError
from tidemark.foundation.log.terminal import print_json
from tidemark.foundation.wording import count_text, time_text

if TYPE_CHECKING:  # the SDKs take a second; --help needs none
    from consumer.running.assembly import Parts

CHUNK = 50
"""Dead letters in memory at a time; a body can have 1 MB."""
_BODY_SHOWN = 4000  # characters

_T = TypeVar("_T")

Partition = Annotated[str | None, typer.Option(help="Only of this partition.")]
Parked = Annotated[
    bool,
    typer.Option(
        "--parked", help="Events that are parked to be tried again (CONSUMER_PARK), not dead letters."
    ),
]
ReasonOption = Annotated[str | None, typer.Option(help="Only of this reason.")]
Text = Annotated[str | None, typer.Option("--text", help="Only with this text in the reason's detail.")]
After = Annotated[str | None, typer.Option("--after", help="Only what failed from this time on, ISO 8601.")]
Before = Annotated[str | None, typer.Option("--before", help="Only what failed before this time.")]
Ids = Annotated[list[str] | None, typer.Argument(help="Ids, as `list` shows them.")]
All = Annotated[bool, typer.Option("--all", help="All dead letters.")]


class Selection(Struct, frozen=True):
    """The dead letters of some ids, or those that pass the filters."""

    ids: tuple[str, ...] = ()
    partition: str | None = None
    reason: str | None = None
    before: float | None = None
    """Epoch seconds: only dead letters that failed earlier."""
    after: float | None = None
    """Epoch seconds: only dead letters that failed then or later."""
    text: str | None = None
    """Only dead letters with this in the detail of their reason, in any case of letters."""

    def passes(self, dead_letter: DeadLetter) -> bool:
        """Whether it passes the filters that a store does not know."""
        is_early = self.before is None or dead_letter.failed_at < self.before
        is_late = self.after is None or dead_letter.failed_at >= self.after
        is_of_text = self.text is None or self.text.casefold() in dead_letter.rejection.detail.casefold()
        return is_early and is_late and is_of_text

    async def of(self, store: DeadLetterStore) -> AsyncIterator[DeadLetter]:
        """Raises TidemarkError for an id that does not exist."""
        for dead_letter_id in self.ids:
            dead_letter = await store.get(dead_letter_id)
            if dead_letter is None:
                raise TidemarkError(f"there is no dead letter '{dead_letter_id}'")
            yield dead_letter
        if not self.ids:
            async for dead_letter in store.list(partition=self.partition, reason=self.reason):
                if self.passes(dead_letter):
                    yield dead_letter

    async def chunks(self, store: DeadLetterStore) -> AsyncIterator[list[DeadLetter]]:
        chunk: list[DeadLetter] = []
        async for dead_letter in self.of(store):
            chunk.append(dead_letter)
            if len(chunk) == CHUNK:
                yield chunk
                chunk = []
        if chunk:
            yield chunk


def _with_store(
    where: tuple[Path, str | None],
    work: Callable[[DeadLetterStore], Coroutine[Any, Any, _T]],
    *,
    parked: bool = False,
) -> _T:
    async def opened() -> _T:
        parts = support.open_parts(*where)
        store = parts.parked() if parked else parts.dead_letters()
        try:
            await store.open()
            return await work(store)
        finally:
            await store.aclose()

    return support.run(opened)


def list_(
    partition: Partition = None,
    reason: ReasonOption = None,
    text: Text = None,
    after: After = None,
    before: Before = None,
    limit: Annotated[int, typer.Option(min=1, help="The first so many; all are counted.")] = 50,
    parked: Parked = False,
    root: Root = COMMAND_ROOT,
    hub: Hub = None,
    json_: Json = False,
) -> None:
    """In order of partition and sequence number, then the number of each reason."""
    selection = Selection((), partition, reason, *_times(before, after), text)

    async def work(store: DeadLetterStore) -> tuple[list[DeadLetter], Counter[str]]:
        shown: list[DeadLetter] = []
        counts: Counter[str] = Counter()
        async for dead_letter in selection.of(store):
            counts[dead_letter.rejection.reason] += 1
            if len(shown) < limit:
                shown.append(dead_letter)
        return shown, counts

    dead_letters, counts = _with_store((root, hub), work, parked=parked)
    if json_:
        print_json([{"id": dead_letter.id, **to_document(dead_letter)} for dead_letter in dead_letters])
        return
    widest = max((len(dead_letter.id) for dead_letter in dead_letters), default=0)
    table = Table(Column("id", min_width=widest), "reason", "detail", "attempts", "failed at", "bytes")
    for dead_letter in dead_letters:
        why, failed_at = dead_letter.rejection, time_text(dead_letter.failed_at)
        cells = (dead_letter.id, why.reason, why.detail, str(dead_letter.attempts), failed_at)
        table.add_row(*map(plain, cells), f"{len(dead_letter.event.body):,}")
    console.print(table)
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts.most_common())
    what = count_text(counts.total(), "parked event" if parked else "dead letter")
    console.print(f"{what}{': ' if reasons else ''}{plain(reasons)}", soft_wrap=True)


def show(
    dead_letter_id: Annotated[str, typer.Argument(help="An id, as `list` shows it.")],
    parked: Parked = False,
    root: Root = COMMAND_ROOT,
    hub: Hub = None,
    json_: Json = False,
) -> None:
    """One dead letter with everything that is known about it, and its body."""
    dead_letter = _with_store((root, hub), lambda store: store.get(dead_letter_id), parked=parked)
    if dead_letter is None:
        fail(f"there is no {'parked event' if parked else 'dead letter'} '{dead_letter_id}'")
    document = to_document(dead_letter)
    if json_:
        print_json({"id": dead_letter.id, **document})
        return
    body = document.pop("body", None) or document.pop("body_base64", "")
    for name, value in document.items():
        console.print(f"[bold]{name:<16}[/]{plain(str(value))}", soft_wrap=True)
    console.print(plain(body[:_BODY_SHOWN]), soft_wrap=True)
    if len(body) > _BODY_SHOWN:
        console.print(f"[dim]{len(body) - _BODY_SHOWN:,} more characters; --json shows all[/]")


def replay(
    ids: Ids = None,
    partition: Partition = None,
    reason: ReasonOption = None,
    text: Text = None,
    after: After = None,
    before: Before = None,
    all_: All = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what the present settings make of them, and write nothing.")
    ] = False,
    yes: Yes = False,
    root: Root = COMMAND_ROOT,
    hub: Hub = None,
) -> None:
    """Maps and writes dead letters again, by the present settings, and deletes those that were written.

    With a version guard nothing replaces what a later event made of the same document. Without one, an event that is
    replayed late overwrites it. It may be stopped at any time: started again, it goes on with those that are left. Exit
    status 1 when dead letters remain.
    """
    selection = _selection(ids, partition, reason, all_=all_, text=text, times=_times(before, after))
    parts = support.open_parts(root, hub)
    risk = _risk(parts) if dry_run or not yes else ""
    if dry_run:
        counts = _with_store((root, hub), lambda store: _try_out(store, parts, selection))
        for what, count in sorted(counts.items()):
            console.print(f"{count:,} {plain(what)}", soft_wrap=True)
        console.print(
            f"{count_text(counts.total(), 'dead letter')}; dry run: nothing was written. {risk}",
            soft_wrap=True,
        )
        return
    support.ask(f"Write these events again? {risk}", yes=yes)

    async def work(store: DeadLetterStore) -> list[tuple[DeadLetter, str]]:
        sink = parts.sink()
        try:
            return await _replay(store, sink, parts.preparation(sink), selection)
        finally:
            await sink.aclose()

    if remain := _with_store((root, hub), work):
        for dead_letter, why in remain:
            support.errors.print(f"[red]{plain(dead_letter.id)}[/] {plain(why)}", soft_wrap=True)
        fail(f"{len(remain)} dead letters remain")


def _risk(parts: Parts) -> str:
    """What a replay may overwrite."""
    unguarded = parts.unguarded_sinks
    if not unguarded:
        return "The version guard leaves alone what later events made of the same documents."
    return f"They overwrite what later events made of the same documents: {', '.join(unguarded)} has no version guard (docs/writing.md)."


async def _try_out(store: DeadLetterStore, parts: Parts, selection: Selection) -> Counter[str]:
    """What would become of the dead letters, by the mapping, and by what is there if the sink can compare."""
    sink = parts.sink()
    counts: Counter[str] = Counter()
    try:
        await sink.open()  # some sinks map by what their target is
        preparation = parts.preparation(sink)
        async for dead_letters in selection.chunks(store):
            for dead_letter in dead_letters:
                counts[await _outcome_of(sink, preparation, dead_letter)] += 1
    finally:
        await sink.aclose()
    return counts


async def _outcome_of(sink: Sink, preparation: Preparation, dead_letter: DeadLetter) -> str:
    event, decoder = dead_letter.event, preparation.decoder
    if decoder is not None and (schemas := decoder.missing([event])):
        try:
            await decoder.load(schemas, deadline=support.soon(DEADLINE))
        except UnavailableError as error:
            return f"would wait: {error}"
    records = preparation.records([event])
    rejections = sorted({record.rejection.reason for record in records if record.rejection is not None})
    if rejections:
        return f"would be rejected: {', '.join(rejections)}"
    if all(record.dropped is not None for record in records):
        return "would be dropped"
    guarded = [record for record in records if record.change is not None and record.change.stamp is not None]
    if not isinstance(sink, ComparingSink):
        return "would be written, or superseded by what is there" if guarded else "would be written"
    try:
        superseded = await sink.superseded(guarded, deadline=support.soon(DEADLINE))
    except UnavailableError as error:
        return f"would wait: {error}"
    is_all = bool(superseded) and all(superseded) and len(superseded) == len(records)
    return "would be superseded" if is_all else "would be written"


def purge(
    ids: Ids = None,
    partition: Partition = None,
    reason: ReasonOption = None,
    older_than: Annotated[str | None, typer.Option(help="Only what failed before: 12h, 30d.")] = None,
    text: Text = None,
    all_: All = False,
    yes: Yes = False,
    root: Root = COMMAND_ROOT,
    hub: Hub = None,
) -> None:
    """Deletes dead letters for good. The events are in the hub until its retention ends."""
    selection = _selection(ids, partition, reason, older_than, all_=all_, text=text)

    async def count(store: DeadLetterStore) -> int:
        return sum([1 async for _ in selection.of(store)])

    support.ask(f"Delete {_with_store((root, hub), count):,} dead letters for good?", yes=yes)

    async def work(store: DeadLetterStore) -> int:
        chunks = selection.chunks(store)
        return sum([await store.delete([letter.id for letter in chunk]) async for chunk in chunks])

    console.print(f"[green]deleted[/] {_with_store((root, hub), work):,} dead letters")


def dead_letters_app() -> typer.Typer:
    """`list`, `show`, `replay` and `purge`."""
    app = typer.Typer(
        name="dead-letters",
        help="Events that could not be written, with body, reason and position.",
        no_args_is_help=True,
    )
    app.command("list")(list_)
    app.command()(show)
    app.command()(replay)
    app.command()(purge)
    return app


def _selection(
    ids: Sequence[str] | None,
    partition: str | None,
    reason: str | None,
    older_than: str | None = None,
    *,
    all_: bool,
    text: str | None = None,
    times: tuple[float | None, float | None] = (None, None),
) -> Selection:
    """Exactly one way to select is required: ids, filters, or --all."""
    filters = [value is not None for value in (partition, reason, older_than, text, *times)]
    if sum([bool(ids), any(filters), all_]) != 1:
        raise typer.BadParameter(
            "give ids, or filters (--partition, --reason, --text, --after, --before, --older-than), or --all"
        )
    before, after = times
    try:
        before = before if older_than is None else time.time() - parse_duration(older_than)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--older-than") from None
    return Selection(tuple(ids or ()), partition, reason, before, after, text)


def _times(before: str | None, after: str | None) -> tuple[float | None, float | None]:
    found = []
    for option, given in (("--before", before), ("--after", after)):
        try:
            found.append(None if given is None else epoch_seconds(given))
        except ValueError as error:
            hint = f"{error}; expected a time such as 2026-11-21T08:00:00Z"
            raise typer.BadParameter(hint, param_hint=option) from None
    return found[0], found[1]


async def _replay(
    store: DeadLetterStore, sink: Sink, preparation: Preparation, selection: Selection
) -> list[tuple[DeadLetter, str]]:
    """Replays dead letters and deletes those that were written, chunk by chunk. Returns the others, and why they remain."""
    remain: list[tuple[DeadLetter, str]] = []
    replayer = Replay(sink, await sink.open(), preparation)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[counts]}"),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("replaying", total=None, counts="")
        written = superseded = 0
        async for dead_letters in selection.chunks(store):
            results = await replayer.write(dead_letters, deadline=support.soon(DEADLINE))
            done = []
            for dead_letter, result in zip(dead_letters, results, strict=True):
                if result.outcome is Outcome.WRITTEN:
                    done.append(dead_letter.id)
                    superseded += result.reason == SUPERSEDED
                else:
                    remain.append((dead_letter, result.reason or f"{result.outcome} {result.status}"))
            await store.delete(done)
            written += len(done)
            counts = f"{written:,} written, {len(remain):,} remain"
            progress.update(bar, advance=len(dead_letters), counts=counts)
        progress.update(bar, total=written + len(remain), completed=written + len(remain))
    console.print(f"[green]written[/] {written - superseded:,}")
    if superseded:
        console.print(
            f"[yellow]superseded[/] {superseded:,}: a later event has changed the document, so nothing was written"
        )
    return remain
