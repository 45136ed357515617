"""Whether all events of a partition are of one hub, by their ends and by the keys of documents."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from spark_jobs.reconciliation import ends
from spark_jobs.reconciliation.ends import begin_of, refuse_between
from tidemark.analysis.errors import InputError

CREATED = datetime(2026, 11, 26, 12, tzinfo=UTC)
PLACE = f"0@{int(CREATED.timestamp() * 1000)}"
UNKNOWN = dict.fromkeys(("twice", "twice_at", "back", "back_at", "ahead_at"))


@pytest.fixture
def keys(monkeypatch):
    """The partitions in the keys of documents and letters."""
    places = []
    monkeypatch.setattr(ends, "collected", lambda _: [{"partition": place} for place in places])
    return places


def frame():
    return SimpleNamespace(select=lambda *_: SimpleNamespace(distinct=lambda: None))


def row(partition, latest):
    return {"partition": partition, "latest": latest}


@pytest.mark.parametrize(
    ("place", "rows", "is_refused"),
    [
        (PLACE, [row("0", CREATED)], True),
        (PLACE, [row("0", CREATED - timedelta(milliseconds=1))], False),  # before that hub was there
        (PLACE, [row("0", None)], False),  # nobody knows when they came
        (PLACE, [row("1", CREATED)], False),
        (PLACE, [row("0", CREATED), row(PLACE, CREATED)], False),  # the present one, whose events are known
        (PLACE, [row("0@1795700000000", CREATED)], False),  # a hub before the one of these events
        ("0@later", [row("0", CREATED)], False),  # an id of somebody else
        ("0", [row("0", CREATED)], False),
    ],
)
def test_keys_of_a_hub_between_are_refused_where_its_events_may_be_looked_at(keys, place, rows, is_refused):
    keys.append(place)
    if not is_refused:
        refuse_between(rows, frame())
        return
    with pytest.raises(InputError, match=r"created at 2026-11-26T12:00:00\+00:00"):
        refuse_between(rows, frame())


def test_of_events_without_times_no_beginning_is_known():
    assert begin_of([{"partition": "0", "earliest": None, **UNKNOWN}]) is None
