"""Divides one budget evenly among those who work at a time, so that together they never exceed it. Pure.

A holder asks again and again for its share. What it gets is a lease: it may be used until the lease ends or until the
next share is received, whichever is first. Answers may be late or lost, holders may vanish; so a share counts until
nobody can be using it any more, and one window longer: what was begun with it is still within a sliding second.

What always holds: the largest shares that each holder may have used within any one window add up to no more than the
budget. Times are seconds of any one clock that never goes back.
"""

from __future__ import annotations

import math

from msgspec import Struct

LEASE = 15.0
"""Seconds that a share may be used without another answer. A lost executor keeps its share for so long, and a replay may be without the
driver for so long: on a busy machine it does not answer for some seconds.
"""
WINDOW = 1.0
"""Seconds over which a rate is kept."""


class SupersededError(Exception):
    """A later attempt works on the same task: this one must end."""


class Share(Struct, frozen=True):
    """`amount` per second; 0 means wait and ask again. `number` names it when asking the next time."""

    amount: float
    number: int


class _Grant(Struct):
    amount: float
    number: int
    ends: float


class _Holder(Struct, eq=False):
    grants: list[_Grant]
    seen: float
    over: bool = False

    def held(self) -> float:
        return max((grant.amount for grant in self.grants), default=0.0)

    def end(self, now: float, *, below: float = math.inf) -> None:
        """Grants of lower numbers are used no more."""
        for grant in self.grants:
            if grant.number < below:
                grant.ends = min(grant.ends, now)


class Shares:
    """The budget, per second, and who holds how much of it. With `whole` shares are whole numbers."""

    def __init__(
        self, budget: float, *, whole: bool = False, lease: float = LEASE, window: float = WINDOW
    ) -> None:
        if not (budget > 0 and math.isfinite(budget)):
            raise ValueError(f"the budget is {budget!r}; accepted: a positive number per second")
        if whole and budget != int(budget):
            raise ValueError(f"the budget is {budget!r}; accepted: a whole number per second")
        self.budget = budget
        """May be changed at any time; 0 grants nothing. Grants before count until their holders renew them."""
        self.lease = lease
        self._whole = whole
        self._window = window
        self._holders: dict[tuple[str, str], _Holder] = {}  # by task and attempt
        self._current: dict[str, str] = {}  # the latest attempt of each task
        self._superseded: set[tuple[str, str]] = set()
        self._number = 0

    def renew(self, task: str, attempt: str, *, holds: int, now: float) -> Share:
        """The share of an attempt from now on, for `lease` seconds. `holds` is the number of the one it uses, or 0.

        A later attempt of a task gets nothing until the share of the one before it has ended; the earlier one gets
        SupersededError from then on.
        """
        holder = self._holder(task, attempt, now)
        holder.seen, holder.over = now, False
        holder.end(now, below=holds)  # replaced by the one it holds
        self._forget(now)
        amount = 0.0 if self._others_at_work(task, attempt, now) else self._amount(holder)
        self._number += 1
        if amount:
            holder.grants.append(_Grant(amount, self._number, now + self.lease))
        return Share(amount, self._number)

    def release(self, task: str, attempt: str, *, now: float) -> None:
        """The attempt is over and uses nothing any more."""
        holder = self._holders.get((task, attempt))
        if holder is not None:
            holder.over = True
            holder.end(now)

    def held(self, now: float) -> float:
        """How much of the budget may have been in use within the last window."""
        self._forget(now)
        return sum(holder.held() for holder in self._holders.values())

    def _holder(self, task: str, attempt: str, now: float) -> _Holder:
        key = (task, attempt)
        if key in self._superseded:
            raise SupersededError(f"a later attempt works on {task}")
        latest = self._current.get(task)
        if latest is not None and latest != attempt:
            self._superseded.add((task, latest))
            if (task, latest) in self._holders:
                self._holders[task, latest].over = True
        self._current[task] = attempt
        return self._holders.setdefault(key, _Holder([], now))

    def _forget(self, now: float) -> None:
        for key, holder in list(self._holders.items()):
            holder.grants = [grant for grant in holder.grants if grant.ends > now - self._window]
            if not holder.grants and (holder.over or holder.seen <= now - self.lease):
                del self._holders[key]

    def _others_at_work(self, task: str, attempt: str, now: float) -> bool:
        return any(
            grant.ends > now
            for (name, other), holder in self._holders.items()
            if name == task and other != attempt
            for grant in holder.grants
        )

    def _amount(self, holder: _Holder) -> float:
        fair = self.budget / sum(not other.over for other in self._holders.values())
        free = self.budget - sum(other.held() for other in self._holders.values() if other is not holder)
        if self._whole:
            return float(max(0, min(max(1, math.floor(fair)), math.floor(free))))
        return max(0.0, min(fair, free))
