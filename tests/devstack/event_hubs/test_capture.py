"""Files as Event Hubs Capture writes them, and the server that writes them while it runs."""

import asyncio
import json
import sys
import threading
import types
from datetime import UTC, datetime, timedelta
from uuid import UUID

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devstack.amqp.wire.messages import (
    APPLICATION_PROPERTIES,
    DATA,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    VALUE,
    encode_section,
)
from devstack.amqp.wire.values import Int, Symbol, Timestamp, ULong
from devstack.event_hubs.storage.capture import (
    CapturedEvent,
    CaptureError,
    CaptureSettings,
    PartitionWriter,
    captured_event,
    enqueued_time_utc,
    write_capture,
)
from devstack.event_hubs.storage.capturing import Capture
from devstack.event_hubs.storage.events import SentEvent, encode_body
from devstack.event_hubs.storage.hubs import Hubs
from devstack.event_hubs.storage.log import Stored

AT = datetime(2026, 11, 21, 13, 5, 7, tzinfo=UTC)


def event(number, *, partition="0", after=0.0, body=b"body", **properties):
    return CapturedEvent(
        partition, number, str(100 * number), AT + timedelta(seconds=after), body, properties
    )


def read(path):
    with path.open("rb") as file:
        return list(fastavro.reader(file))


def numbers(folder):
    """What each file holds, by its path in the folder."""
    return {
        str(path.relative_to(folder)): [record["SequenceNumber"] for record in read(path)]
        for path in sorted(folder.rglob("*.avro"))
    }


# --- the file ---


def test_a_file_has_the_schema_and_the_header_of_the_real_service(tmp_path):
    [path] = write_capture(tmp_path, "flights", [event(0)])

    with path.open("rb") as file:
        header = fastavro.reader(file).metadata
    assert path.read_bytes()[:4] == b"Obj\x01"
    assert header["avro.codec"] == "null"
    # Word for word what files of 2023 say.
    assert json.loads(header["avro.schema"]) == json.loads(
        '{"type":"record","name":"EventData","namespace":"Microsoft.ServiceBus.Messaging","fields":['
        '{"name":"SequenceNumber","type":"long"},{"name":"Offset","type":"string"},'
        '{"name":"EnqueuedTimeUtc","type":"string"},{"name":"SystemProperties","type":'
        '{"type":"map","values":["long","double","string","bytes"]}},{"name":"Properties","type":'
        '{"type":"map","values":["long","double","string","bytes","null"]}},'
        '{"name":"Body","type":["null","bytes"]}]}'
    )


def test_a_record_says_what_the_event_says(tmp_path):
    said = {"long": 5, "double": 0.5, "string": "text", "bytes": b"\x00\xff", "null": None}
    sent = event(3, body=b"\x01\x02", **said)._replace(system_properties={"x-opt-partition-key": "key"})

    [path] = write_capture(tmp_path, "flights", [sent])

    assert read(path) == [
        {
            "SequenceNumber": 3,
            "Offset": "300",
            "EnqueuedTimeUtc": "11/21/2026 1:05:07 PM",
            "SystemProperties": {"x-opt-partition-key": "key"},
            "Properties": said,
            "Body": b"\x01\x02",
        }
    ]


@pytest.mark.parametrize(
    ("hour", "text"),
    [
        (0, "2/6/2023 12:09:05 AM"),
        (9, "2/6/2023 9:09:05 AM"),
        (12, "2/6/2023 12:09:05 PM"),
        (23, "2/6/2023 11:09:05 PM"),
    ],
)
def test_times_are_written_as_the_service_writes_them(hour, text):
    assert enqueued_time_utc(datetime(2023, 2, 6, hour, 9, 5, 999_000, tzinfo=UTC)) == text


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_a_codec_changes_the_size_and_not_what_is_read(tmp_path, codec):
    [path] = write_capture(tmp_path, "flights", [event(0, body=b"x" * 10_000)], codec=codec)

    assert [record["Body"] for record in read(path)] == [b"x" * 10_000]
    assert (path.stat().st_size < 2000) is (codec == "deflate")


# --- windows and names ---


