"""A client that its first use opens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from operator import methodcaller
from typing import Any, Generic, TypeVar

Client = TypeVar("Client")


class LazyClient(Generic[Client]):
    """Opens the client in a thread, because importing an SDK takes half a second. The client belongs to the event loop of its
    first use. If it cannot be entered, it is closed. `open_client` raises ValueError, which names a wrong setting.
    """

    def __init__(
        self,
        open_client: Callable[[], Client],
        close: Callable[[Any], Awaitable[None]] = methodcaller("close"),
        enter: Callable[[Any], Awaitable[Any]] = lambda _: asyncio.sleep(0),
    ) -> None:
        self._open = open_client
        self._close = close
        self._enter = enter
        self._client: Client | None = None
        self._opening = asyncio.Lock()

    async def get(self) -> Client:
        async with self._opening:
            if self._client is None:
                client = await asyncio.to_thread(self._open)
                try:
                    await self._enter(client)
                except BaseException:
                    await self._close(client)
                    raise
                self._client = client
            return self._client

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await self._close(client)
