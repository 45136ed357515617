"""Uneven schedules and missing samples: when a window is whole, and when it is whole enough to scale in."""

from itertools import pairwise, product

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scaling.config.policy import RuleSpec
from scaling.config.policy_file import load_config
from scaling.decision.decide import decide
from scaling.decision.transitions import absorb
from scaling.flip import Condition
from scaling.flips.explained import decide_and_explain
from scaling.model import (
    NO_CONTROLS,
    Capacity,
    MetricFailure,
    MetricSample,
    MetricsReport,
    Reason,
    TargetState,
)
from scaling.schedules.timetable import Timetable
from scaling.service import registry
from scaling.window import Window, WindowSpec, summarize, with_missing
from tests.support.scaling.runner import MINUTE, NOW, THRESHOLD, at, full, metric, policy
from tidemark.foundation.settings_reader import ConfigError

SCHEDULES = {  # with a window of each
    "0 */7 * * * *": "30m",
    "0 0,1,30 * * * *": "1h",
    "0 * 8-17 * * MON-FRI": "10m",
    "*/25 * * * * *": "5m",
    "0 0/5 * * * *": "15m",
}


def configured(schedule="0 * * * * *", window="10m", text="", **settings):
    toml = f"""
[targets.plan]
scaler = "app_service_plan"
resource_id = "/subscriptions/{"1" * 8}-2222-3333-4444-{"5" * 12}/resourceGroups/r/providers/Microsoft.Web/serverfarms/p"
maximum = 10
in = {{ cooldown = "0s" }}
[targets.plan.metrics.backlog]
collector = "storage_queue"
connection = "C"
queue = "work"
window = "{window}"
{text}
[[targets.plan.rules]]
type = "threshold"
metric = "backlog"
scale_out_above = 500
scale_in_below = 100
"""
    settings = {"COLLECT_SCHEDULE": schedule, "C": "UseDevelopmentStorage=true", **settings}
    return load_config(toml, name="tidemark.toml", settings=settings, plug_ins=registry).policies["plan"]


def firings(schedule: str, hours: float, begin: float = 1_800_259_200.0):  # Monday 08:00, UTC
    table = Timetable(schedule)
    found = [begin + second for second in range(0, int(hours * 3600), 5)]
    return [moment for moment in found if table.due(moment - 0.5, moment + 0.5)]


def reasons(made, times, lost=()):
    """What is decided at each of these times, the samples at `lost` missing."""
    windows, state, found = {}, TargetState(), []
    for moment in times:
        sample = MetricSample("backlog", moment + 0.4, 20.0)
        failure = MetricFailure("backlog", moment + 0.4, "no answer")
        report = MetricsReport(
            "plan",
            moment + 0.4,
            () if moment in lost else (sample,),
            (failure,) if moment in lost else (),
            Capacity(5, moment + 0.4),
        )
        windows, state = absorb(made, windows, state, report, now=moment + 3, controls=NO_CONTROLS)
        found.append(decide(made, windows, state, now=moment + 3).reason)
    return found


@pytest.mark.parametrize(("schedule", "window"), SCHEDULES.items())
def test_a_collector_that_misses_nothing_scales_in_whatever_its_schedule(schedule, window):
    found = reasons(configured(schedule, window), firings(schedule, 9.5))

    whole = found.index(Reason.SCALE_IN)
    assert whole < 16
    assert set(found[whole:]) == {Reason.SCALE_IN}


@pytest.mark.parametrize(("schedule", "window"), SCHEDULES.items())
def test_each_sample_that_is_missing_holds_until_it_has_left_the_window(schedule, window):
    times = firings(schedule, 8)
    for index in range(16, 22):
        found = reasons(configured(schedule, window), times[: index + 2], lost=[times[index]])

        assert found[index - 1 :] == [
            Reason.SCALE_IN,
            Reason.COLLECT_FAILED,
            Reason.INCOMPLETE_WINDOW,
        ], times[index]


