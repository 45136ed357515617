"""Producer state in memory, for tests and for producers of one process."""

from __future__ import annotations

from itertools import count

from tidemark.publisher.event_hubs.ports.state_store import StateConflictError, name_of
from tidemark.publisher.model import ProducerRecord, StateKey


class MemoryStateStore:
    """A ProducerStateStore whose states end with the process. Its methods never wait."""

    def __init__(self) -> None:
        self._states: dict[str, tuple[ProducerRecord, str]] = {}
        self._tokens = count(1)

    async def load(self, key: StateKey, *, deadline: float) -> tuple[ProducerRecord, str] | None:
        return self._states.get(name_of(key))

    async def save(self, key: StateKey, record: ProducerRecord, token: str | None, *, deadline: float) -> str:
        name = name_of(key)
        saved = self._states.get(name)
        if (None if saved is None else saved[1]) != token:
            raise StateConflictError(f"the saved state of {key} has changed")
        new_token = str(next(self._tokens))
        self._states[name] = (record, new_token)
        return new_token

    async def aclose(self) -> None:
        """Nothing is open."""
