"""Decides who may read and who may give orders: by a key, which the host checks first, or by the platform's sign-in. Pure.

App Service authentication puts the signed-in caller into the header X-MS-CLIENT-PRINCIPAL, and removes that header from
incoming requests. Without it anybody could send the header, so a request with it is refused.
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
"""`true`: a sign-in opens the API and the page, without a key. Ignored while App Service authentication is off."""

READER = "Tidemark.Reader"
OPERATOR = "Tidemark.Operator"
"""App roles of the registration: a reader may look, an operator may also give orders."""

LOGIN, LOGOUT = "/.auth/login/aad", "/.auth/logout"
"""Paths at which the platform signs people in and out."""

UNKNOWN = 401
"""HTTP status for a caller who has not signed in."""

PRINCIPAL = "x-ms-client-principal"
_PLATFORM_ONLY = ("x-ms-client-principal", "x-ms-token-")
"""Prefixes of headers that only the platform may set."""

Settings = Mapping[str, str]
Headers = Mapping[str, str]


class AuthMode(Struct, frozen=True):
    """How callers of this process are authenticated.

    `platform`: App Service authentication runs in front of it and sets the headers. `sign_in`: roles decide, and the host asks
    for no key; otherwise the host has checked a key.
    """

    platform: bool = False
    sign_in: bool = False


class Caller(Struct, frozen=True):
    """`name` is that of the signed-in caller, None with a key. `may_order` is None where no role is required."""

    name: str | None = None
    object_id: str = ""
    may_order: bool | None = None


NOBODY = Caller()


class RefusedError(Exception):
    """The request is refused with this HTTP status. The text says why, and what is accepted."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def auth_mode_of(settings: Settings) -> AuthMode:
    """How callers are authenticated. Call it once per process, so that the host's authorization level matches our checks.

    A developer's host (`func start`, the local stack) never has the platform in front of it.
    """
    platform = is_deployed(settings) and _is_true(settings.get(AUTHENTICATION))
    return AuthMode(platform, platform and _is_true(settings.get(SIGN_IN)))


def is_deployed(settings: Settings) -> bool:
    """Whether App Service runs this process, so that its authentication may be in front."""
    developing = settings.get(ENVIRONMENT, "").strip().casefold() == "development"
    return bool(settings.get(SITE, "").strip()) and not developing


def admit(mode: AuthMode, headers: Headers, *, order: bool = False) -> Caller:
    """Authenticate and authorize a request; returns its caller. `headers` need case-insensitive lookup. Raises RefusedError.

    It checks forged headers, then the identity, then the role, and for an order that no other site's page sent it.
    """
    if not mode.platform:
        _refuse_forged(headers)
        return NOBODY
    principal = _principal(headers)
    if mode.sign_in:
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
    forged = next((name for name in headers if name.casefold().startswith(_PLATFORM_ONLY)), None)
    if forged is not None:
        raise RefusedError(
            403,
            f"the header {one_line(forged)[:100]} is accepted only from App Service authentication, which is off here",
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
    """Refuse orders that another site's page made the browser send with the cookie of the sign-in.

    Browsers send the page's origin, and ask before they send JSON to another site. Programs send no origin, and no cookie.
    """
    if headers.get("content-type", "").partition(";")[0].strip().casefold() != "application/json":
        raise RefusedError(415, "Content-Type: application/json is accepted for an order")
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        is_same_site = site.strip().casefold() == "same-origin"
    else:
        is_same_site = origin is None or _host(origin) in {
            headers.get(name, "").casefold() for name in _OWN_HOST
        }
    if not is_same_site:
        raise RefusedError(403, "orders from another site's page are refused")


_OWN_HOST = ("host", "disguised-host", "x-forwarded-host")
"""Headers in which a front end passes the host name that the browser used. No page can set them for another site."""


def _host(origin: str) -> str | None:
    """The host of an origin; None for an invalid one such as `null`."""
    try:
        return urlsplit(origin.strip()).netloc.casefold() or None
    except ValueError:
        return None


def named(caller: Caller, by: object) -> tuple[str, str]:
    """The name of whoever gives an order, and its form in the log. Raises ValueError without a name.

    `by` is the name in the order, which is used only if nobody is signed in.
    """
    if caller.name is not None:
        return caller.name, f"{caller.name} (object {caller.object_id})"
    if not isinstance(by, str) or not one_line(by).strip():
        problem = "is missing" if by is None else f"found {by!r}"
        raise ValueError(f"by: {problem}; a name is accepted, for the scaling log")
    name = one_line(by).strip()
    if len(name) > MAX_NAME:
        raise ValueError(f"by: found {len(name)} characters; a name of at most {MAX_NAME} is accepted")
    return name, name


def _is_true(value: str | None) -> bool:
    return (value or "").strip().casefold() in {"true", "1"}
