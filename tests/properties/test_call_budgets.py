"""Under any demand no budget is ever exceeded, in any window, and every target gets its turn."""

import random
from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.calls.budgets import Budget, Call
from scaling.calls.call_budgets import CallBudgets
from scaling.calls.throttling import Scope, ThrottlingWait

MINUTE = 60.0


def call_of(target: int) -> Call:
    return Call(("host",), (("api", "scope"),), f"target {target}")


def most_in_a_window(times: list[float], seconds: float) -> int:
    """The most calls within `seconds`, the later end included."""
    return max((index + 1 - bisect_right(times, at - seconds) for index, at in enumerate(times)), default=0)


@given(
    budget=st.builds(Budget, st.integers(1, 40), st.sampled_from([0.5, 5.0, 60.0])),
    asked=st.lists(
        st.tuples(st.floats(0.0, 3.0), st.integers(0, 20), st.booleans(), st.none() | st.floats(0, 30)),
        max_size=200,
    ),
)
def test_no_window_holds_more_calls_than_its_budget_and_nobody_calls_who_was_asked_to_wait(budget, asked):
    budgets, now, made, quiet_until = CallBudgets({"api": budget}), 0.0, [], -1.0
    for seconds, target, urgent, retry_after in asked:
        now += seconds
        refusal = budgets.ask(call_of(target), now, urgent=urgent)
        if refusal is None:
            assert now >= quiet_until
            made.append(now)
        else:
            assert refusal.seconds > 0
        if retry_after is not None:
            budgets.note_throttling(
                call_of(target), ThrottlingWait(retry_after, Scope.TENANT, certain=True), now
            )
            quiet_until = max(quiet_until, now + retry_after)

    assert most_in_a_window(made, budget.seconds) <= budget.calls


@pytest.mark.parametrize(("order", "rare"), [("as configured", 0), ("shuffled", 1), ("reversed", 3)])
def test_a_thousand_targets_each_get_their_turn_whatever_the_order_they_ask_in(order, rare):
    """In rounds that ask for all of them within 15 seconds, of which each lets 80 through; `rare` of a hundred ask in every
    tenth round only, and those that change ask urgently.
    """
    chance, budget = random.Random(7), Budget(100, 15.0)
    budgets, made = CallBudgets({"api": budget}), []
    waited = dict.fromkeys(range(1000), 0)
    longest = 0
    for number in range(28):
        begin = number * MINUTE
        asking = [target for target in waited if target % 100 >= rare or number % 10 == 0]
        if order == "shuffled":
            chance.shuffle(asking)
        elif order == "reversed":
            asking.reverse()
        for at, target in zip(sorted(chance.uniform(0, 15) for _ in asking), asking, strict=True):
            now = begin + at
            if budgets.ask(call_of(target), now) is None:
                made.append(now)
                waited[target] = 0
            else:
                waited[target] += 1
                longest = max(longest, waited[target])
            if chance.random() < 0.005 and budgets.ask(call_of(-target), now, urgent=True) is None:
                made.append(now)

    assert most_in_a_window(made, budget.seconds) <= budget.calls
    # 80 calls a round at least are ordinary ones: 1,000 targets take 13 rounds.
    assert longest <= 14
