"""Positions as the commands show them, and what a new position does."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct
from rich.markup import escape

from consumer.cli.support import console, fail, number, plain
from consumer.leasing.start_position import why_foreign
from consumer.model import NOTHING_SETTLED, Checkpoint, PartitionState
from tidemark.foundation.errors import TidemarkError
from tidemark.foundation.log.tables import FittedTable
from tidemark.foundation.wording import count_text, duration_text, file_problem


class Row(Struct, frozen=True):
    """A partition as shown."""

    partition: str
    checkpoint: Checkpoint | None = None
    unreadable: str | None = None
    lag: int | None = None
    """Events that are not settled; None if the hub or the checkpoint cannot be read, or the checkpoint is of another hub."""
    foreign: str | None = None
    """Why the checkpoint is not of this hub."""


class Effect(Struct, frozen=True):
    """What a new position does: how many events are skipped, and how many that were settled are written again."""

    skipped: int
    again: int

    def __str__(self) -> str:
        parts = {"skipped": self.skipped, "written again": self.again}
        counts = [f"{count_text(count, 'event', style=',')} {what}" for what, count in parts.items() if count]
        return ", ".join(counts) or "nothing is skipped or written again"


def effect_of(stored: Checkpoint | str | None, target: Checkpoint, state: PartitionState) -> Effect:
    """By sequence numbers, of what the hub still has; numbers that were never assigned are counted, too. Pure."""
    before = stored if isinstance(stored, Checkpoint) else Checkpoint(target.partition, NOTHING_SETTLED, "")
    first = state.last_sequence_number + 1 if state.empty else max(0, state.begin_sequence_number)
    gone, mark, new = first - 1, before.sequence_number, target.sequence_number
    settled = [(first, mark), *before.beyond]

    def count(low: int, high: int) -> int:
        return max(0, high - max(low, first) + 1)

    beyond = sum(count(low, min(high, new)) for low, high in before.beyond)
    # Nothing is settled yet: receiving begins where the first claim said, and what is before that is not received in any case.
    start = before.origin.number if mark == NOTHING_SETTLED else None
    unread = max(mark, gone, NOTHING_SETTLED if start is None else start - 1)
    skipped = max(0, new - unread) - beyond if new > mark else 0
    again = sum(count(max(low, new + 1), high) for low, high in settled)
    kept = sum(count(max(low, new + 1), high) for low, high in target.beyond)
    return Effect(max(0, skipped), max(0, again - kept))


def row_of(
    partition: str,
    stored: Checkpoint | str | None,
    state: PartitionState | None,
    created_at: float | None = None,
) -> Row:
    if isinstance(stored, str):
        return Row(partition, unreadable=stored)
    if state is None:
        return Row(partition, stored)
    if stored and (foreign := why_foreign(stored, state, created_at)):
        return Row(partition, stored, foreign=foreign)
    mark = stored.sequence_number if stored else NOTHING_SETTLED
    gone = max(mark, state.last_sequence_number if state.empty else state.begin_sequence_number - 1)
    beyond = sum(max(0, last - max(first, gone + 1) + 1) for first, last in (stored.beyond if stored else ()))
    return Row(partition, stored, lag=max(0, state.last_sequence_number - gone - beyond))


def print_rows(rows: Sequence[Row], now: float) -> None:
    table = FittedTable("partition", "low-water", "offset", "beyond", "owner", "epoch", "age", "lag")
    for row in rows:
        checkpoint = row.checkpoint
        if checkpoint is None:
            table.add_row(row.partition, position_of(row), "", "", "", "", "", number(row.lag))
            continue
        beyond = sum(last - first + 1 for first, last in checkpoint.beyond)
        age = duration_text(max(0.0, now - checkpoint.saved_at)) if checkpoint.saved_at else "?"
        runs = f"{beyond:,} in {len(checkpoint.beyond):,}" if beyond else "0"
        cells = map(plain, (position_of(row), checkpoint.offset, runs, checkpoint.owner))
        table.add_row(row.partition, *cells, str(checkpoint.epoch), age, number(row.lag))
    console.print(table)
    for row in rows:
        for seek in row.checkpoint.origin.seeks if row.checkpoint else ():
            before = "none" if seek.before is None else str(seek.before)
            at = datetime.fromtimestamp(seek.at, UTC).isoformat(timespec="seconds")
            line = f"partition {plain(row.partition)}: set from {before} to {seek.after} by {plain(seek.by)} at {at}"
            console.print(line, soft_wrap=True)
        if row.foreign:
            problem = f"[red]partition {escape(row.partition)}:[/] the checkpoint is not of this hub: {plain(row.foreign)}"
            console.print(problem, soft_wrap=True)
        if row.unreadable:
            problem = f"[red]partition {escape(row.partition)}:[/] {plain(row.unreadable)}"
            console.print(problem, soft_wrap=True)


def position_of(row: Row) -> str:
    if row.unreadable:
        return "unreadable"
    if row.checkpoint is None:
        return "none"
    return f"{position_text(row.checkpoint)}{' of another hub' if row.foreign else ''}"


def position_text(checkpoint: Checkpoint) -> str:
    settled = checkpoint.sequence_number
    return "the beginning" if settled == NOTHING_SETTLED else str(settled)


class Export(Struct, frozen=True, forbid_unknown_fields=True):
    """The file of `checkpoints export` and `set --from`."""

    hub: str
    consumer_group: str
    checkpoints: tuple[Checkpoint, ...]


def read_export(path: Path) -> Export:
    """Ends the command with exit status 1 for a file that is none."""
    try:
        export = msgspec.json.decode(path.read_bytes(), type=Export)
    except OSError as error:
        fail(f"{path} cannot be read: {file_problem(error)}")
    except (ValueError, RecursionError) as error:
        fail(f"{path} is no file of 'tidemark checkpoints export': {error}")
    names = [checkpoint.partition for checkpoint in export.checkpoints]
    if twice := {name for name in names if names.count(name) > 1}:
        fail(f"{path} has several positions of partition {', '.join(sorted(twice))}; accepted: one of each")
    return export


def check_offset(state: PartitionState, offset: str) -> None:
    """Raises TidemarkError for an offset that no event is at or behind, as far as it can be told: where offsets are numbers."""
    last = state.last_offset
    if state.empty or (
        last.isdecimal() and not (offset.isascii() and offset.isdecimal() and _size(offset) <= _size(last))
    ):
        has = "it has none" if state.empty else f"its last one, {state.last_sequence_number}, is at {last}"
        raise TidemarkError(
            f"partition {state.partition} has no event at or after the offset '{offset}': {has}"
        )


def _size(number: str) -> tuple[int, str]:
    """Of a whole number however long: Python converts none of more than 4,300 digits."""
    digits = number.lstrip("0")
    return len(digits), digits
