"""Where receiving begins: from a partition's checkpoint, what the hub says of the partition, and the policy.

A checkpoint is trusted only if the hub can have written its events. Events that retention took before they were
received are counted, never skipped in silence. Sequence numbers are compared; offsets are opaque and only tested
for being the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from consumer.errors import PositionError
from consumer.model import NOTHING_SETTLED, Checkpoint, PartitionState
from consumer.options import OnDistrust, OnGap, PositionPolicy

CLOCK_TOLERANCE = 300.0
"""Seconds by which the hub must be younger than a checkpoint before the checkpoint is called foreign: the two
times are told by different clocks."""


class Start(Struct, frozen=True):
    """Where to begin: at `sequence_number`, else at `time` (epoch seconds), else at the earliest event.

    "latest" is given as the sequence number that is the last one now, so that a connection lost before the first
    event loses nothing.
    """

    sequence_number: int | None = None
    offset: str = ""
    """Of the event with `sequence_number`, where known."""
    time: float | None = None
    inclusive: bool = False
    gap: int = 0
    """Unsettled events that retention took."""
    reset: bool = False
    """The stored checkpoint counts for nothing. A store keeps positions from going back: put a new one first."""
    note: str = ""
    """One sentence for the log: why here."""


class Expired(Struct, frozen=True):
    """Events that retention took before they were received: between sequence numbers `first` and `last`.

    `count` is the most that can be: of numbers that are missing nobody can say which were never given.
    """

    first: int
    last: int
    count: int

    def __str__(self) -> str:
        return (
            f"retention took {self.count} events before they were received, sequence numbers {self.first} to"
            f" {self.last}: the consumer is slower than the hub forgets"
        )


def expired(delivered: int, state: PartitionState, received: Sequence[int] = ()) -> Expired | None:
    """What retention took of the events after `delivered`, by a state of the partition asked for afterwards.

    With `received`, which came after `delivered` and ascend, only what is missing between them: later ones may be on
    their way. A number that is missing at or above the oldest event left was never given, or was compacted away.
    """
    begin = _oldest(state)
    gaps = []
    for number in received or (begin,):
        gap = range(delivered + 1, min(number, begin))
        if gap:
            gaps.append(gap)
        delivered = number
    return Expired(gaps[0].start, gaps[-1].stop - 1, sum(map(len, gaps))) if gaps else None


def refuse_gap(policy: PositionPolicy, partition: str, story: object) -> None:
    """Raises PositionError where the policy is not to go on without what retention took."""
    if policy.on_retention_gap is OnGap.FAIL:
        raise PositionError(
            f"partition {partition}: {story}. Set CONSUMER_ON_RETENTION_GAP to 'continue' to go on without them"
        )


def start(
    checkpoint: Checkpoint | str | None,
    state: PartitionState,
    policy: PositionPolicy,
    *,
    hub_created_at: float | None = None,
) -> Start:
    """Where to begin in a partition. A text for a checkpoint says why it cannot be read.

    Raises PositionError, naming the setting that would decide otherwise, for a checkpoint that cannot be trusted
    and for events lost to retention.
    """
    if checkpoint is None:
        return _beginning(policy.start, state, "no checkpoint")
    if isinstance(checkpoint, str):
        story = f"partition {state.partition}: the checkpoint cannot be read: {checkpoint}"
        return _distrusted(policy.on_unreadable_checkpoint, "CONSUMER_ON_UNREADABLE_CHECKPOINT", story, state)
    foreign = _foreign(checkpoint, state, hub_created_at)
    if foreign:
        story = f"partition {state.partition}: the checkpoint at {checkpoint.sequence_number} is not of this hub: {foreign}"
        return _distrusted(policy.on_foreign_checkpoint, "CONSUMER_ON_FOREIGN_CHECKPOINT", story, state)
    return _after(checkpoint, state, policy)


def _beginning(where: str | float, state: PartitionState, why: str, *, reset: bool = False) -> Start:
    if where == "latest" and state.last_sequence_number > NOTHING_SETTLED:
        last = state.last_sequence_number
        return Start(last, state.last_offset, reset=reset, note=f"{why}: after the latest, {last}")
    if isinstance(where, float | int):
        return Start(time=float(where), inclusive=True, reset=reset, note=f"{why}: from time {where:.0f}")
    return Start(reset=reset, note=f"{why}: from the earliest event")


def _distrusted(decision: OnDistrust, setting: str, story: str, state: PartitionState) -> Start:
    if decision is OnDistrust.FAIL:
        raise PositionError(
            f"{story}. Set {setting} to 'earliest' or 'latest' to begin anew, or set the checkpoint by hand"
        )
    return _beginning(decision.value, state, f"{story}; {setting} says so", reset=True)


def _foreign(checkpoint: Checkpoint, state: PartitionState, hub_created_at: float | None) -> str | None:
    """Why this hub cannot have had the checkpoint's events, or None."""
    furthest = max(checkpoint.sequence_number, *(last for _, last in checkpoint.beyond), NOTHING_SETTLED)
    last = state.last_sequence_number
    if furthest > last:
        return f"it reaches to {furthest}, the hub's last event is {last}"
    younger_by = hub_created_at - checkpoint.saved_at if hub_created_at and checkpoint.saved_at else 0.0
    if younger_by > CLOCK_TOLERANCE:
        return f"the hub was created {younger_by:.0f} s after the checkpoint was saved"
    offsets = {checkpoint.offset, state.last_offset}
    if checkpoint.sequence_number == last > NOTHING_SETTLED and "" not in offsets and len(offsets) > 1:
        return f"event {last} has the offset {state.last_offset!r}, the checkpoint says {checkpoint.offset!r}"
    return None


def _after(checkpoint: Checkpoint, state: PartitionState, policy: PositionPolicy) -> Start:
    position = checkpoint.sequence_number
    if position == NOTHING_SETTLED and not checkpoint.beyond:
        return _beginning("earliest", state, "nothing settled yet")
    begin = _oldest(state)
    settled = sum(max(0, min(last, begin - 1) - first + 1) for first, last in checkpoint.beyond)
    gap = max(0, begin - position - 1) - settled
    if begin <= position + 1:
        if position == NOTHING_SETTLED:
            return _beginning("earliest", state, "nothing settled below what is")
        return Start(position, checkpoint.offset, note=f"after the checkpoint at {position}")
    story = f"the checkpoint is at {position}, the oldest event left is {begin}: retention took {gap} unsettled events"
    if gap:
        refuse_gap(policy, state.partition, story)
    return Start(sequence_number=begin, inclusive=True, gap=gap, note=story)


def _oldest(state: PartitionState) -> int:
    """The oldest event left, or the next one to come."""
    # Of an empty partition the begin may say anything: nothing up to the last event is left.
    return state.last_sequence_number + 1 if state.empty else state.begin_sequence_number
