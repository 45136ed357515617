"""What a process has called: noted once a minute, logged seldom, shown to whoever asks."""

import json

from rich.console import Console

from scaling.calls.budgets import Budget, call_of
from scaling.calls.call_budgets import CallBudgets
from scaling.calls.noting import NOTIFY_AFTER, Noted, Noting
from scaling.calls.throttling import Scope, ThrottlingWait
from scaling.calls.usage import SHOWN, CallsView, ProcessCalls, process_calls, seen
from scaling.notices.events import calls_notice
from scaling.service.metrics import INSTRUMENTS
from tidemark.commands.access.calls import show
from tidemark.foundation.errors import StoreUnavailableError
from tidemark.foundation.log.tail import MARK, log_line

NOW = 1_800_000_000.0
PLAN = "https://management.azure.com/subscriptions/s/resourceGroups/g/providers/Microsoft.Web/serverfarms/p"


class Counts:
    """The table, in memory."""

    def __init__(self) -> None:
        self.rows: dict[str, ProcessCalls] = {}
        self.forgot: list[float] = []
        self.error: Exception | None = None

    async def put(self, counts: ProcessCalls) -> None:
        if self.error is not None:
            raise self.error
        self.rows[counts.process] = counts

    async def read(self):
        return list(self.rows.values())

    async def forget(self, *, before: float) -> int:
        self.forgot.append(before)
        return 0

    async def aclose(self) -> None: ...


class Calls:
    """A limiter whose usage is given."""

    def __init__(self) -> None:
        self.budgets, self.now = CallBudgets({"management_reads": Budget(5, 60.0)}), 0.0

    def usage(self, now):
        return list(self.budgets.usage(self.now, now))

    def make(self, count: int) -> None:
        for _ in range(count):
            self.budgets.ask(call_of("GET", PLAN), self.now)


async def test_a_process_notes_what_it_called_once_a_minute_and_nothing_before_its_first_call():
    calls, counts = Calls(), Counts()
    noting = Noting(calls, counts, "machine/1")

    assert await noting.note(NOW) == Noted()
    assert counts.rows == {}
    calls.make(3)
    await noting.note(NOW + 1)
    calls.make(1)
    assert await noting.note(NOW + 30) == Noted()

    [view] = counts.rows["machine/1"].calls
    assert (view.api, view.scope, view.budget, view.seconds) == (
        "management_reads",
        "management.azure.com/s",
        5,
        60.0,
    )
    assert (view.last_minute, view.refused_minute, view.waits_until) == (3, 0, None)
    assert counts.forgot == [NOW + 1 - 86_400]
    await noting.note(NOW + 61)
    assert counts.rows["machine/1"].calls[0].last_minute == 4
    assert len(counts.forgot) == 1


async def test_a_line_is_logged_every_ten_minutes_and_every_minute_while_calls_are_refused():
    calls = Calls()
    noting = Noting(calls, Counts(), "machine/1")
    calls.make(1)

    logged = [bool((await noting.note(NOW + 60 * minute)).lines) for minute in range(12)]
    assert [minute for minute, each in enumerate(logged) if each] == [10]
    calls.now = 300.0
    calls.make(6)
    (line,) = (await noting.note(NOW + 720)).lines

    assert line == (
        "calls: 4 calls in the last minute, 2 refused for want of budget; used up: management_reads of management.azure.com/s "
        "(5 in 60 s)"
    )
    told = log_line(line)
    fields = json.loads(told[told.rindex(MARK) :])
    assert (fields["kind"], fields["process"], fields["calls"][0]["refused_minute"]) == (
        "calls",
        "machine/1",
        2,
    )
    measured = {each.name: list(each.read(line.fields)) for each in INSTRUMENTS if each.of == "calls"}
    of = {"api": "management_reads", "scope": "management.azure.com/s", "process": "machine/1"}
    assert measured == {
        "autoscaler.calls": [(4, of)],
        "autoscaler.calls.budget": [(5.0, of)],
        "autoscaler.calls.refused": [(2, of)],
    }


