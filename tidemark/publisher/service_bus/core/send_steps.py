"""The effects that a call asks its sender to perform, and the answers (pure).

Read       take this many messages from the iterable           -> list of messages, shorter at its end
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
    """Refused for its size. `counted` is the size and `allowed` the limit in bytes, if the service returned them."""

    story: str
    counted: int | None = None
    allowed: int | None = None


class Busy(Struct, frozen=True):
    """Certainly not accepted; another attempt may succeed."""

    story: str
    retry_after: float | None = None


class Rejected(Struct, frozen=True):
    """Certainly not accepted; another attempt would fail, too."""

    story: str


class Unknown(Struct, frozen=True):
    """It was transferred, and no answer came."""

    story: str


Answer = Accepted | TooLarge | Busy | Rejected | Unknown
