"""Which value fits which column, what becomes of it, and what is told of one that does not fit."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.model import Event, Record, Rejection, Write
from consumer.sinks.lake.columns import TYPES, RowMapper, parse_schema
from consumer.sinks.lake.storage import storage_options
from tidemark.foundation.errors import SettingsError

EVENT = Event(
    "3", 7, "448", 1_795_000_000.5, b'\xef\xbb\xbf{"a":1}', partition_key="LGA", incarnation="1764165000123"
)


def column(kind, value):
    """What a column of a type has in the end, or the sentence about the value."""
    arrow = kind if isinstance(kind, pa.DataType) else parse_schema({"c": kind}).field("c").type
    mapper = RowMapper(pa.schema([("c", arrow)]), {}, "ns/flights")
    row = mapper.row(Write(EVENT), {"c": value})
    if isinstance(row, Rejection):
        assert row.reason == "value"
        return row.detail
    return mapper.batch([Record(EVENT, "k", row)]).to_pylist()[0]["c"]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("long", 2**63 - 1, 2**63 - 1),
        ("long", 5.0, 5),
        ("byte", -128, -128),
        ("double", 3, 3.0),
        ("float", 1.5, 1.5),
        ("string", "Köln ✈", "Köln ✈"),
        ("string", {"a": [1]}, '{"a":[1]}'),
        ("string", b"text", "text"),
        ("binary", "text", b"text"),
        ("boolean", False, False),
        ("date", "2026-02-28", date(2026, 2, 28)),
        ("timestamp", "2026-01-01T01:00:00.123456+01:00", datetime(2026, 1, 1, 0, 0, 0, 123456, UTC)),
        ("timestamp", "2026-01-01T00:00:00", datetime(2026, 1, 1, tzinfo=UTC)),
        ("timestamp", 1_795_000_000.25, datetime.fromtimestamp(1_795_000_000.25, UTC)),
        ("timestamp", -1, datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)),
        ("timestamp_ntz", "2026-01-01T01:00:00+01:00", datetime(2026, 1, 1)),
        ("decimal(5,2)", 1.1, Decimal("1.10")),
        ("decimal(5,2)", "-999.99", Decimal("-999.99")),
        ("decimal(5,2)", "1e2", Decimal("100.00")),
        ("decimal(38,0)", 10**38 - 1, Decimal(10**38 - 1)),
        ("decimal(38,38)", "0." + "1" * 38, Decimal("0." + "1" * 38)),
        ("long", None, None),
        (pa.list_(pa.decimal128(3, 1)), [1, None, "2.5"], [Decimal("1.0"), None, Decimal("2.5")]),
        (pa.struct([("x", pa.int64())]), {"x": 1, "y": 2}, {"x": 1}),
    ],
)
def test_a_value_that_fits_is_stored(kind, value, expected):
    assert column(kind, value) == expected


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("long", "5", "takes whole numbers; found '5'"),
        ("long", 1.5, "takes whole numbers; found 1.5"),
        ("long", True, "takes whole numbers; found True"),
        ("long", 2**63, "takes whole numbers of 64 bits; found 9223372036854775808"),
        ("short", 40_000, "takes whole numbers of 16 bits; found 40000"),
        ("double", 2**53 + 1, "is none without being rounded"),
        ("double", 10**400, "is none without being rounded"),
        ("float", 1e39, "takes numbers of 32 bits; found 1e+39"),
        ("string", 5, "takes text; found 5"),
        ("string", b"\xff", "takes text; found bytes that are no UTF-8"),
        ("string", "\ud800", "surrogates not allowed"),
        ("boolean", 1, "takes true or false; found 1"),
        ("date", "yesterday", "takes dates such as 2026-11-27; found 'yesterday'"),
        ("date", 5, "takes dates; found 5"),
        ("timestamp", "soon", "takes times in ISO 8601 or epoch seconds; found 'soon'"),
        ("timestamp", 1_795_000_000_000, "Were these milliseconds, microseconds or nanoseconds?"),
        ("timestamp", float("nan"), "is none in epoch seconds"),
        ("decimal(1,0)", "10", "takes decimals of 1 digit, 0 of them behind the point; found '10'"),
        ("decimal(5,2)", "1000", "takes decimals of 5 digits, 2 of them behind the point; found '1000'"),
        ("decimal(5,2)", 1.234, "takes decimals of 5 digits, 2 of them behind the point; found 1.234"),
        ("decimal(5,2)", "NaN", "takes decimals"),
        ("decimal(5,2)", "1e-99999999", "takes decimals"),
        ("decimal(5,2)", "1e99999999", "takes decimals"),
        (pa.list_(pa.int64()), 5, "takes lists; found 5"),
        (pa.struct([("x", pa.int64())]), [1], "takes objects; found [1]"),
        (pa.struct([pa.field("x", pa.int64(), nullable=False)]), {}, "takes no null in 'x'"),
    ],
)
def test_a_value_that_does_not_fit_is_told_with_its_column(kind, value, words):
    said = column(kind, value)

    assert said.startswith("column 'c' ")
    assert words in said
    assert len(said) < 250


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.decimals()
    | st.datetimes(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from([*TYPES, "decimal(5,2)", "decimal(38,10)"]), VALUES)
def test_whatever_is_accepted_can_be_stored(kind, value):
    """A batch that Arrow refused would be tried for ever."""
    column(kind, value)


def test_columns_come_from_the_document_and_from_the_event():
    sources = {
        "b": "$.x.y",
        "n": "@sequence_number",
        "at": "@enqueued_at",
        "body": "@body",
        "of": "@topic",
        "hub": "@incarnation",
    }
    kinds = {
        "a": "long",
        "b": "string",
        "n": "long",
        "at": "timestamp",
        "body": "string",
        "of": "string",
        "hub": "string",
    }
    mapper = RowMapper(parse_schema(kinds), sources, "ns/flights")
    row = mapper.row(Write(EVENT), {"a": 1, "x": {"y": "z"}})

    assert mapper.batch([Record(EVENT, "k", row)]).to_pylist() == [
        {
            "a": 1,
            "b": "z",
            "n": 7,
            "at": datetime.fromtimestamp(1_795_000_000.5, UTC),
            "body": '{"a":1}',
            "of": "ns/flights",
            "hub": "1764165000123",
        }
    ]


@pytest.mark.parametrize(
    ("connection", "expected"),
    [
        ({"S": "UseDevelopmentStorage=true"}, {"azure_storage_use_emulator": "true"}),
        (
            {
                "S": "DefaultEndpointsProtocol=https;AccountName=acme;AccountKey=a2V5;EndpointSuffix=core.windows.net"
            },
            {"azure_storage_account_name": "acme", "azure_storage_account_key": "a2V5"},
        ),
        (
            {"S": "AccountName=acme;AccountKey=a2V5;EndpointSuffix=core.chinacloudapi.cn"},
            {
                "azure_storage_account_name": "acme",
                "azure_storage_account_key": "a2V5",
                "azure_endpoint": "https://acme.blob.core.chinacloudapi.cn",
            },
        ),
        (
            {"S": "BlobEndpoint=https://acme.blob.core.windows.net/;SharedAccessSignature=?sv=1&sig=a%3D"},
            {
                "azure_storage_account_name": "acme",
                "azure_storage_sas_key": "sv=1&sig=a%3D",
                "azure_endpoint": "https://acme.blob.core.windows.net",
            },
        ),
        (
            {"S__accountName": "acme", "S__credential": "managedidentity", "S__clientId": "one"},
            {
                "azure_storage_account_name": "acme",
                "azure_endpoint": "https://acme.blob.core.windows.net",
                "azure_client_id": "one",
            },
        ),
    ],
)
def test_a_connection_is_told_to_deltalake_in_its_words(connection, expected):
    assert storage_options("abfss://lake@acme.dfs.core.windows.net/t", connection, "S") == expected


def test_a_table_of_another_account_than_that_of_the_connection_is_told():
    with pytest.raises(SettingsError, match="is in another account than S, which is of acme"):
        storage_options(
            "abfss://lake@other.dfs.core.windows.net/t", {"S": "AccountName=acme;AccountKey=a2V5"}, "S"
        )


def test_a_local_folder_needs_no_connection():
    assert storage_options("/data/flights", {}, "S") == {}


@pytest.mark.parametrize(
    "text", ["int", "decimal(0,0)", "decimal(39,0)", "decimal(3,4)", "long not  null", ""]
)
def test_a_type_that_does_not_exist_is_told(text):
    with pytest.raises(SettingsError, match=r"no such type; accepted: string, long, .* decimal"):
        parse_schema({"c": text})
