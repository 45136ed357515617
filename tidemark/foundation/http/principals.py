"""Reads the signed-in caller from the header X-MS-CLIENT-PRINCIPAL of App Service authentication. Pure.

The header has the claims of a checked token, as JSON in base64: `{"auth_typ": "aad", "claims": [{"typ": ..., "val": ...}]}`.
`tidemark.foundation.http.callers` decides whether the header is trusted. A header that is not completely readable is refused, and
no message repeats its content.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from tidemark.foundation.sanitize import one_line

MAX_HEADER = 64 * 1024
"""Characters of the longest accepted header. A token lists at most 200 groups, which take about 20 KiB here."""

MAX_NAME = 200
"""Characters of the longest accepted name. Entra ID allows 113; chosen: that and some."""

PROVIDER = "aad"
"""The name of Entra ID as a provider. Only there do the roles of an app registration have a meaning."""

# The platform renames some claims, depending on the version of the token, so both forms occur.
_SOAP = "http://schemas.xmlsoap.org/ws/2005/05/identity/claims/"
_ROLES = frozenset({"roles", "http://schemas.microsoft.com/ws/2008/06/identity/claims/role"})
_OBJECT_ID = ("oid", "http://schemas.microsoft.com/identity/claims/objectidentifier")
# Not `name` or an e-mail address, because in many tenants people can change these themselves.
_USER_NAME = ("preferred_username", "upn", f"{_SOAP}upn", "unique_name", f"{_SOAP}name")
_APPLICATION = ("azp", "appid")
_SCOPE = ("scp", "http://schemas.microsoft.com/identity/claims/scope")


class Principal(Struct, frozen=True):
    """A user with the name of their sign-in (`user <object id>` if the token has none), or an application, which is
    `application <client id>`.

    `object_id` identifies them in the directory. It does not change with the name, and is never given to another one.
    """

    name: str
    object_id: str
    roles: frozenset[str]


class PrincipalError(ValueError):
    """The header cannot be read, or names nobody. The message does not repeat its content."""


class _Claim(Struct, frozen=True):
    typ: str
    val: str | None = None


class _Claims(Struct, frozen=True):
    auth_typ: str
    claims: tuple[_Claim, ...]


def parse_principal(header: str) -> Principal:
    """Raises PrincipalError."""
    decoded = _decoded(header)
    if decoded.auth_typ.casefold() != PROVIDER:
        raise PrincipalError("is of another identity provider; accepted is Microsoft Entra ID")
    object_id = _one(decoded.claims, _OBJECT_ID)
    if not object_id:
        raise PrincipalError("names nobody: an object id (the claim oid) is needed")
    roles = frozenset(c.val for c in decoded.claims if c.typ in _ROLES and c.val)
    return Principal(_name(decoded.claims) or f"user {object_id}", object_id, roles)


def _name(claims: Sequence[_Claim]) -> str:
    """The caller's name. A token with a scope is of a user for whom an application acts, such as the Azure CLI."""
    name, application = _one(claims, _USER_NAME), _one(claims, _APPLICATION)
    if name or not application or _one(claims, _SCOPE):
        return name
    return f"application {application}"


def _decoded(header: str) -> _Claims:
    if len(header) > MAX_HEADER:
        raise PrincipalError(f"has {len(header)} characters; at most {MAX_HEADER} are accepted")
    try:
        return msgspec.json.decode(base64.b64decode(header, validate=True), type=_Claims)
    except (ValueError, RecursionError):  # those of base64, UTF-8 and msgspec are all ValueErrors
        raise PrincipalError(
            "is not readable: accepted is one JSON object of claims in base64; it may be cut, or there twice"
        ) from None


def _one(claims: Sequence[_Claim], types: Sequence[str]) -> str:
    """The value of the first claim of these types; '' without one. Two values of one type are an error."""
    for type_ in types:
        values = {value for c in claims if c.typ == type_ and (value := one_line(c.val or "").strip())}
        if len(values) > 1:
            raise PrincipalError("names two callers at once")
        if values:
            (value,) = values
            if len(value) > MAX_NAME:
                raise PrincipalError(f"has a name of more than {MAX_NAME} characters")
            return value
    return ""
