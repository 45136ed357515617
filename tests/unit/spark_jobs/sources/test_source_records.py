"""Records of telemetry, the scaling log and Application Insights as rows; what is none is told, never guessed."""

import csv
import gzip
import io
from datetime import UTC, datetime

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumer.telemetry.records import CheckpointRecord, IntervalRecord, PartitionRecord
from scaling.log_entry import LogEntry, LogKind, ShadowSaid
from scaling.model import Effect, EffectOutcome, Reason, Recommendation
from spark_jobs.sources.records.app_insights_rows import app_event_records, app_event_row, event_time
from spark_jobs.sources.records.records import RejectedError, parsed, records, texts
from spark_jobs.sources.records.telemetry_rows import decision_row, telemetry_row

AT = 1_763_712_000.125
WHEN = datetime(2025, 11, 21, 8, 0, 0, 125_000, tzinfo=UTC)
INTERVAL = IntervalRecord(
    at=AT,
    consumer="orders",
    instance="a-1",
    hub="flights",
    consumer_group="$Default",
    seconds=5.0,
    received=100,
    written=90,
    dead_letters=2,
    retried=3,
    attempts=95,
    throttled=1,
    checkpoints=4,
    checkpoints_failed=0,
    request_units=512.5,
    written_units=500.0,
    rate_limit=None,
    backlog_count=8,
    backlog_bytes=800,
    oldest_age_s=0.5,
    in_flight_batches=1,
    paused=False,
    stopping=True,
    partitions=(PartitionRecord("0", 1000, 900, None, 100, 10),),
)
CHECKPOINT = CheckpointRecord(
    at=AT,
    consumer="orders",
    instance="a-1",
    hub="flights",
    consumer_group="$Default",
    partition="0",
    sequence_number=5,
    offset="480",
    epoch=2,
    left=7,
)


def test_an_interval_and_a_checkpoint_become_rows_of_all_their_fields():
    interval, checkpoint = (telemetry_row(msgspec.json.encode(each)) for each in (INTERVAL, CHECKPOINT))

    partitions = [msgspec.structs.asdict(partition) for partition in INTERVAL.partitions]
    assert interval == {
        **msgspec.structs.asdict(INTERVAL),
        "kind": "interval",
        "at": WHEN,
        "partitions": partitions,
    }
    assert checkpoint == {**msgspec.structs.asdict(CHECKPOINT), "kind": "checkpoint", "at": WHEN}


def test_a_field_that_a_newer_writer_added_is_ignored():
    line = msgspec.json.encode({**msgspec.to_builtins(CHECKPOINT), "colour": "blue"})

    assert telemetry_row(line) == telemetry_row(msgspec.json.encode(CHECKPOINT))


@pytest.mark.parametrize(
    ("change", "story"),
    [
        ({"kind": "surprise"}, "surprise"),
        ({"left": None}, "left"),
        ({"sequence_number": "5"}, "sequence_number"),
        ({"at": -1}, "seconds since 1970"),
        ({"at": 1e300}, "seconds since 1970"),
        ({"epoch": 2**63}, "64 bits"),
    ],
)
def test_a_record_of_another_shape_is_rejected_by_the_field(change, story):
    with pytest.raises(RejectedError, match=story):
        telemetry_row(msgspec.json.encode({**msgspec.to_builtins(CHECKPOINT), **change}))


def test_every_line_is_a_row_or_a_reject_with_its_number():
    good = msgspec.json.encode(CHECKPOINT)
    schema = pa.schema([("kind", pa.string()), ("left", pa.int64()), ("file", pa.string())])

    [found] = parsed(records(good + b"\r\n\n{cut\n" + good + b"\n\xff\xfe"), telemetry_row, schema, "a.jsonl")

    assert found.batch.to_pylist() == [{"kind": "checkpoint", "left": 7, "file": "a.jsonl"}] * 2
    assert [(reject.number, reject.text) for reject in found.rejects] == [(3, b"{cut"), (5, b"\xff\xfe")]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.one_of(st.just(msgspec.json.encode(CHECKPOINT)), st.binary(max_size=30)), max_size=20))
def test_no_line_is_lost(lines):
    lines = [line.replace(b"\n", b" ") for line in lines]
    data = b"x\n" + b"\n".join(lines)
    schema = pa.schema([("kind", pa.string())])

    [found] = parsed(records(data), telemetry_row, schema)

    assert found.batch.num_rows + len(found.rejects) == 1 + sum(bool(line.strip()) for line in lines)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 23, 24, 25])
