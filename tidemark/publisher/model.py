"""Options, sets and saved state of producers (pure). Sequence numbers have 31 bits, as in the service, and wrap to 0."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from tidemark.foundation.pacing.retry_delay import asked_pause
from tidemark.publisher.errors import PublishSettingsError

MAX_SEQUENCE_NUMBER = 2**31 - 1
MAX_PRODUCER_GROUP_ID = 2**63 - 1
MAX_OWNER_LEVEL = 2**15 - 1


class PartitionPublishingOptions(Struct, frozen=True):
    """State that a producer sends to the service when it opens a partition. The service chooses what is None.

    `starting_sequence_number` is the last number that counts as published, as in the .NET and JavaScript clients: the first
    event gets the next one. It takes the value of PartitionPublishingProperties.last_published_sequence_number.
    A higher `owner_level` disconnects producers of the same group with a lower one. Raises PublishSettingsError.
    """

    producer_group_id: int | None = None
    owner_level: int | None = None
    starting_sequence_number: int | None = None

    def __post_init__(self) -> None:
        highest_of = (MAX_PRODUCER_GROUP_ID, MAX_OWNER_LEVEL, MAX_SEQUENCE_NUMBER)
        for name, highest in zip(self.__struct_fields__, highest_of, strict=True):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= highest:
                raise PublishSettingsError(f"{name} is {value}, accepted: 0 to {highest}, or None")


class PartitionPublishingProperties(Struct, frozen=True):
    """The state of a producer at a partition; None for what it does not know yet."""

    partition_id: str
    is_idempotent_publishing_enabled: bool
    producer_group_id: int | None
    owner_level: int | None
    last_published_sequence_number: int | None


class Claims(NamedTuple):
    """Identity that a producer claims when it attaches, or that the service answers. None: the service decides."""

    producer_group_id: int | None = None
    owner_level: int | None = None
    last_sequence_number: int | None = None


class Stamp(NamedTuple):
    """The sender of a set of events, and the number of its first event."""

    producer_group_id: int
    owner_level: int
    first: int


class StateKey(Struct, frozen=True):
    """Key of a saved state: a producer's name and one partition of a hub."""

    namespace: str
    hub: str
    producer: str
    partition_id: str


class PendingSet(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A set of events that was about to be sent. After a crash its outcome is unknown.

    `digest` is that of the events' content. `bookmark` is the application's position in its input *after* the set. `events`
    are the encoded ones, before and after the stamp, where the application asked to keep them.
    """

    first: int
    count: int
    digest: str
    bookmark: str | None = None
    events: tuple[tuple[bytes, bytes], ...] | None = None


class Holder(Struct, frozen=True, forbid_unknown_fields=True):
    """Who publishes with a saved state, since when (ISO 8601, by the clock of that machine: shown, never compared).

    Each process that goes on with a state whose holder has not ended in order takes a higher `epoch`, an owner level of the
    service: the service then refuses what the processes before it still send.
    """

    process: str = "a process of an earlier version"
    since: str = "an unknown time"
    epoch: int = 0


class ProducerRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """The saved state of one producer and partition. Unknown fields, of a later version, are refused: they may change the
    meaning of the others.

    `last_published` and `bookmark` are those of the last confirmed set. `writer` and `revision` identify the save, so that a
    save whose answer was lost is recognised. `hub_created_at` distinguishes the hub from a later one of the same name; None
    in states of earlier versions, and where the service does not return it. `is_released`: the holder has ended in order, so
    that nothing of it can still arrive at the service.
    """

    producer_group_id: int
    owner_level: int
    last_published: int
    bookmark: str | None
    pending: PendingSet | None
    writer: str
    revision: int
    hub_created_at: str | None = None
    holder: Holder = Holder()
    is_released: bool = False


class SavedState(Struct, frozen=True):
    """Where an application goes on after a restart.

    If there is a `pending` set, the application must send it first, as one set: exactly `pending.count` events, those of
    its input after `bookmark` up to `pending.bookmark`. The service drops them if it has stored them. `unended` is the process
    that published with the state before, if it has not ended in order: it crashed, or still runs and is fenced.
    """

    bookmark: str | None
    pending: PendingSet | None
    unended: Holder | None = None


class RetryPolicy(Struct, frozen=True):
    """How often and how long the producer tries to send one set of events. Durations in seconds.

    The defaults are those of azure-eventhub: 3 retries, delays that double from 0.8 s up to 120 s, 60 s per attempt and to
    open a link, and a delay of 4 s when the service is busy.
    """

    max_attempts: int = 4
    attempt_timeout: float = 60.0
    open_timeout: float = 60.0
    delay: float = 0.8
    max_delay: float = 120.0
    busy_delay: float = 4.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name == "max_attempts" and value < 1:
                raise PublishSettingsError(f"{name} is {value}, accepted: 1 or more")
            if value < 0 or (value == 0 and name.endswith("timeout")):
                accepted = "above 0" if name.endswith("timeout") else "from 0 on"
                raise PublishSettingsError(f"{name} is {value}, accepted: seconds {accepted}")

    def pause(self, attempt: int, *, busy: bool, retry_after: float | None = None) -> float:
        """Seconds to wait after the given attempt, 1-based, has failed."""
        if retry_after is not None:
            return asked_pause(retry_after, 0.0)
        if busy:
            return self.busy_delay
        return min(self.max_delay, self.delay * 2.0 ** min(attempt - 1, 30))


_NUMBERS = MAX_SEQUENCE_NUMBER + 1


def next_number(number: int) -> int:
    """The sequence number after this one."""
    return (number + 1) % _NUMBERS


def last_of(first: int, count: int) -> int:
    """The number of the last of `count` events, 1 or more."""
    return (first + count - 1) % _NUMBERS


def numbers_of(first: int, count: int) -> Iterator[int]:
    """The numbers of `count` events, the first one first."""
    for offset in range(count):
        yield (first + offset) % _NUMBERS


class EventSet(Protocol):
    """Events that are sent as one."""

    @property
    def sources(self) -> Sequence[object]:
        """The objects of the caller. The same objects are the same set."""

    @property
    def bookmark(self) -> str | None: ...

    def digest(self) -> str:
        """A hash of the content."""

    def kept(self) -> tuple[tuple[bytes, bytes], ...] | None:
        """The encoded events, if they are to be saved."""


class NumberedSet(Struct, frozen=True):
    """A set with its numbers. Without `sources` it was loaded after a restart."""

    pending: PendingSet
    sources: Sequence[object] | None = None

    @property
    def last(self) -> int:
        return last_of(self.pending.first, self.pending.count)

    def is_(self, events: EventSet) -> bool:
        saved = self.pending
        if saved.count != len(events.sources):
            return False
        if self.sources is not None:
            return all(mine is theirs for mine, theirs in zip(self.sources, events.sources, strict=True))
        return saved.bookmark == events.bookmark and saved.digest == events.digest()
