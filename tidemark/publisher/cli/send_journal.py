"""The resume file of `tidemark send` on the disk. Its content is defined in `tidemark.publisher.cli.resume_file`."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from tidemark.publisher.cli.resume_file import (
    Entry,
    LineOutcomes,
    Resume,
    describe_changes,
    encode,
    read_resume_file,
)
from tidemark.publisher.errors import PublishError, PublishSettingsError
from tidemark.publisher.event_hubs.states.state_file import sync_folder


@dataclass(eq=False)
class SendJournal:
    """A write-ahead log: a batch is on the disk before it is sent, so that after a kill or a loss of power no sent line counts
    as unsent. The outcome is written at once, and reaches the disk with the next batch.

    A lock on the file keeps other processes out; some network shares ignore it.
    """

    path: Path
    _file: int
    outcomes: LineOutcomes
    unchecked: bool = False
    """Whether an earlier version wrote the file, without the namespace and some options."""
    _failure: PublishError | None = None

    @classmethod
    @contextlib.contextmanager
    def begin(cls, path: Path, start: Resume) -> Iterator[SendJournal]:
        """Create the file. Raises PublishSettingsError if a run that has not sent everything left one at the path."""
        with _lock(path, os.O_RDWR | os.O_CREAT) as file:
            if not (text := _read_all(file)) or read_resume_file(text, str(path)).nothing_sent:
                os.ftruncate(file, 0)
            else:
                raise PublishSettingsError(
                    f"{path} is of a run that did not send everything: go on with --resume {path}, or remove the file to "
                    "begin anew, which sends all lines again"
                )
            journal = cls(path, file, LineOutcomes(start))
            journal._write(encode(start), durable=True)
            sync_folder(path)
            yield journal

    @classmethod
    @contextlib.contextmanager
    def resume(cls, path: Path, wanted: Resume, new_path: Path) -> Iterator[SendJournal]:
        """Go on with the file of an earlier run, and move it to the new path.

        Raises PublishSettingsError if it is no resume file, or of another entity or other options than `wanted`.
        """
        with _lock(path, os.O_RDWR) as old:
            outcomes = read_resume_file(_read_all(old), str(path))
            if differences := describe_changes(outcomes.start, wanted):
                raise PublishSettingsError(
                    f"{path} is of another run: {'; '.join(differences)}. Give the options of before, which send the rest there; "
                    "or leave --resume out and name another --resume-file, which sends all lines, also those that were sent before"
                )
            unchecked = outcomes.start.given is None
            created_at = wanted.created_at or outcomes.start.created_at
            outcomes.start = replace(outcomes.start, given=wanted.given, created_at=created_at)
            summary = outcomes.summary()
            is_moved = not (new_path.exists() and new_path.samefile(path))
            if is_moved and new_path.exists():
                raise _unusable(f"{new_path} exists")
            # A new file is shorter, and lacks the last line that a kill may have left unfinished.
            new_file = path.with_name(path.name + ".new")
            with _lock(new_file, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as file:
                journal = cls(new_path, file, outcomes, unchecked)
                journal._write(encode(summary), durable=True)
                new_file.replace(path)
                if is_moved:
                    path.rename(new_path)
                    sync_folder(path)
                sync_folder(new_path)
                yield journal

    def enter(self, entry: Entry, *, durable: bool = False) -> None:
        """Write the entry; with `durable`, it is on the disk on return. Raises PublishError if it cannot be written."""
        self._write(encode(entry), durable=durable)
        self.outcomes.enter(entry)

    def remove(self) -> None:
        """Delete the file, once nothing is left to send."""
        self.path.unlink(missing_ok=True)

    def _write(self, text: bytes, *, durable: bool) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            unwritten = memoryview(text)
            while unwritten:
                unwritten = unwritten[os.write(self._file, unwritten) :]
            if durable:
                os.fsync(self._file)
        except OSError as error:
            self._failure = PublishError(
                f"{self.path} cannot be written ({error.strerror}), so nothing more is sent. Make it writable, then "
                f"go on with --resume {self.path}"
            )
            raise self._failure from error


@contextlib.contextmanager
def _lock(path: Path, flags: int) -> Iterator[int]:
    while True:
        try:
            file = os.open(path, flags, 0o666)
        except OSError as error:
            raise _unusable(f"{path}: {error.strerror}") from error
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise _unusable(f"{path} is not a regular file")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _unusable(f"{path} is in use by another tidemark send") from None
            except OSError as error:  # some network shares have no locks
                raise _unusable(f"{path} cannot be locked: {error.strerror}") from error
            if not _is_still_at(file, path):
                continue  # the process that held the lock has removed or replaced it
            yield file
            return
        finally:
            os.close(file)


def _unusable(problem: str) -> PublishSettingsError:
    return PublishSettingsError(f"{problem}; name another path with --resume-file")


def _is_still_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _read_all(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)
