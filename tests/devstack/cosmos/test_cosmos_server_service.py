import argparse
import hmac
from base64 import b64decode, b64encode

import msgspec
import pytest

from devstack.cosmos import CosmosServer
from devstack.cosmos.__main__ import container_argument, parse_arguments

DATE = "sat, 21 nov 2026 08:00:00 gmt"
COLLECTION = "dbs/d/colls/c"
QUERY = {"x-ms-documentdb-isquery": "True"}


@pytest.fixture
def server():
    made = CosmosServer(clock=lambda: 1000.0)
    made.create_container("d", "c", "/pk", throughput=20_000)
    return made


def ask(server, method, target, headers=None, body=b"", *, kind="docs", link=COLLECTION, key=None):
    signed = f"{method.lower()}\n{kind}\n{link}\n{DATE}\n\n".encode()
    digest = hmac.digest(b64decode(key or server.key), signed, "sha256")
    authorization = f"type=master&ver=1.0&sig={b64encode(digest).decode()}"
    given = {"authorization": authorization, "x-ms-date": DATE, **(headers or {})}
    status, answered, content = server.service.handle(method, target, given, body)
    return status, answered, msgspec.json.decode(content) if content else None


def write(server, document, key='["x"]', **headers):
    body = msgspec.json.encode(document)
    return ask(server, "POST", f"/{COLLECTION}/docs/", {"x-ms-documentdb-partitionkey": key, **headers}, body)


def test_an_answer_tells_its_charge_its_range_and_how_far_that_one_is(server):
    status, headers, document = write(server, {"id": "1", "pk": "x"})

    owner = server.container("d", "c").partition_of(("x",)).range
    assert status == 201
    assert headers["etag"] == document["_etag"]
    assert headers["x-ms-request-charge"] == "5.0"
    assert headers["x-ms-documentdb-partitionkeyrangeid"] == owner.id
    assert headers["x-ms-session-token"] == f"{owner.id}:-1#{owner.lsn}"
    assert headers["x-ms-activity-id"]


@pytest.mark.parametrize("name", ["a/b", "a\\b", "a?b", "a#b", "", "x" * 1024, "é" * 600, 5, None])
def test_an_id_that_may_not_be_is_refused_and_one_that_may_is_not(server, name):
    assert write(server, {"id": name, "pk": "x"})[0] == 400
    assert write(server, {"id": "é" * 511, "pk": "x"})[0] == 201


def test_the_system_properties_a_document_brings_along_are_not_stored_twice(server):
    for _ in range(3):
        _, _, document = write(
            server, {"id": "1", "pk": "x", "_own": 1}, **{"x-ms-documentdb-is-upsert": "true"}
        )
        status, _, document = write(server, document, **{"x-ms-documentdb-is-upsert": "true"})

    assert status == 200
    (partition,) = server.container("d", "c").partitions()
    assert partition.documents["1"].body == b'{"id":"1","pk":"x","_own":1}'


def test_a_document_in_another_partition_than_the_request_is_refused(server):
    status, headers, answer = write(server, {"id": "1", "pk": "y"})

    assert (status, headers["x-ms-substatus"], answer["code"]) == (400, "1001", "BadRequest")


@pytest.mark.parametrize(
    ("method", "target", "status", "substatus"),
    [
        ("POST", "/dbs/d/colls/none/docs", 404, "1003"),
        ("POST", "/dbs/none/colls/c/docs", 404, "1003"),
        ("POST", "/nothing/of/that", 405, "0"),
        ("HEAD", "/dbs/d", 405, "0"),
    ],
)
def test_what_is_not_there_is_said_to_be_so(server, method, target, status, substatus):
    link = target.strip("/").removesuffix("/docs")
    answer = ask(server, method, target, {"x-ms-documentdb-partitionkey": '["x"]'}, b"{}", link=link)

    assert (answer[0], answer[1]["x-ms-substatus"]) == (status, substatus)


def test_only_the_key_of_the_account_signs_requests_and_each_for_itself(server):
    target = f"/{COLLECTION}/pkranges"

    assert ask(server, "GET", target, kind="pkranges")[0] == 200
    assert ask(server, "GET", target, kind="pkranges", key="d3Jvbmc=")[0] == 401
    assert ask(server, "GET", target, kind="docs")[0] == 401
    assert server.service.handle("GET", target, {}, b"")[0] == 401
    assert server.service.handle("GET", target, {"authorization": "type=aad&ver=1.0&sig=x"}, b"")[0] == 401


def test_a_client_that_knows_the_ranges_is_told_only_what_is_new(server):
    target = f"/{COLLECTION}/pkranges"
    _, first, known = ask(server, "GET", target, kind="pkranges")
    again, _, _ = ask(server, "GET", target, {"if-none-match": first["etag"]}, kind="pkranges")
    server.split("d", "c", "1")
    _, _, news = ask(server, "GET", target, {"if-none-match": first["etag"]}, kind="pkranges")

    assert [one["id"] for one in known["PartitionKeyRanges"]] == ["0", "1"]
    assert again == 304
    assert [(one["id"], one["parents"]) for one in news["PartitionKeyRanges"]] == [("2", ["1"]), ("3", ["1"])]


@pytest.mark.parametrize("body", [b"", b"x", b"[]", b'{"query":1}', b'{"query":"SELECT 1","parameters":[1]}'])
def test_a_query_request_that_cannot_be_read_is_a_bad_request(server, body):
    headers = {**QUERY, "x-ms-documentdb-query-enablecrosspartition": "True"}

    assert ask(server, "POST", f"/{COLLECTION}/docs", headers, body)[0] == 400


def test_a_query_over_partitions_has_to_say_so(server):
    body = b'{"query":"SELECT * FROM c"}'
    status, _, answer = ask(server, "POST", f"/{COLLECTION}/docs", QUERY, body)

    assert (status, "enablecrosspartition" in answer["message"]) == (400, True)


@pytest.mark.parametrize(
    ("query", "status"), [("SELECT * FROM c", 200), ("SELECT VALUE COUNT(1) FROM c", 400)]
)
def test_a_plan_is_given_only_where_ranges_can_be_put_together_without_more(server, query, status):
    headers = {"x-ms-cosmos-is-query-plan-request": "True"}
    body = msgspec.json.encode({"query": query})

    assert ask(server, "POST", f"/{COLLECTION}/docs", headers, body)[0] == status


def test_a_defect_of_the_server_is_answered_and_logged(server, caplog, monkeypatch):
    def broken():
        raise ZeroDivisionError

    monkeypatch.setattr(server.account, "offers", broken)
    status, _, answer = ask(server, "GET", "/offers", kind="offers", link="")

    assert (status, "ZeroDivisionError" in answer["message"]) == (500, True)
    assert "ZeroDivisionError" in caplog.text


def test_containers_are_named_on_the_command_line_with_path_and_throughput():
    arguments = parse_arguments(["--port", "0", "--container", "a:/x:400", "--container", "b:/x,/y:1000"])

    assert arguments.container == [("a", "/x", 400), ("b", ["/x", "/y"], 1000)]
    for wrong in ("a", "a:x:400", "a:/x:many", ":/x:400"):
        with pytest.raises(argparse.ArgumentTypeError, match="accepted: name:/partitionKeyPath:RU"):
            container_argument(wrong)
