"""Decides where receiving begins, from a partition's checkpoint, its state in the hub, and the policy.

A checkpoint is trusted if it belongs to this hub: two hubs of one name differ in the time at which the service created
them. If one of the times is unknown, as in a checkpoint of an older version, then sequence numbers, offsets and clocks
decide whether the checkpoint can belong to this hub. Events that retention removed before they were received are counted,
never skipped silently. Offsets are opaque and only compared for equality.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import inf

from msgspec import Struct, structs

from consumer.errors import PositionError
from consumer.leasing.balance import partition_order
from consumer.model import NOTHING_SETTLED, Checkpoint, Origin, PartitionState
from consumer.options import OnDistrust, OnGap, PositionPolicy
from tidemark.foundation.wording import count_text

CLOCK_TOLERANCE = 300.0
"""Seconds by which a hub must be younger than a checkpoint of an older version, for the checkpoint to count as foreign.
The two times come from different clocks; Kerberos tolerates as much between two clocks (RFC 4120: five minutes)."""


class Start(Struct, frozen=True):
    """Where to begin: at `sequence_number`, else at `time` (epoch seconds), else at `offset`, else at the earliest event.

    "latest" is the sequence number of the present last event, so that a connection lost before the first event skips
    nothing.
    """

    sequence_number: int | None = None
    offset: str = ""
    """The offset of the event with `sequence_number`, if known; without a number, that of the first event."""
    time: float | None = None
    inclusive: bool = False
    gap: int = 0
    """Unsettled events that retention removed."""
    reset: bool = False
    """Whether the stored checkpoint is void. It must be replaced first, because a store never moves a position back."""
    note: str = ""
    """One sentence for the log: why receiving begins here."""


class Expired(Struct, frozen=True):
    """Events that retention removed before they were received: sequence numbers `first` to `last`.

    `count` is an upper bound, because some missing numbers may never have been assigned.
    """

    first: int
    last: int
    count: int

    def __str__(self) -> str:
        return (
            f"retention took {count_text(self.count, 'event')} before they were received, sequence numbers {self.first} to"
            f" {self.last}: the consumer is slower than the hub forgets"
        )


def expired(delivered: int, state: PartitionState, received: Sequence[int] = ()) -> Expired | None:
    """The events after `delivered` that retention removed, by a state of the partition that was read later.

    `received` are the next sequence numbers, ascending. With them, only gaps before and between them count, because later
    events may be in transit. A number missing at or above the oldest event was never assigned, or was compacted.
    """
    begin = _oldest(state)
    gaps = []
    for number in received or (begin,):
        gap = range(delivered + 1, min(number, begin))
        if gap:
            gaps.append(gap)
        delivered = number
    return Expired(gaps[0].start, gaps[-1].stop - 1, sum(map(len, gaps))) if gaps else None


def refuse_gap(policy: PositionPolicy, partition: str, gap: object) -> None:
    """Raises PositionError if the policy forbids to continue without events that retention removed."""
    if policy.on_retention_gap is OnGap.FAIL:
        raise PositionError(
            f"partition {partition}: {gap}. Set CONSUMER_ON_RETENTION_GAP to 'continue' to go on without them"
        )


def refuse_skipped(partition: str, state: PartitionState, brought: int) -> None:
    """Raises PositionError if a host that keeps the position itself has skipped events of a hub that was created anew."""
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
    now: float = -inf,
) -> Start:
    """Where to begin in a partition. A `checkpoint` that is a text says why it cannot be read.

    A partition without a checkpoint and without an event since the time of the policy begins behind its last event, if that time is
    over (`now`): otherwise all that it has would count as lag for as long as nothing comes.

    `hub_created_at` is the service's time, epoch seconds. With the policy "latest", a partition that `came_later` than the
    consumer still begins at its earliest event, and one without a checkpoint begins at `since`, the start of the consumer
    group (0: unknown; None: it starts now). Nobody decided to skip those events. Raises PositionError, which names the
    setting that decides otherwise, for a checkpoint that cannot be trusted and for events that retention removed.
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
    if (
        checkpoint is None
        and isinstance(policy.start, float | int)
        and state.last_enqueued_at < policy.start <= now
    ):
        return _beginning("latest", state, f"no checkpoint, and no event since time {policy.start:.0f}")
    if checkpoint is None:
        return _beginning(policy.start, state, "no checkpoint")
    if isinstance(checkpoint, str):
        problem = f"partition {state.partition}: the checkpoint cannot be read: {checkpoint}"
        return _distrusted(
            policy.on_unreadable_checkpoint, "CONSUMER_ON_UNREADABLE_CHECKPOINT", problem, state
        )
    foreign = why_foreign(checkpoint, state, hub_created_at)
    if foreign:
        problem = f"partition {state.partition}: the checkpoint at {checkpoint.sequence_number} is not of this hub: {foreign}"
        return _distrusted(policy.on_foreign_checkpoint, "CONSUMER_ON_FOREIGN_CHECKPOINT", problem, state)
    return _after(checkpoint, state, policy)