def test_lines_in_gzip_come_in_pieces_and_nothing_of_one_that_is_cut(size):
    whole = b"first\n\nsecond\nno end"
    packed = gzip.compress(whole[:9]) + gzip.compress(whole[9:])

    found = list(texts(packed, size, lambda head: head[:1] == b"f"))

    assert b"".join(text for _, text in found) == whole
    assert [at for at, _ in found] == [sum(len(text) for _, text in found[:n]) for n in range(len(found))]
    assert all(text.endswith(b"\n") and len(text) <= size + 7 for _, text in found[:-1])
    assert list(texts(packed, size, lambda _head: False)) == [(0, whole)]
    for cut in (packed[:-9], packed[:40], packed[:-8] + b"damaged!"):
        with pytest.raises(RejectedError, match="not whole"):
            next(texts(cut, size, lambda _head: True))


def test_a_cut_list_is_rejected_whole():
    with pytest.raises(RejectedError, match="begins as a JSON list"):
        list(records(b'[{"a": 1}, {"a"'))


def recommendation():
    return Recommendation(
        decision_id="plan@20251121T080000.125Z",
        target="plan",
        at=AT,
        current=2,
        proposed=5,
        desired=4,
        minimum=1,
        maximum=10,
        reason=Reason.SCALE_OUT,
    )


def entry(**changes):
    values = {
        "target": "plan",
        "at": AT,
        "kind": LogKind.DECISION,
        "key": "decision",
        "line": "scale out",
        "reason": Reason.SCALE_OUT,
        "current": 2,
        "desired": 4,
        "recommendation": recommendation(),
        "metrics": {"backlog": 120.0},
    }
    return LogEntry(**{**values, **changes})


def test_a_decision_is_laid_open():
    said = ShadowSaid(3, 4, 4, "scale_out", "")
    row = decision_row(msgspec.json.encode(entry(inputs=b"\x01\xff", shadow=said)))

    assert msgspec.json.decode(row.pop("recommendation"), type=Recommendation) == recommendation()
    assert row == {
        "target": "plan",
        "at": WHEN,
        "kind": "decision",
        "key": "decision",
        "line": "scale out",
        "reason": "scale_out",
        "by": None,
        "current": 2,
        "desired": 4,
        "metrics": [("backlog", 120.0)],
        "inputs": b"\x01\xff",
        "proposed": 5,
        "minimum": 1,
        "maximum": 10,
        "shadow": 3,
    }


def test_an_effect_is_laid_open():
    effect = Effect("id", "plan", EffectOutcome.LIMITED, 2, 4, None, AT, "")
    row = decision_row(msgspec.json.encode(entry(kind=LogKind.EFFECT, recommendation=None, effect=effect)))

    assert row["recommendation"] is None
    assert {
        name: row[name] for name in ("outcome", "from_capacity", "to_capacity", "reached", "action_id")
    } == {
        "outcome": "limited",
        "from_capacity": 2,
        "to_capacity": 4,
        "reached": None,
        "action_id": "id",
    }


def test_the_log_as_the_command_prints_it_is_read():
    printed = msgspec.json.format(msgspec.json.encode([entry(), entry(key="again")]), indent=2)

    assert [decision_row(text)["key"] for _, text in records(printed)] == ["decision", "again"]


# -- Application Insights ----------------------------------------------------------------------------------

EVENT = {
    "timestamp": datetime(2026, 11, 21, 8, 2, 14, 123_456, tzinfo=UTC),
    "name": "Received",
    "item_count": 3,
    "measurements": [("EventXReceived_Count", 120.0)],
    "dimensions": [("tenant", "eu"), ("n", "7")],
    "operation_id": "op1",
    "role": "worker",
    "sdk_version": "py3:1.0",
    "source": "customEvents",
    "item_id": "i-1",
}
CLASSIC = {
    "timestamp": "2026-11-21T08:02:14.1234567Z",
    "name": "Received",
    "itemType": "customEvent",
    "itemCount": 3,
    "customMeasurements": '{"EventXReceived_Count": 120}',
    "customDimensions": '{"tenant": "eu", "n": 7}',
    "operation_Id": "op1",
    "cloud_RoleName": "worker",
    "sdkVersion": "py3:1.0",
    "itemId": "i-1",
}
WORKSPACE = {
    "TimeGenerated": "2026-11-21T08:02:14.1234567Z",
    "Type": "AppEvents",
    "Name": "Received",
    "ItemCount": 3,
    "Measurements": {"EventXReceived_Count": 120, "unused": None},
    "Properties": {"tenant": "eu", "n": 7},
    "OperationId": "op1",
    "AppRoleName": "worker",
    "SDKVersion": "py3:1.0",
    "_ItemId": "i-1",
}
CONTINUOUS = {
    "event": [{"name": "Received", "count": 3}],
    "context": {
        "data": {"eventTime": "2026-11-21T08:02:14.1234567Z", "samplingRate": 33.3},
        "custom": {
            "dimensions": [{"tenant": "eu"}, {"n": 7}],
            "metrics": [{"EventXReceived_Count": {"value": 120.0, "count": 1.0}}],
        },
        "operation": {"id": "op1"},
        "device": {"roleName": "worker"},
    },
    "internal": {"data": {"id": "i-1", "documentVersion": "1.61"}},
}


