"""The numbers of a process's calls, as they are stored, shown and logged. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from tidemark.foundation.log.tail import Line
from tidemark.foundation.wording import count_text

SHOWN = 40
"""How many APIs and scopes of one process are stored, those called most first: 40 fit into one property of a row (64 KiB)
and into one log line."""

STALE = 150.0
"""Seconds after which the numbers of a process's last minute are shown as 0: two notes and a half."""


class CallsView(Struct, frozen=True):
    """The calls of one API in one scope. This process may make `budget` calls in `seconds`; both are null without a budget.
    `throttled_hour` counts answers that asked all callers to wait; `waits_until` is the end of such a wait (seconds since
    the epoch).
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
    """The calls of one process, as of `at` (seconds since the epoch)."""

    process: str
    at: float
    calls: tuple[CallsView, ...]


class CallsSeen(Struct, frozen=True):
    """All processes that made calls within the last hour, as of `now`."""

    now: float
    processes: tuple[ProcessCalls, ...]


def process_calls(process: str, used: Iterable[CallsView], now: float) -> ProcessCalls:
    """The busiest APIs; those with refusals or throttling come first."""
    busiest = sorted(used, key=lambda view: (-view.refused_hour - view.throttled_hour, -view.last_hour))
    return ProcessCalls(process, now, tuple(busiest[:SHOWN]))


def seen(stored: Iterable[ProcessCalls], now: float) -> CallsSeen:
    """The processes, newest row first. Rows older than STALE count no last minute; rows older than an hour are left out."""
    replace = msgspec.structs.replace
    processes = []
    for process in sorted(
        (stored_calls for stored_calls in stored if stored_calls.at > now - 3600.0),
        key=lambda stored_calls: -stored_calls.at,
    ):
        views = process.calls
        if process.at <= now - STALE:
            views = tuple(replace(view, last_minute=0, refused_minute=0) for view in views)
        processes.append(replace(process, calls=views))
    return CallsSeen(now, tuple(processes))


def is_tight(process: ProcessCalls) -> bool:
    """Whether a call was refused within the last minute, or a service has asked to wait."""
    return any(view.refused_minute or view.waits_until is not None for view in process.calls)


def calls_line(process: ProcessCalls) -> Line:
    made = sum(view.last_minute for view in process.calls)
    refused = sum(view.refused_minute for view in process.calls)
    waited_for = [view.scope for view in process.calls if view.waits_until is not None]
    asked = f"; {', '.join(sorted(set(waited_for)))[:300]} asked to wait" if waited_for else ""
    short = [
        f"{view.api} of {view.scope} ({view.budget_text})" for view in process.calls if view.refused_minute
    ]
    used_up = f"; used up: {', '.join(short)[:300]}" if short else ""
    text = f"calls: {count_text(made, 'call')} in the last minute, {refused} refused for want of budget{used_up}{asked}"
    fields = {"at": process.at, "process": process.process, "calls": msgspec.to_builtins(process.calls)}
    return Line(text, "calls", fields)
