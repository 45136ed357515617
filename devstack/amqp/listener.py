"""One port for several protocols: the first byte that a client sends tells what it speaks.

The byte is looked at before the socket gets a protocol, so no data has to be relayed.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from weakref import WeakSet

from devstack.processes.child import free_ports

TLS_HANDSHAKE, AMQP = 0x16, ord("A")
ANYTHING_ELSE = None

_HOST = "127.0.0.1"
_FIRST_BYTE_TIMEOUT = 30.0  # seconds
_BACKLOG = 128


@dataclass(frozen=True, slots=True)
class Route:
    """What to put behind a connection; with a context, behind TLS."""

    protocol: Callable[[], asyncio.BaseProtocol]
    context: ssl.SSLContext | None = None


class Listener:
    """Listens on the loopback address; port 0 takes a free one, which `port` tells after `start`."""

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self._routes: Mapping[int | None, Route] = {}
        self._socket: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._transports: WeakSet[asyncio.Transport] = WeakSet()

    async def start(self, routes: Mapping[int | None, Route]) -> None:
        """`routes` by first byte, ANYTHING_ELSE among them; raises OSError if the port is taken."""
        self._routes = routes
        listening = socket.create_server((_HOST, self.port or free_ports(1)[0]), backlog=_BACKLOG)
        listening.setblocking(False)
        self._socket = listening
        self.port = listening.getsockname()[1]
        self._spawn(self._accept(listening))

    async def stop(self) -> None:
        """Release the port and hang up on everybody, without waiting for anyone to agree."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
        for transport in list(self._transports):
            transport.abort()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(listening)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._spawn(self._welcome(client))

    async def _welcome(self, client: socket.socket) -> None:
        try:
            async with asyncio.timeout(_FIRST_BYTE_TIMEOUT):
                first = await _peek_byte(client)
            if first is None:
                client.close()
                return
            route = self._routes.get(first, self._routes[ANYTHING_ELSE])
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                route.protocol, client, ssl=route.context
            )
            self._transports.add(transport)
        except (OSError, TimeoutError):  # went away, does not trust us, or says nothing
            client.close()
        except asyncio.CancelledError:
            client.close()
            raise


async def _peek_byte(client: socket.socket) -> int | None:
    """The first byte that arrives, left where it is; None if the client hangs up before."""
    readable = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(client, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(client)
    with contextlib.suppress(BlockingIOError):
        first = client.recv(1, socket.MSG_PEEK)
        return first[0] if first else None
    return None
