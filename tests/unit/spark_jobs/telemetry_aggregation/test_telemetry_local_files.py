"""Samples of files in the order of time: the rows of all at once, whatever the files look like."""

import math
import random
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from spark_jobs.telemetry_aggregation import local, metric_samples
from spark_jobs.telemetry_aggregation.files import in_order
from spark_jobs.telemetry_aggregation.files.accepted import row_groups_of
from spark_jobs.telemetry_aggregation.files.in_order import FOR_EVER, RowGroup, Span, count_most_open
from spark_jobs.telemetry_aggregation.kernel.rows import ROWS, rows_of
from spark_jobs.telemetry_aggregation.kernel.samples import MINUTE, SAMPLES, WINDOWS, Samples, Series
from tidemark.analysis.errors import InputError

START = datetime(2026, 11, 20, 8, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("target", pa.string()),
        ("metric", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("value", pa.float64()),
    ]
)
SMALL = ("ROWS_TOGETHER", "ROWS_AT_MOST", "ROWS_AT_ONCE")


def in_order_of_time(count, begin=START):
    return [("plan", "backlog", begin + timedelta(seconds=index), float(index)) for index in range(count)]


def write(path, rows, row_group_size=100, schema=SCHEMA, **options):
    columns = list(zip(*rows, strict=True))
    pq.write_table(pa.table(columns, schema=schema), path, row_group_size=row_group_size, **options)
    return path


def micros(at):
    return round(at.timestamp() * 1_000_000)


def aggregated(folder, bounds=FOR_EVER, threads=2):
    """The rows of all windows, and the counts."""
    found, work = [ROWS.empty_table()], folder.parent / f"work-{uuid4().hex}"
    work.mkdir()
    counts = local.aggregate(
        row_groups_of(folder),
        Span(*bounds),
        lambda rows: found.append(rows.cast(ROWS)),
        work,
        threads=threads,
    )
    assert not list(work.iterdir())
    return sorted_rows(pa.concat_tables(found)), counts


def sorted_rows(table):
    return table.sort_by([(name, "ascending") for name in ("window", "subject", "metric", "window_start")])


def whole(rows):
    """The table GAUGES from all rows at once."""
    samples = [(target, "", metric, micros(at), value) for target, metric, at, value in rows]
    series = Series()
    columns = list(zip(*samples, strict=True)) or [[]] * 5
    valid, _ = Samples.of(pa.table(columns, schema=SAMPLES), series)
    made = [table.cast(ROWS) for table, _ in rows_of(valid, series, distinct=True)]
    return sorted_rows(pa.concat_tables([ROWS.empty_table(), *made]))


BEGIN = datetime(2026, 11, 20, 22, 30, tzinfo=UTC)  # a day ends within the samples
EDGES = st.builds(
    lambda minute, step: timedelta(minutes=minute, microseconds=step),
    st.sampled_from([0, 1, 29, 30, 31, 89, 90, 150]),
    st.sampled_from([-1, 0, 0, 1]),
)
FAR = datetime(1926, 1, 1, 0, 0, 7, tzinfo=UTC)
TIMES = st.one_of(EDGES, st.integers(0, 3 * 3600).map(lambda second: timedelta(seconds=second)))
SAMPLE = st.tuples(
    st.sampled_from(["plan", "bus", None]),
    st.sampled_from(["backlog", "cpu"]),
    st.one_of(TIMES.map(lambda since: BEGIN + since), st.sampled_from([FAR, None])),
    st.one_of(st.just(0.0), st.floats(-1e9, 1e9), st.just(float("nan"))),
)
# How a file is written: rows of a group (one giant group, too), groups without a row, and what it tells of its times.
FILE = st.tuples(
    st.sampled_from([1, 5, 20, 1000]),
    st.sampled_from([0, 0, 1, 2]),
    st.sampled_from([{}, {}, {"write_statistics": False}, {"use_deprecated_int96_timestamps": True}]),
)


def write_layout(path, rows, layout):
    size, empty, options = layout
    table = pa.table(list(zip(*rows, strict=True)) or [[]] * 4, schema=SCHEMA)
    with pq.ParquetWriter(path, SCHEMA, **options) as writer:
        for _ in range(empty):
            writer.write_table(SCHEMA.empty_table())
        writer.write_table(table, row_group_size=size)


