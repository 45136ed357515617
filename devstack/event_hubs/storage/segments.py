"""The files of one partition: append-only, and readable after a process was killed at any moment.

A segment is a row of records, each with the checksum of what it says. The first records of a
segment repeat where the partition stands, so that older segments may go at any time. A torn
record can only be the last one of the last segment: it was never acknowledged, and is cut off.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

SEGMENT_SIZE = 64 * 1024 * 1024  # bytes after which the next segment is begun

_HEAD = struct.Struct(">II")  # length and checksum of the rest
_REST = struct.Struct(">Bqqq")  # kind, and three numbers that depend on it
EVENT, NEXT, BEGIN, LAST, NOTE = 0, 1, 2, 3, 4


class Record(NamedTuple):
    """EVENT: sequence number, offset, enqueued time (ms) and the message.

    NEXT: the sequence number and offset that the next event gets.
    BEGIN: the first sequence number that is kept.
    LAST: sequence number, offset and time of the newest event, which may be gone by now.
    NOTE: a key and what is noted under it from here on; nothing, if the note is taken back.
    """

    kind: int
    number: int
    offset: int = 0
    time_ms: int = 0
    message: bytes = b""

    def encode(self) -> bytes:
        rest = _REST.pack(self.kind, self.number, self.offset, self.time_ms)
        checksum = zlib.crc32(self.message, zlib.crc32(rest))
        return _HEAD.pack(len(rest) + len(self.message), checksum) + rest + self.message


class Note(NamedTuple):
    """Something to remember beside the events; an empty text takes it back."""

    key: int
    text: bytes

    def record(self) -> Record:
        return Record(NOTE, self.key, message=self.text)


class Segments:
    """Appends to the newest segment of a folder, and drops the oldest. Not shared between processes."""

    def __init__(self, folder: Path, *, sync: bool = False) -> None:
        """`sync` makes every append outlive the machine, not only the process."""
        self._folder = folder
        self._sync = sync
        self._file: int | None = None
        self._size = 0
        folder.mkdir(parents=True, exist_ok=True)

    def load(self) -> Iterator[Record]:
        """All records, oldest first; cuts off a torn end. Call it before anything is appended."""
        for path in self._paths():
            data = path.read_bytes()
            position = 0
            for record, position in _records(data):  # noqa: B007 - where the last one ends
                yield record
            if position < len(data):
                os.truncate(path, position)

    def append(self, records: list[Record]) -> None:
        """Written, as far as a kill of this process is concerned, when it returns."""
        file = self._open() if self._file is None else self._file
        data = memoryview(b"".join(record.encode() for record in records))
        self._size += len(data)
        while data:
            data = data[os.write(file, data) :]
        if self._sync:
            os.fdatasync(file)

    @property
    def full(self) -> bool:
        """Whether it is time to `roll`."""
        return self._size >= SEGMENT_SIZE

    def roll(self, state: list[Record]) -> None:
        """Begin a new segment with records that say where the partition stands, a NEXT among them."""
        self.close()
        number = next(record.number for record in state if record.kind == NEXT)
        self._open(self._folder / f"{number:020}.segment")
        self.append(state)

    def drop_before(self, number: int) -> None:
        """Remove the segments of which all events have lower sequence numbers."""
        paths = self._paths()
        for path, following in pairwise(paths):
            if int(following.stem) > number:
                return
            path.unlink()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file, self._size = None, 0

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob("*.segment"))

    def _open(self, path: Path | None = None) -> int:
        if path is None:
            paths = self._paths()
            path = paths[-1] if paths else self._folder / f"{0:020}.segment"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._size = os.fstat(self._file).st_size
        return self._file


def _records(data: bytes) -> Iterator[tuple[Record, int]]:
    """Each whole record, and where it ends."""
    position = 0
    while position + _HEAD.size + _REST.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, position)
        start, end = position + _HEAD.size, position + _HEAD.size + length
        if length < _REST.size or end > len(data) or zlib.crc32(data[start:end]) != checksum:
            return
        kind, number, offset, time_ms = _REST.unpack_from(data, start)
        yield Record(kind, number, offset, time_ms, data[start + _REST.size : end]), end
        position = end
