"""What a pull has read so far, beside its file: a line for each piece, so that a killed pull goes on where it was.

The first line says whose minutes they are. A line that a kill left unfinished is cut off, and its piece read again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from tidemark.commands.history.model import Minute, Minutes, PullError, PullPlan

VERSION = 1

_Line = TypeVar("_Line")


class Head(Struct, frozen=True):
    """Minutes are only added to those of the same head."""

    version: int
    wanted: PullPlan


class Piece(Struct, frozen=True):
    """The answers about the minutes from `begin` on."""

    begin: int
    arrivals: list[float | None]
    instances: list[int | None] | None = None

    def minutes(self) -> Minutes:
        counted = self.instances or [None] * len(self.arrivals)
        pairs = enumerate(zip(self.arrivals, counted, strict=True), start=self.begin)
        return {minute: Minute(came, ran) for minute, (came, ran) in pairs}


def place_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial")


class Journal:
    """An open journal; `minutes` are those of all its pieces."""

    def __init__(self, file: int, path: Path) -> None:
        self._file = file
        self.path = path
        self.minutes: Minutes = {}
        self._removed = False

    def add(self, piece: Piece) -> None:
        """When it returns the piece is on the disk. Raises PullError."""
        self._write(piece)
        self.minutes |= piece.minutes()

    def remove(self) -> None:
        """There is nothing to go on with. Once: by the second time another pull may have begun one."""
        if not self._removed:
            self.path.unlink(missing_ok=True)
        self._removed = True

    def begin(self, wanted: PullPlan) -> None:
        """Takes over the pieces of an earlier pull, or begins. Raises PullError where they are of another pull."""
        data = os.pread(self._file, os.fstat(self._file).st_size, 0)
        head, end, rest = data.partition(b"\n")
        mine = Head(VERSION, msgspec.structs.replace(wanted, notes=()))
        if not end or b"\n" not in rest:  # new, or killed before anything was read
            os.ftruncate(self._file, 0)
            self._write(mine)
            return
        if _decoded(head, Head) != mine:
            raise PullError(
                f"{self.path} holds what another pull has read; finish that one, or remove the file: what it has read is asked for again then"
            )
        whole = len(head) + 1
        for line in rest.splitlines(keepends=True):
            piece = _decoded(line, Piece) if line.endswith(b"\n") else None
            if piece is None or (piece.instances is not None and len(piece.instances) != len(piece.arrivals)):
                break
            self.minutes |= piece.minutes()
            whole += len(line)
        os.ftruncate(self._file, whole)

    def _write(self, line: Head | Piece) -> None:
        rest = memoryview(msgspec.json.encode(line) + b"\n")
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
        except OSError as error:
            raise PullError(f"{self.path} cannot be written: {error.strerror}") from error


@contextmanager
def opened(path: Path, wanted: PullPlan) -> Iterator[Journal]:
    """The journal of the file `path`, which no other pull has meanwhile. Raises PullError."""
    place = place_of(path)
    try:
        file = os.open(place, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    except OSError as error:
        raise PullError(f"{place} cannot be opened: {error.strerror}") from error
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            current = os.path.samestat(os.fstat(file), place.stat())
        except OSError:
            current = False
        if not current:  # locked by another, or finished and removed by it just now
            raise PullError(f"{place} is in use by another pull to the same file")
        journal = Journal(file, place)
        journal.begin(wanted)
        try:
            yield journal
        finally:
            if not journal.minutes:  # a pull of nothing must not stand in the way of the next
                journal.remove()
    finally:
        os.close(file)


def _decoded(line: bytes, kind: type[_Line]) -> _Line | None:
    try:
        return msgspec.json.decode(line, type=kind)
    except (ValueError, RecursionError):
        return None
