"""Whether the app's sign-in and the platform's agree, from three witnesses: environment, authsettingsV2, and answers."""

import asyncio
from contextlib import asynccontextmanager
from copy import deepcopy

import pytest
from aiohttp import web
from azure.core.exceptions import HttpResponseError

from devstack.servers.http import served
from scaling.doctor import calls, checks, examination
from scaling.doctor.sign_in import FORGED, Answer, by_answers, by_environment, by_platform
from tidemark.foundation.checkup import Verdict, ok
from tidemark.foundation.http.callers import AuthMode, RefusedError, admit
from tidemark.foundation.http.deployed_app import Access

CLIENT = "33333333-4444-5555-6666-777777777777"
KEYS = {"WEBSITE_SITE_NAME": "func-tidemark"}
BOTH = {**KEYS, "WEBSITE_AUTH_ENABLED": "True", "TIDEMARK_SIGN_IN": "true"}
SITE = {"WEBSITE_OWNER_NAME": "sub+rg-westeuropewebspace-Linux", "WEBSITE_RESOURCE_GROUP": "rg"}

PLATFORM = {  # as the templates set it
    "platform": {"enabled": True},
    "globalValidation": {"requireAuthentication": False, "unauthenticatedClientAction": "AllowAnonymous"},
    "identityProviders": {
        "azureActiveDirectory": {
            "enabled": True,
            "registration": {"clientId": CLIENT},
            "validation": {"allowedAudiences": [CLIENT, f"api://{CLIENT}"]},
        }
    },
}


def changed(path, value):
    told = deepcopy(PLATFORM)
    *names, last = path.split(".")
    inner = told
    for name in names:
        inner = inner[name]
    inner[last] = value
    return told


def verdicts_of(found):
    return [each.verdict for each in found]


@pytest.mark.parametrize(
    ("settings", "verdict", "words"),
    [
        (KEYS, Verdict.OK, "function keys"),
        (BOTH, Verdict.OK, "people sign in"),
        ({**KEYS, "TIDEMARK_SIGN_IN": "true"}, Verdict.FAILED, "App Service authentication is off"),
        ({**KEYS, "WEBSITE_AUTH_ENABLED": "True"}, Verdict.WARNING, "a function key all the same"),
        ({**BOTH, "TIDEMARK_SIGN_IN": "yes"}, Verdict.FAILED, "is 'yes'"),
        ({**BOTH, "WEBSITE_AUTH_ENABLED": "False"}, Verdict.FAILED, "App Service authentication is off"),
    ],
)
def test_what_the_environment_says(settings, verdict, words):
    (told,) = by_environment(settings)

    assert told.verdict is verdict
    assert words in told.found


ON, OFF, WRONG = (
    {"WEBSITE_AUTH_ENABLED": "True"},
    {"WEBSITE_AUTH_ENABLED": "False"},
    {"TIDEMARK_SIGN_IN": "yes"},
)
WAYS = {
    "set it to true": {"TIDEMARK_SIGN_IN": "true"},
    "set TIDEMARK_SIGN_IN to true": {"TIDEMARK_SIGN_IN": "true"},
    "remove it": {"TIDEMARK_SIGN_IN": ""},
    "remove TIDEMARK_SIGN_IN": {"TIDEMARK_SIGN_IN": ""},
    "turn that on": ON,
    "turn the platform's off": OFF,
}


@pytest.mark.parametrize(
    ("settings", "ways"),
    [
        (KEYS | {"TIDEMARK_SIGN_IN": "true"}, 2),
        (KEYS | ON, 2),
        (KEYS | WRONG, 1),
        (KEYS | ON | WRONG, 1),
    ],
)
def test_each_way_out_that_is_named_leads_to_an_app_in_order(settings, ways):
    (told,) = by_environment(settings)
    named = [change for words, change in WAYS.items() if words in told.remedy]

    assert [by_environment(settings | change)[0].verdict for change in named] == [Verdict.OK] * ways


@pytest.mark.parametrize("settings", [{}, {**BOTH, "AZURE_FUNCTIONS_ENVIRONMENT": "Development"}])
def test_where_nothing_is_deployed_nothing_is_compared(settings):
    assert by_environment(settings) == []
    assert list(checks._sign_in(settings)) == []


def test_the_platform_as_the_templates_set_it_is_in_order():
    assert verdicts_of(by_platform(BOTH, PLATFORM)) == [Verdict.OK]
    assert verdicts_of(by_platform(KEYS, changed("platform.enabled", False))) == [Verdict.OK]


def test_a_process_from_before_the_change_is_told_to_be_restarted():
    for settings, told in ((KEYS, PLATFORM), (BOTH, changed("platform.enabled", False)), (BOTH, {})):
        (found,) = by_platform(settings, told)

        assert (found.verdict, found.remedy) == (Verdict.WARNING, "restart the app")


@pytest.mark.parametrize(
    ("path", "value", "verdict", "words"),
    [
        ("identityProviders", {"facebook": {"enabled": True}}, Verdict.FAILED, "no Microsoft Entra ID"),
        ("identityProviders.azureActiveDirectory.enabled", False, Verdict.FAILED, "no Microsoft Entra ID"),
        ("identityProviders.azureActiveDirectory.registration", None, Verdict.FAILED, "no Microsoft Entra ID"),
        ("identityProviders.azureActiveDirectory.validation.allowedAudiences", [CLIENT], Verdict.WARNING, "tokens for"),
        (
            "globalValidation",
            {"requireAuthentication": True, "unauthenticatedClientAction": "RedirectToLoginPage"},
            Verdict.WARNING,
            "end at the platform (RedirectToLoginPage)",
        ),
        ("globalValidation", {"requireAuthentication": True}, Verdict.WARNING, "end at the platform"),
    ],
)  # fmt: skip
def test_what_does_not_fit_on_the_platform(path, value, verdict, words):
    (found,) = by_platform(BOTH, changed(path, value))

    assert found.verdict is verdict
    assert words in found.found


