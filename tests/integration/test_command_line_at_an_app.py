"""The command line at a deployed app: by a token as after `az login`, through the product's own checks and API."""

import asyncio
import json
from urllib.parse import unquote

import pytest
from aiohttp import web
from azure.identity import CredentialUnavailableError
from rich.console import Console
from typer.testing import CliRunner

from consumer.cli.status import consumer_app
from consumer.web.api import ConsumerTables
from scaling.config.policy import ShadowSpec
from tests.integration.fake_platform import CLIENT_ID, FakeCredential, FakePlatform
from tests.support.consumer.telemetry import MemoryRateStore, MemoryStatsStore
from tests.support.principals import OBJECT_ID
from tests.support.scaling.runner import NOW, World, policy
from tests.support.scaling.shadow import fixed
from tests.support.servers.threaded import running_in_thread
from tests.support.servers.webhooks import People
from tidemark.__main__ import command_line
from tidemark.commands.autoscaler import app
from tidemark.foundation.checkup import Checkup, failed, ok
from tidemark.foundation.consumer_stats import ConsumerStats

pytestmark = pytest.mark.wire

LOCAL = {"Values": {"AzureWebJobsStorage": "UseDevelopmentStorage=true"}}
READER, OPERATOR = ("Tidemark.Reader",), ("Tidemark.Operator",)


@pytest.fixture
def world():
    made = policy(shadow=ShadowSpec(rules=(fixed(6),), minimum=1, maximum=10))
    world = World(made, announcer=People().announcer)
    asyncio.run(world.pass_minutes(6))
    return world


@pytest.fixture
def platform(world, tmp_path, monkeypatch):
    credential = FakeCredential("token")
    monkeypatch.setattr("tidemark.foundation.http.deployed_app.IdentityCredential", lambda: credential)
    monkeypatch.setattr("tidemark.commands.autoscaler.console", Console(width=300))
    monkeypatch.setattr("scaling.doctor.command.console", Console(width=300))
    stats = MemoryStatsStore()
    asyncio.run(stats.put(ConsumerStats(consumer="flights", instance="vm-1", at=NOW - 2)))
    tables = ConsumerTables(stats, MemoryRateStore(), world.log, lambda: NOW)
    with running_in_thread(lambda: FakePlatform(world.autoscaler(), tmp_path / "tls", tables)) as running:
        platform = running.server
        platform.credential = credential
        platform.tokens["token"] = READER
        monkeypatch.setenv("TIDEMARK_SIGN_IN_CLIENT_ID", CLIENT_ID)
        monkeypatch.setenv("TIDEMARK_CA_BUNDLE", str(platform.certificate.ca_path))
        (tmp_path / "local.settings.json").write_text(json.dumps(LOCAL))
        yield platform


def run(tmp_path, platform, *arguments, app=app):
    arguments = [*arguments, "--app", platform.address, "--root", str(tmp_path)]
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def words(result):
    return " ".join(result.output.replace("│", " ").split())


def test_a_reader_sees_status_log_and_shadows(tmp_path, platform):
    status = run(tmp_path, platform, "status")
    log = run(tmp_path, platform, "log", "--since", "14d", "--limit", "3")
    shadow = run(tmp_path, platform, "shadow", "plan", "--json")

    assert [each.exit_code for each in (status, log, shadow)] == [0, 0, 0]
    assert "1..10" in words(status)
    assert len([line for line in log.output.splitlines() if "scaling plan" in line]) == 3
    assert json.loads(shadow.output)["plan"]["current"] == 6
    assert set(platform.credential.scopes) == {f"api://{CLIENT_ID}/.default"}
    assert "since=1209600.000s" in platform.requests[1][1]


def test_what_an_app_tells_is_what_its_storage_tells(tmp_path, platform, world, monkeypatch):
    monkeypatch.setattr("tidemark.commands.access.where.assemble", lambda *_, **__: world.autoscaler())
    monkeypatch.setattr("tidemark.commands.access.where.check_app", lambda *_, **__: None)
    here = [*("--root", str(tmp_path))]
    for command in (("log",), ("log", "--changes"), ("log", "--changes", "--limit", "1"), ("shadow",)):
        stored = CliRunner().invoke(app, [*command, *here], catch_exceptions=False)
        assert run(tmp_path, platform, *command).output == stored.output != ""


