"""Who may ask and who may order: a key, or the platform's sign-in with a role; never a header of the caller's own."""

import pytest

from tests.support.principals import OBJECT_ID, PLATFORM, SIGN_IN, order_headers, principal, signed_in
from tidemark.foundation.http.callers import (
    NOBODY,
    OPERATOR,
    READER,
    AuthMode,
    Caller,
    RefusedError,
    admit,
    auth_mode_of,
    named,
)

KEYS = AuthMode()
NAMES = AuthMode(platform=True)
"""A key opens, and the platform tells who is signed in."""
ROLES = AuthMode(platform=True, sign_in=True)


@pytest.mark.parametrize(
    ("settings", "mode"),
    [
        ({}, KEYS),
        ({"TIDEMARK_SIGN_IN": "true"}, KEYS),
        (
            {"WEBSITE_AUTH_ENABLED": "True", "TIDEMARK_SIGN_IN": "true"},
            KEYS,
        ),  # nothing says that this is Azure
        ({**SIGN_IN, "WEBSITE_AUTH_ENABLED": "False"}, KEYS),
        ({**SIGN_IN, "WEBSITE_AUTH_ENABLED": ""}, KEYS),
        ({**SIGN_IN, "AZURE_FUNCTIONS_ENVIRONMENT": "Development"}, KEYS),  # func start
        ({**SIGN_IN, "AZURE_FUNCTIONS_ENVIRONMENT": "Production"}, ROLES),
        (PLATFORM, NAMES),
        ({**PLATFORM, "TIDEMARK_SIGN_IN": "false"}, NAMES),
        (SIGN_IN, ROLES),
    ],
)
def test_the_platform_vouches_only_where_it_runs_and_signs_in(settings, mode):
    assert auth_mode_of(settings) == mode


@pytest.mark.parametrize(
    "name",
    [
        "x-ms-client-principal",
        "X-MS-CLIENT-PRINCIPAL",
        "X-Ms-Client-Principal-Name",
        "x-ms-client-principal-id",
        "x-ms-client-principal-idp",
        "x-ms-token-aad-id-token",
    ],
)
@pytest.mark.parametrize("order", [False, True])
def test_without_the_platform_a_header_that_only_it_may_set_is_refused(name, order):
    with pytest.raises(RefusedError, match="accepted only from App Service authentication") as caught:
        admit(KEYS, {"host": "localhost", name: principal("boss", OPERATOR)}, order=order)

    assert caught.value.status == 403


def test_without_the_platform_the_host_has_checked_a_key():
    assert admit(KEYS, {"host": "localhost"}, order=True) == NOBODY


def test_with_a_key_the_signed_in_name_counts_whatever_the_roles():
    assert admit(NAMES, {}, order=True) == NOBODY
    assert admit(NAMES, signed_in("anna"), order=True) == Caller("anna", OBJECT_ID)


@pytest.mark.parametrize(
    ("roles", "read", "order"),
    [
        ((), 403, 403),
        ((READER,), None, 403),
        ((OPERATOR,), None, None),
        ((READER, OPERATOR), None, None),
        (("tidemark.operator",), 403, 403),
        (("Tidemark.Operators", "Admin"), 403, 403),
    ],
)
def test_a_role_reads_and_another_one_orders(roles, read, order):
    assert status(ROLES, order_headers("anna", *roles)) == read
    assert status(ROLES, order_headers("anna", *roles), order=True) == order


def test_a_caller_is_told_with_whether_they_may_order():
    assert admit(ROLES, signed_in("anna", READER)) == Caller("anna", OBJECT_ID, may_order=False)
    assert admit(ROLES, signed_in("anna", OPERATOR)) == Caller("anna", OBJECT_ID, may_order=True)


@pytest.mark.parametrize("order", [False, True])
def test_with_sign_in_nobody_is_served_unknown(order):
    nobody = order_headers(x_ms_client_principal=None)

    assert status(ROLES, nobody, order=order) == 401
    assert status(ROLES, {**nobody, "x-ms-client-principal": " "}, order=order) == 401
    # A name alone is not what the platform sends.
    assert status(ROLES, {**nobody, "x-ms-client-principal-name": "boss"}, order=order) == 401
    assert status(ROLES, {**nobody, "x-functions-key": "abc"}, order=order) == 401


@pytest.mark.parametrize("mode", [NAMES, ROLES])
@pytest.mark.parametrize("header", [principal("anna", OPERATOR)[:50], "x" * 100_000, "a,b"])
def test_a_header_that_is_cut_huge_or_doubled_is_refused(mode, header):
    with pytest.raises(RefusedError, match="the header x-ms-client-principal ") as caught:
        admit(mode, order_headers(x_ms_client_principal=header), order=True)

    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"content_type": "Application/JSON; charset=utf-8"}, None),
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
        ({"content_type": "text/plain; application/json"}, 415),
        ({"content_type": "application/json, text/plain"}, 415),
        ({"content_type": None}, 415),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"sec_fetch_site": "none"}, 403),
        ({"sec_fetch_site": "same-origin, cross-site"}, 403),
        ({"sec_fetch_site": ""}, 403),
        # Older browsers tell the origin only.
        ({"sec_fetch_site": None}, None),
        ({"sec_fetch_site": None, "origin": "https://evil.example"}, 403),
        ({"sec_fetch_site": None, "origin": "https://func-tidemark.azurewebsites.net.evil.example"}, 403),
        ({"sec_fetch_site": None, "origin": "null"}, 403),
        ({"sec_fetch_site": None, "origin": ""}, 403),
        ({"sec_fetch_site": None, "origin": "http://[", "host": ""}, 403),
        ({"sec_fetch_site": None, "origin": "null", "host": None}, 403),
        # Behind a front end the host name is another one.
        (
            {"sec_fetch_site": None, "host": "10.0.0.4", "disguised_host": "func-tidemark.azurewebsites.net"},
            None,
        ),
        # Programs say nothing.
        ({"sec_fetch_site": None, "origin": None, "host": None}, None),
    ],
)
def test_an_order_has_to_come_from_the_apps_own_page_or_from_no_page(changes, expected):
    assert status(ROLES, order_headers("anna", OPERATOR, **changes), order=True) == expected


def test_reading_and_keys_need_no_page():
    elsewhere = {"sec_fetch_site": "cross-site", "content_type": None}

    assert status(ROLES, order_headers("anna", READER, **elsewhere)) is None
    assert status(NAMES, order_headers("anna", **elsewhere), order=True) is None
    assert status(KEYS, order_headers(x_ms_client_principal=None, **elsewhere), order=True) is None


def test_a_refusal_shows_names_on_one_line():
    with pytest.raises(RefusedError, match=r"'a b' lacks the role Tidemark.Reader or Tidemark.Operator"):
        admit(ROLES, signed_in("a\nb"))


def test_the_signed_in_name_counts_for_more_than_the_name_in_the_order():
    assert named(Caller("anna", "0b1c"), "boss") == ("anna", "anna (object 0b1c)")
    assert named(NOBODY, "eve\n") == ("eve", "eve")


@pytest.mark.parametrize("by", [None, "", " \n", 7, ["anna"], "a" * 201])
def test_an_order_with_a_key_needs_a_name(by):
    with pytest.raises(ValueError, match=r"by: .*a name"):
        named(NOBODY, by)


def status(mode, headers, *, order=False):
    """The status of the refusal; None for a caller who is served."""
    try:
        admit(mode, headers, order=order)
    except RefusedError as error:
        return error.status
    return None
