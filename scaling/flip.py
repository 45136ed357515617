"""What would have changed a decision: an outcome, and the conditions that lead to it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Self

from msgspec import Struct

from scaling.reason import Reason


class Condition(Struct, frozen=True, gc=False):
    """`quantity comparator value`, for example `average backlog > 500`.

    `quantity` is one of:

    * `<statistic> <metric>`, for every sample of the window; `next <metric>`, for the sample of the next report, where a
      rule learns from each sample; `<statistic> sum(a, b)`, `maximum(a, b)` or `minimum(a, b)` of several metrics;
    * `samples <metric>`, `span <metric>`, `age <metric>`, `failures <metric>`, `receiving <metric>`: the metric is whole
      again (the last one: its queue or subscription is enabled again), its samples being like those there are; `failures`
      alone: no rule fails;
    * `time`, an epoch time, every metric being read again as it is now;
    * a bound: `maximum`, `minimum`, `schedule ceiling`, `schedule floor`, `platform ceiling`, `platform floor`,
      `platform step`, `budget` (of a day, in its own unit);
    * what is there or not, compared with 0: `pause out`, `pause in`, `dry-run`, `other controller`, `capacity`,
      `platform change`, `pending action`, `rates out`, `rates in`, `disabled out`, `disabled in`.
    """

    quantity: str
    comparator: str
    value: float


Conditions = tuple[Condition, ...]
"""All of them together."""

Lifts = tuple[Conditions, ...]
"""Alternatives, each of which ends what holds a change back."""


class Flip(Struct, frozen=True, gc=False):
    """Had all `conditions` held, the outcome would have been `outcome`, and the capacity `to`.

    Several flips of one outcome are alternatives. `to` is None where the capacity stays; with `beyond`, values further
    beyond the borders go further than `to`. `outcome` is None where the rules decide anew, and what they will say is not
    known. A flip that is not `possible` names what never holds.
    Without conditions no value of a single metric changes the outcome.

    A rule gives flips of its own verdict, without `to`: what changes its vote to `outcome`.
    """

    outcome: Reason | None
    conditions: tuple[Condition, ...] = ()
    to: int | None = None
    beyond: bool = False
    possible: bool = True

    @classmethod
    def at(cls, quantity: str, comparator: str, value: float, outcome: Reason | None) -> Self:
        return cls(outcome, (Condition(quantity, comparator, value),))


ALTERNATIVES = 4
"""Ways out of one hold that are named at most."""


def lifted_at(until: float) -> Lifts:
    """What holds ends at `until`."""
    return lifted_by("time", ">=", until)


def lifted_by(quantity: str, comparator: str = "==", value: float = 0.0) -> Lifts:
    """What holds ends with one condition."""
    return ((Condition(quantity, comparator, value),),)


def all_lifted(blockers: Iterable[Lifts]) -> Lifts:
    """What lifts every one of them, in as many ways as are named at most; none where one of them stays."""
    ways = product(*blockers)
    combinations = dict.fromkeys(tuple(dict.fromkeys(c for part in way for c in part)) for way in ways)
    return tuple(combinations)[:ALTERNATIVES]
