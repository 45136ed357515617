"""How far a consumer group is behind an event hub, partition by partition. Pure.

    empty                                           -> 0
    no checkpoint, or one that cannot be this hub's -> last - begin + 1
    else                                            -> last - max(checkpoint, begin - 1)

`begin` and `last` are sequence numbers of the oldest event still there and of the newest one; a checkpoint is
the sequence number of the last event settled. Both only grow, so they also count what came in and what was settled (`flow_of`). Two common implementations are wrong in cases that the tests compare
(tests/unit/scaling/collectors/test_lag.py): one counts events that retention has removed as backlog for ever, the other
counts no backlog in a hub that was created anew until it has more events than its predecessor had.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal
from zlib import crc32

from msgspec import Struct

DEFAULT_JITTER = 10_000
"""Events by which a checkpoint may be ahead of the partition as read, which may be the older of the two reads.

KEDA's stalePartitionInfoThreshold. What is further ahead belongs to another hub.
"""

AHEAD_FOR = 60.0
"""Seconds for which the same checkpoint may be ahead of its partition. Chosen: what the service says of a partition is late by seconds, and
a consumer that goes on has another checkpoint by then. One that stays ahead belongs to another hub: its writer kept it there after
the hub was created anew.
"""

CLOCK_GRAIN = 1.0
"""Seconds: storage gives times of writing in whole seconds."""


class LagState(StrEnum):
    """What the checkpoint of a partition is worth."""

    OK = "ok"
    EMPTY = "empty"  # no event is left in the partition, whatever the checkpoint says
    NO_CHECKPOINT = "no_checkpoint"  # the consumer group has not settled anything there yet
    HUB_RECREATED = "hub_recreated"  # the checkpoint was written for an earlier hub of this name
    EXPIRED = "expired"  # retention removed events that were never read
    STALE = "stale"  # the checkpoint is slightly ahead of the partition as read


USUAL = frozenset({LagState.OK, LagState.EMPTY})

Begins = Literal["earliest", "zero", "hold"]


class Meanings(Struct, frozen=True, kw_only=True):
    """What the states other than `ok` and `empty` stand for.

    `earliest`: all that is left waits for the consumer. `zero`: nothing does. `hold`: the lag is unknown.
    """

    no_checkpoint: Begins = "earliest"
    hub_recreated: Begins = "earliest"
    expired: Literal["earliest", "hold"] = "earliest"
    stale: Literal["zero", "hold"] = "zero"

    def of(self, state: LagState) -> Begins:
        """The meaning of a state; `earliest` for those that have no setting."""
        meaning: Begins = getattr(self, state, "earliest")
        return meaning


class Partition(Struct, frozen=True):
    """A partition as its management node reports it. `last` is -1 if nothing was ever enqueued."""

    id: str
    begin: int
    last: int
    is_empty: bool = False

    @property
    def retained(self) -> int:
        """Events that can still be read."""
        if self.is_empty or self.last < 0:
            return 0
        return max(self.last - self.begin + 1, 0)


class PartitionLag(Struct, frozen=True):
    """The lag of one partition. `lost` are events that retention removed before anybody read them. `foreign`: the checkpoint is
    known to be of another hub, also where no event is left.
    """

    partition: Partition
    checkpoint: int | None
    state: LagState
    lag: int
    lost: int = 0
    held: bool = False
    foreign: bool = False

    def __str__(self) -> str:
        events, read = self.partition, self.checkpoint
        position = "no checkpoint" if read is None else f"checkpoint {read}"
        lost = f", {self.lost} of them lost" if self.lost else ""
        return (
            f"partition {events.id} is {self.state}: {position}, events {events.begin} to {events.last}{lost}"
        )


def is_of_earlier_hub(written_at: float, hub_created_at: float) -> bool:
    """True when a checkpoint was written before its hub was created, both by the services' clocks."""
    return written_at + CLOCK_GRAIN < hub_created_at