def test_files_are_named_after_the_beginning_of_their_window_and_their_partition(tmp_path):
    write_capture(
        tmp_path,
        "flights",
        [event(0), event(1, after=5), event(0, partition="1", after=6), event(2, after=400)],
        namespace="space",
    )

    assert numbers(tmp_path) == {
        "space/flights/0/2026/11/21/13/05/00.avro": [0, 1],
        "space/flights/0/2026/11/21/13/10/00.avro": [2],
        "space/flights/1/2026/11/21/13/05/00.avro": [0],
    }


def test_a_template_of_ones_own_orders_the_parts_as_it_likes(tmp_path):
    template = "{Year}-{Month}-{Day}/{EventHub}/{Namespace}_p{PartitionId}_{Hour}{Minute}{Second}"

    write_capture(tmp_path, "flights", [event(0)], path_template=template, every_seconds=60)

    assert list(numbers(tmp_path)) == ["2026-11-21/flights/local_p0_130500.avro"]


def test_a_window_that_is_full_ends_early_and_no_name_is_used_twice(tmp_path):
    sent = [event(number, body=b"x" * 60) for number in range(6)]

    files = write_capture(tmp_path, "flights", sent, every_bytes=100)

    assert [path.name for path in files] == ["00.avro", "07.avro", "08.avro"]
    assert [[record["SequenceNumber"] for record in read(path)] for path in files] == [[0, 1], [2, 3], [4, 5]]


def test_empty_windows_get_a_file_without_events_if_asked_to(tmp_path):
    sent = [event(0), event(1, after=180)]

    write_capture(tmp_path / "with", "flights", sent, every_seconds=60, emit_empty=True)
    write_capture(tmp_path / "without", "flights", sent, every_seconds=60)

    folder = "local/flights/0/2026/11/21/13"
    assert numbers(tmp_path / "with") == {
        f"{folder}/05/00.avro": [0],
        f"{folder}/06/00.avro": [],
        f"{folder}/07/00.avro": [],
        f"{folder}/08/00.avro": [1],
    }
    assert numbers(tmp_path / "without") == {f"{folder}/05/00.avro": [0], f"{folder}/08/00.avro": [1]}


def test_files_that_are_there_already_are_left_alone(tmp_path):
    for _ in range(2):
        write_capture(tmp_path, "flights", [event(0)])

    assert [path.name for path in sorted(tmp_path.rglob("*.avro"))] == ["00.avro", "01.avro"]


