"""Rules by registered name, or by module:Class of the user's own code."""

import sys
from types import ModuleType

import msgspec
import pytest

from scaling.config.rule_registry import RULES, RuleError, build_rule
from scaling.model import Reason, Verdict
from scaling.rules.combine import metrics_of


class Plain:
    def __init__(self, *, bonus=1):
        if bonus < 0:
            raise ZeroDivisionError("bonus")
        self.bonus = bonus

    def evaluate(self, view, /):
        return Verdict(view.current + self.bonus, Reason.SCALE_OUT)


class WithParams:
    class Params(msgspec.Struct):
        metric: str

    def __init__(self, params, *, name):
        self.params, self.name = params, name

    def metrics(self):
        return (self.params.metric,)

    def evaluate(self, view, /):
        return Verdict(None, Reason.WITHIN_TARGET)


class BadParams(WithParams):
    Params = dict


@pytest.fixture(autouse=True)
def own_rules(monkeypatch):
    module = ModuleType("own_rules")
    module.Plain, module.WithParams, module.BadParams = Plain, WithParams, BadParams
    module.NoRule = object
    monkeypatch.setitem(sys.modules, "own_rules", module)


def test_registered_names_are_sorted():
    assert list(RULES) == sorted(RULES)


def test_a_users_class_gets_its_options_as_keywords():
    assert build_rule("own_rules:Plain", {"bonus": 3}, name="r").bonus == 3


def test_a_users_class_with_params_gets_them_checked_and_its_name():
    built = build_rule("own_rules:WithParams", {"metric": "a"}, name="mine")

    assert (built.params.metric, built.name) == ("a", "mine")
    assert metrics_of(built) == ("a",)


@pytest.mark.parametrize(
    ("kind", "options", "key", "words"),
    [
        (
            "treshold",
            {},
            "type",
            "composite, guard, request_units_for_rate, schedule, service_level, target_per_unit, threshold, ",
        ),
        ("no_such_module:Rule", {}, "type", "there is no module 'no_such_module'"),
        (":Rule", {}, "type", "not of the form module:Class"),
        ("own_rules:Missing", {}, "type", "no class 'Missing'"),
        ("own_rules:NoRule", {}, "type", "no method evaluate"),
        ("own_rules:BadParams", {}, "type", "msgspec.Struct"),
        ("own_rules:Plain", {"bonsu": 3}, "", "bonsu"),
        ("own_rules:Plain", {"bonus": -1}, "", "ZeroDivisionError"),
        ("own_rules:WithParams", {}, "metric", "is missing"),
        ("own_rules:WithParams", {"metrik": "a"}, "metrik", "did you mean 'metric'"),
    ],
)
def test_what_cannot_be_built_says_why(kind, options, key, words):
    with pytest.raises(RuleError) as caught:
        build_rule(kind, options, name="r")

    assert words in caught.value.problems[key]


def test_a_module_that_fails_while_it_is_imported_says_so(tmp_path, monkeypatch):
    (tmp_path / "broken_rules.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(RuleError, match="ZeroDivisionError"):
        build_rule("broken_rules:Rule", {}, name="r")


def test_a_rule_without_metrics_reads_none_as_far_as_we_know():
    assert metrics_of(Plain()) == ()