def partition_lag(
    partition: Partition,
    checkpoint: int | None,
    meanings: Meanings,
    *,
    jitter: int = DEFAULT_JITTER,
    foreign: bool = False,
) -> PartitionLag:
    """The lag of one partition. `foreign` marks a checkpoint known to be of an earlier hub, wherever it points."""
    state = _state(partition, checkpoint, jitter, foreign=foreign)
    meaning = meanings.of(state)
    lost = 0
    if state is LagState.EMPTY or meaning == "zero":
        lag = 0
    elif state in {LagState.NO_CHECKPOINT, LagState.HUB_RECREATED} or checkpoint is None:
        lag = partition.retained
    else:
        lag = max(partition.last - max(checkpoint, partition.begin - 1), 0)
    if state is LagState.EXPIRED and checkpoint is not None:
        lost = partition.begin - 1 - checkpoint
    return PartitionLag(partition, checkpoint, state, lag, lost, held=meaning == "hold", foreign=foreign)


class CheckpointsAhead:
    """Which checkpoints stay ahead of their partitions. Belongs to one hub and consumer group."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, float, bool]] = {}
        """By partition: the checkpoint that was ahead, since when, and whether it is of another hub."""

    def is_foreign(self, partition: Partition, checkpoint: int | None, now: float) -> bool:
        """Whether this checkpoint has been ahead for so long that it is of another hub. It stays so when the partition passes it."""
        if checkpoint is None:
            self._known.pop(partition.id, None)
            return False
        number, since, foreign = self._known.get(partition.id, (-1, now, False))
        if number != checkpoint or now < since:
            since, foreign = now, False
        if partition.retained and checkpoint > partition.last:
            foreign = foreign or now - since >= AHEAD_FOR
            self._known[partition.id] = checkpoint, since, foreign
        elif not foreign:
            self._known.pop(partition.id, None)
        return foreign


def counts_of(partitions: Sequence[PartitionLag], target: float | None = None) -> dict[str, float]:
    """What a consumer group is behind over all partitions of a hub, in events, and how that is spread.

    One instance alone has to work off `max_partition_lag`; `partitions_with_lag` are the most instances that can work
    right now. `capped_lag` is at most what one instance a partition is meant to have, at `target` events each.
    """
    lags, states = [one.lag for one in partitions], [one.state for one in partitions]
    total = sum(lags)
    counts = {
        "lag": total,
        "max_partition_lag": max(lags, default=0),
        "partitions": len(lags),
        "partitions_with_lag": sum(lag > 0 for lag in lags),
        "lost": sum(one.lost for one in partitions),
        **{state.value: states.count(state) for state in LagState if state not in USUAL},
    }
    capped = {} if target is None else {"capped_lag": min(float(total), len(lags) * target)}
    return {name: float(value) for name, value in counts.items()} | capped


class Flow(Struct, frozen=True):
    """Events since the hub was made, as two counters. `incoming` is of the `hub`. `settled` is of those partitions whose
    checkpoint is a position in it, which `checkpoints` names; None where events wait and no partition has one.
    """

    incoming: int
    hub: int
    settled: int | None
    checkpoints: int


def flow_of(partitions: Sequence[PartitionLag], hub_created_at: float) -> Flow:
    """What was enqueued and settled over all partitions. A hub made anew has another number, added partitions do not change it;
    a first checkpoint, or one of which retention removed what follows, is a jump and no work: so other partitions are
    another counter.
    """
    hub = round(hub_created_at * 1000)
    known = [
        (one.partition.id, min(one.checkpoint, one.partition.last))
        for one in partitions
        if one.checkpoint is not None
        and not one.foreign
        and one.state is not LagState.HUB_RECREATED
        and one.partition.begin - 1 <= one.checkpoint
    ]
    waiting = any(one.partition.retained for one in partitions)
    named = ",".join((str(hub), *(partition for partition, _ in known)))
    return Flow(
        incoming=sum(one.partition.last + 1 for one in partitions),
        hub=hub,
        settled=None if waiting and not known else sum(position + 1 for _, position in known),
        checkpoints=crc32(named.encode()),
    )


def _state(partition: Partition, checkpoint: int | None, jitter: int, *, foreign: bool) -> LagState:
    if partition.retained == 0:
        return LagState.EMPTY
    if checkpoint is None:
        return LagState.NO_CHECKPOINT
    if foreign or checkpoint > partition.last + jitter:
        return LagState.HUB_RECREATED
    if checkpoint > partition.last:
        return LagState.STALE
    return LagState.EXPIRED if checkpoint < partition.begin - 1 else LagState.OK


def by_number(partition_id: str) -> tuple[int, str]:
    """Partitions in the order of their numbers."""
    return (int(partition_id), "") if partition_id.isdecimal() else (1 << 31, partition_id)
