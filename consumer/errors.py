"""The consumer's errors, by who must act."""

from __future__ import annotations


class ConsumerError(Exception):
    """The base of all that the consumer raises on purpose."""


class SettingsError(ConsumerError):
    """A setting is wrong: it names the setting, what was found and what is accepted. Raised at start-up only."""


class PositionError(ConsumerError):
    """A checkpoint cannot be trusted: corrupt, of another hub, or ahead of the hub. The operator decides."""


class UnavailableError(ConsumerError):
    """A service cannot be reached or refuses for now. Safe to try again."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class FencedError(ConsumerError):
    """Somebody else has claimed the partition since: stop writing, never retry."""


class BacklogError(ConsumerError):
    """ALLOW_BACKLOG_OF or ALLOW_BACKLOG_TO is exceeded: names the oldest event and the cause. Ends the process."""


class PoisonError(ConsumerError):
    """Nearly everything is rejected: the consumer stops before it drains the hub into the dead letters."""
