"""What a partition's publisher asks its shell to do, one step at a time, and what it is answered (pure): what the step
says, or that it `Failed`.
"""

from __future__ import annotations

import enum
from collections.abc import Generator
from typing import Any, TypeVar

from msgspec import Struct

from tidemark.publisher.model import Claims, ProducerRecord, Stamp


class Load(Struct, frozen=True):
    """Read the saved state. Gives the record and its token, both None if there is none."""


class Identify(Struct, frozen=True):
    """Ask when the hub was created; `again`: ask the service now, whatever is known. Gives a text that is compared for
    equality, None where the service does not say.
    """

    again: bool = False


class Save(Struct, frozen=True):
    """Write the state, if it is still as it was when `token` was given out (None: if there is none yet). Gives the new token."""

    record: ProducerRecord
    token: str | None


class Open(Struct, frozen=True):
    """Close the link there may be, and open one with these claims (None: without idempotence). Gives the Claims that the
    service said; one that it did not say is None.
    """

    claims: Claims | None


class Transfer(Struct, frozen=True):
    """Send the events once over the link. Without a stamp they go as they are. Gives Done."""

    stamp: Stamp | None


class Pause(Struct, frozen=True):
    """Do nothing for a while. Gives Done."""

    seconds: float


class Done(Struct, frozen=True):
    """Transfer: the service has taken the events, or had them. Pause: it is over."""


class FailureKind(enum.Enum):
    NOT_STORED = "not stored"
    """For now; another attempt may succeed."""
    BUSY = "busy"
    """Not stored, and the service wants to be left alone for a while."""
    UNKNOWN = "unknown"
    """The events went out and nothing came back."""
    DISCONNECTED = "disconnected"
    CONFLICT = "conflict"
    """The saved state is not as it was read."""
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
