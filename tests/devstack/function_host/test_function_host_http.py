"""Routes and keys."""

import azure.functions as func
import pytest
from aiohttp.test_utils import TestClient, TestServer

from devstack.function_host.http_server import HttpServer, Keys, Route
from devstack.function_host.indexing import IndexedFunction


def route(template, prefix="api", **trigger):
    function = IndexedFunction(
        "f", print, {"route": template, **trigger}, [], [], wants_context=False, disabled=False
    )
    return Route(function, prefix)


@pytest.mark.parametrize(
    ("template", "path", "parameters"),
    [
        ("status", "/api/status", {}),
        ("status", "/API/Status/", {}),
        ("/status/", "/api/status", {}),
        ("status", "/api/status/x", None),
        ("status", "/status", None),
        ("a.b", "/api/aXb", None),
        ("t/{id}", "/api/t/7", {"id": "7"}),
        ("t/{id}", "/api/t", None),
        ("t/{id}", "/api/t/", None),
        ("t/{id?}", "/api/t", {}),
        ("t/{id?}", "/api/t/7", {"id": "7"}),
        ("t/{id}/u/{part?}", "/api/t/7/u", {"id": "7"}),
        ("t/{id}", "/api/t/7/8", None),
    ],
)
def test_a_route_answers_the_paths_of_its_template(template, path, parameters):
    assert route(template).match("GET", path) == parameters


def test_an_empty_prefix_puts_routes_at_the_root():
    assert route("t/{id}", prefix="").match("GET", "/t/7") == {"id": "7"}


def test_a_route_without_methods_answers_all_and_one_with_methods_only_those():
    assert route("x").match("DELETE", "/api/x") == {}
    assert route("x", methods=["get", "POST"]).match("GET", "/api/x") == {}
    assert route("x", methods=["GET"]).match("POST", "/api/x") is None


def test_literal_text_goes_before_parameters_segment_by_segment():
    templates = ["{any}", "t/{id?}", "t/{id}", "t/mine", "{any}/mine"]

    ordered = sorted(templates, key=lambda template: route(template).precedence)

    assert (
        ordered.index("t/mine")
        < ordered.index("t/{id}")
        < ordered.index("t/{id?}")
        < ordered.index("{any}/mine")
    )


@pytest.mark.parametrize(
    ("keys", "level", "opened_by"),
    [
        (Keys(), "ADMIN", {"", "a", "f", "x"}),
        (Keys("a", "f"), "ANONYMOUS", {"", "a", "f", "x"}),
        (Keys("a", "f"), "FUNCTION", {"a", "f"}),
        (Keys("a", "f"), "ADMIN", {"a"}),
        (Keys(admin="a"), "FUNCTION", {"a"}),
        (Keys(function="f"), "FUNCTION", {"f"}),
        (Keys(function="f"), "ADMIN", set()),  # an absent key is not opened by an empty one
    ],
)
def test_a_key_opens_its_level(keys, level, opened_by):
    assert {offered for offered in ("", "a", "f", "x") if keys.allow(level, offered)} == opened_by


HERE = "127.0.0.1:7071"
OTHER = "https://example.org"


async def answered(headers, *, method="POST", keys=Keys(), path="/api/pause"):
    """The status of an order as a browser sends it without asking first, and whether the function was called."""
    trigger = {"type": "httpTrigger", "route": "pause", "authLevel": "FUNCTION"}
    pause = IndexedFunction("pause", print, trigger, [], [], wants_context=False, disabled=False)
    calls, runs = [], []

    async def call(function, request):
        calls.append(function.name)
        return func.HttpResponse("done")

    server = HttpServer([pause], "api", keys, call=call, run=lambda *run: runs.append(run))
    async with TestClient(TestServer(server.application)) as client:
        sent = {"Host": HERE, "Content-Type": "text/plain", **headers}
        answer = await client.request(method, path, headers=sent, data=b'{"input": ""}')
        return answer.status, bool(calls or runs)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": OTHER},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:8080"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "rebound.example.org:7071"},
        {"Host": "rebound.example.org:7071", "Origin": "http://rebound.example.org:7071"},
    ],
)
@pytest.mark.parametrize("path", ["/api/pause", "/admin/functions/pause"])
async def test_without_keys_another_sites_page_gives_no_orders(headers, path):
    assert await answered(headers, path=path) == (403, False)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": f"http://{HERE}", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
        {"Host": "localhost:7071", "Origin": "http://localhost:7071"},
    ],
)
async def test_without_keys_the_hosts_own_page_and_a_shell_do(headers):
    assert await answered(headers) == (200, True)


async def test_with_keys_the_key_decides():
    keys = Keys(function="f")

    assert await answered({"Origin": OTHER}, keys=keys) == (401, False)
    assert await answered({"Origin": OTHER, "x-functions-key": "f"}, keys=keys) == (200, True)