AT_A_CUT = [(BEGIN, 0), (BEGIN + timedelta(minutes=30), 0), (BEGIN + timedelta(minutes=30, seconds=30), 1)]


@example(  # the second file begins in the minute in which the first one ends, and a sample is at its very start
    rows=[(("plan", "backlog", at, 1.0), file) for at, file in AT_A_CUT],
    layouts=((1000, 0, {}),) * 3,
    sort=False,
    few=1,
    waiting=10_000,
    threads=1,
    bounds=None,
)
@example(  # an hour in two parts: its digits are those of its minutes added up at once
    rows=[
        (("plan", "backlog", BEGIN + timedelta(minutes=minute), value), 0)
        for minute, value in enumerate([0.1, 0.1, 0.1, 0.3])
    ],
    layouts=((1, 0, {}),) * 3,
    sort=True,
    few=1,
    waiting=10_000,
    threads=1,
    bounds=None,
)
@given(
    rows=st.lists(st.tuples(SAMPLE, st.integers(0, 2)), min_size=1, max_size=150),
    layouts=st.tuples(FILE, FILE, FILE),
    sort=st.booleans(),
    few=st.sampled_from([1, 10, 40, 10_000]),
    waiting=st.sampled_from([1, 60, 10_000]),
    threads=st.sampled_from([1, 3]),
    bounds=st.one_of(st.none(), st.tuples(EDGES, EDGES).map(sorted)),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_rows_are_those_of_all_samples_at_once_digit_for_digit(
    tmp_path, rows, layouts, sort, few, waiting, threads, bounds
):
    """Whether files overlap or follow each other, at the same times or not, with row groups of any size and with none; whether they
    tell their times or not; however few rows may be read, wait or be in a file at once.
    """
    if sort:
        rows = sorted(rows, key=lambda row: (row[0][2] or FAR, row[1]))
    folder = tmp_path / uuid4().hex
    folder.mkdir()
    for number, layout in enumerate(layouts):
        write_layout(folder / f"{number}.parquet", [row for row, file in rows if file == number], layout)
    limits = {**dict.fromkeys(SMALL, few), "ROWS_OPEN": waiting, "RANGES": 3}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in limits.items():
            patch.setattr(in_order, name, value)
        patch.setattr(local, "FLUSHED", 1)
        own = FOR_EVER if bounds is None else [micros(BEGIN + bound) for bound in bounds]
        found, counts = aggregated(folder, own, threads)

    valid = [row for row, _ in rows if None not in row and not math.isnan(row[3])]
    if bounds is None:
        assert counts.invalid == len(rows) - len(valid)
    valid = [row for row in valid if own[0] <= micros(row[2]) < own[1]]
    assert found == whole(valid)
    assert counts.duplicates == len(valid) - len({row[:3] for row in valid})
    assert counts.read == len(valid) + counts.invalid


@pytest.mark.parametrize("minute", [0, 20, 59])
def test_many_samples_in_one_part_of_an_hour_are_divided_until_they_are_few(tmp_path, monkeypatch, minute):
    rows = in_order_of_time(60, START + timedelta(minutes=minute))
    folder = tmp_path / "samples"
    folder.mkdir()
    write(folder / "a.parquet", rows, row_group_size=5)
    for name, limit in {**dict.fromkeys(SMALL, 10), "ROWS_OPEN": 1, "RANGES": 3}.items():
        monkeypatch.setattr(in_order, name, limit)

    assert aggregated(folder)[0] == whole(rows)


def test_what_row_groups_hold_at_the_same_time_is_what_counts():
    def groups(minutes):
        return [RowGroup(f"{n}", 0, 7, Span(n * MINUTE, (n + minutes) * MINUTE)) for n in range(20)]

    assert [count_most_open(groups(1)), count_most_open(groups(3)), count_most_open([])] == [7, 21, 0]


@pytest.mark.parametrize("waiting", [10, 10_000])
def test_samples_without_a_time_or_a_name_are_counted_once(tmp_path, monkeypatch, waiting):
    monkeypatch.setattr(in_order, "ROWS_OPEN", waiting)
    rows = in_order_of_time(1000)
    rows[150] = ("plan", "backlog", None, 1.0)
    rows[290] = ("plan", "backlog", None, 1.0)
    rows[700] = (None, "backlog", rows[700][2], 1.0)
    rows.insert(240, ("plan", "backlog", rows[239][2] + timedelta(microseconds=1), float("nan")))

    _, counts = aggregated(write(tmp_path / "a.parquet", rows, row_group_size=130))

    assert (counts.invalid, counts.read) == (4, 1001)


@pytest.mark.parametrize("waiting", [10, 10_000])
def test_bounds_leave_out_what_is_not_within(tmp_path, monkeypatch, waiting):
    monkeypatch.setattr(in_order, "ROWS_OPEN", waiting)
    begin = micros(START + timedelta(seconds=130))

    rows, counts = aggregated(
        write(tmp_path / "a.parquet", in_order_of_time(600)), bounds=(begin, begin + 2_000_000)
    )

    assert rows.column("samples").to_pylist() == [2] * len(WINDOWS)
    assert {micros(at) for at in rows.column("first_at").to_pylist()} == {begin}
    assert counts.read == 2


@pytest.mark.parametrize("options", [{}, {"use_deprecated_int96_timestamps": True}])
def test_shuffled_files_are_worked_through_range_by_range_whether_they_have_statistics_or_not(
    tmp_path, monkeypatch, options
):
    """Rows of all the day in each row group, and one of another century: no more than ROWS_AT_MOST of them wait, however many there
    are.
    """
    rows = [
        ("plan", "backlog", START + timedelta(seconds=4 * index), float(index % 97)) for index in range(8000)
    ]
    rows.append(("plan", "backlog", datetime(1926, 1, 1, tzinfo=UTC), 5.0))
    random.Random(1).shuffle(rows)
    (tmp_path / "in").mkdir()
    for number in range(4):
        write(tmp_path / "in" / f"{number}.parquet", rows[number::4], row_group_size=500, **options)
    for name, value in (*((name, 400) for name in SMALL), ("ROWS_OPEN", 800)):
        monkeypatch.setattr(in_order, name, value)
    held, made = [], local._minutes
    monkeypatch.setattr(
        local,
        "_minutes",
        lambda ready, **more: held.append(sum(len(each.at) for each in ready[0])) or made(ready, **more),
    )

    waiting, over = [], local._over
    monkeypatch.setattr(
        local,
        "_over",
        lambda windows, until: (
            waiting.append(sum(len(window.start) for window in windows)) or over(windows, until)
        ),
    )

    found, counts = aggregated(tmp_path / "in")

    assert found == whole(rows)
    assert max(waiting) < 2 * 60, "minutes wait for the end of their hour, not of their day"
    assert (counts.read, sum(held), max(held) <= 400) == (8001, 8001, True)


@pytest.mark.parametrize("kind", ["pattern", "delta"])
def test_a_folder_that_spark_may_see_otherwise_is_looked_at_by_spark(tmp_path, kind):
    place = tmp_path / ("a[1]" if kind == "pattern" else "a")
    (place / "_delta_log").mkdir(parents=True)
    if kind == "pattern":
        (place / "_delta_log").rmdir()
    file = write(place / "a.parquet", in_order_of_time(5))

    assert metric_samples.row_groups_here(place) is None
    assert metric_samples.row_groups_here(None) is None
    if kind == "delta":
        assert metric_samples.row_groups_here(file) == row_groups_of(file)


@pytest.mark.parametrize("waiting", [10, 10_000])
def test_a_file_that_is_spoilt_or_of_other_columns_is_named_and_leaves_nothing(
    tmp_path, monkeypatch, waiting
):
    monkeypatch.setattr(in_order, "ROWS_OPEN", waiting)
    spoilt, cut = tmp_path / "spoilt.parquet", tmp_path / "cut.parquet"
    spoilt.write_bytes(b"PAR1 no footer")
    data = write(tmp_path / "whole.parquet", in_order_of_time(500)).read_bytes()
    cut.write_bytes(data[:8] + bytes(200) + data[208:])
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table([[START]], schema=pa.schema([("at", pa.timestamp("us", "UTC"))])), other)

    for file in (spoilt, cut, other):
        with pytest.raises(InputError, match=rf"--metrics: the file '{file}' (cannot be read|has columns)"):
            local.run(file, tmp_path / "out", latest=START + timedelta(days=1))
        assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())
