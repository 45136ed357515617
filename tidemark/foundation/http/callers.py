"""Who may ask and who may order: by a key, which the host checks before we are called, or by the platform's sign-in. Pure.

App Service authentication puts the signed-in caller into the header X-MS-CLIENT-PRINCIPAL, and takes such headers away
from what comes from outside. Where it is off anybody can send them, so a request that has one is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from msgspec import Struct

from tidemark.foundation.http.principals import MAX_NAME, Principal, PrincipalError, parse_principal
from tidemark.foundation.sanitize import one_line

AUTHENTICATION = "WEBSITE_AUTH_ENABLED"
"""Set by the platform, to `True`, while App Service authentication is on."""

SITE = "WEBSITE_SITE_NAME"
"""Set by the platform, to the app's name."""

HOSTNAME = "WEBSITE_HOSTNAME"
"""Set by the platform, to the name under which the app is reached."""

ENVIRONMENT = "AZURE_FUNCTIONS_ENVIRONMENT"
"""Set by a developer's host, to `Development`."""

SIGN_IN = "TIDEMARK_SIGN_IN"
"""`true`: signing in opens the API and the page, and no key is asked for. Counts only while the platform signs in."""

READER = "Tidemark.Reader"
OPERATOR = "Tidemark.Operator"
"""App roles of the registration: who looks, and who gives orders as well."""

LOGIN, LOGOUT = "/.auth/login/aad", "/.auth/logout"
"""Where the platform signs people in, and out."""

UNKNOWN = 401
"""Status of the refusal of somebody who has not signed in."""

PRINCIPAL = "x-ms-client-principal"
_PLATFORM_ONLY = ("x-ms-client-principal", "x-ms-token-")
"""Beginnings of the names of headers that only the platform may set."""

Settings = Mapping[str, str]
Headers = Mapping[str, str]


class Door(Struct, frozen=True):
    """What opens the API of this process. `platform`: App Service authentication runs in front of it and vouches for
    its headers. `sign_in`: roles decide, and the host asks for no key; else the host has checked one.
    """

    platform: bool = False
    sign_in: bool = False


class Caller(Struct, frozen=True):
    """`name` is the signed-in caller's, as the platform says; None where a key was enough. `may_order` is None where no role
    was asked for.
    """

    name: str | None = None
    object_id: str = ""
    may_order: bool | None = None


NOBODY = Caller()


class RefusedError(Exception):
    """This request is not answered: `status` is HTTP's; the text says why, and what would be accepted."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def door_of(settings: Settings) -> Door:
    """To be asked once per process, so that the host's level and our checks cannot be of two minds.

    A developer's host (`func start`, the local stack) has no platform in front of it, whatever its settings say.
    """
    platform = is_deployed(settings) and _is_true(settings.get(AUTHENTICATION))
    return Door(platform, platform and _is_true(settings.get(SIGN_IN)))


def is_deployed(settings: Settings) -> bool:
    """Whether the platform runs this process, and could have something in front of it."""
    developing = settings.get(ENVIRONMENT, "").strip().casefold() == "development"
    return bool(settings.get(SITE, "").strip()) and not developing


def admit(door: Door, headers: Headers, *, order: bool = False) -> Caller:
    """Who sent a request. `headers` are looked up in lower case, as HTTP libraries allow. Raises RefusedError.

    In this order: headers that nobody vouches for, who it is, what they may, and for an order whether it was meant.
    """
    if not door.platform:
        _refuse_forged(headers)
        return NOBODY
    principal = _principal(headers)
    if door.sign_in:
        if principal is None:
            raise RefusedError(
                UNKNOWN, f"sign in first: {SIGN_IN} is on, and the request has no signed-in caller"
            )
        _require_role(principal, order=order)
        if order:
            _refuse_other_sites(headers)
        return Caller(principal.name, principal.object_id, OPERATOR in principal.roles)
    return NOBODY if principal is None else Caller(principal.name, principal.object_id)


def _refuse_forged(headers: Headers) -> None:
    found = next((name for name in headers if name.casefold().startswith(_PLATFORM_ONLY)), None)
    if found is not None:
        raise RefusedError(
            403,
            f"the header {one_line(found)[:100]} is accepted from App Service authentication only, and that is off here",
        )


def _principal(headers: Headers) -> Principal | None:
    header = headers.get(PRINCIPAL, "").strip()
    if not header:
        return None
    try:
        return parse_principal(header)
    except PrincipalError as error:
        raise RefusedError(400, f"the header {PRINCIPAL} {error}") from None


def _require_role(principal: Principal, *, order: bool) -> None:
    if not principal.roles & ({OPERATOR} if order else {READER, OPERATOR}):
        accepted = OPERATOR if order else f"{READER} or {OPERATOR}"
        raise RefusedError(
            403,
            f"'{principal.name}' lacks the role {accepted}; it is assigned in Entra ID, to users and groups of the app"
            " registration",
        )


def _refuse_other_sites(headers: Headers) -> None:
    """A browser sends the cookie of the sign-in along with what any page lets it send. It also says which page that
    was, and asks before it sends JSON elsewhere. Programs say nothing of the kind, and have no such cookie.
    """
    if headers.get("content-type", "").partition(";")[0].strip().casefold() != "application/json":
        raise RefusedError(415, "Content-Type: application/json is accepted for an order")
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        own = site.strip().casefold() == "same-origin"
    else:
        own = origin is None or _host(origin) in {headers.get(name, "").casefold() for name in _OWN_HOST}
    if not own:
        raise RefusedError(403, "orders from another site's page are refused")


_OWN_HOST = ("host", "disguised-host", "x-forwarded-host")
"""Where a front end puts the host name that the browser used. No page can set any of them for another site."""


def _host(origin: str) -> str | None:
    """None for an origin that is none, such as `null`."""
    try:
        return urlsplit(origin.strip()).netloc.casefold() or None
    except ValueError:
        return None


def named(caller: Caller, by: object) -> tuple[str, str]:
    """The name an order is given by, and how the log tells it. Raises ValueError where nobody is named.

    `by` is what the order says; it counts only where nobody is signed in.
    """
    if caller.name is not None:
        return caller.name, f"{caller.name} (object {caller.object_id})"
    if not isinstance(by, str) or not one_line(by).strip():
        found = "is missing" if by is None else f"found {by!r}"
        raise ValueError(f"by: {found}; a name is accepted, for the scaling log")
    name = one_line(by).strip()
    if len(name) > MAX_NAME:
        raise ValueError(f"by: found {len(name)} characters; a name of at most {MAX_NAME} is accepted")
    return name, name


def _is_true(value: str | None) -> bool:
    return (value or "").strip().casefold() in {"true", "1"}
