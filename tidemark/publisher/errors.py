"""The publisher's errors, one for each reaction of the caller. `outcome` says what became of the events."""

from __future__ import annotations

import enum

from tidemark.foundation.errors import ShownError


class Outcome(enum.Enum):
    """What became of the events of a call that ended with an error."""

    NOT_STORED = "not stored"
    UNKNOWN = "unknown"
    """The events were sent, and no answer came: they may be stored."""
    STORED = "stored"


class PublishError(ShownError):
    """Base of the publisher's errors. `exit_status` is that of a command that ends with it."""

    exit_status = 1
    outcome = Outcome.NOT_STORED

    def __init__(self, message: str, *, outcome: Outcome | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome or self.outcome


class PublishSettingsError(PublishError):
    """A setting or argument is wrong. The message names it, its value and the accepted values."""

    exit_status = 2


class ProducerClosedError(PublishError):
    """The producer was closed; create another one."""


class PublishUnavailableError(PublishError):
    """A service is unreachable or busy, and all attempts have failed. Trying again is safe."""


class FlushTimeoutError(PublishUnavailableError):
    """A flush reached its deadline with events that are not settled. They stay buffered."""


class PublishRefusedError(PublishError):
    """A service refuses permanently: the hub is missing, the right to send is missing, or the entity is disabled. No retry."""


class MessageTooLargeError(PublishError):
    """An event or message is larger than the link or entity takes."""


class OutcomeUnknownError(PublishError):
    """The events were sent and no attempt was answered. Sending the *same* batch again is safe: it keeps its numbers, and the
    service drops it if it has stored it. Other events that are sent instead get a new identity, so none of them is lost.
    """

    outcome = Outcome.UNKNOWN


class AlreadyPublishedError(PublishError):
    """The batch, or one of the events, was published before. Make a new batch to send it once more."""

    outcome = Outcome.STORED


class UnsupportedPublishingError(PublishError):
    """Idempotent publishing is impossible here: by the gateway, by partition key, or with this service or SDK."""


class ProducerDisconnectedError(PublishError):
    """Another producer has claimed the partition, with a higher owner level or through the state store. This producer must
    stop publishing to the partition.
    """

    exit_status = 3


class InvalidProducerStateError(PublishError):
    """The producer's state of the partition contradicts the service or the state store. Going on is unsafe: close the
    producer and create a new one.
    """

    exit_status = 3
