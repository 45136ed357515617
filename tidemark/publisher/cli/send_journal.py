"""The resume file of `tidemark send` on the disk: what it says is `tidemark.publisher.cli.resume_file`."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from tidemark.publisher.cli.resume_file import Entry, Ledger, Resume, differences_of, encode, read_ledger
from tidemark.publisher.errors import PublishError, PublishSettingsError
from tidemark.publisher.event_hubs.states.file import sync_folder


@dataclass(eq=False)
class SendJournal:
    """Written ahead: what is about to be sent is on the disk before it is, so that no kill and no loss of power makes
    a line that was sent look as if it were not. What came of it is written at once and gets to the disk with the next
    batch. One process at a time: the file is locked, which means nothing on some network shares.
    """

    path: Path
    _file: int
    ledger: Ledger
    unchecked: bool = False
    """Whether the file is of an earlier version, which did not write down the namespace and all options."""
    _failure: PublishError | None = None

    @classmethod
    @contextlib.contextmanager
    def begun(cls, path: Path, resume: Resume) -> Iterator[SendJournal]:
        """A new one. Raises PublishSettingsError if the path is the file of a run that has not sent everything."""
        with _locked(path, os.O_RDWR | os.O_CREAT) as file:
            if not (text := _content(file)) or read_ledger(text, str(path)).nothing_sent:
                os.ftruncate(file, 0)
            else:
                raise PublishSettingsError(
                    f"{path} is of a run that did not send everything: go on with --resume {path}, or remove it to "
                    "begin anew, which sends again what was sent"
                )
            journal = cls(path, file, Ledger(resume))
            journal._write(encode(resume), lasting=True)
            sync_folder(path)
            yield journal

    @classmethod
    @contextlib.contextmanager
    def continued(cls, path: Path, wanted: Resume, new_path: Path) -> Iterator[SendJournal]:
        """That of an earlier run, which moves to the new path. Raises PublishSettingsError for what is none, and for
        that of another entity or other options than are wanted.
        """
        with _locked(path, os.O_RDWR) as old:
            ledger = read_ledger(_content(old), str(path))
            if differences := differences_of(ledger.begun, wanted):
                raise PublishSettingsError(
                    f"{path} is of another run: {'; '.join(differences)}. Give what it was, which sends the rest there; or leave --resume out and name another --resume-file, which sends all lines, also "
                    "those that were sent before"
                )
            unchecked = ledger.begun.given is None
            created_at = wanted.created_at or ledger.begun.created_at
            ledger.begun = replace(ledger.begun, given=wanted.given, created_at=created_at)
            found = ledger.summary()
            moves = not (new_path.exists() and new_path.samefile(path))
            if moves and new_path.exists():
                raise _unusable(f"{new_path} exists")
            # Written anew: shorter, and without a last line that a kill left unfinished.
            written = path.with_name(path.name + ".new")
            with _locked(written, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as file:
                journal = cls(new_path, file, ledger, unchecked)
                journal._write(encode(found), lasting=True)
                written.replace(path)
                if moves:
                    path.rename(new_path)
                    sync_folder(path)
                sync_folder(new_path)
                yield journal

    def enter(self, entry: Entry, *, lasting: bool = False) -> None:
        """Raises PublishError if it cannot be written; `lasting`: it is on the disk."""
        self._write(encode(entry), lasting=lasting)
        self.ledger.enter(entry)

    def remove(self) -> None:
        """There is nothing to go on with."""
        self.path.unlink(missing_ok=True)

    def _write(self, text: bytes, *, lasting: bool) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            rest = memoryview(text)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            if lasting:
                os.fsync(self._file)
        except OSError as error:
            self._failure = PublishError(
                f"{self.path} cannot be written ({error.strerror}): nothing more is sent without it; mend that, then "
                f"go on with --resume {self.path}"
            )
            raise self._failure from error


@contextlib.contextmanager
def _locked(path: Path, flags: int) -> Iterator[int]:
    """The file, which nobody else has."""
    while True:
        try:
            file = os.open(path, flags, 0o666)
        except OSError as error:
            raise _unusable(f"{path}: {error.strerror}") from error
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise _unusable(f"{path} is no file")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _unusable(f"{path} is in use by another tidemark send") from None
            except OSError as error:  # some network shares have no locks
                raise _unusable(f"{path} cannot be locked: {error.strerror}") from error
            if not _is_at(file, path):
                continue  # the one before us has removed or replaced it
            yield file
            return
        finally:
            os.close(file)


def _unusable(story: str) -> PublishSettingsError:
    return PublishSettingsError(f"{story}; --resume-file names another place")


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _content(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)
