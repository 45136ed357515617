"""Requests made by hand against the SDK of tables: each reads what the other wrote, on the wire."""

import base64
import json
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential
from azure.core.exceptions import AzureError, HttpResponseError, ServiceResponseError
from azure.data.tables import TableSasPermissions, generate_table_sas
from azure.data.tables.aio import TableServiceClient
from hypothesis import given
from hypothesis import strategies as st

from tidemark.foundation.azure.storage_requests import Bearer, Reply
from tidemark.foundation.azure.table_requests import TableRequests, body_of, entity_of
from tidemark.foundation.azure.tables import Table

NASTY = {
    "Text": "it's “x”\n\t\0",
    "Lone": "a \ud800 surrogate",
    "Empty": "",
    "Bytes": bytes(range(256)),
    "NoBytes": b"",
    "Yes": True,
    "No": False,
    "Small": -(2**31),
    "Large": 2**40,
    "Whole": 3.0,
    "Tiny": 5e-324,
    "NaN": float("nan"),
    "Ever": float("-inf"),
}
ODD_KEYS = ["plain", "it's", "100 %", "%41", "~2F~", "a:b@c", "ä€😀", "a+b&c=d;e", "(PartitionKey='x')"]


@pytest.fixture
async def world(azurite):
    """Ours and the SDK's client of one table that is there."""
    name = f"Rows{uuid.uuid4().hex}"
    async with TableServiceClient.from_connection_string(azurite) as service:
        sdk = service.get_table_client(name)
        await sdk.create_table()
        table = Table({"Store": azurite}, "Store", name)
        yield table, sdk
        await table.aclose()


def plain(entity):
    """Values without the SDK's wrapping of long integers, and NaN as a word."""
    values = {name: getattr(value, "value", value) for name, value in entity.items()}
    return {
        name: "NaN" if isinstance(value, float) and value != value else value
        for name, value in values.items()
    }


@pytest.mark.wire
@pytest.mark.parametrize("key", ODD_KEYS)
async def test_each_reads_what_the_other_wrote(world, key):
    table, sdk = world
    row = {"PartitionKey": key, "RowKey": f"{key}.", **NASTY}

    await table.save(row, None)
    theirs = await sdk.get_entity(key, f"{key}.")
    await sdk.upsert_entity({**row, "Large": theirs["Large"], "RowKey": "theirs"}, mode="replace")
    ours, mine = await table.get(key, "theirs"), await table.get(key, f"{key}.")

    assert plain(theirs) == plain(row)
    assert plain(mine) == plain(row)
    assert plain(ours) == plain({**row, "RowKey": "theirs"})
    assert mine.etag == theirs.metadata["etag"]
    assert mine.written == pytest.approx(theirs.metadata["timestamp"].timestamp(), abs=1e-6)


@pytest.mark.wire
async def test_columns_of_other_types_survive_being_read_and_written(world):
    table, sdk = world
    row = {
        "PartitionKey": "p",
        "RowKey": "r",
        "When": datetime(2026, 11, 23, 4, 5, 6, 123456, tzinfo=UTC),
        "Who": uuid.uuid4(),
    }
    await sdk.upsert_entity(row)

    await table.put([{**(await table.get("p", "r")), "RowKey": "copy"}])

    copy = await sdk.get_entity("p", "copy")
    assert dict(copy) == {**row, "RowKey": "copy"}


@pytest.mark.wire
async def test_queries_give_every_row_once_in_key_order_whatever_the_page(world):
    table, sdk = world
    for number in range(7):
        await sdk.create_entity({"PartitionKey": "p's", "RowKey": f"{number}", "Number": number})
    everything = "PartitionKey eq 'p''s'"

    streamed = [row["RowKey"] async for row in table.stream(everything, page=3)]
    limited = await table.rows(everything, select=["Number"], limit=5)

    assert [row["RowKey"] for row in await table.rows(everything)] == streamed == list("0123456")
    assert limited == [{"Number": number} for number in range(5)]
    assert await table.rows(f"{everything} and RowKey gt '8'") == []


@pytest.mark.wire
async def test_a_shared_access_signature_signs_the_address(azurite, world):
    table, _ = world
    parts = dict(part.split("=", 1) for part in azurite.split(";") if part)
    account = AzureNamedKeyCredential(parts["AccountName"], parts["AccountKey"])
    signed = generate_table_sas(
        account,
        table.name,
        permission=TableSasPermissions(read=True),
        expiry=datetime.now(UTC) + timedelta(hours=1),
    )
    text = f"TableEndpoint={parts['TableEndpoint']};AccountName={parts['AccountName']};SharedAccessSignature={signed}"
    await table.put([{"PartitionKey": "p", "RowKey": "r"}])
    reader = Table({"Store": text}, "Store", table.name)

    assert await reader.get("p", "r") == {"PartitionKey": "p", "RowKey": "r"}
    with pytest.raises(Exception, match="answered 403"):
        await reader.put([{"PartitionKey": "p", "RowKey": "r"}])
    await reader.aclose()


# --- the wire, scripted


