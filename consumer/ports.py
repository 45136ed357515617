"""What the consumer needs from outside. One conformance suite per protocol runs on every implementation.

Deadlines are seconds of the event loop's clock (`loop.time()`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from consumer.model import (
    Batch,
    Checkpoint,
    Claim,
    DeadLetter,
    Event,
    Lease,
    Record,
    Replacement,
    Routes,
    WriteResult,
)


class Sink(Protocol):
    """Writes records. `prepare` is CPU only and raises nothing but MemoryError: what cannot be prepared carries a rejection."""

    transactional: bool
    """True: `write` stores rows, dead letters and the checkpoint together; see TransactionalSink."""

    async def open(self) -> Routes:
        """Connects, checks that the target exists and is usable, gives the lanes.

        Raises SettingsError when it can never work, UnavailableError when it may later.
        """
        ...

    def prepare(self, event: Event) -> Record: ...

    async def write(self, batch: Batch, *, deadline: float) -> Sequence[WriteResult]:
        """One result per record, in their order. Idempotent: a record may come again after an unknown outcome.

        An answer that never came, a lost connection or a passed deadline is RETRY with status 0, not an exception;
        any exception but CancelledError is read as RETRY for the whole batch.
        """
        ...

    async def routes(self) -> Routes:
        """The lanes as they are now, read anew after a result with `rerouted`. Raises UnavailableError."""
        ...

    async def aclose(self) -> None: ...


class TransactionalSink(Sink, Protocol):
    """A sink that commits records, dead letters and the checkpoint in one transaction.

    `attach` before the first write of a claim (it raises SettingsError where that can never be right), `detach` after the last. `write` gets rejected records too, in
    their places, and keeps them as dead letters: their result is WRITTEN. It skips records at or below the stored
    position (result WRITTEN) and raises FencedError when the claim's epoch is no longer the stored one.
    """

    def attach(self, claim: Claim) -> None: ...

    def detach(self, partition: str) -> None: ...


class CheckpointStore(Protocol):
    """Positions per partition of one hub and consumer group: conditional, monotonic, fenced by claim."""

    async def claim(
        self, partition: str, owner: str, *, deadline: float, replacement: Replacement | None = None
    ) -> Claim:
        """Becomes the only writer of the partition's checkpoint: epoch + 1, with the checkpoint as stored.

        A `replacement` is stored in the same step, unless something else than it expects is stored by now. Raises
        PositionError for what cannot be read as a checkpoint and is not replaced, UnavailableError.
        """
        ...

    async def hub_with_plain_keys(self, hub: int, *, deadline: float) -> int:
        """Of all hubs of this name, in whichever namespace, the one whose keys carry no incarnation: when it was
        created (see Origin.hub). `hub` becomes it if none is stored. Raises UnavailableError.
        """
        ...

    async def save(self, claim: Claim, checkpoint: Checkpoint, *, deadline: float) -> None:
        """Stores a position. A lower sequence number than the stored one changes nothing.

        Raises FencedError when a later claim exists, UnavailableError (the outcome is then unknown; saving again is
        safe).
        """
        ...

    async def load_all(self, *, deadline: float) -> dict[str, Checkpoint | str]:
        """All stored checkpoints by partition; a text instead says why one cannot be read."""
        ...

    async def put(self, checkpoint: Checkpoint, *, deadline: float) -> None:
        """The operator's order: sets the position whatever is stored, backwards too, and fences the present owner
        (epoch + 1).
        """
        ...

    async def aclose(self) -> None: ...


class LeaseStore(Protocol):
    """Who owns which partition. Times are the store's own, so that clocks of machines may differ."""

    async def list(self, *, deadline: float) -> tuple[Sequence[Lease], float]:
        """All leases, and the store's present time (epoch seconds)."""
        ...

    async def claim(self, lease: Lease, owner: str, *, deadline: float) -> Lease | None:
        """Takes or renews a lease if it is still as `lease` says (token '' = there is none yet); None when somebody
        else was faster.
        """
        ...

    async def release(self, lease: Lease, *, deadline: float) -> None:
        """Gives it up if it is still as `lease` says; else nothing. Of a presence (`~<owner>`) nothing is left."""
        ...

    async def aclose(self) -> None: ...


class DeadLetterBox(Protocol):
    """Where a consumer at work puts rejected events. A dead letter put twice is one dead letter."""

    async def open(self) -> None:
        """Checks or creates the place. Raises SettingsError, UnavailableError."""
        ...

    async def put(self, dead_letters: Sequence[DeadLetter], *, deadline: float) -> None:
        """All stored, or UnavailableError with an unknown outcome: put them again."""
        ...

    async def aclose(self) -> None: ...


class DeadLetterStore(DeadLetterBox, Protocol):
    """Rejected events, for whoever looks after them, too."""

    def list(self, *, partition: str | None = None, reason: str | None = None) -> AsyncIterator[DeadLetter]:
        """In order of partition and sequence number."""
        ...

    async def get(self, dead_letter_id: str) -> DeadLetter | None: ...

    async def delete(self, dead_letter_ids: Sequence[str]) -> int:
        """How many there were."""
        ...
