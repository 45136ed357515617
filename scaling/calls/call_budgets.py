"""Call budgets: which caller may call a service now, how long the others wait, and what was called. Pure; `now` is an
argument, in seconds of a monotonic clock.

The rules:

1. No time range of a budget's length holds more calls than the budget has.
2. A service that asked to wait (Retry-After) gets no call until then, and calls to other services go on.
   `scaling.calls.throttling` decides whether the answer means one resource, one operation, a provider or a subscription.
3. Callers whose call was refused form a queue. The first of the queue goes before all others, so each caller gets its turn
   at any demand. A caller that has not asked again for a while keeps its place, but nobody waits for it.
4. Urgent calls, those that carry out a change, go first: a fifth of each budget is reserved for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from math import ceil, inf

from msgspec import Struct

from scaling.calls.budgets import Budget, Call
from scaling.calls.throttling import Scope, ThrottlingWait
from scaling.calls.usage import CallsView

RESERVED = 0.2
"""Share of a budget that is reserved for urgent calls. Chosen: a change takes three calls, so a fifth of the smallest budget
(40 in 5 s) carries out two changes at once."""

ASKS_AGAIN = 90.0
"""Seconds within which a refused caller is expected to ask again: collections are a minute apart, and half a minute late
at most."""

LOOKS_AHEAD = 3
"""The wait is computed from at most this many budgets of queued calls, so that a long queue costs no time to count."""

REMEMBERED = 3600.0
"""Seconds for which a caller keeps its place and calls are counted: `tidemark status --calls` shows an hour."""

SLOT = 10.0
"""Seconds of one count: 360 counts an hour, and the last minute is exact within a sixth."""

LONGEST_QUIET = 3600.0
"""Longest wait in seconds that an answer can impose. After it the service is tried again, whatever it asked for."""


class Refusal(Struct, frozen=True):
    """How many seconds a call has to wait, and the reason in words."""

    seconds: float
    why: str


class _Counts:
    """Events of the last hour, counted in slots of SLOT seconds."""

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}

    def add(self, now: float) -> None:
        slot = int(now // SLOT)
        if slot not in self._slots:
            for old in [known for known in self._slots if known < slot - REMEMBERED / SLOT]:
                del self._slots[old]
        self._slots[slot] = self._slots.get(slot, 0) + 1

    def within(self, seconds: float, now: float) -> int:
        """The events of the last `seconds`, without the slot in which these began."""
        first = int((now - seconds) // SLOT)
        return sum(count for slot, count in self._slots.items() if slot > first)


class _Window:
    """The times of at most `calls` within `seconds`."""

    def __init__(self, calls: int, seconds: float) -> None:
        self.calls, self._seconds = calls, seconds
        self.times: deque[float] = deque()

    def wait(self, now: float, ahead: int) -> float:
        """Seconds until the budget has a call left after the `ahead` callers in front; 0 means now."""
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
    """One API in one scope: its windows, and the queue of refused callers. Urgent calls take what is reserved for them
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
        # Each refused caller with the time of its last call, in the order of their first refusals.
        self._queue: dict[str, float] = {}

    def wait(self, who: str, now: float, *, urgent: bool) -> float:
        """Seconds until the caller `who` may call; 0 means now."""
        if self.budget is None:
            return 0.0
        if urgent:
            return self._all.wait(now, 0)
        ahead = self._ahead(who, now, LOOKS_AHEAD * self._ordinary.calls)
        return max(self._ordinary.wait(now, ahead), self._all.wait(now, ahead))

    def _ahead(self, who: str, now: float, most: int) -> int:
        """How many callers are before it in the queue, counted up to `most`."""
        ahead = 0
        for caller, asked_at in self._queue.items():
            if caller == who or ahead == most:
                break
            ahead += asked_at > now - ASKS_AGAIN
        return ahead

    def take(self, who: str, now: float, *, urgent: bool) -> None:
        self.made.add(now)
        self._queue.pop(who, None)
        if self.budget is not None:
            self._all.times.append(now)
            if not urgent:
                self._ordinary.times.append(now)

    def leave(self, who: str) -> None:
        self._queue.pop(who, None)

    def refuse(self, who: str, now: float) -> None:
        """Puts the caller at the end of the queue, or leaves it at its place."""
        self.refused.add(now)
        if self.budget is None:
            return
        self._queue[who] = now
        while (first := next(iter(self._queue.items())))[1] < now - REMEMBERED:
            del self._queue[first[0]]