def events(data, file="a.json"):
    return [app_event_row(text) for _, text in app_event_records(data, file)]


def as_csv(*rows, zone="UTC"):
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([f"{name} [{zone}]" if name == "timestamp" else name for name in CLASSIC])
    writer.writerows(rows)
    return out.getvalue().encode("utf-8-sig")


def test_all_forms_of_an_export_give_the_same_event():
    query = {
        "tables": [
            {
                "name": "PrimaryResult",
                "columns": [{"name": name, "type": "string"} for name in CLASSIC],
                "rows": [list(CLASSIC.values())],
            }
        ]
    }
    diagnostic = {**WORKSPACE, "time": WORKSPACE["TimeGenerated"], "resourceId": "/SUBSCRIPTIONS/X"}
    del diagnostic["TimeGenerated"]
    lines = msgspec.json.encode(CLASSIC) + b"\n" + msgspec.json.encode(CLASSIC)

    assert events(lines) == [EVENT, EVENT]
    assert events(msgspec.json.encode([CLASSIC])) == [EVENT]
    assert events(as_csv(CLASSIC.values()), "query_data.csv") == [EVENT]
    assert events(msgspec.json.encode(query)) == [EVENT]
    assert events(msgspec.json.encode(WORKSPACE)) == [{**EVENT, "source": "AppEvents"}]
    assert events(msgspec.json.encode(diagnostic)) == [{**EVENT, "source": "AppEvents"}]
    assert events(msgspec.json.encode(CONTINUOUS)) == [{**EVENT, "sdk_version": None}]


@pytest.mark.parametrize(
    ("change", "story"),
    [
        ({"itemCount": None}, "itemCount is None.*nobody knows"),
        ({"itemCount": 0}, "itemCount is 0"),
        ({"itemCount": 1.5}, "itemCount is 1.5"),
        ({"name": ""}, "no name"),
        ({"timestamp": "yesterday"}, "'yesterday'; accepted"),
        ({"customMeasurements": "{cut"}, "no JSON object"),
        ({"customMeasurements": {"m": "many"}}, "measurement 'm' is 'many'"),
        ({"customDimensions": [1]}, "dimensions are a list"),
        ({"itemType": "request"}, "of 'request'; accepted are customEvents"),
    ],
)
def test_what_is_no_event_or_does_not_say_how_many_is_rejected(change, story):
    with pytest.raises(RejectedError, match=story):
        events(msgspec.json.encode({**CLASSIC, **change}))


def test_a_row_of_csv_with_other_columns_is_rejected_and_the_next_one_read():
    data = as_csv(list(CLASSIC.values())[:-2], CLASSIC.values())
    schema = pa.schema([("name", pa.string())])

    [found] = parsed(app_event_records(data, "a.csv"), app_event_row, schema)

    assert (found.batch.num_rows, [reject.number for reject in found.rejects]) == (1, [2])
    assert "8 of 10 columns" in found.rejects[0].reason


def test_times_of_the_portal_are_read():
    assert event_time("11/21/2026, 8:02:14.123 PM") == datetime(2026, 11, 21, 20, 2, 14, 123_000, tzinfo=UTC)
    assert event_time("11/21/2026, 12:00:00 AM") == datetime(2026, 11, 21, tzinfo=UTC)
    assert event_time("2026-11-21T10:00:00+02:00") == datetime(2026, 11, 21, 8, tzinfo=UTC)


def of_times(*times, zone="UTC"):
    return as_csv(*([time, *list(CLASSIC.values())[1:]] for time in times), zone=zone)


