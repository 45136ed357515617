"""Request units: what an operation costs, and what a physical partition has left this second.

The prices are a simple model, near to the service's published ones for small documents with
the default indexing policy: a point read costs 1 RU per KiB, a write 5 RU per KiB (at least
one KiB each), a page of a query 2.5 RU plus 0.05 RU per KiB of its results. An operation that a document's state refuses
(404, 409, 412) costs what reading that document does: the service charges for it too, its price is not published.
"""

import math

from msgspec import Struct

_KIB = 1024


class Prices(Struct, frozen=True):
    """Request units per operation."""

    read_per_kib: float = 1.0
    write_per_kib: float = 5.0
    query: float = 2.5
    query_per_kib: float = 0.05
    metadata: float = 1.0

    def read(self, size: int) -> float:
        """Of a document of `size` bytes."""
        return round(self.read_per_kib * max(1.0, size / _KIB), 2)

    def write(self, size: int) -> float:
        """Of a document of `size` bytes; deleting costs what writing did."""
        return self.write_per_kib if size <= _KIB else round(self.write_per_kib * size / _KIB, 2)

    def page(self, size: int) -> float:
        """Of a page of results of `size` bytes together."""
        return round(self.query + self.query_per_kib * size / _KIB, 2)


class Budget:
    """What one physical partition may spend, by whole seconds.

    An operation is admitted while anything is left and is charged in full, so that the last
    one of a second may leave a debt, which the next seconds pay. Nothing is saved up.
    """

    def __init__(self) -> None:
        self._second = -math.inf
        self._left = 0.0
        self.spent = 0.0

    def wait(self, per_second: float, now: float) -> float:
        """Seconds until an operation would be admitted; 0 if it is now."""
        second = math.floor(now)
        if second != self._second:
            passed = second - self._second if second > self._second else 1
            self._left = min(per_second, self._left + passed * per_second)
            self._second = second
        if self._left > 0:
            return 0.0
        return second + 1 + math.floor(-self._left / per_second) - now

    def spend(self, charge: float) -> None:
        """Take an admitted operation's charge."""
        self._left -= charge
        self.spent += charge
