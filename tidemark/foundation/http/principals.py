"""What App Service authentication tells of a signed-in caller in the header X-MS-CLIENT-PRINCIPAL. Pure.

The header is the claims of a checked token as JSON in base64: `{"auth_typ": "aad", "claims": [{"typ": ..., "val": ...}]}`.
Whether it may be believed at all is not decided here: see `tidemark.foundation.http.callers`. What cannot be read whole counts for
nothing, and no message repeats what was in it.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from tidemark.foundation.sanitize import one_line

MAX_HEADER = 64 * 1024
"""Characters of the header that are looked at. A token lists at most 200 groups, which come to about 20 KiB here."""

MAX_NAME = 200
"""Characters of a name in the log; those of Entra ID end at 113."""

PROVIDER = "aad"
"""The provider's name for Entra ID. The roles of an app registration mean something from there only."""

# The platform renames some claims on their way, depending on the version of the token: both forms occur.
_SOAP = "http://schemas.xmlsoap.org/ws/2005/05/identity/claims/"
_ROLES = frozenset({"roles", "http://schemas.microsoft.com/ws/2008/06/identity/claims/role"})
_OBJECT_ID = ("oid", "http://schemas.microsoft.com/identity/claims/objectidentifier")
# Not `name` or an e-mail address: in many tenants people change these themselves.
_USER_NAME = ("preferred_username", "upn", f"{_SOAP}upn", "unique_name", f"{_SOAP}name")
_APPLICATION = ("azp", "appid")
_SCOPE = ("scp", "http://schemas.microsoft.com/identity/claims/scope")


class Principal(Struct, frozen=True):
    """A user by the name they sign in with (`user <object id>` where the token has none), or an application as
    `application <client id>`.

    `object_id` is theirs in the directory: it stays when the name is changed, and is not given to another one.
    """

    name: str
    object_id: str
    roles: frozenset[str]


class PrincipalError(ValueError):
    """The header cannot be read, or names nobody. The message says what is wrong, never what was found."""


class _Claim(Struct, frozen=True):
    typ: str
    val: str | None = None


class _Told(Struct, frozen=True):
    auth_typ: str
    claims: tuple[_Claim, ...]


def parse_principal(header: str) -> Principal:
    """Raises PrincipalError."""
    told = _decoded(header)
    if told.auth_typ.casefold() != PROVIDER:
        raise PrincipalError("is of another identity provider; accepted is Microsoft Entra ID")
    object_id = _one(told.claims, _OBJECT_ID)
    if not object_id:
        raise PrincipalError("names nobody: an object id (the claim oid) is needed")
    roles = frozenset(c.val for c in told.claims if c.typ in _ROLES and c.val)
    return Principal(_name(told.claims) or f"user {object_id}", object_id, roles)


def _name(claims: Sequence[_Claim]) -> str:
    """A token has a scope where an application, such as the Azure CLI, speaks for a user; it is not the caller then."""
    name, application = _one(claims, _USER_NAME), _one(claims, _APPLICATION)
    if name or not application or _one(claims, _SCOPE):
        return name
    return f"application {application}"


def _decoded(header: str) -> _Told:
    if len(header) > MAX_HEADER:
        raise PrincipalError(f"has {len(header)} characters; at most {MAX_HEADER} are accepted")
    try:
        return msgspec.json.decode(base64.b64decode(header, validate=True), type=_Told)
    except (ValueError, RecursionError):  # those of base64, UTF-8 and msgspec are all ValueErrors
        raise PrincipalError(
            "is not readable: accepted is one JSON object of claims in base64; it may be cut, or there twice"
        ) from None


def _one(claims: Sequence[_Claim], types: Sequence[str]) -> str:
    """The value of the first of `types` that is there; '' for none. Two values for one of them name nobody."""
    for type_ in types:
        found = {value for c in claims if c.typ == type_ and (value := one_line(c.val or "").strip())}
        if len(found) > 1:
            raise PrincipalError("names two callers at once")
        if found:
            (value,) = found
            if len(value) > MAX_NAME:
                raise PrincipalError(f"has a name of more than {MAX_NAME} characters")
            return value
    return ""
