"""Which task reads what of Parquet files, and what it makes of it."""

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_jobs.errors import InputError
from spark_jobs.telemetry_aggregation import local, sample_files
from spark_jobs.telemetry_aggregation.minutes.samples import MINUTE, SAMPLES, WINDOWS
from spark_jobs.telemetry_aggregation.minutes.tables import ROWS, states_of, windows_of
from spark_jobs.telemetry_aggregation.stretches import stretch
from spark_jobs.telemetry_aggregation.stretches.files import row_groups_of
from spark_jobs.telemetry_aggregation.stretches.stretch import (
    FOR_EVER,
    ROWS_PER_STRETCH,
    RowGroup,
    Span,
    stretches,
)
from spark_jobs.telemetry_aggregation.stretches.task import left

CORES = 2
START = datetime(2026, 11, 20, 8, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("target", pa.string()),
        ("metric", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("value", pa.float64()),
    ]
)

GROUPS = st.lists(
    st.builds(
        lambda begin, length, rows: RowGroup("f", 0, rows, Span(begin * MINUTE, (begin + length) * MINUTE)),
        st.integers(0, 50),
        st.integers(1, 6),
        st.integers(1, ROWS_PER_STRETCH),
    ),
    min_size=1,
    max_size=12,
)


def groups_of(*files):
    return [group for file in files for group in row_groups_of(file)]


def in_order_of_time(count, begin=START):
    return [("plan", "backlog", begin + timedelta(seconds=index), float(index)) for index in range(count)]


def write(path, rows, row_group_size=100, schema=SCHEMA, **options):
    columns = list(zip(*rows, strict=True))
    pq.write_table(pa.table(columns, schema=schema), path, row_group_size=row_group_size, **options)
    return path


def read(*files, bounds=FOR_EVER):
    """What all tasks leave: the states, what they tell, and the tasks."""
    groups = groups_of(*files)
    tasks = stretches(groups, Span(*bounds), cores=CORES)
    folder = files[0].parent / f".{uuid4().hex}"
    folder.mkdir()
    told = [left(task, folder, {}, tuple(WINDOWS)) for task in tasks]
    return pa.concat_tables([pq.read_table(each.states) for each in told if each.states]), told, tasks


class Context:
    """As much of a Spark context as is asked where tasks are done at once, one after the other."""

    defaultParallelism = CORES  # noqa: N815 - Spark's name

    def parallelize(self, items, slices):
        assert slices == len(items)
        return SimpleNamespace(map=lambda work: SimpleNamespace(collect=lambda: list(map(work, items))))


SESSION = SimpleNamespace(sparkContext=Context())


def rows_of(*files):
    """The table GAUGES, as tasks and the last step leave it in files."""
    folder = files[0].parent / f".{uuid4().hex}"
    made = sample_files.made_of_files(SESSION, groups_of(*files), folder)
    files = sample_files.gauges_of_files(SESSION, made, folder)
    return sorted_rows(pa.concat_tables([pq.read_table(file).cast(ROWS) for file in files]))


def sorted_rows(table):
    return table.sort_by([(name, "ascending") for name in ("window", "subject", "metric", "window_start")])


@pytest.fixture
def small_tasks(monkeypatch):
    monkeypatch.setattr(stretch, "ROWS_PER_STRETCH", 250)
    monkeypatch.setattr(stretch, "READ_AT_MOST", 5)


@given(groups=GROUPS)
def test_every_minute_is_one_tasks_and_all_that_holds_any_of_it_is_read_there(groups):
    tasks = stretches(groups, Span(*FOR_EVER), cores=CORES)

    if tasks is None:
        return
    owned = [task.own for task in tasks]
    assert (owned[0].begin, owned[-1].end) == FOR_EVER
    assert all(before.end == after.begin for before, after in pairwise(owned))
    for task in tasks:
        overlapping = [g for g in groups if g.times.begin < task.own.end and g.times.end > task.own.begin]
        assert sorted(task.groups) == sorted(overlapping)