def _beginning(where: str | float, state: PartitionState, why: str, *, reset: bool = False) -> Start:
    if where == "latest" and state.last_sequence_number > NOTHING_SETTLED:
        last = state.last_sequence_number
        return Start(last, state.last_offset, reset=reset, note=f"{why}: after the latest, {last}")
    if isinstance(where, float | int):
        return Start(time=float(where), inclusive=True, reset=reset, note=f"{why}: from time {where:.0f}")
    return Start(reset=reset, note=f"{why}: from the earliest event")


def _distrusted(decision: OnDistrust, setting: str, problem: str, state: PartitionState) -> Start:
    if decision is OnDistrust.FAIL:
        raise PositionError(
            f"{problem}. Set {setting} to 'earliest' (reads everything that the hub has) or 'latest' (leaves out what it"
            " has) to begin anew, or set the position with 'tidemark checkpoints set'"
        )
    return _beginning(decision.value, state, f"{problem}; {setting} says so", reset=True)


def identity_of(created_at: float | None) -> int:
    """The value of Origin.hub, in the milliseconds that the service reports; 0 means unknown."""
    return round(created_at * 1000) if created_at else 0


def origins_of(others: Iterable[Checkpoint | str], hub: int) -> list[Origin]:
    """The stored origins of partitions that certainly belong to `hub`."""
    return [
        other.origin for other in others if isinstance(other, Checkpoint) and hub and other.origin.hub == hub
    ]


def is_another_hub(others: Iterable[Checkpoint | str], hub: int) -> bool:
    """Whether all other checkpoints belong to another hub of the name, so that this one was created anew."""
    known = [other for other in others if isinstance(other, Checkpoint) and other.origin.hub]
    return bool(known) and bool(hub) and not origins_of(known, hub)


def later_positions(
    stored: Mapping[str, Checkpoint | str], elsewhere: Mapping[str, Checkpoint | str]
) -> list[str]:
    """Partitions whose position in another store is further, and was saved later; without any stored, all that it has."""
    partitions = []
    for partition, other in elsewhere.items():
        here = stored.get(partition)
        if isinstance(here, Checkpoint) and isinstance(other, Checkpoint):
            is_of_one_hub = 0 in {here.origin.hub, other.origin.hub} or here.origin.hub == other.origin.hub
            is_further = here.sequence_number < other.sequence_number and here.saved_at < other.saved_at
            if not (is_of_one_hub and is_further):
                continue
        elif stored:
            continue
        partitions.append(partition)
    return partitions


def changed_routes(stored: Mapping[str, Checkpoint | str], routes: str) -> dict[str, int]:
    """The positions of partitions that were claimed with other routes than the digest `routes` is of."""
    return {
        partition: checkpoint.sequence_number
        for partition, checkpoint in stored.items()
        if isinstance(checkpoint, Checkpoint) and routes and checkpoint.origin.routes not in {"", routes}
    }


NAMED = 4
"""Partitions that a text names. Chosen: more do not fit a line."""


