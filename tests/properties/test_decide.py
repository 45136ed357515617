"""What holds for any windows, state, orders and feeds, however strange."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from scaling.analysis.replay import decode_inputs, encode_inputs, replay, same
from scaling.budget.allowance import allowance_of
from scaling.budget.spending import spent_by
from scaling.config.policy import Budget, Fallback, Pace, Plateau, RateLimit, RuleSpec
from scaling.decision.decide import decide
from scaling.decision.transitions import absorb
from scaling.flips.explained import decide_and_explain
from scaling.model import (
    NO_CONTROLS,
    Capacity,
    Controls,
    Direction,
    EffectRecord,
    ExternalChange,
    MetricFailure,
    MetricSample,
    MetricsReport,
    Override,
    Pause,
    Reason,
    Refused,
    ScaleAction,
    Spent,
    TargetState,
)
from scaling.window import Window, summarize
from tests.support.examples import examples
from tests.support.scaling.runner import MINUTE, NOW, THRESHOLD, at, metric, policy

PER_UNIT = RuleSpec(type="target_per_unit", name="unit", options={"metric": "backlog", "target": 100.0})
GUARD = RuleSpec(type="guard", name="db", options={"metric": "ru", "block_out_above": 90.0})
SUM = RuleSpec(type="composite", name="sum", options={"desired": "ceil((backlog + ru) / 100)"})

moments = st.one_of(
    st.floats(NOW - 1000, NOW + 200),
    st.sampled_from([NOW - MINUTE * i for i in range(12)]),
    st.floats(-1e12, 1e12, allow_nan=False),
)
amounts = st.one_of(st.floats(0, 2000), st.floats(-1e15, 1e15), st.sampled_from([0.0, 20.0, 99.0, 501.0]))
counts = st.integers(-5, 60)


@st.composite
def windows(draw) -> Window:
    """Regular ones more often than not; else any times (unsorted, repeated) and any values."""
    failure = draw(st.sampled_from([None, None, None, MetricFailure("m", NOW, "no")]))
    if draw(st.booleans()):
        times = [NOW - MINUTE * i for i in range(4, -1, -1)]
    else:
        times = draw(st.lists(moments, max_size=8))
    return Window(times, [draw(amounts) for _ in times], failure, draw(st.sampled_from([False] * 5 + [True])))


maybe = lambda strategy: st.one_of(st.none(), strategy)

capacities = st.builds(
    Capacity,
    counts,
    moments,
    floor=st.integers(-1, 5),
    ceiling=maybe(st.integers(0, 30)),
    ready=maybe(counts),
    pending=st.sampled_from([False, False, True]),
    held_by=st.sampled_from([None, None, None, "autoscale"]),
    step=st.sampled_from([1, 1, 1, 2, 7, 0]),
)
records = st.builds(EffectRecord, moments, counts, counts, maybe(amounts), st.just("x"))
actions = st.builds(
    ScaleAction, st.just("x"), st.just("plan"), counts, counts, moments, moments, st.just(Reason.SCALE_OUT)
)
refusals = st.builds(Refused, st.integers(0, 12), st.integers(0, 12), moments, st.just("no"))
rare = st.sampled_from([False] * 6 + [True])
spendings = st.builds(
    Spent,
    day=moments,
    since=moments,
    until=moments,
    hours=amounts,
    capacity=counts,
    pace=amounts,
    hour=moments,
    peak=counts,
    warned=st.booleans(),
)
budgets = st.builds(
    Budget,
    amount=st.floats(0.1, 5000.0),
    price=st.sampled_from([1.0, 0.01]),
    hourly=st.booleans(),
    time_zone=st.sampled_from(["UTC", "Asia/Kolkata", "nowhere"]),
)


@st.composite
def states(draw) -> TargetState:
    return TargetState(
        expected=draw(maybe(counts)) if draw(rare) else draw(st.integers(0, 12)),
        capacity=draw(maybe(capacities)) if draw(rare) else draw(capacities),
        capacity_error=draw(st.sampled_from([None] * 9 + ["403"])),
        pending=draw(actions) if draw(rare) else None,
        effects=tuple(sorted(draw(st.lists(records, max_size=4)), key=lambda record: record.at)),
        recommendations=tuple(sorted(draw(st.lists(st.tuples(moments, counts), max_size=4)))),
        external_change=ExternalChange(7, 3, draw(moments)) if draw(rare) else None,
        missing_since=draw(maybe(moments)),
        corrupt_since=draw(moments) if draw(rare) else None,
        refused=draw(refusals) if draw(rare) else None,
        spent=draw(maybe(spendings)),
    )


controls = st.builds(
    Controls,
    pauses=st.lists(
        st.builds(Pause, st.just("kim"), moments, maybe(st.sampled_from(Direction)), maybe(moments)),
        max_size=1,
    ).map(tuple),
    override=st.one_of(
        st.none(), st.none(), st.none(), st.builds(Override, counts, st.just("kim"), moments, moments)
    ),
    dry_run=st.sampled_from([None, None, True, False]),
)
paces = st.builds(
    Pace,
    cooldown=st.sampled_from([0.0, 300.0]),
    stabilization=st.sampled_from([0.0, 300.0]),
    step=st.sampled_from([None, 1, 4]),
    rates=st.sampled_from([(), (RateLimit(kind="percent", amount=50, period=60.0),)]),
    select=st.sampled_from(["max", "min", "disabled"]),
)


@st.composite
def policies(draw):
    minimum = draw(st.integers(0, 5))
    return policy(
        metrics=dict.fromkeys(
            ("backlog", "ru"),
            draw(
                st.sampled_from(
                    [
                        metric(),
                        metric(schedule="0 0,1,30 * * * *", missing_allowed=1),
                        metric(min_samples=1, missing_allowed=2, missing_in_a_row=2),
                    ]
                )
            ),
        ),
        rules=draw(
            st.sampled_from([(THRESHOLD,), (PER_UNIT,), (SUM,), (THRESHOLD, GUARD), (PER_UNIT, GUARD, SUM)])
        ),
        minimum=minimum,
        maximum=draw(st.integers(minimum, 15)),
        out=draw(paces),
        inward=draw(paces),
        plateau=draw(maybe(st.just(Plateau(metric="backlog", effects=2)))),
        fallback=draw(maybe(st.just(Fallback(capacity=6)))),
        dry_run=draw(rare),
        budget=draw(maybe(budgets)),
    )


pairs = st.fixed_dictionaries({"backlog": windows(), "ru": windows()})


@examples(100)
@given(policies(), pairs, states(), controls)
def test_whatever_is_decided_is_bounded_consistent_and_replays_byte_for_byte(
    made, given_windows, state, orders
):
    r = decide_and_explain(made, given_windows, state, now=NOW, controls=orders, decision_id="plan@1")

    alone = decide(made, given_windows, state, now=NOW, controls=orders, decision_id="plan@1")
    assert alone == msgspec.structs.replace(r, flips=())
    inputs = encode_inputs(made, given_windows, state, orders, now=NOW, decision_id="plan@1")
    assert same(r, replay(decode_inputs(inputs)))
    moved = state.external_change if r.reason is not Reason.CAPACITY_UNKNOWN else None
    assert r.current == (state.expected if moved is None else moved.seen)
    if moved is not None and r.acts and r.desired < r.current:
        assert r.reason in {Reason.ABOVE_MAXIMUM, Reason.OVERRIDDEN}
    if r.reason is not Reason.DRY_RUN and not r.acts:
        assert r.desired == r.current
    if r.acts:
        check_action(made, given_windows, r)


def check_action(made, given_windows, r) -> None:
    """Within the bounds it names, which lie under the policy's maximum, but for what the platform itself cannot
    go below; in the direction the rules asked.
    """
    assert r.minimum <= r.desired <= r.maximum
    assert r.desired <= made.maximum or (r.desired < r.current and r.reason is not Reason.SCALE_OUT)
    unknown = [
        name
        for name, spec in made.windows.items()
        if (summary := summarize(given_windows[name], spec, now=NOW)).problem or summary.gap
    ]
    if r.reason is not Reason.OVERRIDDEN and r.desired < r.current:
        assert not unknown
    if r.reason in {Reason.SCALE_OUT, Reason.FALLBACK, Reason.BELOW_MINIMUM}:
        assert r.desired > r.current
    if r.reason in {Reason.SCALE_IN, Reason.ABOVE_MAXIMUM, Reason.OVER_BUDGET}:
        assert r.desired < r.current
    if r.reason is Reason.OVER_BUDGET:
        assert r.desired >= made.minimum
    if r.reason is Reason.SCALE_OUT:
        assert r.proposed > r.current
    if r.reason is Reason.SCALE_IN:
        assert r.proposed < r.current


@given(budgets, states(), st.floats(NOW - 9e5, NOW + 9e5))
def test_whatever_was_counted_counting_goes_on(budget, state, now) -> None:
    once = spent_by(budget, state, now=now)
    twice = spent_by(budget, msgspec.structs.replace(state, spent=once), now=now)

    assert twice == once or state.spent is None or once.until != now
    assert allowance_of(policy(budget=budget), state, now=now).keep >= 1


@given(amounts.filter(lambda v: v > 500), st.floats(0, 99), st.integers(1, 9))
def test_scale_out_beats_scale_in(high: float, low: float, current: int) -> None:
    other = RuleSpec(
        type="threshold",
        name="ru",
        options={"metric": "ru", "scale_out_above": 500.0, "scale_in_below": 100.0},
    )
    made = policy(metrics={"backlog": metric(), "ru": metric()}, rules=(THRESHOLD, other))
    times = [NOW - MINUTE * i for i in range(4, -1, -1)]

    for one, two in ((high, low), (low, high)):
        both = {"backlog": Window(times, [one] * 5), "ru": Window(times, [two] * 5)}
        assert decide(made, both, at(current), now=NOW).reason is Reason.SCALE_OUT


# Feeds: what a collector and a queue can do to a metric that is always low, so that whole it scales in.

faults = st.sampled_from(
    ["ok"] * 6 + ["drop", "duplicate", "late", "nan", "negative", "future", "fail", "huge"]
)


def delivered(fault: str, index: int, now: float) -> list[tuple[int, MetricSample | MetricFailure | None]]:
    """(ticks of delay, what the report of a tick says)."""
    sample = MetricSample("backlog", now, 20.0)
    return {
        "ok": [(0, sample)],
        "drop": [],
        "duplicate": [(0, sample), (0, sample)],
        "late": [(3, sample)],
        "nan": [(0, MetricSample("backlog", now, float("nan")))],
        "negative": [(0, MetricSample("backlog", now, -1.0))],
        "future": [(0, MetricSample("backlog", now + 9000.0, 20.0))],
        "fail": [(0, MetricFailure("backlog", now, "no"))],
        "huge": [(0, MetricSample("backlog", now, 1e300))],
    }[fault]


@examples(100)
@given(st.lists(faults, min_size=5, max_size=20), st.randoms(use_true_random=False))
def test_a_feed_with_anything_missing_in_its_window_never_scales_in(feed: list[str], random) -> None:
    made = policy()
    given_windows, state = {}, at(3, now=NOW - 10 * MINUTE)
    queue: list[tuple[int, int, MetricSample | MetricFailure]] = []
    arrived: set[int] = set()
    for tick, fault in enumerate(feed):
        now = NOW + MINUTE * tick
        queue += [(tick + delay, tick, item) for delay, item in delivered(fault, tick, now)]
        due = [entry for entry in queue if entry[0] <= tick]
        queue = [entry for entry in queue if entry[0] > tick]
        random.shuffle(due)
        for _, taken, item in due:
            good = isinstance(item, MetricSample)
            told = MetricsReport(
                "plan",
                NOW + MINUTE * taken,
                (item,) if good else (),
                () if good else (item,),
                Capacity(3, NOW + MINUTE * taken),
            )
            given_windows, state = absorb(made, given_windows, state, told, now=now, controls=NO_CONTROLS)
            if feed[taken] in {"ok", "duplicate", "late"}:
                arrived.add(taken)
            recommendation = decide(made, given_windows, state, now=now)
            whole = {tick - i for i in range(5)} <= arrived or {
                max(arrived, default=0) - i for i in range(5)
            } <= arrived
            if recommendation.reason is Reason.SCALE_IN:
                assert whole, (feed, tick, arrived)


def test_a_whole_feed_of_low_values_does_scale_in() -> None:
    made, given_windows, state = policy(), {}, at(3, now=NOW - 600)
    for tick in range(5):
        now = NOW + MINUTE * tick
        told = MetricsReport("plan", now, (MetricSample("backlog", now, 20.0),), (), Capacity(3, now))
        given_windows, state = absorb(made, given_windows, state, told, now=now, controls=NO_CONTROLS)

    assert decide(made, given_windows, state, now=now).reason is Reason.SCALE_IN
