"""How long a message takes, by each sense: never much faster than the truth, whatever the times of the messages."""

import numpy as np
import pytest

from scaling.rules.service_level import estimates, learning, memory, service_time
from scaling.rules.service_level.estimates import Objective
from scaling.rules.service_level.learning import Observation
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
        if self.sense == "counts":
            before, self.before = self.before or seen, seen
            return [(seen.t, seen.t - before.t, None, seen.completed - before.completed)]
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
            counts=self.counts(seen) if self.sense.startswith(("late", "counts")) else (),
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
        ("counts", True, 0.95, 1.5),
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


@pytest.mark.parametrize(("sense", "within"), [("late", 0.25), ("age", 0.6)])
def test_a_service_that_halves_is_followed_within_half_an_hour(sense, within):
    known = watched(sense, "fixed", drift=lambda second: 1.0 if second < 7200 else 0.5).known

    assert known[(7200 + 1800) // STEP].seconds == pytest.approx(2 * TAKES, rel=within)


def counted(time, at, backlog, completed, *, slots=160.0, warming=0):
    """One report whose counts are fresh; returns the seconds that are known then."""
    sample = service_time.Sample(
        at=STEP * at,
        interval=STEP,
        backlog=backlog,
        slots=slots,
        instances=slots / HELD,
        counts=((STEP * at, STEP, None, completed),),
        warming=warming,
    )
    if not time.points:
        service_time.begin(time, STEP * (at - 1), backlog, slots)
    service_time.follow(time, sample)
    return service_time.known(time).seconds


@pytest.mark.parametrize("waiting", [0.0, 5000.0])
def test_a_service_that_halves_and_doubles_is_followed_within_a_minute(waiting):
    """Messages of 1.6 s, then of 3.2 s, and of 1.6 s again, on slots that are all taken or half of them."""
    time, at = LearnedTime(), 0
    for takes in (1.6, 3.2, 1.6):
        for index in range(480):
            at += 1
            there = 160.0 + waiting if waiting else 50.0 * takes
            known = counted(time, at, there, STEP * (160.0 / takes if waiting else 50.0))
            assert index < 3 or takes <= known < 1.07 * takes


def test_one_report_alone_says_no_change():
    """Ten times as many messages are completed, as where some vanish, or hardly any, every ten minutes."""
    time = LearnedTime()
    for at in range(1, 400):
        known = counted(time, at, 80.0, 750.0 if at % 40 else (7500.0, 30.0)[at // 40 % 2])
        assert 0.5 < known / 1.6 < 1.25


def test_instances_that_warm_up_while_messages_wait_make_none_look_faster():
    """Ten more are ready, and nobody knows yet whether they serve: they do."""
    time = LearnedTime()
    for at in range(1, 400):
        warming = 10 if at % 40 >= 30 else 0
        known = counted(time, at, 5000.0, STEP * 10.0 * (10 + warming), warming=warming)
        assert 1.6 <= known < 1.75


def follow(time, backlogs, *, slots=160.0, ages=None):
    for index, backlog in enumerate(backlogs):
        at, age = STEP * float(index), None if ages is None else ages[index]
        sample = service_time.Sample(
            at=at, interval=15.0, backlog=backlog, slots=slots, instances=10.0, age=age
        )
        if time.points:
            service_time.follow(time, sample)
        else:
            service_time.begin(time, at, backlog, slots)
    return service_time.known(time)


@pytest.mark.parametrize("there", [40.0, 160.0])
def test_messages_that_end_together_are_no_fast_service(there):
    """They were begun together, half a minute before, and vanish within one sample; nothing came since."""
    assert follow(LearnedTime(), [0.0] * 50 + [there, there, 0.0, 0.0]).seconds >= 2 * STEP


def test_messages_that_vanish_lower_the_bound_a_little_only():
    time = LearnedTime(bound=40.0)

    assert follow(time, [20_000.0] * 60 + [0.0, 0.0]).seconds > 40.0 / service_time.MAX_DROP


@pytest.mark.parametrize(
    ("backlogs", "ages", "concurrency"),
    [
        ([100.0, 120.0, 90.0], [0.0, 0.0, 0.0], 12.0 * service_time.HELD),  # an instance holds 12 at least
        ([100.0, 130.0, 90.0], [0.0, 20.0, 0.0], 10.0 * service_time.HELD),
        ([120.0, 120.0, 130.0], [0.0, 0.0, 20.0], 13.0),  # and 13 at most
        ([100.0, 100.0, 100.0], [0.0, 3.0, None], 10.0 * service_time.HELD),  # 3 s are no wait
        (
            [5.0] * 40,
            [120.0] * 40,
            0.0,
        ),  # fewer messages than instances: the age is that of one being processed
    ],
)
def test_ages_say_between_which_bounds_the_concurrency_is(backlogs, ages, concurrency):
    time = LearnedTime()
    follow(time, [0.0, *backlogs], ages=[None, *ages])

    assert service_time.concurrency_by_ages(time) == pytest.approx(concurrency, rel=0.01)


GIVEN = Objective(wait=60.0, late=0.01, concurrency=16.0, start_up=90.0)


def steady(known, begin, count, *, takes=TAKES, counted=False):
    """Arrivals of 4/s on 12 instances that hold 16, known by the backlog; with `counted`, by late counts too."""
    for index in range(count):
        at = 1e9 + STEP * (begin + index)
        end = at - LATE - at % MINUTE
        known = learning.learn(
            known,
            Observation(
                at=at,
                interval=15.0,
                backlog=4.0 * takes + index % 2,
                incoming=None,
                outgoing=None,
                current=12,
                ready=12,
                most=100,
                late_counts=((end, 60.0, 240.0, 240.0),) if counted else (),
            ),
            GIVEN,
        )
    return known


def test_a_correction_of_the_time_is_no_surprise_of_the_load():
    unknown = steady(None, 0, 240)
    assert (unknown.time.sense, unknown.time.identified) == ("backlog", False)

    known = steady(unknown, 240, 40, counted=True)
    assert (known.time.sense, known.time.identified) == ("counts", True)
    assert known.rates[1:4] == pytest.approx([4.0] * 3, rel=0.15)
    assert known.usual_rate == pytest.approx(4.0, rel=0.3)
    assert known.error_variance < 0.05
    assert known.last_need <= 12


def test_the_memory_of_an_older_version_is_read_and_its_rates_stay():
    older = steady(steady(None, 0, 240), 240, 400, counted=True)
    rates, usual = list(older.rates), older.usual_rate
    older.learned.service_rate, older.time = 16.0 / TAKES, LearnedTime()

    known = steady(older, 640, 60, counted=True)
    assert known.rates[1:4] == pytest.approx(rates[1:4], rel=0.2)
    assert known.usual_rate == pytest.approx(usual, rel=0.3)
    fields = len(memory.Memory.__struct_fields__)
    cut = memory.msgspec.msgpack.encode(memory.msgspec.to_builtins(older)[: fields - 1])
    assert memory.decode(cut) is not None
    assert estimates.service_time(memory.decode(cut), GIVEN) > 0.0


@pytest.mark.parametrize(("before", "after"), [(32.0, 320.0), (320.0, 160.0)])
def test_busy_instances_that_come_or_go_make_no_message_look_slower(before, after):
    """1.6 s a message, all slots taken. New instances serve from the end of their interval, removed ones until its begin."""
    time, slots, known = LearnedTime(), before, []
    service_time.begin(time, 0.0, 5000.0, slots)
    for at in range(STEP, 60 * STEP, STEP):
        now = before if at < 30 * STEP else after
        done = STEP * min(slots, now) / 1.6
        slots = now
        sample = service_time.Sample(
            at=at,
            interval=STEP,
            backlog=5000.0,
            slots=slots,
            instances=slots / 16.0,
            counts=((at, STEP, None, done),),
        )
        service_time.follow(time, sample)
        known.append(service_time.known(time).seconds)

    assert known == pytest.approx([1.6] * len(known), rel=0.07)


def test_rates_begin_with_the_first_ones_that_were_counted():
    """The first report has no report before it, so its counts are 0."""
    known = None
    for at, came in ((0.0, 0.0), (15.0, 60.0)):
        seen = Observation(
            at=1e9 + at, interval=15.0, backlog=8.0, incoming=came, outgoing=came, current=2, ready=2, most=9
        )
        known = learning.learn(known, seen, GIVEN)

    assert known.rates == pytest.approx([4.0] * 5)
    assert known.usual_rate >= 4.0


@pytest.mark.parametrize(("fast", "known"), [(True, (27.0, True)), (False, (125.0, False))])
def test_drains_that_come_to_rest_too_slowly_for_the_reports_say_no_time_of_a_message(fast, known):
    drained = LearnedTime(drained=27.0, drains=service_time.MIN_DRAINS, drains_fast=fast, bound=100.0)

    now = service_time.known(drained)

    assert (now.seconds, now.identified) == known


def test_of_busy_times_that_end_because_fewer_messages_come_the_slow_ends_hardly_count():
    """Messages of 1.6 s. Every other busy time ends slowly, and what came less looks like slots that nobody needs."""
    fast, slow = [3000.0, 1800.0, 600.0, 32.0], [400.0, 325.0, 250.0, 175.0, *[120.0] * 4]

    found = follow(LearnedTime(), [80.0, *(fast + slow) * 20])

    assert found.sense == service_time.DRAIN
    assert 1.6 <= found.seconds < 1.7


@pytest.mark.parametrize("late", [0, 3])
def test_counts_of_an_interval_in_which_instances_began_to_serve_say_nothing(late):
    """Messages of 1.6 s. Sixty instances more serve from the middle of an interval on, and half of what is completed in it is theirs."""
    time, slots, there, counts = LearnedTime(), 80.0, 5000.0, []
    service_time.begin(time, 0.0, there, slots)
    for minute in range(1, 11):
        completed = 60.0 * slots / 1.6
        if minute == 5:
            completed, slots = 30.0 * (slots + 1040.0) / 1.6, 1040.0
        counts.append((60.0 * minute, 60.0, None, completed))
        known = tuple(counts[minute - late - 1 : minute - late]) if minute > late else ()
        service_time.follow(
            time,
            service_time.Sample(
                at=60.0 * minute,
                interval=60.0,
                backlog=there,
                slots=slots,
                instances=slots / 16,
                counts=known,
            ),
        )
        assert minute <= late or 1.6 <= service_time.known(time).seconds < 1.7


def test_a_backlog_that_grows_ever_faster_makes_no_message_look_fast():
    """16 s a message, 96 at once, all busy: 6/s are done, and more come by the minute, for six hours. The oldest waits for two."""
    time, tau = LearnedTime(), 5400.0
    for at in np.arange(0.0, 6 * 3600.0, STEP):
        came, oldest = 96.0 + 6.0 * tau * np.expm1(at / tau), tau * np.log1p(at / tau)
        sample = service_time.Sample(
            at=at, interval=STEP, backlog=came - 6.0 * at, slots=96.0, instances=6.0, age=at - oldest
        )
        if time.points:
            service_time.follow(time, sample)
        else:
            service_time.begin(time, at, sample.backlog, sample.slots)

    assert service_time.known(time).identified
    assert 15.5 < service_time.known(time).seconds < 20.0
