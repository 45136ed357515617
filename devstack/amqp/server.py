"""What every local AMQP namespace has: a port, a certificate, connections, and a start and an end."""

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path

from aiohttp import web

from devstack.amqp.connection import Connection
from devstack.amqp.links import Service
from devstack.amqp.listener import Listener, Route
from devstack.amqp.requests import KEY_NAME
from devstack.servers.certificates import ensure_certificate
from devstack.servers.started import Started

__all__ = ["KEY_NAME", "AmqpServer"]


class AmqpServer(Started):
    """A namespace on the loopback address; what it serves is up to the class that says so.

    `port` 0 takes a free one. The certificate for clients that want TLS is kept in `ca_dir`.
    `max_message_size` is in bytes, `tick` in seconds between two looks at what has become due.
    """

    def __init__(
        self, *, ca_dir: Path, port: int, key: str, container_id: str, max_message_size: int, tick: float
    ) -> None:
        self._listener = Listener(port)
        self._certificate = ensure_certificate(ca_dir)
        self._key = key
        self._container_id = container_id
        self._max_message_size = max_message_size
        self._tick = tick
        self._connections: dict[Connection, asyncio.Future[None]] = {}
        self._runners: list[web.AppRunner] = []
        self._ticking: asyncio.Task[None] | None = None

    @abstractmethod
    async def _routes(self) -> Mapping[int | None, Route]:
        """What to put behind a connection, by its first byte."""

    @abstractmethod
    def _new_service(self, connection: Connection) -> Service:
        """What to put behind the links of a connection."""

    @abstractmethod
    def _advance(self) -> None:
        """Do what has become due."""

    @abstractmethod
    async def _release(self) -> None:
        """Let go of everything, now that all connections are closed."""

    def _lost(self, connection: Connection) -> None:
        """A connection is gone."""
        self._connections.pop(connection).set_result(None)

    # --- how to reach it ---

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def ca_path(self) -> Path:
        """What clients that want TLS have to trust."""
        return self._certificate.ca_path

    @property
    def endpoint(self) -> str:
        """Host and port; the fully qualified namespace for clients with a token credential."""
        return f"localhost:{self.port}"

    # --- connections ---

    def drop_connections(self) -> None:
        """Hang up on all AMQP clients at once, as a failing network does."""
        for connection in list(self._connections):
            connection.drop()

    # --- start and end ---

    async def start(self) -> None:
        """Listen; raises OSError if the port is taken."""
        await self._listener.start(await self._routes())
        self._ticking = asyncio.create_task(self._keep_ticking())

    async def stop(self) -> None:
        """Hang up on everybody, then release the port and the rest. What is kept in memory stays."""
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        await self._listener.stop()
        self.drop_connections()
        await asyncio.gather(*self._connections.values())
        for runner in self._runners:
            await runner.cleanup()
        self._runners.clear()
        await self._release()

    async def _serve(self, app: web.Application) -> web.Server:
        """Make a web application ready for a route; `stop` ends it."""
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0)
        await runner.setup()
        self._runners.append(runner)
        assert runner.server is not None  # it is set up
        return runner.server

    def _new_connection(self) -> Connection:
        connection = Connection(
            self._new_service,
            container_id=self._container_id,
            max_message_size=self._max_message_size,
            lost=self._lost,
        )
        self._connections[connection] = asyncio.get_running_loop().create_future()
        return connection

    async def _keep_ticking(self) -> None:
        while True:
            await asyncio.sleep(self._tick)
            self._advance()
