"""Many concurrent calls: `gather` waits for all, `Rounds` for those that answer in time, `AskedOnce` shares one answer."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from msgspec import Struct

from tidemark.foundation.sanitize import describe_error

_T = TypeVar("_T")
_R = TypeVar("_R")

TRUST_AGAIN = 5
"""Every so many rounds, an item without an answer gets the full time once. Chosen."""


SUSPECT_SECONDS = 5.0
"""Seconds that such an item gets in the other rounds. Chosen."""


class NoAnswer(Struct, frozen=True):
    """A call without a result; `why` is the reason as text."""

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
        if items := [item async for item in page]:
            return items
    return []


class Rounds(Generic[_T, _R]):
    """Asks many items at once, in rounds, so that an item without an answer delays no other.

    A round ends after `seconds` with the answers so far. Each endpoint gets at most `at_once` calls at a time; endpoints do not
    wait for each other. Items that a round had no time to ask come first in the next one, the longest neglected first. Items that
    did not answer come last, and get only `SUSPECT_SECONDS`, except in every `TRUST_AGAIN`th round, so that a slow item can
    recover. A call that ignores its cancellation is abandoned; its item is not asked again before the call has ended.
    """

    def __init__(self, seconds: float, endpoint: Callable[[str, _T], str], *, at_once: int = 32) -> None:
        """`endpoint` returns the endpoint of an item and its key."""
        self.seconds = seconds
        self._endpoint = endpoint
        self._at_once = at_once
        self._suspect_seconds = min(SUSPECT_SECONDS, seconds)
        self._not_asked: set[str] = set()
        self._answered: dict[str, int] = {}  # key -> the round of its last answer
        self._round = 0
        self._missed_rounds: dict[str, int] = {}
        self._abandoned: dict[str, asyncio.Task[_R]] = {}

    async def ask(
        self, items: Mapping[str, _T], call: Callable[[str, _T], Awaitable[_R]]
    ) -> dict[str, _R | NoAnswer]:
        """The result of each item's call, or NoAnswer. An Exception of `call` counts as no answer."""
        if self._abandoned:  # those that heed the cancellation need a moment for it
            await asyncio.wait(list(self._abandoned.values()), timeout=0.1)
        self._round += 1
        gates: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(self._at_once))
        asked: set[str] = set()

        async def one(key: str, item: _T) -> _R:
            async with gates[self._endpoint(key, item)]:
                asked.add(key)
                return await call(key, item)

        order = sorted((key for key in items if key not in self._abandoned), key=self._rank)
        tasks = {key: asyncio.create_task(one(key, items[key])) for key in order}
        try:
            await self._wait(tasks)
            answers = {key: self._answer(key, tasks.get(key), asked) for key in items}
        finally:
            for key, task in tasks.items():
                if not task.done():
                    self._abandon(key, task)
        return answers

    def _rank(self, key: str) -> tuple[int, int]:
        turn = 0 if key in self._not_asked else 2 if key in self._missed_rounds else 1
        return turn, self._answered.get(key, 0) if turn == 0 else 0

    def _is_suspect(self, key: str) -> bool:
        return self._missed_rounds.get(key, 0) % TRUST_AGAIN != 0

    async def _wait(self, tasks: Mapping[str, asyncio.Task[_R]]) -> None:
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        trusted = [task for key, task in tasks.items() if not self._is_suspect(key)]
        for waited_for, seconds in ((trusted, self.seconds), (tasks.values(), self._suspect_seconds)):
            if waited_for:
                await asyncio.wait(waited_for, timeout=max(0.0, started_at + seconds - loop.time()))

    def _answer(self, key: str, task: asyncio.Task[_R] | None, asked: Collection[str]) -> _R | NoAnswer:
        self._not_asked.discard(key)
        if task is None:
            self._missed_rounds[key] = self._missed_rounds.get(key, 0) + 1
            return NoAnswer("an earlier call has not ended, although it was given up")
        if task.done():
            self._missed_rounds.pop(key, None)
            self._answered[key] = self._round
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if error is None:
                return task.result()
            if not isinstance(error, Exception | asyncio.CancelledError):
                raise error
            return NoAnswer(describe_error(error))
        if key not in asked:
            self._not_asked.add(key)
            return NoAnswer(f"not asked: others of the same endpoint took all of the {self.seconds:g} s")
        is_suspect = self._is_suspect(key)
        self._missed_rounds[key] = self._missed_rounds.get(key, 0) + 1
        return NoAnswer(f"no answer within {self._suspect_seconds if is_suspect else self.seconds:g} s")

    def _abandon(self, key: str, task: asyncio.Task[_R]) -> None:
        def ended(task: asyncio.Task[_R]) -> None:
            self._abandoned.pop(key, None)
            _retrieve_exception(task)

        task.cancel()
        self._abandoned[key] = task
        task.add_done_callback(ended)


class AskedOnce(Generic[_T]):
    """Shares one call among all callers that ask for the same key, and keeps its answer for a while.

    Belongs to one event loop. A cancelled caller does not cancel the call, for which others may wait.
    """

    def __init__(self, failed_for: Callable[[BaseException], float]) -> None:
        """`failed_for` returns for how many seconds an error is kept as the answer."""
        self._failed_for = failed_for
        self._known: dict[Hashable, tuple[asyncio.Task[_T], float]] = {}

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[_T]], *, now: float, age: float) -> _T:
        """The answer to `key`, at most `age` seconds old. Raises what `ask` raised."""
        known = self._known.get(key)
        if known is None or self._is_stale(*known, now, age):
            task = asyncio.ensure_future(ask())
            task.add_done_callback(_retrieve_exception)
            known = self._known[key] = task, now
        return await asyncio.shield(known[0])

    def _is_stale(self, task: asyncio.Task[_T], asked_at: float, now: float, age: float) -> bool:
        if not task.done():
            return False
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        kept = age if error is None or age <= 0 else self._failed_for(error)
        return not 0.0 <= now - asked_at < kept  # negative after a clock was set back

    async def aclose(self) -> None:
        tasks = [task for task, _ in self._known.values()]
        self._known.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception, so that the loop does not log it if no caller is left."""
    if not task.cancelled():
        task.exception()
