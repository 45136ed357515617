"""Maps AMQP error conditions, as the service writes them, to failures and to the errors of the publisher (pure).

Sources: the .NET client (AmqpError), the SDK (NO_RETRY_ERRORS), and live tests of the Python preview 5.4.0b1.
"""

from __future__ import annotations

from tidemark.foundation.wording import count_text
from tidemark.publisher import errors
from tidemark.publisher.event_hubs.core.steps import FailureKind
from tidemark.publisher.model import Claims, Holder, PendingSet, last_of

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
"""The cost of starting without the saved state."""

ANOTHER_STATE = f"publish with another saved state (tidemark publish: another --state file): {ANEW}"

DELETED = f"its saved state was deleted. A new producer starts without it: {ANEW}"


def advice_on(error: type[errors.PublishError], *, has_state: bool) -> str:
    """The advice that follows the reason why a producer ended."""
    if error is errors.ProducerDisconnectedError:
        return "; this producer must not publish to it any more"
    if error is not errors.InvalidProducerStateError:
        return ""
    again = (
        f". If that ends here again, the saved state is an older copy: {ANOTHER_STATE}" if has_state else ""
    )
    return f"; close the producer and create it anew{again}"


def of_takeover(holder: Holder, mine: Holder) -> str:
    """Of two processes with one saved state, the error of the one that was overtaken names the other one."""
    return (
        f"another producer has taken its saved state over: {holder.process}, which publishes since {holder.since} (its clock) with "
        f"epoch {holder.epoch}; this is {mine.process}, since {mine.since}, epoch {mine.epoch}, and sends nothing any more. One "
        "process at a time publishes with a saved state. Let the other one go on; or end it, and start this one again, which "
        "continues where the other ended. To publish beside it, give this one a name or a saved state of its own (tidemark "
        f"publish: --name, --state): {ANEW}"
    )


def of_another_hub(before: str, now: str | None) -> str:
    return (
        f"the hub was recreated: the saved state is of the hub created at {before}, this one was created at {now} and lacks "
        f"the events published before; nothing was sent. To fill it, {ANOTHER_STATE}"
    )


def of_forgotten(id_: int | None, reason: str, pending: PendingSet | None) -> str:
    """The service cannot say whether the pending set is stored; without one, whether the hub is the same."""
    prefix = f"{reason}; the service has forgotten producer {id_}, so"
    if pending is None:
        return (
            f"{prefix} the hub may have been recreated; the saved state, of an earlier version, does not identify its hub. If the "
            "hub is the same, go on with resend_unknown (tidemark publish: --resend-unknown), which then doubles nothing. "
            f"Otherwise {ANOTHER_STATE}"
        )
    return (
        f"{prefix} it is unknown whether the last set of {count_text(pending.count, 'event')} is stored. "
        "Create a new producer: with resend_unknown (tidemark publish: --resend-unknown) it sends the set again, which doubles it "
        "if it is stored; after abandon_pending() it goes on with other events"
    )


def of_forgotten_option(id_: int | None, reason: str) -> str:
    return (
        f"{reason}; the service does not know producer_group_id {id_} of the options. Leave the option out: the service then "
        "assigns a new id, under which a set with an unknown outcome may be stored twice if it is sent again"
    )


def of_other_events(pending: PendingSet, bookmark: str | None) -> str:
    where = "" if pending.bookmark is None else f", after bookmark {bookmark!r} up to {pending.bookmark!r}"
    return (
        f"the saved state has a set of {count_text(pending.count, 'event')} from {pending.first} on that may or may not be stored"
        f"{where}; another producer that is still open may have sent it; send exactly these events first, or give them up with "
        "abandon_pending() (tidemark publish: --resend-unknown sends them as they are now, which doubles those that are stored)"
    )


def of_fixed_identity(id_: int, pending: PendingSet) -> str:
    return (
        f"it is unknown whether the events {pending.first} to {last_of(pending.first, pending.count)} were stored, and "
        f"producer_group_id {id_} of the options allows no new identity: send the same batch again, or create the producer anew"
    )


def of_claims(claimed: Claims, answered: Claims) -> tuple[type[errors.PublishError], str] | None:
    """The error in the service's answer to an attach; None without one."""
    missing = [name for name, value in zip(Claims._fields, answered, strict=True) if value is None]
    if len(missing) == len(answered):
        return errors.UnsupportedPublishingError, (
            "the service does not offer idempotent publishing (com.microsoft:idempotent-producer): it needs the standard tier "
            "or higher; or create the producer with enable_idempotent_partitions=False"
        )
    if missing:
        return (
            errors.InvalidProducerStateError,
            f"the service opened the link without {', '.join(missing)}",
        )
    for name, mine, theirs in zip(Claims._fields[:2], claimed, answered, strict=False):
        if mine is not None and mine != theirs:
            return (
                errors.InvalidProducerStateError,
                f"the producer claimed {name} {mine}, but the service answered {theirs}",
            )
    return None


_SEQUENCING = {
    "com.microsoft:producer-epoch-stolen": FailureKind.DISCONNECTED,
    "com.microsoft:out-of-order-sequence": FailureKind.INVALID,
}
"""Final in an answer to an attach, to a delivery, and at the loss of a link."""

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
"""With those above: the service has answered that it did not store the events."""


def of_attach(condition: str, *, with_state: bool) -> FailureKind:
    """The failure of an attach, when nothing was sent. `amqp:not-allowed` means that the service has forgotten the id."""
    if condition == "amqp:not-allowed":
        return FailureKind.FORGOTTEN if with_state else FailureKind.REFUSED
    if condition == "com.microsoft:server-busy":
        return FailureKind.BUSY
    return _FINAL.get(condition, FailureKind.NOT_STORED)


def of_rejection(condition: str) -> FailureKind:
    """The failure of a rejected delivery; unknown after `com.microsoft:timeout` and internal errors of the service."""
    return _REJECTED.get(condition, FailureKind.UNKNOWN)


def of_loss(condition: str) -> FailureKind:
    """The failure of a delivery whose link or connection ended before the answer."""
    return _SEQUENCING.get(condition, FailureKind.UNKNOWN)
