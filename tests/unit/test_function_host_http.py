"""Routes and keys."""

import pytest

from devstack.function_host.http_server import Keys, Route
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
