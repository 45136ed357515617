"""What one target is to be kept at: bounds, metrics, rules and limits, as data and compiled. Pure.

`PolicySpec` is plain data (it is stored with every policy change so that decisions can be replayed);
`Policy` is the same with its rules built.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

from msgspec import Struct

from scaling.config.rule_registry import build_rule
from scaling.rules.composite import flattened
from scaling.rules.view import Rule
from scaling.window import WindowSpec

EFFECTS_KEPT = 64
"""Effects remembered per target: enough for a rate policy of one change a minute over an hour."""


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


TARGET_CAPACITY = "target_capacity"
"""The collector of metrics that are the capacity of another target."""


class MetricSpec(Struct, frozen=True, kw_only=True):
    """One metric of a target: where it is read (collector type, options, which count) and its window."""

    collector: str
    options: dict[str, Any]
    count: str
    window: WindowSpec
    unit: str = "messages"
    per_instance: bool = False


class RuleSpec(Struct, frozen=True, kw_only=True):
    type: str
    name: str
    options: dict[str, Any]


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
    foreign_hold: float = 900.0


class Policy:
    """A policy ready to decide with. Raises RuleError when a rule cannot be built."""

    def __init__(self, spec: PolicySpec) -> None:
        self.spec = spec
        self.target = spec.target
        self.minimum = spec.minimum
        self.maximum = spec.maximum
        self.windows: Mapping[str, WindowSpec] = {name: m.window for name, m in spec.metrics.items()}
        self.rules: tuple[Rule, ...] = tuple(build_rule(r.type, r.options, name=r.name) for r in spec.rules)

    @cached_property
    def flat_rules(self) -> tuple[Rule, ...]:
        """The rules, those nested in composites in place of these: see `flattened`."""
        return tuple(flattened(self.rules))

    @cached_property
    def memory(self) -> float:
        """How long recommendations are remembered for stabilization, in seconds."""
        return max(self.spec.out.stabilization, self.spec.inward.stabilization)


HPA_OUT = Pace(
    rates=(RateLimit(kind="percent", amount=100, period=15), RateLimit(kind="units", amount=4, period=15))
)
HPA_IN = Pace(stabilization=300.0, rates=(RateLimit(kind="percent", amount=100, period=15),))
"""`behavior = "hpa"`: the defaults of autoscaling/v2 (pkg/apis/autoscaling/v2/defaults.go)."""
