"""What a person sees of an examination, and with what status the command ends."""

import json

import pytest
from typer.testing import CliRunner

from scaling.doctor import command
from tidemark.__main__ import command_line
from tidemark.foundation.checkup import Checkup, failed, ok, warning

FINE = ok("clock", "here", "less than 10 s from the service's")
ODD = warning("poison", "queues", "1 message", "read it")
BROKEN = failed("right", "plan-orders", "may not write [it]", "assign\nthe role")


@pytest.fixture
def ended(monkeypatch):
    """The status that the process itself was ended with."""
    statuses = []

    def leave(status):
        statuses.append(status)
        raise SystemExit(status)

    monkeypatch.setattr(command.os, "_exit", leave)
    return statuses


@pytest.fixture(autouse=True)
def _local_stack_runs(monkeypatch):
    monkeypatch.setattr(command, "local_stack_problem", lambda *_: "")


def asked(monkeypatch, checkup, *arguments):
    async def examine(case):
        asked.case = case
        return checkup

    monkeypatch.setattr(command, "examine", examine)
    return CliRunner().invoke(command_line(), ["doctor", *arguments])


def test_while_the_local_stack_is_down_nothing_else_is_examined(monkeypatch):
    monkeypatch.setattr(command, "local_stack_problem", lambda *_: "the local stack is not running: [x]")
    answer = asked(monkeypatch, Checkup((FINE, BROKEN)))

    assert answer.exit_code == 1
    assert answer.output == "error: the local stack is not running: [x], or name a deployed app with --app\n"


def test_the_worst_is_told_last_and_what_to_do_below_it(monkeypatch):
    answer = asked(monkeypatch, Checkup((FINE, BROKEN, ODD)))

    assert answer.exit_code == 1
    assert answer.output.splitlines() == [
        "ok       clock here: less than 10 s from the service's",
        "warning  poison queues: 1 message",
        "         -> read it",
        "failed   right plan-orders: may not write [it]",
        "         -> assign the role",
        "3 checks: 1 ok, 1 warning, 1 failed",
        "Tried with your own rights. The app tries with its own: tidemark doctor --app https://..., docs/doctor.md.",
        "storage: the local stack (AzureWebJobsStorage)",
        "hub: localhost (EventHubConnection)",
    ]


def test_a_hub_is_named_by_the_setting_that_connects_it(monkeypatch):
    monkeypatch.setenv("EVENTHUB_CONNSTRING", "Endpoint=sb://acme.test/;SharedAccessKey=c2VjcmV0")

    assert (
        asked(monkeypatch, Checkup((FINE,))).output.splitlines()[-1] == "hub: acme.test (EVENTHUB_CONNSTRING)"
    )


def test_a_warning_is_no_failure(monkeypatch, ended):
    assert asked(monkeypatch, Checkup((FINE, ODD))).exit_code == 0
    assert ended == []


def test_json_is_what_the_app_answers(monkeypatch):
    checkup = Checkup((FINE, BROKEN))

    assert json.loads(asked(monkeypatch, checkup, "--json").output) == checkup.document()


def test_a_call_that_goes_on_is_not_waited_for(monkeypatch, ended):
    """Python would wait for the threads of a loop that hangs."""
    answer = asked(monkeypatch, Checkup((FINE, BROKEN), left=1))

    assert ended == [1]
    assert "1 failed" in answer.output


@pytest.mark.parametrize("setting", [None, "AzureWebJobsStorage__accountName", "EventHubConnection"])
def test_where_nothing_is_of_an_app_one_sentence_says_so(monkeypatch, tmp_path, setting):
    for name in ("AzureWebJobsStorage", "EventHubConnection"):
        monkeypatch.delenv(name, raising=False)
    if setting:
        monkeypatch.setenv(setting, "acme")
    answer = asked(monkeypatch, Checkup((FINE,)), "--root", str(tmp_path))

    if setting:
        assert answer.exit_code == 0
    else:
        assert (answer.exit_code, len(answer.stderr.splitlines())) == (1, 1)
        assert "no app is named" in answer.stderr


def test_targets_are_passed_on(monkeypatch, tmp_path):
    (tmp_path / "host.json").write_text("{}")
    asked(monkeypatch, Checkup((FINE,)), "--target", "a", "--target", "b", "--root", str(tmp_path))

    assert asked.case.only == ("a", "b")
    assert asked.case.root == tmp_path


def test_a_target_that_is_not_configured_is_refused(monkeypatch):
    monkeypatch.setenv(
        "TIDEMARK_CA_BUNDLE", ""
    )  # the file named in local.settings.json is made by a first start

    answer = CliRunner().invoke(command_line(), ["doctor", "--target", "nobody"])

    assert answer.exit_code == 2
    assert "plan-orders" in answer.output