def test_a_schedule_is_read_in_the_time_zone_of_the_platform():
    made = configured("0 0-50 9-10 * * *", "10m", WEBSITE_TIME_ZONE="Asia/Kolkata")
    nine = 1_800_259_200.0 + 12 * 3600 + 7.5 * 3600  # 03:30 UTC, 09:00 in Kolkata
    times = [nine + MINUTE * minute for minute in (*range(51), *range(60, 75))]

    assert set(reasons(made, times)[12:51] + reasons(made, times)[62:]) == {Reason.SCALE_IN}
    with pytest.raises(ConfigError, match=r"WEBSITE_TIME_ZONE: found time zone 'Mars'"):
        configured("0 0-50 9-10 * * *", WEBSITE_TIME_ZONE="Mars")


@pytest.mark.parametrize(
    ("schedule", "span", "samples"),
    [
        ("0 * * * * *", 600, (10, 10)),
        ("0 */7 * * * *", 1500, (4, 4)),
        ("0 */7 * * * *", 1680, (4, 5)),
        ("0 0,1,30 * * * *", 3600, (3, 3)),
        ("0 * 8-17 * * MON-FRI", 600, (10, 10)),
        ("0 0,1,30 * * * *", 600, (1, 2)),
    ],
)
def test_how_many_samples_a_window_holds_follows_the_schedule(schedule, span, samples):
    assert Timetable(schedule).samples(span) == samples


def test_an_hour_that_the_clocks_repeat_or_leave_out_lacks_nothing():
    table = Timetable("0 */7 * * * *", "Europe/Amsterdam")
    for begin in (1_793_494_800.0, 1_774_746_000.0):  # an hour before the change in October and in March 2026
        minutes = [begin + MINUTE * m for m in range(180)]
        for earlier, later in pairwise(minutes):
            assert table.due(earlier, later) <= 1


# -- tolerance ---------------------------------------------------------------------------------------------

HOUR = {"span": 3600.0, "min_samples": 5}


def lacking(*minutes_ago, value=20.0, count=60, peak=None):
    """An hour of one value without some samples; the newest may be another."""
    times = [NOW - MINUTE * m for m in reversed(range(count)) if m not in minutes_ago]
    values = [value] * len(times)
    if peak is not None:
        values[-1] = peak
    return Window(times, values)


def wanted(window, current=5, rules=(THRESHOLD,), **spec):
    made = policy(metrics={"backlog": metric(**HOUR, **spec)}, rules=rules)
    return decide_and_explain(made, {"backlog": window}, at(current), now=NOW)


def test_by_default_one_sample_in_twenty_may_be_missing_and_no_two_in_a_row():
    hour, ten = configured(window="1h"), configured(window="10m")

    assert (hour.windows["backlog"].missing_allowed, hour.windows["backlog"].missing_in_a_row) == (3, 1)
    assert ten.windows["backlog"].missing_allowed == 0


def test_at_one_read_in_a_hundred_failing_an_hour_lets_scale_in_nearly_always():
    made, times = configured(window="1h"), firings("0 * * * * *", 20)
    lost = [moment for index, moment in enumerate(times) if index % 100 == 50]
    found = reasons(made, times, lost)

    held = [reason for reason in found[60:] if reason is not Reason.SCALE_IN]
    assert held == [Reason.COLLECT_FAILED] * 11  # the present is never guessed


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        ((7, 20, 40), Reason.SCALE_IN),
        ((7, 20, 40, 50), Reason.INCOMPLETE_WINDOW),
        ((7, 8), Reason.INCOMPLETE_WINDOW),
        ((59,), Reason.SCALE_IN),
        ((59, 58), Reason.INCOMPLETE_WINDOW),
        ((59, 30, 20, 10), Reason.INCOMPLETE_WINDOW),
    ],
)
def test_what_is_within_the_tolerance_and_what_is_not(missing, reason):
    assert wanted(lacking(*missing), missing_allowed=3).reason is reason


def test_without_a_tolerance_one_missing_sample_holds():
    assert wanted(lacking(7)).reason is Reason.INCOMPLETE_WINDOW


AVERAGE = RuleSpec(
    type="threshold",
    name="mean",
    options={
        "metric": "backlog",
        "scale_out_above": 500.0,
        "scale_in_below": 100.0,
        "in_statistic": "average",
    },
)


