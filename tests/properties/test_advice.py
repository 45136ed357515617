"""What advise rests on: a replay keeps its counts."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.analysis.simulation.waits import POINTS, series_of, waits_of
from tidemark.analysis.simulation.world import Model, Run


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


@settings(max_examples=40, deadline=None)
@given(loads(), st.integers(1, 12))
def test_waits_and_series_tell_what_the_counters_hold(load, instances):
    arrivals, parts = load

    class Still:
        interval = 60

        def see(self, seen):
            return seen.total

    model = Model(service_rate=10.0, maximum=20)
    run = Run(arrivals, Still(), model, instances, parts).replay()
    waits, series, late = waits_of(run), series_of(run), run.outcome().late

    assert (waits.longest > model.wait) == (late > 0)
    assert waits.slow <= waits.longest
    if late > 0.01:
        assert waits.slow > model.wait
    assert all(earlier < later for earlier, later in pairwise(series.times))
    assert series.times[0] == 0
    assert series.times[-1] <= parts[-1][1] + len(arrivals)
    assert set(series.instances) == {instances}
    width = max(-(-run.length // POINTS), 60)
    lengths = [min(width, run.length - begin) for begin in range(0, run.length, width)]
    assert np.dot(series.arrivals, lengths) == pytest.approx(arrivals.sum())
