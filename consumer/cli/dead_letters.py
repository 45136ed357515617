"""`tidemark dead-letters`: lists, shows, replays and deletes events that could not be written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated

import typer
from rich.table import Column

from consumer.cli import support
from consumer.cli.replay import replay
from consumer.cli.selecting import (
    CHUNK,
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
from consumer.cli.support import Hub, Json, Root, Yes, console, fail, plain
from consumer.core.parked import BEHIND
from consumer.errors import UnreadableError
from consumer.model import DeadLetter
from consumer.ports import DeadLetterStore
from consumer.stores.dead_letter_document import to_document
from tidemark.foundation.app_settings import COMMAND_ROOT
from tidemark.foundation.errors import TidemarkError
from tidemark.foundation.log.tables import FittedTable
from tidemark.foundation.log.terminal import print_json
from tidemark.foundation.wording import count_text, time_text

_BODY_SHOWN = 4000  # characters


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
    selection = Selection((), partition, reason, *times_of(before, after), text)

    async def work(store: DeadLetterStore) -> tuple[list[DeadLetter], Counter[str]]:
        shown: list[DeadLetter] = []
        counts: Counter[str] = Counter()
        async for dead_letter in selection.of(store):
            counts[dead_letter.rejection.reason] += 1
            if len(shown) < limit:
                shown.append(dead_letter)
        return shown, counts

    dead_letters, counts = with_store((root, hub), work, parked=parked, dry_run=True)
    if json_:
        print_json([{"id": dead_letter.id, **to_document(dead_letter)} for dead_letter in dead_letters])
        return
    widest = max((len(dead_letter.id) for dead_letter in dead_letters), default=0)
    due = ("due",) if parked else ()
    table = FittedTable(
        Column("id", min_width=widest), "reason", "detail", "attempts", "failed at", *due, "bytes"
    )
    parts = support.open_parts(root, hub, dry_run=True)
    support.show_connections(parts, parts.config.dead_letters)
    delays = parts.config.parking.seconds
    for dead_letter in dead_letters:
        why, failed_at = dead_letter.rejection, time_text(dead_letter.failed_at)
        cells = [dead_letter.id, why.reason, why.detail, str(dead_letter.attempts), failed_at]
        cells += [_due(dead_letter, delays, time.time())] if parked else []
        table.add_row(*map(plain, cells), f"{len(dead_letter.event.body):,}")
    console.print(table)
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts.most_common())
    what = count_text(counts.total(), named(parked=parked), style=",")
    console.print(f"{what}{': ' if reasons else ''}{plain(reasons)}", soft_wrap=True)


def _due(parked: DeadLetter, delays: Sequence[float], now: float) -> str:
    """When the consumer tries a parked event again; one that retried it since it started may be some seconds later."""
    if parked.rejection.reason == BEHIND.reason:
        return "after an earlier one"
    times = (parked.failed_at + after for after in accumulate(delays))
    return next((time_text(at) for at in times if at > now), "now")


def show(
    dead_letter_id: Annotated[str, typer.Argument(help="An id, as `list` shows it.")],
    parked: Parked = False,
    root: Root = COMMAND_ROOT,
    hub: Hub = None,
    json_: Json = False,
) -> None:
    """One dead letter with everything that is known about it, and its body."""
    dead_letter = with_store(
        (root, hub), lambda store: store.get(dead_letter_id), parked=parked, dry_run=True
    )
    if dead_letter is None:
        fail(f"there is no {named(parked=parked)} '{dead_letter_id}'")
    document = to_document(dead_letter)
    if json_:
        print_json({"id": dead_letter.id, **document})
        return
    body = document.pop("body", None) or document.pop("body_base64", "")
    for name, value in document.items():
        console.print(f"[bold]{name:<18}[/]{plain(str(value))}", soft_wrap=True)
    console.print(plain(body[:_BODY_SHOWN]), soft_wrap=True)
    if len(body) > _BODY_SHOWN:
        console.print(
            f"[dim]{count_text(len(body) - _BODY_SHOWN, 'more character', style=',')}; --json shows all[/]"
        )


def purge(
    ids: Ids = None,
    partition: Partition = None,
    reason: ReasonOption = None,
    older_than: Annotated[str | None, typer.Option(help="Only what failed before: 12h, 30d.")] = None,
    text: Text = None,
    all_: All = False,
    parked: Parked = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say how many there are, and delete nothing.")
    ] = False,
    yes: Yes = False,
    root: Root = COMMAND_ROOT,
    hub: Hub = None,
) -> None:
    """Deletes dead letters for good, or parked events. The events are in the hub until its retention ends.

    A parked event that is deleted is not tried again; the consumer that has it notices within ten minutes, or when it is due.
    """
    selection = selected(ids, partition, reason, older_than, all_=all_, text=text, parked=parked)
    _, dry_run = support.open_for(root, hub, dry_run=dry_run)

    async def find(store: DeadLetterStore) -> list[str]:
        if not selection.ids:
            return [dead_letter.id async for dead_letter in selection.of(store)]
        return [each for each in selection.ids if await is_there(store, each)]

    async def is_there(store: DeadLetterStore, dead_letter_id: str) -> bool:
        try:
            if await store.get(dead_letter_id) is None:
                raise TidemarkError(f"there is no {named(parked=parked)} '{dead_letter_id}'")
        except UnreadableError as error:
            support.errors.print(
                f"[yellow]it cannot be read:[/] {plain(str(error.__cause__))}", soft_wrap=True
            )
        return True

    ids = with_store((root, hub), find, parked=parked, dry_run=True)
    amount = count_text(len(ids), named(parked=parked), style=",")
    if dry_run:
        console.print(f"{amount}; dry run: nothing was deleted")
        return
    support.ask(f"Delete {amount} for good?", yes=yes)

    async def work(store: DeadLetterStore) -> int:  # none that came after the question
        return sum([await store.delete(ids[at : at + CHUNK]) for at in range(0, len(ids), CHUNK)])

    deleted = with_store((root, hub), work, parked=parked)
    console.print(f"[green]deleted[/] {count_text(deleted, named(parked=parked), style=',')}")


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
