"""A target with an interval of its own is due since the last look, whichever tick finds it."""

import pytest

from scaling.schedules.timetable import is_due
from scaling.service.autoscaler import Autoscaler
from scaling.service.shell import LOST_AFTER
from scaling.window import CLOCK_TOLERANCE
from tests.support.scaling.runner import MINUTE, NOW, World, metric, policy
from tidemark.foundation.errors import StoreUnavailableError

HOUR = 3600.0
BEGIN = NOW // HOUR * HOUR  # a full hour


class Fleet:
    """Processes that share a store and a clock; what is collected is decided upon unless `decides` is off."""

    def __init__(self, every=HOUR):
        self.world = World(
            policy(interval=every, metrics={"backlog": metric(interval=every, span=every * 5)})
        )
        self.looks = []
        self.decides = True

    def process(self) -> Autoscaler:
        return self.world.autoscaler()

    async def tick(self, at, process) -> bool:
        self.world.clock.now = BEGIN + at
        messages = (await process.collect()).messages
        if self.decides:
            for message in messages:
                await process.evaluate(message)
        self.looks += [at] * len(messages)
        return bool(messages)


def minutes(count, late=5.0):
    return [MINUTE * index + late for index in range(count)]


TICKS = {  # seconds after the hour of the ticks of six hours; when it is looked at
    "on time": (minutes(360), [5.0 + HOUR * n for n in range(6)]),
    "the tick of the hour is late": (
        [5.0, HOUR + 55.0, HOUR + 60.0, HOUR + 120.0, 2 * HOUR + 5.0],
        [5.0, HOUR + 55.0, 2 * HOUR + 5.0],
    ),
    "minutes late": ([5.0, HOUR + 400.0, HOUR + 460.0, 2 * HOUR], [5.0, HOUR + 400.0, 2 * HOUR]),
    "missed": ([5.0, HOUR - 55.0, HOUR + 1800.0, 2 * HOUR + 5.0], [5.0, HOUR + 1800.0, 2 * HOUR + 5.0]),
    "several missed": ([5.0, 3.5 * HOUR, 3.5 * HOUR + 60.0, 4 * HOUR], [5.0, 3.5 * HOUR, 4 * HOUR]),
    "doubled": ([5.0, 5.0, 6.0, HOUR + 5.0, HOUR + 6.0], [5.0, HOUR + 5.0]),
    "a little early": ([0.0, HOUR - 5.0, HOUR + 55.0, 2 * HOUR - 5.0], [0.0, HOUR - 5.0, 2 * HOUR - 5.0]),
    "a clock set back by an hour": (
        [5.0, HOUR + 5.0, 300.0, 360.0, HOUR + 5.0, 2 * HOUR],
        [5.0, HOUR + 5.0, 300.0, HOUR + 5.0, 2 * HOUR],
    ),
    "a clock that ran two days ahead": (
        [2 * 86_400.0, 5.0, 65.0, HOUR + 5.0],
        [2 * 86_400.0, 5.0, HOUR + 5.0],
    ),
}


@pytest.mark.parametrize("restarts", [False, True], ids=["one process", "a process for each tick"])
@pytest.mark.parametrize(("ticks", "looks"), TICKS.values(), ids=TICKS)
async def test_an_hour_is_looked_at_once_by_whichever_tick_finds_it_due(ticks, looks, restarts):
    fleet = Fleet()
    process = fleet.process()
    every = 7 if len(ticks) > 100 else 1  # of ticks on time a part will do
    for at in [at for index, at in enumerate(ticks) if index % every == 0 or index % 60 == 0]:
        process = fleet.process() if restarts else process
        await fleet.tick(at, process)

    assert fleet.looks == looks


async def test_several_instances_look_once_together():
    fleet = Fleet()
    processes = [fleet.process() for _ in range(3)]
    for index, at in enumerate(minutes(190)[::5]):
        await fleet.tick(at, processes[index % 3])

    assert fleet.looks == [5.0, HOUR + 5.0, 2 * HOUR + 5.0, 3 * HOUR + 5.0]


async def test_a_look_whose_report_was_lost_is_repeated_and_one_that_is_on_its_way_is_not():
    fleet, process = Fleet(), None
    process = fleet.process()
    fleet.decides = False

    told = [await fleet.tick(5.0 + MINUTE * minute, process) for minute in range(7)]

    assert told == [True, *[False] * 4, True, False]
    assert LOST_AFTER == 5 * MINUTE


async def test_a_store_that_cannot_be_asked_keeps_no_target_from_being_looked_at():
    fleet = Fleet()
    process = fleet.process()
    fleet.decides = False

    async def load(target):
        raise StoreUnavailableError("away")

    fleet.world.states.load = load
    for at in minutes(70):
        await fleet.tick(at, process)

    assert fleet.looks == [5.0, HOUR + 5.0]


@pytest.mark.parametrize(
    ("now", "last", "due"),
    [
        (BEGIN + 55.0, BEGIN - HOUR + 5.0, True),
        (BEGIN + 60.0, BEGIN + 55.0, False),
        (BEGIN + HOUR - 7.0, BEGIN + 5.0, False),
        (BEGIN + HOUR - 5.0, BEGIN + 5.0, True),
        (BEGIN, None, True),
        (BEGIN - CLOCK_TOLERANCE, BEGIN, False),
    ],
)
def test_what_began_since_the_last_look_is_due(now, last, due):
    assert is_due(now, HOUR, MINUTE, last) is due


@pytest.mark.parametrize("zone_shift", [0.0, HOUR, -HOUR])
@pytest.mark.parametrize("every", [420.0, 7200.0, 86_400.0])
def test_intervals_are_counted_in_universal_time_whatever_clocks_show(every, zone_shift):
    """Local clocks that are put forward or back move no timer: each interval has one look."""
    last, looks = None, 0
    for minute in range(3 * 1440):
        now = BEGIN // 86_400 * 86_400 + zone_shift + MINUTE * minute
        if is_due(now, every, MINUTE, last):
            last, looks = now, looks + 1

    assert abs(looks - 3 * 86_400 / every) <= 1
