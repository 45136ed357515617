"""One claim of a partition: its work list, and the rule when its checkpoint is saved.

Times are seconds of a monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from consumer.core.effects import CheckpointSaved, PartitionDrained, SaveCheckpoint
from consumer.core.parked import Parked
from consumer.core.settled.low_water import WorkList
from consumer.core.statistics import PartitionStatistics
from consumer.model import Claim


class ClaimedPartition:
    """One claim of a partition. With a transactional sink nothing is saved here: the sink commits the position with the rows."""

    def __init__(self, claim: Claim, *, transactional: bool) -> None:
        self.claim = claim
        self.work_list = WorkList(claim.partition, claim.checkpoint)
        self.last_enqueued: int | None = None  # as the hub reported it
        self.draining = False
        self.started = 0  # events attempted and not settled
        self.settled_unsaved = 0
        self.parked = Parked()
        self._transactional = transactional
        self._covered = 0  # how many of `settled_unsaved` the checkpoint has that is being saved
        self._drained = False
        self._saving = False
        self._refused = False  # the last save failed: the next one is not made early
        self._save_at = -math.inf  # from when on an early save is allowed

    @property
    def is_plain(self) -> bool:
        """Whether records that are to be written go to their lanes whatever they are: none is dead-lettered by the sink, or parked."""
        return not (self._transactional or self.parked.keys)

    def settle_all(self, sequence_numbers: Sequence[int]) -> None:
        self.work_list.settle_all(sequence_numbers)
        self.settled_unsaved += 0 if self._transactional else len(sequence_numbers)

    def settle(self, sequence_number: int) -> None:
        self.work_list.settle(sequence_number)
        self.settled_unsaved += not self._transactional  # a transactional sink has saved what is settled

    def drain(self) -> None:
        self.draining = True
        self._refused = False

    def start_save(self, now: float, every: float, after: int, *, due: bool) -> SaveCheckpoint | None:
        """The order to save a checkpoint now, or None.

        A checkpoint is saved when it is `due`; early, when `after` events were settled since the last one, but at most
        ten times in `every` seconds; and at once when a draining claim has settled everything.
        """
        early = not self._refused and (self.draining or now >= self._save_at)
        if not due and not early:
            return None
        if not (due or self.settled_unsaved >= after or (self.draining and not self._is_busy)):
            return None
        self._save_at = now + every / 10
        if self._transactional or self._saving or not self.work_list.dirty:
            return None
        self._saving = True
        self._covered = self.settled_unsaved
        claim = self.claim
        return SaveCheckpoint(claim, self.work_list.checkpoint(0.0, claim.owner, claim.epoch))

    def note_saved(self, item: CheckpointSaved) -> None:
        self._saving = False
        self._refused = not item.saved
        if item.saved:
            self.work_list.note_saved(item.checkpoint)
            self.settled_unsaved -= self._covered

    def report_drained(self) -> PartitionDrained | None:
        """Reports once that every event that was attempted, or is kept, is settled and saved; else None."""
        if not self.draining or self._drained or self._is_busy or self._saving:
            return None
        if not self._transactional and self.work_list.dirty:
            return None
        self._drained = True
        return PartitionDrained(self.claim.partition, self.claim.epoch)

    @property
    def _is_busy(self) -> bool:
        """Whether a draining claim still has events to settle."""
        return self.started > 0 or self.work_list.keeps

    def statistics(self) -> PartitionStatistics:
        """A snapshot of the present state."""
        return PartitionStatistics(
            partition=self.claim.partition,
            epoch=self.claim.epoch,
            last_enqueued=self.last_enqueued,
            received=self.work_list.received,
            low_water=self.work_list.mark[0],
            unsettled=self.work_list.unsettled,
            draining=self.draining,
            parked=self.parked.count,
        )
