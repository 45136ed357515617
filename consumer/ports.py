"""The protocols of sinks and stores. One conformance suite per protocol runs on every implementation.

Deadlines are seconds of the event loop's clock (`loop.time()`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any, Protocol, runtime_checkable

from consumer.model import (
    Batch,
    Checkpoint,
    Claim,
    DeadLetter,
    Event,
    Lease,
    Record,
    Rejection,
    Replacement,
    Routes,
    Write,
    WriteResult,
)


class Decoder(Protocol):
    """Reads the documents that are in the bodies of events."""

    def decode(self, event: Event) -> Sequence[Any] | Rejection:
        """The documents of one event, in order. Computes only. The schemas that it needs are known: `missing` was asked."""
        ...

    def missing(self, events: Sequence[Event]) -> Collection[str]:
        """The ids of schemas that these events need and that are not known yet. Computes only."""
        ...

    async def load(self, ids: Collection[str], *, deadline: float) -> None:
        """Fetches schemas. One that does not exist is remembered, and rejects its events in `decode`.

        Raises UnavailableError: then the partition waits, and this is called again.
        """
        ...


class Sink(Protocol):
    """Writes records.

    `prepare` does no I/O and raises nothing but MemoryError: a record that cannot be prepared has a rejection.
    """

    transactional: bool
    """Whether `write` stores rows, dead letters and the checkpoint together; see TransactionalSink."""

    async def open(self) -> Routes:
        """Connects, checks that the target exists and is usable, and returns the lanes.

        Raises SettingsError when it can never work, UnavailableError when it may work later.
        """
        ...

    def prepare(self, write: Write) -> Record:
        """The record of a write, with its `operation`. The caller sets the other fields about its event."""
        ...

    async def write(self, batch: Batch, *, deadline: float) -> Sequence[WriteResult]:
        """Returns one result per record, in their order. Idempotent: a record is written again after an unknown outcome.

        A missing answer, a lost connection or a passed deadline is RETRY with status 0, not an exception. Any exception
        but CancelledError counts as RETRY for the whole batch.
        """
        ...

    async def routes(self) -> Routes:
        """The present lanes; they are read after a result with `rerouted`. Raises UnavailableError."""
        ...

    async def aclose(self) -> None: ...


@runtime_checkable
class AskedSink(Protocol):
    """A sink whose `routes` ask nobody. An instance that gave its partitions up comes back when all of its sinks answer."""

    async def ask(self) -> None:
        """Asks the target something that changes nothing. Any exception means that it was not reached."""
        ...


class OrderedSink(Sink, Protocol):
    """A sink whose routes are `by_partition`: it gets the records of a partition in order, one batch at a time, and has a mark.

    Call `attach` before the first write of a claim and `detach` after the last. `attach` raises SettingsError for a claim
    that the target can never write. `write` skips records at or below the stored mark (result WRITTEN), and raises
    FencedError when another consumer has claimed the partition.
    """

    def attach(self, claim: Claim) -> None: ...

    def detach(self, partition: str) -> None: ...

    async def replay(self, records: Sequence[Record], *, deadline: float) -> Sequence[WriteResult]:
        """Writes records of one dead letter's event, whatever the mark, and each of them once, however often it is repeated. One
        result per record.

        Raises UnavailableError if the outcome of all of them is unknown.
        """
        ...


class TransactionalSink(OrderedSink, Protocol):
    """An ordered sink that commits records, dead letters and the checkpoint in one transaction.

    `write` gets rejected records too, in their order, and stores them as dead letters: their result is WRITTEN. `replay` gets
    rejected and dropped ones too; what it writes it takes out of the stored dead letter, and does nothing without one.
    """


class CheckpointStore(Protocol):
    """The positions of the partitions of one hub and consumer group. Saves are conditional, monotonic, and fenced by claim."""

    async def claim(
        self, partition: str, owner: str, *, deadline: float, replacement: Replacement | None = None
    ) -> Claim:
        """Makes `owner` the only writer of the partition's checkpoint: epoch + 1. Returns the stored checkpoint too.

        A `replacement` is stored in the same step, if the stored checkpoint is the one that it expects. Raises
        PositionError for a checkpoint that cannot be read and is not replaced, UnavailableError.
        """
        ...

    async def hub_with_plain_keys(self, hub: int, *, deadline: float) -> int:
        """When the hub was created whose keys have no incarnation (see Origin.hub), of all hubs of this name in any
        namespace.

        If none is stored, `hub` is stored and returned. Raises UnavailableError.
        """
        ...

    async def save(self, claim: Claim, checkpoint: Checkpoint, *, deadline: float) -> None:
        """Stores a position. A lower sequence number than the stored one changes nothing.

        Raises FencedError when a later claim exists, UnavailableError when the outcome is unknown; saving again is safe.
        """
        ...

    async def load_all(self, *, deadline: float) -> dict[str, Checkpoint | str]:
        """All stored checkpoints by partition; for one that cannot be read, a text that says why."""
        ...

    async def put(self, checkpoint: Checkpoint, *, deadline: float) -> None:
        """Sets the position by order of an operator, whatever is stored, backwards too. Fences the present owner (epoch + 1)."""
        ...

    async def aclose(self) -> None: ...


class LeaseStore(Protocol):
    """Stores who owns which partition. Times are the store's own, so that the clocks of machines may differ."""

    async def list(self, *, deadline: float) -> tuple[Sequence[Lease], float]:
        """All leases, and the store's present time (epoch seconds)."""
        ...

    async def claim(self, lease: Lease, owner: str, *, deadline: float) -> Lease | None:
        """Takes or renews a lease if the stored one still equals `lease`; a token of '' means that none is stored.

        None if another instance was faster.
        """
        ...

    async def release(self, lease: Lease, *, deadline: float) -> None:
        """Releases a lease if the stored one still equals `lease`; otherwise does nothing. A presence (`~<owner>`) is deleted."""
        ...

    async def aclose(self) -> None: ...


class DeadLetterBox(Protocol):
    """Stores the rejected events of a running consumer. A dead letter stored twice is one dead letter."""

    async def open(self) -> None:
        """Checks or creates the container or table. Raises SettingsError, UnavailableError."""
        ...

    async def put(self, dead_letters: Sequence[DeadLetter], *, deadline: float) -> None:
        """Stores all of them. One that has an `epoch` leaves a stored one of a later epoch as it is. Raises UnavailableError when the
        outcome is unknown; storing them again is safe.
        """
        ...

    async def aclose(self) -> None: ...


class DeadLetterStore(DeadLetterBox, Protocol):
    """A DeadLetterBox whose dead letters can be listed, read and deleted, for operators."""

    def list(self, *, partition: str | None = None, reason: str | None = None) -> AsyncIterator[DeadLetter]:
        """Yields dead letters in order of partition and sequence number."""
        ...

    async def get(self, dead_letter_id: str) -> DeadLetter | None: ...

    async def delete(self, dead_letter_ids: Sequence[str], *, epoch: int | None = None) -> int:
        """Deletes the dead letters of these ids; returns how many there were. With an `epoch` those of a later one stay."""
        ...
