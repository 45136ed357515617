"""The command line's own errors; what it shows of a running system is in the end-to-end test."""

import json

import pytest
from typer.testing import CliRunner

from scaling.cli import app, settings_of

GOOD = """
[targets.plan-orders]
scaler = "app_service_plan"
resource_id = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/g/providers/Microsoft.Web/serverfarms/p"
maximum = 5

[targets.plan-orders.metrics.backlog]
collector = "storage_queue"
connection = "AzureWebJobsStorage"
queue = "orders"

[[targets.plan-orders.rules]]
type = "threshold"
metric = "backlog"
scale_out_above = 500
scale_in_below = IN_BELOW
"""


def run(tmp_path, *arguments, config=None):
    if config is not None:
        (tmp_path / "tidemark.toml").write_text(config)
    return CliRunner().invoke(app, [*arguments, "--root", str(tmp_path)], catch_exceptions=False)


def test_lint_passes_a_policy_without_errors(tmp_path):
    result = run(tmp_path, "lint", config=GOOD.replace("IN_BELOW", "100"))

    assert result.exit_code == 0
    assert result.output.splitlines()[-1] == "1 target checked, 0 findings"


def test_one_finding_is_not_findings(tmp_path):
    slow = GOOD.replace("IN_BELOW", "100") + "[targets.plan-orders.out]\ncooldown = '3m'\n"
    result = run(tmp_path, "lint", config=slow.replace('queue = "orders"', 'queue = "orders"\nwindow = "5m"'))

    assert result.output.splitlines()[-1] == "1 target checked, 1 finding"


def test_lint_shows_where_rules_flap_and_fails(tmp_path):
    flapping = GOOD.replace("= 500", "= '200 * instances'").replace("IN_BELOW", "'150 * instances'")
    result = run(tmp_path, "lint", "--json", config=flapping)

    findings = json.loads(result.output)
    assert result.exit_code == 1
    assert [f["kind"] for f in findings if f["severity"] == "error"] == ["must_flap"]


def test_lint_shows_every_problem_of_the_file_at_once(tmp_path):
    broken = (
        GOOD.replace("IN_BELOW", "'low'").replace("maximum = 5", "maximum = 0").replace("queue =", "quueue =")
    )

    result = run(tmp_path, "lint", config=broken)

    assert result.exit_code == 1
    for text in ("targets.plan-orders.maximum", "scale_in_below", "quueue"):
        assert text in result.output


def test_a_missing_file_is_named(tmp_path):
    result = run(tmp_path, "lint")

    assert result.exit_code == 1
    assert "tidemark.toml" in result.output.replace("\n", "")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("replay", "no-id"), "is not a decision id"),
        (("log", "--since", "soon"), "durations such as"),
    ],
)
def test_wrong_arguments_are_named_with_what_is_accepted(tmp_path, arguments, text):
    result = run(tmp_path, *arguments, config=GOOD.replace("IN_BELOW", "100"))

    assert result.exit_code == 2
    assert text in " ".join(result.output.replace("│", " ").split())


def test_the_environment_overrides_the_settings_file(tmp_path, monkeypatch):
    (tmp_path / "local.settings.json").write_text('{"Values": {"A": "file", "B": "file"}}')
    monkeypatch.setenv("B", "environment")

    settings = settings_of(tmp_path)

    assert (settings["A"], settings["B"]) == ("file", "environment")


def test_a_connection_that_is_missing_is_named_without_a_traceback(tmp_path, monkeypatch):
    monkeypatch.delenv("AzureWebJobsStorage", raising=False)

    result = run(tmp_path, "status", config=GOOD.replace("IN_BELOW", "100"))

    assert result.exit_code == 1
    assert "AzureWebJobsStorage" in result.output


def test_a_bundle_of_authorities_that_is_missing_is_named_without_a_traceback(tmp_path, monkeypatch):
    monkeypatch.setenv("AzureWebJobsStorage", "UseDevelopmentStorage=true")
    monkeypatch.setenv("TIDEMARK_CA_BUNDLE", str(tmp_path / "none.pem"))

    result = run(tmp_path, "status", config=GOOD.replace("IN_BELOW", "100"))

    assert result.exit_code == 1
    assert "TIDEMARK_CA_BUNDLE names" in " ".join(result.output.split())


def test_a_misspelt_key_of_a_target_is_told_its_right_name(tmp_path):
    result = run(
        tmp_path,
        "lint",
        config=GOOD.replace("IN_BELOW", "100").replace("maximum =", "maximun = 9\nmaximum ="),
    )

    assert result.exit_code == 1
    assert "did you mean 'maximum'?" in " ".join(result.output.split())
