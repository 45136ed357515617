"""The hubs of a namespace: partitions, consumer groups, and the folder that they outlive a process in."""

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

import msgspec

from devstack.amqp.wire.errors import NOT_FOUND, AmqpError
from devstack.event_hubs.storage.events import SentEvent
from devstack.event_hubs.storage.idempotence import Idempotence, Publishers
from devstack.event_hubs.storage.log import Clock, PartitionLog, Retention
from devstack.event_hubs.storage.partition_keys import partition_of
from devstack.event_hubs.storage.readers import Readers
from devstack.event_hubs.storage.segments import Note, Segments

DEFAULT_GROUP = "$Default"
_DESCRIPTION = "hub.json"


class HubExistsError(Exception):
    """A hub of that name is there already."""


class _Description(msgspec.Struct, frozen=True):
    """What of a hub is not in the files of its partitions. Times in seconds."""

    name: str
    created_at: float
    partitions: int
    consumer_groups: list[str]
    retention_seconds: float | None
    retention_events: int | None
    opaque_offsets: bool = False
    idempotence: Idempotence = Idempotence()


class Partition:
    """A log, its idempotent publishers, its readers by consumer group, and who wants to know that it grew."""

    def __init__(self, id_: str, log: PartitionLog, publishers: Publishers) -> None:
        self.id = id_
        self.log = log
        self.publishers = publishers
        self.grown: set[Callable[[], None]] = set()
        self._readers: dict[str, Readers] = {}

    def readers(self, group: str) -> Readers:
        return self._readers.setdefault(group.lower(), Readers())

    def readers_by_group(self) -> list[tuple[str, Readers]]:
        return list(self._readers.items())

    def append(
        self, events: Sequence[SentEvent], enqueued_ms: int | None = None, note: Note | None = None
    ) -> int:
        """The sequence number of the first; readers are told."""
        first = self.log.append(events, enqueued_ms, note)
        for wake in list(self.grown):
            wake()
        return first


class Hub:
    """Names of consumer groups are case-insensitive; partitions are called "0", "1" and so on."""

    def __init__(self, description: _Description, clock: Clock, folder: Path | None, *, sync: bool) -> None:
        self.name = description.name
        self.created_at = description.created_at
        self.retention = Retention(description.retention_seconds, description.retention_events)
        self.opaque_offsets = description.opaque_offsets
        self.idempotence = description.idempotence
        self.partitions: list[Partition] = []
        self.consumer_groups: dict[str, str] = {}  # as written, by lower-case name
        self._clock = clock
        self._folder = folder
        self._sync = sync
        self._next_in_turn = 0
        self._last_producer_id = int(clock() * 1000)  # a hub of that name before this one had lower ids
        for group in (DEFAULT_GROUP, *description.consumer_groups):
            self.consumer_groups.setdefault(group.lower(), group)
        self._add_partitions(description.partitions)
        self._save()

    @property
    def partition_ids(self) -> list[str]:
        return [partition.id for partition in self.partitions]

    def partition(self, id_: str) -> Partition:
        """Raises AmqpError if there is none."""
        for partition in self.partitions:
            if partition.id == id_:
                return partition
        raise AmqpError(
            NOT_FOUND,
            f"The specified partition {id_!r} of {self.name!r} is invalid, there are {self.partition_ids}",
        )

    def choose(self, partition_key: str | None) -> Partition:
        """The partition of a key, or without one the next in turn."""
        if partition_key is not None:
            return self.partitions[partition_of(partition_key, len(self.partitions))]
        self._next_in_turn = (self._next_in_turn + 1) % len(self.partitions)
        return self.partitions[self._next_in_turn - 1]

    def add_partitions(self, count: int) -> None:
        self._add_partitions(count)
        self._save()

    def add_consumer_group(self, name: str) -> None:
        self.consumer_groups.setdefault(name.lower(), name)
        self._save()

    def check_group(self, name: str) -> None:
        """Raises AmqpError if there is no such consumer group."""
        if name.lower() not in self.consumer_groups:
            raise AmqpError(
                NOT_FOUND, f"The messaging entity '{self.name}/ConsumerGroups/{name}' could not be found."
            )

    def set_retention(self, retention: Retention) -> None:
        self.retention = retention
        for partition in self.partitions:
            partition.log.retention = retention
            partition.log.advance()
        self._save()

    def set_idempotence(self, settings: Idempotence) -> None:
        """For links that attach from now on, and for what all producers send."""
        self.idempotence = settings
        for partition in self.partitions:
            partition.publishers.settings = settings
        self._save()

    def close(self) -> None:
        """Release the files."""
        for partition in self.partitions:
            partition.log.close()

    def _add_partitions(self, count: int) -> None:
        for number in range(len(self.partitions), len(self.partitions) + count):
            folder = self._folder / str(number) if self._folder is not None else None
            segments = Segments(folder, sync=self._sync) if folder is not None else None
            log = PartitionLog(self._clock, self.retention, segments, opaque_offsets=self.opaque_offsets)
            self._last_producer_id = max(self._last_producer_id, *log.notes, 0)
            publishers = Publishers(self.idempotence, self._new_producer_id, log.notes, log.write_note)
            self.partitions.append(Partition(str(number), log, publishers))

    def _new_producer_id(self) -> int:
        self._last_producer_id += 1
        return self._last_producer_id

    def _save(self) -> None:
        if self._folder is None:
            return
        description = _Description(
            self.name,
            self.created_at,
            len(self.partitions),
            list(self.consumer_groups.values()),
            self.retention.seconds,
            self.retention.events,
            self.opaque_offsets,
            self.idempotence,
        )
        written = self._folder / f"{_DESCRIPTION}.new"
        written.write_bytes(msgspec.json.encode(description))
        written.replace(self._folder / _DESCRIPTION)


