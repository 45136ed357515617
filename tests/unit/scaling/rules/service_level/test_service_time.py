"""How long a message takes, by each sense: never much faster than the truth, whatever the times of the messages."""

import numpy as np
import pytest

from scaling.rules.service_level import service_time
from scaling.rules.service_level.memory import MAX_POINTS, LearnedTime
from tidemark.analysis.simulation import peers, times
from tidemark.analysis.simulation.world import Model, Run

STEP, MINUTE, LATE = 15, 60, 150
BURSTS = np.tile(
    np.repeat([4.0, 12.0, 2.0, 7.0], [1500, 900, 1200, 1200]), 3
)  # four hours, of an instance that serves 0.5/s
HELD, TAKES = 16.0, 32.0
OF_TIMES = {"fixed": times.FIXED, "log-normal": times.LOGNORMAL, "two classes": times.TWO_CLASSES}


class Watch:
    """KEDA decides, and one sense watches."""

    def __init__(self, sense, *, late=LATE, held=HELD, skew=0.0):
        self.keda, self.sense, self.late, self.held, self.skew = (
            peers.Keda(0.9 * HELD),
            sense,
            late,
            held,
            skew,
        )
        self.interval = self.keda.interval = STEP
        self.time, self.before, self.minutes, self.known = LearnedTime(), None, [], []

    def counts(self, seen):
        if seen.t % MINUTE == 0:
            if self.before:
                came, done = seen.arrived - self.before.arrived, seen.completed - self.before.completed
                self.minutes.append((seen.t, 60.0, came, None if self.sense == "late incoming" else done))
            self.before = seen
        known = [count for count in self.minutes if count[0] <= seen.t - self.late]
        self.minutes = [count for count in self.minutes if count[0] > seen.t - self.late]
        return known

    def see(self, seen):
        ages = {"age": seen.age, "active age": seen.oldest, "frozen": 3600.0 + seen.t}
        sample = service_time.Sample(
            at=seen.t,
            interval=float(STEP),
            backlog=seen.active,
            slots=self.held * seen.ready,
            instances=float(seen.ready),
            counts=self.counts(seen) if self.sense.startswith("late") else (),
            age=ages.get(self.sense),
        )
        if self.time.points:
            service_time.follow(self.time, sample)
        else:
            service_time.begin(self.time, sample.at, sample.backlog, sample.slots)
        self.known.append(service_time.known(self.time))
        assert len(self.time.points) <= MAX_POINTS
        return self.keda.see(seen)


def watched(sense, of_times, load=BURSTS, *, drift=None, **changes):
    watch = Watch(sense, **changes)
    Run(
        load, watch, Model(service_rate=0.5, concurrency=HELD, times=OF_TIMES[of_times], drift=drift), 9
    ).replay()
    return watch


@pytest.mark.parametrize("of_times", OF_TIMES)
@pytest.mark.parametrize(
    ("sense", "identified", "lowest", "highest"),
    [
        ("late", True, 0.95, 1.5),
        ("late incoming", True, 0.95, 1.5),
        ("age", True, 0.9, 1.5),
        ("active age", False, 0.95, 20.0),
        ("frozen", False, 0.95, 120.0),
        ("backlog", False, 0.95, 120.0),
    ],
)
def test_a_sense_leans_to_the_slow_side_whatever_the_times_are(sense, of_times, identified, lowest, highest):
    known = watched(sense, of_times).known
    settled = known[len(known) // 4 :]

    assert {each.identified for each in settled} == {identified}
    assert lowest <= min(each.seconds for each in settled) / TAKES
    assert max(each.seconds for each in settled) / TAKES <= highest
