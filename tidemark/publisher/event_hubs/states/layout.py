"""How a producer's state is written down (pure)."""

from __future__ import annotations

import re

import msgspec

from tidemark.publisher.errors import InvalidProducerStateError
from tidemark.publisher.model import ProducerRecord, StateKey

_UNSAFE = re.compile(r"[^a-z0-9._~-]")


def decode(text: bytes | str, where: str) -> ProducerRecord:
    """Raises InvalidProducerStateError naming the place."""
    try:
        return msgspec.json.decode(text, type=ProducerRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidProducerStateError(
            f"{where} is no saved state of a producer: {error}; delete it to start without one, which publishes again what was "
            "published before; a later version's state is for that version"
        ) from None


def is_of_same_producer(name: str, other: str) -> bool:
    """Whether two names are of one producer name, whatever the namespace, hub and partition."""
    return name.split("/")[2:-1] == other.split("/")[2:-1]


def name_of(key: StateKey) -> str:
    """The state's name, of four parts: hosts and hubs do not tell upper from lower case, producers do."""
    producer = _UNSAFE.sub(lambda found: f"%{ord(found.group()):02x}", key.producer)
    return f"{key.namespace.lower()}/{key.hub.lower()}/producers/{producer}/{key.partition_id}"
