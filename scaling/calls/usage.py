"""What a process has called, as it is stored, shown and logged. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from scaling.calls.ledger import Usage
from tidemark.foundation.log.tail import Line
from tidemark.foundation.wording import count_text

SHOWN = 40
"""APIs and scopes of one process that are kept, those called most: a row and a log line have no room for thousands."""

STALE = 150.0
"""Seconds after which what a process called within its last minute is past."""


class CallsView(Struct, frozen=True):
    """One API in one scope. `budget` calls within `seconds` are this process's; null where there is none. `throttled_hour` are
    answers that asked everybody to wait, `waits_until` the end of such a wait (seconds since the epoch).
    """

    api: str
    scope: str
    budget: int | None
    seconds: float | None
    last_minute: int
    last_hour: int
    refused_minute: int = 0
    refused_hour: int = 0
    throttled_hour: int = 0
    waits_until: float | None = None

    @property
    def budget_text(self) -> str:
        return "none" if self.budget is None else f"{self.budget} in {self.seconds:g} s"


class ProcessCalls(Struct, frozen=True):
    """What one process had called by the time `at`."""

    process: str
    at: float
    calls: tuple[CallsView, ...]


class CallsSeen(Struct, frozen=True):
    """All processes that called anything within the last hour, as of `now`."""

    now: float
    processes: tuple[ProcessCalls, ...]


def process_calls(process: str, used: Iterable[Usage], now: float) -> ProcessCalls:
    """Those called most, and those that are in trouble before them."""
    busiest = sorted(used, key=lambda each: (-each.refused_hour - each.throttled_hour, -each.last_hour))
    return ProcessCalls(process, now, tuple(_view(each, now) for each in busiest[:SHOWN]))


def _view(used: Usage, now: float) -> CallsView:
    budget = used.budget
    return CallsView(
        used.api,
        used.scope,
        None if budget is None else budget.calls,
        None if budget is None else budget.seconds,
        used.last_minute,
        used.last_hour,
        used.refused_minute,
        used.refused_hour,
        used.throttled_hour,
        now + used.waits if used.waits else None,
    )


def seen(stored: Iterable[ProcessCalls], now: float) -> CallsSeen:
    """Newest first. A process that has told nothing for a while has no last minute, and after an hour nothing to tell."""
    found = [each for each in stored if each.at > now - 3600.0]
    return CallsSeen(now, tuple(_past(each, now) for each in sorted(found, key=lambda each: -each.at)))


def _past(told: ProcessCalls, now: float) -> ProcessCalls:
    if told.at > now - STALE:
        return told
    replace = msgspec.structs.replace
    calls = (replace(each, last_minute=0, refused_minute=0) for each in told.calls)
    return replace(told, calls=tuple(calls))


def is_tight(told: ProcessCalls) -> bool:
    """Whether something was refused within the last minute, or has asked to wait."""
    return any(each.refused_minute or each.waits_until is not None for each in told.calls)


def calls_line(told: ProcessCalls) -> Line:
    made, refused = (
        sum(getattr(each, name) for each in told.calls) for name in ("last_minute", "refused_minute")
    )
    waited_for = [each.scope for each in told.calls if each.waits_until is not None]
    asked = f"; {', '.join(sorted(set(waited_for)))[:300]} asked to wait" if waited_for else ""
    short = [f"{each.api} of {each.scope} ({each.budget_text})" for each in told.calls if each.refused_minute]
    used_up = f"; used up: {', '.join(short)[:300]}" if short else ""
    text = f"calls: {count_text(made, 'call')} in the last minute, {refused} refused for want of budget{used_up}{asked}"
    fields = {"at": told.at, "process": told.process, "calls": msgspec.to_builtins(told.calls)}
    return Line(text, "calls", fields)
