"""Which messages share a batch: contiguous runs, as long as the limit allows, and what a refusal teaches.

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
SHRINK = 0.95  # of the sample this sender came from: "reduce max batch size to 95% of current value"


class Limits(Struct, frozen=True):
    """What may be sent at once, in bytes, as announced and as learned since.

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


def learned(limits: Limits, *, count: int, measured: int, said: int | None, allowed: int | None) -> Limits:
    """The limits after the service refused a batch of `count` messages and `measured` bytes as too large.

    `said` and `allowed` are the size and the limit in the service's own words, where it gives them. A larger header
    is remembered, a smaller limit adopted; where neither explains the refusal, the limit becomes 95 % of what was
    refused. Every refusal changes the limits so that the same batch is not formed again.
    """
    limit = limits.batch if allowed is None else min(limits.batch, allowed)
    header = limits.header if said is None else max(limits.header, -(-(said - measured) // count))
    counted = measured + header * count
    return replace(limits, batch=limit if counted > limit else max(1, int(counted * SHRINK)), header=header)


def learned_singly(limits: Limits, *, size: int, allowed: int | None) -> Limits:
    """The limits after the service refused a message of `size` bytes that was sent singly."""
    message = limits.message if allowed is None else min(limits.message, allowed)
    if size + limits.header <= message:
        message = int((size + limits.header) * SHRINK)
    return replace(limits, message=max(0, message))


def best_fit(items: Sequence[Outgoing], limits: Limits) -> set[int]:
    """Positions of the messages that share a batch with the first of these, whatever their order: the largest that
    still fit. The first one always goes, so that none waits for ever.
    """
    room = limits.batch - limits.of_run(items[:1])
    chosen = {0}
    for position in sorted(range(1, len(items)), key=lambda each: -items[each].cost):
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

    def full(self, limits: Limits) -> bool:
        """Whether the longest batch is known: there is a message behind it."""
        whole = self.cost + limits.header * len(self.items) + self.items[0].envelope
        return len(self.items) > 1 and (whole > limits.batch or len(self.items) > limits.count)


class Lanes:
    """Messages that wait to be sent: one lane for each session id or partition key, or one for all if `mixed`.

    An entity with partitions takes only one key per batch. Order is kept within a lane, and a lane without a key is
    a lane, too: messages that have none stay in the order in which they came. Not `ordered`, a batch takes of its
    lane what fills it best.
    """

    def __init__(self, *, mixed: bool, ordered: bool = True) -> None:
        self._mixed = mixed
        self._ordered = ordered
        self._lanes: defaultdict[str | None, _Lane] = defaultdict(_Lane)
        self._full: dict[str | None, None] = {}  # an ordered set, so that no lane is looked for
        self.size = 0  # bytes, of all that waits

    def __len__(self) -> int:
        return sum(len(lane.items) for lane in self._lanes.values())

    def __iter__(self) -> Iterator[Outgoing]:
        """In the order in which they came."""
        return iter(sorted((item for lane in self._lanes.values() for item in lane.items), key=_index))

    def add(self, item: Outgoing, limits: Limits, *, first: bool = False) -> None:
        """As the last of its lane, or the first."""
        key = None if self._mixed else item.key
        lane = self._lanes[key]
        lane.items.appendleft(item) if first else lane.items.append(item)
        lane.cost += item.cost
        self.size += item.size
        if lane.full(limits):
            self._full[key] = None

    def put_back(self, items: Sequence[Outgoing], limits: Limits) -> None:
        """What `take` gave comes first again."""
        for item in reversed(items):
            self.add(item, limits, first=True)

    def take(self, limits: Limits) -> list[Outgoing]:
        """The next batch: of a lane that has more than a batch, else of the one that has waited longest."""
        if not self._lanes:
            return []
        key = self._next_lane(limits)
        lane = self._lanes[key]
        items = self._take_from(lane, limits)
        lane.cost -= sum(item.cost for item in items)
        self.size -= sum(item.size for item in items)
        if not lane.items:
            del self._lanes[key]
        if not lane.items or not lane.full(limits):
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
            if self._lanes[key].full(limits):
                return key
            del self._full[key]  # the limits have changed since
        return min(self._lanes, key=lambda each: _index(self._lanes[each].items[0]))
