"""One dependency of 300 targets hangs for ever, or fails at once: the others keep their pace. In virtual time."""

from itertools import pairwise

import pytest

from foundation.errors import StoreUnavailableError
from scaling.ports import CollectError, ScalerError
from tests.fleet_support import HANG, Fleet
from tests.runner_support import MINUTE, NOW
from tests.virtual_time import virtual_time

PORTS = {
    "collector": CollectError("403"),
    "current": ScalerError("403"),
    "apply": ScalerError("another operation is in progress", retry_after=20.0),
    "load": StoreUnavailableError("tables are down"),
    "save": StoreUnavailableError("tables are down"),
    "append": StoreUnavailableError("the log is down"),
}
SICK = {port: f"t{150 + number}" for number, port in enumerate(PORTS)}
BY_READING = {"collector", "current"}


def played(minutes: float, begin=lambda fleet: None, *, script=(), verify_every=MINUTE, **options) -> Fleet:
    """A fleet after so many minutes; `begin`, and at their minutes the functions of `script`, do something to it."""
    with virtual_time() as run:

        async def play() -> Fleet:
            fleet = Fleet(**options)
            begin(fleet)
            calls = [(minute, lambda call=call: call(fleet)) for minute, call in script]
            await fleet.run(minutes, script=calls, verify_every=verify_every)
            return fleet

        return run(play())


def ill(moods):
    """What the ports do for a target, or for all (`None`), from the beginning."""
    return lambda fleet: fleet.moods.of.update(moods)


def well(fleet: Fleet) -> None:
    fleet.moods.of.clear()


def changes(fleet: Fleet, names) -> dict[str, list[int]]:
    return {name: fleet.scalers[name].platform.ledger for name in names}


def last_of_others(fleet: Fleet) -> float:
    """When, after the beginning, the last of the other targets had what it wanted."""
    others = [name for name in fleet.names if name not in SICK.values()]
    assert changes(fleet, others) == {name: [3] for name in others}
    return max(fleet.effects[name] for name in others) - NOW


@pytest.fixture(scope="module")
def undisturbed() -> float:
    """How long it takes when nothing is wrong: 300 changes of a second each, twelve at a time, and little else."""
    took = last_of_others(played(1.9))
    assert took < 40.0
    return took


@pytest.mark.parametrize(
    ("ports", "hang", "patience"),
    [
        # A read that hangs delays one round to its end: 15 s. Nothing else is noticed by the others.
        (BY_READING, True, 15.0),
        (PORTS.keys() - BY_READING, True, 2.5),
        (PORTS.keys(), False, 2.5),
    ],
    ids=["reads hang", "the others hang", "all fail"],
)
def test_what_is_wrong_with_a_target_costs_the_others_nothing(ports, hang, patience, undisturbed) -> None:
    moods = {(port, SICK[port]): HANG if hang else PORTS[port] for port in ports}
    fleet = played(5.9, ill(moods), script=((3.5, well),))

    assert last_of_others(fleet) <= undisturbed + patience
    sick = [SICK[port] for port in ports]
    others = [name for name in fleet.names if name not in sick]
    assert {len(fleet.reports[name]) for name in others} == {6}
    for name in others:
        for _, report in fleet.reports[name]:
            assert (len(report.samples), report.capacity is None) == (1, False)
    # And who was ill gets what it wanted once it is well again, exactly once, and nobody was kept in the dark.
    assert changes(fleet, sick) == {name: [3] for name in sick}
    for port in ports & BY_READING:
        assert any(f"collector {SICK[port]}: " in warning for warning in fleet.warnings)


@pytest.mark.parametrize("port", ["collector", "current"])
def test_after_the_first_round_a_read_that_hangs_costs_five_seconds_a_round(port: str) -> None:
    fleet = played(3.9, ill({(port, SICK[port]): HANG}))

    came = [at - NOW for at, _ in fleet.reports["t000"]]
    assert [round(at) for at in came] == [15, 65, 125, 185]


@pytest.mark.parametrize("how", ["hangs", "fails"])
@pytest.mark.parametrize("port", ["load", "save", "append", "purge"])
def test_a_store_that_is_gone_for_all_is_told_and_all_goes_on_when_it_is_back(port: str, how: str) -> None:
    mood = HANG if how == "hangs" else StoreUnavailableError("down")
    fleet = played(5.9, ill({(port, None): mood}), script=((1.5, well),), count=60)

    assert [len(fleet.reports[name]) for name in fleet.names] == [6] * 60
    assert changes(fleet, fleet.names) == {name: [3] for name in fleet.names}


def test_three_hundred_entities_of_one_namespace_that_hang_leave_the_rest_their_samples_and_their_pace() -> (
    None
):
    names = [f"t{index:03}" for index in range(350)]
    gone, fine = names[:300], names[300:]
    endpoints = dict.fromkeys(gone, "Service Bus gone") | dict.fromkeys(fine, "Service Bus fine")
    fleet = played(1.9, ill({("collector", name): HANG for name in gone}), count=350, endpoints=endpoints)

    for name in fine:
        (at, report), *_ = fleet.reports[name]
        assert at - NOW <= 15.1
        assert [sample.value for sample in report.samples] == [900.0]
        assert fleet.effects[name] - NOW < 40.0
    for name in gone:
        _, report = fleet.reports[name][0]
        assert report.samples == ()
        assert "no answer" in report.failures[0].message or "not asked" in report.failures[0].message
        assert fleet.scalers[name].platform.ledger == []


BUSY = ScalerError("another operation is in progress", retry_after=20.0)


@pytest.mark.parametrize("mood", [HANG, BUSY], ids=["hang", "are busy"])
def test_three_plans_that_cannot_be_moved_for_the_whole_life_of_their_actions_stall_nobody(mood) -> None:
    """The others want their change eight minutes later: no place of the queue's batch may be lost by then."""
    sick = ["t000", "t001", "t002"]

    def begin(fleet: Fleet) -> None:
        fleet.backlog, fleet.backlogs = 300.0, dict.fromkeys(sick, 900.0)
        fleet.moods.of.update({("apply", name): mood for name in sick})

    fleet = played(9.9, begin, script=((7.9, lambda fleet: setattr(fleet, "backlog", 900.0)),), count=63)

    others = [name for name in fleet.names if name not in sick]
    assert changes(fleet, others) == {name: [3] for name in others}
    assert max(fleet.effects[name] for name in others) - NOW < 8 * 60.0 + 12.0
    for name in sick:
        times = [at for at, target in fleet.orders if target == name]
        assert len(times) > 2  # tried again, and again
        assert min(later - at for at, later in pairwise(times)) >= 20.0


def test_actions_are_neither_lost_nor_given_up_unsent_when_the_checks_run_every_ten_minutes() -> None:
    """Each message of the first two minutes is lost on its way: what is sent again comes from the evaluations."""

    async def lose(_message: str) -> None: ...

    lost = ((2.0, lambda fleet: delattr(fleet, "_apply")),)
    fleet = played(
        8.9, lambda fleet: setattr(fleet, "_apply", lose), script=lost, verify_every=600.0, count=20
    )

    assert changes(fleet, fleet.names) == {name: [3] for name in fleet.names}
    assert max(fleet.effects.values()) - NOW < 4 * 60.0
