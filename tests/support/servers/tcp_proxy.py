"""A TCP proxy that can cut, refuse and delay what goes through it: a service behind a bad network."""

import asyncio
import contextlib

from devstack.processes.child import free_ports


class TcpProxy:
    """Listens on a free port of the loopback address and forwards to another one, or to a socket in a folder.

    `delay` is in seconds, for every piece of data towards the service.
    """

    def __init__(self, port):
        self.delay = 0.0
        self.accepted = 0
        self.port = 0
        self._target = port
        self._refusing = False
        self._server = None
        self._links = set()
        self._writers = set()

    async def __aenter__(self):
        await self._listen()
        return self

    async def __aexit__(self, *_):
        await self.refuse()
        await asyncio.gather(*self._links)

    async def refuse(self):
        """Cut all connections and take no new one: the service is down."""
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()

    async def accept(self):
        """The service is there again, on the same port."""
        await self._listen()

    async def _listen(self):
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port or free_ports(1)[0])
        self.port = self._server.sockets[0].getsockname()[1]

    async def _connected(self, reader, writer):
        link = asyncio.current_task()
        self._links.add(link)
        self.accepted += 1
        pair = [writer]
        self._writers.add(writer)
        try:
            up_reader, up_writer = await self._connect()
            pair.append(up_writer)
            self._writers.add(up_writer)
            await asyncio.gather(self._pump(reader, up_writer, held=True), self._pump(up_reader, writer))
        except OSError:
            pass
        finally:
            for each in pair:
                each.transport.abort()
                self._writers.discard(each)
            self._links.discard(link)

    def _connect(self):
        if isinstance(self._target, int):
            return asyncio.open_connection("127.0.0.1", self._target)
        return asyncio.open_unix_connection(self._target)

    async def _pump(self, reader, writer, *, held=False):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if held and self.delay:
                    await asyncio.sleep(self.delay)
                writer.write(data)
                await writer.drain()
        writer.transport.abort()  # of a proxied request nothing is half closed
