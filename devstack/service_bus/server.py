"""The server: one port for AMQP, the administration API and the control of faults.

The first byte that a client sends tells what it speaks: AMQP, TLS (the administration API
over HTTPS) or plain HTTP (`/faults`, see devstack.faults). The byte is looked at before the
socket gets a protocol, so no data has to be relayed.
"""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Self
from weakref import WeakSet

from aiohttp import web

from devstack.amqp.connection import Connection
from devstack.certificates import ensure_certificate
from devstack.faults import FaultRegistry, fault_routes
from devstack.service_bus.admin import Administration
from devstack.service_bus.broker import Broker, Topic
from devstack.service_bus.peer import Namespace, Peer
from devstack.service_bus.queue import Clock, Counts, Queue, QueueSettings

DEFAULT_KEY = "bG9jYWwtc2VydmljZS1idXMta2V5LW5vdC1hLXNlY3JldA=="
KEY_NAME = "RootManageSharedAccessKey"
MAX_MESSAGE_SIZE = 1024 * 1024  # bytes; the default of a premium namespace

_HOST = "127.0.0.1"
_TICK = 0.05  # seconds between two looks at what has become due
_FIRST_BYTE_TIMEOUT = 30.0  # seconds
_TLS_HANDSHAKE, _AMQP = 0x16, ord("A")
_BACKLOG = 128


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
        self.port = port
        self._certificate = ensure_certificate(ca_dir)
        self._namespace = Namespace(self.broker, self.faults, clock, key)
        self._key = key
        self._max_message_size = max_message_size
        self._connections: dict[Connection, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._runners: list[web.AppRunner] = []
        self._http_transports: WeakSet[asyncio.Transport] = WeakSet()
        self._socket: socket.socket | None = None

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

    def create_topic(self, name: str) -> Topic:
        """Raises EntityExistsError if the name is taken."""
        return self.broker.create_topic(name)

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
        listening = socket.create_server((_HOST, self.port), backlog=_BACKLOG)
        listening.setblocking(False)  # noqa: FBT003 - the standard library's signature
        self._socket = listening
        self.port = listening.getsockname()[1]
        admin = await self._runner(Administration(self._namespace).application())
        control = await self._runner(fault_routes(self.faults))
        context = self._certificate.server_context()
        self._spawn(self._accept(listening, admin, control, context))
        self._spawn(self._tick())

    async def stop(self) -> None:
        """Hang up on everybody and release the port. Entities and messages stay."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
        self.drop_connections()
        await asyncio.gather(*self._connections.values())
        for transport in self._http_transports:
            transport.abort()  # a TLS connection would wait for its client to agree
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

    async def _runner(self, app: web.Application) -> web.AppRunner:
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0)
        await runner.setup()
        self._runners.append(runner)
        return runner

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK)
            self.broker.advance()

    async def _accept(
        self, listening: socket.socket, admin: web.AppRunner, control: web.AppRunner, context: ssl.SSLContext
    ) -> None:
        loop = asyncio.get_running_loop()
        assert admin.server is not None  # noqa: S101 - both runners are set up
        assert control.server is not None  # noqa: S101
        while True:
            client, _ = await loop.sock_accept(listening)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._spawn(self._welcome(client, admin.server, control.server, context))

    async def _welcome(
        self, client: socket.socket, admin: web.Server, control: web.Server, context: ssl.SSLContext
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_FIRST_BYTE_TIMEOUT):
                first = await _peek_byte(client)
            if first == _AMQP:
                await loop.connect_accepted_socket(self._new_connection, client)
            elif first == _TLS_HANDSHAKE:
                transport, _ = await loop.connect_accepted_socket(admin, client, ssl=context)
                self._http_transports.add(transport)
            elif first is not None:
                transport, _ = await loop.connect_accepted_socket(control, client)
                self._http_transports.add(transport)
            else:
                client.close()
        except (OSError, TimeoutError):  # went away, does not trust us, or says nothing
            client.close()
        except asyncio.CancelledError:
            client.close()
            raise

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


async def _peek_byte(client: socket.socket) -> int | None:
    """The first byte that arrives, left where it is; None if the client hangs up before."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(client, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(client)
    with contextlib.suppress(BlockingIOError):
        first = client.recv(1, socket.MSG_PEEK)
        return first[0] if first else None
    return None
