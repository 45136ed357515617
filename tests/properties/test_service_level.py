"""The rule service_level, whatever it sees: total, bounded, deterministic, and never less than what waits needs."""

from math import isfinite

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from scaling.model import Reason
from scaling.rules.service_level import candidates, estimates, learning, memory, sizing
from scaling.rules.service_level.estimates import Objective
from scaling.rules.service_level.learning import Observation
from scaling.rules.service_level.rule import ServiceLevelRule
from scaling.rules.view import MetricsView
from scaling.window import Window, WindowSpec
from tests.support.examples import examples
from tests.support.scaling.service_level import NOW

INTERVALS = st.sampled_from([15.0, 60.0, 300.0])
AMOUNTS = st.one_of(
    st.floats(0, 1e4), st.floats(0, 1e15), st.sampled_from([0.0, 1.0, 16.0, 160.0]), st.floats(0, 1e-6)
)
COUNTED = st.one_of(st.none(), AMOUNTS)
OBJECTIVES = st.builds(
    Objective,
    wait=st.floats(0.5, 1e5),
    late=st.floats(1e-4, 0.9),
    concurrency=st.one_of(st.none(), st.floats(0.1, 1e4)),
    start_up=st.one_of(st.none(), st.floats(0.5, 1e4)),
    takes=st.one_of(st.none(), st.floats(0.001, 1e5)),
    spend=st.sampled_from([*candidates.TRADES]),
)


def late_counts(at):
    """A minute some time before, sometimes one taken in before, or one of the future."""
    return st.tuples(
        st.sampled_from([at - 150.0, at - 3600.0, at, at + 1e6]),
        st.sampled_from([60.0, 1e-3]),
        COUNTED,
        COUNTED,
    )


@st.composite
def histories(draw):
    """Observations mostly an interval apart, sometimes much later, at once, or earlier."""
    interval, at = draw(INTERVALS), NOW
    found = []
    for _ in range(draw(st.integers(1, 40))):
        at += interval * draw(st.sampled_from([1.0] * 12 + [2.0, 0.5, 0.1, 0.0, -1.0, 50.0, 1e6, -1e6]))
        current = draw(st.integers(0, 200))
        ready = draw(st.one_of(st.none(), st.integers(0, 200)))
        found.append(
            Observation(
                at=at,
                interval=interval,
                backlog=draw(AMOUNTS),
                incoming=draw(COUNTED),
                outgoing=draw(COUNTED),
                current=current,
                ready=ready,
                most=draw(st.integers(1, 200)),
                oldest_age=draw(COUNTED),
            )
        )
    return found


def numbers_of(value):
    built = msgspec.to_builtins(value)
    stack = [built]
    while stack:
        each = stack.pop()
        if isinstance(each, list | tuple):
            stack.extend(each)
        elif isinstance(each, float | int):
            yield each


@given(histories(), OBJECTIVES)
@examples(50)
def test_learning_is_total_and_what_is_remembered_is_finite_and_small(history, objective):
    known, data = None, b""
    for seen in history:
        before, known = known, learning.learn(known, seen, objective)
        assert before is None or memory.encode(before) == data  # others may read it still
        data = memory.encode(known)
        assert len(data) <= memory.MAX_BYTES
        assert all(isfinite(number) for number in numbers_of(known))
        assert memory.decode(data) == known
        assert len(known.candidates) == len(candidates.SAFETY_FACTORS)


@given(histories(), OBJECTIVES)
@examples(20)
def test_the_same_history_gives_the_same_memory_byte_for_byte(history, objective):
    one = two = None
    for seen in history:
        one = learning.learn(one, seen, objective)
        two = learning.learn(memory.decode(memory.encode(two)) if two else None, seen, objective)
    assert memory.encode(one) == memory.encode(two)


def view_at(seen, known, *, backlog=None):
    specs = WindowSpec(span=4 * seen.interval, interval=seen.interval)
    times = [seen.at - seen.interval * index for index in range(4, -1, -1)]
    value = seen.backlog if backlog is None else backlog
    window = Window(times, [value] * 5)
    return MetricsView(
        {"backlog": window},
        {"backlog": specs},
        seen.current,
        ready=seen.current,
        minimum=1,
        maximum=100,
        now=seen.at,
        memories={"r": memory.encode(known)},
    )


def taught(history, objective):
    """A rule of an objective, the last observation of a history, and what is remembered after it."""
    known = None
    for seen in history:
        known = learning.learn(known, seen, objective)
    rule = ServiceLevelRule(ServiceLevelRule.Params(backlog="backlog"), name="r")
    rule.objective = objective
    return rule, history[-1], known


@given(histories(), OBJECTIVES, AMOUNTS)
@examples(50)
def test_a_verdict_is_usable_and_never_less_than_what_waits_needs(history, objective, backlog):
    rule, seen, known = taught(history, objective)
    verdict = rule.evaluate(view_at(seen, known, backlog=backlog))
    if verdict.desired is None:
        assert verdict.reason is Reason.STALE_METRIC
        return
    assert 0 <= verdict.desired <= max(2_000_000, seen.current)
    assert all(isfinite(e.value) and isfinite(e.threshold) for e in verdict.evidence)
    assert verdict.sentence
    if verdict.desired < seen.current:
        ahead = estimates.outlook(known, objective)
        after = estimates.instances_needed(known, ahead, backlog, verdict.desired, objective)
        assert (
            after <= sizing.scale_out_threshold(verdict.desired) + 1e-9
        )  # the next report does not take it back
        if ahead.begin_within:
            assert verdict.desired >= min(backlog / ahead.concurrency, seen.current) - 0.3 - 1e-9
            return
        waiting = max(backlog - estimates.concurrency(known, objective) * known.serving, 0.0)
        assert (
            verdict.desired * ahead.service_rate * objective.wait
            >= waiting * 0.9 - ahead.service_rate * objective.wait
        )
