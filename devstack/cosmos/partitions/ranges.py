"""Physical partitions: which part of the key space each one holds, splits and merges."""

from bisect import bisect_right
from collections.abc import Sequence

from devstack.cosmos.partitions.budget import Budget
from devstack.cosmos.partitions.keys import KeyDefinition
from devstack.cosmos.protocol.errors import RANGE_GONE, CosmosError


class Range:
    """One physical partition. `created` is the version of the map that brought it."""

    def __init__(
        self,
        number: int,
        places: tuple[int, int],
        definition: KeyDefinition,
        parents: tuple[str, ...],
        created: int,
    ) -> None:
        self.id = str(number)
        self.places = places
        self.minimum = definition.boundary(places[0])
        self.maximum = definition.boundary(places[1])
        self.parents = parents
        self.created = created
        self.budget = Budget()
        self.lsn = 1
        self.operations = 0
        self.throttled = 0


class RangeMap:
    """The ranges of a container, in order; they cover the key space without gap or overlap.

    `history` has those that were split or merged, too, by number.
    """

    def __init__(self, definition: KeyDefinition, count: int) -> None:
        self._definition = definition
        self.version = 1
        cuts = [definition.space * index // count for index in range(count + 1)]
        self.ranges = [
            Range(number, (cuts[number], cuts[number + 1]), definition, (), 1) for number in range(count)
        ]
        self.history = list(self.ranges)
        self._changed()

    def __len__(self) -> int:
        return len(self.ranges)

    def of(self, effective: str) -> Range:
        """The range that holds an effective partition key."""
        return self.ranges[bisect_right(self._minima, effective) - 1]

    def by_id(self, name: str) -> Range:
        """Raises CosmosError (410/1002) for a range that is no more, or never was."""
        named = self._by_id.get(name)
        if named is None:
            raise CosmosError(410, f"The partition key range {name} is gone", substatus=RANGE_GONE)
        return named

    def since(self, version: int) -> Sequence[Range]:
        """The ranges that later versions brought, in order of the key space."""
        return [key_range for key_range in self.ranges if key_range.created > version]

    def widest(self) -> Range:
        return max(self.ranges, key=lambda key_range: key_range.places[1] - key_range.places[0])

    def split(self, old: Range) -> tuple[Range, Range]:
        """Cut a range in the middle; both halves get new ids."""
        low, high = old.places
        middle = (low + high) // 2
        parents = (*old.parents, old.id)
        self.version += 1
        halves = self._new((low, middle), parents), self._new((middle, high), parents)
        position = self.ranges.index(old)
        self.ranges[position : position + 1] = halves
        self._changed()
        return halves

    def merge(self, left: Range) -> Range:
        """Join a range and its right neighbour under a new id. Raises ValueError if it has none."""
        position = self.ranges.index(left)
        if position + 1 == len(self.ranges):
            raise ValueError(f"range {left.id} is the last one and has no right neighbour to merge with")
        right = self.ranges[position + 1]
        self.version += 1
        parents = tuple(dict.fromkeys((*left.parents, *right.parents, left.id, right.id)))
        merged = self._new((left.places[0], right.places[1]), parents)
        self.ranges[position : position + 2] = [merged]
        self._changed()
        return merged

    def _new(self, places: tuple[int, int], parents: tuple[str, ...]) -> Range:
        made = Range(len(self.history), places, self._definition, parents, self.version)
        self.history.append(made)
        return made

    def _changed(self) -> None:
        self._minima = [key_range.minimum for key_range in self.ranges]
        self._by_id = {key_range.id: key_range for key_range in self.ranges}
