"""The rules, by the name they have in tidemark.toml. A new rule is one file and one line in `RULES`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, cast

from msgspec import Struct

from scaling.rules.activation import ActivationRule
from scaling.rules.composite import CompositeRule
from scaling.rules.guard import GuardRule
from scaling.rules.request_units.for_rate import RequestUnitsForRateRule
from scaling.rules.request_units.within import WithinRequestUnitsRule
from scaling.rules.schedule import ScheduleRule
from scaling.rules.service_level.rule import ServiceLevelRule
from scaling.rules.target_per_unit import TargetPerUnitRule
from scaling.rules.threshold import ThresholdRule
from scaling.rules.view import Rule
from tidemark.foundation.settings_reader import parse_params

RULES: dict[str, type[Any]] = {  # sorted; a test keeps it so
    "activation": ActivationRule,
    "composite": CompositeRule,
    "guard": GuardRule,
    "request_units_for_rate": RequestUnitsForRateRule,
    "schedule": ScheduleRule,
    "service_level": ServiceLevelRule,
    "target_per_unit": TargetPerUnitRule,
    "threshold": ThresholdRule,
    "within_request_units": WithinRequestUnitsRule,
}


class RuleError(ValueError):
    """A rule cannot be built. `problems` maps option names (or '') to what is wrong with them."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{key}: {text}" if key else text for key, text in problems.items()))
        self.problems = dict(problems)


def rule_class(kind: str) -> type[Any]:
    """The class of a registered name or of `module:Class`. Raises RuleError."""
    if kind in RULES:
        return RULES[kind]
    if ":" not in kind:
        raise RuleError(
            {"type": f"found '{kind}'; accepted are {', '.join(RULES)}, or your own class as 'module:Class'"}
        )
    try:
        rule_type = load_class(kind)
    except ValueError as error:
        raise RuleError({"type": str(error)}) from error
    if not callable(getattr(rule_type, "evaluate", None)):
        raise RuleError({"type": f"'{kind}' has no method evaluate(view) -> Verdict"})
    return rule_type


def load_class(path: str) -> type[Any]:
    """The class at `module:Class`. Raises ValueError naming what is missing."""
    module_name, _, class_name = path.partition(":")
    if not module_name or not class_name:
        raise ValueError(f"'{path}' is not of the form module:Class")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(f"{missing}."):
            raise ValueError(f"'{path}': there is no module '{missing}'") from error
        raise ValueError(f"'{path}': module '{module_name}' needs '{missing}', not found") from error
    except Exception as error:  # the user's module may raise anything while it is imported
        raise ValueError(
            f"'{path}': importing '{module_name}' failed with {type(error).__name__}: {error}"
        ) from error
    cls = getattr(module, class_name, None)
    if not isinstance(cls, type):
        raise ValueError(f"'{path}': module '{module_name}' has no class '{class_name}'")
    return cls


def build_rule(kind: str, options: Mapping[str, Any], *, name: str) -> Rule:
    """Builds a rule from its options. Raises RuleError naming every option at fault it can find."""
    cls = rule_class(kind)
    params_type = getattr(cls, "Params", None)
    if params_type is None:
        return _built(cls, name, **options)  # a user's class without Params takes keyword arguments
    if not (isinstance(params_type, type) and issubclass(params_type, Struct)):
        raise RuleError({"type": f"Params of '{kind}' is not a msgspec.Struct"})
    params, problems = parse_params(params_type, options)
    if problems:
        raise RuleError(problems)
    if cls is CompositeRule:
        return _build_composite(params, name)
    return _built(cls, name, params, name=name)


def _built(cls: type[Any], rule: str, /, *args: Any, **kwargs: Any) -> Rule:
    try:
        return cast("Rule", cls(*args, **kwargs))
    except Exception as error:  # user code may raise anything
        text = f"rule '{rule}' ({cls.__name__}) refused its options: {error!r}"
        raise RuleError({"": text}) from error


def _build_composite(params: CompositeRule.Params, name: str) -> Rule:
    nested: list[Rule] = []
    problems: dict[str, str] = {}
    for index, options in enumerate(params.rules):
        rest = dict(options)
        kind, own_name = rest.pop("type", None), rest.pop("name", f"{name}.{index}")
        try:
            if not isinstance(kind, str):
                raise RuleError({"type": "is missing"})
            if not isinstance(own_name, str):
                raise RuleError({"name": f"found {own_name!r}; text is accepted"})
            nested.append(build_rule(kind, rest, name=own_name))
        except RuleError as error:
            problems.update({f"rules[{index}].{key}": text for key, text in error.problems.items()})
    rule = CompositeRule(params, name=name, rules=nested)  # checked even when a nested rule is missing
    if unknown := rule.unknown_statistics():
        problems[""] = f"{', '.join(unknown)}: statistics are average, maximum, minimum, latest"
    if problems:
        raise RuleError(problems)
    return rule
