"""What an event becomes: documents, writes, records."""

import pytest

from consumer.mapping.preparing import Preparation
from consumer.model import Dropped, Event, Record, Rejection, Write

EVENT = Event("0", 7, "7", 0.0, b'{"id":"a"}')
NO = Rejection("no", "not this one")


class Decoder:
    """Gives what it is made with."""

    def __init__(self, documents):
        self.documents = documents

    def decode(self, event):
        return self.documents


def prepare(write):
    """A sink that rejects 3 and fails at 4."""
    if write.document == 4:
        raise ValueError("four")
    return Record(write.event, str(write.document), rejection=NO if write.document == 3 else None)


def writes(*documents):
    return lambda event, decoded: [
        item if isinstance(item, Dropped | Rejection) else Write(event, item, index=item, sink="s")
        for item in documents
    ]


def shown(records):
    assert all(record.event is EVENT for record in records)
    assert {record.of for record in records} == {len(records)}
    return [
        (record.dropped or record.rejection).reason
        if record.dropped or record.rejection
        else (record.key, record.index, record.sink)
        for record in records
    ]


@pytest.mark.parametrize(
    ("decoder", "mapping", "expected"),
    [
        (None, None, [("None", 0, "")]),  # the sink reads the body
        (None, lambda event, documents: [Write(event, documents[0])], [("{'id': 'a'}", 0, "")]),
        (Decoder([1, 2]), None, [("1", 0, ""), ("2", 1, "")]),
        (Decoder(NO), None, ["no"]),
        (Decoder([]), None, ["no_writes"]),
        (Decoder([1]), lambda event, documents: NO, ["no"]),
        (Decoder([1]), lambda event, documents: Dropped("stale"), ["stale"]),
        (Decoder([1]), lambda event, documents: [], ["no_writes"]),
        (Decoder([1]), lambda event, documents: 1 / 0, ["unexpected"]),
        (Decoder([1]), writes(7, Dropped("stale"), NO), [("7", 7, "s"), "stale", "no"]),
        (Decoder([1]), writes(3, 4, 5), ["no", "unexpected", ("5", 5, "s")]),
    ],
)
def test_an_event_becomes_these_records(decoder, mapping, expected):
    assert shown(Preparation(prepare, decoder=decoder, mapping=mapping).records([EVENT])) == expected
