"""One `[targets.NAME]` table of tidemark.toml becomes the policy of a target; problems are noted on the way. Pure."""

from __future__ import annotations

import keyword
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

from msgspec import structs

from scaling.config import policy
from scaling.config.budget_table import read_budget
from scaling.config.checks import (
    Finding,
    Severity,
    check_counter,
    check_every,
    check_settable,
    facts_of,
    missing_connections,
    refused_addresses,
)
from scaling.config.limits_table import read_drain, read_fallback, read_paces, read_plateau
from scaling.config.metric_window import read_window, with_timing
from scaling.config.rule_registry import RuleError, build_rule
from scaling.config.shadow_table import (
    REPLACED,
    beyond,
    findings_of,
    read_queue,
    with_those_for_others,
)
from scaling.fingerprint import fingerprint
from scaling.rules.combine import memory_name, metrics_of
from scaling.rules.composite import flatten_rules
from scaling.rules.expression import CAPACITY_NAMES
from scaling.schedules.timetable import Timetable, with_every
from scaling.target_facts import TargetFacts
from scaling.window import MAX_SAMPLES, MAX_TARGET_SAMPLES
from tidemark.foundation.durations import duration, positive_duration
from tidemark.foundation.settings_reader import (
    Options,
    Reader,
    as_bool,
    as_text,
    parse_params,
    problems_as_written,
    whole,
)

MAX_METRICS = 90
"""Metrics per target: if all fail with the longest message, a report takes 40 of the 48 KiB of a queue message."""

MAX_LEARNING = 4  # rules whose memories share a table row with the windows
DEFAULT_ACTION_TTL = 600.0
DEFAULT_EFFECT_TIMEOUT = 120.0
COUNTER_SAMPLES = 2.5  # what a sample of a counter takes in a row, with its reading: 40 bytes for 16


class PlugIns(Protocol):
    """Looks up collector and scaler classes by registered name or `module:Class`."""

    def collector_class(self, kind: str) -> type[Any]:
        """Raises ValueError naming what is accepted."""
        ...

    def scaler_class(self, kind: str) -> type[Any]:
        """Raises ValueError naming what is accepted."""
        ...


_NEEDS_A_NAME = "a rule that learns needs a name of its own, and a class of yours an attribute `name`"


class _Judged(NamedTuple):
    """What is wrong with a rule's options; where nothing is, the metrics it reads, and the rules in it that learn."""

    problems: Mapping[str, str] = {}
    metrics: tuple[str, ...] = ()
    learning: tuple[str, ...] = ()


def _judged(kind: str, name: str, options: Mapping[str, Any]) -> _Judged:
    try:
        rule = build_rule(kind, options, name=name)
    except RuleError as error:
        return _Judged(error.problems)
    learning = (memory_name(member) for member in flatten_rules((rule,)) if hasattr(member, "learn"))
    return _Judged({}, metrics_of(rule), tuple(learning))


def _problems_in(kind: str, name: str, options: Mapping[str, Any]) -> Mapping[str, str]:
    return _judged(kind, name, options).problems


