"""Where `--merge-into` leads."""

import pytest

from spark_jobs.telemetry_aggregation.merging import places_of
from tidemark.analysis.errors import InputError


def test_tables_go_to_a_path_or_to_a_name_of_a_catalog() -> None:
    given = [
        "gauges=main.ops-eu.gauges",
        "flows=abfss://lake@here.dfs.core.windows.net/a=b",
        "scaling=/data/my table",
    ]

    assert places_of(given) == {
        "gauges": "main.ops-eu.gauges",
        "flows": "abfss://lake@here.dfs.core.windows.net/a=b",
        "scaling": "/data/my table",
    }
    assert places_of([]) == {}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["gauges"], "--merge-into is 'gauges'; accepted: TABLE=PLACE"),
        (["gauges="], "accepted: TABLE=PLACE"),
        (["quality=/data/quality"], "a table of gauges, flows, scaling"),
        (["gauges=main.`ops`.gauges"], "without backticks"),
        (["gauges=/data/{rows}"], "accepted: TABLE=PLACE"),
        (["gauges=/data/day*"], r"--merge-into gauges is '/data/day\*', in which \* would be a pattern"),
        (["gauges=/data/a[1]"], "would be a pattern"),
        (["gauges=a", "gauges=b"], "twice for gauges: 'a' and 'b'"),
        (["gauges=/data/a", "flows=/data/a"], "'/data/a' for two tables"),
    ],
)
def test_what_would_be_taken_for_something_else_is_refused(given, told) -> None:
    with pytest.raises(InputError, match=told):
        places_of(given)
