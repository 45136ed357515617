"""A budget of request units whose charges are known afterwards, case by case."""

import math

import pytest

from tidemark.foundation.pacing.charge_limiter import SLOT, UNLIMITED, ChargeLimiter


def learned(rate=100.0, charge=5.0):
    """A limiter that knows what a record of lane `a` is charged, ten minutes later."""
    limiter = ChargeLimiter(rate, 0.0)
    limiter.start(0, "a", limiter.affordable("a", 0.0), 0.0)
    limiter.settle(0, [charge], 0.05)
    return limiter


def test_without_a_limit_everything_may_start():
    limiter = ChargeLimiter(None, 0.0)
    limiter.start(1, "a", 100, 0.0)

    assert limiter.affordable("a", 0.0) == UNLIMITED
    assert limiter.next_at("a", 7.0) == 7.0
    assert limiter.records_per_second is None


def test_one_record_starts_and_its_answer_is_awaited_while_no_charge_is_known():
    limiter = ChargeLimiter(100.0, 0.0)

    assert limiter.affordable("a", 0.0) == 1
    limiter.start(1, "a", 1, 0.0)
    assert limiter.affordable("a", 5.0) == 0
    assert limiter.next_at("a", 5.0) == math.inf


@pytest.mark.parametrize(
    ("charges", "earliest"),
    [
        ([5.0], 0.1),  # what was reserved too much is back: 5 RU of 100 a second, and the slot
        ([None], 1.0),  # unknown is not zero: the second that was reserved counts
        ([0.0], 0.05),  # charged nothing
        ([500.0], 5.0),  # paid back before anything else starts
    ],
)
def test_the_answer_of_the_first_record_says_when_the_next_may_start(charges, earliest):
    limiter = ChargeLimiter(100.0, 0.0)
    limiter.start(1, "a", 1, 0.0)
    limiter.settle(1, charges, 0.05)

    assert limiter.next_at("a", 0.05) == pytest.approx(earliest, abs=0.051)
    assert (limiter.records_per_second is None) == (charges in ([None], [0.0]))


def test_a_lane_that_is_charged_nothing_is_not_held_back():
    limiter = learned(charge=500.0)
    limiter.start(1, "sql", 1, 20.0)
    limiter.settle(1, [0.0], 20.1)

    assert limiter.affordable("sql", 20.1) == UNLIMITED


def test_a_new_lane_is_taken_for_as_dear_as_the_dearest():
    limiter = learned(charge=5.0)

    assert limiter.affordable("b", 60.0) == 20  # a second's budget: what idleness saves at most


def test_a_record_dearer_than_ten_seconds_starts_alone_and_is_paid_back():
    limiter = learned(rate=2.0, charge=50.0)

    assert limiter.affordable("a", 20.0) == 0  # 50 RU at 2 a second take 25 s
    assert limiter.next_at("a", 20.0) == pytest.approx(25.0, abs=0.2)
    assert limiter.affordable("a", 26.0) == 1


def test_a_debt_stays_the_same_number_of_request_units_when_the_rate_changes():
    limiter = learned(rate=100.0, charge=300.0)  # paid at 3.0
    limiter.set_rate(1000.0, 1.0)

    assert limiter.next_at("a", 1.0) == pytest.approx(1.2, abs=0.11)


@pytest.mark.parametrize(
    ("charges", "rate", "earliest"),
    [
        ([5.0] * 20, 100.0, 20.1),  # the second's budget that idleness saved, and no more
        ([0.0] * 20, 100.0, 20.02),
        ([5.0] * 10 + [None] * 10, 100.0, 20.1),  # what is unknown counts as reserved
        ([None] * 20, 100.0, 20.1),
        ([50.0] * 20, 100.0, 30.0),  # 1,000 RU are all that ten seconds hold
        ([50.0] * 20, 10.0, 110.1),  # the debt of 900 RU is paid at the rate that holds when it is known
    ],
)
def test_a_batch_is_settled_by_its_answers_whatever_the_rate_is_then(charges, rate, earliest):
    limiter = learned(charge=5.0)
    limiter.start(1, "a", 20, 20.0)
    limiter.set_rate(rate, 20.01)
    limiter.settle(1, charges, 20.02)

    assert limiter.next_at("a", 20.02) == pytest.approx(earliest, abs=0.005)


def test_a_higher_charge_counts_at_once_and_a_lower_one_by_and_by():
    limiter = learned(charge=5.0)
    paces = []
    for batch, charge in enumerate([50.0, 5.0, 5.0], start=1):
        limiter.start(batch, "a", 1, 20.0)
        limiter.settle(batch, [charge], 20.0)
        paces.append(limiter.records_per_second)

    assert paces == pytest.approx([2.0, 100 / 41, 100 / 33.8])


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(ValueError, match="request units per second"):
        ChargeLimiter(rate, 0.0)


def test_records_start_a_slot_of_budget_at_a_time():
    limiter = learned(rate=100.0, charge=1.0)
    limiter.start(1, "a", limiter.affordable("a", 10.0), 10.0)
    free = limiter.next_at("a", 10.0)

    assert limiter.affordable("a", free - SLOT / 2) == 0
    assert limiter.affordable("a", free + 1e-6) == 10  # a tenth of a second
