"""Signing in as the templates set it up: agrees with what the app checks, and with the SDK's model of the resource."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from azure.mgmt.web import models

from tests.support.infra.templates import (
    ANOTHER_TENANT,
    DEPLOYING,
    INFRA,
    REGISTRATION,
    WORLDS,
    deployed,
    settings,
)
from tests.support.principals import PLATFORM
from tidemark.foundation.http import callers
from tidemark.foundation.http.callers import AuthMode, auth_mode_of
from tidemark.foundation.http.deployed_app import CLIENT_ID

AZURE_CLI = "04b07795-8ddb-461a-bbee-02f9e1bf7b46"
SIGNING_IN = ("people sign in", "people of another tenant sign in")


def sign_in(world: str) -> list[Any]:
    return [
        each
        for each in deployed(world).of_type("Microsoft.Web/sites/config")
        if each.name.endswith("/authsettingsV2")
    ]


def registration_file(name: str) -> Any:
    return json.loads((INFRA / "app-registration" / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("world", sorted(WORLDS))
def test_the_app_asks_for_roles_where_the_platform_signs_in_and_for_keys_elsewhere(world: str) -> None:
    on = world in SIGNING_IN
    platform = PLATFORM if sign_in(world) else {}

    assert bool(sign_in(world)) is on
    assert auth_mode_of({**settings(world), **platform}) == AuthMode(platform=on, sign_in=on)


@pytest.mark.parametrize(
    ("world", "tenant", "programs"),
    [
        (SIGNING_IN[0], "99999999-0000-0000-0000-000000000000", [REGISTRATION, AZURE_CLI]),
        (SIGNING_IN[1], ANOTHER_TENANT, [REGISTRATION]),
    ],
)
def test_tokens_are_those_of_one_tenant_for_one_registration_by_known_programs(
    world: str, tenant: str, programs: list[str]
) -> None:
    (found,) = sign_in(world)
    directory = found.properties["identityProviders"]["azureActiveDirectory"]

    assert directory["enabled"] is True
    assert directory["registration"] == {
        "clientId": REGISTRATION,
        "openIdIssuer": f"https://login.microsoftonline.com/{tenant}/v2.0",
    }
    assert directory["validation"] == {
        "allowedAudiences": [REGISTRATION, f"api://{REGISTRATION}"],
        "defaultAuthorizationPolicy": {"allowedApplications": programs},
    }
    assert list(found.properties["identityProviders"]) == ["azureActiveDirectory"]


def test_the_platform_lets_through_and_the_app_refuses() -> None:
    """Elsewise nobody would see the app's own words, and runs from the portal would end before the host's keys."""
    (found,) = sign_in(SIGNING_IN[0])

    assert found.properties["platform"]["enabled"] is True
    assert found.properties["globalValidation"] == {
        "requireAuthentication": False,
        "unauthenticatedClientAction": "AllowAnonymous",
    }
    assert found.properties["login"] == {"tokenStore": {"enabled": False}}


def test_every_property_is_one_of_the_sdks_model_of_the_resource() -> None:
    (found,) = sign_in(SIGNING_IN[0])

    assert unknown(found.properties, models.SiteAuthSettingsV2Properties) == []
    assert unknown({"platform": {"enabledd": True}}, models.SiteAuthSettingsV2Properties) == [
        "platform.enabledd"
    ]


def test_the_roles_of_the_registration_are_those_the_app_looks_for() -> None:
    roles = registration_file("roles.json")
    api, with_programs = registration_file("api.json")["api"], registration_file("programs.json")["api"]
    (scope,) = api["oauth2PermissionScopes"]
    (program,) = with_programs.pop("preAuthorizedApplications")

    assert {role["value"] for role in roles} == {callers.READER, callers.OPERATOR}
    assert all(role["isEnabled"] and role["allowedMemberTypes"] == ["User", "Application"] for role in roles)
    assert len({role["id"] for role in roles} | {scope["id"]}) == 3
    assert with_programs == api  # a scope has to be there before a program can be allowed it
    assert api["requestedAccessTokenVersion"] == 2  # of the issuer that the platform is told
    assert program == {"appId": AZURE_CLI, "delegatedPermissionIds": [scope["id"]]}
    assert WORLDS["as it comes"]["signInClientApplications"] == [AZURE_CLI]


def test_the_guide_makes_a_registration_that_the_platform_can_sign_in_with() -> None:
    for text in (
        f"{callers.LOGIN}/callback",
        "--enable-id-token-issuance true",
        "--app-roles @infra/app-registration/roles.json",
        "for file in api programs; do",
        "@infra/app-registration/$file.json",
        'api://$id"',
        f"azd env set {CLIENT_ID}",
        *(role["id"] for role in registration_file("roles.json")),
    ):
        assert text in DEPLOYING, text


def unknown(body: Any, model: Any, path: str = "") -> list[str]:
    """Properties in `body` that the model, or one of those below it, does not have."""
    base = models.SiteAuthSettingsV2Properties.__mro__[1]
    if not isinstance(body, dict) or not (isinstance(model, type) and issubclass(model, base)):
        return []
    model()  # the fields are worked out with the first instance
    names = {field._rest_name: attribute for attribute, field in model._attr_to_rest_field.items()}
    found = []
    for name, value in body.items():
        if name not in names:
            found.append(f"{path}{name}")
            continue
        below = re.search(r"_models\.(\w+)", str(model.__annotations__[names[name]]))
        found += unknown(value, getattr(models, below[1]) if below else None, f"{path}{name}.")
    return found
