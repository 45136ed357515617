"""The file of producer states: one JSON document, or a log of what changed since, for saves that cost one sync of some bytes.

A log begins with a line that names the format. Each further line is a checksum and a JSON object of states, the first one of all
states; the later line counts. New lines overwrite the padding at the end, so the length of the file stays, and the disk has one
block to write. A line that a crash has torn is the last one, and was never acknowledged. A bad line with a good one behind it is
damage, and is refused: without it an older state would count.
"""

from __future__ import annotations

import fcntl
import os
import time
import zlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tidemark.publisher.errors import InvalidProducerStateError
from tidemark.publisher.model import ProducerRecord

States = dict[str, tuple[ProducerRecord, str]]
"""Name of a state -> the record and its token."""

_FORMAT = b"tidemark producer states, log 1\n"
_ROOM = 256 * 1024
"""Bytes for new lines before the log is written anew. A line of one state has some 500 bytes, so a rewrite of a few
milliseconds is shared by 500 saves. Chosen.
"""
_POLL = 0.002  # seconds between two attempts to lock; chosen


class BusyError(Exception):
    """Another process holds the lock."""


class StateFile:
    """The states of one file, as of the last `refresh`. Call it in one thread at a time; others need the lock.

    Raises OSError, and InvalidProducerStateError for what cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock_path = path.with_name(path.name + ".lock")
        self.states: States = {}
        self._lock: int | None = None
        self._file: int | None = None
        self._inode = 0
        self._end = 0  # of the lines that were read or written
        self._last = b""  # the last line, to notice that another file was copied into this one
        self._size = 0
        self._is_doubtful = False  # after a failed sync

    # --- the lock

    def acquire(self, *, until: float | None = None) -> None:
        """Lock the file for other processes, waiting until then (time.monotonic). Raises BusyError."""
        if self._lock is None:
            self._lock = os.open(self.lock_path, os.O_RDWR | os.O_CREAT, 0o666)
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if until is None or time.monotonic() >= until:
                    raise BusyError(self._holder()) from None
                time.sleep(_POLL)
            else:
                line = b"%-12d\n" % os.getpid()
                if os.pread(self._lock, len(line), 0) != line:  # a write would change the file's time, too
                    os.pwrite(self._lock, line, 0)
                return

    def release(self) -> None:
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _holder(self) -> str:
        process = b"" if self._lock is None else os.pread(self._lock, 12, 0).strip()
        return f"process {process.decode() or 'unknown'}"

    # --- reading, with the lock

    def refresh(self) -> None:
        """Read what other processes have written since."""
        try:
            inode = self.path.stat().st_ino
        except FileNotFoundError:
            self._forget()
            return
        if self._file is None or inode != self._inode:
            self._read_all()
            return
        seen = os.pread(self._file, len(self._last) + 1, self._end - len(self._last))
        if seen != self._last + b"\n":
            self._read_all()

    def _read_all(self) -> None:
        self._forget()
        file = os.open(self.path, os.O_RDWR)
        content = _read(file)
        if content.startswith(_FORMAT):
            self._file, self._inode, self._size = file, os.fstat(file).st_ino, len(content)
            try:
                self._read_lines(content)
            except InvalidProducerStateError:
                self._forget()
                raise
            return
        os.close(file)
        try:
            self.states = msgspec.json.decode(content, type=States)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._unreadable(str(error)) from None

    def _read_lines(self, content: bytes) -> None:
        position, is_torn = len(_FORMAT), False
        self._end = position
        for line in content[position:].split(b"\n"):
            try:
                states = _states_in(line)
            except msgspec.MsgspecError as error:
                raise self._unreadable(str(error)) from None
            if states is None:
                is_torn = is_torn or bool(line)
            elif is_torn:
                raise self._unreadable(f"the line before byte {position} is damaged")
            else:
                self.states.update(states)
                self._last = line + b"\n"
                self._end = position + len(self._last)
            position += len(line) + 1
        if not self._last:
            raise self._unreadable("it has no state that is whole")

    def _unreadable(self, reason: str) -> InvalidProducerStateError:
        return InvalidProducerStateError(
            f"{self.path} cannot be read as states of producers: {reason}. A file of a later version needs that version. "
            "Otherwise remove the file, which publishes all of the input again"
        )

    def _forget(self) -> None:
        self.close()
        self.states, self._last, self._end = {}, b"", 0

    # --- writing, with the lock

    def write(self, changed: States) -> bool:
        """Write the states; returns whether they are on the disk already. Otherwise call `sync`, without the lock."""
        states = {**self.states, **changed}
        line = _line_of(changed)
        if self._file is None or self._is_doubtful or self._end + len(line) >= self._size:
            self.rewrite(states)
            return True
        os.pwrite(self._file, line, self._end)
        self._end += len(line)
        self.states, self._last = states, line
        return False

    def sync(self) -> None:
        """Wait until the written states are on the disk. After an error the next write goes to a new file: the system reports
        a failed write once, and may then answer that all is well.
        """
        if self._file is None:
            raise OSError("the file was given up after an error")
        try:
            os.fdatasync(self._file)
        except OSError:
            self._is_doubtful = True
            raise

    def rewrite(self, states: States, *, as_document: bool = False) -> None:
        """Write a new file, then rename it, so that a crash leaves the old file or the new one."""
        line = _line_of(states)
        document = msgspec.json.format(msgspec.json.encode(states), indent=2)
        content = document if as_document else _FORMAT + line + b"\n" * max(_ROOM, 8 * len(line))
        new = self.path.with_name(self.path.name + ".new")
        file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            _write(file, content)
            os.fsync(file)
            new.replace(self.path)
            sync_folder(self.path)
        except BaseException:
            os.close(file)
            self.close()  # whatever it is that the name stands for now
            raise
        self._forget()
        self.states, self._is_doubtful = states, False
        if as_document:
            os.close(file)
            return
        self._file, self._inode, self._size = file, os.fstat(file).st_ino, len(content)
        self._last, self._end = line, len(_FORMAT) + len(line)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def close_all(self) -> None:
        """Close the file and its lock. Leaves one JSON document, if the lock is free."""
        try:
            if self._file is not None:
                self.acquire()
                self.refresh()
                if self.states and self._file is not None:
                    self.rewrite(self.states, as_document=True)
        except (BusyError, OSError, InvalidProducerStateError):
            pass  # the log is as good
        finally:
            self.close()
            lock, self._lock = self._lock, None
            if lock is not None:
                os.close(lock)  # which releases it


def _line_of(states: Mapping[str, tuple[ProducerRecord, str]]) -> bytes:
    text = msgspec.json.encode(states)
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _states_in(line: bytes) -> States | None:
    """The states of a line; None if it is torn."""
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text) or not text:
        return None
    return msgspec.json.decode(text, type=States)


def _read(file: int) -> bytes:
    pieces = []
    while piece := os.read(file, 1024 * 1024):
        pieces.append(piece)
    return b"".join(pieces)


def _write(file: int, content: bytes) -> None:
    while content:
        content = content[os.write(file, content) :]


def sync_folder(path: Path) -> None:
    """Write the folder to the disk, so that the file keeps its name if the machine crashes."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
