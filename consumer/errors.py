"""The consumer's errors, by who must act."""

from __future__ import annotations

from tidemark.foundation.errors import TidemarkError


class PositionError(TidemarkError):
    """A checkpoint cannot be trusted: corrupt, of another hub, or ahead of the hub. The operator decides."""

    exit_status = 3


def unreadable_checkpoint(partition: str, place: str, why: object) -> PositionError:
    """The error for a checkpoint that is damaged, with the ways on and what each costs."""
    return PositionError(
        f"the checkpoint of partition {partition}, {place}, cannot be read: {why}. Set the position with 'tidemark checkpoints set"
        f" --partition {partition}' and --earliest (all that the hub has is written again), --sequence-number, --time, or --latest"
        " (what came before is left out)"
    )


class FencedError(TidemarkError):
    """Somebody else has claimed the partition since: stop writing, never retry."""


class BacklogError(TidemarkError):
    """ALLOW_BACKLOG_OF or ALLOW_BACKLOG_TO is exceeded: names the oldest event and the cause. Ends the process."""

    exit_status = 4


class PoisonError(TidemarkError):
    """Nearly everything is rejected: the consumer stops before it drains the hub into the dead letters."""

    exit_status = 5


class ShutdownError(TidemarkError):
    """The deadline passed before all that was begun was settled. Nothing is lost: it comes again."""

    exit_status = 6


class OrphanedError(TidemarkError):
    """The parent of a worker is gone, so the worker stopped in order: nobody would watch it, or stop it."""

    exit_status = 7
