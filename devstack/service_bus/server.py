"""The server: one port for AMQP, the administration API and the control of faults.

The first byte that a client sends tells what it speaks (devstack.amqp.listener): AMQP, TLS
(the administration API over HTTPS) or plain HTTP (`/faults`, see devstack.servers.faults).
"""

import time
from collections.abc import Mapping
from pathlib import Path

from devstack.amqp.connection import Connection
from devstack.amqp.listener import AMQP, ANYTHING_ELSE, TLS_HANDSHAKE, Route
from devstack.amqp.server import KEY_NAME, AmqpServer
from devstack.servers.faults import FaultRegistry, fault_routes
from devstack.service_bus.admin import Administration
from devstack.service_bus.broker import Broker, Topic
from devstack.service_bus.peer import Namespace, Peer
from devstack.service_bus.queue import Clock, Counts, Queue
from devstack.service_bus.settings import EntityLimits, QueueSettings

DEFAULT_KEY = "bG9jYWwtc2VydmljZS1idXMta2V5LW5vdC1hLXNlY3JldA=="
MAX_MESSAGE_SIZE = 1024 * 1024  # bytes; the default of a premium namespace

_TICK = 0.05  # seconds between two looks at what has become due


class ServiceBusServer(AmqpServer):
    """A namespace on the loopback address.

    `port` 0 takes a free one. The certificate of the administration API is kept in `ca_dir`.
    `clock` (seconds since 1970) decides when locks run out and scheduled messages are due; it
    is looked at every 50 ms.
    """

    def __init__(
        self,
        *,
        ca_dir: Path,
        port: int = 0,
        key: str = DEFAULT_KEY,
        clock: Clock = time.time,
        max_message_size: int = MAX_MESSAGE_SIZE,
    ) -> None:
        super().__init__(
            ca_dir=ca_dir,
            port=port,
            key=key,
            container_id="tidemark-service-bus",
            max_message_size=max_message_size,
            tick=_TICK,
        )
        self.broker = Broker(clock)
        self.faults = FaultRegistry()
        self._namespace = Namespace(self.broker, self.faults, clock, key)

    @property
    def connection_string(self) -> str:
        """For AMQP clients and, with `connection_verify=ca_path`, for administration clients."""
        return (
            f"Endpoint=sb://{self.endpoint};SharedAccessKeyName={KEY_NAME};SharedAccessKey={self._key};"
            "UseDevelopmentEmulator=true"
        )

    def create_queue(self, name: str, settings: QueueSettings | None = None) -> Queue:
        """Raises EntityExistsError if the name is taken."""
        return self.broker.create_queue(name, settings)

    def create_topic(
        self, name: str, *, limits: EntityLimits | None = None, duplicate_window: float | None = None
    ) -> Topic:
        """Raises EntityExistsError if the name is taken. `duplicate_window` in seconds."""
        return self.broker.create_topic(name, limits=limits, duplicate_window=duplicate_window)

    def create_subscription(self, topic: str, name: str, settings: QueueSettings | None = None) -> Queue:
        """Raises EntityExistsError if the name is taken, AmqpError if there is no such topic."""
        return self.broker.create_subscription(topic, name, settings)

    def update_queue(self, address: str, settings: QueueSettings) -> None:
        """Of a queue or "topic/subscriptions/name"; detaches its receivers if they may not go on.

        Raises AmqpError if there is none.
        """
        self.broker.source(address).update(settings)
        self._namespace.detach_disabled()

    def counts(self, entity: str) -> Counts:
        """Of "queue", "topic", "topic/subscriptions/name" or "queue/$deadletterqueue"; AmqpError if unknown."""
        return self.broker.counts(entity)

    async def _routes(self) -> Mapping[int | None, Route]:
        admin = await self._serve(Administration(self._namespace).application())
        control = await self._serve(fault_routes(self.faults))
        return {
            AMQP: Route(self._new_connection),
            TLS_HANDSHAKE: Route(admin, self._certificate.server_context()),
            ANYTHING_ELSE: Route(control),
        }

    def _new_service(self, connection: Connection) -> Peer:
        return Peer(self._namespace, connection)

    def _advance(self) -> None:
        self.broker.advance()

    async def _release(self) -> None:
        self._namespace.close()
