"""Partitions, their files, and hubs of the local Event Hubs, without a network."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devstack.amqp.wire.errors import AmqpError
from devstack.event_hubs import HubExistsError, Retention
from devstack.event_hubs.storage.events import (
    SentEvent,
    encode_body,
)
from devstack.event_hubs.storage.hubs import Hubs
from devstack.event_hubs.storage.log import PartitionLog, Start
from devstack.event_hubs.storage.segments import EVENT, Record, Segments
from tests.support.virtual_time import Clock


def events(*bodies):
    return [SentEvent(encode_body(body)) for body in bodies]


def filled(count=10, *, step=1.0, **options):
    """A log with one event per `step` seconds, the first at 1000 s."""
    clock = Clock()
    log = PartitionLog(clock, **options)
    for number in range(count):
        log.append(events(f"event {number}"))
        clock.now += step
    return log, clock


def numbers(log):
    return [stored.sequence_number for stored in log.stored()]


# --- positions ---


def test_an_empty_log_says_so_in_the_services_way():
    log = PartitionLog(Clock())

    assert (log.begin_sequence_number, log.last_sequence_number, log.last_offset, len(log)) == (
        0,
        -1,
        "-1",
        0,
    )
    assert log.find(Start("sequence-number", "-1")) == 0


def test_sequence_numbers_count_events_from_zero_and_offsets_do_not():
    log = PartitionLog(Clock())

    assert log.append(events("a", "b")) == 0
    assert log.append(events("c")) == 2

    stored = list(log.stored())
    assert [each.sequence_number for each in stored] == [0, 1, 2]
    assert [int(each.offset) for each in stored] == sorted({int(each.offset) for each in stored})
    assert stored[1].offset != "1"
    assert log.last_offset == stored[-1].offset


def test_enqueued_times_do_not_go_back_with_the_clock():
    log, clock = filled(2)
    clock.now = 0

    log.append(events("late"))

    assert [each.enqueued_ms for each in log.stored()] == [1_000_000, 1_001_000, 1_001_000]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (Start("offset", "-1"), 0),
        (Start("offset", "@latest"), 10),
        (Start("offset", "@latest", inclusive=True), 9),
        (Start("sequence-number", "4"), 5),
        (Start("sequence-number", "4", inclusive=True), 4),
        (Start("sequence-number", "9"), 10),
        (Start("enqueued-time", "1003000"), 4),
        (Start("enqueued-time", "1003000", inclusive=True), 3),
        (Start("enqueued-time", "1003500"), 4),
        (Start("enqueued-time", "9999999999"), 10),
    ],
)
def test_a_consumer_starts_where_it_says(start, expected):
    log, _ = filled(10)

    assert log.find(start) == expected


@pytest.mark.parametrize(("inclusive", "expected"), [(False, 4), (True, 3)])
def test_a_consumer_starts_at_an_offset(inclusive, expected):
    log, _ = filled(10)
    offset = list(log.stored())[3].offset

    assert log.find(Start("offset", offset, inclusive)) == expected


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (
            Start("offset", "99999"),
            "The supplied offset '99999' is invalid. The last offset in the system is '{offset}'",
        ),
        (Start("offset", "later"), "The supplied offset 'later' is invalid"),
        (
            Start("sequence-number", "10"),
            "The supplied sequence number '10' is invalid. The last sequence number in the system is '9'",
        ),
    ],
)
def test_a_position_beyond_the_end_is_refused_as_the_service_does(start, text):
    log, _ = filled(10)

    with pytest.raises(AmqpError) as refused:
        log.find(start)

    assert refused.value.condition == "com.microsoft:argument-error"
    assert text.format(offset=log.last_offset) in refused.value.description


def test_offsets_that_are_no_numbers_are_positions_all_the_same():
    log, _ = filled(10, opaque_offsets=True)
    offset = list(log.stored())[3].offset

    assert not offset.isdecimal()
    assert (log.find(Start("offset", offset)), log.find(Start("offset", log.last_offset))) == (4, 10)
    with pytest.raises(AmqpError, match=f"in the system is '{log.last_offset}'"):
        log.find(Start("offset", "5"))
    assert PartitionLog(Clock(), opaque_offsets=True).last_offset == "-1"


def test_reading_keeps_to_count_and_bytes_but_gives_one_event_of_any_size():
    log = PartitionLog(Clock())
    log.append(events("a" * 1000, "b" * 1000, "c" * 1000, "d" * 5000))

    assert [log.read(0, 3, 10**6)[1], log.read(0, 9, 2000)[1], log.read(3, 9, 1)[1]] == [3, 2, 4]
    assert log.read(4, 9, 10**6) == ([], 4)


def test_skipped_sequence_numbers_are_never_used_and_nothing_counts_them():
    log, _ = filled(3)

    log.skip(10)

    assert log.last_sequence_number == 2
    assert log.append(events("after the gap")) == 13
    assert numbers(log) == [0, 1, 2, 13]
    assert log.find(Start("sequence-number", "5")) == 13
    assert (len(log.read(0, 100, 10**6)[0]), log.read(0, 100, 10**6)[1]) == (4, 14)


# --- retention ---


def test_expired_events_are_gone_and_the_position_before_them_reads_on_behind_them():
    log, _ = filled(10)

    log.expire(6)

    assert (log.begin_sequence_number, log.last_sequence_number, len(log)) == (6, 9, 4)
    assert log.find(Start("offset", "-1")) == log.find(Start("sequence-number", "5")) == 6
    assert numbers(log) == [6, 7, 8, 9]
    assert log.read(0, 1, 10**6)[1] == 7


def test_a_log_with_everything_expired_is_empty_and_remembers_its_last_event():
    log, _ = filled(10)
    offset = log.last_offset

    log.expire(10)

    assert (log.begin_sequence_number, log.last_sequence_number, len(log)) == (10, 9, 0)
    assert log.last_offset == offset
    assert log.append(events("next")) == 10


def test_retention_by_count_keeps_the_newest():
    log, _ = filled(10, retention=Retention(events=3))

    assert numbers(log) == [7, 8, 9]


def test_retention_by_time_keeps_the_youngest():
    log, clock = filled(10, step=10.0, retention=Retention(seconds=35))
    clock.now = 1095.0

    log.advance()

    assert numbers(log) == [6, 7, 8, 9]


@pytest.mark.parametrize("wrong", [{"seconds": 0}, {"events": 0}])
def test_retention_of_nothing_is_refused(wrong):
    with pytest.raises(ValueError, match="retention of 0"):
        Retention(**wrong)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 5)),
            st.tuples(st.just("skip"), st.integers(1, 5)),
            st.tuples(st.just("expire"), st.integers(0, 30)),
            st.tuples(st.just("reopen"), st.just(0)),
        ),
        max_size=20,
    )
)
def test_a_log_on_disk_is_at_any_time_what_the_same_log_in_memory_is(tmp_path_factory, steps):
    folder = tmp_path_factory.mktemp("log")
    clock = Clock()
    kept, memory = PartitionLog(clock, segments=Segments(folder)), PartitionLog(clock)

    for step, amount in steps:
        clock.now += 1
        if step == "reopen":
            kept.close()
            kept = PartitionLog(clock, segments=Segments(folder))
        for log in (kept, memory):
            if step == "append":
                log.append(events(*(str(number) for number in range(amount))))
            elif step == "skip":
                log.skip(amount)
            elif step == "expire":
                log.expire(amount)
    kept.close()

    assert list(kept.stored()) == list(memory.stored())
    assert kept.begin_sequence_number == memory.begin_sequence_number
    assert (kept.last_sequence_number, kept.last_offset) == (memory.last_sequence_number, memory.last_offset)


# --- files ---


def reopened(folder, **options):
    log = PartitionLog(Clock(), segments=Segments(folder), **options)
    log.close()
    return log


@pytest.mark.parametrize("lost", [1, 5, 60])
def test_a_torn_end_is_cut_off_and_numbers_go_on_where_they_were(tmp_path, lost):
    log, _ = filled(3, segments=Segments(tmp_path))
    log.close()
    [path] = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-lost])

    log = PartitionLog(Clock(), segments=Segments(tmp_path))
    first = log.append(events("again"))
    log.close()

    assert first == 2
    assert numbers(reopened(tmp_path)) == [0, 1, 2]


def test_a_damaged_record_ends_the_log_there(tmp_path):
    log, _ = filled(3, segments=Segments(tmp_path))
    log.close()
    [path] = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)

    assert numbers(reopened(tmp_path)) == [0, 1]


def test_full_segments_are_followed_by_others_and_dropped_when_nothing_of_them_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("devstack.event_hubs.storage.segments.SEGMENT_SIZE", 2000)
    log, _ = filled(200, segments=Segments(tmp_path))
    before = len(list(tmp_path.iterdir()))

    log.skip(5)
    log.expire(205)
    log.append(events("next"))
    log.close()

    assert before > 5
    assert len(list(tmp_path.iterdir())) <= 2
    again = reopened(tmp_path)
    assert (numbers(again), again.last_sequence_number) == ([205], 205)


def test_segments_with_events_that_are_kept_stay(tmp_path, monkeypatch):
    monkeypatch.setattr("devstack.event_hubs.storage.segments.SEGMENT_SIZE", 20_000)
    log, _ = filled(3000, segments=Segments(tmp_path))
    before = len(list(tmp_path.iterdir()))

    log.expire(2000)
    log.close()

    assert len(list(tmp_path.iterdir())) < before
    assert numbers(reopened(tmp_path)) == list(range(2000, 3000))


def test_a_segment_alone_tells_where_the_partition_stands(tmp_path, monkeypatch):
    monkeypatch.setattr("devstack.event_hubs.storage.segments.SEGMENT_SIZE", 1)
    log, _ = filled(2, segments=Segments(tmp_path))
    log.skip(40)
    log.expire(42)
    log.expire(42)
    log.close()
    for path in sorted(tmp_path.iterdir())[:-1]:
        path.unlink(missing_ok=True)

    again = PartitionLog(Clock(), segments=Segments(tmp_path))

    assert (again.last_sequence_number, again.last_offset) == (1, log.last_offset)
    assert again.append(events("next")) == 42
    again.close()


def test_a_record_is_found_again_as_it_was_written(tmp_path):
    segments = Segments(tmp_path, sync=True)
    record = Record(EVENT, 2**62, 2**50, -1, b"\0message")

    segments.append([record])
    segments.close()

    assert list(Segments(tmp_path).load()) == [record]


# --- hubs ---


def test_hubs_in_a_folder_are_there_again_with_all_that_was_said_of_them(tmp_path):
    clock = Clock()
    hubs = Hubs(clock, tmp_path)
    hub = hubs.create("Flights/1", 2, ["tidemark"], Retention(events=2), opaque_offsets=True)
    hub.partitions[1].append(events("a", "b", "c"))
    hub.add_partitions(1)
    hub.add_consumer_group("late")
    hubs.close()

    clock.now += 100
    again = Hubs(clock, tmp_path).hub("flights/1")

    assert (again.name, again.created_at, again.partition_ids) == ("Flights/1", 1000.0, ["0", "1", "2"])
    assert list(again.consumer_groups.values()) == ["$Default", "tidemark", "late"]
    assert numbers(again.partition("1").log) == [1, 2]
    assert (again.retention, again.opaque_offsets) == (Retention(events=2), True)


def test_a_deleted_hub_is_gone_from_its_folder_and_begins_anew_if_created_again(tmp_path):
    hubs = Hubs(Clock(), tmp_path)
    hubs.create("flights", 1).partitions[0].append(events("a"))

    hubs.delete("flights")

    assert list(Hubs(Clock(), tmp_path)) == []
    assert hubs.create("flights", 1).partitions[0].append(events("b")) == 0
    hubs.close()


def test_what_a_kill_left_of_a_hub_that_was_being_deleted_is_not_taken_for_a_new_ones(tmp_path):
    hubs = Hubs(Clock(), tmp_path)
    hubs.create("flights", 1).partitions[0].append(events("a"))
    hubs.close()
    (tmp_path / "flights" / "hub.json").unlink()

    hub = Hubs(Clock(), tmp_path).create("flights", 1)

    assert hub.partitions[0].log.last_sequence_number == -1


def test_a_name_is_taken_whatever_its_case():
    hubs = Hubs(Clock())
    hubs.create("flights", 1)

    with pytest.raises(HubExistsError, match="FLIGHTS"):
        hubs.create("FLIGHTS", 1)
    with pytest.raises(ValueError, match="0 partitions"):
        hubs.create("other", 0)


def test_events_without_a_key_take_turns_and_those_with_one_stay_together():
    hub = Hubs(Clock()).create("flights", 3)

    assert [hub.choose(None).id for _ in range(4)] == ["0", "1", "2", "0"]
    assert len({hub.choose("a key").id for _ in range(5)}) == 1
