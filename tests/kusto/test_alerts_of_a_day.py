"""The alert rules over a day of a fleet: each fault is told within twenty minutes, nothing that is healthy is, none flaps."""

import pytest

from tests.kusto.day import HOUR, LATEST, QUERIES, Day, Fault, asked, faults, wrong
from tests.support.scaling.runner import MINUTE
from tests.unit.test_infra_portal import rules

DELAYS = {
    "at once": lambda _: 0.0,
    "as late as can be": lambda _: LATEST,
    "now and then": lambda drawn: drawn.uniform(0.0, LATEST),
}
HOURS = {
    "dead-letters": (61, 62, "flights"),
    "collectors": (63, 100, "five: backlog"),
    "lag": (63, 110, "flights"),
    "functions": (62, 110, "collect_metrics"),
    "silence": (61, 110, "ten"),
    "effects": (67, 115, "plain"),
    "poison": (64, 100, "poison queues"),
    "consumer-stopped": (62, 100, "slow"),
}
"""A fault of each rule within one hour, by its minutes."""


@pytest.fixture(scope="module")
def hour():
    found = [
        Fault(rule, subject, since * MINUTE, until * MINUTE)
        for rule, (since, until, subject) in HOURS.items()
    ]
    targets = ("plain", "five", "ten", "hourly")
    return Day(2, seed=1, delay=DELAYS["now and then"], found=found, targets=targets)


@pytest.mark.parametrize("name", sorted(QUERIES))
def test_an_alert_is_raised_in_time_and_for_nothing_else(hour, name):
    """Two hours, of which the second has a fault of every kind."""
    assert wrong(hour, name, asked(hour, rules()[name], name)) == []


class WithoutQuick(Day):
    """`quick` is taken out of tidemark.toml after 70 minutes. Until the next decision of the others all may be silent."""

    def _look(self, target, interval, at, count):
        if target != "quick" or at < 70 * MINUTE:
            super()._look(target, interval, at, count)


RARE = {
    "a day apart, nothing is silent": (Day, "silence", 9, ("daily",), []),
    "a removed target is not all of them": (WithoutQuick, "silence", 3, ("quick", "hourly"), ["quick"]),
    "checks are an hour apart": (Day, "poison", 5, ("hourly",), ["poison queues"]),
}


@pytest.mark.parametrize(("made", "name", "hours", "targets", "named"), RARE.values(), ids=RARE)
def test_what_is_rare_is_neither_silent_nor_ended(made, name, hours, targets, named):
    found = [Fault("poison", "poison queues", 65 * MINUTE, 185 * MINUTE, lasts=HOUR)]
    day = made(hours, seed=4, delay=DELAYS["now and then"], found=found, targets=targets, verify=HOUR)

    answers = asked(day, rules()[name], name)

    if name == "poison":
        assert wrong(day, name, answers, within=HOUR + 20 * MINUTE) == []
    assert sorted(set().union(*(subjects for now, subjects in answers if now >= 130 * MINUTE))) == named


@pytest.mark.torture
@pytest.mark.parametrize("delay", DELAYS)
def test_over_a_day_every_fault_is_told_in_time_nothing_healthy_and_none_flaps(delay):
    day = Day(24, seed=2, delay=DELAYS[delay], found=faults(24))

    assert {fault.rule for fault in day.faults} == set(QUERIES)
    assert [text for name in QUERIES for text in wrong(day, name, asked(day, rules()[name], name))] == []
