"""Many calls, a few at a time: all of them (`gather`), those that answer in time (`Rounds`), or one for all (`AskedOnce`)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from msgspec import Struct

from tidemark.foundation.sanitize import told

_T = TypeVar("_T")
_R = TypeVar("_R")

TRUST_AGAIN = 5
"""Rounds after which a place that did not answer is waited for as long as the others, once."""


SUSPECT_SECONDS = 5.0
"""How long such a place is waited for until then."""


class NoAnswer(Struct, frozen=True):
    """Why a call has no result, in words."""

    why: str


async def gather(call: Callable[[_T], Awaitable[_R]], items: Iterable[_T], *, at_once: int) -> list[_R]:
    """The results in order, `at_once` calls at a time. The first error ends the others and is raised."""
    slots = asyncio.Semaphore(at_once)

    async def one(item: _T) -> _R:
        async with slots:
            return await call(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(item)) for item in items]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def next_page(pages: AsyncIterator[AsyncIterator[_T]]) -> list[_T]:
    """The next page with anything in it; empty after the last one."""
    async for page in pages:
        if found := [each async for each in page]:
            return found
    return []


class Rounds(Generic[_T, _R]):
    """Asks many places at once, in rounds: one that does not answer costs its own answer, and nobody else's.

    A round ends after `seconds`, with what is there by then. Calls of one endpoint go out `at_once` at a time,
    those of different endpoints do not wait for each other. Who was not asked in a round for want of time is asked
    first in the next one, the longest neglected before others; who did not answer is asked last, and is waited for `SUSPECT_SECONDS` only, except in
    every `TRUST_AGAIN`th round, so that a slow one can come back. A call that goes on although it was cancelled
    is left behind, and its place is not asked again before it has ended.
    """

    def __init__(self, seconds: float, endpoint: Callable[[str, _T], str], *, at_once: int = 32) -> None:
        """`endpoint` names that of an item by its key."""
        self.seconds = seconds
        self._endpoint = endpoint
        self._at_once = at_once
        self._suspect_seconds = min(SUSPECT_SECONDS, seconds)
        self._not_asked: set[str] = set()
        self._answered: dict[str, int] = {}  # in which round last
        self._round = 0
        self._missed: dict[str, int] = {}
        self._left: dict[str, asyncio.Task[_R]] = {}

    async def ask(
        self, items: Mapping[str, _T], call: Callable[[str, _T], Awaitable[_R]]
    ) -> dict[str, _R | NoAnswer]:
        """What each item's call returned, or why there is nothing. An Exception that `call` raises is no answer."""
        if self._left:  # those that heed the cancellation need a moment for it
            await asyncio.wait(list(self._left.values()), timeout=0.1)
        self._round += 1
        gates: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(self._at_once))
        asked: set[str] = set()

        async def one(key: str, item: _T) -> _R:
            async with gates[self._endpoint(key, item)]:
                asked.add(key)
                return await call(key, item)

        order = sorted((key for key in items if key not in self._left), key=self._rank)
        tasks = {key: asyncio.create_task(one(key, items[key])) for key in order}
        try:
            await self._wait(tasks)
            found = {key: self._answer(key, tasks.get(key), asked) for key in items}
        finally:
            for key, task in tasks.items():
                if not task.done():
                    self._leave(key, task)
        return found

    def _rank(self, key: str) -> tuple[int, int]:
        turn = 0 if key in self._not_asked else 2 if key in self._missed else 1
        return turn, self._answered.get(key, 0) if turn == 0 else 0

    def _suspected(self, key: str) -> bool:
        return self._missed.get(key, 0) % TRUST_AGAIN != 0

    async def _wait(self, tasks: Mapping[str, asyncio.Task[_R]]) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        trusted = [task for key, task in tasks.items() if not self._suspected(key)]
        for waited_for, seconds in ((trusted, self.seconds), (tasks.values(), self._suspect_seconds)):
            if waited_for:
                await asyncio.wait(waited_for, timeout=max(0.0, begun + seconds - loop.time()))

    def _answer(self, key: str, task: asyncio.Task[_R] | None, asked: Collection[str]) -> _R | NoAnswer:
        self._not_asked.discard(key)
        if task is None:
            self._missed[key] = self._missed.get(key, 0) + 1
            return NoAnswer("an earlier call has not ended, although it was given up")
        if task.done():
            self._missed.pop(key, None)
            self._answered[key] = self._round
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if error is None:
                return task.result()
            if not isinstance(error, Exception | asyncio.CancelledError):
                raise error
            return NoAnswer(told(error))
        if key not in asked:
            self._not_asked.add(key)
            return NoAnswer(f"not asked: others of the same endpoint took all of the {self.seconds:g} s")
        suspected = self._suspected(key)
        self._missed[key] = self._missed.get(key, 0) + 1
        return NoAnswer(f"no answer within {self._suspect_seconds if suspected else self.seconds:g} s")

    def _leave(self, key: str, task: asyncio.Task[_R]) -> None:
        def ended(task: asyncio.Task[_R]) -> None:
            self._left.pop(key, None)
            if not task.cancelled():
                task.exception()  # looked at, or the loop would tell of an error that nobody saw

        task.cancel()
        self._left[key] = task
        task.add_done_callback(ended)


class AskedOnce(Generic[_T]):
    """Answers that many want at the same time: asked for once, for all of them, and kept for a while.

    Belongs to one event loop. Whoever is cancelled meanwhile does not end the asking, which others wait for.
    """

    def __init__(self, failed_for: Callable[[BaseException], float]) -> None:
        """`failed_for` tells the seconds for which an error is the answer."""
        self._failed_for = failed_for
        self._known: dict[Hashable, tuple[asyncio.Task[_T], float]] = {}

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[_T]], *, now: float, age: float) -> _T:
        """The answer to `key`, at most `age` seconds old. Raises what `ask` raised."""
        known = self._known.get(key)
        if known is None or self._is_stale(*known, now, age):
            task = asyncio.ensure_future(_awaited(ask))
            task.add_done_callback(_looked_at)
            known = self._known[key] = task, now
        return await asyncio.shield(known[0])

    def _is_stale(self, task: asyncio.Task[_T], asked_at: float, now: float, age: float) -> bool:
        if not task.done():
            return False
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        kept = age if error is None or age <= 0 else self._failed_for(error)
        return not 0.0 <= now - asked_at < kept  # clocks are set back, too

    async def aclose(self) -> None:
        tasks = [task for task, _ in self._known.values()]
        self._known.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _awaited(ask: Callable[[], Awaitable[_T]]) -> _T:
    return await ask()


def _looked_at(task: asyncio.Task[Any]) -> None:
    """Should nobody wait for it any more, the loop has no error to tell of."""
    if not task.cancelled():
        task.exception()
