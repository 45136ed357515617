"""Decides whether an unlisted failure is the fault of the record, or of the service, its schema or a right. Pure.

A record is at fault if it fails, another record that was begun later passes, and it then fails again with the same error,
or several times with other errors. While every record fails, none is blamed: a missing column must not move the whole hub
to the dead letters. A single record is not judged before another one comes.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from itertools import count

_MOST_SUSPECTS = 10_000
"""Suspects remembered at a time, about 2 MB, because records of lost claims are never settled here."""

_MOST_ERRORS = 1000  # remembered at a time, for the same reason; a schema has far fewer
_MOST_TIMES = 5
"""Failures of one record, with others passing in between, after which it is at fault although its errors differ. Chosen: the
service's own faults seldom meet one record five times while others pass."""


@dataclass(eq=False)
class _Suspect:
    """The failures of one record; `last` is the trial of the latest one."""

    errors: dict[str, int]
    """The trial in which each error was first seen."""
    times: int
    """Failures, with whatever error, before which another record had passed."""
    last: int


class Evidence:
    """Evidence about the records of one sink. Its time is the number of trials begun. Threads may share it."""

    def __init__(self) -> None:
        self._trials = count(1)
        self._latest_pass = 0  # the latest-begun trial that passed
        self._suspects: dict[Hashable, _Suspect] = {}
        self._believed: dict[
            str, tuple[set[Hashable], int]
        ] = {}  # by error: its records, and the latest trial

    def begin(self) -> int:
        """Begins a trial of one or several records; returns its number, for `passed`."""
        return next(self._trials)

    def passed(self, trial: int) -> None:
        """The service accepted what was begun as `trial`."""
        self._latest_pass = max(self._latest_pass, trial)

    def failed(self, record: Hashable, error: str) -> bool:
        """Notes that a trial of this record alone ended with `error`, a code that is equal for equal causes. True if the
        record is at fault.
        """
        suspect = self._suspects.get(record)
        if suspect is None:
            if len(self._suspects) >= _MOST_SUSPECTS:
                self._suspects.pop(next(iter(self._suspects)), None)
            self._suspects[record] = suspect = _Suspect({}, 0, next(self._trials))
        first = suspect.errors.get(error)
        if self._latest_pass > suspect.last:
            suspect.times += 1
        suspect.last = next(self._trials)
        if first is not None:
            return self._latest_pass > first or suspect.times >= _MOST_TIMES
        suspect.errors[error] = suspect.last
        return suspect.times >= _MOST_TIMES

    def is_decidable(self, record: Hashable) -> bool:
        """Whether another record passed since this one failed, so that its next trial may decide."""
        suspect = self._suspects.get(record)
        return suspect is not None and self._latest_pass > suspect.last

    def believe(self, record: Hashable, error: str) -> None:
        """Notes a record that is rejected for the service's error about it, although no other record passed meanwhile."""
        if len(self._believed) >= _MOST_ERRORS:
            self._believed.clear()
        records, at = self._believed.get(error, (set(), 0))
        run = records if self._latest_pass < at else set[Hashable]()
        self._believed[error] = ({*run, record}, next(self._trials))

    def believed_besides(self, records: Collection[Hashable], error: str) -> int:
        """How many other records were believed with this error since anything passed."""
        believed, at = self._believed.get(error, (set(), 0))
        return len(believed.difference(records)) if self._latest_pass < at else 0

    def is_repeated(self, record: Hashable, error: str) -> bool:
        """Whether another record was believed with this error, and nothing passed since."""
        return self.believed_besides({record}, error) > 0

    def is_doubtful(self, record: Hashable, error: str, alike: int) -> bool:
        """Whether the record may be innocent of the service's error about it, because nothing passes: one of `alike` records
        that failed together, or one after another that was believed. Otherwise it is believed.
        """
        if not self.failed(record, error) and (alike > 1 or self.is_repeated(record, error)):
            return True
        self.believe(record, error)
        return False

    def all_passed(self, trial: int, records: Iterable[Hashable]) -> None:
        """The service accepted all that was begun as `trial`, which were `records`."""
        self.passed(trial)
        if self._suspects:
            for record in records:
                self.settled(record)

    def settled(self, record: Hashable) -> None:
        """Forgets a record that was written or rejected."""
        if self._suspects:
            self._suspects.pop(record, None)
