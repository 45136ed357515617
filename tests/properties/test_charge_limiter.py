"""Whatever is charged, answered and changed whenever: ten seconds hold their budget, and what is overspent is paid back."""

import heapq
import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidemark.foundation.pacing.charge_limiter import IN_ONE_SECOND, SLOT, WINDOW, ChargeLimiter

rates = st.sampled_from([0.5, 3, 40, 400, 1_000, 30_000])
charges = st.sampled_from([0.0, 1.0, 5.24, 10.0, 52.4, 400.0])
waits = st.one_of(st.just(None), st.sampled_from([0.0, 0.001, 0.1, 1.0, 10.0]), st.floats(0, 12))
steps = st.lists(
    st.tuples(waits, st.integers(1, 300), st.floats(0.0, 15.0), charges, st.booleans(), st.none() | rates),
    max_size=50,
)


class Run:
    """Records of two lanes, started as the limiter allows and answered when their answers come."""

    def __init__(self, rate, begin=0.0):
        self.limiter, self.now, self.rates = ChargeLimiter(rate, begin), begin, [(begin, rate)]
        self.answers, self.starts = [], []  # starts: [time, reserved, charged or None in flight]
        self.number = 0

    def until(self, time):
        """Time passes; the answers that come meanwhile are settled."""
        while self.answers and self.answers[0][0] <= time:
            at, batch, start, charge, records = heapq.heappop(self.answers)
            self.limiter.settle(batch, [charge] * records, at)
            start[2] = start[1] if charge is None else charge * records
        self.now = max(self.now, time)

    def send(self, wanted, latency, charge, lane="a"):
        before = self.limiter._windows[0].used
        records = min(wanted, self.limiter.affordable(lane, self.now))
        if records:
            self.number += 1
            self.limiter.start(self.number, lane, records, self.now)
            reserved = (self.limiter._windows[0].used - before) * (self.limiter.rate or 0.0)
            start = [self.now, reserved, None]
            self.starts.append(start)
            heapq.heappush(self.answers, (self.now + latency, self.number, start, charge, records))
            start.append([each for each in self.starts if each[2] is None])
        return records

    def wait(self):
        """To the time that the limiter names, over the answers that change it."""
        while (at := self.limiter.next_at("a", self.now)) > self.now:
            if self.answers and self.answers[0][0] <= at:
                self.until(self.answers[0][0])
            else:
                self.until(at)

    def change(self, rate):
        self.limiter.set_rate(rate, self.now)
        self.rates.append((self.now, rate))

    def highest_rate(self, since, until):
        before = [rate for time, rate in self.rates if time <= since]
        return max([before[-1], *(rate for time, rate in self.rates if since <= time <= until)], default=0)


@given(rates, steps, st.floats(0, 1e6))
@example(
    0.5,
    [(0.1, 1, 0.0, 0.0, True, None), (0.1, 1, 0.0, 5.24, True, None), (0.1, 1, 0.0, 0.0, True, None)],
    0.0,
)
def test_ten_seconds_exceed_their_budget_by_no_more_than_the_batches_in_flight_were_underestimated(
    rate, steps, begin
):
    run = Run(rate, begin)
    for wait, wanted, latency, charge, answered, change in steps:
        run.wait() if wait is None else run.until(run.now + wait)
        if change is not None:
            run.change(change)
        run.send(wanted, latency, charge if answered else None, "ab"[wanted % 2])
    run.until(math.inf)

    for first, (time, *_) in enumerate(run.starts):
        window = [start for start in run.starts[first:] if start[0] < time + WINDOW]
        until, last = window[-1][0], window[-1][3]
        surprise = sum(max(0.0, start[2] - start[1]) for start in last)
        # where nothing was charged before, nothing is reserved and all may start
        surprise += sum(start[2] for start in window if not start[1] and start not in last)
        budget = WINDOW * run.highest_rate(time, until)
        # a record that is dearer than a window starts alone, while no other one is in the window
        allowed = max(budget, window[0][1] if len(window) == 1 else 0.0)
        assert sum(start[2] for start in window) <= (allowed + surprise) * (1 + 1e-9) + 1e-6


@settings(max_examples=20)  # each is a minute and a half of a saturated limiter
@given(rates, st.sampled_from([0.0, 0.02, 0.3, 2.0]), st.data())
def test_a_saturated_limiter_uses_its_budget_over_charges_that_jump_tenfold(rate, latency, data):
    jumps = data.draw(st.lists(st.sampled_from([0.1, 1.0, 10.0]), min_size=2, max_size=4))
    run, spent = Run(rate), 0.0
    for jump in jumps:
        charge = rate * 0.002 * jump
        until = run.now + 30.0
        while run.now < until:
            run.wait()
            run.send(10**6, latency, charge)
    run.until(math.inf)
    spent = sum(start[2] for start in run.starts)
    dearest, in_flight = rate * 0.02, 0.1 * rate * (latency + 2 * SLOT) * 100

    for first, (time, *_) in enumerate(run.starts):
        second = [start for start in run.starts[first:] if start[0] < time + 1.0]
        surprise = sum(max(0.0, start[2] - start[1]) for start in second[-1][3])
        assert sum(start[2] for start in second) <= IN_ONE_SECOND * rate * (1 + 1e-9) + surprise

    assert spent <= rate * (run.starts[-1][0] + 1.0) + dearest + in_flight
    assert spent >= rate * (run.starts[-1][0] - 2.0 - 2 * latency) * 0.97


@pytest.mark.parametrize("latency", [0.01, 0.4])
@pytest.mark.parametrize("charge", [1.0, 5.24, 47.0])
@pytest.mark.parametrize("late", [0.0, 0.03])
def test_every_ten_seconds_of_a_saturated_limiter_hold_their_budget_to_a_slot(latency, charge, late):
    run, rate = Run(1000.0), 1000.0
    while run.now < 45.0:
        run.wait()
        run.until(run.now + late)
        run.send(10**6, latency, charge)
    run.until(math.inf)

    for first, (time, *_) in enumerate(run.starts):
        if not 5.0 < time < 30.0:
            continue
        total = sum(start[2] for start in run.starts[first:] if start[0] < time + WINDOW)
        assert WINDOW * rate - 2 * SLOT * rate - charge <= total <= WINDOW * rate + 1e-6


@given(rates, steps)
def test_at_the_time_it_names_a_record_may_start_and_before_it_none(rate, steps):
    run = Run(rate)
    for wait, wanted, latency, charge, answered, change in steps:
        at = run.limiter.next_at("a", run.now)
        later = run.now + (1.0 if wait is None else wait)
        first = min(at, run.answers[0][0] if run.answers else math.inf)
        if later < first:
            assert run.limiter.affordable("a", later) == 0
        elif first == at:
            assert run.limiter.affordable("a", at) >= 1
        run.until(max(later, run.now))
        run.send(wanted, latency, charge if answered else None)
        if change is not None:
            run.change(change)
