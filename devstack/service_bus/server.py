"""The server: one port for AMQP, the administration API and the control of faults.

The first byte that a client sends tells what it speaks (devstack.amqp.listener): AMQP, TLS
(the administration API over HTTPS) or plain HTTP (`/faults`, see devstack.faults).
"""

import asyncio
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from aiohttp import web

from devstack.amqp.connection import Connection
from devstack.amqp.listener import AMQP, ANYTHING_ELSE, TLS_HANDSHAKE, Listener, Route
from devstack.certificates import ensure_certificate
from devstack.faults import FaultRegistry, fault_routes
from devstack.service_bus.admin import Administration
from devstack.service_bus.broker import Broker, Topic
from devstack.service_bus.peer import Namespace, Peer
from devstack.service_bus.queue import Clock, Counts, EntityLimits, Queue, QueueSettings

DEFAULT_KEY = "bG9jYWwtc2VydmljZS1idXMta2V5LW5vdC1hLXNlY3JldA=="
KEY_NAME = "RootManageSharedAccessKey"
MAX_MESSAGE_SIZE = 1024 * 1024  # bytes; the default of a premium namespace

_TICK = 0.05  # seconds between two looks at what has become due


class ServiceBusServer:
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
        self.broker = Broker(clock)
        self.faults = FaultRegistry()
        self._listener = Listener(port)
        self._certificate = ensure_certificate(ca_dir)
        self._namespace = Namespace(self.broker, self.faults, clock, key)
        self._key = key
        self._max_message_size = max_message_size
        self._connections: dict[Connection, asyncio.Future[None]] = {}
        self._runners: list[web.AppRunner] = []
        self._ticking: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def ca_path(self) -> Path:
        """What clients of the administration API have to trust."""
        return self._certificate.ca_path

    @property
    def endpoint(self) -> str:
        """Host and port; the fully qualified namespace for clients with a token credential."""
        return f"localhost:{self.port}"

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

    async def start(self) -> None:
        """Listen; raises OSError if the port is taken."""
        admin = await self._serve(Administration(self._namespace).application())
        control = await self._serve(fault_routes(self.faults))
        await self._listener.start(
            {
                AMQP: Route(self._new_connection),
                TLS_HANDSHAKE: Route(admin, self._certificate.server_context()),
                ANYTHING_ELSE: Route(control),
            }
        )
        self._ticking = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        """Hang up on everybody and release the port. Entities and messages stay."""
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        await self._listener.stop()
        self.drop_connections()
        await asyncio.gather(*self._connections.values())
        for runner in self._runners:
            await runner.cleanup()
        self._runners.clear()
        self._namespace.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def drop_connections(self) -> None:
        """Hang up on all AMQP clients at once, as a failing network does."""
        for connection in list(self._connections):
            connection.drop()

    async def _serve(self, app: web.Application) -> web.Server:
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0)
        await runner.setup()
        self._runners.append(runner)
        assert runner.server is not None  # noqa: S101 - it is set up
        return runner.server

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK)
            self.broker.advance()

    def _new_connection(self) -> Connection:
        connection = Connection(
            lambda created: Peer(self._namespace, created),
            container_id="tidemark-service-bus",
            max_message_size=self._max_message_size,
            lost=self._lost,
        )
        self._connections[connection] = asyncio.get_running_loop().create_future()
        return connection

    def _lost(self, connection: Connection) -> None:
        lost = self._connections.pop(connection)
        lost.set_result(None)