def test_a_missing_sample_counts_as_the_highest_of_its_window_where_scaling_in_is_asked_for():
    window = lacking(7, 20, 40, value=90.0, peak=400.0)  # 95 on average; 111 with three times 400

    held = wanted(window, rules=(AVERAGE,), missing_allowed=3)

    assert (held.desired, held.reason) == (5, Reason.INCOMPLETE_WINDOW)
    assert held.note == (
        "backlog lacks 3 samples; were they as high as the highest of the window, nothing would be scaled in"
    )
    assert [flip.conditions for flip in held.flips] == [(Condition("samples backlog", ">=", 60.0),)]
    assert wanted(lacking(value=95.0), rules=(AVERAGE,)).reason is Reason.SCALE_IN


def test_a_missing_sample_is_no_reason_to_scale_out():
    window = lacking(7, 20, 40, value=60.0, peak=9000.0)  # in by the average there is, out by the guess
    mean = RuleSpec(
        type="threshold",
        name="mean",
        options={
            "metric": "backlog",
            "scale_out_above": 300.0,
            "scale_in_below": 250.0,
            "in_statistic": "average",
        },
    )

    assert wanted(window, rules=(mean,), missing_allowed=3).desired == 5


def test_a_proportional_rule_scales_in_no_further_than_the_guess_allows():
    unit = RuleSpec(
        type="target_per_unit",
        name="unit",
        options={"metric": "backlog", "target": 100.0, "statistic": "average"},
    )
    window = lacking(7, 20, 40, value=195.0, peak=900.0)

    assert wanted(window, 9, rules=(unit,), missing_allowed=3).desired == 3
    assert wanted(lacking(value=195.0), 9, rules=(unit,)).desired == 2


@pytest.mark.parametrize(("lowest", "desired"), [(9.9, 8), (2.0, 9)])
def test_a_missing_sample_counts_as_the_lowest_where_less_asks_for_more_capacity(lowest, desired):
    idle = RuleSpec(type="composite", name="idle", options={"scale_in_when": "backlog.average > 10"})
    times = full(0.0, count=60).times
    values = [10.1, lowest, *[10.1] * 28, *[10.3] * 30]
    seen = Window(times[:40] + times[41:], values[:40] + values[41:])

    decision = wanted(seen, 9, (idle,), missing_allowed=3)

    assert decision.desired == desired
    if desired == 9:
        assert "were they as low as the lowest of the window" in decision.note


@given(st.data())
def test_whatever_the_missing_samples_were_up_to_the_highest_seen_nothing_was_scaled_in_too_far(data):
    values = data.draw(st.lists(st.floats(0, 1000), min_size=60, max_size=60))
    missing = data.draw(st.sets(st.integers(1, 58), max_size=5))
    statistic = data.draw(st.sampled_from(["average", "maximum", "latest"]))
    unit = RuleSpec(
        type="target_per_unit",
        name="unit",
        options={"metric": "backlog", "target": 100.0, "statistic": statistic},
    )
    kept = [index for index in range(60) if index not in missing]
    most = max(values[index] for index in kept)
    truth = full(0.0, count=60)
    truth = Window(truth.times, [v if i in kept else min(v, most) for i, v in enumerate(values)])
    seen = Window([truth.times[i] for i in kept], [values[i] for i in kept])

    decided = wanted(seen, 9, (unit,), missing_allowed=5, missing_in_a_row=5).desired

    assert decided >= min(wanted(truth, 9, (unit,)).desired, 9)


@given(st.lists(st.booleans(), min_size=2, max_size=40))
def test_the_missing_are_counted_one_by_one(kept):
    kept[0] = kept[-1] = True
    times = [NOW + MINUTE * index for index, here in enumerate(kept) if here]
    spec = WindowSpec(span=MINUTE * len(kept), interval=MINUTE)
    uneven = msgspec.structs.replace(spec, schedule="0 0-59 * * * *")

    for one in (spec, uneven):
        summary = summarize(Window(times, [1.0] * len(times)), one, now=times[-1])
        assert summary.missing == kept.count(False)
        assert with_missing(summary, summary.missing).average == pytest.approx(1.0)


@pytest.mark.parametrize("setting", ["missing_allowed = 6", "missing_allowed = -1", "missing_in_a_row = 0"])
def test_a_tolerance_that_makes_no_sense_is_refused(setting):
    with pytest.raises(ConfigError, match="missing_"):
        configured(text=setting)


# -- several metrics

