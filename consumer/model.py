"""The values of the consumer. Times of events and checkpoints are epoch seconds (UTC); `now`, deadlines and
delays inside the pipeline are seconds of a monotonic clock.

What exists per event is kept out of the garbage collector's sight (`gc=False`): tens of thousands wait at a time, it
would walk them all again and again, and nothing they hold refers back to them.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, structs

from tidemark.foundation.sanitize import without_secrets

PER_PROPERTY = 100
"""Bytes that a place in a dictionary takes, beside the name and the value."""

NOTHING_SETTLED = -1
"""The low-water mark of a partition of which nothing is settled: sequence numbers begin at 0."""


class Event(Struct, frozen=True, gc=False):
    """One event as received. Order within a partition is by `sequence_number`; `offset` is an opaque string."""

    partition: str
    sequence_number: int
    offset: str
    enqueued_at: float
    body: bytes
    partition_key: str | None = None
    properties: Mapping[str, Any] = {}
    unreadable: str | None = None
    """Why the message has no body of bytes (an AMQP value, say), or None. `body` is then its closest rendering."""
    incarnation: str = ""
    """Of its hub, where keys made of positions need it (see Origin); '' for the first hub of its name."""

    @property
    def place(self) -> str:
        """The partition in keys that outlive the hub: `0`, or `0@1764165000123` in a hub that was created anew."""
        return f"{self.partition}@{self.incarnation}" if self.incarnation else self.partition

    @property
    def size(self) -> int:
        """Bytes of memory that grow with what was sent: of body, partition key and properties.

        Nothing else of a message is kept: neither other annotations nor its message id.
        """
        size = len(self.body)
        if self.partition_key is not None:
            size += len(self.partition_key)
        return size + _size_of(self.properties) if self.properties else size


def _size_of(value: Any) -> int:
    if isinstance(value, Mapping):
        return sum(PER_PROPERTY + _size_of(name) + _size_of(each) for name, each in value.items())
    if isinstance(value, list | tuple):
        return sum(PER_PROPERTY + _size_of(each) for each in value)
    return sys.getsizeof(value)


class Rejection(Struct, frozen=True):
    """Why an event can never be written. `reason` is one word for counting, `detail` a sentence; what is secret in it is
    hidden, as it is kept with the event and shown.
    """

    reason: str
    detail: str

    def __post_init__(self) -> None:
        structs.force_setattr(self, "detail", without_secrets(self.detail))


class Record(Struct, frozen=True, gc=False):
    """An event made ready for its sink, or the reason why it cannot be."""

    event: Event
    key: str
    """Records of equal keys may change the same document or row: they are written in the order of arrival."""
    payload: bytes = b""
    """What the sink writes; for Cosmos the document as UTF-8 JSON."""
    partition_key: str = ""
    """For Cosmos the partition key as JSON array text, such as '["LGA"]'."""
    route: str = ""
    """Where it belongs among the sink's lanes; for Cosmos the effective partition key, upper-case hex."""
    rejection: Rejection | None = None

    @property
    def size(self) -> int:
        """Bytes held in memory for it."""
        return self.event.size + len(self.payload)


class Outcome(StrEnum):
    WRITTEN = "written"
    RETRY = "retry"  # throttled, transient or unknown: never settled
    REJECT = "reject"  # this record can never be written as it is


class WriteResult(Struct, frozen=True, gc=False):
    """What became of one record. `status` is the service's status code, 0 where there was no answer."""

    outcome: Outcome
    status: int = 0
    reason: str = ""
    retry_after: float | None = None
    """Seconds the service asked to wait; None means the retry rule decides."""
    request_units: float = 0.0
    rerouted: bool = False
    """The lane no longer holds this record (a split): the routes were refreshed."""

    @property
    def throttled(self) -> bool:
        return self.status == 429

    @property
    def unserved(self) -> bool:
        """The service was busy, failing, silent or closed to us: no word about this record."""
        if self.outcome is not Outcome.RETRY or self.rerouted:
            return False
        return self.status in _UNSERVED or self.status >= 500


_UNSERVED = frozenset({0, 401, 403, 408, 429})


class Batch(Struct, frozen=True):
    """Records to be written in one call. A transactional sink gets those of one partition, in order, the rejected
    ones among them; any other sink gets records of one lane and of different keys.
    """

    batch_id: int
    lane: str
    records: tuple[Record, ...]


class Routes(Struct, frozen=True):
    """Which lane a record belongs to. A lane is written independently of the others: it has its own batches,
    its own congestion control and its own throttling.
    """

    lower_bounds: tuple[str, ...] = ("",)
    """Sorted; a lane holds the routes from its bound up to the next one."""
    lanes: tuple[str, ...] = ("all",)
    by_partition: bool = False
    """Each Event Hubs partition is its own lane: a transactional sink."""

    def lane_of(self, record: Record) -> str:
        if self.by_partition:
            return record.event.partition
        return self.lanes[bisect_right(self.lower_bounds, record.route) - 1]


