"""What the application counts by itself: orders that came and orders that are done, as any application could tell.

`Counters` serves both totals over HTTP; `CountersCollector` reads them into the metrics `incoming` and `outgoing`. It is
a collector of one's own, as docs/adding-a-collector.md describes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import ClassVar, Self

import aiohttp
import msgspec
from aiohttp import web

from devstack.servers.http import served
from scaling.ports import CollectError, Reading

TIMEOUT = 5.0  # seconds


class Totals(msgspec.Struct, frozen=True):
    """Orders since the start."""

    came: int
    done: int


class Counters:
    """Serves what `totals` tells, on a port of the system's choice. Use as an async context manager."""

    def __init__(self, totals: Callable[[], Totals]) -> None:
        self._totals = totals
        self._serving = AsyncExitStack()
        self.url = ""

    async def __aenter__(self) -> Self:
        application = web.Application()
        application.router.add_get("/", self._answer)
        port = await self._serving.enter_async_context(served(application))
        self.url = f"http://127.0.0.1:{port}/"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._serving.aclose()

    async def _answer(self, _: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(self._totals()), content_type="application/json")


class CountersCollector:
    """Orders that came, and that were done, since the last look."""

    COUNTS: ClassVar[tuple[str, ...]] = ("incoming", "outgoing")
    DEFAULT_COUNT: ClassVar[str] = "incoming"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        url: str

    def __init__(self, params: Params, _settings: Mapping[str, str]) -> None:
        self._url = params.url
        self._before: Totals | None = None

    @staticmethod
    def entity(params: Params) -> str:
        return f"counters:{params.url}"

    async def collect(self, *, now: float) -> Reading:
        """Raises CollectError where the application does not answer. The first look has nothing to compare with."""
        before, self._before = (
            self._before,
            None,
        )  # what a failed look leaves out is of two intervals at the next
        self._before = totals = await self._read()
        if before is None:
            return Reading(at=now, values={})
        grown = {"incoming": totals.came - before.came, "outgoing": totals.done - before.done}
        return Reading(at=now, values={name: float(count) for name, count in grown.items()})

    async def aclose(self) -> None:
        """There is nothing to give back."""

    async def _read(self) -> Totals:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(self._url, raise_for_status=True) as answer,
            ):
                return msgspec.json.decode(await answer.read(), type=Totals)
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
            raise CollectError(f"the counters of {self._url} cannot be read: {error}") from error
