"""Where a producer keeps its state between runs."""

from __future__ import annotations

from typing import Protocol

from tidemark.publisher.model import ProducerRecord, StateKey


class StateConflictError(Exception):
    """The state in the store is not the one that the token was given out for."""


class ProducerStateStore(Protocol):
    """Where producers keep their state. Implementations: publisher/event_hubs/states.

    A save is durable once it returns, and is atomic: a reader finds the old state or the new one. Both raise
    foundation.errors.UnavailableError where the store cannot be reached by the deadline (the event loop's clock), and
    InvalidProducerStateError for what cannot be read.
    """

    async def load(self, key: StateKey, *, deadline: float) -> tuple[ProducerRecord, str] | None:
        """The state and its token, None if there is none."""

    async def save(self, key: StateKey, record: ProducerRecord, token: str | None, *, deadline: float) -> str:
        """Writes the state if the one there has this token (None: if there is none); the new token.

        Raises StateConflictError.
        """

    async def aclose(self) -> None: ...
