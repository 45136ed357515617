"""A server of the devstack in a thread of its own, for clients that block."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Generic, TypeVar

T = TypeVar("T")
S = TypeVar("S")


class Threaded(Generic[S]):
    """A running server, and the way to touch it from other threads."""

    def __init__(self, server: S, loop: asyncio.AbstractEventLoop) -> None:
        self.server = server
        self._loop = loop

    def call(self, function: Callable[[], T], *, timeout: float = 10.0) -> T:
        """The result of a function run on the server's loop; raises what it raises."""

        async def run() -> T:
            return function()

        return self.wait(run(), timeout=timeout)

    def wait(self, work: Coroutine[Any, Any, T], *, timeout: float = 10.0) -> T:
        """The result of a coroutine run on the server's loop; raises what it raises."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)


@contextmanager
def running_in_thread(create: Callable[[], AbstractAsyncContextManager[S]]) -> Iterator[Threaded[S]]:
    """Create and enter a server on a loop in a new thread; leave it and join the thread at the end.

    Raises what creating, entering or leaving it raises.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="devstack", daemon=True)
    thread.start()

    async def enter() -> tuple[AbstractAsyncContextManager[S], S]:
        manager = create()
        return manager, await manager.__aenter__()

    async def leave(manager: AbstractAsyncContextManager[S]) -> None:
        await manager.__aexit__(None, None, None)

    try:
        manager, server = asyncio.run_coroutine_threadsafe(enter(), loop).result()
        try:
            yield Threaded(server, loop)
        finally:
            asyncio.run_coroutine_threadsafe(leave(manager), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
