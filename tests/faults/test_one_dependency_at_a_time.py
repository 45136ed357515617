"""One dependency of 300 targets hangs for ever, or fails at once: the others keep their pace. In virtual time."""

import asyncio
from functools import cache
from itertools import pairwise
from math import inf

import pytest

from scaling.ports import CollectError, ScalerError
from tests.faults.fleet import HANG, Chance, Fleet
from tests.support.scaling.runner import NOW
from tests.support.virtual_time import virtual_time
from tidemark.foundation.errors import StoreUnavailableError

SICK = "t020"
FEW = 40
"""Targets of all cases but one: each case plays six minutes of them."""
PORTS = {
    "collector": CollectError("403"),
    "current": ScalerError("403"),
    "apply": ScalerError("another operation is in progress", retry_after=20.0),
    "load": StoreUnavailableError("tables are down"),
    "save": StoreUnavailableError("tables are down"),
    "append": StoreUnavailableError("the log is down"),
}
BY_READING = {"collector", "current"}


def played(minutes: float, port: str | None = None, mood=None, *, target=SICK, script=(), **options) -> Fleet:
    with virtual_time() as run:

        async def play() -> Fleet:
            fleet = Fleet(**options)
            if port is not None:
                fleet.moods.of[port, target] = mood
            calls = [(minute, lambda call=call: call(fleet)) for minute, call in script]
            await fleet.run(minutes, script=calls)
            return fleet

        return run(play())


def well(fleet: Fleet) -> None:
    fleet.moods.of.clear()


def last_of_others(fleet: Fleet) -> float:
    """When, after the beginning, the last of the other targets had what it wanted."""
    others = [name for name in fleet.names if name != SICK]
    assert {name: fleet.scalers[name].platform.ledger for name in others} == {name: [3] for name in others}
    return max(fleet.effects[name] for name in others) - NOW


@cache
def undisturbed(count: int) -> float:
    """How long it takes when nothing is wrong: changes of a second each, 24 at a time, and little else."""
    took = last_of_others(played(1.9, count=count))
    assert took < 40.0
    return took


@pytest.mark.parametrize("how", ["hangs", "fails"])
@pytest.mark.parametrize("port", PORTS)
def test_what_is_wrong_with_one_target_costs_the_others_nothing(port: str, how: str) -> None:
    count = 300 if (port, how) == ("collector", "hangs") else FEW
    fleet = played(5.9, port, HANG if how == "hangs" else PORTS[port], script=((3.5, well),), count=count)

    # A read that hangs delays one round to its end: 15 s. Nothing else is noticed by the others.
    patience = 15.0 if how == "hangs" and port in BY_READING else 2.5
    assert last_of_others(fleet) <= undisturbed(count) + patience
    others = [name for name in fleet.names if name != SICK]
    assert {len(fleet.reports[name]) for name in others} == {6}
    for name in others:
        for _, report in fleet.reports[name]:
            assert (len(report.samples), report.capacity is None) == (1, False)
    # And who was ill gets what it wanted once it is well again, exactly once, and nobody was kept in the dark.
    assert fleet.scalers[SICK].platform.ledger == [3]
    if port in BY_READING:
        assert any(f"collector {SICK}: " in warning for warning in fleet.warnings)


@pytest.mark.parametrize("port", ["collector", "current"])
def test_after_the_first_round_a_read_that_hangs_costs_five_seconds_a_round(port: str) -> None:
    fleet = played(3.9, port, HANG, count=FEW)

    came = [at - NOW for at, _ in fleet.reports["t000"]]
    assert [round(at) for at in came] == [15, 65, 125, 185]


@pytest.mark.parametrize("how", ["hangs", "fails"])
@pytest.mark.parametrize("port", ["load", "save", "append", "purge"])
def test_a_store_that_is_gone_for_all_is_told_and_all_goes_on_when_it_is_back(port: str, how: str) -> None:
    mood = HANG if how == "hangs" else StoreUnavailableError("down")
    fleet = played(5.9, port, mood, target=None, script=((1.5, well),), count=60)

    assert [len(fleet.reports[name]) for name in fleet.names] == [6] * 60
    assert {name: fleet.scalers[name].platform.ledger for name in fleet.names} == {
        name: [3] for name in fleet.names
    }


