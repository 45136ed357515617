"""What a call that sends messages asks its sender to do, and what it is answered (pure).

Read       take so many messages from the iterable             -> list of messages, shorter at its end
Store      put a body into its blob                            -> Accepted, Busy or Rejected
Transfer   send a batch, or one message singly, or a request   -> Accepted, TooLarge, Busy, Rejected or Unknown
that schedules
Pause      wait                                                -> None
"""

from __future__ import annotations

from msgspec import Struct

from tidemark.publisher.service_bus.core.send_report import Outgoing


class Read(Struct, frozen=True):
    count: int


class Store(Struct, frozen=True):
    item: Outgoing


class Transfer(Struct, frozen=True):
    """`singly`: the one item goes as a message of its own, not as a batch."""

    items: tuple[Outgoing, ...]
    singly: bool


class Pause(Struct, frozen=True):
    seconds: float


Effect = Read | Store | Transfer | Pause


class Accepted(Struct, frozen=True):
    """The service has it. `numbers` are the sequence numbers of messages that were scheduled."""

    numbers: tuple[int, ...] = ()


class TooLarge(Struct, frozen=True):
    """Refused for its size; `said` and `allowed` in bytes, as far as the service tells."""

    story: str
    said: int | None = None
    allowed: int | None = None


class Busy(Struct, frozen=True):
    """Certainly not accepted, and worth another attempt."""

    story: str
    retry_after: float | None = None


class Rejected(Struct, frozen=True):
    """Certainly not accepted, and it will not be."""

    story: str


class Unknown(Struct, frozen=True):
    """It was transferred, and no answer came."""

    story: str


Answer = Accepted | TooLarge | Busy | Rejected | Unknown
