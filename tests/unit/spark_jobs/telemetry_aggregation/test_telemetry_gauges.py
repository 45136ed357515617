"""What a task makes of the samples that a shuffle brings it, and among how many they are split."""

import pyarrow as pa
import pytest

from spark_jobs.telemetry_aggregation import gauges
from spark_jobs.telemetry_aggregation.kernel.samples import MINUTE, SAMPLES
from tidemark.analysis.errors import InputError, JobError

BEGIN = 1_763_769_420_000_000


def batches(count, series=1):
    """Ten samples each, a second apart, of the series in turn."""
    for begin in range(0, count, 10):
        rows = [
            (f"plan-{at % series}", "", "backlog", BEGIN + at * 1_000_000, float(at))
            for at in range(begin, min(begin + 10, count))
        ]
        yield pa.record_batch(list(zip(*rows, strict=True)), schema=SAMPLES)


def test_a_task_gives_the_rows_of_all_windows_in_types_that_spark_has():
    found = pa.Table.from_batches(gauges._rows(batches(130, series=2), distinct=True)).to_pylist()

    samples = {
        name: sum(row["samples"] for row in found if row["window"] == name) for name in ("1m", "1h", "1d")
    }
    assert samples == {"1m": 130, "1h": 130, "1d": 130}
    assert len({row["window_start"] for row in found if row["window"] == "1m"}) == -(
        -130 * 1_000_000 // MINUTE
    )
    assert list(gauges._rows(iter(()), distinct=True)) == []


def test_a_task_with_more_samples_than_it_can_hold_says_in_one_line_of_which_series(monkeypatch):
    monkeypatch.setattr(gauges, "MOST_ROWS", 100)

    with pytest.raises(
        InputError, match=r"more than 100 samples, 110 of them of the series plan-0/backlog"
    ) as told:
        list(gauges._rows(batches(1000), distinct=True))
    assert len(str(told.value).splitlines()) == 1


def test_samples_that_are_in_no_row_are_an_error_of_the_task(monkeypatch):
    monkeypatch.setattr(gauges, "rows_of", lambda *_, **__: ())

    with pytest.raises(JobError, match="given 20 samples, of which 0 are in its rows"):
        list(gauges._rows(batches(20), distinct=True))


@pytest.mark.parametrize(
    ("rows", "tasks"),
    [(0, 1), (1, 1), (100_001, 2), (800_000, 8), (12_000_000, 8), (12_000_001, 9), (10**8, 67)],
)
def test_few_samples_are_one_tasks_and_many_are_split(rows, tasks):
    assert gauges.tasks_for(rows) == tasks
