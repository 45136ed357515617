"""The ledger of calls: who may call now, who has to wait and how long, and what was called. Pure; `now` is an argument, in
seconds of a clock that never runs back.

The rules:

1. In no window of a budget's seconds are there more calls than it has.
2. What asked to wait (Retry-After) is called by nobody until then, and nobody else waits for it. Whether that is one
   resource, one operation, a provider or a subscription is in `scaling.calls.throttling`.
3. Who is refused keeps its place: it goes before all who were refused after it, and before all who were not. So under any
   demand each gets its turn, whatever the order they ask in. A place of somebody who has not asked for a while is kept, but
   holds up nobody.
4. Urgent calls, those of a change that is being carried out, go first: a fifth of each budget is for them alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from math import ceil, inf

from msgspec import Struct

from scaling.calls.budgets import Budget, Call
from scaling.calls.throttling import Asked, Scope

RESERVED = 0.2
"""Share of a budget that is for urgent calls alone."""

ASKS_AGAIN = 90.0
"""Seconds within which somebody who was refused is expected to ask again: collections are a minute apart."""

LOOKS_AHEAD = 3
"""Budgets' worth of calls in line that are counted to tell how long to wait; behind a longer line it is longer."""

REMEMBERED = 3600.0
"""Seconds a place is kept, and calls are counted."""

SLOT = 10.0
"""Seconds of one count."""

LONGEST_QUIET = 3600.0
"""Seconds a service can ask everybody to wait; what asks for more is asked again then."""


class Refusal(Struct, frozen=True):
    """Why a call has to wait, in words, and how many seconds."""

    seconds: float
    why: str


class Usage(Struct, frozen=True):
    """What was called of one API in one scope. `budget` is None where there is none; `waits` are the seconds for which the
    service, or an endpoint there, has asked everybody to wait. `throttled` are answers that asked for it.
    """

    api: str
    scope: str
    budget: Budget | None
    last_minute: int
    last_hour: int
    refused_minute: int = 0
    refused_hour: int = 0
    throttled_hour: int = 0
    waits: float = 0.0