class TargetTable:
    """Reads one `[targets.NAME]` table."""

    def __init__(self, reader: Reader, name: str, collecting: Timetable, plug_ins: PlugIns) -> None:
        self._reader = reader
        self._name = name
        self._collecting = collecting
        self._plug_ins = plug_ins
        self.resource: str | None = None
        """What is scaled, as its scaler knows it; None where that is not known."""
        self._learning: list[str] = []  # names of the rules that remember
        self.findings: list[Finding] = []

    def read(self) -> policy.PolicySpec:
        reader = self._reader
        tried = reader.apart("shadow", REPLACED)
        if len(self._name) > 200 or any(ord(c) < 32 or c in "/\\#?@" for c in self._name):
            reader.problem("", "target names have at most 200 characters and none of / \\ # ? @")
        paced = self._every()
        minimum = reader.take("minimum", 1, whole(0))
        maximum = reader.require("maximum", max(minimum, 1), whole(1))
        if minimum > maximum:
            reader.problem("minimum", f"found {minimum}, above the maximum {maximum}")
        metrics = self._metrics()
        rules = self._rules(metrics)
        out, inward = read_paces(reader, own=bool(self._learning))
        plateau = read_plateau(reader.table("plateau"), metrics)
        action_ttl = reader.take("action_ttl", DEFAULT_ACTION_TTL, positive_duration)
        scaler = reader.require("scaler", "", as_text)
        spec = policy.PolicySpec(
            target=self._name,
            scaler=scaler,
            scaler_options={},
            minimum=minimum,
            maximum=maximum,
            metrics=metrics,
            rules=rules,
            out=out,
            inward=inward,
            plateau=plateau,
            fallback=read_fallback(reader.table("fallback"), minimum, maximum),
            drain=read_drain(reader.table("drain")),
            action_ttl=action_ttl,
            effect_timeout=self._effect_timeout(action_ttl),
            **paced,
            **reader.found(dry_run=as_bool, external_hold=duration),
        )
        budget = reader.table("budget")
        options, facts = self._scaler_options(scaler, drains=spec.drain is not None)
        spec = structs.replace(spec, scaler_options=options, facts=facts)
        known = facts if ":" not in scaler else None  # a class of the user's own may count anything
        spec = structs.replace(spec, budget=read_budget(budget, scaler, known, minimum))
        check_settable(reader, facts.settable, minimum, maximum)
        return spec if tried is None else structs.replace(spec, shadow=self._shadow(tried, spec))

    def _shadow(self, reader: Reader, live: policy.PolicySpec) -> policy.ShadowSpec | None:
        """The rules to try; None where something is wrong with them, which is a finding and no problem."""
        if self._reader.shared.problems:
            return None  # of which these may be the consequence
        table = TargetTable(reader, self._name, self._collecting, self._plug_ins)
        minimum = reader.take("minimum", live.minimum, whole(0))
        maximum = reader.take("maximum", live.maximum, whole(1))
        if minimum > maximum:
            reader.problem("minimum", f"found {minimum}, above the maximum {maximum}")
        rules = table._rules(live.metrics)
        out, inward = read_paces(reader, own=bool(table._learning))
        if reader.shared.problems:
            self.findings += findings_of(reader, self._name)
            return None
        queue = read_queue(reader, live.metrics, rules, live.rules)
        reader.finish()
        if reader.shared.problems:
            self.findings += findings_of(reader, self._name)
            return None
        self.findings += beyond(reader, self._name, live, minimum, maximum)
        rules = with_those_for_others(rules, live.rules)
        return policy.ShadowSpec(
            rules=rules, minimum=minimum, maximum=maximum, out=out, inward=inward, queue=queue
        )

    def _every(self) -> dict[str, Any]:
        """Seconds between two evaluations of this target, if not at every collection, and in any case; its windows follow them."""
        every = self._reader.take("interval", 0.0, positive_duration)
        if every:
            try:
                self._collecting = with_every(self._collecting, every)
            except ValueError as error:
                self._reader.problem("interval", str(error))
        return {"interval": every, "report_interval": self._collecting.interval}

    def _effect_timeout(self, action_ttl: float) -> float:
        """An action whose message is lost has to be sent again while it lives."""
        default = min(DEFAULT_EFFECT_TIMEOUT, action_ttl / 2)
        timeout = self._reader.take("effect_timeout", default, positive_duration)
        if timeout >= action_ttl:
            self._reader.problem(
                "effect_timeout",
                f"found {timeout:g} s, not below action_ttl ({action_ttl:g} s): an action would be given up "
                "before it is ever sent again",
            )
        return timeout

    def _scaler_options(self, scaler: str, *, drains: bool) -> tuple[dict[str, Any], TargetFacts]:
        """The rest of the target's table, which belongs to its scaler, and the facts of its kind of target."""
        reader = self._reader
        changes = reader.take("changes_per_hour", None, whole(2, policy.MOST_CHANGES))
        if not scaler:
            return {}, TargetFacts()
        try:
            cls = self._plug_ins.scaler_class(scaler)
        except ValueError as error:
            reader.problem("scaler", str(error))
            return {}, TargetFacts()
        options = reader.options()
        params = self._check_params(reader, cls, scaler, options)
        identify = getattr(cls, "resource", None) if ":" not in scaler else None
        if params is not None and identify is not None:
            with suppress(ValueError):  # a connection that does not exist, which is a finding
                self.resource = f"{scaler} {identify(params, reader.shared.settings)}"
        facts = facts_of(cls, params)
        if drains and not facts.counts_workers:
            reader.problem(
                "drain",
                f"the scaler sets a number of {facts.unit}, which is not that of workers that acknowledge",
            )
        if facts.removes_named and not drains:
            reader.problem("remove_acknowledged", "needs a table `drain`: workers acknowledge its notices")
        return options.values, self._with_changes(facts, changes)

    def _with_changes(self, facts: TargetFacts, changes: int | None) -> TargetFacts:
        """The facts with the target's own `changes_per_hour`, which may be above what its platform takes: that is a finding."""
        most = facts.changes_per_hour
        if most is not None and changes is not None and changes > most:
            text = (
                f"targets.{self._name}: changes_per_hour is {changes}, but the platform is known to refuse more than {most} "
                "within an hour: a surge after as many changes waits for up to an hour"
            )
            self.findings.append(Finding(Severity.WARNING, "changes_refused", self._name, text))
        return facts if changes is None else structs.replace(facts, changes_per_hour=changes)

    def _check_params(self, reader: Reader, cls: type[Any], kind: str, options: Options) -> Any:
        """The parameters, or None where they have a problem, which is noted."""
        if ":" not in kind:
            self.findings += missing_connections(reader, self._name, options.values)

        def parsed(values: Mapping[str, Any]) -> tuple[Any, dict[str, str]]:
            return parse_params(cls.Params, values, beside=options.beside)

        params, problems = parsed(options.values)
        shown = problems_as_written(problems, options, lambda values: parsed(values)[1])
        for option, text in shown.items():
            reader.problem(option, text)
        if params is not None and not shown and ":" not in kind:
            self.findings += refused_addresses(reader, self._name, params)
        return None if shown else params

    def _metrics(self) -> dict[str, policy.MetricSpec]:
        table = self._reader.table("metrics")
        if table is None:
            return {}
        names = table.names()
        if len(names) > MAX_METRICS:
            table.problem("", f"found {len(names)} metrics; at most {MAX_METRICS} are accepted per target")
        metrics: dict[str, policy.MetricSpec] = {}
        for name in names:
            if not name.isidentifier() or keyword.iskeyword(name) or name in CAPACITY_NAMES:
                table.problem(
                    name,
                    "metric names are words of letters, digits and _, for expressions; not a word of the "
                    f"language ('and', 'if', ...), nor {', '.join(CAPACITY_NAMES)}",
                )
            reader = table.table(name)
            if reader is not None:
                metrics[name] = self._metric(reader)
        # A window beyond its own limit is reported there.
        samples = sum(
            min(m.window.span / m.window.interval, MAX_SAMPLES) * (COUNTER_SAMPLES if m.counter else 1)
            for m in metrics.values()
        )
        if samples > MAX_TARGET_SAMPLES:
            table.problem(
                "",
                f"their windows hold {samples:.0f} samples together; a target stores at most {MAX_TARGET_SAMPLES}",
            )
        return metrics

    def _metric(self, reader: Reader) -> policy.MetricSpec:
        kind = reader.require("collector", "", as_text)
        given = {key for key in ("min_samples", "missing_allowed") if reader.has(key)}
        window = read_window(reader, self._collecting)
        shown = reader.found(unit=as_text, per_instance=as_bool, counter=as_bool)
        count = reader.take("count", "", as_text)
        options = reader.options()
        if kind:
            counter = shown.get("counter", False)
            checked = self._check_collector(reader, kind, count, options, counter=counter)
            count, shown["counter"], timing, shown["fingerprint"] = checked
            if "every" in options.values and self._collecting.is_even:
                check_every(reader, timing[0], self._collecting.interval)
            window = with_timing(reader, window, given, *timing)
        if count == policy.OLDEST_AGE:
            shown.setdefault("unit", policy.SECONDS)
        return policy.MetricSpec(collector=kind, options=options.values, count=count, window=window, **shown)

    def _check_collector(
        self, reader: Reader, kind: str, count: str, options: Options, *, counter: bool
    ) -> tuple[str, bool, tuple[float, float], str]:
        """The count, whether it is a counter, the collector's `timing`, and the fingerprint."""
        try:
            cls = self._plug_ins.collector_class(kind)
        except ValueError as error:
            reader.problem("collector", str(error))
            return count, counter, (0.0, 0.0), ""
        params = self._check_params(reader, cls, kind, options)
        if count and count not in cls.COUNTS:
            reader.problem("count", f"found '{count}'; '{kind}' has {', '.join(cls.COUNTS)}")
        count = count or str(cls.DEFAULT_COUNT)
        if counter and ":" not in kind:
            check_counter(reader, count, options.values, getattr(cls, "GROWING", ()))
        counter = counter or count in getattr(cls, "GROWING", ())
        if params is None:
            return count, counter, (0.0, 0.0), ""
        timing = cls.timing(params) if hasattr(cls, "timing") else (0.0, 0.0)
        read = fingerprint(cls, kind, (count, counter), params, options.values, reader.shared.settings)
        return count, counter, timing, read

    def _rules(self, metrics: Collection[str]) -> tuple[policy.RuleSpec, ...]:
        specs: list[policy.RuleSpec] = []
        for index, reader in enumerate(self._reader.tables("rules")):
            kind = reader.require("type", "", as_text)
            name = reader.take("name", kind.partition(":")[2] or kind or f"rule {index}", as_text)
            options = reader.options()
            if not kind:
                continue
            judged = _judged(kind, name, options.values)
            shown = problems_as_written(judged.problems, options, partial(_problems_in, kind, name))
            for option, text in shown.items():
                reader.problem(option, text)
            for metric in judged.metrics:
                if metric not in metrics:
                    reader.problem(
                        "", f"names metric '{metric}'; the target has {', '.join(metrics) or 'none'}"
                    )
            for learner in judged.learning:
                if learner in self._learning:
                    reader.problem("name", f"another rule is called '{learner}'; {_NEEDS_A_NAME}")
                self._learning.append(learner)
            specs.append(policy.RuleSpec(type=kind, name=name, options=options.values))
        if len(self._learning) > MAX_LEARNING:
            text = f"found {len(self._learning)} rules that learn; at most {MAX_LEARNING} are accepted per target"
            self._reader.problem("rules", text)
        if not specs:
            self._reader.problem(
                "rules", 'no rule is configured; add a table such as [[...rules]] type = "threshold"'
            )
        return tuple(specs)