class Scripted:
    """Answers with what the script says: a status with headers and body, or an error to raise."""

    def __init__(self, *script):
        self.script, self.sent, self.waited = list(script), [], []

    async def send(self, method, url, headers, body):
        self.sent.append((method, url, dict(headers)))
        said = self.script.pop(0)
        if isinstance(said, Exception):
            raise said
        status, told, content = (*said, *({}, b"{}")[len(said) - 1 :])
        return Reply(status, told, content, "because")

    async def sleep(self, seconds):
        self.waited.append(seconds)

    async def aclose(self):
        pass


class Token:
    def __init__(self):
        self.asked = []

    async def get_token(self, *scopes, **_):
        self.asked.append(scopes)
        return AccessToken("t0ken", 4_000_000_000)

    async def close(self):
        pass


def requests_of(wire, credential=None, url="https://acme.table.core.windows.net"):
    key = AzureNamedKeyCredential("acme", base64.b64encode(b"secret").decode())
    service = TableServiceClient(url, credential=credential or key)
    return TableRequests(service, "Rows", wire, 3)


BUSY = (503, {"Retry-After": "0"})
LOST = ServiceResponseError("the connection broke")
ROW = {"PartitionKey": "p", "RowKey": "r"}


async def test_an_identity_signs_with_a_token_for_storage_which_it_keeps_itself():
    wire, token = Scripted((200, {}, b'{"value":[]}')), Token()
    await requests_of(wire, token).query("RowKey eq 'x'", select=None, top=None)

    assert token.asked == [("https://storage.azure.com/.default",)]
    assert [headers["Authorization"] for _, _, headers in wire.sent] == ["Bearer t0ken"]


async def test_a_token_goes_over_tls_only():
    with pytest.raises(AzureError, match="over TLS only"):
        await Bearer(Token()).sign("GET", "http://acme.example/Rows", {})


async def test_what_can_be_repeated_is_and_a_new_row_only_after_an_answer():
    wire = Scripted(BUSY, LOST, (204,), BUSY, (204,), LOST)
    requests = requests_of(wire)

    await requests.put(ROW, 'W/"1"')
    await requests.create(ROW)
    with pytest.raises(ServiceResponseError):
        await requests.create(ROW)

    assert [method for method, _, _ in wire.sent] == ["PUT"] * 3 + ["POST"] * 3
    assert [headers.get("If-Match") for _, _, headers in wire.sent] == ['W/"1"'] * 3 + [None] * 3


@pytest.mark.parametrize("status", [301, 302, 307, 304])
async def test_an_answer_from_elsewhere_has_written_nothing(status):
    """Whatever stands between may redirect to a page of its own."""
    requests = requests_of(Scripted(*[(status, {"Location": "https://proxy.example/"}, b"")] * 2))

    for write in (requests.put, requests.create):
        with pytest.raises(HttpResponseError) as caught:
            await write(ROW)
        assert caught.value.status_code == status


ERRORS = {
    "json": (404, {}, b'{"odata.error": {"code": "TableNotFound", "message": {"value": "no"}}}'),
    "xml": (404, {}, b"<?xml version='1.0'?><Error><Code>TableNotFound</Code></Error>"),
    "a header": (404, {"x-ms-error-code": "TableNotFound"}, b"<html>gateway</html>"),
}


@pytest.mark.parametrize("answer", ERRORS.values(), ids=ERRORS)
async def test_the_word_of_the_service_is_found(answer):
    with pytest.raises(HttpResponseError) as caught:
        await requests_of(Scripted(answer)).get("p", "r")

    assert (caught.value.status_code, caught.value.error_code) == (404, "TableNotFound")


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff\xfe", b'{"odata.error": null}', b"<Code>"])
async def test_an_error_without_a_word_is_still_told(body):
    with pytest.raises(HttpResponseError) as caught:
        await requests_of(Scripted((409, {}, body))).create(ROW)

    assert (caught.value.status_code, caught.value.error_code) == (409, "")


VALUES = st.one_of(
    st.text(),
    st.binary(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
)


@given(st.dictionaries(st.from_regex("[A-Za-z]{1,8}", fullmatch=True), VALUES))
def test_a_row_comes_back_as_it_was(row):
    found = entity_of(json.loads(body_of(row)))

    assert found == {name: value for name, value in row.items() if name != "Timestamp"}
    assert {name: type(value) for name, value in found.items()} == {
        name: type(value) for name, value in row.items() if name != "Timestamp"
    }


def test_a_number_that_is_too_long_for_the_type_json_stands_for_says_so():
    found = json.loads(body_of({"A": 2**31 - 1, "B": 2**31, "C": -(2**31), "D": -(2**31) - 1}))

    long = {"B": "2147483648", "B@odata.type": "Edm.Int64", "D": "-2147483649", "D@odata.type": "Edm.Int64"}
    assert found == {"A": 2**31 - 1, "C": -(2**31), **long}


def test_what_no_property_can_be_is_refused_by_name():
    with pytest.raises(TypeError, match="column 'Odd' holds a list; accepted are text"):
        body_of({"Odd": []})
