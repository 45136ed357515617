"""Which dimension changed its values on the day of a break: the SDK version, a role, a custom dimension. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from msgspec import Struct

from tidemark.foundation.wording import percent_text

LEAST_DISTANCE = 0.2
"""Share of the events that must have moved from some values of a dimension to others."""


class Share(Struct, frozen=True):
    """What part of the corrected events of a side has a value of a dimension, and how it is sampled (percent)."""

    side: str
    dimension: str
    value: str
    share: float
    sampling_rate: float


class Change(Struct, frozen=True):
    """`moved` is the part of all events whose value changed (total variation distance): 1 is a complete exchange.

    `gone` and `came` are the values that lost and won most; None where that is a mass of rare values, or no value.
    """

    dimension: str
    moved: float
    gone: Share | None
    came: Share | None

    def sentence(self) -> str:
        gone = f"'{self.gone.value}'" if self.gone else "other or no values"
        came = f"'{self.came.value}'" if self.came else "other or no values"
        rate = f", sampled at {self.came.sampling_rate:.0f} %" if self.came else ""
        return f"{self.dimension} changed from {gone} to {came} for {percent_text(self.moved, 0)} of the events{rate}"


def changes(shares: Iterable[Share]) -> list[Change]:
    """The dimensions that changed, the most changed first."""
    by_place = []
    ordered = sorted(shares, key=lambda share: share.dimension)
    for dimension, group in groupby(ordered, key=lambda share: share.dimension):
        change = _change(dimension, list(group))
        if change.moved >= LEAST_DISTANCE:
            by_place.append(change)
    return sorted(by_place, key=lambda change: (-round(change.moved, 6), change.dimension))


def _change(dimension: str, shares: list[Share]) -> Change:
    sides = {
        side: {share.value: share for share in shares if share.side == side} for side in ("before", "after")
    }
    steps = {
        value: _share(sides["after"], value) - _share(sides["before"], value)
        for value in sorted(sides["before"].keys() | sides["after"].keys())
    }
    rest = -sum(steps.values())  # what is rare, or has no value at all
    moved = (sum(map(abs, steps.values())) + abs(rest)) / 2
    gone = min(steps, key=lambda value: steps[value])
    came = max(steps, key=lambda value: steps[value])
    return Change(
        dimension,
        moved,
        gone=sides["before"].get(gone) if steps[gone] < min(rest, 0) else None,
        came=sides["after"].get(came) if steps[came] > max(rest, 0) else None,
    )


def _share(side: dict[str, Share], value: str) -> float:
    return side[value].share if value in side else 0.0
