"""The doctor's checks side by side: one that hangs, breaks or blocks costs its own answer, and nobody else's."""

import asyncio
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ServiceRequestError
from azure.functions import HttpRequest

from scaling.doctor import calls, checks, examination, running
from scaling.doctor.calls import claims_of
from scaling.doctor.running import run, story_of, trouble_of
from scaling.model import Reason
from scaling.ports import CollectError, ScalerError
from scaling.web import functions
from tests.support.virtual_time import virtual_time
from tidemark.foundation.azure.connections import ConnectionSettingsError
from tidemark.foundation.checkup import Check, Needs, Trouble, Verdict, ok
from tidemark.foundation.errors import StoreUnavailableError
from tidemark.foundation.http.answers import json_response
from tidemark.foundation.settings_reader import ConfigError, Problem

NEEDS = Needs("the 'Reader' role", "the plan")
HUNG = float("inf")


def check(name, call):
    return Check("capacity", name, NEEDS, call)


def raising(error):
    async def call():
        raise error

    return call


async def fine():
    return [ok("capacity", "fine", "3 now")]


def examined(*tried, **options):
    made = [check(f"{index}", call) for index, call in enumerate(tried)]
    return asyncio.run(run(made, **options))


def in_virtual_time(seconds, **options):
    """A check for each of `seconds`, which is how long it takes; in the loop's own time, without threads."""

    def begin(call, _name):
        async def later():
            took = next(durations)
            await (asyncio.Event().wait() if took == HUNG else asyncio.sleep(took))
            return call()

        return asyncio.ensure_future(later())

    async def main():
        loop = asyncio.get_running_loop()
        begun = loop.time()
        checkup = await run([check(f"{i}", fine) for i in range(len(seconds))], begin=begin, **options)
        return checkup, loop.time() - begun

    durations = iter(seconds)
    # What a check does takes a loop of its own, which cannot run inside another one: its outcome stands in for it.
    with pytest.MonkeyPatch.context() as patch, virtual_time() as run_virtually:
        patch.setattr("scaling.doctor.running._carried_out", lambda each, _: [ok("c", each.subject, "f")])
        return run_virtually(main())


def verdicts(checkup):
    return [str(finding.verdict) for finding in checkup.findings]


def test_one_that_hangs_is_told_at_its_deadline_and_the_others_are_there():
    checkup, took = in_virtual_time([1.0, HUNG, 2.0], deadline=25.0)

    assert verdicts(checkup) == ["ok", "unknown", "ok"]
    assert checkup.findings[1].found == "no answer within 25 s"
    assert (took, checkup.left) == (pytest.approx(25.0), 1)


def test_a_thousand_that_hang_end_with_the_budget():
    checkup, took = in_virtual_time([HUNG] * 1000, deadline=25.0, budget=150.0, at_once=16)

    assert took == pytest.approx(150.0)
    assert len(checkup.findings) == 1000
    assert checkup.left == 96
    assert checkup.findings[-1].found == "not tried: the checks before it took all of the 150 s"
    assert "--target" in checkup.findings[-1].remedy


def test_the_last_ones_before_the_end_of_the_budget_get_what_is_left_of_it():
    checkup, took = in_virtual_time([100.0, HUNG], deadline=120.0, budget=150.0, at_once=1)

    assert checkup.findings[1].found == "no answer within 50 s"
    assert took == pytest.approx(150.0)


def test_as_many_at_a_time_as_asked_for():
    checkup, took = in_virtual_time([10.0] * 9, deadline=25.0, at_once=3)

    assert verdicts(checkup) == ["ok"] * 9
    assert took == pytest.approx(30.0)


def test_a_check_that_was_left_ends_a_moment_later_and_closes_what_it_opened(monkeypatch):
    """Or the threads of a service that hangs would pile up in the app."""
    monkeypatch.setattr(running, "LINGERING", 0.0)
    closed = threading.Event()

    async def hanging():
        try:
            await asyncio.Event().wait()
        finally:
            closed.set()

    checkup = examined(hanging, deadline=0.2)

    assert closed.wait(10.0)
    assert verdicts(checkup) == ["unknown"]


def test_a_thread_that_blocks_its_loop_holds_no_other():
    """A class of the user's own may call what blocks. No time is waited for here: the deadline is a moment."""
    release = threading.Event()

    async def blocking():
        release.wait()
        return []

    try:
        checkup = examined(fine, blocking, fine, deadline=0.5)
    finally:
        release.set()

    assert verdicts(checkup) == ["ok", "unknown", "ok"]


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), RecursionError("deep")]
)
def test_whatever_a_check_raises_is_its_own_finding(error):
    checkup = examined(fine, raising(error), fine)

    assert verdicts(checkup) == ["ok", "failed", "ok"]
    assert checkup.findings[1].remedy


def test_an_error_whose_words_cannot_be_had():
    class OddError(CollectError):
        def __str__(self):
            raise RuntimeError("no words")

    (finding,) = examined(raising(OddError("x"))).findings
    assert finding.found == "its text cannot be read"


def answer(status, code="Code", **headers):
    class Answer:
        status_code = status
        reason = "reason"

        def __init__(self):
            self.headers = headers

        def text(self, *_):
            return f'{{"error": {{"code": "{code}", "message": "words"}}}}'

    return Answer()


def refused(status, code="Code"):
    return HttpResponseError(message="words", response=answer(status, code))


