"""Cells and windows against the same in plain Python."""

import math
from collections import defaultdict
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.telemetry_aggregation.kernel import cells
from spark_jobs.telemetry_aggregation.kernel.buckets import PERCENTS, RELATIVE_ERROR, buckets, middles
from spark_jobs.telemetry_aggregation.kernel.columns import array_of, numbers_of, texts_of
from spark_jobs.telemetry_aggregation.kernel.rows import rows_of, table_of
from spark_jobs.telemetry_aggregation.kernel.samples import MINUTE, WINDOWS, Samples, Series, parts
from spark_jobs.telemetry_aggregation.kernel.samples import SAMPLES as SCHEMA

np = pytest.importorskip("numpy")

BEGIN = 1_763_769_420_000_000  # 23:57 UTC: an hour and a day end within the samples
# Quarters, so that sums are the same in any order.
VALUES = st.integers(-400, 40_000).map(lambda quarters: quarters / 4)
TIMES = st.one_of(
    st.integers(BEGIN, BEGIN + 6 * MINUTE), st.sampled_from([BEGIN, BEGIN + 1, BEGIN + 3 * MINUTE])
)
SAMPLES = st.lists(
    st.tuples(
        st.sampled_from(["plan-a", "plan-b"]), st.sampled_from(["", "0"]), st.just("backlog"), TIMES, VALUES
    ),
    max_size=60,
)
BAD = st.lists(
    st.sampled_from(
        [
            ("plan-a", "", "backlog", BEGIN, float("nan")),
            ("plan-a", "", "backlog", BEGIN, float("-inf")),
            ("plan-a", "", "backlog", BEGIN, None),
            ("plan-a", "", "backlog", None, 1.0),
            (None, "", "backlog", BEGIN, 1.0),
        ]
    ),
    max_size=3,
)


def table(samples):
    columns = list(zip(*samples, strict=True)) or [[]] * 5
    return pa.table(columns, schema=SCHEMA)


def kept(samples):
    """Per identity the greatest value."""
    found = {}
    for *identity, value in samples:
        found[tuple(identity)] = max(value, found.get(tuple(identity), -math.inf))
    return [(*identity, value) for identity, value in found.items()]


def extremes(values):
    return min(value for _, value in values), max(value for _, value in values)


def grouped(samples, width):
    found = defaultdict(list)
    for subject, part, metric, at, value in samples:
        found[subject, part, metric, at - at % width].append((at, value))
    return {key: sorted(values) for key, values in found.items()}


@given(samples=SAMPLES, bad=BAD, distinct=st.booleans())
def test_cells_are_what_plain_python_makes_of_the_samples(samples, bad, distinct):
    series = Series()
    valid, invalid = Samples.of(table([*samples, *bad]), series)

    assert invalid == len(bad)
    if not samples:
        return
    windows = cells.minutes_of(valid, distinct=distinct)
    unique = kept(samples) if distinct else samples
    wanted = {
        key: (len(values), sum(v for _, v in values), *extremes(values), *values[0], *values[-1])
        for key, values in grouped(unique, MINUTE).items()
    }
    names = ("samples", "total", "min", "max", "first_at", "first", "last_at", "last")
    keys = zip(
        *(column.to_pylist() for column in series.columns(windows.series)),
        windows.start.tolist(),
        strict=True,
    )
    rows = zip(*(getattr(windows, name).tolist() for name in names), strict=True)
    assert dict(zip(keys, rows, strict=True)) == wanted
    assert windows.copies.sum() == len(samples) - len(unique)


