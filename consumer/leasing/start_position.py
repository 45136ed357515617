"""Where receiving begins: from a partition's checkpoint, what the hub says of the partition, and the policy.

A checkpoint is trusted if it says that it is of this very hub: two hubs of one name differ in the time at which the
service created them, which is compared for equality. Only where one of them is not known, as in a checkpoint of an older
version, numbers, offsets and clocks decide whether the hub can have written its events. Events that retention took before they were
received are counted, never skipped in silence. Sequence numbers are compared; offsets are opaque and only tested
for being the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from msgspec import Struct, structs

from consumer.errors import PositionError
from consumer.model import NOTHING_SETTLED, Checkpoint, Origin, PartitionState
from consumer.options import OnDistrust, OnGap, PositionPolicy

CLOCK_TOLERANCE = 300.0
"""Seconds by which the hub must be younger than a checkpoint of an older version before the checkpoint is called
foreign: the two times are told by different clocks."""


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


def refuse_skipped(partition: str, state: PartitionState, brought: int) -> None:
    """Raises PositionError where a host that keeps the position itself has left out events of a hub created anew."""
    oldest = _oldest(state)
    if brought > oldest:
        raise PositionError(
            f"partition {partition}: the hub was created anew, and the Functions host goes on at event {brought} by its"
            f" checkpoint of the hub before; the oldest event is {oldest}. Stop the app, delete the host's checkpoints of this"
            " hub (container azure-webjobs-eventhub), and start it again: then everything that the hub has comes. Or set"
            " CONSUMER_ON_FOREIGN_CHECKPOINT to 'latest' to leave out the events before"
        )


def start(
    checkpoint: Checkpoint | str | None,
    state: PartitionState,
    policy: PositionPolicy,
    *,
    hub_created_at: float | None = None,
    came_later: bool = False,
    since: float | None = None,
) -> Start:
    """Where to begin in a partition. A text for a checkpoint says why it cannot be read.

    `hub_created_at` is the service's time, epoch seconds. A partition that `came_later` than the consumer begins at its
    earliest event even if the policy says latest: nobody decided to leave its events out. Nor those that came `since` the
    consumer group began (0: nobody knows when; None: it begins now), though nothing is stored of the partition. Raises
    PositionError, naming the
    setting that would decide otherwise, for a checkpoint that cannot be trusted and for events lost to retention.
    """
    if checkpoint is None and came_later and policy.start == "latest":
        return _beginning("earliest", state, "no checkpoint, and others were there before the partition")
    if (
        checkpoint is None
        and policy.start == "latest"
        and since is not None
        and since < state.last_enqueued_at
    ):
        where: float | str = since + 0.001 if since else "earliest"
        return _beginning(where, state, "no checkpoint, and others were there before")
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
            f"{story}. Set {setting} to 'earliest' (reads everything that the hub has) or 'latest' (leaves out what it"
            " has) to begin anew, or set the position with 'tidemark checkpoints set'"
        )
    return _beginning(decision.value, state, f"{story}; {setting} says so", reset=True)


def identity_of(created_at: float | None) -> int:
    """As Origin.hub. The service tells milliseconds; 0 is not known."""
    return round(created_at * 1000) if created_at else 0


def origins_of(others: Iterable[Checkpoint | str], hub: int) -> list[Origin]:
    """What is stored of a hub's partitions, of those that know which hub it is."""
    return [each.origin for each in others if isinstance(each, Checkpoint) and hub and each.origin.hub == hub]


def is_another_hub(others: Iterable[Checkpoint | str], hub: int) -> bool:
    """Whether what is stored of the other partitions is all of another hub of the name: this one was created anew."""
    known = [each for each in others if isinstance(each, Checkpoint) and each.origin.hub]
    return bool(known) and bool(hub) and not origins_of(known, hub)


def since_of(others: Iterable[Checkpoint | str], hub: int) -> float | None:
    """When the first partition of the hub was claimed; 0 where nobody knows, None where none was."""
    found = [
        each.origin.since for each in others if isinstance(each, Checkpoint) and each.origin.hub in {0, hub}
    ]
    return min(found, default=None)


def came_later(partition: str, others: Iterable[Checkpoint | str], hub: int) -> bool:
    """Whether the hub got a partition that nobody has claimed after others were claimed for the first time, by the
    number of partitions that it had then. Partitions are only ever added. Where that number is not known, nobody can say
    that it was there: yes.
    """
    of_this_hub = [
        each.origin for each in others if isinstance(each, Checkpoint) and each.origin.hub in {0, hub}
    ]
    if not of_this_hub or not partition.isdecimal():
        return False
    return int(partition) >= min(origin.partitions for origin in of_this_hub)


def first_position(begin: Start, state: PartitionState, origin: Origin) -> Checkpoint:
    """What is stored of a beginning, so that the next start begins at the same event, whatever has come by then."""
    if begin.sequence_number is not None:
        settled = begin.sequence_number - begin.inclusive
        return Checkpoint(state.partition, settled, begin.offset, origin=origin)
    where = {"number": _oldest(state)} if begin.time is None else {"time": begin.time}
    return Checkpoint(state.partition, NOTHING_SETTLED, "", origin=structs.replace(origin, **where))


def is_of_hub(checkpoint: Checkpoint, state: PartitionState, hub_created_at: float | None) -> bool:
    """Whether a checkpoint may be of this hub, as `start` sees it."""
    return _foreign(checkpoint, state, hub_created_at) is None


def _foreign(checkpoint: Checkpoint, state: PartitionState, hub_created_at: float | None) -> str | None:
    """Why this hub cannot have had the checkpoint's events, or None."""
    hub, theirs = identity_of(hub_created_at), checkpoint.origin.hub
    if hub and theirs and hub != theirs:
        return f"this hub was created at {_moment(hub)}, that of the checkpoint at {_moment(theirs)}"
    furthest = max(checkpoint.sequence_number, *(last for _, last in checkpoint.beyond), NOTHING_SETTLED)
    last = state.last_sequence_number
    if furthest > last:
        return f"it reaches to {furthest}, the hub's last event is {last}"
    younger_by = hub_created_at - checkpoint.saved_at if hub_created_at and checkpoint.saved_at else 0.0
    if not theirs and younger_by > CLOCK_TOLERANCE:
        return f"the hub was created {younger_by:.0f} s after the checkpoint was saved"
    offsets = {checkpoint.offset, state.last_offset}
    if checkpoint.sequence_number == last > NOTHING_SETTLED and "" not in offsets and len(offsets) > 1:
        return f"event {last} has the offset {state.last_offset!r}, the checkpoint says {checkpoint.offset!r}"
    return None


def _moment(milliseconds: int) -> str:
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _after(checkpoint: Checkpoint, state: PartitionState, policy: PositionPolicy) -> Start:
    position, origin = checkpoint.sequence_number, checkpoint.origin
    if position == NOTHING_SETTLED and origin.time is not None:
        return _beginning(origin.time, state, "nothing settled yet")
    if position == NOTHING_SETTLED and not checkpoint.beyond and origin.number is None:
        return _beginning("earliest", state, "nothing settled yet")
    if position == NOTHING_SETTLED and origin.number is not None:
        position = origin.number - 1  # nothing before it is there, or asked for
    begin = _oldest(state)
    settled = sum(max(0, min(last, begin - 1) - first + 1) for first, last in checkpoint.beyond)
    gap = max(0, begin - position - 1) - settled
    if begin <= position + 1:
        if checkpoint.sequence_number == NOTHING_SETTLED:
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