def from_cause(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (refused(403), Trouble.REFUSED),
        (refused(401), Trouble.REFUSED),
        (refused(404), Trouble.ABSENT),
        (refused(429), Trouble.BUSY),
        (refused(503), Trouble.BUSY),
        (refused(400), Trouble.OTHER),
        (ClientAuthenticationError("no managed identity endpoint"), Trouble.NO_IDENTITY),
        (ServiceRequestError("cannot connect"), Trouble.UNREACHABLE),
        (OSError("no route"), Trouble.UNREACHABLE),
        (TimeoutError(), Trouble.SILENT),
        (ConnectionSettingsError("no connection 'X'"), Trouble.SETTINGS),
        (ValueError("found 'x'"), Trouble.SETTINGS),
        (RuntimeError("bug"), Trouble.OTHER),
        (from_cause(CollectError("x"), refused(403)), Trouble.REFUSED),
        (from_cause(ScalerError("x"), from_cause(ScalerError("y"), refused(404))), Trouble.ABSENT),
        (from_cause(StoreUnavailableError("x"), refused(403)), Trouble.REFUSED),
        (CollectError("x", reason=Reason.ENTITY_DISABLED), Trouble.DISABLED),
        (CollectError("hub: access refused; reading needs a role"), Trouble.REFUSED),
        (from_cause(CollectError("hub: does not exist"), RuntimeError("amqp")), Trouble.ABSENT),
        (CollectError("queue: no answer within 20 s"), Trouble.SILENT),
        (CollectError("something of the user's own"), Trouble.OTHER),
    ],
)
def test_an_error_is_told_by_who_must_act(error, trouble):
    assert trouble_of(error) is trouble


def test_a_collector_that_gave_up_in_time_is_silent():
    try:
        try:
            raise TimeoutError
        except TimeoutError:
            raise CollectError("queue: 20 s are over") from None
    except CollectError as raised:
        error = raised

    assert trouble_of(error) is Trouble.SILENT


def test_a_story_without_words_has_its_kind():
    assert story_of(CollectError("")) == "CollectError"
    assert story_of(TimeoutError()) == "no answer in time"
    assert story_of(KeyError("status")) == "KeyError: 'status'"
    assert story_of(CollectError("queue 'orders': does not exist")) == "queue 'orders': does not exist"


def test_findings_keep_the_order_of_the_checks():
    checkup, _ = in_virtual_time([3.0, 1.0, 2.0], deadline=25.0)

    assert [finding.subject for finding in checkup.findings] == ["0", "1", "2"]
    assert all(finding.verdict is Verdict.OK for finding in checkup.findings)


@pytest.mark.parametrize(
    ("token", "claims"),
    [
        ("a.eyJvaWQiOiAibzEifQ.c", {"oid": "o1"}),
        ("opaque", {}),
        ("a.b.c", {}),
        ("a.W10.c", {}),  # a list
        ("..", {}),
        ("a.ÿÿ.c", {}),
    ],
)
def test_the_claims_of_a_token_are_those_that_can_be_read(token, claims):
    assert claims_of(token) == claims


@pytest.mark.parametrize(
    "error", [ConfigError([Problem("tidemark.toml", "is empty")]), RuntimeError("a rule's own")]
)
def test_a_configuration_that_breaks_in_any_way_is_a_finding(monkeypatch, tmp_path, error):
    def assemble(*_, **__):
        raise error

    monkeypatch.setattr(checks, "assemble", assemble)
    first, *others = checks.checks_of(checks.Case({}, tmp_path, lambda: 0.0))
    (told,) = asyncio.run(first.call())

    assert told.verdict is Verdict.FAILED
    assert told.found == story_of(error)
    assert {check.name for check in others} >= {"storage", "clock", "schedule", "versions"}


def test_of_a_package_that_is_there_twice_the_first_counts(monkeypatch, tmp_path):
    found = [
        SimpleNamespace(metadata={"Name": "Azure_Functions"}, version="1.26.0"),
        SimpleNamespace(metadata={"Name": None}, version="0"),  # the remains of a removal
        SimpleNamespace(metadata={"Name": "azure-functions"}, version="1.24.0"),
    ]
    monkeypatch.setattr(calls.metadata, "distributions", lambda: found)

    assert calls.runtime({}, tmp_path).installed == {"azure-functions": "1.26.0"}
    assert calls.runtime({}, tmp_path).pinned is None


@pytest.mark.parametrize(("settings", "told"), [({}, []), ({"EVENTHUB_NAME": "flights"}, ["consumer"])])
async def test_without_the_consumers_packages_the_rest_is_examined(monkeypatch, settings, told):
    monkeypatch.setitem(sys.modules, "consumer.doctor.checks", None)
    monkeypatch.delattr("consumer.doctor.checks", raising=False)
    monkeypatch.setattr(examination, "checks_of", lambda _: [])

    found = (await examination.examine(checks.Case(settings, Path(), lambda: 0.0))).findings

    assert [each.subject for each in found if each.verdict is Verdict.WARNING] == told


async def test_examinations_of_named_targets_are_made_one_at_a_time(monkeypatch):
    """Each asks all services there are, and any page can have a browser ask."""
    release, begun = asyncio.Event(), []

    async def examined(targets):
        begun.append(targets)
        await release.wait()
        return json_response(targets), []

    monkeypatch.setattr(examination, "examined", examined)

    def asked(target):
        request = HttpRequest("GET", "/api/scaling/doctor", params={"target": target}, body=b"")
        return asyncio.ensure_future(functions.scaling_doctor(request))

    first = asked("a")
    await asyncio.sleep(0)
    second = await asked("b")
    release.set()

    assert (second.status_code, begun) == (429, ["a"])
    assert (await first).status_code == 200
    assert (await asked("b")).get_body() == b'"b"'