class Stream(Struct, frozen=True):
    """Whose positions and dead letters: the fully qualified namespace, the event hub, and the consumer group. Service Bus
    does not tell upper from lower case.
    """

    namespace: str
    hub: str
    consumer_group: str

    def folder(self, kind: str) -> str:
        """The beginning of the names of the blobs of a kind, `checkpoint` or `ownership`."""
        return f"{self.namespace}/{self.hub}/{self.consumer_group}/{kind}/".lower()

    def blob(self, kind: str, partition: str) -> str:
        return f"{self.folder(kind)}{partition}".lower()

    @property
    def topic(self) -> str:
        return f"{self.namespace}/{self.hub}".lower()

    @property
    def keys(self) -> dict[str, str]:
        """The first columns of the keys of SQL tables."""
        return {"Topic": self.topic, "ConsumerGroup": self.consumer_group.lower()}


def split_place(place: str) -> tuple[str, str]:
    """Partition and incarnation of what `Event.place` gave."""
    partition, _, incarnation = place.partition("@")
    return partition, incarnation


class Origin(Struct, frozen=True, omit_defaults=True):
    """What was decided when a partition was claimed for the first time. It is stored before the first event is
    received, and holds until an operator decides anew.
    """

    hub: int = 0
    """When the hub was created, milliseconds since 1970 by the service: two hubs of one name differ in it. 0: not
    known, as in a checkpoint of an older version or of another program."""
    partitions: int = 0
    """How many the hub had then; 0: not known. Those that came later begin at their earliest event."""
    incarnation: str = ""
    """What keys made of positions carry, so that a hub created anew overwrites nothing of the one before it: `hub`
    as text. '' for the first hub of its name, whose keys are plain."""
    number: int | None = None
    """The oldest event then: where receiving begins while nothing is settled."""
    time: float | None = None
    """Instead, the enqueued time from which on events are received, epoch seconds."""
    since: float = 0.0
    """When the consumer group claimed the first partition of this hub, epoch seconds by the clock of whoever did; 0: not
    known. "latest" means the latest event then, also for a partition that is claimed later, or whose checkpoint is gone."""


class Checkpoint(Struct, frozen=True):
    """A position: every event up to `sequence_number` is settled, and those in `beyond`.

    `beyond` holds runs (first, last) of settled sequence numbers above the low-water mark, ascending and apart.
    """

    partition: str
    sequence_number: int
    offset: str
    beyond: tuple[tuple[int, int], ...] = ()
    saved_at: float = 0.0
    owner: str = ""
    epoch: int = 0
    origin: Origin = Origin()


class Replacement(Struct, frozen=True):
    """What a claim stores at once, provided that `found` is still what is stored: the first position of a partition,
    what an older version did not store, or the position that an operator's setting begins anew at.
    """

    found: Checkpoint | str | None
    """As CheckpointStore.load_all gave it."""
    by: Checkpoint


class Claim(Struct, frozen=True):
    """The right to write a partition's checkpoint, as a checkpoint store gave it.

    `epoch` grows with every claim of a partition, by whomever; a save under an older one is refused.
    """

    partition: str
    owner: str
    epoch: int
    checkpoint: Checkpoint | None = None
    replaced: bool = False
    """Whether what the claimant wanted stored is: then it is `checkpoint`."""

    @property
    def origin(self) -> Origin:
        return self.checkpoint.origin if self.checkpoint else Origin()


class Lease(Struct, frozen=True):
    """Who receives a partition. `renewed_at` is the store's own time, epoch seconds; an owner of '' is nobody."""

    partition: str
    owner: str
    renewed_at: float
    token: str
    """Changes with every write: a claim is a compare-and-set on it."""


class DeadLetter(Struct, frozen=True):
    """A rejected event, with all that is needed to understand and to replay it."""

    hub: str
    consumer_group: str
    event: Event
    rejection: Rejection
    attempts: int
    failed_at: float

    @property
    def id(self) -> str:
        """The same for every delivery of the event, and of no event of another hub of that name."""
        return f"{self.hub}~{self.consumer_group}~{self.event.place}~{self.event.sequence_number}"


class PartitionState(Struct, frozen=True):
    """What the hub says of a partition. `last_sequence_number` is -1 in one that never had an event."""

    partition: str
    begin_sequence_number: int
    last_sequence_number: int
    last_offset: str
    last_enqueued_at: float
    empty: bool
