"""Which task reads what of Parquet files, and what it makes of it."""

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.errors import InputError
from spark_jobs.telemetry_aggregation import sample_files
from spark_jobs.telemetry_aggregation.minutes import cells
from spark_jobs.telemetry_aggregation.minutes.cells import MINUTE
from spark_jobs.telemetry_aggregation.sample_files import (
    ALWAYS,
    ROWS_PER_TASK,
    RowGroup,
    Span,
    tasks_of,
)

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
        st.integers(1, ROWS_PER_TASK),
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


def read(*files, bounds=ALWAYS):
    """All tasks' states, and how many tasks there were."""
    groups = sample_files._row_groups_of(Frame(*files))
    tasks = tasks_of(groups, Span(*bounds))
    batch = pa.record_batch([pa.array(range(len(tasks)))], ["id"])
    return pa.Table.from_batches(list(sample_files._read([batch], tasks))), tasks


@pytest.fixture
def small_tasks(monkeypatch):
    monkeypatch.setattr(sample_files, "ROWS_PER_TASK", 250)
    monkeypatch.setattr(sample_files, "READ_AT_MOST", 5)


@given(groups=GROUPS)
def test_every_minute_is_one_tasks_and_all_that_holds_any_of_it_is_read_there(groups):
    tasks = tasks_of(groups, Span(*ALWAYS))

    if tasks is None:
        return
    owned = [task.own for task in tasks]
    assert (owned[0].begin, owned[-1].end) == ALWAYS
    assert all(before.end == after.begin for before, after in pairwise(owned))
    for task in tasks:
        overlapping = [g for g in groups if g.times.begin < task.own.end and g.times.end > task.own.begin]
        assert sorted(task.groups) == sorted(overlapping)


def test_files_that_follow_each_other_are_split_and_such_as_overlap_throughout_are_not():
    days = [RowGroup(f"{n}", 0, ROWS_PER_TASK, Span(n * MINUTE, (n + 1) * MINUTE)) for n in range(9)]
    hosts = [RowGroup(f"{n}", 0, ROWS_PER_TASK, Span(n * MINUTE, (n + 60) * MINUTE)) for n in range(9)]

    assert [len(task.groups) for task in tasks_of(days, Span(*ALWAYS))] == [1] * 9
    assert tasks_of(hosts, Span(*ALWAYS)) is None


@pytest.mark.usefixtures("small_tasks")
def test_tasks_of_files_give_the_states_of_all_their_rows(tmp_path):
    rows = in_order_of_time(1000)
    again = rows[440:520]  # over the end of a task
    files = [write(tmp_path / "a.parquet", rows), write(tmp_path / "b.parquet", again)]

    states, tasks = read(*files)

    assert len(tasks) > 3
    samples = [(target, "", metric, micros(at), value) for target, metric, at, value in [*rows, *again]]
    columns = list(zip(*samples, strict=True))
    whole = cells.states_of(pa.table(columns, schema=cells.SAMPLES), distinct=True)
    by_minute = [("minute", "ascending")]
    assert states.sort_by(by_minute).to_pylist() == pa.table(whole).sort_by(by_minute).to_pylist()
    assert sum(states.column("copies").to_pylist()) == len(again)


@pytest.mark.usefixtures("small_tasks")
def test_samples_without_a_time_or_a_name_are_counted_once_wherever_tasks_are_cut(tmp_path):
    rows = in_order_of_time(1000)
    rows[150] = ("plan", "backlog", None, 1.0)
    rows[290] = ("plan", "backlog", None, 1.0)  # in a row group that two tasks read
    rows[700] = (None, "backlog", rows[700][2], 1.0)
    rows.insert(240, ("plan", "backlog", rows[239][2] + timedelta(microseconds=1), float("nan")))

    states, tasks = read(write(tmp_path / "a.parquet", rows, row_group_size=130))

    assert len(tasks) > 3
    assert sum(len(task.groups) for task in tasks) > len(range(0, 1001, 130))
    assert sum(states.column("invalid").to_pylist()) == 4
    assert sum(states.column("samples").to_pylist()) == 997


def test_bounds_leave_out_what_is_not_within(tmp_path):
    file = write(tmp_path / "a.parquet", in_order_of_time(600))
    begin = micros(START + timedelta(seconds=130))

    states, _ = read(file, bounds=(begin, begin + 2_000_000))

    assert states.column("samples").to_pylist() == [2]
    assert states.column("first_at").to_pylist() == [begin]


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

    states, _ = read(write(tmp_path / "a.parquet", rows, schema=schema))

    assert states.column("samples").to_pylist() == [60]
    assert states.column("minute").to_pylist() == [micros(START)]


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

    states, _ = read(write(tmp_path / "a.parquet", rows))

    assert sum(states.column("samples").to_pylist()) == 300
    assert states.column("first").to_pylist() == [0.0, 60.0, 120.0, 180.0, 240.0]
