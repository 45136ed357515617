"""What was asked of the local Resource Manager, for tests and the demo to look at."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One request to Resource Manager, answered or refused. `at` is the injected clock's.

    `capacity` is the sku.capacity, throughput or number of replicas of the document sent, if it had one. `status` is 0 when
    the connection was dropped.
    """

    at: float
    method: str
    path: str
    status: int
    capacity: int | None
    principal: str | None


_CAPACITIES = (
    ("sku", "capacity"),
    ("properties", "resource", "throughput"),
    ("properties", "resource", "autoscaleSettings", "maxThroughput"),
    ("properties", "template", "scale", "minReplicas"),
    ("properties", "template", "scale", "maxReplicas"),
    ("properties", "count"),
)


def sent_capacity(document: Any) -> int | None:
    """The capacity in a document, wherever its type has it; None where it has none."""
    for path in _CAPACITIES:
        value = document
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, int):
            return value
    return None
