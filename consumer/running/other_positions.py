"""Positions that starts with other settings left elsewhere: looked for before the first claim, and by the doctor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from consumer.config import ConsumerConfig
from consumer.leasing.start_position import later_positions
from consumer.model import Checkpoint
from consumer.ports import CheckpointStore
from tidemark.foundation.errors import TidemarkError, UnavailableError
from tidemark.foundation.wording import count_text

TO_BEGIN = (
    "to begin there anyway, run `tidemark checkpoints set --all --latest`, which skips what the hub has"
)
TO_GO_ON = (
    "put back the settings or the file of before, run `tidemark checkpoints export > positions.json`, change them again, and run"
    " `tidemark checkpoints set --from positions.json`"
)


class OtherPositions(Struct, frozen=True):
    """What was found in another store, and what a start makes of it."""

    of: str
    """The hub and its consumer group."""
    found: str
    outcome: str
    is_refused: bool
    """Whether a start would skip events by it, and so ends."""

    @property
    def text(self) -> str:
        return f"{self.of}: {self.found}. To go on there, {TO_GO_ON}. {self.outcome}"


async def find_other_positions(
    config: ConsumerConfig,
    stored: Mapping[str, Checkpoint | str],
    elsewhere: Iterable[tuple[str, CheckpointStore]],
    *,
    deadline: float,
) -> list[OtherPositions]:
    """What is further elsewhere than in the `stored` positions; all that is elsewhere if none are stored.

    Raises UnavailableError where a store that decides whether events are skipped cannot be read.
    """
    skips = config.policy.start != "earliest" and not stored
    return [
        _compared(config, stored, where, later, skips=skips)
        for where, store in elsewhere
        if (later := later_positions(stored, await _read(store, where, deadline, must=skips)))
    ]


async def _read(
    store: CheckpointStore, where: str, deadline: float, *, must: bool
) -> Mapping[str, Checkpoint | str]:
    try:
        return await store.load_all(deadline=deadline)
    except TidemarkError as error:
        if must:
            raise UnavailableError(
                f"a start with other sinks or another CONSUMER_CHECKPOINTS may have left positions in {where}, which CONSUMER_START"
                f" would skip from, and it cannot be read: {error}; {TO_BEGIN}"
            ) from error
        return {}


def _compared(
    config: ConsumerConfig,
    stored: Mapping[str, Checkpoint | str],
    where: str,
    later: list[str],
    *,
    skips: bool,
) -> OtherPositions:
    has, when = (
        ("positions before those of " + where + " are stored", " later")
        if stored
        else ("no position is stored", "")
    )
    of = f"hub {config.hub}, group {config.consumer_group}"
    found = (
        f"{has} for these settings, and {where} has"
        f" {count_text(len(later), 'position')} of a{when} start with other sinks or another CONSUMER_CHECKPOINTS"
    )
    if skips:
        outcome = f"CONSUMER_START would skip events that were not written, so a start ends; {TO_BEGIN}"
        return OtherPositions(of, found, outcome, is_refused=True)
    begins = "goes on at the stored positions" if stored else "begins at the earliest event"
    return OtherPositions(of, found, f"A start {begins}, so events are written again", is_refused=False)
