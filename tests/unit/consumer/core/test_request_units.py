"""A pipeline under a limit of request units: what it starts in any ten seconds, whatever the answers charge."""

import heapq

import pytest

from consumer.core.effects import (
    BatchWritten,
    EventsReceived,
    PartitionClaimed,
    RateChanged,
    RequestUnitsChanged,
    Tick,
    WakeAt,
    WriteBatch,
)
from consumer.core.pipeline import Pipeline
from consumer.model import Claim, Event, Outcome, Record, Routes, WriteResult
from consumer.options import BacklogLimits, BatchLimits
from tidemark.foundation.pacing.charge_limiter import WINDOW

ROUTES = Routes(("", "8"), ("a", "b"))
WRITTEN, THROTTLED, REFUSED = 201, 429, 449


class Run:
    """A sink that answers after `latency` by `answer(batch number, time)`: status and charge of each record."""

    def __init__(self, answer, *, latency=0.05, **limits):
        self.answer, self.latency = answer, latency
        self.now, self.wake, self.number = 0.0, 0.0, 0
        self.pipeline = Pipeline(
            BacklogLimits(10**9, 1e9, 20_000), BatchLimits(), ROUTES, transactional=False, now=0.0, **limits
        )
        self.in_flight, self.starts = [], []  # starts: (time, records, charged)
        self.tell(PartitionClaimed(Claim("0", "me", 1)))

    def tell(self, item):
        for effect in self.pipeline.handle(item, now=self.now):
            if isinstance(effect, WriteBatch):
                count = len(effect.batch.records)
                status, charge = self.answer(len(self.starts), self.now)
                outcome = Outcome.WRITTEN if status == WRITTEN else Outcome.RETRY
                result = WriteResult(outcome, status, "", 0.5, 0.0 if charge is None else charge)
                heapq.heappush(
                    self.in_flight, (self.now + self.latency, effect.batch.batch_id, [result] * count)
                )
                self.starts.append((self.now, count, charge))
            elif isinstance(effect, WakeAt):
                self.wake = effect.at

    def feed(self):
        """Keeps enough waiting."""
        while self.pipeline.statistics(self.now).backlog_count < 5_000:
            events = []
            for number in range(self.number, self.number + 2_500):
                event = Event("0", number, str(number), 0.0, b"{}")
                events.append(Record(event, f"k{number}", b"{}", "", "08"[number % 2]))
            self.number += 2_500
            self.tell(EventsReceived("0", 1, events))

    def until(self, time):
        while self.now < time:
            self.feed()
            answered = self.in_flight[0][0] if self.in_flight else time
            self.now = min(time, max(self.now, min(self.wake, answered)))
            if self.in_flight and self.in_flight[0][0] <= self.now:
                _, batch, results = heapq.heappop(self.in_flight)
                self.tell(BatchWritten(batch, results))
            else:
                self.tell(Tick())

    def windows(self, since, until):
        """The charges of what was started in each ten seconds."""
        for first, (begin, *_) in enumerate(self.starts):
            window = (start for start in self.starts[first:] if start[0] < begin + WINDOW)
            if since <= begin < until:
                yield sum(records * (charge or 0.0) for _, records, charge in window)


CASES = {
    "written": lambda batch, now: (WRITTEN, 5.0),
    "unequal": lambda batch, now: (WRITTEN, 4.0 + batch % 3),
    # what is refused is charged, and so are its retries
    "half refused": lambda batch, now: (WRITTEN, 5.0) if batch % 2 else (REFUSED, 1.5),
    "throttled": lambda batch, now: (WRITTEN, 5.0) if batch % 4 else (THROTTLED, 0.4),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("units", [300.0, 2_000.0])
def test_ten_seconds_are_charged_what_the_limit_allows_and_no_less(case, units):
    run = Run(CASES[case], request_units=units, rate=None)
    run.until(32.0)
    found = list(run.windows(10.0, 21.0))

    assert max(found) <= units * WINDOW * 1.005 + 1e-6
    if case != "throttled":  # the lanes wait for a service that asks them to
        assert min(found) >= units * WINDOW * 0.97


def test_a_charge_that_jumps_tenfold_is_overspent_by_what_is_in_flight_and_paid_back():
    run = Run(lambda batch, now: (WRITTEN, 5.0 if now < 15.0 else 50.0), request_units=2_000.0, rate=None)
    run.until(45.0)
    found = list(run.windows(3.0, 34.0))

    assert max(found) <= 2_000.0 * (
        WINDOW + 10 * 0.3
    )  # the slots of 0.1 s that were in flight, of both lanes
    assert sum(records * charge for _, records, charge in run.starts) <= 2_000.0 * 46.5


def test_what_is_not_answered_counts_as_it_was_reserved():
    run = Run(lambda batch, now: (WRITTEN, 5.0) if now < 5.0 else (0, None), request_units=1_000.0, rate=None)
    run.until(30.0)
    late = [records for time, records, _ in run.starts if 10.0 <= time < 20.0]

    assert sum(late) * 5.0 <= 1_000.0 * WINDOW * 1.005


@pytest.mark.parametrize(("rate", "units", "per_second"), [(50.0, 2_000.0, 50.0), (5_000.0, 300.0, 60.0)])
def test_both_limits_hold_together(rate, units, per_second):
    run = Run(CASES["written"], request_units=units, rate=rate)
    run.until(22.0)
    started = sum(records for time, records, _ in run.starts if 10.0 <= time < 20.0)

    assert started == pytest.approx(per_second * 10, rel=0.03)
    assert run.pipeline.statistics(run.now).request_unit_limit == units
    assert run.pipeline.room < 15_000  # no more is taken in than is worth ten seconds


def test_a_limit_changes_while_batches_are_in_flight_and_may_go_and_come():
    run = Run(CASES["written"], request_units=None, rate=100.0)
    run.until(2.0)
    run.tell(RequestUnitsChanged(250.0))
    run.until(22.0)
    limited = sum(records for time, records, _ in run.starts if 5.0 <= time < 15.0)
    run.tell(RequestUnitsChanged(None))
    run.tell(RateChanged(200.0))
    run.until(34.0)
    free = sum(records for time, records, _ in run.starts if 23.0 <= time < 33.0)

    assert limited == pytest.approx(500, rel=0.03)
    assert free == pytest.approx(2_000, rel=0.02)


def test_records_of_a_sink_with_marks_start_together_though_nothing_is_known_of_their_charges():
    """Another hub gets the set that a killed process was sending whole, or not at all."""
    routes, limits = Routes(by_partition=True), {"rate": None, "request_units": 10.0}
    pipeline = Pipeline(BacklogLimits(), BatchLimits(), routes, transactional=False, now=0.0, **limits)
    pipeline.handle(PartitionClaimed(Claim("0", "me", 1)), now=0.0)
    records = [Record(Event("0", n, str(n), 0.0, b"{}"), f"k{n}", b"{}") for n in range(5)]
    effects, counts = pipeline.handle(EventsReceived("0", 1, records), now=0.0), []
    for now in (2.0, 10.0):
        effects = [*effects, *pipeline.handle(Tick(), now=now)]
        [batch] = [effect.batch for effect in effects if isinstance(effect, WriteBatch)]
        counts.append(len(batch.records))
        answers = [WriteResult(Outcome.RETRY, 0, "the rest has not arrived")] * len(batch.records)
        effects = pipeline.handle(BatchWritten(batch.batch_id, answers), now=now)

    assert counts == [5, 5]
