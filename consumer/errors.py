"""The consumer's errors, by who must act."""

from __future__ import annotations


class ConsumerError(Exception):
    """The base of all that the consumer raises on purpose. `exit_status` is of a process that ends by it."""

    exit_status = 1


class SettingsError(ConsumerError):
    """A setting is wrong: it names the setting, what was found and what is accepted. Raised at start-up only."""

    exit_status = 2


class PositionError(ConsumerError):
    """A checkpoint cannot be trusted: corrupt, of another hub, or ahead of the hub. The operator decides."""

    exit_status = 3


class UnavailableError(ConsumerError):
    """A service cannot be reached or refuses for now. Safe to try again."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class FencedError(ConsumerError):
    """Somebody else has claimed the partition since: stop writing, never retry."""


class BacklogError(ConsumerError):
    """ALLOW_BACKLOG_OF or ALLOW_BACKLOG_TO is exceeded: names the oldest event and the cause. Ends the process."""

    exit_status = 4


class PoisonError(ConsumerError):
    """Nearly everything is rejected: the consumer stops before it drains the hub into the dead letters."""

    exit_status = 5


class ShutdownError(ConsumerError):
    """The deadline passed before all that was begun was settled. Nothing is lost: it comes again."""

    exit_status = 6


class OrphanedError(ConsumerError):
    """The parent of a worker is gone, so the worker stopped in order: nobody would watch it, or stop it."""

    exit_status = 7