def test_keys_alone_are_locked_out_where_the_platform_requires_a_sign_in():
    told = changed("globalValidation", {"requireAuthentication": True})

    assert verdicts_of(by_platform({**BOTH, "TIDEMARK_SIGN_IN": ""}, told)) == [Verdict.FAILED]


@pytest.mark.parametrize(
    "told", [{"platform": [], "identityProviders": 3}, {"platform": {"enabled": "true"}}]
)
def test_a_setting_of_another_form_is_no_crash(told):
    assert all(each.verdict is not Verdict.OK for each in by_platform(BOTH, told))


OURS, HOSTS = Answer(401, ours=True), Answer(401, ours=False)


@pytest.mark.parametrize(
    ("bare", "signing_in", "verdict"),
    [
        (OURS, True, Verdict.OK),
        (HOSTS, False, Verdict.OK),  # the host asks for a key
        (HOSTS, None, Verdict.OK),
        (HOSTS, True, Verdict.WARNING),
        (Answer(302, ours=False), True, Verdict.WARNING),
        (Answer(503, ours=False), True, Verdict.UNKNOWN),
        (Answer(200, ours=False), False, Verdict.FAILED),
        (Answer(200, ours=True), True, Verdict.FAILED),
    ],
)
def test_what_nobody_is_answered(bare, signing_in, verdict):
    told, _ = by_answers("app", bare, OURS, sign_in=signing_in)

    assert told.verdict is verdict


def test_a_forger_who_is_believed_is_told():
    _, refused = by_answers("app", OURS, Answer(403, ours=True))
    _, believed = by_answers("app", OURS, Answer(200, ours=False))

    assert refused.verdict is Verdict.OK
    assert believed.verdict is Verdict.FAILED
    assert "stop the app at once" in believed.remedy


def test_the_forged_header_is_one_that_opens_everything_to_whom_the_platform_lets_set_it():
    """Else its refusal would prove nothing."""
    assert admit(AuthMode(platform=True, sign_in=True), FORGED).name == "tidemark-doctor"
    with pytest.raises(RefusedError, match="accepted only from App Service authentication"):
        admit(AuthMode(), FORGED)


@asynccontextmanager
async def app_that(answer):
    application = web.Application()
    application.router.add_get("/api/scaling/status", answer)
    async with served(application) as port:
        yield f"http://127.0.0.1:{port}"


def door(request):
    """An app behind a platform that takes no header away."""
    try:
        admit(AuthMode(platform=True, sign_in=True), request.headers)
    except RefusedError as error:
        return web.json_response({"error": str(error)}, status=error.status)
    return web.json_response({"targets": []})


@pytest.mark.wire
async def test_nobody_and_the_forger_are_told_apart_on_the_wire():
    async def answer(request):
        return door(request)

    async with app_that(answer) as address:
        bare, forged = await calls.knocked(address, {})

    assert (bare, forged) == (OURS, Answer(200, ours=False))


@pytest.mark.wire
@pytest.mark.parametrize("body", [b"", b"[]", b'{"error": 1, "code": 2}', b"[" * 70_000, b"\xff"])
async def test_an_answer_of_the_platform_is_not_taken_for_the_apps(body):
    async def answer(request):
        return web.Response(status=401, body=body)

    async with app_that(answer) as address:
        assert (await calls.knocked(address, {}))[0] == HOSTS


def findings(settings):
    return {each.subject: asyncio.run(each.call()) for each in checks._sign_in(settings)}


def test_an_identity_that_may_not_look_is_told_what_it_needs(monkeypatch):
    async def refused(settings, site):
        assert site == "/subscriptions/sub/resourceGroups/rg/providers/Microsoft.Web/sites/func-tidemark"
        error = HttpResponseError("no")
        error.status_code = 403
        raise error

    monkeypatch.setattr(calls, "platform_sign_in", refused)
    (told,) = findings({**BOTH, **SITE})["authsettingsV2"]
    (nameless,) = findings(BOTH)["authsettingsV2"]

    assert (told.verdict, nameless.verdict) == (Verdict.WARNING, Verdict.WARNING)
    assert "'Reader' on the function app" in told.remedy
    assert "WEBSITE_OWNER_NAME" in nameless.found


class LocalApp:
    """A host on a developer's machine."""

    access = Access("http://localhost:7071")

    async def get(self, path, type_, **_):
        return type_((ok("clock", "here", "fine"),))


async def test_a_host_on_this_machine_is_open_to_this_machine_and_not_knocked_at(monkeypatch):
    async def knocked(*_):
        raise AssertionError

    monkeypatch.setattr(examination, "knocked", knocked)

    assert (await examination.examine_deployed(LocalApp(), {})).summary == "1 check: 1 ok"


def test_an_app_that_cannot_reach_itself_is_no_failure(monkeypatch):
    async def unreachable(address, settings):
        raise OSError("no route")

    monkeypatch.setattr(calls, "knocked", unreachable)
    (told,) = findings({**BOTH, "WEBSITE_HOSTNAME": "app.example"})["app.example"]

    assert told.verdict is Verdict.WARNING
    assert "tidemark doctor --app https://app.example" in told.remedy
