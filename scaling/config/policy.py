"""The policy of a target: bounds, metrics, rules and limits, as data and compiled. Pure.

`PolicySpec` is plain data (it is stored with every policy change so that decisions can be replayed);
`Policy` is the same with its rules built.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, Literal
from zlib import crc32

import msgspec
from msgspec import Struct, field, structs

from scaling.config.rule_registry import RuleError, build_rule
from scaling.rules.composite import flatten_rules
from scaling.rules.view import Rule
from scaling.target_facts import TargetFacts
from scaling.window import WindowSpec

EFFECTS_KEPT = 64
"""Effects remembered per target: enough for a rate policy of one change a minute over an hour."""

MOST_CHANGES = 60
"""`changes_per_hour` at most: as many changes are remembered, with some to spare."""


class RateLimit(Struct, frozen=True, kw_only=True):
    """At most `amount` units (or per cent of the capacity at the start of the period) per `period` seconds.

    The HPA's scaling policies of types Pods and Percent.
    """

    kind: Literal["units", "percent"]
    amount: float
    period: float


class Pace(Struct, frozen=True, kw_only=True):
    """Limits on changes in one direction. Durations in seconds.

    `cooldown` counts from the last effect (out: the last scale-out; in: the last change of any kind, so a
    scale-out restarts it but an earlier scale-in never delays a scale-out). `stabilization` holds a change
    back to the most cautious recommendation of that window. `step` bounds one change. `rates` are combined
    by `select` as the HPA does.
    """

    cooldown: float = 0.0
    stabilization: float = 0.0
    step: int | None = None
    rates: tuple[RateLimit, ...] = ()
    select: Literal["max", "min", "disabled"] = "max"


class Plateau(Struct, frozen=True, kw_only=True):
    """Stop scaling out when, over the last `effects` scale-outs, `metric` has not fallen by `fall` (share).

    After `hold` seconds without success one more attempt is allowed.
    """

    metric: str
    effects: int = 3
    fall: float = 0.05
    hold: float = 1800.0


class Fallback(Struct, frozen=True, kw_only=True):
    """When metrics have been missing for `after` seconds, raise the capacity to `capacity` if below it."""

    capacity: int
    after: float = 300.0


class DrainSpec(Struct, frozen=True, kw_only=True):
    """Workers are notified `notice` seconds before a scale-in. One of the rules that they do not acknowledge by then is withdrawn and
    announced `again` seconds later (`hold`), or carried out all the same. Bounds and budgets do not wait longer than `notice`.
    """

    notice: float
    unacknowledged: Literal["hold", "scale_in"] = "hold"
    again: float = 600.0


class Budget(Struct, frozen=True, kw_only=True):
    """What a target may spend from midnight to midnight of `time_zone`.

    `amount` is in `unit`: instance-hours, request-unit-hours (RU/s times hours), unit-hours (of whatever the target counts),
    or money; with money, `price` is that of one unit of capacity (an instance, one RU/s) for an hour. `hourly`: billed by the hour, at its highest capacity.
    """

    amount: float
    unit: Literal["instance_hours", "request_unit_hours", "unit_hours", "money"] = "instance_hours"
    price: float = 1.0
    hourly: bool = False
    time_zone: str = "UTC"

    @property
    def hours(self) -> float:
        """The same in units of capacity times hours."""
        return self.amount / self.price

    def in_its_unit(self, hours: float) -> float:
        """Units of capacity times hours, in the unit of the budget."""
        return hours * self.price


TARGET_CAPACITY = "target_capacity"
"""The collector of metrics that are the capacity of another target."""


OLDEST_AGE = "oldest_age"
"""The count of any collector that is an age."""

SECONDS = "s"
"""The unit of metrics that are shown as durations."""


class MetricSpec(Struct, frozen=True, kw_only=True):
    """One metric of a target: where it is read (collector type, options, which count) and its window.

    With `counter` the number read only grows, and the window holds its increases. `fingerprint` changes with what is read; empty
    where that is not known.
    """

    collector: str
    options: dict[str, Any]
    count: str
    window: WindowSpec
    unit: str = "messages"
    per_instance: bool = False
    counter: bool = False
    fingerprint: str = ""


class RuleSpec(Struct, frozen=True, kw_only=True):
    type: str
    name: str
    options: dict[str, Any]


class QueueSpec(Struct, frozen=True, kw_only=True):
    """The queue whose waits a shadow is judged by: metrics by their names, and what is asked for, as the options of
    `service_level`. What is None is learned. `service_rate`: messages per second of one instance.
    """

    backlog: str
    incoming: str | None = None
    outgoing: str | None = None
    wait: float = 60.0
    late: float = 0.01
    concurrency: float | None = None
    start_up: float | None = None
    service_rate: float | None = None


class ShadowSpec(Struct, frozen=True, kw_only=True):
    """Rules that are simulated: with these in place of the target's own it would be the policy to switch to."""

    rules: tuple[RuleSpec, ...]
    minimum: int
    maximum: int
    out: Pace = Pace()
    inward: Pace = Pace()
    queue: QueueSpec | None = None


