"""The publisher's errors, by who must act. Each says what became of the events."""

from __future__ import annotations

import enum

from tidemark.foundation.errors import ShownError


class Outcome(enum.Enum):
    """What became of the events of a call that ended with an error."""

    NOT_STORED = "not stored"
    UNKNOWN = "unknown"
    """They were sent, and no answer came: they may be stored or not."""
    STORED = "stored"


class PublishError(ShownError):
    """The base of all that the publisher raises on purpose. `exit_status` is of a process that ends by it."""

    exit_status = 1
    outcome = Outcome.NOT_STORED

    def __init__(self, message: str, *, outcome: Outcome | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome or self.outcome


class PublishSettingsError(PublishError):
    """A setting or argument is wrong: it is named, with what was found and what is accepted."""

    exit_status = 2


class ProducerClosedError(PublishError):
    """The producer was closed; create another one."""


class PublishUnavailableError(PublishError):
    """A service cannot be reached or refuses for now, and all attempts are used up. Safe to try again."""


class FlushTimeoutError(PublishUnavailableError):
    """Not all events were settled by the deadline of a flush. They stay buffered; nothing is dropped."""


class PublishRefusedError(PublishError):
    """A service refuses for good: no such hub, no right to send, an entity that is disabled. Not retried."""


class MessageTooLargeError(PublishError):
    """An event or message is larger than the link or entity takes."""


class OutcomeUnknownError(PublishError):
    """The events were sent and no attempt was answered. Sending the *same* batch again is safe: it keeps its
    numbers, and the service drops it if it has it. What is sent instead gets a new identity, and is not lost.
    """

    outcome = Outcome.UNKNOWN


class AlreadyPublishedError(PublishError):
    """The batch, or one of the events, was published before and has its numbers: it is not a new request."""

    outcome = Outcome.STORED


class UnsupportedPublishingError(PublishError):
    """What was asked for cannot be done idempotently: the gateway, a partition key, a service or SDK without it."""


class ProducerDisconnectedError(PublishError):
    """Another producer has claimed the partition, by a higher owner level or through the state store. This one
    must not publish to the partition any more.
    """

    exit_status = 3


class InvalidProducerStateError(PublishError):
    """What this producer believes of the partition, and what the service or the state store does, differ. It is not
    safe to go on: close the producer and create it anew.
    """

    exit_status = 3
