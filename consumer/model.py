"""The values of the consumer. Times of events and checkpoints are epoch seconds (UTC); `now`, deadlines and delays are monotonic.

Structs that exist once per event are hidden from the garbage collector (`gc=False`). Tens of thousands of them wait at a
time, the collector would walk them again and again, and nothing that they hold refers back to them.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct, structs

from consumer.options import BatchLimits
from consumer.seeks import Seek
from consumer.versions import Change, may_follow
from tidemark.foundation.sanitize import sanitize_line

PER_PROPERTY = 100
"""Bytes that an entry of a dictionary or list takes, besides its name and value."""

NOTHING_SETTLED = -1
"""The low-water mark of a partition without settled events: sequence numbers begin at 0."""


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
    """Why the message has no body of bytes (it is an AMQP value, for example), or None. `body` then describes it as text."""
    incarnation: str = ""
    """The incarnation of its hub, which is part of keys made of positions (see Origin); '' for the first hub of a name."""
    content_type: str | None = None
    """The `content-type` of the AMQP message, such as `avro/binary+<schema id>`; None if its sender set none."""
    content_encoding: str | None = None
    """The `content-encoding` of the AMQP message, such as `gzip`; None if its sender set none."""
    property_types: Mapping[str, str] = {}  # the AMQP types of properties whose value does not say it

    @property
    def place(self) -> str:
        """The partition in keys that outlive the hub: `0`, or `0@1764165000123` in a hub that was created anew."""
        return f"{self.partition}@{self.incarnation}" if self.incarnation else self.partition

    @property
    def size(self) -> int:
        """Bytes of memory of body, partition key, content type and properties. Other parts of a message are not stored."""
        size = len(self.body) + len(self.content_type or "") + len(self.partition_key or "")
        return size + _size_of(self.properties) if self.properties else size


def _size_of(value: Any) -> int:
    if isinstance(value, Mapping):
        return sum(PER_PROPERTY + _size_of(name) + _size_of(member) for name, member in value.items())
    if isinstance(value, list | tuple):
        return sum(PER_PROPERTY + _size_of(member) for member in value)
    return sys.getsizeof(value)


class Rejection(Struct, frozen=True):
    """Why an event can never be written. `reason` is a word for counting, `detail` a sentence that is shown: a line, without secrets."""

    reason: str
    detail: str

    def __post_init__(self) -> None:
        structs.force_setattr(self, "detail", sanitize_line(self.detail))


class Dropped(Struct, frozen=True):
    """Why an event, or one of its documents, is not to be written. It is settled and counted by `reason`, without a dead letter."""

    reason: str


class Operation(StrEnum):
    """What a write does to the document of its key."""

    UPSERT = "upsert"
    CREATE = "create"  # an existing document is left as it is
    REPLACE = "replace"  # a missing document is not created
    DELETE = "delete"
    PATCH = "patch"


class PatchStep(Struct, frozen=True):
    """One change of a patch. `op` is set, append, increment or remove; `path` is such as `/order/total`."""

    op: str
    path: str
    value: Any = None


class Write(Struct, frozen=True, gc=False):
    """One change that an event asks for. An event may ask for several, in order."""

    event: Event
    document: dict[str, Any] | None = None
    """Decoded and transformed. None: the sink reads the body itself, or needs no document."""
    index: int = 0
    """Which document of the event it is, from 0. A filter before it changes nothing in it, so that an id made of it stays."""
    sink: str = ""
    """The name of the sink; '' for the only one."""
    operation: Operation = Operation.UPSERT
    patch: tuple[PatchStep, ...] = ()
    ttl: int | None = None
    """Seconds until the service deletes the document; None for the container's default."""
    id: str | None = None
    """The document's id; None for the id strategy of the sink."""
    version: int | float | str | None = None
    """What the version guard compares; None for the event's sequence number within its hub's incarnation."""
    content: bytes | None = None
    """What a sink forwards that forwards bytes; None for the body as it came."""
    partition_key: tuple[Any, ...] | None = None
    """The values of the container's partition key, in the order of its paths; None: those of the document."""


Mapped = Sequence[Write | Dropped | Rejection] | Dropped | Rejection
"""What an event becomes. A Dropped or Rejection in a sequence concerns one document, otherwise all of the event."""


