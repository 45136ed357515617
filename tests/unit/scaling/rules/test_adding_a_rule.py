"""The example of docs/adding-a-rule.md is what a reader copies: it works as it stands there."""

import re
import sys
from pathlib import Path

import pytest

from scaling.analysis.lint import lint
from scaling.config.policy import MetricSpec, Policy, PolicySpec, RuleSpec
from scaling.config.rule_registry import RuleError, build_rule
from scaling.model import Reason, Statistic
from scaling.rules import MetricsView, Rule
from scaling.window import Window, WindowSpec

PAGE = Path(__file__).resolve().parents[4] / "docs" / "adding-a-rule.md"
SPEC = WindowSpec(span=60.0, interval=60.0)


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The page's first Python block as the module it names."""
    (tmp_path / "my_rules.py").write_text(re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1])
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_rules:HalfFull"
    sys.modules.pop("my_rules", None)


def view(*values):
    window = Window([0.0 for _ in values], list(values))
    return MetricsView(
        windows={"backlog": window},
        specs={"backlog": SPEC},
        current=3,
        ready=3,
        minimum=1,
        maximum=10,
        now=1.0,
    )


def test_the_example_votes_as_the_page_says(example):
    rule: Rule = build_rule(example, {"metric": "backlog", "limit": 1000}, name="half full")

    assert rule.metrics() == ("backlog",)
    out, stay, unknown = (rule.evaluate(view(*values)) for values in ((600.0,), (400.0,), ()))
    assert (out.desired, out.reason) == (6, Reason.SCALE_OUT)
    assert (stay.desired, stay.reason) == (3, Reason.WITHIN_TARGET)
    assert (unknown.desired, unknown.reason) == (None, Reason.INCOMPLETE_WINDOW)


def test_statistics_are_read_by_their_names_or_as_members():
    summary = view(600.0, 200.0).metric("backlog")

    assert [summary.statistic(Statistic.AVERAGE), summary.statistic("latest")] == [400.0, 200.0]


def test_a_bad_option_of_the_example_is_named(example):
    with pytest.raises(RuleError, match="limit: found -1"):
        build_rule(example, {"metric": "backlog", "limit": -1}, name="half full")


def test_lint_tries_the_example_over_all_counts(example):
    metric = MetricSpec(collector="queue", options={}, count="total", window=SPEC)
    options = {"metric": "backlog", "limit": 1000}
    policy = Policy(
        PolicySpec(
            target="plan",
            scaler="app_service_plan",
            scaler_options={},
            minimum=1,
            maximum=10,
            metrics={"backlog": metric},
            rules=(RuleSpec(type=example, name="half full", options=options),),
        )
    )

    assert "one_way" in {finding.kind for finding in lint(policy)}
