"""Every resource of the templates against Azure's published types."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.data.make_azure_types import Table, used
from tests.support.infra.azure_types import problems, table
from tests.support.infra.templates import TEMPLATES, WORLDS, deployed, only


@pytest.mark.parametrize("world", sorted(WORLDS))
def test_every_resource_has_properties_that_its_type_and_version_know(world: str) -> None:
    found = [
        f"{each.file}: {problem}"
        for each in deployed(world).resources
        for problem in problems(each.type, each.api_version, each.name.rpartition("/")[2], each.body)
    ]

    assert found == []


def test_every_type_and_version_is_a_published_one_those_of_existing_resources_too() -> None:
    used = {
        f"{each.type}@{each.api_version}"
        for template in TEMPLATES.values()
        for each in template.resources.values()
    }

    assert used <= set(table()["types"])


def test_the_table_has_what_the_templates_use_and_nothing_else() -> None:
    assert used() == sorted(table()["types"])


def referring(index: int) -> dict[str, str]:
    return {"$ref": f"#/{index}"}


def test_the_table_is_made_of_what_may_be_written() -> None:
    """In the form that the types are published in."""
    members = {
        "name": {"type": referring(0), "flags": 9},
        "id": {"type": referring(0), "flags": 10},
        "size": {"type": referring(3), "flags": 0},
        "self": {"type": referring(4), "flags": 0},
        "tags": {"type": referring(5), "flags": 0},
    }
    nodes: list[dict[str, Any]] = [
        {"$type": "StringType"},
        {"$type": "StringLiteralType", "value": "S"},
        {"$type": "StringLiteralType", "value": "L"},
        {"$type": "UnionType", "elements": [referring(1), referring(2), referring(0)]},
        {"$type": "ObjectType", "name": "Thing", "properties": members},
        {"$type": "ObjectType", "name": "Thing", "properties": {}, "additionalProperties": referring(6)},
        {"$type": "ArrayType", "itemType": referring(7)},
        {"$type": "DiscriminatedObjectType", "name": "Any", "discriminator": "kind", "elements": {"a": referring(4)}},
    ]  # fmt: skip
    made = Table()

    assert made.kind(nodes, referring(4), "web/1") == "web/1/Thing"
    assert made.shapes == {
        "web/1/Thing": {
            "name": "string!",
            "size": "one of S|L",
            "self": "web/1/Thing",
            "tags": "web/1/Thing (2)",
        },
        "web/1/Thing (2)": {"*": "list of web/1/Any"},
        "web/1/Any": {"?by": "kind", "?of": {"a": "web/1/Thing"}},
    }


SITE = "Microsoft.Web/sites"


def broken(path: tuple[str, ...], value: Any) -> list[str]:
    """Problems of the app with one property changed; None takes it away."""
    site = only("as it comes", SITE)
    body = copy.deepcopy(site.body)
    inner = body
    for name in path[:-1]:
        inner = inner[name]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return problems(SITE, site.api_version, site.name, body)


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("properties", "siteConfig", "minTlsVersion"), "1.4", "minTlsVersion is '1.4', accepted"),
        (("properties", "siteConfig", "alwaysReady"), True, "alwaysReady is unknown, accepted"),
        (("properties", "httpsOnly"), "true", "httpsOnly is 'true', bool is accepted"),
        (
            ("properties", "functionAppConfig", "scaleAndConcurrency", "instanceMemoryMB"),
            True,
            "int is accepted",
        ),
        (("properties", "siteConfig", "cors", "allowedOrigins"), "*", "a list is accepted"),
        (("properties", "siteConfig", "cors", "allowedOrigins"), [1], r"allowedOrigins[0] is 1"),
        (("properties", "siteConfig"), [], "an object is accepted"),
        (("identity", "type"), "UserAssigned, System", "identity.type is"),
        (("tags", "a"), 1, "tags.a is 1, string is accepted"),
        (("location",), None, "location is missing"),
    ],
)
def test_what_no_type_knows_is_found_with_its_place(path: tuple[str, ...], value: Any, problem: str) -> None:
    (found,) = broken(path, value)

    assert problem in found


def test_a_version_that_was_never_published_is_found_and_those_that_are_known_are_named() -> None:
    (found,) = problems(SITE, "2024-04-02", "x", {})

    assert "Microsoft.Web/sites@2024-04-02 is not in" in found
    assert "Microsoft.Web/sites@2024-04-01" in found


def test_the_config_of_a_site_is_known_by_its_name() -> None:
    kind, version = "Microsoft.Web/sites/config", "2024-04-01"

    assert problems(kind, version, "appsettings", {"properties": {"A": "b"}}) == []
    assert problems(kind, version, "appsettings", {"properties": {"A": 1}}) != []
    assert "accepted: ['appsettings'" in problems(kind, version, "settings", {})[0]