class Record(Struct, frozen=True, gc=False):
    """A write prepared for its sink, or the reason why it cannot be written."""

    event: Event
    key: str
    """Records of equal keys may change the same document or row: they are written in the order of arrival."""
    payload: bytes = b""
    """What the sink writes; for Cosmos the document as UTF-8 JSON."""
    partition_key: str = ""
    """For Cosmos the partition key as JSON array text, such as '["LGA"]'."""
    route: str = ""
    """Selects the lane of the sink; for Cosmos the effective partition key, upper-case hex."""
    rejection: Rejection | None = None
    dropped: Dropped | None = None  # why nothing is written, if that is wanted
    operation: Operation = Operation.UPSERT
    sink: str = ""
    index: int = 0
    of: int = 1
    """How many records the event has. They are next to each other wherever records are passed on."""
    change: Change | None = None  # what it asks for besides an upsert of its payload

    @property
    def size(self) -> int:
        """Bytes of memory that the record takes."""
        return self.event.size + len(self.payload)

    @property
    def number(self) -> tuple[int, int]:  # unique among the records of a partition for one sink
        return self.event.sequence_number, self.index

    def replaces(self, earlier: Record) -> bool:
        """Whether writing only this record has the effect of writing both, the earlier one first."""
        is_whole = self.operation in {Operation.UPSERT, Operation.DELETE}
        return is_whole and may_follow(self.change, earlier.change)


class Outcome(StrEnum):
    """What became of the write of one record."""

    WRITTEN = "written"
    RETRY = "retry"  # throttled, transient or unknown: never settled
    REJECT = "reject"  # this record can never be written as it is


class WriteResult(Struct, frozen=True, gc=False):
    """The result of writing one record. `status` is the service's status code, 0 without an answer."""

    outcome: Outcome
    status: int = 0
    reason: str = ""
    retry_after: float | None = None
    """Seconds that the service asked to wait, of which five minutes count; None means that the retry rule decides."""
    request_units: float = 0.0
    rerouted: bool = False
    """The lane no longer holds this record (a split): the routes were refreshed."""
    rejection: Rejection | None = None
    """Why the record is rejected, where the sink says more than `status` and `reason`."""

    @property
    def throttled(self) -> bool:
        return self.status == 429

    @property
    def unserved(self) -> bool:
        """Whether the service was busy, failing, silent or refused access, so that the result says nothing about this record."""
        is_retry = self.outcome is Outcome.RETRY and not self.rerouted
        return is_retry and (self.status in _UNSERVED or self.status >= 500)

    @property
    def reached(self) -> bool:
        """Whether the service answered this instance as it answers others; a busy one does."""
        return not self.unserved or self.status == 429


_UNSERVED = frozenset({0, 401, 403, 408, 429})


class Batch(Struct, frozen=True):
    """Records to be written in one call.

    A transactional sink gets the records of one partition in order, rejected ones too. Another sink gets records of one
    lane with different keys.
    """

    batch_id: int
    lane: str
    records: tuple[Record, ...]


class Routes(Struct, frozen=True):
    """Assigns records to lanes, each with batches, congestion control and throttling of its own."""

    lower_bounds: tuple[str, ...] = ("",)
    """Sorted. A lane has the routes from its bound up to the next bound."""
    lanes: tuple[str, ...] = ("all",)
    by_partition: bool = False
    """Whether each Event Hubs partition is a lane, whose records are written in order. Such a sink has `attach`, `detach` and `replay`."""
    appends: bool = False  # a record written again stands there twice: a replay writes none that the sink has
    batches: BatchLimits | None = None  # how batches of these lanes are cut; None as the settings say
    of_sinks: Mapping[str, Routes] = {}  # by name the routes of several sinks, in place of all others

    def of(self, record: Record) -> Routes:
        """The routes of the record's sink."""
        return self.of_sinks.get(record.sink, self) if self.of_sinks else self

    def lane_of(self, record: Record) -> str:
        """With several sinks `<sink>/<lane>`."""
        if self.of_sinks:
            return f"{record.sink}/{self.of_sinks[record.sink].lane_of(record)}"
        if self.by_partition:
            return record.event.partition
        return self.lanes[bisect_right(self.lower_bounds, record.route) - 1]

    @property
    def is_ordered(self) -> bool:
        """Whether any of the sinks is ordered by partition."""
        return self.by_partition or any(routes.by_partition for routes in self.of_sinks.values())

    def has_lane(self, name: str) -> bool:
        sink, _, lane = name.partition("/")
        routes = self.of_sinks.get(sink)
        return self.by_partition or name in self.lanes if routes is None else routes.has_lane(lane)


