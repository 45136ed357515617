"""Events of a hub that was created anew, told from those of the hub before by the time they were enqueued."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa

from consumer.model import Checkpoint, Origin
from spark_jobs.sources.incarnations import newer_hubs, place_in, placed

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