def rerouted_text(positions: Mapping[str, int]) -> str:
    """That the routes have changed, at these positions of partitions."""
    ordered = sorted(positions, key=partition_order)
    named = [
        f"{'the first position' if positions[name] == NOTHING_SETTLED else f'event {positions[name]}'} of partition {name}"
        for name in ordered[:NAMED]
    ]
    others = count_text(len(ordered) - NAMED, "other partition")
    ends = ", ".join([*named, *([f"those of {others}"] if len(ordered) > NAMED else [])])
    return (
        f"the routes have changed: the new ones take what is not settled after {ends}, and nothing before it"
    )


def since_of(others: Iterable[Checkpoint | str], hub: int) -> float | None:
    """When the first partition of the hub was claimed; 0 if that is unknown, None if none was claimed."""
    times = [
        other.origin.since
        for other in others
        if isinstance(other, Checkpoint) and other.origin.hub in {0, hub}
    ]
    return min(times, default=None)


def came_later(partition: str, others: Iterable[Checkpoint | str], hub: int) -> bool:
    """Whether the hub got a partition after others were claimed for the first time.

    The number of partitions at that time decides, since partitions are only ever added. True if that number is unknown.
    """
    of_this_hub = [
        other.origin for other in others if isinstance(other, Checkpoint) and other.origin.hub in {0, hub}
    ]
    if not of_this_hub or not partition.isdecimal():
        return False
    return int(partition) >= min(origin.partitions for origin in of_this_hub)


def first_position(begin: Start, state: PartitionState, origin: Origin) -> Checkpoint:
    """The checkpoint that stores a beginning, so that the next start begins at the same event."""
    if begin.sequence_number is not None:
        settled = begin.sequence_number - begin.inclusive
        return Checkpoint(state.partition, settled, begin.offset, origin=origin)
    where = {"number": _oldest(state)} if begin.time is None else {"time": begin.time}
    return Checkpoint(state.partition, NOTHING_SETTLED, "", origin=structs.replace(origin, **where))


def is_of_hub(checkpoint: Checkpoint, state: PartitionState, hub_created_at: float | None) -> bool:
    """Whether a checkpoint may belong to this hub, by the rules of `start`."""
    return why_foreign(checkpoint, state, hub_created_at) is None


def why_foreign(checkpoint: Checkpoint, state: PartitionState, hub_created_at: float | None) -> str | None:
    """Why the checkpoint cannot belong to this hub, or None."""
    hub, theirs = identity_of(hub_created_at), checkpoint.origin.hub
    if hub and theirs and hub != theirs:
        return f"this hub was created at {_utc_text(hub)}, that of the checkpoint at {_utc_text(theirs)}"
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


def _utc_text(milliseconds: int) -> str:
    time = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _after(checkpoint: Checkpoint, state: PartitionState, policy: PositionPolicy) -> Start:
    position, origin = checkpoint.sequence_number, checkpoint.origin
    if position == NOTHING_SETTLED and origin.time is not None:
        return _beginning(origin.time, state, "nothing settled yet")
    if position == NOTHING_SETTLED and not checkpoint.beyond and origin.number is None:
        return _beginning("earliest", state, "nothing settled yet")
    if position == NOTHING_SETTLED and origin.number is not None:
        position = origin.number - 1  # no event before it exists, or is wanted
    begin = _oldest(state)
    settled = sum(max(0, min(last, begin - 1) - first + 1) for first, last in checkpoint.beyond)
    gap = max(0, begin - position - 1) - settled
    if begin <= position + 1:
        if checkpoint.sequence_number == NOTHING_SETTLED:
            below = f" below event {checkpoint.beyond[0][0]}" if checkpoint.beyond else " yet"
            return _beginning("earliest", state, f"nothing settled{below}")
        return Start(position, checkpoint.offset, note=f"after the checkpoint at {position}")
    note = f"the checkpoint is at {position}, the oldest event left is {begin}: retention took {count_text(gap, 'unsettled event')}"
    if gap:
        refuse_gap(policy, state.partition, note)
    return Start(sequence_number=begin, inclusive=True, gap=gap, note=note)


def _oldest(state: PartitionState) -> int:
    """The oldest event in the partition, or the next one if it is empty."""
    # In an empty partition `begin_sequence_number` is undefined, and no event up to the last one is left.
    return state.last_sequence_number + 1 if state.empty else state.begin_sequence_number
