"""What advise rests on: the shorter way of deciding decides as the full one, and a replay keeps its counts."""

from itertools import pairwise

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling.config.policy import MetricSpec, Policy, PolicySpec, RuleSpec
from scaling.window import WindowSpec
from tidemark.analysis.simulation.driving import BACKLOG, INCOMING, OUTGOING, Shipped
from tidemark.analysis.simulation.waits import series_of, waits_of
from tidemark.analysis.simulation.world import Model, Run, Sight

MONDAY = 1_799_625_600.0


@st.composite
def policies(draw):
    interval = draw(st.sampled_from([15.0, 60.0]))
    counts = draw(st.sampled_from([(BACKLOG,), (BACKLOG, INCOMING), (BACKLOG, INCOMING, OUTGOING)]))
    window = WindowSpec(
        span=interval * draw(st.sampled_from([1.0, 3.5, 5.0])),
        interval=interval,
        min_samples=draw(st.sampled_from([1, 1, 3])),
        missing_allowed=draw(st.sampled_from([0, 1])),
    )
    options = {name: name for name in counts}
    options["wait"] = draw(st.sampled_from(["10s", "60s", "10m"]))
    options["late"] = draw(st.sampled_from([0.001, 0.01, 0.1]))
    options["concurrency"] = draw(st.sampled_from(["learn", 4.0]))
    options["start_up"] = draw(st.sampled_from(["learn", "30s", "5m"]))
    minimum = draw(st.integers(1, 4))
    spec = PolicySpec(
        target="plan",
        scaler="simulated",
        scaler_options={},
        minimum=minimum,
        maximum=minimum + draw(st.sampled_from([0, 3, 40])),
        metrics=dict.fromkeys(
            counts, MetricSpec(collector="simulated", options={}, count="active", window=window)
        ),
        rules=(RuleSpec(type="service_level", name="service_level", options=options),),
    )
    return Policy(spec), {name: name for name in counts}


@st.composite
def loads(draw):
    """Arrivals per second in stretches of minutes, and the gaps between some of them."""
    levels = draw(
        st.lists(
            st.tuples(st.sampled_from([0, 1, 20, 60, 200]), st.sampled_from([1, 4, 12, 40])),
            min_size=2,
            max_size=8,
        )
    )
    rng, even = np.random.default_rng(draw(st.integers(0, 9))), draw(st.booleans())
    arrivals = np.concatenate(
        [np.full(60 * m, rate) if even else rng.poisson(rate, 60 * m) for rate, m in levels]
    ).astype(float)
    parts, clock = [(0, 0)], 0
    for begin in sorted(draw(st.sets(st.integers(1, max(len(arrivals) // 30 - 1, 1)), max_size=3))):
        clock += draw(st.sampled_from([10, 60, 200, 4000, 200_000]))
        if begin * 30 < len(arrivals):
            parts.append((begin * 30, begin * 30 + clock))
    return arrivals, tuple(parts)


sights = st.sampled_from([Sight(), Sight(lost=0.1), Sight(noise=0.1), Sight(age=60), Sight(early=60)])


@settings(max_examples=100, deadline=None)
@given(policies(), loads(), sights, st.booleans(), st.integers(0, 6))
def test_the_shorter_way_decides_the_same(made, load, sight, ready, more):
    policy, reads = made
    arrivals, parts = load
    model = Model(service_rate=10.0, minimum=policy.minimum, maximum=policy.maximum)
    runs = []
    for short in (False, True):
        shipped = Shipped(policy, reads, begin=MONDAY, ready=ready, short=short)
        run = Run(arrivals, shipped, model, min(policy.minimum + more, policy.maximum), sight, parts).replay()
        shipped._leave()
        runs.append((run, shipped))
    (full, plain), (quick, other) = runs

    assert quick.totals == full.totals
    assert quick.outcome() == full.outcome()
    assert other.state.memories == plain.state.memories
    last = plain.windows[BACKLOG]
    assert msgspec.structs.asdict(other.windows[BACKLOG])["values"][-1:] == last.values[-1:]


@settings(max_examples=40, deadline=None)
@given(loads(), st.integers(1, 12))
def test_waits_and_series_tell_what_the_counters_hold(load, instances):
    arrivals, parts = load

    class Still:
        interval = 60

        def see(self, seen):
            return seen.total

        def miss(self, seen):
            raise AssertionError

    model = Model(service_rate=10.0, maximum=20)
    run = Run(arrivals, Still(), model, instances, Sight(), parts).replay()
    waits, series, late = waits_of(run), series_of(run), run.outcome().late

    assert (waits.longest > model.wait) == (late > 0)
    assert waits.slow <= waits.longest
    if late > 0.01:
        assert waits.slow > model.wait
    assert all(earlier < later for earlier, later in pairwise(series.times))
    assert series.times[0] == 0
    assert series.times[-1] <= parts[-1][1] + len(arrivals)
    assert set(series.instances) == {instances}