def test_a_source_that_fails_leaves_no_file_that_is_not_whole(tmp_path):
    def failing():
        yield event(0)
        raise RuntimeError("the source failed")

    with pytest.raises(RuntimeError, match="the source failed"):
        write_capture(tmp_path, "flights", failing())

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every_seconds": 0}, "0 seconds"),
        ({"every_bytes": 0}, "0 bytes"),
        ({"path_template": "{Namespace}/{EventHub}"}, "path_template is '{Namespace}/{EventHub}'"),
        ({"path_template": "{Namespace}/{What}"}, "accepted: each of"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        CaptureSettings(tmp_path, **options)


def test_without_fastavro_the_error_says_which_extra_has_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastavro", None)

    with pytest.raises(CaptureError, match=r"fastavro.*extra 'spark'"):
        write_capture(tmp_path, "flights", [event(0)])


def test_a_codec_whose_library_is_missing_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastavro", types.SimpleNamespace(writer=lacking_snappy))

    with pytest.raises(CaptureError, match="codec 'snappy' of the capture files: install cramjam"):
        Capture(CaptureSettings(tmp_path, codec="snappy"), Hubs(), lambda: 0.0)

    assert list(tmp_path.iterdir()) == []


def lacking_snappy(_file, _schema, _records, codec):
    if codec == "snappy":
        raise ValueError("install cramjam")


@settings(max_examples=25)
@given(
    steps=st.lists(st.tuples(st.sampled_from("012"), st.floats(0, 90), st.integers(0, 80)), max_size=40),
    every_bytes=st.integers(1, 200),
    emit_empty=st.booleans(),
)
def test_files_hold_every_event_once_and_in_order(tmp_path_factory, steps, every_bytes, emit_empty):
    folder = tmp_path_factory.mktemp("capture")
    events, after, counts = [], 0.0, {}
    for partition, later, size in steps:
        after += later
        counts[partition] = counts.get(partition, -1) + 1
        events.append(event(counts[partition], partition=partition, after=after, body=b"x" * size))

    files = write_capture(
        folder, "flights", events, every_seconds=60, every_bytes=every_bytes, emit_empty=emit_empty
    )

    assert sorted(files) == sorted(path for path in folder.rglob("*") if path.is_file())
    for partition, last in counts.items():
        own = [path for path in files if path.relative_to(folder).parts[2] == partition]
        assert own == sorted(own)
        held = [record["SequenceNumber"] for path in own for record in read(path)]
        assert held == list(range(last + 1))
        assert emit_empty or all(read(path) for path in own)


# --- from an event as the hub keeps it ---


def stored(*sections):
    return Stored(7, "70", 1_700_000_000_123, b"".join(sections))


def test_properties_and_annotations_that_are_the_clients_are_kept_and_the_hubs_own_are_fields():
    message = stored(
        encode_section(
            MESSAGE_ANNOTATIONS,
            {
                Symbol("x-opt-sequence-number"): 7,
                Symbol("x-opt-offset"): "70",
                Symbol("x-opt-enqueued-time"): Timestamp(5),
                Symbol("x-opt-partition-key"): "key",
                Symbol("mine"): 1,
            },
        ),
        encode_section(PROPERTIES, ["id", None, None, None, None, "other", Symbol("text/plain")]),
        encode_section(APPLICATION_PROPERTIES, {"n": Int(1)}),
        encode_section(DATA, b"one"),
        encode_section(DATA, b"two"),
    )

    captured = captured_event("3", message)

    assert captured == CapturedEvent(
        partition="3",
        sequence_number=7,
        offset="70",
        enqueued_at=datetime.fromtimestamp(1_700_000_000.123, UTC),
        body=b"onetwo",
        properties={"n": 1},
        system_properties={
            "x-opt-partition-key": "key",
            "mine": 1,
            "message-id": "id",
            "correlation-id": "other",
            "content-type": "text/plain",
        },
    )


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (True, "True"),
        (Timestamp(1_000), 1_000),
        (ULong(2**64 - 1), str(2**64 - 1)),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ([1, "a"], '[1, "a"]'),
        (None, None),
        (Symbol("s"), "s"),
    ],
)
def test_a_property_of_a_type_that_the_schema_does_not_have_is_written_as_one_that_it_has(
    tmp_path, value, written
):
    [path] = write_capture(tmp_path, "flights", [event(0, p=value)])

    [record] = read(path)
    assert record["Properties"] == {"p": written}


@pytest.mark.parametrize(
    ("value", "body"), [("text", b"text"), (b"raw", b"raw"), ({"a": 1}, b'{"a": 1}'), (None, None)]
)
def test_a_body_that_is_no_data_is_its_bytes_its_text_or_json(value, body):
    assert captured_event("0", stored(encode_section(VALUE, value))).body == body


# --- while a server runs ---


class World:
    """A hub with two partitions, a clock that stands still, and its capture."""

    def __init__(self, folder, **options):
        self.folder, self.now = folder, AT.timestamp()
        self.hubs = Hubs(lambda: self.now)
        self.hub = self.hubs.create("flights", 2)
        self.options = options
        self.restart()

    def restart(self):
        self.capture = Capture(CaptureSettings(self.folder, **self.options), self.hubs, lambda: self.now)

    def send(self, *bodies, partition="0"):
        self.hub.partition(partition).append([SentEvent(encode_body(body)) for body in bodies])

    def kill(self):
        for track in self.capture._tracks.values():
            if track._writer._file is not None:
                track._writer._file.close()

    async def catch_up(self):
        await self.capture._catch_up()


async def test_a_window_is_written_when_it_is_over(tmp_path):
    world = World(tmp_path, every_seconds=60)
    world.send("a", "b")
    await world.catch_up()
    assert world.capture.files == []

    world.now += 60
    world.send("c")
    await world.catch_up()

    folder = "local/flights/0/2026/11/21/13"
    assert numbers(tmp_path) == {f"{folder}/05/00.avro": [0, 1]}
    assert await world.capture.flush() == [tmp_path / folder / "06" / "00.avro"]
    assert numbers(tmp_path)[f"{folder}/06/00.avro"] == [2]