class Stream(Struct, frozen=True):
    """Identifies positions and dead letters: the fully qualified namespace, the event hub, and the consumer group.

    Stored names are lower-case, because the service ignores case.
    """

    namespace: str
    hub: str
    consumer_group: str

    def folder(self, kind: str) -> str:
        """The prefix of the blob names of a kind, `checkpoint` or `ownership` for example."""
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
    """Decisions of the first claim of a partition, stored before its first event, until an operator sets the position."""

    hub: int = 0
    """When the hub was created, milliseconds since 1970 by the service; 0 means unknown, as in a checkpoint of another program."""
    partitions: int = 0
    """How many partitions the hub had then; 0 means unknown. Partitions added later begin at their earliest event."""
    incarnation: str = ""
    """`hub` as text. Keys made of positions contain it, so that events of a hub that was created anew overwrite nothing of
    the hub before. '' for the first hub of a name, whose keys are plain."""
    number: int | None = None  # the oldest event then, where receiving begins while nothing is settled
    time: float | None = None
    """Instead of `number`: the enqueued time from which on events are received, epoch seconds."""
    since: float = 0.0
    """When the consumer group claimed the first partition of this hub, epoch seconds by the clock of that consumer; 0 means
    unknown. "latest" is the latest event then, also for a partition that is claimed later or whose checkpoint was removed."""
    seeks: tuple[Seek, ...] = ()  # the last orders of operators, the newest one last
    routes: str = ""  # a digest of the file's routes; unknown without a file
    rerouted: int | None = None  # the position at which they were found to have changed last


class Checkpoint(Struct, frozen=True):
    """A position: every event up to `sequence_number` is settled, and the events in `beyond`.

    `beyond` has runs (first, last) of settled sequence numbers above the low-water mark, ascending and not adjacent.
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
    """A checkpoint that a claim stores, if the stored one is still `found`.

    It is the first position of a partition, a position with an origin that an older version did not store, or the new
    position that a setting such as CONSUMER_ON_FOREIGN_CHECKPOINT asks for.
    """

    found: Checkpoint | str | None
    """The checkpoint as CheckpointStore.load_all returned it."""
    by: Checkpoint


class Claim(Struct, frozen=True):
    """The right to write a partition's checkpoint, granted by a checkpoint store.

    `epoch` grows with every claim of the partition by any consumer. A save under an older epoch is refused.
    """

    partition: str
    owner: str
    epoch: int
    checkpoint: Checkpoint | None = None
    replaced: bool = False
    """Whether the wanted replacement was stored; `checkpoint` is then that replacement."""

    @property
    def origin(self) -> Origin:
        return self.checkpoint.origin if self.checkpoint else Origin()


class Lease(Struct, frozen=True):
    """Who receives a partition. `renewed_at` is the store's own time, epoch seconds; an owner of '' means none."""

    partition: str
    owner: str
    renewed_at: float
    token: str
    """Changes with every write: a claim is a compare-and-set on it."""


def dead_letter_id(hub: str, consumer_group: str, place: str, number: object) -> str:
    """Equal for every delivery of an event, and different for an event of another hub of that name."""
    return f"{hub}~{consumer_group}~{place}~{number}"


class DeadLetter(Struct, frozen=True):
    """A rejected event, with all that is needed to replay it. `records` names those of its `of` records that are not written (see
    name_of); empty: unknown, or one. `epoch` is the claim that stored it, if it is parked or has several records; 0: unknown.
    `first` is when and why it was rejected at first, if a replay was since.
    """

    hub: str
    consumer_group: str
    event: Event
    rejection: Rejection
    attempts: int
    failed_at: float
    records: tuple[str, ...] = ()
    of: int = 1
    epoch: int = 0
    first: str = ""

    @property
    def id(self) -> str:
        return dead_letter_id(self.hub, self.consumer_group, self.event.place, self.event.sequence_number)


class PartitionState(Struct, frozen=True):
    """The state of a partition as the hub reports it. `last_sequence_number` is -1 if it never had an event."""

    partition: str
    begin_sequence_number: int
    last_sequence_number: int
    last_offset: str
    last_enqueued_at: float
    empty: bool
