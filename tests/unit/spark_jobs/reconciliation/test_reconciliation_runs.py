"""What checkpoints call settled, as runs of sequence numbers; and the columns of the heat map."""

from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from consumer.model import Checkpoint
from spark_jobs.reconciliation.extract import settled_runs
from spark_jobs.reconciliation.page import _grid
from spark_jobs.reconciliation.transforms import unsettled_ranges

T0 = datetime(2026, 11, 20, 10)  # as Spark gives times of a UTC session


def test_a_partitions_first_run_ends_at_its_mark_even_if_nothing_is_settled():
    checkpoints = {
        "1": Checkpoint("1", 20, "", ((23, 25), (30, 30))),
        "0": Checkpoint("0", -1, ""),
    }

    assert settled_runs(checkpoints) == [("0", -1, -1), ("1", -1, 20), ("1", 23, 25), ("1", 30, 30)]
    assert settled_runs({}) == []


@given(
    st.lists(
        st.tuples(st.sampled_from(["0", "2", "10", "x"]), st.integers(0, 400), st.integers(1, 50)), min_size=1
    )
)
def test_the_heat_map_holds_every_event_however_many_hours_share_a_column(found):
    rows = [
        {"partition": each, "hour": T0 + timedelta(hours=hour), "events": count}
        for each, hour, count in found
    ]
    grid = _grid(rows, lambda row: row["events"])

    assert grid.cells.sum() == sum(count for *_, count in found)
    assert grid.partitions == [
        each for each in ("0", "2", "10", "x") if each in {row["partition"] for row in rows}
    ]
    assert len(grid.begins) == grid.cells.shape[1] <= 97
    last = max(row["hour"] for row in rows)
    assert grid.begins[-1] <= last < grid.begins[-1] + timedelta(hours=grid.hours)


def test_what_is_not_settled_lies_between_the_runs_and_behind_the_last_one():
    checkpoints = {"0": Checkpoint("0", 100, "", ((102, 499),)), "1": Checkpoint("1", -1, "")}

    assert unsettled_ranges(settled_runs(checkpoints)) == {"0": [(101, 101), (500, None)], "1": [(0, None)]}
    assert unsettled_ranges([]) == {}
