"""What the big-batch sender and the claim check raise. Pure."""

from __future__ import annotations

from tidemark.publisher.errors import MessageTooLargeError, Outcome, PublishError
from tidemark.publisher.service_bus.core.send_report import SendReport


class OversizedMessageError(MessageTooLargeError):
    """One message is larger than the entity takes, and no claim check is set. Nothing of it was sent.

    `index` is its place in the iterable, `size` and `limit` are bytes.
    """

    def __init__(self, index: int, message_id: str, size: int, limit: int, hint: str) -> None:
        super().__init__(
            f"message {index} (message id {message_id}) has {size:,} bytes, accepted: up to {limit:,}; {hint}"
        )
        self.index, self.message_id, self.size, self.limit = index, message_id, size, limit


class UnsendableMessageError(PublishError):
    """What the iterable gave is no message, or one that cannot be encoded. `index` is its place in the iterable."""

    exit_status = 2

    def __init__(self, index: int, story: str) -> None:
        super().__init__(f"message {index}: {story}")
        self.index = index


class PartiallySentError(PublishError):
    """Not everything was sent. `report` says what became of every message; `resume(report)` sends the rest."""

    def __init__(self, report: SendReport) -> None:
        outcome = Outcome.UNKNOWN if report.unknown else Outcome.NOT_STORED
        super().__init__(f"{report.reason}: {report.summary()}", outcome=outcome)
        self.report = report


class ClaimCheckError(PublishError):
    """A body in a blob could not be stored or read for now. Safe to try again."""


class ClaimMissingError(ClaimCheckError):
    """The blob that a message refers to does not exist: it has expired, or was deleted too early."""


class ClaimDamagedError(ClaimCheckError):
    """The blob is not what the message was sent with: its size or its SHA-256 differ."""
