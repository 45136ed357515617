"""What is known of a kind of target without asking it: what it counts in, and what it can be set to. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from msgspec import Struct

from scaling.model import Capacity


class Settable(Struct, frozen=True):
    """What a target can be set to: the `allowed` values only (ascending), where there are any, or else multiples of `step`."""

    step: int = 1
    allowed: tuple[int, ...] = ()

    def up(self, wanted: int) -> int:
        """The least that is no less than `wanted`; beyond the highest allowed value `wanted` itself, for bounds to cut."""
        if self.allowed:
            at = bisect_left(self.allowed, wanted)
            return self.allowed[at] if at < len(self.allowed) else wanted
        return -(-wanted // self.step) * self.step

    def down(self, wanted: int) -> int:
        """The most that is no more than `wanted`; 0 where there is none."""
        if self.allowed:
            at = bisect_right(self.allowed, wanted)
            return self.allowed[at - 1] if at else 0
        return wanted // self.step * self.step

    def after(self, count: int) -> int:
        """The next one above `count`."""
        return self.up(count + 1)

    @property
    def words(self) -> str:
        """`in steps of 100`, or `allowed are 1, 2, 4`."""
        if self.allowed:
            return f"allowed are {', '.join(map(str, self.allowed))}"
        return f"in steps of {self.step}"


ANY_NUMBER = Settable()


class TargetFacts(Struct, frozen=True):
    """`unit` is what capacities count, in the plural; changes more often than every `pause` seconds are unwise, and `why`;
    above `changes_per_hour` in a sliding hour, those of others included, the platform refuses, or the policy wants no more.
    None: nothing limits them. Each unit is a worker where it `counts_workers`; where it `removes_named`, its scaler removes the
    instances that workers have acknowledged for.
    """

    unit: str = "instances"
    settable: Settable = Settable()
    pause: float = 0.0
    why: str = ""
    changes_per_hour: int | None = None
    counts_workers: bool = True
    removes_named: bool = False

    @property
    def one(self) -> str:
        """One of them: `instance`."""
        return self.unit if "/" in self.unit else self.unit.removesuffix("s")

    def counted(self, number: int) -> str:
        """`1 instance`, `2 instances`."""
        return f"{number} {self.one if number == 1 else self.unit}"


def settable_of(capacity: Capacity | None) -> Settable:
    """What the platform says; any number where it does not, or not yet. A scaler of the user's own may say anything."""
    if capacity is None or (capacity.step <= 1 and not capacity.allowed):
        return ANY_NUMBER
    allowed = tuple(sorted({value for value in capacity.allowed if value >= 0}))
    return Settable(max(capacity.step, 1), allowed)
