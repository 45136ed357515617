"""The interface of stores for the state of producers, and how they name and read a state."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Protocol

import msgspec

from tidemark.publisher.errors import InvalidProducerStateError
from tidemark.publisher.model import ProducerRecord, StateKey


class StateConflictError(Exception):
    """The stored state has changed since the token was returned."""


class ProducerStateStore(Protocol):
    """Keeps the state of producers. Implementations: event_hubs/states.

    A save is durable once it returns, and is atomic: a reader finds the old state or the new one. Both raise
    foundation.errors.UnavailableError where the store cannot be reached by the deadline (the event loop's clock), and
    InvalidProducerStateError for what cannot be read. A store may have `save_soon` besides: as `save`, but returning a future at
    once, so that saves of several partitions share one write.
    """

    async def load(self, key: StateKey, *, deadline: float) -> tuple[ProducerRecord, str] | None:
        """The stored state and its token; None without one."""

    async def save(self, key: StateKey, record: ProducerRecord, token: str | None, *, deadline: float) -> str:
        """Write the state if the stored one has this token (None: if none is stored). Returns the new token.

        Raises StateConflictError.
        """

    async def aclose(self) -> None: ...


_UNSAFE = re.compile(r"[^a-z0-9._~-]")


def decode(text: bytes | str, where: str) -> ProducerRecord:
    """Decode a saved state. Raises InvalidProducerStateError, which names `where` it is."""
    try:
        return msgspec.json.decode(text, type=ProducerRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidProducerStateError(
            f"{where} cannot be read as the state of a producer: {error}. A state of a later version needs that version. "
            "Otherwise delete it, which publishes all of the input again"
        ) from None


def is_of_same_producer(name: str, other: str) -> bool:
    """Whether two names of states have the same producer name; namespace, hub and partition may differ."""
    return name.split("/")[2:-1] == other.split("/")[2:-1]


@lru_cache(1_000)  # asked for at every save
def name_of(key: StateKey) -> str:
    """The name of a state. Hosts and hubs are case-insensitive, producer names are not."""
    producer = _UNSAFE.sub(lambda match: f"%{ord(match.group()):02x}", key.producer)
    return f"{key.namespace.lower()}/{key.hub.lower()}/producers/{producer}/{key.partition_id}"
