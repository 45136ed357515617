"""Values of the publisher of events (pure). Numbers are the service's: a sequence number has 31 bits."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from tidemark.publisher.errors import PublishSettingsError

MAX_SEQUENCE_NUMBER = 2**31 - 1
MAX_PRODUCER_GROUP_ID = 2**63 - 1
MAX_OWNER_LEVEL = 2**15 - 1


class PartitionPublishingOptions(Struct, frozen=True):
    """State that a producer tells the service when it opens a partition. None leaves it to the service.

    `starting_sequence_number` is, as in the .NET and JavaScript clients, the last number that counts as published:
    the first event gets the next one. It is what PartitionPublishingProperties.last_published_sequence_number gave.
    A higher `owner_level` shuts out producers of the same group with a lower one. Raises PublishSettingsError.
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
    """What a producer knows of its own publishing to a partition; None where it does not know yet."""

    partition_id: str
    is_idempotent_publishing_enabled: bool
    producer_group_id: int | None
    owner_level: int | None
    last_published_sequence_number: int | None


class Claims(NamedTuple):
    """Who a producer says it is when it attaches, or who the service says it is. None: the service decides."""

    producer_group_id: int | None = None
    owner_level: int | None = None
    last_sequence_number: int | None = None


class Stamp(NamedTuple):
    """Who sends a set of events, and the number of the first; the others follow."""

    producer_group_id: int
    owner_level: int
    first: int


class StateKey(Struct, frozen=True):
    """Whose state is saved: one producer by name, and one partition of its hub."""

    namespace: str
    hub: str
    producer: str
    partition_id: str


class PendingSet(Struct, frozen=True, forbid_unknown_fields=True):
    """A set of events that was about to be sent: after a crash nobody knows whether it was.

    `digest` is of the events' content. `bookmark` is the application's position in its input *after* the set.
    """

    first: int
    count: int
    digest: str
    bookmark: str | None = None


class ProducerRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """The state of one producer and partition as it is saved. Fields that only a later version knows are refused: they may
    change what the others mean.

    `last_published` and `bookmark` are of what was confirmed. `writer` and `revision` tell who wrote it: an answer of
    the store that was lost is recognised by them. `hub_created_at` tells the hub from a later one of the same name; None
    in states of earlier versions, and where the service does not say it.
    """

    producer_group_id: int
    owner_level: int
    last_published: int
    bookmark: str | None
    pending: PendingSet | None
    writer: str
    revision: int
    hub_created_at: str | None = None


class SavedState(Struct, frozen=True):
    """Where an application goes on after a restart.

    It has to send `pending` first, if there is one: exactly `pending.count` events, those of its input after
    `bookmark` up to `pending.bookmark`, as one set. The service drops them if it has them.
    """

    bookmark: str | None
    pending: PendingSet | None


class RetryPolicy(Struct, frozen=True):
    """How often and how long one set of events is tried. Durations in seconds.

    Defaults are the SDK's: 3 retries, from 0.8 s on, doubling up to 120 s, 60 s per attempt and to open a link; and
    4 s where the service is busy.
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
            return retry_after
        if busy:
            return self.busy_delay
        return min(self.max_delay, self.delay * 2.0 ** min(attempt - 1, 30))
