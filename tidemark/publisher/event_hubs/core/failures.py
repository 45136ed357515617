"""What AMQP error conditions mean for a set of events, and which errors that gives (pure). Conditions are as the service
writes them.

Sources: the .NET client (AmqpError), the SDK (NO_RETRY_ERRORS), and live tests of the Python preview 5.4.0b1.
"""

from __future__ import annotations

from tidemark.publisher import errors
from tidemark.publisher.event_hubs.core.event_sets import last_of
from tidemark.publisher.event_hubs.core.steps import FailureKind
from tidemark.publisher.model import Claims, PendingSet

TERMINAL: dict[FailureKind, type[errors.PublishError]] = {
    FailureKind.DISCONNECTED: errors.ProducerDisconnectedError,
    FailureKind.CONFLICT: errors.ProducerDisconnectedError,
    FailureKind.INVALID: errors.InvalidProducerStateError,
    FailureKind.FORGOTTEN: errors.InvalidProducerStateError,
}
"""After these no more events go to the partition."""

FATAL: dict[FailureKind, type[errors.PublishError]] = {
    **TERMINAL,
    FailureKind.UNSUPPORTED: errors.UnsupportedPublishingError,
    FailureKind.TOO_LARGE: errors.MessageTooLargeError,
    FailureKind.REFUSED: errors.PublishRefusedError,
}
"""Another attempt would fail as well."""

ANEW = "all of the input is published, also what was published before"
"""What it costs to begin without the saved state."""

ANOTHER_STATE = f"publish with another saved state (tidemark publish: another --state file): {ANEW}"

DELETED = f"its saved state was deleted. A producer that is created anew begins without one: {ANEW}"


def advice_on(error: type[errors.PublishError], *, has_state: bool) -> str:
    """What ends the sentence on why a producer ended."""
    if error is errors.ProducerDisconnectedError:
        return "; this producer must not publish to it any more"
    if error is not errors.InvalidProducerStateError:
        return ""
    again = (
        f". If that ends here again, the saved state is an older copy: {ANOTHER_STATE}" if has_state else ""
    )
    return f"; close the producer and create it anew{again}"


def of_another_hub(before: str, now: str | None) -> str:
    return (
        f"the hub was made anew: its saved state is of the hub created at {before}, this one was created at {now}, and what "
        f"was published before is not in it; nothing was sent. To fill it, {ANOTHER_STATE}"
    )


def of_forgotten(id_: int | None, story: str, pending: PendingSet | None) -> str:
    """Nobody can tell any more whether the pending set is stored; without one, whether it is the same hub."""
    begun = f"{story}; the service does not know producer {id_} any more, so that"
    if pending is None:
        return (
            f"{begun} this may be a hub that was made anew, and the saved state, of an earlier version, does not say of which "
            "hub it is. If the hub is the same, go on with resend_unknown (tidemark publish: --resend-unknown), which doubles "
            f"nothing then. Else {ANOTHER_STATE}"
        )
    return (
        f"{begun} nobody can tell whether the {pending.count} events of the set that was sent last are stored. "
        "Created anew, a producer with resend_unknown (tidemark publish: --resend-unknown) sends them again, which doubles them "
        "if they are; one that is told to abandon_pending() goes on with other events"
    )


def of_forgotten_option(id_: int | None, story: str) -> str:
    return (
        f"{story}; the service does not know producer_group_id {id_} of the options (any more). Leave it out: the service then "
        "gives a new one, under which a set whose outcome is unknown is stored twice when it is sent again"
    )


def of_other_events(pending: PendingSet, bookmark: str | None) -> str:
    return (
        f"the saved state has a set of {pending.count} events from {pending.first} on that may or may not be stored, after "
        f"bookmark {bookmark!r} up to {pending.bookmark!r}; send exactly these events first, or give them up with "
        "abandon_pending() (tidemark publish: --resend-unknown sends them as they are now, which doubles those that are stored)"
    )


def of_fixed_identity(id_: int, pending: PendingSet) -> str:
    return (
        f"it is unknown whether the events {pending.first} to {last_of(pending.first, pending.count)} were stored, and "
        f"producer_group_id {id_} of the options allows no new identity: send the same batch again, or create the producer anew"
    )


def of_claims(claimed: Claims, said: Claims) -> tuple[type[errors.PublishError], str] | None:
    """What is wrong with the service's answer to an attach; None if nothing is."""
    missing = [name for name, value in zip(Claims._fields, said, strict=True) if value is None]
    if len(missing) == len(said):
        return errors.UnsupportedPublishingError, (
            "the service does not offer idempotent publishing (com.microsoft:idempotent-producer): it needs the standard tier "
            "or higher; or create the producer with enable_idempotent_partitions=False"
        )
    if missing:
        return (
            errors.InvalidProducerStateError,
            f"the service opened the link without {', '.join(missing)}",
        )
    for name, mine, theirs in zip(Claims._fields[:2], claimed, said, strict=False):
        if mine is not None and mine != theirs:
            return (
                errors.InvalidProducerStateError,
                f"{name} is {mine} here, but the service answers {theirs}",
            )
    return None


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
        return FailureKind.FORGOTTEN if with_state else FailureKind.REFUSED
    if condition == "com.microsoft:server-busy":
        return FailureKind.BUSY
    return _FINAL.get(condition, FailureKind.NOT_STORED)


def of_rejection(condition: str) -> FailureKind:
    """A delivery that was rejected. `com.microsoft:timeout` and errors inside the service leave it open what it did."""
    return _REJECTED.get(condition, FailureKind.UNKNOWN)


def of_loss(condition: str) -> FailureKind:
    """A link or connection that ended between a delivery and its answer."""
    return _SEQUENCING.get(condition, FailureKind.UNKNOWN)