class _Counts:
    """Events of the last hour, counted by slots."""

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}

    def add(self, now: float) -> None:
        slot = int(now // SLOT)
        if slot not in self._slots:
            for old in [each for each in self._slots if each < slot - REMEMBERED / SLOT]:
                del self._slots[old]
        self._slots[slot] = self._slots.get(slot, 0) + 1

    def within(self, seconds: float, now: float) -> int:
        """Of the last `seconds`, and of the slot they began in."""
        first = int((now - seconds) // SLOT)
        return sum(count for slot, count in self._slots.items() if slot > first)


class _Window:
    """The times of at most `calls` within `seconds`."""

    def __init__(self, calls: int, seconds: float) -> None:
        self.calls, self._seconds = calls, seconds
        self.times: deque[float] = deque()

    def wait(self, now: float, ahead: int) -> float:
        """Seconds until there is one left after those who are `ahead`; 0 is now."""
        times = self.times
        while times and times[0] <= now - self._seconds:
            times.popleft()
        short = len(times) + ahead - self.calls
        if short < 0:
            return 0.0
        rounds, place = divmod(short, self.calls)
        first = times[place] if place < len(times) else now
        return first + self._seconds * (rounds + 1) - now


class _Account:
    """One API in one scope: its windows, and the line of those who wait. What is reserved for urgent calls is taken by them
    first.
    """

    def __init__(self, budget: Budget | None) -> None:
        self.budget = budget
        self.made, self.refused, self.throttled = _Counts(), _Counts(), _Counts()
        self.quiet_until = -inf
        if budget is not None:
            reserved = min(ceil(budget.calls * RESERVED), budget.calls - 1)
            self._all = _Window(budget.calls, budget.seconds)
            self._ordinary = _Window(budget.calls - reserved, budget.seconds)
        self._line: dict[
            str, float
        ] = {}  # who, and when it asked last; in the order in which they were refused first

    def wait(self, who: str, now: float, *, urgent: bool) -> float:
        """Seconds until `who` may call; 0 is now."""
        if self.budget is None:
            return 0.0
        if urgent:
            return self._all.wait(now, 0)
        ahead = self._ahead(who, now, LOOKS_AHEAD * self._ordinary.calls)
        return max(self._ordinary.wait(now, ahead), self._all.wait(now, ahead))

    def _ahead(self, who: str, now: float, most: int) -> int:
        """How many go before it, counted up to `most`."""
        ahead = 0
        for each, asked in self._line.items():
            if each == who or ahead == most:
                break
            ahead += asked > now - ASKS_AGAIN
        return ahead

    def take(self, who: str, now: float, *, urgent: bool) -> None:
        self.made.add(now)
        self._line.pop(who, None)
        if self.budget is not None:
            self._all.times.append(now)
            if not urgent:
                self._ordinary.times.append(now)

    def leave(self, who: str) -> None:
        self._line.pop(who, None)

    def refuse(self, who: str, now: float) -> None:
        """Puts it in line, or leaves it at its place there."""
        self.refused.add(now)
        if self.budget is None:
            return
        self._line[who] = now
        while (first := next(iter(self._line.items())))[1] < now - REMEMBERED:
            del self._line[first[0]]


class Ledger:
    """The calls of one process. `ask` takes a call and returns None, or takes none and returns why."""

    def __init__(self, budgets: Mapping[str, Budget]) -> None:
        self._budgets = budgets
        self._accounts: dict[tuple[str, str], _Account] = {}
        self._quiet: dict[str, float] = {}
        self._unsure: dict[
            str, dict[str, float]
        ] = {}  # by the next wider scope: those below it, and until when

    def ask(self, call: Call, now: float, *, urgent: bool = False) -> Refusal | None:
        accounts = [self._account(api, scope) for api, scope in call.charges]
        refusal = self._quieted(call, now)
        waits = [account.wait(call.who, now, urgent=urgent) for account in accounts]
        if refusal is None and any(waits):
            longest = max(range(len(waits)), key=waits.__getitem__)
            (api, scope), budget = call.charges[longest], accounts[longest].budget
            assert budget is not None  # noqa: S101 - without one there is no wait
            why = f"the budget of {api} for {scope} ({budget.words}) is used up"
            refusal = Refusal(waits[longest], why)
        for account, wait in zip(accounts, waits, strict=True):
            if refusal is None:
                account.take(call.who, now, urgent=urgent)
            elif wait or not any(waits):
                account.refuse(call.who, now)
        return refusal

    def left(self, call: Call) -> None:
        """Whoever waited in line has given up, and is not expected back soon: nobody else is held up by its place."""
        for api, scope in call.charges:
            self._account(api, scope).leave(call.who)

    def told(self, call: Call, asked: Asked, now: float) -> None:
        """The answer to a call asked to wait. A shorter wait does not end a longer one."""
        until = now + min(max(asked.seconds, 0.0), LONGEST_QUIET)
        self._quiet = {scope: end for scope, end in self._quiet.items() if end > now}
        scope = self._widened(call, asked, until, now)
        self._quiet[scope] = max(until, self._quiet.get(scope, until))
        for api, place in call.charges:
            account = self._account(api, place)
            account.throttled.add(now)
            account.quiet_until = max(account.quiet_until, until)

    def _widened(self, call: Call, asked: Asked, until: float, now: float) -> str:
        """The scope that is to be quiet: the one that was asked, or a wider one where that is not certain and another one
        below the same was asked as well. Never wider than a provider: what a subscription throttles it says itself.
        """
        at = min(asked.scope, len(call.scopes) - 1)
        while not asked.certain and at < min(Scope.PROVIDER, len(call.scopes) - 1):
            own, parent = call.scopes[at], call.scopes[at + 1]
            below = {each: end for each, end in self._unsure.get(parent, {}).items() if end > now}
            self._unsure[parent] = {**below, own: max(until, below.get(own, until))}
            if len(self._unsure[parent]) == 1:
                break
            at += 1
        self._unsure = {parent: below for parent, below in self._unsure.items() if max(below.values()) > now}
        return call.scopes[at]

    def _quieted(self, call: Call, now: float) -> Refusal | None:
        left, scope = max(
            ((self._quiet.get(each, now) - now, each) for each in call.scopes), default=(0.0, "")
        )
        return Refusal(left, f"{scope.partition('?')[0]} asked to wait") if left > 0 else None

    def _account(self, api: str, scope: str) -> _Account:
        known = self._accounts.get((api, scope))
        if known is None:
            known = self._accounts[api, scope] = _Account(self._budgets.get(api))
        return known

    def usage(self, now: float) -> Iterator[Usage]:
        """What was called within the last hour, by API and scope; of hosts without a budget the others are forgotten."""
        for (api, scope), account in sorted(self._accounts.items(), key=lambda each: each[0]):
            used = Usage(
                api,
                scope,
                account.budget,
                account.made.within(60.0, now),
                account.made.within(REMEMBERED, now),
                account.refused.within(60.0, now),
                account.refused.within(REMEMBERED, now),
                account.throttled.within(REMEMBERED, now),
                max(account.quiet_until - now, 0.0),
            )
            if used.last_hour or used.refused_hour or used.waits:
                yield used
            elif account.budget is None:
                del self._accounts[api, scope]
