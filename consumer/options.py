"""What can be set of a consumer's work: how much it holds, how batches are cut, where a partition begins. Pure."""

from __future__ import annotations

from enum import StrEnum
from math import isfinite

from msgspec import Struct

from foundation.errors import SettingsError


class BacklogLimits(Struct, frozen=True):
    """What a pipeline may hold. Events count from receipt to settlement."""

    backlog_of: int = 320_000
    """ALLOW_BACKLOG_OF of the seed: more unsettled events than this end the process."""
    backlog_to: float = 600.0
    """ALLOW_BACKLOG_TO of the seed: an event whose first attempt is older than this ends the process."""
    high_count: int = 50_000
    """Receiving pauses at so many events, or at half of `backlog_of` if that is less, and resumes at half."""
    high_bytes: int = 256 * 1024 * 1024
    """Receiving pauses at so many bytes of events (body, key, properties) and documents, and resumes at half."""
    intake_seconds: float = 10.0
    """With a rate, no more than this many seconds of work is taken in: what waits could be somebody else's."""
    checkpoint_every: float = 5.0
    checkpoint_after: int = 500
    """So many settled events of a partition are saved before their time, but no sooner than a tenth of it after the
    last save: a killed process writes about that many again, one in a hundred of the high mark.
    """
    unsaved: int = 100_000
    """Receiving pauses when so many settled events of a partition are in no saved checkpoint (its store is down), or
    beyond one event that is not settled: each is held in memory, and could be written again."""
    poison: int = 500
    """So many events rejected in a row, with none written between, end the process."""


class BatchLimits(Struct, frozen=True):
    """How batches are cut."""

    operations: int = 100
    """The service takes up to 100 operations per request."""
    bytes: int = 220_201
    """As the .NET, Java and JavaScript SDKs cut their bulk requests; a larger record travels alone."""
    flush_after: float = 1.0
    concurrency: int = 20
    """Batches at once per lane; JavaScript's limit (.NET: 50)."""
    coalesce: bool = False


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
    on_retention_gap: OnGap = OnGap.CONTINUE
    on_foreign_checkpoint: OnDistrust = OnDistrust.FAIL
    on_unreadable_checkpoint: OnDistrust = OnDistrust.FAIL

    def __post_init__(self) -> None:
        """Raises SettingsError for a start that is none."""
        known = self.start in {"earliest", "latest"} if isinstance(self.start, str) else isfinite(self.start)
        if not known:
            raise SettingsError(
                f"start is {self.start!r}; accepted: 'earliest', 'latest', or a time in epoch seconds"
            )
