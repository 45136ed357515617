"""Counts, sums, rates and standard errors per bin: against pandas, against known answers, and against repeated draws."""

import math
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest

from spark_jobs.platform.rows import OUTSIDE, RowAccount
from spark_jobs.sampling_report.transforms import (
    BINS,
    binned,
    chosen,
    filled,
    once,
    shares,
)
from spark_jobs.schemas import APP_EVENTS
from tidemark.analysis.errors import JobError

T0 = datetime(2017, 5, 8, tzinfo=UTC)  # a Monday
DAY, HOUR = timedelta(days=1), timedelta(hours=1)


def event(
    at,
    *,
    weight=1,
    value=None,
    operation=None,
    name="X",
    dimensions=None,
    sdk="dotnet:2.1",
    role="api",
    item_id=None,
):
    measurements = {} if value is None else {"points": float(value)}
    return (at, name, weight, measurements, dimensions or {}, operation, role, sdk, "customEvents", item_id)


def table(spark, rows):
    return spark.createDataFrame(rows, APP_EVENTS)


def by_start(frame):
    return {row["bin_start"].replace(tzinfo=UTC): row.asDict() for row in frame.collect()}


def random_rows(seed, count=400):
    """Nulls, weights below 1, values that are no numbers, operations in several bins, rows alike."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        weight = [None, 0, 1, 1, 2, 3, 7][rng.integers(7)]
        value = [None, float("nan"), float("inf"), *rng.normal(5, 20, 5)][rng.integers(8)]
        operation = [None, "", *(f"op{n}" for n in range(40))][rng.integers(42)]
        at = T0 + timedelta(seconds=int(rng.integers(5 * 86_400)), microseconds=int(rng.integers(1_000_000)))
        rows.append(
            event(at, weight=weight, value=value, operation=operation, name=["X", "Y"][rng.integers(5) // 4])
        )
    return rows + rows[:20]


def by_hand(rows, width):
    """BINS of event X by pandas and plain Python, for widths that divide a day."""
    frame = pd.DataFrame(
        [
            {
                "bin": pd.Timestamp(row[0]).floor(width),
                "weight": row[2] if row[2] and row[2] >= 1 else math.nan,
                "value": row[3].get("points", math.nan),
                "operation": row[5] or f"alone {place}",
            }
            for place, row in enumerate(rows)
            if row[1] == "X"
        ]
    )
    frame["value"] = frame["value"].replace([np.inf, -np.inf], math.nan)
    found = {}
    for start, group in frame.groupby("bin"):
        weighted = group[group["weight"].notna()]
        valued = group[group["value"].notna()]
        both = weighted[weighted["value"].notna()]
        counts, sums = 0.0, 0.0
        for _, operation in weighted.groupby("operation"):
            left_out = 1 - len(operation) / operation["weight"].sum()
            counts += left_out * operation["weight"].sum() ** 2
            sums += left_out * (operation["weight"] * operation["value"]).sum() ** 2
        found[start.to_pydatetime()] = {
            "rows": len(group),
            "without_item_count": len(group) - len(weighted),
            "corrected_count": int(weighted["weight"].sum()) if len(weighted) else None,
            "corrected_count_error": math.sqrt(counts) if len(weighted) else None,
            "sampling_rate": 100 / weighted["weight"].mean() if len(weighted) else None,
            "without_measurement": len(group) - len(valued),
            "raw_sum": valued["value"].sum() if len(valued) else None,
            "corrected_sum": (both["weight"] * both["value"]).sum() if len(both) else None,
            "corrected_sum_error": math.sqrt(sums) if len(both) else None,
        }
    return found


def close(value, expected):
    """Equal up to the rounding of sums; pytest.approx takes no None among numbers."""
    return value is expected or (
        None not in {value, expected} and math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-9)
    )


@pytest.mark.parametrize(("seed", "width"), [(1, DAY), (2, HOUR)])
def test_random_events_give_what_pandas_gives(spark, seed, width):
    rows = random_rows(seed)
    found = by_start(binned(chosen(table(spark, rows), RowAccount("X"), "X"), width, "points"))
    expected = by_hand(rows, width)

    assert found.keys() == expected.keys()
    for start, bin_ in expected.items():
        actual = {name: value for name, value in found[start].items() if name != "bin_start"}
        off = {name: (value, bin_[name]) for name, value in actual.items() if not close(value, bin_[name])}
        assert actual.keys() == bin_.keys()
        assert off == {}, start


def test_only_events_of_the_name_and_time_are_taken(spark):
    rows = [event(T0 + hours * HOUR, name=name) for hours in range(6) for name in "XY"]
    account = RowAccount("the events")
    kept = chosen(table(spark, rows), account, "X", T0 + 2 * HOUR, T0 + 4 * HOUR).collect()

    assert sorted(row["timestamp"].hour for row in kept) == [2, 3]
    assert {row["name"] for row in kept} == {"X"}
    assert account.check(kept=2)[:3] == ("the events", 12, {"other events": 6, OUTSIDE: 4, "kept": 2})
    with pytest.raises(
        JobError, match=r"the events: 12 rows were read, and the counts are of 11 \(.*kept 1\)"
    ):
        account.check(kept=1)


def test_bins_without_events_are_there_with_zero_rows_and_no_rate(spark):
    bins = binned(
        table(spark, [event(T0, weight=4, value=2.0), event(T0 + 3 * DAY, weight=None)]), DAY, "points"
    )
    found = list(by_start(filled(bins, T0 - DAY, T0 + 3 * DAY, DAY)).values())

    assert [row["rows"] for row in found] == [0, 1, 0, 0, 1]
    # nothing tells what the last row stands for: that is not 0
    assert [row["corrected_count"] for row in found] == [0, 4, 0, 0, None]
    assert [row["sampling_rate"] for row in found] == [None, 25.0, None, None, None]
    assert [row["corrected_sum"] for row in found] == [None, 8.0, None, None, None]


def test_a_record_with_an_id_counts_once_and_records_without_one_as_they_come(spark):
    rows = [
        *[event(T0, value=1.0, item_id="a", dimensions={"n": "1"})] * 3,
        event(T0 + HOUR, value=1.0, item_id="a"),  # another record, should an id not be unique
        event(T0, value=1.0, item_id="b"),
        *[event(T0, value=1.0)] * 2,
    ]
    frame = once(table(spark, rows).repartition(3))

    assert sorted(
        (row["timestamp"].hour, row["item_id"] or "", row["copies"]) for row in frame.collect()
    ) == [*((0, "", 1), (0, "", 1), (0, "a", 3), (0, "b", 1), (1, "a", 1))]
    assert frame.drop("copies").schema == APP_EVENTS


def test_no_events_give_no_bins_of_the_same_columns(spark):
    frame = binned(table(spark, []), DAY, None)

    assert (frame.columns, frame.collect()) == (BINS.fieldNames(), [])


@pytest.mark.parametrize(
    ("width", "at", "start"),
    [
        (timedelta(days=7), datetime(2017, 5, 14, 23, tzinfo=UTC), T0),  # KQL's weeks begin on Mondays
        (timedelta(minutes=15), T0 + timedelta(minutes=44, seconds=59), T0 + timedelta(minutes=30)),
        (DAY, datetime(1969, 12, 31, 1, tzinfo=UTC), datetime(1969, 12, 31, tzinfo=UTC)),
    ],
)
def test_bins_begin_where_those_of_kql_do(spark, width, at, start):
    assert list(by_start(binned(table(spark, [event(at)]), width, None))) == [start]


def test_the_standard_error_is_that_of_repeated_draws_of_whole_operations(spark):
    """What is estimated is known here: each operation is kept with probability 1/4, many times over."""
    rng = np.random.default_rng(5)
    sizes = rng.integers(1, 9, 150)  # events of an operation
    rows = []
    for draw in range(60):  # one draw a day
        for operation in np.flatnonzero(rng.random(150) < 0.25):
            at = T0 + draw * DAY
            rows += [event(at, weight=4, value=3.0, operation=f"op{operation}")] * sizes[operation]
    found = list(by_start(binned(table(spark, rows), DAY, "points")).values())
    counts = np.array([row["corrected_count"] for row in found])
    errors = np.array([row["corrected_count_error"] for row in found])

    assert counts.mean() == pytest.approx(sizes.sum(), rel=0.06)
    assert np.sqrt((errors**2).mean()) == pytest.approx(counts.std(ddof=1), rel=0.25)
    assert [row["corrected_sum_error"] for row in found] == pytest.approx(3 * errors)
    # drawn one by one, as if there were no operations, the error would be told much too small
    alone = np.sqrt(4 * 3 * counts / 4)
    assert alone.mean() < 0.6 * counts.std(ddof=1)


def test_shares_compare_the_days_from_a_break_on_with_the_same_weekdays_before(spark):
    at = T0 + 7 * DAY
    old = [event(at - 7 * DAY + HOUR, sdk="dotnet:2.1", dimensions={"region": "eu"}) for _ in range(10)]
    new = [event(at + HOUR, sdk="dotnet:2.3", weight=3, dimensions={"id": str(n)}) for n in range(30)]
    other = [event(at - 5 * DAY), event(at + 2 * DAY)]  # beyond the day that is compared
    rows = {
        (row["side"], row["dimension"], row["value"]): (
            row["rows"],
            row["events"],
            row["share"],
            row["sampling_rate"],
        )
        for row in shares(table(spark, old + new + other), at, days=1).collect()
    }

    assert rows["before", "sdk_version", "dotnet:2.1"] == (10, 10, 1.0, 100.0)
    assert rows["after", "sdk_version", "dotnet:2.3"] == (30, 90, 1.0, pytest.approx(100 / 3))
    assert rows["before", "customDimensions.region", "eu"] == (10, 10, 1.0, 100.0)
    assert {key for key in rows if key[1] == "customDimensions.id"} == set()  # an id is no dimension
    assert rows["after", "role", "api"][2] == 1.0