BALANCE = {"desired": "ceil((incoming.average - outgoing.average) / 13)"}


def by_expression(windows, current, options, **spec):
    made = policy(
        metrics=dict.fromkeys(windows, metric(**HOUR, missing_allowed=3, missing_in_a_row=3, **spec)),
        rules=(RuleSpec(type="composite", name="each", options=options),),
    )
    return decide(made, windows, at(current), now=NOW)


def test_one_metric_may_have_been_high_where_the_other_was_low():
    """2 with both high or both low, 3 with incoming high and outgoing low."""
    incoming = lacking(7, value=60.2, peak=90.0)
    times = lacking(9).times
    outgoing = Window(times, [10.0 if index % 2 else 60.0 for index in range(len(times))])

    held = by_expression({"incoming": incoming, "outgoing": outgoing}, 3, BALANCE)

    assert (held.desired, held.reason) == (3, Reason.INCOMPLETE_WINDOW)
    assert held.note == (
        "incoming lacks 1 sample, outgoing lacks 1 sample; were 1 of incoming as high as the highest of the window, "
        "and the others as low as the lowest, nothing would be scaled in"
    )


def test_more_combinations_than_can_be_tried_scale_nothing_in():
    names = [f"m{index}" for index in range(10)]
    windows = {name: lacking(7, value=1.0) for name in names}
    options = {"desired": f"({' + '.join(f'{name}.average' for name in names)}) / 10"}

    found = by_expression(windows, 3, options)

    assert (found.desired, found.reason) == (3, Reason.INCOMPLETE_WINDOW)
    assert "too many combinations" in found.note


def test_a_metric_that_no_rule_reads_is_not_guessed():
    names = [f"m{index}" for index in range(12)]
    windows = {name: lacking(7, value=10.0) for name in names}

    assert by_expression(windows, 3, {"desired": "ceil(m0.average / 10)"}).desired == 1


NAMES = ("a", "b", "c")
operands = st.sampled_from([f"{name}.average" for name in NAMES] + ["1", "7", "30"])


def combined(inner):
    binary = st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda parts: f"({' '.join(parts)})")
    called = st.tuples(st.sampled_from(["min", "max"]), inner, inner).map("{0[0]}({0[1]}, {0[2]})".format)
    chosen = st.tuples(inner, inner, inner).map("({0[0]} if {0[1]} > {0[2]} else 2)".format)
    return st.one_of(binary, called, chosen, inner.map("abs({})".format))


expressions = st.recursive(operands, combined, max_leaves=6)


TEN = full(0.0, count=10).times
SEEN = [0.0, 60.0] * 5


@example("(a.average - b.average)", (SEEN, SEEN, SEEN), (1, 1, 0))
@given(
    expressions,
    st.tuples(*[st.lists(st.sampled_from([0.0, 5.0, 60.0]), min_size=10, max_size=10)] * 3),
    st.tuples(*[st.integers(0, 3)] * 3),
)
def test_no_guess_of_what_is_missing_would_have_asked_for_more_than_is_left(text, values, lost):
    """By brute force: each missing sample as high as the highest of its window, or as low as the lowest."""
    made = policy(
        metrics=dict.fromkeys(NAMES, metric(span=600.0, missing_allowed=3, missing_in_a_row=3)),
        rules=(RuleSpec(type="composite", name="each", options={"desired": f"ceil({text} / 5)"}),),
        maximum=1_000,
    )
    windows, truths = {}, {}
    for name, own, count in zip(NAMES, values, lost, strict=True):
        seen = own[:2] + own[2 + count :]
        windows[name] = Window(TEN[:2] + TEN[2 + count :], seen)
        truths[name] = [
            Window(TEN, own[:2] + [max(seen)] * high + [min(seen)] * (count - high) + own[2 + count :])
            for high in range(count + 1)
        ]
    needed = [
        decide(made, dict(zip(NAMES, world, strict=True)), at(0), now=NOW).proposed or 0
        for world in product(*(truths[name] for name in NAMES))
    ]

    for current in {max(needed) + 1, max(*needed, 1), min(needed) + 1}:
        if current <= 1_000:
            decided = decide(made, windows, at(current), now=NOW)
            assert decided.desired >= min(max(needed), current)
