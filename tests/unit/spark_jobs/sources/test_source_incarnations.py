"""Events of a hub that was created anew, told from those of the hub before by the time they were enqueued."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from consumer.model import Checkpoint, Origin
from spark_jobs.sources.incarnations import newer_hubs, place_in, placed, refuse_former, refuse_other_hub
from tidemark.analysis.errors import InputError

CREATED = datetime(2026, 11, 26, 12, tzinfo=UTC)
MILLISECONDS = int(CREATED.timestamp() * 1000)


def test_partitions_are_those_of_keys_from_the_creation_of_the_newer_hub_on():
    newer = newer_hubs(
        {
            "0": Checkpoint("0", 5, "", origin=Origin(MILLISECONDS, 4, str(MILLISECONDS))),
            "1": Checkpoint("1", 5, "", origin=Origin(MILLISECONDS, 4)),
            "2": "unreadable",
        }
    )
    times = [CREATED - timedelta(seconds=1), CREATED, CREATED + timedelta(days=1), CREATED]
    batch = pa.record_batch(
        {
            "partition": ["0", "0", "0", "1"],
            "sequence_number": [7, 7, 8, 7],
            "enqueued_at": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )

    place = f"0@{MILLISECONDS}"
    assert newer == {"0": MILLISECONDS}
    assert placed(batch, newer).column("partition").to_pylist() == ["0", place, place, "1"]
    assert placed(batch, newer).schema == batch.schema
    assert placed(batch, {}) is batch
    assert (place_in("0", newer), place_in("1", newer)) == (place, "1")


def test_an_event_of_the_second_of_the_creation_is_of_the_newer_hub():
    """Capture files have whole seconds."""
    batch = pa.record_batch(
        {
            "partition": ["0"],
            "sequence_number": [0],
            "enqueued_at": pa.array([CREATED], pa.timestamp("us", "UTC")),
        }
    )
    newer = {"0": MILLISECONDS + 400}

    assert placed(batch, newer).column("partition").to_pylist() == [place_in("0", newer)]


@pytest.mark.parametrize(
    ("origin", "before", "is_refused"),
    [
        (Origin(MILLISECONDS, 4), timedelta(minutes=1), True),
        (Origin(MILLISECONDS, 4), timedelta(seconds=2), False),  # clocks
        (Origin(MILLISECONDS, 4), timedelta(0), False),
        (Origin(MILLISECONDS, 4, str(MILLISECONDS)), timedelta(days=1), False),  # told apart by their keys
        (Origin(), timedelta(days=1), False),  # of an older version
    ],
)
def test_events_from_before_a_hub_with_plain_keys_are_refused(origin, before, is_refused):
    checkpoints = {"0": Checkpoint("0", 5, "", origin=origin), "1": "unreadable", "2": Checkpoint("2", 5, "")}
    earliest = {"0": CREATED - before, "2": None}
    if not is_refused:
        refuse_former(earliest, checkpoints)
        return
    with pytest.raises(InputError, match="partition 0: events from 2026-11-26T11:59:00"):
        refuse_former(earliest, checkpoints)


@pytest.mark.parametrize(
    ("hub", "is_refused"), [(MILLISECONDS, False), (0, False), (MILLISECONDS - 1000, True)]
)
def test_a_hub_that_is_not_that_of_the_checkpoints_is_refused(hub, is_refused):
    checkpoints = {"0": Checkpoint("0", 5, "", origin=Origin(hub)), "1": "unreadable"}
    if not is_refused:
        refuse_other_hub(CREATED.timestamp(), checkpoints)
        return
    with pytest.raises(InputError, match=r"partition 0 .* at 2026-11-26T11:59:59"):
        refuse_other_hub(CREATED.timestamp(), checkpoints)