@pytest.mark.parametrize(
    ("times", "days"),
    [
        (["7/1/2026, 8:02:14.123 AM", "7/13/2026, 8:02:14 AM"], [(7, 1), (7, 13)]),
        (["01/07/2026, 08:02:14", "13/07/2026, 08:02:14"], [(7, 1), (7, 13)]),
        (["01/07/2026, 8:02:14 am", "13/07/2026, 8:02:14 pm"], [(7, 1), (7, 13)]),
        (["7/1/2026, 8:02:14\u202fAM", "7/13/2026, 8:02:14\u202fPM"], [(7, 1), (7, 13)]),
        (["7/7/2026, 8:02:14 AM"], [(7, 7)]),
        (["2026-07-01T08:02:14Z", "7/13/2026, 8:02:14 AM"], [(7, 1), (7, 13)]),
        (["2026-07-01 08:02:14.1234567"], [(7, 1)]),
    ],
)
def test_the_order_of_day_and_month_is_what_all_times_of_the_file_tell_together(times, days):
    found = [event["timestamp"] for event in events(of_times(*times), "a.csv")]

    assert [(each.month, each.day) for each in found] == days


@pytest.mark.parametrize(
    ("times", "zone", "told"),
    [
        ([f"{day}/7/2026, 8:02:14 AM" for day in range(1, 13)], "UTC", "1/7 may be month and day or day and month"),
        (["01/07/2026, 08:02:14"], "UTC", "az monitor app-insights query"),
        (["13/7/2026, 8:02:14 AM", "7/13/2026, 8:02:14 AM"], "UTC", "in two orders: 13/7 and 7/13"),
        (["7/13/2026, 8:02:14 AM"], "Local Time", r"'timestamp \[Local Time\]'; accepted is \[UTC\]"),
        (["7/13/2026, 8:02:14 AM"], "Europe/Berlin", "those of a place"),
        (["2026-07-13T08:02:14Z"], "local time", "set the portal's time zone to UTC"),
    ],
)  # fmt: skip
def test_a_file_whose_times_are_of_an_unknown_zone_or_order_is_refused_whole(times, zone, told):
    with pytest.raises(RejectedError, match=told):
        app_event_records(of_times(*times, zone=zone), "a.csv")


def test_the_ways_on_from_a_file_of_unknown_zone_or_order_lead_on():
    as_utc = events(of_times("7/1/2026, 8:02:14 AM", "7/13/2026, 8:02:14 AM"), "a.csv")
    query = {"tables": [{"name": "PrimaryResult", "columns": [{"name": name} for name in CLASSIC],
                         "rows": [["2026-07-01T08:02:14Z", *list(CLASSIC.values())[1:]]]}]}  # fmt: skip

    assert events(msgspec.json.encode(query)) == as_utc[:1]


@pytest.mark.parametrize("time", ["01/07/2026, 08:02:14", "7/1/2026, 8:02:14 AM", "13/13/2026, 8:02:14 AM"])
def test_a_time_of_json_that_may_be_another_day_is_rejected(time):
    with pytest.raises(RejectedError):
        events(msgspec.json.encode({**CLASSIC, "timestamp": time}))


def test_a_column_that_is_there_twice_is_refused():
    data = as_csv(CLASSIC.values()).replace(b"sdkVersion", b"itemCount")

    with pytest.raises(RejectedError, match="'itemCount' twice"):
        app_event_records(data, "a.csv")


def test_byte_order_marks_before_the_first_row_are_no_part_of_it():
    head, row = as_csv(CLASSIC.values()).split(b"\r\n")[:2]

    assert events(head + b"\r\n\xef\xbb\xbf" + row, "a.csv") == [EVENT]
    assert events(b"\xef\xbb\xbf" + head + b"\r\n" + row, "a.csv") == [EVENT]


@pytest.mark.parametrize("text", ["None", "null", "NaN", "", None])
def test_what_the_command_line_of_azure_prints_for_no_value_is_none(text):
    row = {
        **WORKSPACE,
        "TableName": "PrimaryResult",
        "ItemCount": "3",
        "Measurements": '{"EventXReceived_Count": 120, "m": "NaN"}',
    }
    row |= dict.fromkeys(("OperationId", "AppRoleName", "_ItemId", "Properties"), text)

    [found] = events(msgspec.json.encode([row]))

    assert found == {**EVENT, "source": "AppEvents", "dimensions": [],
                     "operation_id": None, "role": None, "item_id": None}  # fmt: skip
    with pytest.raises(RejectedError, match="itemCount is None"):
        events(msgspec.json.encode([{**row, "ItemCount": text}]))
    with pytest.raises(RejectedError, match="the event's time"):
        events(msgspec.json.encode([{**row, "TimeGenerated": text}]))
