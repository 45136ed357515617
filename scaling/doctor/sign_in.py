"""Whether the sign-in that the app expects and the one that the platform does agree. Pure.

Three witnesses: the environment of the app's process, the platform's own setting (authsettingsV2) where it may be read,
and the answers to two requests from outside: one of nobody, and one with a principal header that anybody could write.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from scaling.scalers.resource.resource import at
from tidemark.foundation.checkup import Finding, failed, ok, unknown, warning
from tidemark.foundation.http.callers import (
    AUTHENTICATION,
    OPERATOR,
    PRINCIPAL,
    SIGN_IN,
    SITE,
    Settings,
    auth_mode_of,
    is_deployed,
)
from tidemark.foundation.sanitize import shorten

CHECK = "sign-in"
OWNER = "WEBSITE_OWNER_NAME"
"""Set by the platform: the subscription, a plus sign, and where the app runs."""
GROUP = "WEBSITE_RESOURCE_GROUP"

FORGED = {
    PRINCIPAL: base64.b64encode(
        msgspec.json.encode(
            {
                "auth_typ": "aad",
                "claims": [
                    {"typ": "oid", "val": "00000000-0000-0000-0000-000000000000"},
                    {"typ": "preferred_username", "val": "tidemark-doctor"},
                    {"typ": "roles", "val": OPERATOR},
                ],
            }
        )
    ).decode()
}
"""The header of an operator who has not signed in: only the platform may set it."""

_SET = "azd provision with signInClientId sets both"
_TRUE, _FALSE = {"true", "1"}, {"", "false", "0"}


class Answer(Struct, frozen=True):
    """An answer to a request from outside. `ours`: it is the app's, not the host's or the platform's."""

    status: int
    ours: bool


def site_id(settings: Settings) -> str | None:
    """The app's resource id, from the environment that the platform sets; None without it."""
    subscription, group, name = (
        settings.get(OWNER, "").partition("+")[0],
        settings.get(GROUP, ""),
        settings.get(SITE, ""),
    )
    if not (subscription and group and name):
        return None
    return f"/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Web/sites/{name}"


def by_environment(settings: Settings) -> list[Finding]:
    """Nothing for what is no deployed app."""
    if not is_deployed(settings):
        return []
    text = settings.get(SIGN_IN, "").strip()
    wanted, platform = text.casefold() in _TRUE, auth_mode_of(settings).platform
    if text.casefold() not in _TRUE | _FALSE:
        fitting = "set it to true" if platform else "remove it"
        remedy = f"{fitting}, for App Service authentication is {'on' if platform else 'off'}; {_SET}"
        return [failed(CHECK, SIGN_IN, f"is '{shorten(text, 60)}', which counts as off", remedy)]
    if wanted and not platform:
        state = f"is on, and App Service authentication is off ({AUTHENTICATION}): keys open the app, nobody can sign in"
        return [
            failed(
                CHECK,
                SIGN_IN,
                state,
                f"turn that on; or remove {SIGN_IN}, and function keys open the app; {_SET}",
            )
        ]
    if platform and not wanted:
        state = (
            "is off, and App Service authentication is on: whoever signs in needs a function key all the same"
        )
        return [warning(CHECK, SIGN_IN, state, f"set {SIGN_IN} to true, or turn the platform's off; {_SET}")]
    return [
        ok(CHECK, SIGN_IN, "people sign in, roles decide" if wanted else "off: function keys open the app")
    ]


def by_platform(settings: Settings, auth: Mapping[str, Any]) -> list[Finding]:
    """Compares authsettingsV2 with the environment of this process."""
    on, mode = at(auth, "platform.enabled") is True, auth_mode_of(settings)
    if on != mode.platform:
        now = "on" if on else "off"
        state = f"App Service authentication is {now}, and this process was started before that"
        return [warning(CHECK, "authsettingsV2", state, "restart the app")]
    if not on:
        return [ok(CHECK, "authsettingsV2", "off, as this process's settings say")]
    return [*_problems(auth, sign_in=mode.sign_in)] or [
        ok(CHECK, "authsettingsV2", "Microsoft Entra ID; all requests reach the app")
    ]


