"""Who may read a partition in one consumer group: owner levels and the number of readers (pure).

Owner levels are "epochs" on the wire. A reader with one is alone: it displaces all readers
with a lower or the same level, and is refused while there is one with a higher level. Readers
without one share a partition, up to five of them.
"""

from collections.abc import Iterator
from typing import Protocol

from devstack.amqp.wire.errors import AmqpError

LINK_STOLEN = "amqp:link:stolen"
RESOURCE_LIMIT = "amqp:resource-limit-exceeded"
MAX_READERS = 5  # without an owner level, per partition and consumer group


class Reader(Protocol):
    """`epoch` is the owner level, None for none."""

    name: str
    epoch: int | None

    def displaced(self, error: AmqpError) -> None:
        """Told once, after which the reader counts no more."""


class Readers:
    """The readers of one partition in one consumer group, oldest first."""

    def __init__(self) -> None:
        self._readers: list[Reader] = []

    def __iter__(self) -> Iterator[Reader]:
        return iter(list(self._readers))

    def join(self, reader: Reader) -> None:
        """Admit a reader and displace whom it outranks; raises AmqpError if it may not read."""
        highest = max((other.epoch for other in self._readers if other.epoch is not None), default=None)
        if reader.epoch is None:
            self._admit_shared(reader, highest)
        elif highest is not None and highest > reader.epoch:
            raise AmqpError(
                LINK_STOLEN,
                f"Receiver {reader.name!r} with epoch '{reader.epoch}' is refused: a receiver with a higher "
                f"epoch '{highest}' exists",
            )
        else:
            self._displace_all(reader)
        self._readers.append(reader)

    def leave(self, reader: Reader) -> None:
        """Of a reader that may have been displaced already."""
        if reader in self._readers:
            self._readers.remove(reader)

    def _admit_shared(self, reader: Reader, highest: int | None) -> None:
        if highest is not None:
            raise AmqpError(
                LINK_STOLEN,
                f"Receiver {reader.name!r} without an epoch is refused: a receiver with epoch '{highest}' exists",
            )
        if len(self._readers) >= MAX_READERS:
            names = ", ".join(repr(other.name) for other in self._readers)
            raise AmqpError(
                RESOURCE_LIMIT,
                "Exceeded the maximum number of allowed receivers per partition in a consumer group, which is "
                f"{MAX_READERS}. Connected receivers: {names}",
            )

    def _displace_all(self, reader: Reader) -> None:
        displaced, self._readers = self._readers, []
        for other in displaced:
            other.displaced(
                AmqpError(
                    LINK_STOLEN,
                    f"New receiver {reader.name!r} with epoch '{reader.epoch}' is created, hence receiver "
                    f"{other.name!r} with epoch '{other.epoch}' is disconnected",
                )
            )
