"""Where each writer of checkpoints puts them, and what it writes."""

import json

import pytest
from msgspec import structs

from consumer.model import Checkpoint, Origin, Stream
from consumer.stores.blob.layout import Fence, to_metadata
from scaling.collectors.event_hub.checkpoint_layouts import (
    CheckpointError,
    Consumer,
    hub_created_at,
    listings,
    position_in_body,
    position_in_metadata,
    saved_at,
)

ORDERS = Consumer("Acme.servicebus.windows.net", "Orders", "$Default")

# Bodies as their writers leave them, with members that are of no interest here.
FUNCTIONS = {"Offset": "12896067888", "SequenceNumber": 911736, "PartitionId": "0", "Owner": "", "Epoch": 23}
OLD_PYTHON = {"partition_id": "0", "epoch": 3, "owner": "me", "offset": "640", "sequence_number": 17}
GO = {"partitionId": "0", "checkpoint": {"offset": "640", "sequenceNumber": 17, "enqueueTime": "2021"}}


def found(blob, layout=None, consumer=ORDERS, partitions=("0", "12")):
    """The round in which a blob is found, with its layout and partition; None for no checkpoint."""
    for number, listed in enumerate(listings(consumer, layout)):
        for listing in listed:
            match = listing.find(blob, partitions) if blob.startswith(listing.prefix) else None
            if match is not None:
                return number, match[0].layout, match[1]
    return None


@pytest.mark.parametrize(
    ("blob", "expected"),
    [
        ("acme.servicebus.windows.net/orders/$default/checkpoint/12", (0, "blob_metadata", "12")),
        ("acme.servicebus.windows.net/orders/$default/12", (0, "functions", "12")),
        ("Acme.servicebus.windows.net/Orders/$Default/checkpoint/0", (1, "blob_metadata", "0")),
        ("Acme.servicebus.windows.net/Orders/$Default/0", (1, "functions", "0")),
        ("$Default/0", (1, "legacy", "0")),
        ("$default/0", (1, "legacy", "0")),
        ("12", (1, "go", "12")),
        ("dapr-Orders-$Default-12", (1, "dapr", "12")),
        # neighbours that are no checkpoint of this group
        ("acme.servicebus.windows.net/orders/$default/ownership/0", None),
        ("acme.servicebus.windows.net/orders/$default/checkpoint/7", None),
        ("acme.servicebus.windows.net/orders/$default/checkpoint", None),
        ("acme.servicebus.windows.net/orders/other/checkpoint/0", None),
        ("dapr-Orders-other-0", None),
    ],
)
def test_each_layout_is_found_by_the_name_of_its_blob(blob, expected):
    assert found(blob) == expected
    if expected is not None:
        assert found(blob, expected[1]) == (0, *expected[1:])


def test_what_every_current_writer_writes_takes_one_list_request():
    [first, _] = listings(ORDERS)

    assert [listing.prefix for listing in first] == ["acme.servicebus.windows.net/orders/$default/"]


def test_a_layout_that_is_forced_is_the_only_one_looked_for():
    for layout in ("blob_metadata", "functions", "legacy", "go", "dapr"):
        [only] = listings(ORDERS, layout)
        assert {place.layout for listing in only for place in listing.places} == {layout}


def test_a_name_without_capitals_is_listed_once():
    small = Consumer("acme.servicebus.windows.net", "orders", "billing")

    assert all(len(listed) == 1 for listed in listings(small, "blob_metadata"))
    assert all(len(listed) == 1 for listed in listings(small, "legacy"))


def test_what_our_own_consumer_writes_is_found_and_read():
    stream = Stream(ORDERS.namespace, ORDERS.hub, ORDERS.group)
    saved = Checkpoint("0", 41, "640", beyond=((43, 44),), saved_at=1_700_000_000.25)
    saved = structs.replace(saved, origin=Origin(1_795_000_000_123, 4, "1795000000123"))
    metadata = to_metadata(stream, "0", Fence(3, "me"), saved)

    assert found(stream.blob("checkpoint", "0")) == (0, "blob_metadata", "0")
    assert found(stream.blob("ownership", "0")) is None
    assert position_in_metadata(metadata) == 41
    assert saved_at(metadata) == 1_700_000_000.25
    assert hub_created_at(metadata) == 1_795_000_000_123
    assert position_in_metadata(to_metadata(stream, "0", Fence(3, "me"), None)) is None