def _problems(auth: Mapping[str, Any], *, sign_in: bool) -> Iterator[Finding]:
    entra = at(auth, "identityProviders.azureActiveDirectory")
    client = at(entra, "registration.clientId")
    if at(entra, "enabled") is False or not client:
        yield failed(
            CHECK, "authsettingsV2", "has no Microsoft Entra ID: nobody can sign in", f"add it: {_SET}"
        )
    audiences = at(entra, "validation.allowedAudiences")
    if client and isinstance(audiences, list) and audiences and f"api://{client}" not in audiences:
        problem = f"does not accept tokens for api://{client}, which the command line (--app) asks for"
        yield warning(CHECK, "authsettingsV2", problem, f"add it to the allowed token audiences; {_SET}")
    action = str(at(auth, "globalValidation.unauthenticatedClientAction") or "RedirectToLoginPage")
    required = at(auth, "globalValidation.requireAuthentication") is True
    if required and action != "AllowAnonymous":
        problem = f"requests of nobody end at the platform ({action}): health probes, keys and runs from the portal do not reach the app"
        remedy = f"let them through (AllowAnonymous): the app itself refuses who may not; {_SET}"
        yield (warning if sign_in else failed)(CHECK, "authsettingsV2", problem, remedy)


def unknown_setting(problem: str) -> Finding:
    """Who may not read the platform's setting, or does not know which app it is, can still compare the answers."""
    remedy = "give the identity the role 'Reader' on the function app, as the templates do; or look yourself: az webapp auth show"
    return warning(CHECK, "authsettingsV2", f"is not known: {problem}", remedy)


def by_answers(address: str, bare: Answer, forged: Answer, *, sign_in: bool | None = None) -> list[Finding]:
    """What /api/scaling/status answered to nobody, and to a forged operator. `sign_in`: whether the app expects a sign-in, if that is known."""
    return [_of_nobody(address, bare, sign_in=sign_in), _of_forger(address, forged)]


def unreached(address: str, error: OSError) -> Finding:
    """An app that is closed to the internet may not reach itself by its name."""
    reason = f"cannot be asked from here: {str(error) or type(error).__name__}"
    return warning(
        CHECK, address, reason, f"ask from where people are: tidemark doctor --app https://{address}"
    )


def _of_nobody(address: str, bare: Answer, *, sign_in: bool | None) -> Finding:
    subject = f"{address} to nobody"
    if bare.status == 200:
        remedy = f"set {SIGN_IN} and App Service authentication ({_SET}), or take the function level from nothing: deploy again"
        return failed(CHECK, subject, "shows everything to everybody", remedy)
    if bare.ours:
        return ok(CHECK, subject, f"the request reaches the app, which refuses it ({bare.status})")
    if bare.status not in {301, 302, 303, 307, 401, 403}:
        remedy = "read the log stream of the app: it may be stopped, starting, or closed to this network"
        return unknown(CHECK, subject, f"answers {bare.status} without a word of the app's", remedy)
    if sign_in:
        reason = (
            f"the request ends before the app ({bare.status}): the app expects the platform to let it through"
        )
        remedy = f"set the platform's action for unauthenticated requests to AllowAnonymous; {_SET}"
        return warning(CHECK, subject, reason, remedy)
    return ok(CHECK, subject, f"refused before the app ({bare.status})")


def _of_forger(address: str, forged: Answer) -> Finding:
    subject = f"{address} to a forger"
    if forged.status == 200:
        reason = "the header of a signed-in operator is believed, whoever sends it"
        remedy = f"stop the app at once; then turn App Service authentication on, which takes such headers away ({_SET})"
        return failed(CHECK, subject, reason, remedy)
    return ok(CHECK, subject, f"a forged principal is refused ({forged.status})")
