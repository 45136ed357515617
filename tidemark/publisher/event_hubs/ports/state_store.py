"""The interface of stores for the state of producers."""

from __future__ import annotations

from typing import Protocol

from tidemark.publisher.model import ProducerRecord, StateKey


class StateConflictError(Exception):
    """The stored state has changed since the token was returned."""


class ProducerStateStore(Protocol):
    """Keeps the state of producers. Implementations: publisher/event_hubs/states.

    A save is durable once it returns, and is atomic: a reader finds the old state or the new one. Both raise
    foundation.errors.UnavailableError where the store cannot be reached by the deadline (the event loop's clock), and
    InvalidProducerStateError for what cannot be read.
    """

    async def load(self, key: StateKey, *, deadline: float) -> tuple[ProducerRecord, str] | None:
        """The stored state and its token; None without one."""

    async def save(self, key: StateKey, record: ProducerRecord, token: str | None, *, deadline: float) -> str:
        """Write the state if the stored one has this token (None: if none is stored). Returns the new token.

        Raises StateConflictError.
        """

    async def aclose(self) -> None: ...
