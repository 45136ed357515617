"""Whose fault a failure is that no list knows: the record's, or that of the service, its schema or a right. Pure.

A record is at fault when it fails, another record that was begun later passes, and then it fails again with the same
error. While every record fails, nothing is said of any: a missing column must not empty the hub into the dead letters.
With a single record the verdict waits for a neighbour.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import count

_MOST_SUSPECTS = 10_000
"""Suspects remembered at a time, so that claims that were lost leave no growing rest: about 2 MB."""


class Evidence:
    """What was seen of the records of one sink. Its time is the number of trials begun. Threads may share it."""

    def __init__(self) -> None:
        self._trials = count(1)
        self._latest_pass = 0  # the number of the latest-begun trial that passed
        self._suspects: dict[Hashable, tuple[str, int]] = {}  # the error, and when it was first seen

    def begin(self) -> int:
        """A trial of one record or of several: its number, for `passed`."""
        return next(self._trials)

    def passed(self, trial: int) -> None:
        """The service accepted what was begun as `trial`."""
        self._latest_pass = max(self._latest_pass, trial)

    def failed(self, record: Hashable, error: str) -> bool:
        """A trial of this record alone ended with `error`, a code that is equal for equal causes. True: the record is at
        fault.
        """
        before = self._suspects.get(record)
        if before is None or before[0] != error:
            if len(self._suspects) >= _MOST_SUSPECTS:
                self._suspects.pop(next(iter(self._suspects)), None)
            self._suspects[record] = (error, next(self._trials))
            return False
        return self._latest_pass > before[1]

    def is_decidable(self, record: Hashable) -> bool:
        """Whether another record passed since this one failed: its next trial decides."""
        before = self._suspects.get(record)
        return before is not None and self._latest_pass > before[1]

    def settled(self, record: Hashable) -> None:
        """The record was written or rejected."""
        if self._suspects:
            self._suspects.pop(record, None)
