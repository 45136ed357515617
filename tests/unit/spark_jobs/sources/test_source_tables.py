"""A target's log in slices of time: each entry is in one, and what is out of the time asked for is not asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.storage.rows import log_row_key
from spark_jobs.sources.records.tables import TASKS, Slice, TableSettings
from tidemark.analysis.errors import InputError

NOW = 1_763_712_000.0
TIMES = st.integers(0, round(2 * NOW)).map(float)  # keys have whole microseconds


def settings_of(targets, **options):
    class Known(TableSettings):
        async def pages(self, query, select=None, *, needed=False):
            assert query == "PartitionKey eq '~targets'"
            assert needed
            assert select == ["RowKey"]
            yield [{"RowKey": name} for name in targets]

    return Known({}, "Log", "ScalingLog", **options)


def finds(slice_, at):
    """What the service would answer of an entry of this time: keys are compared as texts."""
    key = log_row_key(at, "decision")
    clauses = slice_.query().split(" and ")[1:]
    tests = {"lt": key.__lt__, "ge": key.__ge__}
    return all(tests[clause.split()[1]](clause.split("'")[1]) for clause in clauses)


@given(st.one_of(st.none(), TIMES), st.one_of(st.none(), TIMES), st.lists(TIMES, min_size=1, max_size=20))
def test_every_entry_of_the_time_is_in_one_slice_and_no_other_is_in_any(since, until, times):
    tasks = settings_of(["plan"], since=since, until=until).tasks()

    for at in times:
        wanted = (since is None or at >= since) and (until is None or at < until)
        assert sum(finds(task, at) for task in tasks) == wanted


def test_a_log_of_few_targets_is_cut_and_one_of_many_is_not():
    few = settings_of(["a", "b"], until=NOW).tasks()
    many = settings_of([f"plan-{number}" for number in range(1_000)], since=0.0, until=NOW).tasks()

    assert len(few) == TASKS
    assert few[0] == Slice("a", None, few[1].since)
    assert (few[31].target, few[31].until) == ("a", NOW)
    assert [(each.since, each.until) for each in many] == [(0.0, NOW)] * 1_000
    with pytest.raises(InputError, match="since is 'monday'"):
        TableSettings.of(
            {
                "connection": "Log",
                "since": "monday",
                "secretSettings": '{"Log": "UseDevelopmentStorage=true"}',
            }
        )
