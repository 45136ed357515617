"""What the doctor makes of the calls of the last hour."""

from scaling.calls.usage import CallsView, ProcessCalls, seen
from scaling.doctor.budgets import verdicts

NOW = 1_800_000_000.0


def told(*calls):
    return [
        (each.verdict, each.subject, each.found)
        for each in verdicts(seen([ProcessCalls("machine/1", NOW - 9, calls)] if calls else [], NOW))
    ]


def test_budgets_that_suffice_are_told_by_the_one_that_is_used_most():
    bus = CallsView("service_bus", "b.servicebus.windows.net", 50, 5.0, 300, 9000)
    plans = CallsView("management_reads", "management.azure.com/s", 100, 5.0, 400, 20_000)
    other = CallsView("other", "prometheus.example", None, None, 5000, 90_000)

    assert told(bus, plans, other) == [
        (
            "ok",
            "budgets",
            "they suffice; the most used: service_bus of b.servicebus.windows.net, 300 of 600 a minute",
        )
    ]
    assert told() == [("ok", "budgets", "they suffice; nothing was called within the last hour")]


def test_a_budget_that_did_not_suffice_is_a_warning():
    bus = CallsView("service_bus", "b.servicebus.windows.net", 50, 5.0, 600, 900, 3, 100)

    assert told(bus) == [
        (
            "warning",
            "service_bus of b.servicebus.windows.net",
            "100 of 1000 calls of the last hour were refused in process machine/1: the budget of 50 in 5 s does not suffice",
        )
    ]
