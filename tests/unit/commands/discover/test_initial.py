import json

import pytest
from typer.testing import CliRunner

from tidemark.__main__ import command_line

PLAN = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/g/providers/Microsoft.Web/serverfarms/plan-orders"
BUS = ("--namespace", "orders-bus", "--queue", "orders")
ANSWERS = ("--plan", PLAN, "--maximum", "7", "--wait", "90s", "--concurrency", "4")


def run(folder, *words):
    arguments = [*words, "--root", str(folder)]
    return CliRunner().invoke(
        command_line(), arguments, env={"AzureWebJobsStorage": "UseDevelopmentStorage=true"}
    )


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (BUS, 'queue = "orders"'),
        (
            ("--namespace", "orders-bus.servicebus.windows.net", "--topic", "t", "--subscription", "s"),
            'subscription = "s"',
        ),
        (("--storage-account", "orders", "--queue", "work"), 'collector = "storage_queue"'),
    ],
)
def test_what_is_written_has_the_answers_and_passes_lint(tmp_path, source, named):
    made = run(tmp_path, "init", *ANSWERS, *source, "--settings", str(tmp_path / "local.settings.json"))
    text = (tmp_path / "tidemark.toml").read_text()
    checked = run(tmp_path, "lint")

    assert made.exit_code == 0, made.output
    assert all(
        line in text for line in (named, "maximum = 7", 'wait = "90s"', "concurrency = 4", "dry_run = true")
    )
    assert "written by `tidemark init`" in text
    assert (checked.exit_code, "1 target checked" in checked.output) == (0, True), checked.output
    assert [f"tidemark {word}" in made.output for word in ("lint", "doctor")] == [True, True]


def test_the_settings_that_are_missing_are_shown_or_added(tmp_path):
    (tmp_path / ".env").write_text("KEPT=1")
    shown = run(tmp_path, "init", *ANSWERS, *BUS)
    (tmp_path / ".env").rename(tmp_path / "kept")
    added = run(
        tmp_path,
        "init",
        *ANSWERS,
        *BUS,
        "--out",
        str(tmp_path / "b.toml"),
        "--settings",
        str(tmp_path / "s.json"),
    )

    assert f"{tmp_path / '.env'}: OrdersBus__fullyQualifiedNamespace added, no secret" in shown.output
    assert added.exit_code == 0
    assert "guess: by its name" not in (text := (tmp_path / "tidemark.toml").read_text())
    assert "it has 1 now" not in text
    kept = "KEPT=1\nOrdersBus__fullyQualifiedNamespace=orders-bus.servicebus.windows.net\n"
    assert (tmp_path / "kept").rename(tmp_path / ".env").read_text() == kept, "its last line had no end"
    commands = shown.output.partition("Next:\n")[2].splitlines()
    assert [line.split()[:2] for line in commands] == [
        *(["tidemark", "lint"], ["tidemark", "doctor"], ["azd", "up"])
    ]
    assert all(line.split("#")[0].rstrip().endswith(f" --root {tmp_path}") for line in commands[:2])
    assert run(tmp_path, "lint").exit_code == 0, "the commands that follow come true"
    values = json.loads((tmp_path / "s.json").read_text())["Values"]
    assert values == {"OrdersBus__fullyQualifiedNamespace": "orders-bus.servicebus.windows.net"}


@pytest.mark.parametrize("entity", [("--queue", "orders-*"), ("--topic", "t", "--subscription", "a?")])
def test_a_pattern_makes_a_file_that_lint_accepts(tmp_path, entity):
    words = ["init", "--plan", PLAN, "--namespace", "orders-bus", *entity, "--maximum", "3", "--wait", "1m"]

    assert run(tmp_path, *words).exit_code == 0
    assert run(tmp_path, "lint").exit_code == 0
    assert "Backlogs" not in (tmp_path / "tidemark.toml").read_text(), (
        "what was named is nothing to choose from"
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "--plan: is missing; there is nobody to ask"),
        (("--plan", "plan-orders"), "accepted is the full resource id"),
        (("--plan", PLAN), "--namespace or --storage-account: is missing"),
        (
            ("--plan", PLAN, "--namespace", "b u s", "--queue", "q"),
            "--namespace: found 'b u s'; accepted is a name of 3 to 50 letters, digits and -",
        ),
        (("--plan", PLAN, "--namespace", "bus", "--topic", "t"), "--subscription: is missing"),
        (
            ("--plan", PLAN, "--storage-account", "acme", "--topic", "t"),
            "--topic: a storage account has none",
        ),
        (("--plan", PLAN, *BUS, "--topic", "t"), "--queue and --topic: one of them"),
        (
            ("--plan", PLAN, *BUS, "--maximum", "3", "--wait", "60"),
            "--wait: found '60'; accepted are durations",
        ),
        (
            ("--plan", PLAN, *BUS, "--queue", "q", "--maximum", "3", "--wait", "1m", "--out", "no/a.toml"),
            "no/.env cannot be written: there is no folder no",
        ),
    ],
)
def test_an_answer_that_is_missing_or_wrong_is_told_and_nothing_is_written(tmp_path, words, told):
    answer = run(tmp_path, "init", *words)

    assert (answer.exit_code, told in " ".join(answer.output.split())) == (1, True), answer.output
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_kept(tmp_path):
    (tmp_path / "tidemark.toml").write_text("version = 1")

    answer = run(tmp_path, "init", *ANSWERS, *BUS)

    assert (answer.exit_code, (tmp_path / "tidemark.toml").read_text()) == (1, "version = 1")
