"""Who gets how much of a backfill's budget, and when."""

import pytest

from spark_jobs.backfill.budget.shares import Shares, SupersededError


def test_the_first_to_ask_gets_everything_and_gives_up_half_when_another_comes():
    shares = Shares(100.0)
    first = shares.renew("0", "a", holds=0, now=0.0)
    waiting = shares.renew("1", "a", holds=0, now=0.1)
    less = shares.renew("0", "a", holds=first.number, now=0.5)
    still_waiting = shares.renew("1", "a", holds=0, now=0.6)
    shares.renew("0", "a", holds=less.number, now=1.0)  # only now it is known that the lower share arrived
    second = shares.renew("1", "a", holds=0, now=2.1)

    assert (first.amount, waiting.amount, less.amount, still_waiting.amount) == (100.0, 0.0, 50.0, 0.0)
    assert second.amount == 50.0


def test_the_share_of_a_vanished_holder_is_free_a_second_after_its_lease_ended():
    shares = Shares(100.0, lease=3.0, window=1.0)
    shares.renew("0", "a", holds=0, now=0.0)

    assert shares.renew("1", "a", holds=0, now=3.9).amount == 0.0
    assert shares.renew("1", "a", holds=0, now=4.1).amount == 100.0


def test_a_share_given_back_is_free_after_a_second():
    shares = Shares(100.0)
    shares.renew("0", "a", holds=0, now=0.0)
    shares.release("0", "a", now=0.5)

    assert shares.renew("1", "a", holds=0, now=1.4).amount == 0.0
    assert shares.renew("1", "a", holds=0, now=1.6).amount == 100.0


def test_a_later_attempt_waits_until_the_lease_of_the_one_before_it_has_ended():
    shares = Shares(100.0, lease=3.0)
    shares.renew("0", "first", holds=0, now=0.0)

    assert shares.renew("0", "second", holds=0, now=1.0).amount == 0.0
    with pytest.raises(SupersededError, match="a later attempt"):
        shares.renew("0", "first", holds=1, now=1.5)
    assert shares.renew("0", "second", holds=0, now=4.1).amount == 100.0


def test_a_later_attempt_waits_for_the_one_before_it_also_where_budget_is_free():
    shares = Shares(100.0, lease=3.0)
    shares.renew("1", "a", holds=0, now=0.0)
    half = shares.renew("1", "a", holds=1, now=0.1)
    shares.renew("0", "first", holds=0, now=0.1)
    half = shares.renew("1", "a", holds=half.number, now=0.2)
    shares.renew("1", "a", holds=half.number, now=0.3)
    first = shares.renew("0", "first", holds=0, now=1.5)
    shares.release("1", "a", now=1.6)

    assert first.amount == 50.0
    assert shares.renew("0", "second", holds=0, now=3.0).amount == 0.0


def test_whole_shares_of_a_small_budget_leave_some_waiting():
    shares = Shares(2, whole=True)
    holds, amounts = dict.fromkeys("abc", 0), {}
    for step in range(10):
        for task in "abc":
            share = shares.renew(task, "1", holds=holds[task], now=step * 0.5)
            holds[task] = share.number if share.amount else holds[task]
            amounts[task] = share.amount

    assert sorted(amounts.values()) == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("budget", [0.0, -1.0, float("inf"), float("nan")])
def test_a_budget_that_is_none_is_refused(budget):
    with pytest.raises(ValueError, match="accepted: a positive number"):
        Shares(budget)
