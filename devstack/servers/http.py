"""Web applications of aiohttp on the loopback address."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ssl import SSLContext

from aiohttp import web

HOST = "127.0.0.1"


@asynccontextmanager
async def served(
    app: web.Application, *, port: int = 0, context: SSLContext | None = None, patience: float = 1.0
) -> AsyncIterator[int]:
    """Serves an application, by TLS with a `context`; gives its port, which the system chooses for 0. Raises OSError if it is taken.

    At the end requests under way have `patience` seconds, and no transport is left behind. A TLS connection closes only when its peer agrees, and a client that still holds an
    unread answer never does: what is open after the orderly close is aborted.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=patience)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, port, ssl_context=context).start()
        bound: int = runner.addresses[0][1]
        yield bound
    finally:
        connections = [] if runner.server is None else runner.server.connections
        transports = [connection.transport for connection in connections]
        await runner.cleanup()
        for transport in transports:
            if transport is not None:
                transport.abort()
        await asyncio.sleep(0)  # the sockets are closed by callbacks of the aborts
