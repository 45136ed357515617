"""What a cell measures of its own process."""

from __future__ import annotations

import time

from msgspec import Struct


class Measured(Struct, frozen=True):
    """Wall time runs from the first record to the last; CPU from before the clients are made, user and system."""

    records: int
    wall: float
    cpu: float


class Meter:
    """`begin` before the first client is made, `first` with the first record, `done` after the last answer."""

    def __init__(self) -> None:
        self._cpu = self._began = self._ended = 0.0
        self._records = 0

    def begin(self) -> None:
        self._cpu = time.process_time()

    def first(self) -> None:
        self._began = self._began or time.perf_counter()

    def done(self, records: int, *, cpu: float | None = None) -> None:
        """`cpu` is that of other processes, in place of this one's."""
        self._cpu = time.process_time() - self._cpu if cpu is None else cpu
        self._ended = time.perf_counter()
        self._records = records

    def measured(self) -> Measured:
        return Measured(self._records, self._ended - self._began, self._cpu)
