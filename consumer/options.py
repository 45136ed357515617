"""What can be set of a consumer's work: how much it holds, how batches are cut, where a partition begins. Pure.

A field that an app setting says is annotated with the setting's name, a whole number also with the least accepted.
"""

from __future__ import annotations

from enum import StrEnum
from math import isfinite
from typing import Annotated

from msgspec import Struct

from tidemark.foundation.errors import SettingsError


class BacklogLimits(Struct, frozen=True):
    """What a pipeline may hold. Events count from receipt to settlement."""

    backlog_of: Annotated[int, "ALLOW_BACKLOG_OF"] = 320_000
    """More unsettled events than this end the process."""
    backlog_to: Annotated[float, "ALLOW_BACKLOG_TO"] = 600.0
    """An event whose first attempt is older than this ends the process."""
    high_count: Annotated[int, "CONSUMER_HIGH_EVENTS"] = 50_000
    """Receiving pauses at so many events, or at half of `backlog_of` if that is less, and resumes at half."""
    high_bytes: Annotated[int, "CONSUMER_HIGH_BYTES", 1024] = 256 * 1024 * 1024
    """Receiving pauses at so many bytes of events (body, key, properties) and documents, and resumes at half."""
    intake_seconds: float = 10.0
    """With a rate, no more than this many seconds of work is taken in: what waits could be somebody else's."""
    checkpoint_every: Annotated[float, "CONSUMER_CHECKPOINT_EVERY"] = 5.0
    checkpoint_after: Annotated[int, "CONSUMER_CHECKPOINT_AFTER"] = 500
    """So many settled events of a partition are saved before their time, but no sooner than a tenth of it after the
    last save: a killed process writes about that many again, one in a hundred of the high mark.
    """
    unsaved: int = 100_000
    """Receiving pauses when so many settled events of a partition are in no saved checkpoint (its store is down), or
    beyond one event that is not settled: each is held in memory, and could be written again."""
    poison: Annotated[int, "CONSUMER_POISON_LIMIT"] = 500
    """So many events rejected in a row, with none written between, end the process."""


class BatchLimits(Struct, frozen=True):
    """How batches are cut."""

    operations: Annotated[int, "CONSUMER_BATCH_OPERATIONS"] = 100
    """The service takes up to 100 operations per request."""
    bytes: Annotated[int, "CONSUMER_BATCH_BYTES", 1024] = 220_201
    """As the .NET, Java and JavaScript SDKs cut their bulk requests; a larger record travels alone."""
    flush_after: Annotated[float, "CONSUMER_FLUSH_AFTER"] = 1.0
    concurrency: Annotated[int, "CONSUMER_BATCH_CONCURRENCY"] = 20
    """Batches at once per lane; JavaScript's limit (.NET: 50)."""
    coalesce: Annotated[bool, "CONSUMER_COALESCE"] = False


class OnGap(StrEnum):
    CONTINUE = "continue"
    FAIL = "fail"


class OnDistrust(StrEnum):
    FAIL = "fail"
    EARLIEST = "earliest"
    LATEST = "latest"


class PositionPolicy(Struct, frozen=True):
    """`start` is for a partition without a checkpoint: "earliest", "latest" or a time in epoch seconds.

    Never "latest" by default: what was sent before the first start would be lost in silence.
    """

    start: str | float = "earliest"
    on_retention_gap: Annotated[OnGap, "CONSUMER_ON_RETENTION_GAP"] = OnGap.CONTINUE
    on_foreign_checkpoint: Annotated[OnDistrust, "CONSUMER_ON_FOREIGN_CHECKPOINT"] = OnDistrust.FAIL
    on_unreadable_checkpoint: Annotated[OnDistrust, "CONSUMER_ON_UNREADABLE_CHECKPOINT"] = OnDistrust.FAIL

    def __post_init__(self) -> None:
        """Raises SettingsError for a start that is none."""
        known = self.start in {"earliest", "latest"} if isinstance(self.start, str) else isfinite(self.start)
        if not known:
            raise SettingsError(
                f"start is {self.start!r}; accepted: 'earliest', 'latest', or a time in epoch seconds"
            )
