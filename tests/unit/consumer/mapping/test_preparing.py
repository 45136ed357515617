"""What an event becomes: documents, writes, records."""

import subprocess
import sys
from pathlib import Path
from types import MappingProxyType

import pytest

from consumer.core.parked import name_of
from consumer.mapping.partition_hash import order_key, partition_key_text
from consumer.mapping.preparing import RECORD_BYTES, Preparation
from consumer.mapping.transforms import ELEMENT_BITS, mapping_of
from consumer.model import Dropped, Event, Operation, PatchStep, Record, Rejection, Write
from consumer.running.writing.replaying import records_left
from tidemark import consuming

ROOT = Path(__file__).parents[4]

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


@pytest.mark.parametrize(
    ("mapped", "names"),
    [
        ([0, NO, 2], ["0", "1", "2"]),  # as the write of the second element would have
        ([0, 1, NO, 2, 3], ["0", "1", "-3", "2", "3"]),  # a second route for the second element is at fault
        ([0, Dropped("stale"), 1, NO], ["0", "-2", "1", "3"]),
    ],
)
def test_what_is_rejected_has_a_name_of_its_own_by_which_a_dead_letter_is_replayed(mapped, names):
    items = [Write(EVENT, {}, item) if isinstance(item, int) else item for item in mapped]
    records = Preparation(prepare, decoder=Decoder([1]), mapping=lambda event, documents: items).records(
        [EVENT]
    )

    assert [name_of(record) for record in records] == names
    assert all(
        records_left(records, [name], len(names)) == [one] for name, one in zip(names, records, strict=True)
    )


@pytest.mark.parametrize(
    ("documents", "size", "taken"),
    [
        (range(10, 1010), 1, 1),  # an event is never cut
        (range(10, 1010), 3 * 1000 * RECORD_BYTES, 3),
        ([10], 1 << 30, 20),
    ],
)
def test_records_are_made_of_so_many_events_as_fit(documents, size, taken):
    preparation = Preparation(prepare, decoder=Decoder(list(documents)))

    records, events = preparation.records_within([EVENT] * 20, size)

    assert (len(records), events) == (taken * len(documents), taken)


HERE = {"id": "a"}  # what the body of EVENT is


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"n": 1}, [Write(EVENT, {"n": 1})]),
        (MappingProxyType({"n": 1}), [Write(EVENT, {"n": 1})]),
        (
            [{"n": 1}, consuming.delete({"n": 2}, sink="b", id="x")],
            [Write(EVENT, {"n": 1}), Write(EVENT, {"n": 2}, 1, "b", Operation.DELETE, id="x")],
        ),
        (
            (consuming.create(HERE, ttl=9), consuming.replace(HERE, version=3)),
            [
                Write(EVENT, HERE, 0, "", Operation.CREATE, ttl=9),
                Write(EVENT, HERE, 1, "", Operation.REPLACE, version=3),
            ],
        ),
        (
            consuming.patch(
                HERE, consuming.set_value("/s", "x"), consuming.append("/l", 1), consuming.increment("/n", 2)
            ),
            [
                Write(
                    EVENT,
                    HERE,
                    operation=Operation.PATCH,
                    patch=(
                        PatchStep("set", "/s", "x"),
                        PatchStep("append", "/l", 1),
                        PatchStep("increment", "/n", 2),
                    ),
                )
            ],
        ),
        (consuming.drop("stale"), [Dropped("stale")]),
        ([consuming.drop("stale"), consuming.upsert(HERE)], [Dropped("stale"), Write(EVENT, HERE, 1)]),
    ],
)
def test_a_transform_may_return_any_number_of_writes_and_drops(result, expected):
    assert mapping_of(lambda document, event: result)(EVENT, [HERE]) == expected


def test_documents_of_one_event_have_indexes_of_their_own():
    [first, *_, last] = mapping_of(lambda document, event: [{}, {}])(EVENT, [1, 2])

    assert (first.index, last.index) == (0, (1 << ELEMENT_BITS) + 1)


def test_what_a_transform_may_return_is_documented_and_needs_the_library_alone():
    page = (ROOT / "docs" / "consuming.md").read_text()
    code = "import tidemark.consuming, sys; print(*sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert [name for name in consuming.__all__ if f"`{name}" not in page] == []
    assert [name for name in answer.stdout.split() if name.startswith(("consumer", "azure", "aiohttp"))] == []
    assert "tidemark/consuming.py" in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize(("one", "other"), [(-0.0, 0), (1, 1.0), (2**53, 2**53 + 1)])
def test_partition_keys_that_are_equal_in_cosmos_db_have_one_order(one, other):
    keys = {order_key([value, "a"], partition_key_text([value, "a"])) for value in (one, other)}

    assert len(keys) == 1
    assert order_key([True], partition_key_text([True])) != order_key([1], partition_key_text([1]))
