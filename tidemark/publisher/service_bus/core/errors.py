"""Errors of the big-batch sender and of claim checks. Pure."""

from __future__ import annotations

from tidemark.publisher.errors import MessageTooLargeError, Outcome, PublishError
from tidemark.publisher.service_bus.core.send_report import SendReport


class OversizedMessageError(MessageTooLargeError):
    """One message is larger than the entity allows, and no claim check is set. It was not sent.

    `index` is its place in the iterable, `size` and `limit` are bytes.
    """

    def __init__(self, index: int, message_id: str, size: int, limit: int, hint: str) -> None:
        super().__init__(
            f"message {index} (message id {message_id}) has {size:,} bytes, accepted: up to {limit:,}; {hint}"
        )
        self.index, self.message_id, self.size, self.limit = index, message_id, size, limit


class UnsendableMessageError(PublishError):
    """An item of the iterable is no message, or cannot be encoded. `index` is its place in the iterable."""

    exit_status = 2

    def __init__(self, index: int, problem: str) -> None:
        super().__init__(f"message {index}: {problem}")
        self.index = index


class PartiallySentError(PublishError):
    """Not all messages were sent. `report` has the outcome of every message; `resume(report)` sends the rest."""

    def __init__(self, report: SendReport) -> None:
        outcome = Outcome.UNKNOWN if report.unknown else Outcome.NOT_STORED
        super().__init__(f"{report.reason}: {report.summary()}", outcome=outcome)
        self.report = report


class ClaimCheckError(PublishError):
    """A body could not be stored in its blob or read from it. Trying again is safe."""


class ClaimMissingError(ClaimCheckError):
    """The blob that a message refers to does not exist: it has expired, or was deleted too early."""


class ClaimSettledError(ClaimMissingError):
    """The blob has a mark instead of the body: another delivery or copy of the message was processed."""


class ClaimDamagedError(ClaimCheckError):
    """The blob differs from the body that was sent, in size or SHA-256."""
