"""Chooses which messages share a batch: runs of neighbours, as long as the limits allow. Learns limits from refusals.

Pure. Sizes are bytes on the wire, as measured by the SDK's own codec (`tidemark.publisher.service_bus.sdk.message_sizes`).

Taking each run as long as it fits (next fit, in order) gives the fewest batches that any cutting of the sequence into
contiguous runs can have, provided that the envelope does not grow when a batch begins at a later message. With ids of
equal length, as the sender assigns them, it does not. The bounds that this gives are in
docs/publishing-service-bus.md.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from tidemark.publisher.service_bus.core.send_report import Outgoing

MAX_COUNT = 4500
"""Messages in a batch: the service refuses more, whatever their size (azure-sdk-for-js issue 12041)."""

_index = attrgetter("index")
SHRINK = 0.95  # from the sample that this sender is based on: "reduce max batch size to 95% of current value"


class Limits(Struct, frozen=True):
    """The largest batch and message, in bytes, as announced by the service and as learned since.

    `batch` is for a batch on the wire, `message` for a message that is sent singly (0: nothing can be), `header` what
    the service counts for every message beyond what was measured.
    """

    batch: int
    message: int
    header: int = 0
    count: int = MAX_COUNT

    def __post_init__(self) -> None:
        if self.batch <= 0 or self.message < 0:
            raise ValueError(
                f"limits are {self.batch} and {self.message} bytes, accepted: more than 0, and 0 or more"
            )

    def of_run(self, items: Iterable[Outgoing]) -> int:
        """The size of a batch as the service is expected to count it."""
        return sum(
            item.cost + self.header + (0 if place else item.envelope) for place, item in enumerate(items)
        )

    def batchable(self, item: Outgoing) -> bool:
        """Whether a batch of this message alone fits."""
        return item.envelope + item.cost + self.header <= self.batch

    def sendable(self, item: Outgoing) -> bool:
        """Whether the message can go at all, in a batch or singly."""
        return self.batchable(item) or item.size + self.header <= self.message


def learn_from_refusal(
    limits: Limits, *, count: int, measured: int, counted: int | None, allowed: int | None
) -> Limits:
    """The limits after the service refused a batch of `count` messages and `measured` bytes as too large.

    `counted` and `allowed` are the size and the limit in the service's answer, if it has them. They may raise the header or
    lower the limit; if neither explains the refusal, the limit becomes 95 % of the refused size. Every refusal changes the
    limits so that the same batch is not formed again.
    """
    limit = limits.batch if allowed is None else min(limits.batch, allowed)
    header = limits.header if counted is None else max(limits.header, -(-(counted - measured) // count))
    size = measured + header * count
    return replace(limits, batch=limit if size > limit else max(1, int(size * SHRINK)), header=header)


def learn_from_single_refusal(limits: Limits, *, size: int, allowed: int | None) -> Limits:
    """The limits after the service refused a message of `size` bytes that was sent singly."""
    message = limits.message if allowed is None else min(limits.message, allowed)
    if size + limits.header <= message:
        message = int((size + limits.header) * SHRINK)
    return replace(limits, message=max(0, message))


def best_fit(items: Sequence[Outgoing], limits: Limits) -> set[int]:
    """Positions of the messages for the next batch, in any order: the first one, then the largest that still fit.

    The first is always chosen, so that no message waits for ever.
    """
    room = limits.batch - limits.of_run(items[:1])
    chosen = {0}
    for position in sorted(range(1, len(items)), key=lambda position: -items[position].cost):
        if len(chosen) == limits.count:
            break
        cost = items[position].cost + limits.header
        if cost <= room:
            room -= cost
            chosen.add(position)
    return chosen


def run_length(items: Iterable[Outgoing], limits: Limits) -> int:
    """How many of these messages, from the first on, make the longest batch that fits; at least 1 if there is one."""
    total = length = 0
    for item in items:
        total += item.cost + limits.header + (0 if length else item.envelope)
        if length and (total > limits.batch or length >= limits.count):
            return length
        length += 1
    return length


@dataclass(slots=True)
class _Lane:
    items: deque[Outgoing] = field(default_factory=deque)
    cost: int = 0

    def is_full(self, limits: Limits) -> bool:
        """Whether the next batch is full, which needs a message behind it."""
        size = self.cost + limits.header * len(self.items) + self.items[0].envelope
        return len(self.items) > 1 and (size > limits.batch or len(self.items) > limits.count)


class Lanes:
    """Messages that wait to be sent: one lane for each session id or partition key, or one for all if `mixed`.

    An entity with partitions accepts only one key per batch. Each lane keeps its order; messages without a key form a
    lane, too. Unless `ordered`, a batch takes the messages of its lane that fill it best.
    """

    def __init__(self, *, mixed: bool, ordered: bool = True) -> None:
        self._mixed = mixed
        self._ordered = ordered
        self._lanes: defaultdict[str | None, _Lane] = defaultdict(_Lane)
        self._full: dict[str | None, None] = {}  # an ordered set, which saves a search over all lanes
        self.size = 0  # bytes of all waiting messages

    def __len__(self) -> int:
        return sum(len(lane.items) for lane in self._lanes.values())

    def __iter__(self) -> Iterator[Outgoing]:
        """In the order in which they came."""
        return iter(sorted((item for lane in self._lanes.values() for item in lane.items), key=_index))

    def add(self, item: Outgoing, limits: Limits, *, first: bool = False) -> None:
        """Append the message to its lane, or put it first."""
        key = None if self._mixed else item.key
        lane = self._lanes[key]
        lane.items.appendleft(item) if first else lane.items.append(item)
        lane.cost += item.cost
        self.size += item.size
        if lane.is_full(limits):
            self._full[key] = None

    def put_back(self, items: Sequence[Outgoing], limits: Limits) -> None:
        """Put messages that `take` returned in front again."""
        for item in reversed(items):
            self.add(item, limits, first=True)

    def take(self, limits: Limits) -> list[Outgoing]:
        """Remove the next batch, from a lane with a full batch, or else from the lane that has waited longest."""
        if not self._lanes:
            return []
        key = self._next_lane(limits)
        lane = self._lanes[key]
        items = self._take_from(lane, limits)
        lane.cost -= sum(item.cost for item in items)
        self.size -= sum(item.size for item in items)
        if not lane.items:
            del self._lanes[key]
        if not lane.items or not lane.is_full(limits):
            self._full.pop(key, None)
        return items

    def _take_from(self, lane: _Lane, limits: Limits) -> list[Outgoing]:
        if self._ordered:
            return [lane.items.popleft() for _ in range(run_length(lane.items, limits))]
        waiting = list(lane.items)
        taken = best_fit(waiting, limits)
        lane.items = deque(item for position, item in enumerate(waiting) if position not in taken)
        return [waiting[position] for position in sorted(taken)]

    def _next_lane(self, limits: Limits) -> str | None:
        for key in list(self._full):
            if self._lanes[key].is_full(limits):
                return key
            del self._full[key]  # the limits have changed since
        return min(self._lanes, key=lambda key: _index(self._lanes[key].items[0]))