class Hubs:
    """All hubs by name, which is case-insensitive.

    `folder` keeps them: what was there before is there again, numbers included. Reading it
    takes 10 to 15 seconds per million events.
    """

    def __init__(self, clock: Clock = time.time, folder: Path | None = None, *, sync: bool = False) -> None:
        self._clock = clock
        self._folder = folder
        self._sync = sync
        self._hubs: dict[str, Hub] = {}
        for path in sorted(folder.glob(f"*/{_DESCRIPTION}")) if folder is not None else ():
            self._add(msgspec.json.decode(path.read_bytes(), type=_Description))

    def __iter__(self) -> Iterator[Hub]:
        return iter(list(self._hubs.values()))

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._hubs

    def hub(self, name: str) -> Hub:
        """Raises AmqpError if there is none."""
        if name.lower() not in self._hubs:
            raise AmqpError(NOT_FOUND, f"The messaging entity {name!r} could not be found.")
        return self._hubs[name.lower()]

    def create(
        self,
        name: str,
        partitions: int,
        consumer_groups: Iterable[str] = (),
        retention: Retention | None = None,
        *,
        opaque_offsets: bool = False,
        idempotence: Idempotence | None = None,
    ) -> Hub:
        """Raises HubExistsError if the name is taken, ValueError for a hub without partitions."""
        if name in self:
            raise HubExistsError(f"a hub named {name!r} exists already")
        if partitions < 1:
            raise ValueError(f"hub {name!r} has {partitions} partitions, accepted: 1 or more")
        kept = retention or Retention()
        self._remove_files(name)  # a kill in the middle of creating or deleting it may have left some
        groups = list(consumer_groups)
        return self._add(
            _Description(
                *(name, self._clock(), partitions, groups, kept.seconds, kept.events, opaque_offsets),
                idempotence or Idempotence(),
            )
        )

    def delete(self, name: str) -> Hub:
        """Remove a hub with all its events; raises AmqpError if there is none."""
        hub = self.hub(name)
        del self._hubs[name.lower()]
        hub.close()
        self._remove_files(name)
        return hub

    def advance(self) -> None:
        """Drop what retention no longer keeps."""
        for hub in self:
            for partition in hub.partitions:
                partition.log.advance()

    def close(self) -> None:
        for hub in self:
            hub.close()

    def _folder_of(self, name: str) -> Path | None:
        return self._folder / quote(name.lower(), safe="") if self._folder is not None else None

    def _remove_files(self, name: str) -> None:
        folder = self._folder_of(name)
        if folder is not None and folder.exists():
            (folder / _DESCRIPTION).unlink(missing_ok=True)  # from here on there is no such hub
            shutil.rmtree(folder)

    def _add(self, description: _Description) -> Hub:
        folder = self._folder_of(description.name)
        hub = self._hubs[description.name.lower()] = Hub(description, self._clock, folder, sync=self._sync)
        return hub
