"""Positions and parked events that starts with other settings left: looked for at a start, and by the doctor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sized
from contextlib import suppress

from msgspec import Struct

from consumer.config import ConsumerConfig
from consumer.errors import UnreadableError
from consumer.leasing.start_position import later_positions
from consumer.model import Checkpoint
from consumer.ports import CheckpointStore, DeadLetterStore
from tidemark.foundation.errors import TidemarkError, UnavailableError
from tidemark.foundation.wording import count_text, time_text

log = logging.getLogger("tidemark.consumer")

TO_BEGIN = (
    "to begin there anyway, run `tidemark checkpoints set --all --latest`, which skips what the hub has"
)
TO_GO_ON = (
    "put back the settings or the file of before, run `tidemark checkpoints export > positions.json`, change them again, and run"
    " `tidemark checkpoints set --from positions.json`"
)


async def are_left(store: DeadLetterStore, *, ordered: bool) -> bool:
    """Whether events are parked of a start with CONSUMER_PARK; for one without it. Raises TidemarkError."""
    later = "they are tried again when they are due, and become dead letters when they are rejected"
    if ordered:
        later = "these sinks cannot try them again: `tidemark dead-letters replay --parked` writes them"
    if await _has_any(store):
        log.warning("CONSUMER_PARK is not set, but events are parked: %s", later)
        return True
    return False


async def _has_any(store: DeadLetterStore) -> bool:
    try:
        return await anext(store.list(), None) is not None
    except UnreadableError:
        return True


async def untried_text(
    config: ConsumerConfig, stores: Iterable[tuple[str, DeadLetterStore]], *, within: float
) -> str:
    """The warning about parked events that nobody tries again, which are settled, so that they would be lost in silence. `stores` are
    those in which there may be some, each with what to say of them; '' where there are none, or the store does not answer.
    """
    texts = []
    for how, store in stores:
        with suppress(TidemarkError, TimeoutError):  # most often there is no such container
            async with asyncio.timeout(within):
                await store.open()
                found = await _has_any(store)
            if found:
                texts.append(
                    f"hub {config.hub}, group {config.consumer_group}: events are parked {how} `tidemark dead-letters replay --parked"
                    " --all`"
                )
    return "; ".join(texts)


def first_start_text(config: ConsumerConfig, place: str) -> str:
    """Where positions were looked for, and none are: of another account or database nobody here knows."""
    start = config.policy.start if isinstance(config.policy.start, str) else time_text(config.policy.start)
    return (
        f"no position of hub {config.hub}, group {config.consumer_group} is stored in {place}: by CONSUMER_START, {start}, each partition"
        " begins anew. If this consumer ran before, the storage account, BLOB_CONTAINER, the database of the positions, the"
        " namespace or the consumer group was another one"
    )


def stored_text(stored: Sized, place: str) -> str:
    if not stored:
        return f"no position is stored in {place}: a first start"
    return f"{count_text(len(stored), 'position')} stored"


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
                f"a start with other sinks, CONSUMER_CHECKPOINTS, BLOB_CONTAINER or storage connection may have left positions in {where}, which CONSUMER_START"
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
    finding = (
        f"{has} for these settings, and {where} has"
        f" {count_text(len(later), 'position')} of a{when} start with other sinks, CONSUMER_CHECKPOINTS, BLOB_CONTAINER or storage"
        " connection"
    )
    if skips:
        outcome = f"CONSUMER_START would skip events that were not written, so a start ends; {TO_BEGIN}"
        return OtherPositions(of, finding, outcome, is_refused=True)
    begins = "goes on at the stored positions" if stored else "begins at the earliest event"
    return OtherPositions(of, finding, f"A start {begins}, so events are written again", is_refused=False)
