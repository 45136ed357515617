"""Values that no two documents of a logical partition may share. Pure.

A path that a document does not have counts as null, and null is a value like others: a second document without it is a
conflict, as the service has it.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from devstack.cosmos.protocol.errors import CosmosError, bad_request

Constraint = tuple[tuple[str, ...], ...]
"""The paths of one unique key, each as names from the outside in."""

_FORM = 'accepted: {"uniqueKeys": [{"paths": ["/a", "/b/c"]}]}'


def parse_policy(policy: Any) -> tuple[Constraint, ...]:
    """UniqueKeyPolicy of a container; empty without one. Raises CosmosError (400)."""
    if policy is None:
        return ()
    try:
        listed = [key["paths"] for key in policy.get("uniqueKeys") or ()]
        return tuple(tuple(_names(path) for path in paths) for paths in listed)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise bad_request(f"uniqueKeyPolicy is {policy!r}, {_FORM}") from None


def _names(path: str) -> tuple[str, ...]:
    if not path.startswith("/") or path == "/":
        raise ValueError(path)
    return tuple(path[1:].split("/"))


class UniqueKeys:
    """The values in use, by logical partition and constraint, with the id of the document that has them."""

    def __init__(self, constraints: tuple[Constraint, ...]) -> None:
        self.constraints = constraints
        self._holders: dict[tuple[str, int, bytes], str] = {}

    def check(self, partition: str, name: str, body: bytes) -> None:
        """Raises CosmosError (409) if another document of the partition has the values."""
        for place in self._places(partition, body):
            if self._holders.get(place, name) != name:
                raise CosmosError(409, "Unique index constraint violation.")

    def add(self, partition: str, name: str, body: bytes) -> None:
        for place in self._places(partition, body):
            self._holders[place] = name

    def remove(self, partition: str, body: bytes) -> None:
        for place in self._places(partition, body):
            self._holders.pop(place, None)

    def _places(self, partition: str, body: bytes) -> Iterator[tuple[str, int, bytes]]:
        if not self.constraints:  # of most containers, and every write asks
            return
        document = msgspec.json.decode(body)
        for index, paths in enumerate(self.constraints):
            values = [_value(document, names) for names in paths]
            yield partition, index, msgspec.json.encode(values, order="deterministic")


def _value(document: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        document = document.get(name) if isinstance(document, dict) else None
    return document
