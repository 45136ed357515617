"""`tidemark dead-letters`: lists, shows, replays and deletes events that could not be written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from msgspec import Struct
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Column, Table

from consumer.cli import support
from consumer.cli.support import DEADLINE, Hub, Json, Root, Yes, console, fail, plain
from consumer.mapping.preparing import Preparation
from consumer.model import DeadLetter, Outcome
from consumer.ports import DeadLetterStore, Sink
from consumer.running.replaying import Replay
from consumer.stores.dead_letter_document import to_document
from consumer.versions import SUPERSEDED
from tidemark.foundation.app_settings import COMMAND_ROOT
from tidemark.foundation.durations import parse_duration
from tidemark.foundation.errors import TidemarkError
from tidemark.foundation.log.terminal import print_json
from tidemark.foundation.wording import time_text

CHUNK = 50
"""Dead letters in memory at a time; a body can have 1 MB."""
_BODY_SHOWN = 4000  # characters

_T = TypeVar("_T")

Partition = Annotated[str | None, typer.Option(help="Only of this partition.")]
ReasonOption = Annotated[str | None, typer.Option(help="Only of this reason.")]
Ids = Annotated[list[str] | None, typer.Argument(help="Ids, as `list` shows them.")]
All = Annotated[bool, typer.Option("--all", help="All dead letters.")]


class Selection(Struct, frozen=True):
    """The dead letters of some ids, or those that pass the filters."""

    ids: tuple[str, ...] = ()
    partition: str | None = None
    reason: str | None = None
    before: float | None = None
    """Epoch seconds: only dead letters that failed earlier."""

    async def of(self, store: DeadLetterStore) -> AsyncIterator[DeadLetter]:
        """Raises TidemarkError for an id that does not exist."""
        for dead_letter_id in self.ids:
            dead_letter = await store.get(dead_letter_id)
            if dead_letter is None:
                raise TidemarkError(f"there is no dead letter '{dead_letter_id}'")
            yield dead_letter
        if not self.ids:
            async for dead_letter in store.list(partition=self.partition, reason=self.reason):
                if self.before is None or dead_letter.failed_at < self.before:
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
    where: tuple[Path, str | None], work: Callable[[DeadLetterStore], Coroutine[Any, Any, _T]]
) -> _T:
    async def opened() -> _T:
        store = support.open_parts(*where).dead_letters()
        try:
            await store.open()
            return await work(store)
        finally:
            await store.aclose()

    return support.run(opened)


def list_(
    partition: Partition = None,
    reason: ReasonOption = None,
    limit: Annotated[int, typer.Option(min=1, help="The first so many; all are counted.")] = 50,
    root: Root = COMMAND_ROOT,
    hub: Hub = None,
    json_: Json = False,
) -> None:
    """In order of partition and sequence number, then the number of each reason."""

    async def work(store: DeadLetterStore) -> tuple[list[DeadLetter], Counter[str]]:
        shown: list[DeadLetter] = []
        counts: Counter[str] = Counter()
        async for dead_letter in store.list(partition=partition, reason=reason):
            counts[dead_letter.rejection.reason] += 1
            if len(shown) < limit:
                shown.append(dead_letter)
        return shown, counts

    dead_letters, counts = _with_store((root, hub), work)
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
    console.print(f"{counts.total():,} dead letters{': ' if reasons else ''}{plain(reasons)}", soft_wrap=True)


def show(
    dead_letter_id: Annotated[str, typer.Argument(help="An id, as `list` shows it.")],
    root: Root = COMMAND_ROOT,
    hub: Hub = None,
    json_: Json = False,
) -> None:
    """One dead letter with everything that is known about it, and its body."""
    dead_letter = _with_store((root, hub), lambda store: store.get(dead_letter_id))
    if dead_letter is None:
        fail(f"there is no dead letter '{dead_letter_id}'")
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
    all_: All = False,
    yes: Yes = False,
    root: Root = COMMAND_ROOT,
    hub: Hub = None,
) -> None:
    """Maps and writes dead letters again, by the present settings, and deletes those that were written.

    An event replayed late overwrites what later events made of the same document, except under the version guard
    (COSMOS_GUARD, CONSUMER_SQL_GUARD). Exit status 1 when dead letters remain.
    """
    selection = _selection(ids, partition, reason, None, all_=all_)
    support.ask(
        "Write these events again? Without a version guard they overwrite what later events made of the same documents.",
        yes=yes,
    )

    async def work(store: DeadLetterStore) -> list[tuple[DeadLetter, str]]:
        parts = support.open_parts(root, hub)
        sink = parts.sink()
        try:
            return await _replay(store, sink, parts.preparation(sink), selection)
        finally:
            await sink.aclose()

    if remain := _with_store((root, hub), work):
        for dead_letter, why in remain:
            support.errors.print(f"[red]{plain(dead_letter.id)}[/] {plain(why)}", soft_wrap=True)
        fail(f"{len(remain)} dead letters remain")


def purge(
    ids: Ids = None,
    partition: Partition = None,
    reason: ReasonOption = None,
    older_than: Annotated[str | None, typer.Option(help="Only what failed before: 12h, 30d.")] = None,
    all_: All = False,
    yes: Yes = False,
    root: Root = COMMAND_ROOT,
    hub: Hub = None,
) -> None:
    """Deletes dead letters for good. The events are in the hub until its retention ends."""
    selection = _selection(ids, partition, reason, older_than, all_=all_)

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
    older_than: str | None,
    *,
    all_: bool,
) -> Selection:
    """Exactly one way to select is required: ids, filters, or --all."""
    filters = [value is not None for value in (partition, reason, older_than)]
    if sum([bool(ids), any(filters), all_]) != 1:
        raise typer.BadParameter("give ids, or filters (--partition, --reason, --older-than), or --all")
    try:
        before = None if older_than is None else time.time() - parse_duration(older_than)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--older-than") from None
    return Selection(tuple(ids or ()), partition, reason, before)


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
