"""The errors of the consumer. Each says who must act."""

from __future__ import annotations

from tidemark.foundation.errors import TidemarkError


class PositionError(TidemarkError):
    """A checkpoint cannot be trusted: corrupt, of another hub, or ahead of the hub. The operator decides."""

    exit_status = 3


def unreadable_checkpoint(partition: str, location: str, why: object) -> PositionError:
    """The error for a damaged checkpoint, with the possible repairs and the cost of each."""
    return PositionError(
        f"the checkpoint of partition {partition}, {location}, cannot be read: {why}. Set the position with 'tidemark checkpoints set"
        f" --partition {partition}' and --earliest (all that the hub has is written again), --sequence-number, --time, or --latest"
        " (what came before is left out)"
    )


class UnreadableError(TidemarkError):
    """What is stored as a dead letter, or parked event, is none. It stays until the operator has seen it."""


class FencedError(TidemarkError):
    """Another consumer has claimed the partition: stop writing, and do not retry."""


class BacklogError(TidemarkError):
    """ALLOW_BACKLOG_OF or ALLOW_BACKLOG_TO is exceeded: names the oldest event and the cause. Ends the process."""

    exit_status = 4


class PoisonError(TidemarkError):
    """Many events in a row were rejected: the consumer stops before the whole hub becomes dead letters."""

    exit_status = 5


class ShutdownError(TidemarkError):
    """The deadline passed before every attempted event was settled. None is lost: they are received again."""

    exit_status = 6


class OrphanedError(TidemarkError):
    """The parent of a worker has ended, so the worker stopped in order: nothing would watch or stop it."""

    exit_status = 7