async def test_people_are_told_of_a_budget_that_did_not_suffice_for_ten_minutes_and_once_a_day():
    calls = Calls()
    noting = Noting(calls, Counts(), "machine/1")
    told = []
    for minute in range(16):
        calls.now = 60.0 * minute
        calls.make(6 if minute != 3 else 1)  # the minute in which it suffices begins it anew
        told += [(minute, each) for each in (await noting.note(NOW + calls.now)).short]

    assert [minute for minute, _ in told] == [14, 15]
    assert NOTIFY_AFTER < 600
    first, again, tomorrow = (calls_notice(told[0][1], at) for at in (NOW, NOW + 600.0, NOW + 86_400.0))
    assert first.id == again.id == "calls:management_reads:management.azure.com/s@20270115"
    assert tomorrow.id == "calls:management_reads:management.azure.com/s@20270116"
    assert first.text.startswith(
        "the budget of calls management_reads for management.azure.com/s (5 in 60 s) does not suffice: 2 of 6 calls of the last"
        " minute were refused"
    )


async def test_a_table_that_does_not_answer_is_a_warning_and_ends_nothing():
    calls, counts = Calls(), Counts()
    counts.error = StoreUnavailableError("table 'ScalingCalls' cannot be reached")
    calls.make(1)

    noted = await Noting(calls, counts, "machine/1").note(NOW)

    assert noted.warnings == (
        "calls: not noted: StoreUnavailableError: table 'ScalingCalls' cannot be reached",
    )


def test_what_is_in_trouble_is_kept_before_what_is_called_most():
    budgets = CallBudgets({"service_bus": Budget(1, 60.0)})
    for number in range(SHOWN + 5):
        for _ in range(3 if number else 2):
            budgets.ask(call_of("GET", f"https://host{number}.example/"), 0.0)
    refused = call_of("GET", "https://refused.servicebus.windows.net/q", "service_bus")
    budgets.ask(refused, 0.0)
    budgets.ask(refused, 0.0)
    budgets.note_throttling(refused, ThrottlingWait(90.0, Scope.TENANT, certain=True), 0.0)

    kept = process_calls("p", budgets.usage(0.0, NOW), NOW)

    assert len(kept.calls) == SHOWN
    assert (kept.calls[0].scope, kept.calls[0].waits_until) == ("refused.servicebus.windows.net", NOW + 90.0)


def test_a_process_that_is_gone_has_no_last_minute_and_is_forgotten_after_an_hour():
    view = CallsView("other", "h", None, None, 7, 70, 1, 2)
    stored = [
        ProcessCalls("old", NOW - 4000, (view,)),
        ProcessCalls("gone", NOW - 200, (view,)),
        ProcessCalls("new", NOW - 9, (view,)),
    ]

    found = seen(stored, NOW)

    assert [each.process for each in found.processes] == ["new", "gone"]
    assert [each.calls[0].last_minute for each in found.processes] == [7, 0]
    assert found.processes[1].calls[0].last_hour == 70


def test_a_terminal_of_80_columns_shows_budgets_counts_and_waits():
    views = (
        CallsView("management_reads", "management.azure.com/s", 100, 5.0, 40, 2400, 3, 12, 1, NOW + 30),
        CallsView("other", "[bold]prometheus.example", None, None, 5, 300),
    )
    console = Console(width=80, record=True)
    show(console, seen([ProcessCalls("machine/1", NOW - 20, views)], NOW))

    assert console.export_text().splitlines() == [
        "process machine/1, 20 s ago:",
        "                    budget         minute    hour  refused  throttled   waits",
        "management.azure.com/s",
        "  management_reads  100 in 5 s         40    2400       12          1    30 s",
        "[bold]prometheus.example",
        "  other             none                5     300        0          0",
    ]
    show(console, seen([], NOW))
    assert "no process has reported its calls within the last hour" in console.export_text()
