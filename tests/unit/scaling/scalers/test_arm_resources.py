"""Requests for any resource: what goes out once, under which guard, and which address the token may go to."""

import json
from types import SimpleNamespace

import pytest
from azure.core.exceptions import HttpResponseError

from scaling.resource_id import ResourceId
from scaling.scalers.arm.resources import ArmResources, Followed, OperationFailedError

ID = "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/rg/providers/Microsoft.X/things/a/parts/b"
HOST = "https://management.azure.com"


class Answer(SimpleNamespace):
    def __init__(self, status=200, body=None, **headers):
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        super().__init__(status_code=status, headers=told, reason="", content_type="application/json")
        self._body = json.dumps(body) if not isinstance(body, str) else body

    def text(self):
        return self._body

    async def read(self):
        return self._body.encode()

    def json(self):
        return json.loads(self._body)


class Client:
    def __init__(self, *answers):
        self.answers = list(answers)
        self.sent = []

    def format_url(self, path):
        return path if "://" in path else f"{HOST}{path}"  # as the SDK's does

    async def send_request(self, request, **options):
        self.sent.append((request, options))
        return self.answers.pop(0)


def resources(*answers):
    made = ArmResources.__new__(ArmResources)
    made._client = Client(*answers)
    return made


async def test_a_change_is_asked_for_once_and_guarded_by_what_was_read():
    client = resources(Answer())

    assert await client.change("PUT", ID, "2024-01-01", {"a": 1}, etag='"7"') is None

    [(request, options)] = client._client.sent
    assert (request.method, request.url) == ("PUT", f"{HOST}{ID}?api-version=2024-01-01")
    assert request.headers["If-Match"] == '"7"'
    assert json.loads(request.content) == {"a": 1}
    assert options == {"retry_total": 0}


async def test_a_list_is_followed_from_page_to_page():
    client = resources(
        Answer(body={"value": [{"id": "a"}], "nextLink": f"{HOST}/next?page=2"}),
        Answer(body={"value": [{"id": "b"}], "nextLink": "https://Management.azure.com:443/next?page=3"}),
        Answer(body={"value": [{"id": "c"}], "nextLink": None}),
    )

    assert [each["id"] async for each in client.entries("/list", "1")] == ["a", "b", "c"]


async def test_a_list_that_goes_on_in_a_circle_is_not_followed():
    client = resources(*(Answer(body={"value": [{"id": "a"}], "nextLink": "/list"}) for _ in range(2)))

    with pytest.raises(ValueError, match="goes on in a circle"):
        [each async for each in client.entries("/list", "1")]
    assert len(client._client.sent) == 1


async def test_without_an_etag_nothing_is_guarded():
    client = resources(Answer())

    await client.change("PATCH", ID, "2024-01-01", {})

    assert "If-Match" not in client._client.sent[0][0].headers


@pytest.mark.parametrize(
    ("answer", "followed"),
    [
        (Answer(202, None, Location=f"{HOST}/o/1", Retry_After="7"), Followed(f"{HOST}/o/1", False, 7.0)),
        (
            Answer(201, None, **{"Azure-AsyncOperation": f"{HOST}/o/1", "Location": f"{HOST}/o/2"}),
            Followed(f"{HOST}/o/1", True, None),
        ),
        (Answer(200, None, Location=f"{HOST}/o/1"), None),
        (Answer(202, None, Location="https://elsewhere.example/o/1"), None),
        (Answer(202, None, Location="http://management.azure.com/o/1"), None),
        (Answer(202), None),
    ],
)
async def test_an_operation_is_followed_where_resource_manager_is_and_nowhere_else(answer, followed):
    """The token goes along."""
    assert await resources(answer).change("PATCH", ID, "2024-01-01", {}) == followed


@pytest.mark.parametrize("status", ["Canceled", "Failed"])
async def test_an_operation_that_ends_otherwise_says_why(status):
    told = {"status": status, "error": {"code": "X", "message": "no room"}}

    with pytest.raises(OperationFailedError, match=f"ended as {status}: no room"):
        await resources(Answer(200, told)).follow(Followed(f"{HOST}/o/1", True))


@pytest.mark.parametrize("status", [403, 404])
async def test_an_address_that_may_not_be_read_is_left_to_the_resource(status):
    assert await resources(Answer(status)).follow(Followed(f"{HOST}/o/1", True)) is None


async def test_an_address_that_fails_is_no_end():
    with pytest.raises(HttpResponseError):
        await resources(Answer(503)).follow(Followed(f"{HOST}/o/1", True))


@pytest.mark.parametrize("body", ["<html>", "[]", "null"])
async def test_an_answer_of_another_form_is_an_error_and_not_an_empty_resource(body):
    with pytest.raises(ValueError, match=r"the answer of .* is no"):
        await resources(Answer(200, body)).get(ID, "2024-01-01")


def test_an_id_is_taken_apart():
    found = ResourceId.parse(f" {ID}/ ")

    assert (str(found), found.type, found.name) == (ID, "Microsoft.X/things/parts", "b")
    assert found.parts == (("things", "a"), ("parts", "b"))