def test_a_log_of_many_pages_is_read_to_its_end(tmp_path, platform):
    result = run(tmp_path, platform, "log", "--changes", "--limit", "2")

    asked = [path.partition("continuation=")[2] for _, path, _ in platform.requests]
    assert result.exit_code == 0
    assert (len(asked), len(set(asked)), asked[0]) == (len(asked), len(asked), "")
    assert len(asked) >= 3


def test_a_reader_gives_no_order_and_an_operator_gives_it_by_the_true_name(tmp_path, platform, world):
    refused = run(tmp_path, platform, "order", "pause", "plan", "--for", "30m", "--by", "boss")
    before = asyncio.run(world.entries("control"))
    platform.tokens["token"] = OPERATOR
    given = run(tmp_path, platform, "order", "pause", "plan", "--for", "30m", "--by", "boss")

    assert refused.exit_code == 1
    assert "'ann@example.org' lacks the role Tidemark.Operator" in words(refused)
    assert before == []
    assert given.exit_code == 0
    assert "plan: scaling in both directions paused until" in words(given)
    (entry,) = asyncio.run(world.entries("control"))
    assert (entry.by, entry.line.rpartition(", by ")[2]) == (
        "ann@example.org",
        f"ann@example.org (object {OBJECT_ID})",
    )


def test_webhooks_are_tested_by_the_app_for_an_operator(tmp_path, platform):
    refused = run(tmp_path, platform, "notify", "test")
    platform.tokens["token"] = OPERATOR
    answered = run(tmp_path, platform, "notify", "test", "ops")
    unknown = run(tmp_path, platform, "notify", "test", "nobody")

    assert (refused.exit_code, answered.exit_code, unknown.exit_code) == (1, 0, 1)
    assert "'ann@example.org' lacks the role Tidemark.Operator" in words(refused)
    assert words(answered) == "ops answered 200"
    assert "webhook: found 'nobody'; configured are ops" in words(unknown)


def test_every_order_reaches_the_app(tmp_path, platform, world):
    platform.tokens["token"] = OPERATOR
    orders = (
        ["order", "pause", "plan", "--direction", "in"],
        ["order", "override", "plan", "4", "--for", "2h"],
        ["order", "dry-run", "plan", "on"],
        ["order", "dry-run", "plan", "configured"],
        ["order", "resume", "plan"],
        ["shadow", "plan", "--promote"],
        ["shadow", "plan", "--withdraw"],
    )

    results = [run(tmp_path, platform, *order) for order in orders]

    assert [result.exit_code for result in results] == [0] * len(orders)
    lines = [entry.line.partition(", by ")[0] for entry in asyncio.run(world.entries("control"))]
    assert sorted(line.removeprefix("control plan: ").partition(";")[0] for line in lines) == [
        "dry-run as configured",
        "dry-run on",
        "override to 4 for 2 h",
        "resumed",
        "scaling in paused until resumed",
        "shadow promoted, its rules decide",
        "shadow withdrawn",
    ]
    assert "no order stands" in words(results[4])


def test_consumers_are_seen_by_a_reader_and_slowed_down_by_an_operator(tmp_path, platform, world):
    seen = run(tmp_path, platform, "status", "--json", app=consumer_app())
    refused = run(tmp_path, platform, "rate", "flights", "500", app=consumer_app())
    platform.tokens["token"] = OPERATOR
    given = run(tmp_path, platform, "rate", "flights", "500", "--by", "boss", app=consumer_app())
    unknown = run(tmp_path, platform, "rate", "fligths", "500", app=consumer_app())

    assert json.loads(seen.output)["consumers"][0]["consumer"] == "flights"
    assert "lacks the role Tidemark.Operator" in words(refused)
    assert (
        words(given)
        == "control consumer flights: the rate is 500 records/s for each instance, by ann@example.org"
    )
    assert "answered 404: consumer: found 'fligths'" in words(unknown)
    assert [each.exit_code for each in (seen, refused, given, unknown)] == [0, 1, 0, 1]