async def test_a_flush_ends_the_window_and_what_comes_later_gets_a_file_of_its_own(tmp_path):
    world = World(tmp_path, every_seconds=60)
    world.send("a")
    await world.capture.flush()
    world.send("b")
    await world.capture.flush()
    assert await world.capture.flush() == []

    assert list(numbers(tmp_path).values()) == [[0], [1]]


async def test_windows_in_which_nothing_came_get_empty_files_from_the_start_on(tmp_path):
    world = World(tmp_path, every_seconds=60, emit_empty=True)
    await world.catch_up()
    world.now += 120
    world.send("late", partition="1")
    await world.catch_up()
    await world.capture.flush()

    assert [len(found) for found in numbers(tmp_path).values()] == [0, 0, 0, 0, 1]


async def test_a_capture_that_starts_again_goes_on_where_the_whole_files_end(tmp_path):
    world = World(tmp_path, every_seconds=60)
    world.send("a", "b")
    await world.capture.flush()
    world.send("c")
    await world.catch_up()  # in a file that is not whole when the kill comes

    world.kill()
    world.restart()
    world.send("d")
    await world.capture.flush()

    assert list(numbers(tmp_path).values()) == [[0, 1], [2, 3]]


async def test_a_hub_that_is_created_anew_is_captured_from_its_first_event(tmp_path):
    world = World(tmp_path)
    world.send("old", "old")
    await world.capture.flush()
    world.hubs.delete("flights")
    world.now += 1
    world.hub = world.hubs.create("flights", 1)
    world.send("new")
    await world.capture.flush()

    assert [[record["Body"] for record in read(path)] for path in world.capture.files] == [
        [b"old", b"old"],
        [b"new"],
    ]


async def test_what_a_hub_received_before_it_was_deleted_is_captured(tmp_path):
    world = World(tmp_path)
    await world.catch_up()
    world.send("last words")
    world.hubs.delete("flights")
    await world.catch_up()

    [path] = world.capture.files
    assert [record["Body"] for record in read(path)] == [b"last words"]


async def test_a_slow_disk_does_not_stop_the_loop(tmp_path, monkeypatch):
    world = World(tmp_path)
    world.send("a")
    written, slow = threading.Event(), PartitionWriter.add

    def add(writer, captured):
        assert written.wait(30)
        slow(writer, captured)

    monkeypatch.setattr(PartitionWriter, "add", add)
    flush = asyncio.create_task(world.capture.flush())
    for _ in range(100):
        await asyncio.sleep(0)
    assert not flush.done()
    written.set()

    assert len(await flush) == 1


async def test_a_capture_that_is_cancelled_ends_what_it_is_writing_first(tmp_path, monkeypatch):
    world = World(tmp_path)
    world.send("a", "b")
    begun, written, slow = threading.Event(), threading.Event(), PartitionWriter.add

    def add(writer, captured):
        begun.set()
        assert written.wait(30)
        slow(writer, captured)

    monkeypatch.setattr(PartitionWriter, "add", add)
    running = asyncio.create_task(world.capture.run())
    await asyncio.to_thread(begun.wait, 30)
    running.cancel()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not running.done()
    written.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    await world.capture.close()

    assert list(numbers(tmp_path).values()) == [[0, 1]]


async def test_events_that_retention_took_first_are_reported(tmp_path, caplog):
    world = World(tmp_path)
    world.send("a", "b", "c")
    world.hub.partition("0").log.expire(2)
    await world.capture.flush()

    assert list(numbers(tmp_path).values()) == [[2]]
    assert "up to 2 events of partition 0 were gone before they were captured, from 0 on" in caplog.text


async def test_bytes_that_are_no_message_are_captured_as_they_are_and_reported(tmp_path, caplog):
    world = World(tmp_path)
    world.hub.partition("0").append([SentEvent(b"\x00\x53\x75junk")])
    await world.capture.flush()

    [path] = world.capture.files
    [record] = read(path)
    assert record["Body"].endswith(b"junk")
    assert "event 0 of partition 0 is no AMQP message" in caplog.text