@given(samples=SAMPLES, cuts=st.lists(st.integers(0, 60), max_size=4), in_order=st.booleans())
def test_parts_are_all_samples_and_share_no_minute(samples, cuts, in_order):
    if in_order:
        samples = sorted(samples, key=lambda sample: sample[3])
    whole, _ = Samples.of(table(samples), Series())
    edges = [0, *sorted(min(cut, len(samples)) for cut in cuts), len(samples)]

    pieces = list(parts(whole.at_rows(begin, end) for begin, end in pairwise(edges)))

    assert [row for part in pieces for row in zip(*part, strict=True)] == list(zip(*whole, strict=True))
    minutes = [set(part.at // MINUTE) for part in pieces]
    assert sum(map(len, minutes)) == len(set().union(*minutes))


def windows_of(samples, windows=tuple(WINDOWS)):
    """All rows, from samples at once."""
    series = Series()
    valid, _ = Samples.of(table(samples), series)
    return [
        row for rows, _ in rows_of(valid, series, distinct=False, windows=windows) for row in rows.to_pylist()
    ]


@given(samples=SAMPLES, wanted=st.sets(st.sampled_from([*WINDOWS]), min_size=1))
def test_windows_are_what_plain_python_makes_of_the_samples_whichever_are_wanted(samples, wanted):
    found = windows_of(samples, wanted)

    assert found == [row for row in windows_of(samples) if row["window"] in wanted]
    assert len(found) == sum(len(grouped(samples, WINDOWS[name])) for name in wanted)
    for row in found:
        start = round(row["window_start"].timestamp() * 1_000_000)
        own = grouped(samples, WINDOWS[row["window"]])[row["subject"], row["part"], row["metric"], start]
        values = sorted(value for _, value in own)
        assert (row["samples"], row["min"], row["max"]) == (len(values), values[0], values[-1])
        assert row["mean"] == pytest.approx(sum(values) / len(values), abs=1e-9)
        assert (row["first"], row["last"]) == (own[0][1], own[-1][1])
        elapsed = (own[-1][0] - own[0][0]) / 1e6
        drain = (own[0][1] - own[-1][1]) / elapsed if elapsed else None
        assert row["drain_per_s"] == pytest.approx(drain)
        lasting = own[-1][1] / drain if drain and drain > 0 else None
        assert row["time_to_drain_s"] == (0.0 if own[-1][1] == 0 else pytest.approx(lasting))
        for percent in PERCENTS:
            exact = values[math.ceil(len(values) * percent / 100) - 1]
            assert abs(row[f"p{percent}"] - exact) <= RELATIVE_ERROR * abs(exact) * (1 + 1e-9)


@given(samples=SAMPLES, cuts=st.lists(st.integers(0, 7), max_size=3))
def test_hours_of_minutes_that_were_made_apart_are_those_of_all(samples, cuts):
    parts_of = [[], *([] for _ in cuts)]
    for sample in samples:
        parts_of[sum((sample[3] - BEGIN) // MINUTE >= cut for cut in cuts)].append(sample)
    series = Series()
    made = [cells.minutes_of(Samples.of(table(part), series)[0], distinct=False) for part in parts_of if part]

    if made:
        windows = cells.joined(made)
        for name in ("1h", "1d"):
            windows = cells.wider(windows, WINDOWS[name])
            rows = [row for row in windows_of(samples) if row["window"] == name]
            assert sorted(map(str, table_of(name, windows, series).to_pylist())) == sorted(map(str, rows))


def test_zero_has_a_bucket_of_its_own_beside_the_least_value_of_an_hour():
    """The hour's counters lie one beside the other, and zero's bucket is far from all others."""
    values = [0.0, 0.25, 0.25, 0.25, 40.0]
    samples = [("plan", "", "backlog", BEGIN + second, value) for second, value in enumerate(values)]

    [hour] = windows_of(samples, ["1h"])

    assert (hour["min"], hour["p50"]) == (0.0, pytest.approx(0.25, rel=RELATIVE_ERROR))


@given(
    st.lists(st.integers(0, 1 << 40) | st.integers(0, 70_000), min_size=1, max_size=50), st.integers(0, 99)
)
def test_the_order_of_numbers_is_stable_however_many_digits_they_have(numbers, seed):
    keys, given_order = np.array(numbers * 2), np.random.default_rng(seed).permutation(2 * len(numbers))

    np.testing.assert_array_equal(cells.stable_order(keys), np.argsort(keys, kind="stable"))
    np.testing.assert_array_equal(
        cells.stable_order(keys, given_order),
        given_order[np.argsort(keys[given_order], kind="stable")],
    )


@given(samples=SAMPLES)
def test_windows_whose_counters_would_be_too_many_are_the_same(samples):
    usual = windows_of(samples)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cells, "_DENSE", 0)
        assert windows_of(samples) == usual


@pytest.mark.parametrize(
    "values", [[], [1.5], [1.0, float("nan"), 3.0], [True, False, True] * 5, [1, 2, 3]], ids=str
)
@pytest.mark.parametrize("skipped", [0, 1])
def test_columns_come_back_from_arrow_as_they_were_and_not_a_number_is_null(values, skipped):
    numbers = np.array(values)
    column = array_of(numbers)[skipped:]

    assert column.null_count == int(np.isnan(numbers[skipped:]).sum())
    assert column.to_pylist() == [None if value != value else value for value in values[skipped:]]
    found = numbers_of(pa.chunked_array([column]))
    np.testing.assert_array_equal(found, numbers[skipped:])
    twice = numbers_of(pa.chunked_array([column, column]))
    np.testing.assert_array_equal(twice, np.concatenate([numbers[skipped:]] * 2))
    assert texts_of(["ä", "", "plan"]).to_pylist() == ["ä", "", "plan"]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_buckets_middle_is_within_the_bound_of_all_its_values(value):
    (middle,) = middles(buckets(np.array([value])))

    tiny = 2.3e-308  # below, doubles have fewer digits than the bound asks for
    if abs(value) < 1.7e308:
        assert abs(middle - value) <= max(
            RELATIVE_ERROR * abs(value) * (1 + 1e-9), tiny * (0 < abs(value) < tiny)
        )


@given(st.lists(st.floats(1, 100) | st.floats(allow_nan=False, allow_infinity=False), max_size=40))
def test_the_middles_of_many_are_those_of_each(values):
    numbers = np.repeat(
        buckets(np.array(values)), 20
    )  # so that some are nearer to each other than they are many

    assert middles(numbers).tolist() == [middles(numbers[at : at + 1]).item() for at in range(len(numbers))]


NAMES = st.lists(st.sampled_from("abcd"), min_size=1, max_size=2, unique=True)


@given(st.lists(st.tuples(NAMES, NAMES), max_size=40))
def test_a_series_has_one_number_whatever_names_its_batches_have(batches):
    series, numbered = Series(), {}
    for subjects, metrics in batches:
        names = [(subject, "", metric) for subject in subjects for metric in metrics] * 16
        found = series.numbers(table([(*name, BEGIN, 1.0) for name in names]))
        for name, number in zip(names, found.tolist(), strict=True):
            assert numbered.setdefault(name, number) == number

    assert sorted(numbered.values()) == list(range(len(numbered)))
    texts = (column.to_pylist() for column in series.columns(np.arange(len(numbered), dtype=np.int32)))
    assert list(zip(*texts, strict=True)) == sorted(numbered, key=numbered.__getitem__)


def test_series_whose_names_combine_to_more_than_32_bits_tell_have_a_number_each():
    names = [(f"plan-{number}", "", f"metric-{number}") for number in range(50_000)]

    numbers = Series().numbers(table([(*name, BEGIN, 1.0) for name in names]))

    assert sorted(numbers.tolist()) == list(range(len(names)))


def test_buckets_are_in_the_order_of_the_values():
    values = np.array([-1e300, -2.0, -1e-300, 0.0, 5e-324, 1.0, 1.5, 1.7976931348623157e308])

    assert (np.diff(buckets(values)) > 0).all()
