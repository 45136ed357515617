"""A checkpoint blob there and back, and everything else that may be found in its place."""

import pytest

from consumer.model import Checkpoint, Stream
from consumer.stores.blob.layout import Fence, from_blob, to_content, to_metadata
from scaling.collectors.event_hub.checkpoint_layouts import Consumer, listings, position_in_metadata, saved_at

STREAM = Stream("Orders.servicebus.windows.net", "Orders", "$Default")
FENCE = Fence(4, "host-1/2")
CHECKPOINT = Checkpoint("0", 41, "geo:é 41", ((43, 50), (52, 52)), 1_795_000_000.25, "host-1/2", 4)
PLAIN = {"offset": "2624", "sequencenumber": "41"}


def read(metadata, content=b"", partition="0"):
    return from_blob(STREAM, partition, metadata, content, 77.0)


def test_a_checkpoint_comes_back_whole():
    metadata = to_metadata(STREAM, "0", FENCE, CHECKPOINT)

    assert all(value.isascii() and value.isprintable() for value in metadata.values())
    stored = read(metadata, to_content(FENCE))
    assert (stored.fence, stored.position, stored.foreign) == (FENCE, CHECKPOINT, False)


def test_the_autoscaler_finds_and_reads_what_is_written():
    consumer = Consumer(STREAM.namespace, STREAM.hub, STREAM.consumer_group)

    place, partition = listings(consumer)[0][0].find(STREAM.blob("checkpoint", "0"), {"0"})
    assert (place.layout, partition) == ("blob_metadata", "0")
    metadata = to_metadata(STREAM, "0", FENCE, CHECKPOINT)
    assert (position_in_metadata(metadata), saved_at(metadata)) == (41, CHECKPOINT.saved_at)
    assert position_in_metadata(to_metadata(STREAM, "0", FENCE, None)) is None


def test_a_claim_without_a_position_is_no_checkpoint_but_a_saved_beginning_is_one():
    beginning = Checkpoint("0", -1, "", ((3, 4),), 5.0, "host-1/2", 4)

    assert read(to_metadata(STREAM, "0", FENCE, None)).position is None
    assert read(to_metadata(STREAM, "0", FENCE, beginning)).position == beginning


@pytest.mark.parametrize(
    "metadata",
    [PLAIN, {"Offset": "2624", "SequenceNumber": "41", "ClientIdentifier": "a"}],
    ids=["SDK", ".NET"],
)
def test_a_plain_checkpoint_of_another_writer_is_a_position_without_a_claim(metadata):
    stored = read(metadata)

    assert stored.position == Checkpoint("0", 41, "2624", (), 77.0)
    assert (stored.fence, stored.foreign) == (Fence(), True)


def test_the_claim_survives_in_the_content_when_another_writer_replaces_the_metadata():
    stored = read(PLAIN, to_content(FENCE))

    assert (stored.fence, stored.foreign, stored.position.epoch) == (FENCE, True, 4)


@pytest.mark.parametrize(
    ("change", "story"),
    [
        ({"sequencenumber": "seven"}, "sequencenumber in its metadata is 'seven'"),
        ({"sequencenumber": "-2"}, "sequencenumber in its metadata is '-2'"),
        ({"sequencenumber": ""}, "sequencenumber in its metadata is ''"),
        ({"sequencenumber": "42"}, "does not belong to this mark"),
        ({"beyond": "r!"}, "completion map is not base64"),
        ({"savedat": "noon"}, "savedat in its metadata is 'noon'"),
        ({"format": "2"}, "a newer version of Tidemark wrote it"),
        ({"stream": "other/hub/group/checkpoint/0"}, "it is the checkpoint 'other/hub/group/checkpoint/0'"),
    ],
)
def test_what_cannot_be_trusted_says_why_and_keeps_its_claim(change, story):
    stored = read({**to_metadata(STREAM, "0", FENCE, CHECKPOINT), **change})

    assert story in stored.position
    assert stored.fence == FENCE


@pytest.mark.parametrize("metadata", [None, {}, {"offset": "1"}, {"sequencenumber": "1"}])
def test_a_blob_without_a_position_names_what_is_missing(metadata):
    assert "its metadata holds no" in read(metadata).position


def test_a_blob_copied_from_another_partition_is_noticed():
    assert "it was copied" in read(to_metadata(STREAM, "1", FENCE, CHECKPOINT)).position


def test_the_metadata_stay_below_the_services_limit_whatever_is_settled_beyond():
    beyond = tuple((n, n + n % 7) for n in range(100, 400_000, 11))
    metadata = to_metadata(STREAM, "0", Fence(10**9, "h" * 250), Checkpoint("0", 41, "o" * 250, beyond))

    assert sum(len(name) + len(value) for name, value in metadata.items()) < 8192
    kept = read(metadata).position.beyond
    assert kept == beyond[: len(kept)]