class CallBudgets:
    """The budgets of one process. `ask` takes a call from them and returns None, or takes none and returns a refusal."""

    def __init__(self, budgets: Mapping[str, Budget]) -> None:
        self._budgets = budgets
        self._accounts: dict[tuple[str, str], _Account] = {}
        self._quiet: dict[str, float] = {}
        # By the next wider scope: the throttled scopes below it, each with the end of its wait.
        self._unsure: dict[str, dict[str, float]] = {}

    def ask(self, call: Call, now: float, *, urgent: bool = False) -> Refusal | None:
        accounts = [self._account(api, scope) for api, scope in call.charges]
        refusal = self._quieted(call, now)
        waits = [account.wait(call.who, now, urgent=urgent) for account in accounts]
        if refusal is None and any(waits):
            longest = max(range(len(waits)), key=waits.__getitem__)
            (api, scope), budget = call.charges[longest], accounts[longest].budget
            assert budget is not None  # without one there is no wait
            why = f"the budget of {api} for {scope} ({budget.words}) is used up"
            refusal = Refusal(waits[longest], why)
        for account, wait in zip(accounts, waits, strict=True):
            if refusal is None:
                account.take(call.who, now, urgent=urgent)
            elif wait or not any(waits):
                account.refuse(call.who, now)
        return refusal

    def forget_caller(self, call: Call) -> None:
        """Removes a caller that gave up from the queues, so that nobody waits for it."""
        for api, scope in call.charges:
            self._account(api, scope).leave(call.who)

    def note_throttling(self, call: Call, asked: ThrottlingWait, now: float) -> None:
        """Notes that the answer to a call asked to wait. A shorter wait does not end a longer one."""
        until = now + min(max(asked.seconds, 0.0), LONGEST_QUIET)
        self._quiet = {scope: end for scope, end in self._quiet.items() if end > now}
        scope = self._widened(call, asked, until, now)
        self._quiet[scope] = max(until, self._quiet.get(scope, until))
        for api, place in call.charges:
            account = self._account(api, place)
            account.throttled.add(now)
            account.quiet_until = max(account.quiet_until, until)

    def _widened(self, call: Call, asked: ThrottlingWait, until: float, now: float) -> str:
        """The scope that gets no calls: that of the answer, or the next wider one when the answer was not certain and
        another scope below the same one was throttled as well. A provider at most: a subscription that throttles says so.
        """
        at = min(asked.scope, len(call.scopes) - 1)
        while not asked.certain and at < min(Scope.PROVIDER, len(call.scopes) - 1):
            scope_now, parent = call.scopes[at], call.scopes[at + 1]
            below = {scope: end for scope, end in self._unsure.get(parent, {}).items() if end > now}
            self._unsure[parent] = {**below, scope_now: max(until, below.get(scope_now, until))}
            if len(self._unsure[parent]) == 1:
                break
            at += 1
        self._unsure = {parent: below for parent, below in self._unsure.items() if max(below.values()) > now}
        return call.scopes[at]

    def _quieted(self, call: Call, now: float) -> Refusal | None:
        left, scope = max(
            ((self._quiet.get(name, now) - now, name) for name in call.scopes), default=(0.0, "")
        )
        return Refusal(left, f"{scope.partition('?')[0]} asked to wait") if left > 0 else None

    def _account(self, api: str, scope: str) -> _Account:
        known = self._accounts.get((api, scope))
        if known is None:
            known = self._accounts[api, scope] = _Account(self._budgets.get(api))
        return known

    def usage(self, now: float, wall_clock: float) -> Iterator[CallsView]:
        """The calls of the last hour by API and scope, when the wall clock says `wall_clock` at `now`. Forgets hosts without
        a budget that were not called for an hour.
        """
        for (api, scope), account in sorted(self._accounts.items(), key=lambda item: item[0]):
            budget, waits = account.budget, max(account.quiet_until - now, 0.0)
            view = CallsView(
                api,
                scope,
                None if budget is None else budget.calls,
                None if budget is None else budget.seconds,
                account.made.within(60.0, now),
                account.made.within(REMEMBERED, now),
                account.refused.within(60.0, now),
                account.refused.within(REMEMBERED, now),
                account.throttled.within(REMEMBERED, now),
                wall_clock + waits if waits else None,
            )
            if view.last_hour or view.refused_hour or waits:
                yield view
            elif budget is None:
                del self._accounts[api, scope]