def test_where_nobody_signs_in_a_key_opens_the_app(tmp_path, platform, world, monkeypatch):
    monkeypatch.delenv("TIDEMARK_SIGN_IN_CLIENT_ID")
    platform.key = "c2VjcmV0LWtleQ=="
    (tmp_path / "local.settings.json").write_text('{"Values": {"TIDEMARK_APP_KEY": "c2VjcmV0LWtleQ=="}}')
    without = run(tmp_path, platform, "log")
    monkeypatch.setenv("TIDEMARK_APP_KEY", "another")
    wrong = run(tmp_path, platform, "log")
    monkeypatch.setenv("TIDEMARK_APP_KEY", platform.key)
    right = run(tmp_path, platform, "log")
    monkeypatch.setattr("getpass.getuser", lambda: "eva")
    nameless = run(tmp_path, platform, "order", "resume", "plan")
    given = run(tmp_path, platform, "order", "resume", "plan", "--by", "ann")

    assert "set TIDEMARK_SIGN_IN_CLIENT_ID (and sign in with `az login`), or TIDEMARK_APP_KEY" in words(
        without
    )
    assert "the key of TIDEMARK_APP_KEY does not open this" in words(wrong)
    assert [each.exit_code for each in (without, wrong, right, nameless, given)] == [1, 1, 0, 0, 0]
    assert platform.credential.scopes == []
    entries = asyncio.run(world.entries("control"))
    assert sorted(entry.by for entry in entries) == ["ann", "eva"]  # without a name, the account here


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["log", "--target", "plam"], "answered 404: target: found 'plam'"),
        (["shadow", "plam"], "found 'plam'; did you mean 'plan'?"),
        (["shadow", "--promote"], "TARGET: is missing"),
        (["order", "override", "plan", "99"], "answered 400: capacity: found 99"),
        (["order", "resume", "a/../b"], "answered 404: target: found 'a/../b'"),
        (["status", "--account", "sttidemark"], "one of them is accepted"),
    ],
)
def test_what_the_app_refuses_is_told_in_its_words(tmp_path, platform, arguments, told):
    platform.tokens["token"] = OPERATOR
    result = run(tmp_path, platform, *arguments)

    assert result.exit_code != 0
    assert told in words(result)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda: web.Response(status=302, headers={"Location": "https://login"}), "wants a sign-in"),
        (lambda: web.Response(status=401), f"the token for app registration {CLIENT_ID} was not accepted"),
        (lambda: web.Response(status=404, text="<html>"), "there is no Tidemark of this version"),
        (lambda: web.Response(status=502, text="<html>"), "answered 502 without a word of Tidemark's"),
        (lambda: web.json_response({"error": "x\x1b[2J y"}, status=503), "answered 503: x\\x1b[2J y"),
        (lambda: web.Response(text="<html>"), "is it Tidemark, and of the same version?"),
        (lambda: web.json_response({"entries": [{"at": "now"}]}), "is it Tidemark, and of the same version?"),
        (lambda: web.Response(body=b"[" * 100_000), "is it Tidemark, and of the same version?"),
    ],
)
def test_answers_of_somebody_else_are_told_as_such(tmp_path, platform, answer, told):
    platform.answer = answer
    result = run(tmp_path, platform, "log")

    assert result.exit_code == 1
    assert told in words(result)
    assert len(platform.requests) == 1  # no redirect is followed: the token would go along


def test_an_answer_without_end_is_not_read_to_the_end(tmp_path, platform, monkeypatch):
    monkeypatch.setattr("tidemark.foundation.http.deployed_app.MAX_ANSWER", 1000)
    platform.answer = lambda: web.Response(body=b" " * 3_000_000)

    assert "larger than 1000 bytes" in words(run(tmp_path, platform, "log"))


def test_a_log_that_never_ends_and_kinds_of_a_newer_release_are_shown_and_done_with(tmp_path, platform):
    entry = {"target": "plan", "at": 1.8e9, "kind": "newer", "key": "k", "line": "a line", "reason": "r"}
    entry |= {"current": None, "desired": None, "by": None, "metrics": {}}
    platform.answer = lambda: web.json_response({"entries": [entry], "continuation": "same"})
    result = run(tmp_path, platform, "log")

    assert result.exit_code == 0
    assert "a line" in words(result)
    assert len(platform.requests) == 2


