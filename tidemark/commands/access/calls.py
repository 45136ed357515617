"""`tidemark status --calls`: what each process of an app has called, and of what budget."""

from __future__ import annotations

from collections import defaultdict

from rich.markup import escape

from scaling.calls.usage import CallsSeen, CallsView, ProcessCalls
from tidemark.foundation.log.terminal import Console
from tidemark.foundation.sanitize import one_line
from tidemark.foundation.wording import duration_text

_HEADER = ("", "budget", "minute", "hour", "refused", "throttled", "waits")


def show(console: Console, calls_seen: CallsSeen) -> None:
    """Columns that fit into 80 letters, under each scope: those of Resource Manager alone are 57 long."""
    for process in calls_seen.processes:
        ago = duration_text(max(round(calls_seen.now - process.at), 0))
        console.print(f"process {escape(one_line(process.process))}, {ago} ago:", soft_wrap=True)
        for line in (_columns(_HEADER), *_lines(process, calls_seen.now)):
            console.print(escape(line.rstrip()), soft_wrap=True, highlight=False)
    if not calls_seen.processes:
        console.print("no process has reported its calls within the last hour")


def _lines(process: ProcessCalls, now: float) -> list[str]:
    scopes = defaultdict[str, list[CallsView]](list)
    for call in process.calls:
        scopes[call.scope].append(call)
    return [
        line
        for scope, calls in scopes.items()
        for line in (one_line(scope), *(_columns(_cells(call, now)) for call in calls))
    ]


def _columns(cells: tuple[str, ...]) -> str:
    api, budget, minute, hour, *others = cells
    refused, throttled, waits = others
    return f"  {api:<18}{budget:<15}{minute:>6}  {hour:>6}  {refused:>7}  {throttled:>9}  {waits:>6}"


def _cells(call: CallsView, now: float) -> tuple[str, ...]:
    left = 0.0 if call.waits_until is None else call.waits_until - now
    numbers = (call.last_minute, call.last_hour, call.refused_hour, call.throttled_hour)
    return (call.api, call.budget_text, *map(str, numbers), f"{left:.0f} s" if left > 0 else "")
