"""An HTTP session that its first request opens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import aiohttp


class HoldsSession:
    """Owns an HTTP session. An async context manager, or closed with `aclose`; the first request creates `_session`."""

    _session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()
