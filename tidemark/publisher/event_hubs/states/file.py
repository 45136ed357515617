"""Producer state in one file of this machine, for producers of the command line."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from tidemark.foundation.errors import UnavailableError
from tidemark.publisher.errors import InvalidProducerStateError
from tidemark.publisher.event_hubs.ports.state_store import StateConflictError, name_of
from tidemark.publisher.model import ProducerRecord, StateKey

_T = TypeVar("_T")
_States = dict[str, tuple[ProducerRecord, str]]


class FileStateStore:
    """A ProducerStateStore in one JSON file, for the partitions of any number of producers.

    Every save replaces the file and is on the disk before it returns. A lock on `<path>.lock`, which stays there, lets one
    process write at a time. The file system must be local: network shares may ignore locks.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._lock_path = self._path.with_name(self._path.name + ".lock")
        self._turn = asyncio.Lock()

    async def load(self, key: StateKey, *, deadline: float) -> tuple[ProducerRecord, str] | None:
        return (await self._in_thread(self._read, deadline)).get(name_of(key))

    async def names(self) -> list[str]:
        """The names (`name_of`) of all states in the file. Raises InvalidProducerStateError, UnavailableError."""
        return list(await self._in_thread(self._read, None))

    async def save(self, key: StateKey, record: ProducerRecord, token: str | None, *, deadline: float) -> str:
        return await self._in_thread(lambda: self._replace(name_of(key), record, token), deadline)

    async def aclose(self) -> None:
        """Nothing is open between two calls."""

    async def _in_thread(self, work: Callable[[], _T], deadline: float | None) -> _T:
        try:
            async with asyncio.timeout_at(deadline), self._turn:
                return await asyncio.to_thread(work)
        except TimeoutError:
            raise UnavailableError(f"{self._path} was not read or written by the deadline") from None
        except OSError as error:
            raise UnavailableError(f"{self._path}: {error}") from error

    def _replace(self, name: str, record: ProducerRecord, token: str | None) -> str:
        with self._lock():
            states = self._read()
            saved = states.get(name)
            if (None if saved is None else saved[1]) != token:
                raise StateConflictError(f"{self._path}: the state of {name} has changed")
            new_token = f"{record.writer}.{record.revision}"
            self._write({**states, name: (record, new_token)})
            return new_token

    def _read(self) -> _States:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_States)
        except FileNotFoundError:
            return {}
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidProducerStateError(
                f"{self._path} cannot be read as states of producers: {error}. A file of a later version needs that version. "
                "Otherwise remove the file, which publishes all of the input again"
            ) from None

    def _write(self, states: _States) -> None:
        """Write a new file, then rename it, so that a crash leaves the old file or the new one."""
        new = self._path.with_name(self._path.name + ".new")
        with new.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(states), indent=2))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
        sync_folder(self._path)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        with self._lock_path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield  # closing the file releases the lock


def sync_folder(path: Path) -> None:
    """Write the folder to the disk, so that the file keeps its name if the machine crashes."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
