"""How long documents live: the container's default and what each of them says. Pure."""

import heapq
from typing import Any, TypeGuard

import msgspec
from msgspec import Struct

from devstack.cosmos.protocol.errors import bad_request

LONGEST = 2**31 - 1  # seconds


class _Own(Struct):
    ttl: Any = None


def parse_default(value: Any) -> int | None:
    """DefaultTtl of a container: None is off, -1 is on without an end. Raises CosmosError (400)."""
    if value is None or _is_ttl(value):
        return value
    raise bad_request(f"defaultTtl is {value!r}, accepted: -1, or 1 to {LONGEST} seconds")


def own_ttl(body: bytes) -> int | None:
    """What a document says of its own life. Raises CosmosError (400)."""
    if b'"ttl"' not in body:
        return None
    value = msgspec.json.decode(body, type=_Own).ttl
    if value is None or _is_ttl(value):
        return value
    raise bad_request(f"The input ttl {value!r} is invalid, accepted: -1, or 1 to {LONGEST} seconds")


def _is_ttl(value: Any) -> TypeGuard[int]:
    return type(value) is int and (value == -1 or 1 <= value <= LONGEST)


class Lifetimes:
    """When documents end, by what tells one state of a document from all others (its change number).

    A document that is written again, or deleted, leaves its old end here; whoever pops it finds that it is another
    state by now.
    """

    def __init__(self, default: int | None) -> None:
        self.default = default
        self._ends: list[tuple[float, int, str, str]] = []

    def note(self, partition: str, name: str, change: int, written_at: int, body: bytes) -> None:
        """A document was written. Raises CosmosError (400) for a life that is none."""
        if self.default is None:
            return
        ttl = own_ttl(body)
        seconds = self.default if ttl is None else ttl
        if seconds != -1:
            heapq.heappush(self._ends, (written_at + seconds, change, partition, name))

    def pop_ended(self, now: float) -> list[tuple[str, str, int]]:
        """(partition, name, change) of the states whose time is over."""
        ended = []
        while self._ends and self._ends[0][0] <= now:
            _, change, partition, name = heapq.heappop(self._ends)
            ended.append((partition, name, change))
        return ended
