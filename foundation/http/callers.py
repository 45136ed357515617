"""Who calls, and whether the platform vouches for it. Pure.

App Service authentication puts the signed-in user into request headers and takes such headers away from what comes
from outside. Where it is off anybody can send them: they are then only a claim, which is written down, not believed.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from foundation.sanitize import one_line

AUTHENTICATION = "WEBSITE_AUTH_ENABLED"
"""Set by the platform, to `True`, while App Service authentication is on."""

SIGN_IN = "TIDEMARK_SIGN_IN"
"""`true`: signing in opens the API and the page, and no key is asked for. Counts only while the platform signs in."""

OPERATORS = "TIDEMARK_OPERATORS"
"""With sign-in: who may give orders, as comma-separated names; `*` for everybody who is signed in."""

MAX_NAME = 200

_HEADERS = ("x-ms-client-principal-name", "x-ms-client-principal-id")

Settings = Mapping[str, str]


class Caller(Struct, frozen=True):
    """`name` is the signed-in user, as the platform says; `claimed`, what a header says that nobody vouches for."""

    name: str | None = None
    claimed: str | None = None


NOBODY = Caller()


def opened_by_sign_in(settings: Settings) -> bool:
    """Whether the platform's sign-in opens the API, so that no key is needed."""
    return _is_true(settings.get(AUTHENTICATION)) and _is_true(settings.get(SIGN_IN))


def caller_of(headers: Mapping[str, str], settings: Settings) -> Caller:
    """Who sent a request. `headers` are looked up in lower case, as HTTP libraries allow."""
    found = next((name for key in _HEADERS if (name := one_line(headers.get(key) or "").strip())), None)
    if found is None:
        return NOBODY
    name = found[:MAX_NAME]
    return Caller(name=name) if _is_true(settings.get(AUTHENTICATION)) else Caller(claimed=name)


def refusal(caller: Caller, settings: Settings, *, order: bool) -> tuple[int, str] | None:
    """Status and text where sign-in opens the API and this caller may not; None where it may, or a key decides."""
    if not opened_by_sign_in(settings):
        return None
    if caller.name is None:
        return 401, f"sign in first: {SIGN_IN} is on, and the request has no signed-in user"
    operators = {name.strip().casefold() for name in settings.get(OPERATORS, "").split(",") if name.strip()}
    if order and not operators & {"*", caller.name.casefold()}:
        return (
            403,
            f"'{caller.name}' may look, but gives no orders; the app setting {OPERATORS} lists who does",
        )
    return None


def named(caller: Caller, by: object) -> tuple[str, str]:
    """The name an order is given by, and how the log tells it. Raises ValueError where nobody is named.

    `by` is what the order says; it counts only where nobody is signed in.
    """
    name = caller.name or by
    if not isinstance(name, str) or not one_line(name).strip():
        found = "is missing" if by is None else f"found {by!r}"
        raise ValueError(f"by: {found}; a name is accepted, for the scaling log")
    name = one_line(name).strip()
    if len(name) > MAX_NAME:
        raise ValueError(f"by: found {len(name)} characters; a name of at most {MAX_NAME} is accepted")
    if caller.claimed is None:
        return name, name
    return name, f"{name} (a header without sign-in behind it claims to be '{caller.claimed}')"


def _is_true(value: str | None) -> bool:
    return (value or "").strip().casefold() in {"true", "1"}
