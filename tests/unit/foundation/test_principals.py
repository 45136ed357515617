"""The header of App Service authentication: whom it names, and that what is cut, doubled or huge names nobody."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.principals import OBJECT_ID, encoded, principal
from tidemark.foundation.http.principals import MAX_HEADER, Principal, PrincipalError, parse_principal

SOAP = "http://schemas.xmlsoap.org/ws/2005/05/identity/claims/"
OID = ("http://schemas.microsoft.com/identity/claims/objectidentifier", OBJECT_ID)


def test_a_user_is_known_by_the_name_they_sign_in_with():
    found = parse_principal(principal("anna@example.org", "Tidemark.Reader", "Tidemark.Operator"))

    assert found == Principal(
        "anna@example.org", OBJECT_ID, frozenset({"Tidemark.Reader", "Tidemark.Operator"})
    )


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ([OID, (f"{SOAP}upn", "anna@example.org")], "anna@example.org"),
        ([OID, (f"{SOAP}name", "live.com#anna@example.org")], "live.com#anna@example.org"),
        (
            [OID, ("azp", "04b0"), ("scp", "user_impersonation"), ("upn", "anna@example.org")],
            "anna@example.org",
        ),
        ([OID, ("azp", "04b0")], "application 04b0"),
        ([OID, ("appid", "04b0")], "application 04b0"),
        # The Azure CLI speaks for somebody whose name the token does not have.
        ([OID, ("azp", "04b0"), ("scp", "user_impersonation")], f"user {OBJECT_ID}"),
        # People change these themselves.
        ([OID, ("name", "The Boss"), (f"{SOAP}emailaddress", "boss@example.org")], f"user {OBJECT_ID}"),
    ],
)
def test_every_form_of_token_names_its_caller(claims, name):
    assert parse_principal(encoded(claims)).name == name


def test_roles_are_found_under_the_name_the_platform_gives_them():
    renamed = ("http://schemas.microsoft.com/ws/2008/06/identity/claims/role", "Tidemark.Reader")
    groups = ("groups", "Tidemark.Operator")

    assert parse_principal(principal("anna", claims=[renamed, groups])).roles == {"Tidemark.Reader"}


def test_a_name_is_one_line():
    assert parse_principal(principal("a\x1b[2J\nb\u202e")).name == "a\\x1b[2J b\\u202e"


WHOLE = principal("anna@example.org", "Tidemark.Operator")


@pytest.mark.parametrize(
    ("header", "told"),
    [
        *((WHOLE[:length], "is not readable") for length in (0, 1, 3, 4, 40, len(WHOLE) - 8, len(WHOLE) - 1)),
        (f"{WHOLE},{WHOLE}", "there twice"),
        (f"{WHOLE}, {WHOLE}", "there twice"),
        (WHOLE + WHOLE, "is not readable"),
        ("anna@example.org", "is not readable"),
        ("ännä", "is not readable"),
        (base64.b64encode(b"\xff\xfe").decode(), "is not readable"),
        (base64.b64encode(b"[" * 40_000).decode(), "is not readable"),
        (base64.b64encode(b'{"auth_typ":"aad","claims":[],"x":' + b"[" * 40_000).decode(), "is not readable"),
        (base64.b64encode(b'{"auth_typ": "aad"}').decode(), "is not readable"),
        (
            base64.b64encode(b'{"auth_typ": "aad", "claims": [{"typ": "oid", "val": 1}]}').decode(),
            "not readable",
        ),
        ("A" * (MAX_HEADER + 1), f"at most {MAX_HEADER}"),
        (principal(auth_typ="google"), "another identity provider"),
        (principal(auth_typ=""), "another identity provider"),
        (encoded([]), "names nobody"),
        (encoded([("preferred_username", "anna@example.org"), ("oid", " ")]), "names nobody"),
        (principal(claims=[("preferred_username", "boss@example.org")]), "two callers"),
        (principal(claims=[("oid", "another")]), "two callers"),
        (principal("a" * 201), "more than 200"),
    ],
)
def test_what_cannot_be_read_whole_names_nobody_and_is_not_repeated(header, told):
    with pytest.raises(PrincipalError, match=told) as caught:
        parse_principal(header)

    assert "anna" not in str(caught.value)


@given(st.one_of(st.text(), st.binary().map(lambda data: base64.b64encode(data).decode())))
def test_any_text_is_read_or_refused(text):
    with pytest.raises(PrincipalError):
        parse_principal(text)


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["typ", "val", "x"]), inner),
    max_leaves=8,
)


@given(_JSON)
def test_any_claims_are_read_or_refused(claims):
    header = base64.b64encode(json.dumps({"auth_typ": "aad", "claims": claims}).encode()).decode()

    try:
        found = parse_principal(header)
    except PrincipalError:
        return
    assert found.object_id