class PolicySpec(Struct, frozen=True, kw_only=True):
    """The whole policy of one target as data."""

    target: str
    scaler: str
    scaler_options: dict[str, Any]
    minimum: int
    maximum: int
    metrics: dict[str, MetricSpec]
    rules: tuple[RuleSpec, ...]
    out: Pace = Pace()
    inward: Pace = Pace()
    plateau: Plateau | None = None
    fallback: Fallback | None = None
    dry_run: bool = False
    action_ttl: float = 600.0
    effect_timeout: float = 120.0
    external_hold: float = field(default=900.0, name="foreign_hold")  # stored inputs have this name
    shadow: ShadowSpec | None = None
    budget: Budget | None = None
    drain: DrainSpec | None = None
    interval: float = 0.0  # seconds between two evaluations; 0: at every collection
    facts: TargetFacts = TargetFacts()
    report_interval: float = 0.0  # seconds between two reports, at least; 0: the windows say it


class Policy:
    """A policy ready to decide with. Raises RuleError when a rule cannot be built."""

    def __init__(self, spec: PolicySpec) -> None:
        self.spec = spec
        self.target = spec.target
        self.minimum = spec.minimum
        self.maximum = spec.maximum
        self.windows: Mapping[str, WindowSpec] = {name: m.window for name, m in spec.metrics.items()}
        self.rules: tuple[Rule, ...] = tuple(build_rule(r.type, r.options, name=r.name) for r in spec.rules)
        self.shadow: Policy | None = None
        """The simulated rules, with their own bounds."""
        self.promoted: Policy | None = None
        """The same as they may decide for the target: within its bounds."""
        if spec.shadow is not None:
            with suppress(
                RuleError
            ):  # noted while reading; a class of the user's own that changed its mind since
                self.shadow = Policy(_tried(spec, spec.shadow, spec.shadow.minimum, spec.shadow.maximum))
                self.promoted = Policy(_tried(spec, spec.shadow, *_within(spec, spec.shadow)))

    @cached_property
    def flat_rules(self) -> tuple[Rule, ...]:
        """The rules, those nested in composites in place of these: see `flatten_rules`."""
        return tuple(flatten_rules(self.rules))

    def may_read(self, metric: str) -> bool:
        return self._read is None or metric in self._read

    @cached_property
    def _read(self) -> frozenset[str] | None:
        """The metrics that rules read; None if a rule of the user's own does not name them."""
        with suppress(Exception):
            if all(hasattr(rule, "metrics") for rule in self.flat_rules):
                return frozenset(name for rule in self.flat_rules for name in rule.metrics())
        return None

    @cached_property
    def durations(self) -> frozenset[str]:
        """The metrics in seconds."""
        return frozenset(name for name, metric in self.spec.metrics.items() if metric.unit == SECONDS)

    @cached_property
    def learns(self) -> bool:
        """True where a rule remembers what it learned."""
        return any(hasattr(rule, "learn") for rule in self.flat_rules)

    @cached_property
    def shadow_id(self) -> str:
        """An id of the shadow that changes with any part of it. Empty without a shadow."""
        return "" if self.spec.shadow is None else _id_of(self.spec.shadow)

    @cached_property
    def rules_id(self) -> str:
        """The same for the rules that the shadow is compared with."""
        spec = self.spec
        return _id_of((spec.rules, spec.minimum, spec.maximum, spec.out, spec.inward))

    @cached_property
    def interval(self) -> float:
        """Seconds from one report to the next; 0 if the policy does not say."""
        windows = (window.interval for window in self.windows.values())
        return self.spec.report_interval or min(windows, default=self.spec.interval)

    @cached_property
    def memory(self) -> float:
        """How long recommendations are remembered for stabilization, in seconds."""
        return max(self.spec.out.stabilization, self.spec.inward.stabilization)


def _id_of(rules: object) -> str:
    """The same for the same rules, in whatever order the file has their options."""
    return f"{crc32(msgspec.json.encode(rules, order='deterministic')):08x}"


def _tried(spec: PolicySpec, shadow: ShadowSpec, minimum: int, maximum: int) -> PolicySpec:
    return structs.replace(
        spec,
        rules=shadow.rules,
        minimum=minimum,
        maximum=maximum,
        out=shadow.out,
        inward=shadow.inward,
        shadow=None,
    )


def _within(spec: PolicySpec, shadow: ShadowSpec) -> tuple[int, int]:
    """The bounds of a shadow within those of its target."""
    low, high = spec.minimum, spec.maximum
    return min(max(shadow.minimum, low), high), min(max(shadow.maximum, low), high)


HPA_OUT = Pace(
    rates=(RateLimit(kind="percent", amount=100, period=15), RateLimit(kind="units", amount=4, period=15))
)
HPA_IN = Pace(stabilization=300.0, rates=(RateLimit(kind="percent", amount=100, period=15),))
"""`behavior = "hpa"`: the defaults of autoscaling/v2 (pkg/apis/autoscaling/v2/defaults.go)."""
