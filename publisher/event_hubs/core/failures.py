"""What AMQP error conditions mean for a set of events, and which errors that gives (pure). Conditions are as the service
writes them.

Sources: the .NET client (AmqpError), the SDK (NO_RETRY_ERRORS), and live tests of the Python preview 5.4.0b1.
"""

from __future__ import annotations

from publisher import errors
from publisher.event_hubs.core.steps import FailureKind

TERMINAL: dict[FailureKind, type[errors.PublishError]] = {
    FailureKind.DISCONNECTED: errors.ProducerDisconnectedError,
    FailureKind.CONFLICT: errors.ProducerDisconnectedError,
    FailureKind.INVALID: errors.InvalidProducerStateError,
}
"""After these no more events go to the partition."""

FATAL: dict[FailureKind, type[errors.PublishError]] = {
    **TERMINAL,
    FailureKind.UNSUPPORTED: errors.UnsupportedPublishingError,
    FailureKind.TOO_LARGE: errors.MessageTooLargeError,
    FailureKind.REFUSED: errors.PublishRefusedError,
}
"""Another attempt would fail as well."""

ADVICE: dict[type[errors.PublishError], str] = {
    errors.ProducerDisconnectedError: "; this producer must not publish to it any more",
    errors.InvalidProducerStateError: "; close the producer and create it anew",
}

_SEQUENCING = {
    "com.microsoft:producer-epoch-stolen": FailureKind.DISCONNECTED,
    "com.microsoft:out-of-order-sequence": FailureKind.INVALID,
}
"""Final wherever they appear."""

_FINAL = {
    **_SEQUENCING,
    "amqp:unauthorized-access": FailureKind.REFUSED,
    "amqp:not-found": FailureKind.REFUSED,
    "amqp:not-implemented": FailureKind.REFUSED,
    "amqp:decode-error": FailureKind.REFUSED,
    "amqp:invalid-field": FailureKind.REFUSED,
    "amqp:precondition-failed": FailureKind.REFUSED,
    "com.microsoft:argument-error": FailureKind.REFUSED,
    "com.microsoft:argument-out-of-range": FailureKind.REFUSED,
    "com.microsoft:auth-failed": FailureKind.REFUSED,
    "com.microsoft:entity-disabled": FailureKind.REFUSED,
    "com.microsoft:precondition-failed": FailureKind.REFUSED,
}

_REJECTED = {
    **_FINAL,
    "amqp:link:message-size-exceeded": FailureKind.TOO_LARGE,
    "amqp:not-allowed": FailureKind.REFUSED,
    "amqp:resource-limit-exceeded": FailureKind.NOT_STORED,
    "com.microsoft:operation-cancelled": FailureKind.NOT_STORED,
    "com.microsoft:server-busy": FailureKind.BUSY,
}
"""With those above: the service answered that it did not take the events."""


def of_attach(condition: str, *, with_state: bool) -> FailureKind:
    """A link that was not opened: nothing was sent. An id that the service does not know is `amqp:not-allowed`."""
    if condition == "amqp:not-allowed":
        return FailureKind.INVALID if with_state else FailureKind.REFUSED
    if condition == "com.microsoft:server-busy":
        return FailureKind.BUSY
    return _FINAL.get(condition, FailureKind.NOT_STORED)


def of_rejection(condition: str) -> FailureKind:
    """A delivery that was rejected. `com.microsoft:timeout` and errors inside the service leave it open what it did."""
    return _REJECTED.get(condition, FailureKind.UNKNOWN)


def of_loss(condition: str) -> FailureKind:
    """A link or connection that ended between a delivery and its answer."""
    return _SEQUENCING.get(condition, FailureKind.UNKNOWN)
