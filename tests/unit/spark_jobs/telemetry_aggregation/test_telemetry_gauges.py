"""How many rows of a long history a task computes with at once."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.telemetry_aggregation.gauges import whole_windows

WIDTH = 10


def batches(times, sizes):
    """The times in order, those that are not known first, cut into batches."""
    left = sorted(times, key=lambda at: -(1 << 62) if at is None else at)
    while left:
        size = next(sizes, len(left))
        yield pa.record_batch([pa.array(left[:size], pa.int64())], ["at"])
        left = left[size:]


def window(at):
    return None if at is None else at // WIDTH


@given(
    st.lists(st.one_of(st.none(), st.integers(-50, 500)), max_size=80),
    st.lists(st.integers(1, 9), max_size=80),
    st.integers(1, 20),
)
def test_tables_hold_all_rows_in_order_and_no_window_is_in_two(times, sizes, rows):
    given_batches = list(batches(times, iter(sizes)))
    tables = list(whole_windows(iter(given_batches), "at", WIDTH, rows))

    found = [table.column("at").to_pylist() for table in tables]
    rows = [at for batch in given_batches for at in batch.column("at").to_pylist()]
    assert rows == [at for each in found for at in each]
    windows = [{window(at) for at in each} for each in found]
    assert sum(map(len, windows)) == len({window(at) for at in times})


def test_a_long_history_is_never_held_whole():
    """A table comes as soon as its rows are there: what a task holds is bounded, whatever it is given."""
    taken = 0

    def source():
        nonlocal taken
        for number in range(10_000):
            taken += 1
            yield pa.record_batch([pa.array([number * WIDTH + each for each in range(WIDTH)])], ["at"])

    for number, table in enumerate(whole_windows(source(), "at", WIDTH, rows=100)):
        assert len(table) == 100
        assert taken <= 10 * (number + 1) + 1
        if number == 20:
            break
