"""A namespace, and what a test may do to it: hubs, events, consumers, capture and connections."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from devstack.amqp.connection import Connection
from devstack.amqp.server import KEY_NAME, AmqpServer
from devstack.amqp.wire.errors import AmqpError
from devstack.event_hubs.namespace import Namespace, Refused
from devstack.event_hubs.peer import Peer
from devstack.event_hubs.sources import PartitionSource
from devstack.event_hubs.storage.capture import CaptureSettings
from devstack.event_hubs.storage.capturing import Capture
from devstack.event_hubs.storage.events import SentEvent, encode_body
from devstack.event_hubs.storage.hubs import DEFAULT_GROUP, Hub, Hubs
from devstack.event_hubs.storage.idempotence import Idempotence, Publishers
from devstack.event_hubs.storage.log import Clock, PartitionLog, Retention, Stored
from devstack.event_hubs.storage.readers import Readers
from devstack.servers.faults import FaultRegistry

DEFAULT_KEY = "bG9jYWwtZXZlbnQtaHVicy1rZXktbm90LWEtc2VjcmV0"
MAX_MESSAGE_SIZE = 1024 * 1024  # bytes; of a batch, too. The limit of the standard tier
DEFAULT_PARTITIONS = 4

_TICK = 0.25  # seconds between two looks at what has become due


class Intruder:
    """A consumer that is not there, but has the owner level of one."""

    def __init__(self, readers: Readers, epoch: int) -> None:
        """Raises AmqpError if somebody has a higher owner level."""
        self.name = "intruder"
        self.epoch: int | None = epoch
        self._readers = readers
        readers.join(self)

    def displaced(self, error: AmqpError) -> None:
        """A higher owner level came: nothing to do, nobody is there."""

    def release(self) -> None:
        """Let consumers with a lower owner level in again."""
        self._readers.leave(self)


class Operations(AmqpServer):
    """Everything of an EventHubsServer but what its port serves."""

    def __init__(
        self,
        *,
        ca_dir: Path,
        port: int = 0,
        key: str = DEFAULT_KEY,
        clock: Clock = time.time,
        max_message_size: int = MAX_MESSAGE_SIZE,
        data_dir: Path | None = None,
        sync: bool = False,
        capture: CaptureSettings | None = None,
    ) -> None:
        super().__init__(
            ca_dir=ca_dir,
            port=port,
            key=key,
            container_id="tidemark-event-hubs",
            max_message_size=max_message_size,
            tick=_TICK,
        )
        self.hubs = Hubs(clock, data_dir, sync=sync)
        self.faults = FaultRegistry()
        self._namespace = Namespace(self.hubs, self.faults, clock, key)
        self._intruders: list[Intruder] = []
        self._capture = Capture(capture, self.hubs, clock) if capture is not None else None
        self._capturing: asyncio.Task[None] | None = None

    # --- how to reach it ---

    @property
    def control_url(self) -> str:
        """Where `/faults` and `/control` are."""
        return f"http://{self.endpoint}"

    def connection_string(self, hub: str | None = None) -> str:
        """For clients that may do without TLS; with a hub, it names that."""
        return f"{self.tls_connection_string(hub)};UseDevelopmentEmulator=true"

    def tls_connection_string(self, hub: str | None = None) -> str:
        """For clients that use TLS, which also need `tls_options`."""
        entity = f";EntityPath={hub}" if hub is not None else ""
        return f"Endpoint=sb://{self.endpoint};SharedAccessKeyName={KEY_NAME};SharedAccessKey={self._key}{entity}"

    def tls_options(self) -> dict[str, str]:
        """Arguments of the SDK's clients: without them, they would use port 5671 and trust public authorities."""
        return {
            "custom_endpoint_address": f"sb://{self.endpoint}",
            "connection_verify": str(self.ca_path),
        }

    # --- hubs ---

    def create_hub(
        self,
        name: str,
        partitions: int = DEFAULT_PARTITIONS,
        *,
        consumer_groups: Iterable[str] = (),
        retention: Retention | None = None,
        opaque_offsets: bool = False,
        idempotence: Idempotence | None = None,
    ) -> Hub:
        """With consumer group "$Default" and those named.

        `opaque_offsets` are no numbers, as those of a hub with geo-replication are not.
        Raises HubExistsError if the name is taken, ValueError for a hub without partitions.
        """
        return self.hubs.create(
            name,
            partitions,
            consumer_groups,
            retention,
            opaque_offsets=opaque_offsets,
            idempotence=idempotence,
        )

    def ensure_hub(
        self, name: str, partitions: int = DEFAULT_PARTITIONS, *, consumer_groups: Iterable[str] = ()
    ) -> Hub:
        """The hub of that name, created if `data_dir` has none from before."""
        if name in self.hubs:
            return self.hubs.hub(name)
        return self.create_hub(name, partitions, consumer_groups=consumer_groups)

    def delete_hub(self, name: str) -> None:
        """With all its events; detaches its clients. Raises AmqpError if there is none."""
        self._namespace.delete_hub(name)

    def recreate_hub(self, name: str, partitions: int | None = None) -> Hub:
        """Delete a hub and create it again, empty: its numbers begin anew. Raises AmqpError if there is none."""
        old = self._namespace.delete_hub(name)
        groups = old.consumer_groups.values()
        return self.create_hub(
            old.name,
            partitions or len(old.partitions),
            consumer_groups=groups,
            retention=old.retention,
            opaque_offsets=old.opaque_offsets,
            idempotence=old.idempotence,
        )

    def add_partitions(self, name: str, count: int) -> None:
        """Raises AmqpError if there is no such hub."""
        self.hubs.hub(name).add_partitions(count)

    # --- events; all of these raise AmqpError for a hub or partition that is not there ---

    def append(
        self,
        hub: str,
        partition: str,
        bodies: Iterable[bytes | str],
        *,
        properties: Mapping[str, Any] | None = None,
        partition_key: str | None = None,
        enqueued_ms: int | None = None,
    ) -> int:
        """Append events as one batch, without a client; returns the sequence number of the first.

        The enqueued time (ms since 1970) is not before that of the partition's newest event.
        """
        events = [SentEvent(encode_body(body, properties), partition_key=partition_key) for body in bodies]
        return self.hubs.hub(hub).partition(partition).append(events, enqueued_ms)

    def log(self, hub: str, partition: str) -> PartitionLog:
        return self.hubs.hub(hub).partition(partition).log

    def events(self, hub: str, partition: str, from_sequence: int = 0) -> list[Stored]:
        """What the partition keeps from a sequence number on."""
        return list(self.log(hub, partition).stored(from_sequence))

    def event_count(self, hub: str) -> int:
        """How many events the hub keeps."""
        return sum(len(partition.log) for partition in self.hubs.hub(hub).partitions)

    def begin_sequence_number(self, hub: str, partition: str) -> int:
        return self.log(hub, partition).begin_sequence_number

    def last_sequence_number(self, hub: str, partition: str) -> int:
        """-1 for a partition that never had an event."""
        return self.log(hub, partition).last_sequence_number

    def expire(self, hub: str, partition: str, before_sequence: int) -> None:
        """Drop the events below a sequence number, as retention does."""
        self.log(hub, partition).expire(before_sequence)

    def skip_sequence_numbers(self, hub: str, partition: str, count: int) -> None:
        """Leave a gap before the next event."""
        self.log(hub, partition).skip(count)

    # --- capture ---

    async def flush_capture(self) -> list[Path]:
        """End all windows now; returns the files that this made whole. Raises ValueError without capture."""
        if self._capture is None:
            raise ValueError("this server captures nothing: it was given no CaptureSettings")
        return await self._capture.flush()

    @property
    def capture_files(self) -> list[Path]:
        """The files that are whole, oldest first."""
        return list(self._capture.files) if self._capture is not None else []

    # --- producers ---

    def publishers(self, hub: str, partition: str) -> Publishers:
        """Who publishes idempotently. Raises AmqpError for a hub or partition that is not there."""
        return self.hubs.hub(hub).partition(partition).publishers

    # --- consumers ---

    def consumers(self, hub: str, partition: str, group: str = DEFAULT_GROUP) -> list[PartitionSource]:
        """Connected to a partition in a consumer group, oldest first."""
        readers = self.hubs.hub(hub).partition(partition).readers(group)
        return [reader for reader in readers if isinstance(reader, PartitionSource)]

    def rewind(self, hub: str, partition: str, sequence_number: int, group: str = DEFAULT_GROUP) -> None:
        """Make those connected get everything again from a sequence number on."""
        for consumer in self.consumers(hub, partition, group):
            consumer.rewind(sequence_number)

    def steal(self, hub: str, partition: str, epoch: int, group: str = DEFAULT_GROUP) -> Intruder:
        """Disconnect and lock out the consumers with an owner level up to `epoch`, until released.

        Raises AmqpError if somebody has a higher owner level.
        """
        intruder = Intruder(self.hubs.hub(hub).partition(partition).readers(group), epoch)
        self._intruders.append(intruder)
        return intruder

    def release_intruders(self) -> None:
        """Release all that `steal` made."""
        while self._intruders:
            self._intruders.pop().release()

    @property
    def refused(self) -> list[Refused]:
        """The links that were not attached, oldest first; the last 1,000."""
        return list(self._namespace.refused)

    # --- connections ---

    def freeze_connections(self) -> None:
        """Stop answering on all connections there are without closing them."""
        for connection in list(self._connections):
            connection.freeze()

    def expire_tokens(self) -> None:
        """Take the tokens of all connections for expired: their links are detached."""
        for connection in list(self._connections):
            if isinstance(connection.service, Peer):
                connection.service.revoke()

    async def start(self) -> None:
        """Listen; raises OSError if the port is taken."""
        await super().start()
        if self._capture is not None:
            self._capturing = asyncio.create_task(self._capture.run())

    def _new_service(self, connection: Connection) -> Peer:
        return Peer(self._namespace, connection)

    def _advance(self) -> None:
        self._namespace.advance()

    def _lost(self, connection: Connection) -> None:
        if isinstance(connection.service, Peer):
            connection.service.closed()
        super()._lost(connection)

    async def _release(self) -> None:
        """Capture what is left and close the files. Hubs and events stay."""
        try:
            await self._stop_capturing()
        finally:
            self._namespace.close()

    async def _stop_capturing(self) -> None:
        """Raises what went wrong with the files, if anything did."""
        if self._capture is None or self._capturing is None:
            return
        self._capturing.cancel()
        try:
            with suppress(asyncio.CancelledError):
                await self._capturing
        finally:
            await self._capture.close()