def test_files_that_follow_each_other_are_split_great_parts_first_and_such_as_overlap_throughout_are_not():
    days = [RowGroup(f"{n}", 0, ROWS_PER_STRETCH, Span(n * MINUTE, (n + 1) * MINUTE)) for n in range(20)]
    hosts = [RowGroup(f"{n}", 0, ROWS_PER_STRETCH, Span(n * MINUTE, (n + 60) * MINUTE)) for n in range(20)]

    assert [len(task.groups) for task in stretches(days, Span(*FOR_EVER), cores=1)] == [10, 5, 2, 1, 1, 1]
    assert [len(task.groups) for task in stretches(days, Span(*FOR_EVER), cores=8)] == [1] * 20
    assert stretches(hosts, Span(*FOR_EVER), cores=1) is None


def test_stretches_end_where_files_end_when_that_is_near_so_that_nothing_is_read_twice():
    """Files of an hour and a half, each in three row groups: every second one ends with an hour."""
    minutes = 30 * MINUTE
    groups = [
        RowGroup(
            f"{n // 3}",
            n % 3,
            ROWS_PER_STRETCH // 2,
            Span(n * minutes, (n + 1) * minutes + MINUTE * (n % 3 < 2)),
        )
        for n in range(24)
    ]

    tasks = stretches(groups, Span(*FOR_EVER), cores=2)

    assert [len(task.groups) for task in tasks[:2]] == [6, 6]
    assert [task.own.end // (2 * minutes) for task in tasks[:2]] == [3, 6]


def whole(rows):
    """The table GAUGES from all rows at once."""
    samples = [(target, "", metric, micros(at), value) for target, metric, at, value in rows]
    columns = list(zip(*samples, strict=True))
    states = pa.Table.from_batches([states_of(pa.table(columns, schema=SAMPLES), distinct=True)])
    return sorted_rows(windows_of(states).cast(ROWS))


@pytest.mark.usefixtures("small_tasks")
def test_tasks_of_files_give_the_windows_of_all_their_rows(tmp_path):
    rows = in_order_of_time(1000)
    again = rows[440:520]  # over the end of a task
    files = [write(tmp_path / "a.parquet", rows), write(tmp_path / "b.parquet", again)]

    states, told, tasks = read(*files)

    assert len(tasks) > 3
    assert rows_of(*files) == whole([*rows, *again])
    assert sum(each.copies for each in told) == len(again)
    assert sum(states.column("copies").to_pylist()) == len(again)


SECOND = st.integers(0, 3 * 3600)
RANDOM = st.lists(
    st.tuples(
        st.sampled_from(["plan", "bus", "hub"]),
        st.sampled_from(["backlog", "cpu"]),
        SECOND.map(lambda second: datetime(2026, 11, 20, 22, 30, tzinfo=UTC) + timedelta(seconds=second)),
        st.one_of(st.just(0.0), st.floats(-1e9, 1e9)),
    ),
    min_size=1,
    max_size=150,
)


@given(rows=RANDOM, files=st.integers(1, 3), in_order=st.booleans(), sizes=st.sampled_from([10, 40, 10_000]))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_one_machine_and_spark_give_the_same_digits_whoever_reads_what(
    tmp_path, rows, files, in_order, sizes
):
    if in_order:
        rows = sorted(rows, key=lambda row: row[2])
    folder = tmp_path / uuid4().hex
    folder.mkdir()
    step = -(-len(rows) // files)
    paths = [
        write(folder / f"{begin}.parquet", rows[begin : begin + step], row_group_size=sizes // 2)
        for begin in range(0, len(rows), step)
    ]
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ROWS_PER_STRETCH", "ROWS_TOGETHER", "ROWS_AT_MOST", "ROWS_AT_ONCE"):
            patch.setattr(stretch, name, sizes)
        patch.setattr(stretch, "READ_AT_MOST", 100)
        patch.setattr(local, "FLUSHED", 1)
        counts = local.aggregate(local.row_groups_of(folder), Span(*FOR_EVER), found.append, threads=2)
        by_tasks = rows_of(*paths)

    expected = whole(rows)
    assert by_tasks == expected
    assert sorted_rows(pa.concat_tables([table.cast(ROWS) for table in found])) == expected
    assert counts.read == len(rows)
    assert counts.read - counts.duplicates == sum(
        expected.filter(pa.array([name == "1m" for name in expected.column("window").to_pylist()]))
        .column("samples")
        .to_pylist()
    )


@pytest.mark.usefixtures("small_tasks")
def test_samples_without_a_time_or_a_name_are_counted_once_wherever_tasks_are_cut(tmp_path):
    rows = in_order_of_time(1000)
    rows[150] = ("plan", "backlog", None, 1.0)
    rows[290] = ("plan", "backlog", None, 1.0)  # in a row group that two tasks read
    rows[700] = (None, "backlog", rows[700][2], 1.0)
    rows.insert(240, ("plan", "backlog", rows[239][2] + timedelta(microseconds=1), float("nan")))

    _states, told, tasks = read(write(tmp_path / "a.parquet", rows, row_group_size=130))

    assert len(tasks) > 3
    assert sum(len(task.groups) for task in tasks) > len(range(0, 1001, 130))
    assert sum(each.invalid for each in told) == 4
    assert sum(each.samples for each in told) == 997


def test_bounds_leave_out_what_is_not_within(tmp_path):
    file = write(tmp_path / "a.parquet", in_order_of_time(600))
    begin = micros(START + timedelta(seconds=130))

    states, _, _ = read(file, bounds=(begin, begin + 2_000_000))

    assert states.column("samples").to_pylist() == [2]
    assert states.column("first_at").cast(pa.int64()).to_pylist() == [begin]


def test_other_units_and_types_of_the_same_are_read(tmp_path):
    schema = pa.schema(
        [
            ("value", pa.float32()),
            ("at", pa.timestamp("ns", "UTC")),
            ("metric", pa.string()),
            ("target", pa.dictionary(pa.int32(), pa.string())),
        ]
    )
    rows = [(value, at, metric, target) for target, metric, at, value in in_order_of_time(60)]

    states, _, _ = read(write(tmp_path / "a.parquet", rows, schema=schema))

    assert states.column("samples").to_pylist() == [60]
    assert states.column("minute").to_pylist() == [micros(START)]  # the hour's


@pytest.mark.parametrize("kind", ["pattern", "delta"])
def test_a_folder_that_spark_may_see_otherwise_is_looked_at_by_spark(tmp_path, kind):
    place = tmp_path / ("a[1]" if kind == "pattern" else "a")
    (place / "_delta_log").mkdir(parents=True)
    if kind == "pattern":
        (place / "_delta_log").rmdir()
    file = write(place / "a.parquet", in_order_of_time(5))

    assert sample_files.row_groups_here(place) is None
    assert sample_files.row_groups_here(None) is None
    if kind == "delta":
        assert sample_files.row_groups_here(file) == row_groups_of(file)


def test_a_session_without_tasks_reads_on_its_own(tmp_path):
    groups = row_groups_of(write(tmp_path / "a.parquet", in_order_of_time(5)))

    assert sample_files.made_of_files(SimpleNamespace(), groups, tmp_path / "left") is None


def test_a_file_that_is_spoilt_or_of_other_columns_is_named(tmp_path):
    spoilt, cut = tmp_path / "spoilt.parquet", tmp_path / "cut.parquet"
    spoilt.write_bytes(b"PAR1 no footer")
    whole = write(tmp_path / "whole.parquet", in_order_of_time(500)).read_bytes()
    cut.write_bytes(whole[:8] + bytes(200) + whole[208:])
    schema = pa.schema([("at", pa.timestamp("us", "UTC"))])
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table([[START]], schema=schema), other)

    for file in (spoilt, cut, other):
        with pytest.raises(InputError, match=rf"--metrics: the file '{file}' (cannot be read|has columns)"):
            read(file)


def micros(at):
    return round(at.timestamp() * 1_000_000)


def test_a_shuffled_file_is_one_tasks(tmp_path):
    rows = in_order_of_time(300)
    random.Random(1).shuffle(rows)

    states, _, _ = read(write(tmp_path / "a.parquet", rows))

    assert sum(states.column("samples").to_pylist()) == 300
    assert states.column("first").to_pylist() == [0.0]
