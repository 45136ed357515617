"""What a call that sends messages asks its sender to do, and what it is answered (pure).

Read       take so many messages from the iterable             -> list of messages, shorter at its end
Store      put a body into its blob                            -> Accepted, Busy or Rejected
Transfer   send a batch, or one message singly, or a request   -> Accepted, TooLarge, Busy, Rejected or Unknown
that schedules
Pause      wait                                                -> None
"""

from __future__ import annotations

from dataclasses import dataclass

from publisher.service_bus.core.send_report import Outgoing


@dataclass(frozen=True, slots=True)
class Read:
    count: int


@dataclass(frozen=True, slots=True)
class Store:
    item: Outgoing


@dataclass(frozen=True, slots=True)
class Transfer:
    """`singly`: the one item goes as a message of its own, not as a batch."""

    items: tuple[Outgoing, ...]
    singly: bool


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


Effect = Read | Store | Transfer | Pause


@dataclass(frozen=True, slots=True)
class Accepted:
    """The service has it. `numbers` are the sequence numbers of messages that were scheduled."""

    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TooLarge:
    """Refused for its size; `said` and `allowed` in bytes, as far as the service tells."""

    story: str
    said: int | None = None
    allowed: int | None = None


@dataclass(frozen=True, slots=True)
class Busy:
    """Certainly not accepted, and worth another attempt."""

    story: str
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """Certainly not accepted, and it will not be."""

    story: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """It was transferred, and no answer came."""

    story: str


Answer = Accepted | TooLarge | Busy | Rejected | Unknown
