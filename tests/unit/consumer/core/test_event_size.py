"""What an event is counted as: whatever of it is kept in memory, not its body alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from consumer.core.effects import EventsReceived, PartitionClaimed, PauseReceiving
from consumer.core.pipeline import Pipeline
from consumer.core.settled.low_water import WorkList
from consumer.core.work import work_of
from consumer.leasing.start_position import Start
from consumer.model import Claim, Event, Record, Routes
from consumer.options import BacklogLimits, BatchLimits
from consumer.receiving.progress import Progress

SMALL = Event("0", 1, "o1", 0.0, b"{  }")


def test_an_event_without_anything_else_is_its_body():
    assert SMALL.size == 4


@pytest.mark.parametrize(
    "more",
    [
        {"properties": {"x": "a" * 500_000}},
        {"properties": {"a" * 500_000: 1}},
        {"properties": {"x": b"\xff" * 500_000}},
        {"properties": {f"{number}": number for number in range(5_000)}},
        {"properties": {"nested": {"list": ["a" * 100_000] * 5}}},
        {"partition_key": "k" * 500_000},
    ],
    ids=["a long value", "a long name", "bytes", "many small ones", "nested", "the partition key"],
)
def test_what_is_kept_besides_the_body_counts(more):
    event = structs.replace(SMALL, **more)
    record = Record(event, "k", b"0123")

    assert event.size >= 500_000
    assert record.size == event.size + 4
    assert work_of(record, WorkList("0", None)).held == record.size


values = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()


@given(
    st.dictionaries(st.text(), values | st.lists(values) | st.dictionaries(st.text(), values)), st.binary()
)
def test_no_text_or_bytes_go_uncounted(properties, body):
    def sent(value):
        if isinstance(value, dict):
            return sum(sent(name) + sent(each) for name, each in value.items())
        if isinstance(value, list):
            return sum(map(sent, value))
        return (
            len(value.encode()) if isinstance(value, str) else len(value) if isinstance(value, bytes) else 1
        )

    assert structs.replace(SMALL, properties=properties, body=body).size >= len(body) + sent(properties)


def test_receiving_pauses_at_the_bytes_of_properties():
    limits = BacklogLimits(high_bytes=400_000)
    pipeline = Pipeline(limits, BatchLimits(), Routes(), transactional=False, rate=None, now=0.0)
    pipeline.handle(PartitionClaimed(Claim("0", "a", 1)), now=0.0)
    event = structs.replace(SMALL, properties={"x": "a" * 500_000})

    effects = pipeline.handle(EventsReceived("0", 1, [Record(event, "k", b"{}")]), now=0.0)

    assert any(isinstance(effect, PauseReceiving) and "bytes wait" in effect.reason for effect in effects)
    assert pipeline.statistics(0.0).backlog_bytes >= 500_000


def test_events_with_large_properties_are_asked_for_in_smaller_numbers():
    progress = Progress("0", Start(None, ""), lambda _: None)
    progress.measure([structs.replace(SMALL, properties={"x": "a" * 500_000})])
    assert progress.event_bytes >= 500_000

    large = progress.event_bytes
    progress.measure([SMALL])
    assert progress.event_bytes == pytest.approx(0.9 * large + 0.1 * SMALL.size)