CHECKUP = Checkup((ok("clock", "here", "fine"), failed("right", "plan", "may not write", "assign the role")))


def doctor(tmp_path, platform, *arguments):
    result = run(tmp_path, platform, "doctor", "--json", *arguments, app=command_line())
    checks = json.loads(result.output)["checks"] if result.output.startswith("{") else []
    return result, {(check["check"], check["subject"]): check["verdict"] for check in checks}


@pytest.fixture
def subjects(platform):
    host = f"localhost:{platform.port} from here to"
    return ("sign-in", f"{host} nobody"), ("sign-in", f"{host} a forger")


def test_the_doctor_tells_what_the_app_finds_and_whom_it_lets_in(tmp_path, platform, subjects):
    platform.checkup, platform.lets_through = CHECKUP, True
    result, found = doctor(tmp_path, platform, "--target", "plan", "--target", "other")
    shown = words(run(tmp_path, platform, "doctor", app=command_line()))

    assert result.exit_code == 1
    assert found == {
        ("clock", "here"): "ok",
        ("right", "plan"): "failed",
        **dict.fromkeys(subjects, "ok"),
    }
    assert "target=plan,other" in unquote(platform.requests[0][1])
    assert [headers.get("Authorization") for _, _, headers in platform.requests[1:3]] == [None, None]
    assert "right plan: may not write -> assign the role" in shown
    assert "Tried by the app with its own rights" in shown


def test_the_doctor_sees_a_platform_that_keeps_everybody_away_from_the_app(tmp_path, platform, subjects):
    result, found = doctor(tmp_path, platform)

    assert (result.exit_code, found) == (0, {subjects[0]: "warning", subjects[1]: "ok"})


def test_the_doctor_sees_an_app_that_believes_everybody(tmp_path, platform, subjects):
    platform.lets_through, platform.strips = True, False
    result, found = doctor(tmp_path, platform)

    assert (result.exit_code, found) == (1, {subjects[0]: "ok", subjects[1]: "failed"})


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda: web.json_response({"healthy": True}), "is it Tidemark, and of the same version?"),
        (lambda: web.json_response({"checks": [{"check": "a", "subject": "b", "verdict": "odd", "found": ""}]}), "same version"),
        (lambda: web.json_response({"error": "target 'x' is not configured"}, status=400), "target 'x' is not configured"),
        (lambda: web.Response(status=404), "there is no Tidemark of this version"),
    ],
)  # fmt: skip
def test_what_is_no_answer_of_a_doctor_is_told(tmp_path, platform, answer, told):
    platform.answer = answer
    result = run(tmp_path, platform, "doctor", app=command_line())

    assert result.exit_code == 1
    assert told in words(result)


def test_a_key_without_tls_goes_through_no_proxy(tmp_path, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://localhost:9")
    monkeypatch.setenv("http_proxy", "http://localhost:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("TIDEMARK_APP_KEY", "key")
    arguments = ["log", "--app", "http://localhost:1", "--root", str(tmp_path)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)

    assert "localhost:1 " in words(result)
    assert "localhost:9" not in words(result)


def test_without_az_login_it_says_how(tmp_path, platform):
    platform.credential.error = CredentialUnavailableError(message="Please run 'az login'")
    result = run(tmp_path, platform, "log")

    assert result.exit_code == 1
    assert f"sign in with `az login --scope api://{CLIENT_ID}/.default`" in words(result)
    assert platform.requests == []


def test_an_app_that_is_not_there_is_told(tmp_path, platform, monkeypatch):
    monkeypatch.setattr(platform, "address", "https://localhost:1")

    read = run(tmp_path, platform, "log")
    ordered = run(tmp_path, platform, "order", "resume", "plan")

    assert "https://localhost:1 cannot be reached" in words(read)
    assert "whether the order was carried out is not known" in words(ordered)


def test_a_certificate_that_is_not_trusted_gets_no_token(tmp_path, platform, monkeypatch):
    monkeypatch.delenv("TIDEMARK_CA_BUNDLE")

    assert "cannot be reached" in words(run(tmp_path, platform, "log"))
    assert platform.requests == []
