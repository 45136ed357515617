"""Producer state in one file of this machine, for producers of the command line."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial
from pathlib import Path

from msgspec import Struct

from tidemark.foundation.errors import UnavailableError
from tidemark.foundation.wording import file_problem
from tidemark.publisher.event_hubs.ports.state_store import StateConflictError, name_of
from tidemark.publisher.event_hubs.states.state_file import BusyError, StateFile, States
from tidemark.publisher.model import ProducerRecord, StateKey

_QUICK = 0.0005
"""Seconds: the event loop waits for the disk by itself where commits took less lately, because a thread would cost as much.
Chosen: other work on the loop, such as encoding a set, takes as long.
"""
_GATHERING = 0.005
"""Seconds that the first save of a sync waits for others at most. Chosen: 16 partitions need 150 us of CPU each to bring theirs."""
_QUIET_TURNS = 1
"""Turns of the event loop without a further save before a sync: an answer that arrives wakes its sender one turn later."""
_SHARE = 0.2  # of the last commit in the mean of the recent ones; chosen: a dozen commits forget a slow one
_PATIENCE = 60.0  # seconds to wait for the lock where no deadline is given; chosen


class _Request(Struct, eq=False):
    """A load, or with a record a save. The future gets all states, or the new token."""

    future: asyncio.Future[States | str]
    deadline: float | None
    name: str = ""
    record: ProducerRecord | None = None
    token: str | None = None


class FileStateStore:
    """A ProducerStateStore in one file, for the partitions of any number of producers.

    A save is on the disk before it returns; what several partitions save at the same time is one write and one sync. A lock on
    `<path>.lock`, which stays there, lets one process write at a time. The file system must be local: network shares may ignore
    locks. While a producer runs the file is a log; a close in order leaves one JSON document.
    """

    def __init__(self, path: str | Path) -> None:
        self._file = StateFile(Path(path))
        self._use = threading.Lock()  # the file is closed by another thread than the one that may still write
        self._waiting: list[_Request] = []
        self._is_busy = False
        self._recent = 1.0  # mean duration of recent commits in seconds; the first ones have a thread
        self._last_name = ""

    async def load(self, key: StateKey, *, deadline: float) -> tuple[ProducerRecord, str] | None:
        return (await self._load(deadline)).get(name_of(key))

    async def names(self) -> list[str]:
        """The names (`name_of`) of all states in the file. Raises InvalidProducerStateError, UnavailableError."""
        return list(await self._load(None))

    async def save(self, key: StateKey, record: ProducerRecord, token: str | None, *, deadline: float) -> str:
        return await self.save_soon(key, record, token, deadline=deadline)

    def save_soon(
        self, key: StateKey, record: ProducerRecord, token: str | None, *, deadline: float | None
    ) -> asyncio.Future[str]:
        """As `save`, without a task. What other partitions save in this turn of the event loop shares the sync."""
        name = name_of(key)
        is_alone, self._last_name = name == self._last_name, name
        return self._ask(_Request(_future(), deadline, name, record, token), at_once=is_alone)  # type: ignore[return-value]

    async def aclose(self) -> None:
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._use:
            self._file.close_all()

    async def _load(self, deadline: float | None) -> States:
        states = await self._ask(_Request(_future(), deadline), at_once=False)
        assert isinstance(states, dict)
        return states

    def _ask(self, request: _Request, *, at_once: bool) -> asyncio.Future[States | str]:
        if request.deadline is None:
            request.deadline = asyncio.get_running_loop().time() + _PATIENCE
        self._waiting.append(request)
        if not self._is_busy:
            if at_once and self._recent < _QUICK:
                self._commit()
            else:
                self._is_busy = True
                self._gather(until=asyncio.get_running_loop().time() + _GATHERING)
        return request.future

    def _gather(self, waiting: int = 0, quiet_turns: int = 0, *, until: float) -> None:
        """Commit once the event loop has come to rest, so that answers which are there already bring their next saves into the
        same sync. Other partitions send meanwhile, so that this costs no time unless the loop is idle.
        """
        loop = asyncio.get_running_loop()
        if len(self._waiting) > waiting:
            quiet_turns = 0
        if quiet_turns > _QUIET_TURNS or loop.time() >= until:
            self._commit()
        else:
            loop.call_soon(partial(self._gather, len(self._waiting), quiet_turns + 1, until=until))

    def _commit(self) -> None:
        """Answer all that wait, on this thread if that is quick."""
        group, self._waiting = self._waiting, []
        if self._recent < _QUICK:
            try:
                _answer(group, self._carry_out(group, None))
            except BusyError:
                pass  # a thread waits for the other process
            else:
                self._is_busy = False
                return
        self._is_busy = True
        loop = asyncio.get_running_loop()
        deadlines = [request.deadline for request in group if request.deadline is not None]
        until = max(deadlines)
        work = loop.run_in_executor(None, self._carry_out, group, until)
        timer = loop.call_at(min(deadlines), self._expire, group)

        def done(work: asyncio.Future[list[States | str | Exception]]) -> None:
            timer.cancel()
            self._is_busy = bool(self._waiting)
            if self._waiting:
                self._gather(until=loop.time() + _GATHERING)
            error = work.exception()
            _answer(group, work.result() if error is None else [self._unavailable(error)] * len(group))

        work.add_done_callback(done)

    def _carry_out(self, group: list[_Request], until: float | None) -> list[States | str | Exception]:
        """The answers to a group of requests. Raises BusyError without `until`."""
        if all(request.record is None for request in group) and not self._file.path.exists():
            return [{} for _ in group]
        with self._use:
            return self._write_group(group, until)

    def _write_group(self, group: list[_Request], until: float | None) -> list[States | str | Exception]:
        try:
            self._file.acquire(until=until)
            begun = time.monotonic()
            try:
                self._file.refresh()
                answers, changed = _answers(group, self._file.states, self._file.path)
                is_durable = not changed or self._file.write(changed)
            finally:
                self._file.release()
            if not is_durable:
                self._file.sync()
        except BusyError as error:
            if until is None:
                raise
            return [self._unavailable(error)] * len(group)
        except Exception as error:
            self._recent = 1.0
            return [self._unavailable(error) if isinstance(error, OSError) else error] * len(group)
        self._recent += _SHARE * (time.monotonic() - begun - self._recent)
        return answers

    def _unavailable(self, error: BaseException) -> UnavailableError:
        if isinstance(error, BusyError):
            return UnavailableError(
                f"{self._file.path} was not read or written by the deadline: {error} holds the lock of {self._file.lock_path}. If it is "
                "stopped, continue or end it; with its end the lock is free"
            )
        return UnavailableError(f"{self._file.path}: {file_problem(error)}")

    def _expire(self, group: list[_Request]) -> None:
        """All of a group have about the same deadline, and a save that is on the disk too late is recognised by its writer."""
        error = UnavailableError(f"{self._file.path} was not read or written by the deadline")
        _answer(group, [error] * len(group))


def _future() -> asyncio.Future[States | str]:
    return asyncio.get_running_loop().create_future()


def _answers(
    group: list[_Request], states: States, path: Path
) -> tuple[list[States | str | Exception], States]:
    """The answer to each request, and what to write."""
    answers: list[States | str | Exception] = []
    changed: States = {}
    for request in group:
        if request.record is None:
            answers.append(states)
            continue
        saved = changed.get(request.name) or states.get(request.name)
        if (None if saved is None else saved[1]) != request.token:
            answers.append(StateConflictError(f"{path}: the state of {request.name} has changed"))
            continue
        token = f"{request.record.writer}.{request.record.revision}"
        changed[request.name] = (request.record, token)
        answers.append(token)
    return answers, changed


def _answer(group: list[_Request], answers: list[States | str | Exception]) -> None:
    for request, answer in zip(group, answers, strict=True):
        if request.future.done():
            continue
        if isinstance(answer, Exception):
            request.future.set_exception(answer)
        else:
            request.future.set_result(answer)
