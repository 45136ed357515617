"""Which dead letters or parked events a command is about, and their store."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from msgspec import Struct

from consumer.cli import support
from consumer.model import DeadLetter
from consumer.ports import DeadLetterStore
from consumer.receiving.until import epoch_seconds
from tidemark.foundation.durations import parse_duration
from tidemark.foundation.errors import TidemarkError

CHUNK = 50
"""Dead letters in memory at a time; a body can have 1 MB."""
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
    parked: bool = False
    """Whether they are parked events."""

    def passes(self, dead_letter: DeadLetter) -> bool:
        """Whether it passes the filters that a store does not know."""
        is_early = self.before is None or dead_letter.failed_at < self.before
        is_late = self.after is None or dead_letter.failed_at >= self.after
        is_of_text = self.text is None or self.text.casefold() in dead_letter.rejection.detail.casefold()
        return is_early and is_late and is_of_text

    def takes(self, dead_letter: DeadLetter) -> bool:
        """Whether it is one of them, if its partition is."""
        if self.ids:
            return dead_letter.id in self.ids
        return self.reason in {None, dead_letter.rejection.reason} and self.passes(dead_letter)

    async def of(self, store: DeadLetterStore) -> AsyncIterator[DeadLetter]:
        """Raises TidemarkError for an id that does not exist."""
        for dead_letter_id in self.ids:
            dead_letter = await store.get(dead_letter_id)
            if dead_letter is None:
                raise TidemarkError(f"there is no {named(parked=self.parked)} '{dead_letter_id}'")
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


def with_store(
    where: tuple[Path, str | None],
    work: Callable[[DeadLetterStore], Coroutine[Any, Any, _T]],
    *,
    parked: bool = False,
    dry_run: bool = False,
) -> _T:
    """The result of work on the dead letters, or the parked events, of a folder and hub. A dry run creates no store."""

    async def opened() -> _T:
        parts = support.open_parts(*where, dry_run=dry_run)
        store = parts.parked() if parked else parts.dead_letters()
        try:
            await store.open()
            return await work(store)
        finally:
            await store.aclose()

    return support.run(opened, support.asked(where, "dead_letters"))


def selected(
    ids: Sequence[str] | None,
    partition: str | None,
    reason: str | None,
    older_than: str | None = None,
    *,
    all_: bool,
    text: str | None = None,
    times: tuple[float | None, float | None] = (None, None),
    parked: bool = False,
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
    return Selection(tuple(ids or ()), partition, reason, before, after, text, parked)


def times_of(before: str | None, after: str | None) -> tuple[float | None, float | None]:
    times = []
    for option, given in (("--before", before), ("--after", after)):
        try:
            times.append(None if given is None else epoch_seconds(given))
        except ValueError as error:
            hint = f"{error}; expected a time such as 2026-11-21T08:00:00Z"
            raise typer.BadParameter(hint, param_hint=option) from None
    return times[0], times[1]


def named(*, parked: bool) -> str:
    """What the commands are about, in the singular."""
    return "parked event" if parked else "dead letter"
