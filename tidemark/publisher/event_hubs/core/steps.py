"""The steps that a PartitionPublisher asks its shell to perform (pure). The answer is the value named at the step, or
`Failed`.
"""

from __future__ import annotations

import enum
from collections.abc import Generator
from typing import Any, TypeVar

from msgspec import Struct

from tidemark.publisher.model import Claims, ProducerRecord, Stamp


class Load(Struct, frozen=True):
    """Read the saved state. The answer is the record and its token, both None without a saved state."""


class Identify(Struct, frozen=True):
    """Ask when the hub was created; with `again`, do not use a cached answer.

    The answer is a text to compare for equality, None where the service does not return it.
    """

    again: bool = False


class Save(Struct, frozen=True):
    """Write the state if the stored one still has this token (None: if none is stored). The answer is the new token."""

    record: ProducerRecord
    token: str | None


class Open(Struct, frozen=True):
    """Close the link, if any, and open one with these claims (None: without idempotence).

    The answer is the Claims of the service, with None for what it left out.
    """

    claims: Claims | None


class Transfer(Struct, frozen=True):
    """Send the events once over the link, without numbers if the stamp is None. The answer is None once the service has stored
    the events, now or before.
    """

    stamp: Stamp | None


class Pause(Struct, frozen=True):
    """Wait. The answer is None."""

    seconds: float


class FailureKind(enum.Enum):
    NOT_STORED = "not stored"
    """Another attempt may succeed."""
    BUSY = "busy"
    """Not stored; the service asks to wait."""
    UNKNOWN = "unknown"
    """The events were sent, and no answer came."""
    DISCONNECTED = "disconnected"
    CONFLICT = "conflict"
    """The saved state has changed since it was read."""
    INVALID = "invalid"
    FORGOTTEN = "forgotten"
    """The service does not know the producer's id."""
    UNSUPPORTED = "unsupported"
    TOO_LARGE = "too large"
    REFUSED = "refused"


class Failed(Struct, frozen=True):
    """Why a step failed, at `now` of the shell's clock. `cancelled`: the caller wants no further attempt."""

    kind: FailureKind
    story: str
    now: float
    retry_after: float | None = None
    link_lost: bool = False
    cancelled: bool = False


Step = Load | Identify | Save | Open | Transfer | Pause

_Result = TypeVar("_Result")
Steps = Generator[Step, Any, _Result]
