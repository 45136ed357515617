"""What is known of the parked events of a claim, and which of them may be tried."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import structs

from consumer.core.statistics import PipelineStatistics
from consumer.model import Claim, Event, Rejection


@dataclass(eq=False)
class Entry:
    """What is known of a parked event without its body, which is read again for each attempt.

    `due` is the loop's time; `tried` counts attempts of this process, and those that it takes for made.
    """

    id: str
    number: int | str
    """The sequence number; the id for an event of a hub of the same name before."""
    rejection: Rejection
    due: float
    tried: int
    keys: frozenset[str] = frozenset()
    """Of its records."""
    names: frozenset[str] | None = None
    """Which of its `of` records are to be written; None is all."""
    of: int = 1
    epoch: int = 0
    """As in the store. It may be above that of the claim: without checkpoints epochs begin anew."""
    is_ahead: bool = False
    """Parked under an earlier claim, and earlier events of its keys may still be written again under this one."""
    is_over: bool = False
    """Written, or its dead letter is stored; only its deletion is missing."""
    is_dead_letter: bool = False
    written: int = 0


@dataclass(eq=False)
class ClaimedEntries:
    """The parked events of one claim, by Entry.number."""

    claim: Claim
    entries: dict[int | str, Entry] = field(default_factory=dict)
    loaded: asyncio.Event = field(default_factory=asyncio.Event)
    trying: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_over: bool = False
    problems: dict[str, str] = field(default_factory=dict)
    """Why reading or trying them failed the last time."""
    load_at: float = -math.inf
    given_up_at: float = math.inf
    """The time from which on an event that is ahead is taken to be one that the hub does not have any more."""

    @property
    def partition(self) -> str:
        return self.claim.partition

    @property
    def is_ahead(self) -> bool:
        return any(entry.is_ahead for entry in self.entries.values())

    @property
    def problem(self) -> str:
        """What holds them up, or with them all of the partition; '' if nothing does."""
        why = "; ".join(dict.fromkeys(self.problems.values()))
        held = "its parked events wait" if self.loaded.is_set() else "it waits for its parked events"
        return why and f"{held}: {why}"

    def end(self) -> None:
        self.is_over = True
        self.loaded.set()

    def number_of(self, event: Event) -> int | str:
        is_of_this_hub = event.incarnation == self.claim.origin.incarnation
        return event.sequence_number if is_of_this_hub else f"{event.place}~{event.sequence_number}"

    def first(self, *, by_key: bool, mark: float) -> list[Entry]:
        """Those that may be tried when they are due: with order by key the first of each key, if all events before it that this
        claim receives are settled; `mark` is up to where they are.
        """
        entries = list(self.entries.values())
        if not by_key:
            return entries
        first, seen = [], set[str]()
        # Those of a hub before come first.
        for entry in sorted(entries, key=lambda entry: (isinstance(entry.number, int), entry.number)):
            entry.is_ahead = entry.is_ahead and isinstance(entry.number, int) and entry.number > mark
            if not (entry.keys & seen or entry.is_ahead):
                first.append(entry)
            seen |= entry.keys
        return first


def with_problems(statistics: PipelineStatistics, claims: Mapping[str, ClaimedEntries]) -> PipelineStatistics:
    """The statistics with what holds up the parked events of each partition, or with them all of it."""
    held = {(claimed.partition, claimed.claim.epoch): claimed.problem for claimed in claims.values()}
    if not any(held.values()):
        return statistics
    partitions = [
        structs.replace(each, problem=held.get((each.partition, each.epoch), ""))
        for each in statistics.partitions
    ]
    return structs.replace(statistics, partitions=tuple(partitions))
