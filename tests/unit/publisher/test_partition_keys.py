"""Partition keys go where the service puts them, by our publisher and by the local Event Hubs, written independently."""

import pytest
from azure.eventhub._buffered_producer._partition_resolver import PartitionResolver, generate_hash_code
from hypothesis import given
from hypothesis import strategies as st

from devstack.event_hubs.storage.partition_keys import partition_of
from tidemark.publisher.event_hubs.core.partition_keys import hash_of_key, partition_of_key

COUNTS = [1, 2, 3, 4, 5, 10, 32]
TABLE = [  # by the rule of the service, as the SDK for JavaScript has it: the hash, and the partition of each count
    ("LGA", -13595, [0, 1, 2, 3, 0, 5, 27]),
    ("JFK", 4822, [0, 0, 1, 2, 2, 2, 22]),
    ("EWR", -27600, [0, 0, 0, 0, 0, 0, 16]),
    ("N14228", -20688, [0, 0, 0, 0, 3, 8, 16]),
    ("a", -16220, [0, 0, 2, 0, 0, 0, 28]),
    ("", 0, [0, 0, 0, 0, 0, 0, 0]),
    ("partition-key", -15301, [0, 1, 1, 1, 1, 1, 5]),
    ("7 bytes", 28068, [0, 0, 0, 0, 3, 8, 4]),
    ("8 bytes!", 1134, [0, 0, 0, 2, 4, 4, 14]),
    ("elevenbytes", 14108, [0, 0, 2, 0, 3, 8, 28]),
    ("twelve bytes", 6222, [0, 0, 0, 2, 2, 2, 14]),
    ("thirteen bytes", -8030, [0, 0, 2, 2, 0, 0, 30]),
    ("Größe", -15730, [0, 0, 1, 2, 0, 0, 18]),
    ("東京", 18726, [0, 0, 0, 2, 1, 6, 6]),
    ("😀", -17126, [0, 0, 2, 2, 1, 6, 6]),
    ("x" * 100, 25862, [0, 0, 2, 2, 2, 2, 6]),
    ("key 2", -22575, [0, 1, 0, 3, 0, 5, 15]),
    ("key 77207", -32768, [0, 0, 2, 0, 3, 8, 0]),  # the lowest there is
]


def ids(count):
    return [f"id {number}" for number in range(count)]


@pytest.mark.parametrize(("key", "hashed", "partitions"), TABLE)
def test_a_key_goes_to_the_partition_that_the_service_chooses(key, hashed, partitions):
    assert hash_of_key(key) == hashed
    assert [partition_of_key(key, ids(count)) for count in COUNTS] == [f"id {found}" for found in partitions]
    assert [partition_of(key, count) for count in COUNTS] == partitions


@given(st.text(max_size=60), st.integers(1, 100))
def test_the_publisher_and_the_local_event_hubs_agree(key, count):
    assert partition_of_key(key, ids(count)) == f"id {partition_of(key, count)}"


@given(st.text(st.characters(max_codepoint=127), min_size=1, max_size=60))
def test_the_hash_is_that_of_the_sdk_for_python_whose_remainder_is_another(key):
    """It hashes characters where others hash bytes; for ASCII that is the same."""
    assert hash_of_key(key) == generate_hash_code(key)


def test_what_the_sdk_for_python_does_with_a_negative_hash_is_still_what_the_documents_say():
    theirs = PartitionResolver(ids(4))

    assert theirs.get_partition_id_by_partition_key("LGA") == "id 1"
    assert partition_of_key("LGA", ids(4)) == "id 3"