@pytest.mark.parametrize(
    "metadata", [None, {}, {"savedat": "yesterday"}, {"savedat": "nan"}, {"savedat": "0.0"}]
)
def test_blobs_of_others_do_not_tell_when_they_were_saved(metadata):
    assert saved_at(metadata) is None
    assert hub_created_at(metadata) is None
    assert hub_created_at({"origin": "%7B"}) is None


@pytest.mark.parametrize("name", ["sequencenumber", "Sequencenumber", "SequenceNumber"])
def test_metadata_are_read_whatever_the_case_of_their_names(name):
    assert position_in_metadata({name: "42", "offset": "640"}) == 42


@pytest.mark.parametrize(
    "metadata", [None, {}, {"offset": "640"}, {"sequencenumber": ""}, {"sequencenumber": "x"}]
)
def test_metadata_without_a_number_are_an_error_not_a_zero(metadata):
    with pytest.raises(CheckpointError, match="sequencenumber"):
        position_in_metadata(metadata)


def test_our_own_mark_of_nothing_settled_is_no_checkpoint():
    assert position_in_metadata({"sequencenumber": "-1", "offset": "-1"}) is None


@pytest.mark.parametrize(
    ("layout", "document", "expected"),
    [
        ("functions", FUNCTIONS, 911736),
        ("legacy", FUNCTIONS, 911736),
        ("legacy", OLD_PYTHON, 17),
        ("go", GO, 17),
        ("dapr", GO, 17),
        ("functions", {**FUNCTIONS, "SequenceNumber": 0, "Offset": "0"}, 0),
    ],
)
def test_bodies_are_read_as_their_writers_write_them(layout, document, expected):
    assert position_in_body(layout, json.dumps(document).encode()) == expected


@pytest.mark.parametrize(
    ("layout", "document"),
    [
        ("functions", {**FUNCTIONS, "SequenceNumber": 0, "Offset": ""}),
        ("legacy", {**FUNCTIONS, "SequenceNumber": 0, "Offset": None}),
        ("legacy", {**OLD_PYTHON, "sequence_number": 0, "offset": None}),
        ("go", {"checkpoint": {"offset": "-1", "sequenceNumber": 0}}),
        ("dapr", {"checkpoint": {"offset": "@latest", "sequenceNumber": 0}}),
    ],
)
def test_a_lease_taken_before_anything_was_settled_is_no_checkpoint(layout, document):
    """Its number is 0, which read as a position would pass over the first event."""
    assert position_in_body(layout, json.dumps(document).encode()) is None


@pytest.mark.parametrize(
    ("layout", "body", "words"),
    [
        ("functions", b"", "it is not JSON"),
        ("functions", b"\xff", "it is not JSON"),
        ("functions", b"[]", "its JSON holds no checkpoint"),
        ("go", b"[1]", "its JSON holds no checkpoint"),
        ("go", b'{"checkpoint": 3}', "its JSON holds no checkpoint"),
        ("functions", b"{}", "its JSON holds no SequenceNumber"),
        (
            "legacy",
            b'{"Offset": "1", "SequenceNumber": "many"}',
            "SequenceNumber is 'many', not a whole number",
        ),
        ("legacy", b'{"Offset": "1", "SequenceNumber": 1.5}', r"SequenceNumber is 1\.5"),
        ("legacy", b'{"Offset": "1", "SequenceNumber": true}', "SequenceNumber is True"),
    ],
)
def test_a_body_without_a_position_is_an_error_not_a_zero(layout, body, words):
    with pytest.raises(CheckpointError, match=words):
        position_in_body(layout, body)
