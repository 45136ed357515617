"""What lint says of a budget."""

import pytest

from scaling.analysis.lint import lint
from scaling.config.policy import Budget, RuleSpec
from tests.support.scaling.budget import budgeted

WORKDAYS = RuleSpec(
    type="schedule",
    name="office",
    options={
        "periods": [{"days": "mon-fri", "from": "08:00", "to": "18:00", "floor": 6}],
        "time_zone": "UTC",
    },
)


def texts(kind, amount=74.0, *, rules=(WORKDAYS,), **changes):
    made = budgeted(amount, rules=(*budgeted().spec.rules, *rules), **changes)
    return [finding.text for finding in lint(made) if finding.kind == kind]


def test_floors_that_the_budget_does_not_pay_for_are_a_warning():
    [text] = texts("unpaid_floor", 73.9)
    assert text == (
        "targets.plan: the floors of its schedules take 74 instance-hours on the dearest day, and budget is 73.9 "
        "instance-hours: the floors will not be held to the end of that day"
    )
    assert texts("unpaid_floor") == []
    assert texts("unpaid_floor", rules=()) == []


@pytest.mark.parametrize(
    ("dates", "days"),
    [
        (["2026-11-27"], {}),
        (["12-31..01-02"], {}),
        (["2026-11-27 08:00..2026-11-28 08:00"], {}),
        (["a.ics"], {"begin": "2026-11-27"}),
        (["a.ics"], {"begin": "2026-11-27", "yearly": True}),
        (["a.ics"], {"begin": "2026-11-27", "yearly": True, "nth": 4}),
        (["a.ics"], {"begin": "1601-02-28", "yearly": True, "days": 2}),
        (["a.ics"], {"begin": "1601-01-05", "yearly": True, "nth": 1}),
        (["a.ics"], {"begin": "9999-12-31"}),
        (["a.ics"], {"begin": "0001-01-01"}),
    ],
)
def test_floors_of_days_that_are_named_count_too(dates, days):
    sale = {"on": dates, "from": "10:00", "to": "22:00", "floor": 40}
    rule = RuleSpec(
        type="schedule", name="sale", options={"periods": [sale], "files": {"a.ics": [days] if days else []}}
    )

    assert bool(texts("unpaid_floor", 200.0, rules=(WORKDAYS, rule))) == (
        days.get("begin", "")[:4] not in {"9999", "0001"}
    )


def test_the_days_are_those_of_the_budget():
    """Of 24 hours from 13:00 UTC on, one day has the end of a working day and the begin of the next one."""
    kamchatka = Budget(amount=73.0, time_zone="Asia/Kamchatka")

    assert texts("unpaid_floor", budget=kamchatka)


def test_the_last_day_that_a_calendar_has_is_looked_at_like_others():
    dear = RuleSpec(
        type="schedule", name="forever", options={"periods": [{"on": ["9999-12-30"], "floor": 9}]}
    )

    assert len(texts("unpaid_floor", 200.0, rules=(dear,))) == 1


def test_a_budget_beyond_the_maximum_is_noted():
    [text] = texts("idle_budget", 960.0)
    assert text == (
        "targets.plan: budget can never bind: the maximum of 40 takes 960 instance-hours a day, and budget is 960 "
        "instance-hours"
    )
    assert texts("idle_budget", 959.0) == []


def test_money_is_told_as_money_and_no_budget_has_no_floors_to_pay_for():
    [text] = texts("unpaid_floor", budget=Budget(amount=7.0, unit="money", price=0.1))

    assert "take 7.4 on the dearest day, and budget is 7:" in text
    assert texts("unpaid_floor", budget=None) + texts("rule_breaks_lint", budget=None) == []
