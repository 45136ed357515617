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
from spark_jobs.telemetry_aggregation import local, sample_files, stretch
from spark_jobs.telemetry_aggregation.minutes.samples import MINUTE, SAMPLES
from spark_jobs.telemetry_aggregation.minutes.tables import ROWS, states_of, windows_of
from spark_jobs.telemetry_aggregation.stretch import FOR_EVER, ROWS_PER_STRETCH, RowGroup, Span, stretches

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


class Frame:
    """As much of a Spark frame as is asked."""

    def __init__(self, *files):
        self._files = files

    def inputFiles(self):  # noqa: N802 - Spark's name
        return [file if "://" in file else f"file://{file}" for file in map(str, self._files)]


def in_order_of_time(count, begin=START):
    return [("plan", "backlog", begin + timedelta(seconds=index), float(index)) for index in range(count)]


def write(path, rows, row_group_size=100, schema=SCHEMA, **options):
    columns = list(zip(*rows, strict=True))
    pq.write_table(pa.table(columns, schema=schema), path, row_group_size=row_group_size, **options)
    return path


def read(*files, bounds=FOR_EVER):
    """What all tasks leave: the states, what they tell, and the tasks."""
    groups = sample_files._row_groups_of(Frame(*files))
    tasks = stretches(groups, Span(*bounds))
    folder = files[0].parent / f".{uuid4().hex}"
    folder.mkdir()
    left = pa.Table.from_batches(sample_files._made([numbers_of(tasks)], tasks, folder))
    states = [pq.read_table(file) for file in left.column("states").to_pylist() if file]
    return pa.concat_tables(states), left, tasks


def numbers_of(tasks):
    return pa.record_batch([pa.array(range(len(tasks)))], ["id"])


class Session:
    """As much of a Spark session as is asked where tasks are done at once, one after the other."""

    def range(self, _begin, end, _step, _tasks):
        self._numbers = pa.record_batch([pa.array(range(end))], ["id"])
        return self

    def mapInArrow(self, work, _schema):  # noqa: N802 - Spark's name
        self.left = pa.Table.from_batches(work([self._numbers])).to_pylist()
        return self


def rows_of(*files):
    """The table GAUGES, as tasks and the last step leave it in files."""
    frame, folder = Frame(*files), files[0].parent / f".{uuid4().hex}"
    frame.sparkSession = Session()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_files, "collected", lambda frame: [SimpleNamespace(**row) for row in frame.left])
        made = sample_files.made_of_files(frame, folder)
    left = sample_files.gauges_of_files(frame.sparkSession, made, folder)
    return sorted_rows(pa.concat_tables([pq.read_table(file).cast(ROWS) for file in left]))


def sorted_rows(table):
    return table.sort_by([(name, "ascending") for name in ("window", "subject", "metric", "window_start")])


@pytest.fixture
def small_tasks(monkeypatch):
    monkeypatch.setattr(stretch, "ROWS_PER_STRETCH", 250)
    monkeypatch.setattr(stretch, "READ_AT_MOST", 5)


@given(groups=GROUPS)
def test_every_minute_is_one_tasks_and_all_that_holds_any_of_it_is_read_there(groups):
    tasks = stretches(groups, Span(*FOR_EVER))

    if tasks is None:
        return
    owned = [task.own for task in tasks]
    assert (owned[0].begin, owned[-1].end) == FOR_EVER
    assert all(before.end == after.begin for before, after in pairwise(owned))
    for task in tasks:
        overlapping = [g for g in groups if g.times.begin < task.own.end and g.times.end > task.own.begin]
        assert sorted(task.groups) == sorted(overlapping)


def test_files_that_follow_each_other_are_split_and_such_as_overlap_throughout_are_not():
    days = [RowGroup(f"{n}", 0, ROWS_PER_STRETCH, Span(n * MINUTE, (n + 1) * MINUTE)) for n in range(9)]
    hosts = [RowGroup(f"{n}", 0, ROWS_PER_STRETCH, Span(n * MINUTE, (n + 60) * MINUTE)) for n in range(9)]

    assert [len(task.groups) for task in stretches(days, Span(*FOR_EVER))] == [1] * 9
    assert stretches(hosts, Span(*FOR_EVER)) is None


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

    states, left, tasks = read(*files)

    assert len(tasks) > 3
    assert rows_of(*files) == whole([*rows, *again])
    assert sum(left.column("copies").to_pylist()) == len(again)
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

    _states, left, tasks = read(write(tmp_path / "a.parquet", rows, row_group_size=130))

    assert len(tasks) > 3
    assert sum(len(task.groups) for task in tasks) > len(range(0, 1001, 130))
    assert sum(left.column("invalid").to_pylist()) == 4
    assert sum(left.column("samples").to_pylist()) == 997


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


def test_what_spark_alone_can_read_is_left_to_spark(tmp_path):
    known = write(tmp_path / "a.parquet", in_order_of_time(5))
    untold = write(tmp_path / "b.parquet", in_order_of_time(5), write_statistics=False)

    assert sample_files._row_groups_of(Frame(known)) is not None
    for file in (
        untold,
        "abfss://c@account.dfs.core.windows.net/a.parquet",
        "/metrics/target=plan/a.parquet",
    ):
        assert sample_files._row_groups_of(Frame(known, file)) is None


def test_a_file_that_is_spoilt_or_of_other_columns_is_named(tmp_path):
    spoilt, cut = tmp_path / "spoilt.parquet", tmp_path / "cut.parquet"
    spoilt.write_bytes(b"PAR1 no footer")
    whole = write(tmp_path / "whole.parquet", in_order_of_time(500)).read_bytes()
    cut.write_bytes(whole[:8] + bytes(200) + whole[208:])
    schema = pa.schema([("at", pa.timestamp("us", "UTC"))])
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table([[START]], schema=schema), other)

    for file in (spoilt, cut, other):
        with pytest.raises(InputError, match=rf"--metrics: the file '{file}' cannot be read"):
            read(file)


def micros(at):
    return round(at.timestamp() * 1_000_000)


def test_a_shuffled_file_is_one_tasks(tmp_path):
    rows = in_order_of_time(300)
    random.Random(1).shuffle(rows)

    states, _, _ = read(write(tmp_path / "a.parquet", rows))

    assert sum(states.column("samples").to_pylist()) == 300
    assert states.column("first").to_pylist() == [0.0]