def test_three_hundred_entities_of_one_namespace_that_hang_leave_the_rest_their_samples_and_their_pace() -> (
    None
):
    names = [f"t{index:03}" for index in range(350)]
    endpoints = {
        name: "Service Bus gone" if index < 300 else "Service Bus fine" for index, name in enumerate(names)
    }
    with virtual_time() as run:

        async def play() -> Fleet:
            fleet = Fleet(350, endpoints=endpoints)
            for name in names[:300]:
                fleet.moods.of["collector", name] = HANG
            await fleet.run(1.9)
            return fleet

        fleet = run(play())

    for name in names[300:]:
        (at, report), *_ = fleet.reports[name]
        assert at - NOW <= 15.1
        assert [sample.value for sample in report.samples] == [900.0]
        assert fleet.effects[name] - NOW < 40.0
    for name in names[:300]:
        _, report = fleet.reports[name][0]
        assert report.samples == ()
        assert "no answer" in report.failures[0].message or "not asked" in report.failures[0].message
        assert fleet.scalers[name].platform.ledger == []


BUSY = ScalerError("another operation is in progress", retry_after=20.0)


@pytest.mark.parametrize("mood", [HANG, BUSY], ids=["hang", "are busy"])
def test_three_plans_that_cannot_be_moved_for_the_whole_life_of_their_actions_stall_nobody(mood) -> None:
    """The others want their change eight minutes later: no place of the queue's batch may be lost by then."""
    sick = ["t000", "t001", "t002"]
    with virtual_time() as run:

        async def play() -> Fleet:
            fleet = Fleet(63)
            fleet.backlog, fleet.backlogs = 300.0, dict.fromkeys(sick, 900.0)
            fleet.moods.of.update({("apply", name): mood for name in sick})
            await fleet.run(9.9, script=((7.9, lambda: setattr(fleet, "backlog", 900.0)),))
            return fleet

        fleet = run(play())

    others = [name for name in fleet.names if name not in sick]
    assert {name: fleet.scalers[name].platform.ledger for name in others} == {name: [3] for name in others}
    assert max(fleet.effects[name] for name in others) - NOW < 8 * 60.0 + 12.0
    for name in sick:
        times = [at for at, target in fleet.orders if target == name]
        assert len(times) > 2  # tried again, and again
        assert min(later - at for at, later in pairwise(times)) >= 20.0


def test_actions_are_neither_lost_nor_given_up_unsent_when_the_checks_run_every_ten_minutes() -> None:
    """Each message of the first two minutes is lost on its way: what is sent again comes from the evaluations."""
    with virtual_time() as run:

        async def play() -> Fleet:
            fleet = Fleet(20)
            deliver, fleet._apply = fleet._apply, lose
            await fleet.run(
                8.9, verify_every=600.0, script=((2.0, lambda: setattr(fleet, "_apply", deliver)),)
            )
            return fleet

        async def lose(_message: str) -> None: ...

        fleet = run(play())

    assert {name: fleet.scalers[name].platform.ledger for name in fleet.names} == {
        name: [3] for name in fleet.names
    }
    assert max(fleet.effects.values()) - NOW < 4 * 60.0


THROTTLED = 20.0
ERRORS = {
    "collector": [CollectError("429"), CollectError("503")],
    "current": [ScalerError("429", retry_after=THROTTLED), ScalerError("503")],
    "apply": [ScalerError("429", retry_after=THROTTLED), ScalerError("503")],
    "load": [StoreUnavailableError("503")],
    "save": [StoreUnavailableError("503")],
    "append": [StoreUnavailableError("503")],
    "purge": [StoreUnavailableError("503")],
}


@pytest.mark.parametrize(
    ("count", "minutes", "hangs"),
    [(300, 3, 0.015), pytest.param(1000, 60, 0.01, marks=[pytest.mark.torture, pytest.mark.timeout(1800)])],
    ids=["minutes", "an hour of a thousand"],
)
def test_targets_whose_calls_hang_and_fail_by_chance_are_decided_every_minute(count, minutes, hangs) -> None:
    """Of all calls one in twenty is throttled or refused, and one in a hundred, or more, hangs for ever."""
    with virtual_time() as run:

        async def play() -> tuple[Fleet, float]:
            begun = asyncio.get_running_loop().time()
            fleet = Fleet(count, moods=Chance(7, ERRORS, hangs=hangs, fails=0.05))
            await fleet.run(minutes + 0.9)
            fleet.moods.hangs = fleet.moods.fails = 0.0
            return fleet, begun

        fleet, begun = run(play())

    late = {}
    for name in fleet.names:
        wrong = [NOW + at - begun for at in fleet.moods.met[name]]
        assert len(fleet.reports[name]) >= minutes
        for _, report in fleet.reports[name][:minutes]:
            healthy = not any(report.at <= at < report.at + 60.0 for at in wrong)
            if healthy and not fleet.decided[name].get(report.at, inf) < report.at + 60.0:
                late[name] = report.at - NOW
    assert not late
    assert len(fleet.moods.met) > count / 2, "the chance was met"
