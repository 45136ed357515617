"""`tidemark status --calls`: what each process of an app has called, and of what budget."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from foundation.sanitize import one_line
from foundation.wording import duration_text
from scaling.calls.usage import CallsSeen, CallsView


def show(console: Console, found: CallsSeen) -> None:
    for each in found.processes:
        ago = duration_text(max(round(found.now - each.at), 0))
        table = Table("API", "scope", "budget", "last minute", "last hour", "refused", "throttled", "waits")
        for call in each.calls:
            table.add_row(*map(escape, _cells(call, found.now)))
        console.print(f"process {escape(one_line(each.process))}, {ago} ago:", soft_wrap=True)
        console.print(table)
    if not found.processes:
        console.print("no process has told of its calls within the last hour")


def _cells(call: CallsView, now: float) -> tuple[str, ...]:
    budget = "none" if call.budget is None else f"{call.budget} in {call.seconds:g} s"
    left = 0.0 if call.waits_until is None else call.waits_until - now
    numbers = (call.last_minute, call.last_hour, call.refused_hour, call.throttled_hour)
    return (call.api, one_line(call.scope), budget, *map(str, numbers), f"{left:.0f} s" if left > 0 else "")
