"""One claim of a partition: its work list, and when its checkpoint is saved.

Times are seconds of a monotonic clock.
"""

from __future__ import annotations

import math

from consumer.core.effects import CheckpointSaved, PartitionDrained, SaveCheckpoint
from consumer.core.settled.low_water import WorkList
from consumer.core.statistics import PartitionStatistics
from consumer.model import Claim


class ClaimedPartition:
    """One claim. A transactional sink saves the position itself, with the rows."""

    def __init__(self, claim: Claim, *, transactional: bool) -> None:
        self.claim = claim
        self.work_list = WorkList(claim.partition, claim.checkpoint)
        self.last_enqueued: int | None = None
        self.draining = False
        self.started = 0  # begun and not settled
        self.settled_unsaved = 0
        self._transactional = transactional
        self._covered = 0  # of these, in the checkpoint that is being saved
        self._drained = False
        self._saving = False
        self._refused = False  # the last save failed: the next one waits for its time
        self._save_at = -math.inf  # when much to save may be saved before its time

    def enqueued(self, last: int | None) -> None:
        """The hub told the partition's last sequence number."""
        if last is not None:
            self.last_enqueued = max(last, self.last_enqueued or 0)

    def settle(self, sequence_number: int) -> None:
        self.work_list.settle(sequence_number)
        self.settled_unsaved += not self._transactional  # there, settled means saved

    def drain(self) -> None:
        self.draining = True
        self._refused = False

    def save(self, now: float, every: float, after: int, *, due: bool) -> SaveCheckpoint | None:
        """The checkpoint to be saved now, if one is: when it is `due`; before that when `after` events settled since
        the last one, though at most ten times in the time between two (`every`); and at once when all is drained.
        """
        early = not self._refused and (self.draining or now >= self._save_at)
        if not due and not early:
            return None
        if not (due or self.settled_unsaved >= after or (self.draining and not self.started)):
            return None
        self._save_at = now + every / 10
        if self._transactional or self._saving or not self.work_list.dirty:
            return None
        self._saving = True
        self._covered = self.settled_unsaved
        claim = self.claim
        return SaveCheckpoint(claim, self.work_list.checkpoint(0.0, claim.owner, claim.epoch))

    def saved(self, item: CheckpointSaved) -> None:
        self._saving = False
        self._refused = not item.saved
        if item.saved:
            self.work_list.saved(item.checkpoint)
            self.settled_unsaved -= self._covered

    def drained(self) -> PartitionDrained | None:
        """The news, once, that everything begun is settled and saved."""
        if not self.draining or self._drained or self.started or self._saving:
            return None
        if not self._transactional and self.work_list.dirty:
            return None
        self._drained = True
        return PartitionDrained(self.claim.partition, self.claim.epoch)

    def statistics(self) -> PartitionStatistics:
        """A picture of the present state."""
        return PartitionStatistics(
            partition=self.claim.partition,
            epoch=self.claim.epoch,
            last_enqueued=self.last_enqueued,
            received=self.work_list.received,
            low_water=self.work_list.mark[0],
            unsettled=self.work_list.unsettled,
            draining=self.draining,
        )
