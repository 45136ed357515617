"""`tidemark import` on the examples of its page: the screen, the file, and what becomes of files that are there or cannot be read."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scaling.analysis.lint import lint
from scaling.config.checks import Severity
from scaling.service.assembly import read_config
from tests.support.scaling.imports import PLAN
from tidemark.commands.importing.command import app

PAGE = (Path(__file__).parents[4] / "docs" / "migrating.md").read_text(encoding="utf-8")
SETTINGS = {
    "ORDERS_WEBHOOK_URL": "https://x.test",
    "SbOrders__fullyQualifiedNamespace": "sb.servicebus.windows.net",
}


def example(heading, kind):
    """A block of the page's section; '' is the screen's."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    return next(text for name, text in blocks if name == kind)


def run(root, *arguments, **more):
    return CliRunner().invoke(app, [*map(str, arguments), "--root", str(root)], **more)


@pytest.mark.parametrize(("heading", "kind"), [("Azure Monitor autoscale", "json"), ("KEDA", "yaml")])
def test_the_page_shows_what_the_command_makes_of_its_examples(tmp_path, monkeypatch, heading, kind):
    monkeypatch.chdir(tmp_path)
    name = "orders.json" if kind == "json" else "worker.yaml"
    Path(name).write_text(example(heading, kind))

    done = run(".", name)

    assert (done.exit_code, done.output) == (0, example(heading, ""))
    assert Path("tidemark.toml").read_text() == example(heading, "toml")
    config = read_config(SETTINGS, root=tmp_path)
    told = [*config.findings, *(each for policy in config.policies.values() for each in lint(policy))]
    assert [each.text for each in told if each.severity is not Severity.NOTE] == []


def test_a_file_that_is_there_is_kept_and_another_one_can_be_named(tmp_path):
    (tmp_path / "tidemark.toml").write_text("mine")
    given = tmp_path / "worker.yaml"
    given.write_text(example("KEDA", "yaml"))

    refused = run(tmp_path, given)
    done = run(
        tmp_path, "-", "--out", tmp_path / "other.toml", "--resource-id", PLAN, input=given.read_bytes()
    )

    assert done.output.endswith(
        f"Next: move it to {tmp_path / 'tidemark.toml'}, then tidemark lint --root {tmp_path}\n"
    )
    assert refused.exit_code == 1
    assert "is there already; move it away, or name another file with --out" in " ".join(
        refused.output.split()
    )
    assert (tmp_path / "tidemark.toml").read_text() == "mine"
    assert done.exit_code == 0
    assert "then tidemark lint" in done.output
    assert 'scaler = "app_service_plan"' in (tmp_path / "other.toml").read_text()


def test_what_is_left_out_of_a_file_is_told_and_is_a_failure(tmp_path):
    given = tmp_path / "two.yaml"
    given.write_text(example("KEDA", "yaml") + "\n---\nkind: ScaledJob\nmetadata: {name: jobs}\n")

    done = run(tmp_path, given)

    assert done.exit_code == 1
    assert "left out: two.yaml[1]: jobs is a ScaledJob" in " ".join(done.output.split())
    assert (tmp_path / "tidemark.toml").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gone.json"], "error: gone.json: No such file or directory"),
        (
            ["setting.json", "--out", "none/at/all.toml"],
            "all.toml cannot be written: there is no folder none/at",
        ),
        (["empty.json"], "found nothing; accepted are autoscale settings"),
        (["empty.json", "--resource-id", "plan"], "accepted is the full resource id"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_writes_nothing(tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    Path("empty.json").write_text("[]")
    Path("setting.json").write_text(example("Azure Monitor autoscale", "json"))

    done = run(".", *arguments)

    assert done.exit_code == 1
    assert said in " ".join(done.output.split())
    assert not Path("tidemark.toml").exists()
