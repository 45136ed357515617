"""Our own rules as policies of tidemark.toml, driven by `tidemark.analysis.simulation.driving`."""

from scaling.config.policy import MetricSpec, Pace, Policy, PolicySpec, RuleSpec
from scaling.model import MetricFailure
from scaling.target_facts import TargetFacts
from scaling.window import WindowSpec
from tidemark.analysis.simulation.driving import (
    BACKLOG,
    INCOMING,
    LATE_BY,
    LATE_INCOMING,
    LATE_OUTGOING,
    MINUTE,
    OLDEST_ACTIVE_AGE,
    OUTGOING,
    Shipped,
)
from tidemark.analysis.simulation.world import Model, Seen

MONDAY = 1_799_625_600.0  # 2027-01-11T00:00:00Z
METRICS = (BACKLOG, INCOMING, OUTGOING)


class Reported(Shipped):
    """A policy to which reports may be lost."""

    def miss(self, seen: Seen) -> None:
        """Every metric failed. What came before is in no later sample."""
        self.remember(seen)
        self.report(seen, (), [MetricFailure(name, self.begin + seen.t, "lost") for name in self.reads], None)


def shipped(
    rule: str,
    options: dict[str, object],
    *,
    interval: int = 15,
    counts: tuple[str, ...] = (BACKLOG,),
    out: Pace | None = None,
    inward: Pace | None = None,
    window: float = 0.0,
    model: Model | None = None,
    ready: bool = True,
    limit: int | None = None,
) -> Reported:
    """A policy of one rule. `counts` are the metrics it reads; `ready` tells the platform's count of ready ones, `limit` how many
    changes an hour it takes.
    """
    model = model or Model()
    spec = PolicySpec(
        target="plan",
        scaler="simulated",
        scaler_options={},
        minimum=model.minimum,
        maximum=model.maximum,
        metrics={name: metric(name, interval, window) for name in counts},
        rules=(RuleSpec(type=rule, name=rule, options=options),),
        out=out or Pace(),
        inward=inward or Pace(),
        facts=TargetFacts(changes_per_hour=limit),
    )
    return Reported(Policy(spec), {name: name for name in counts}, begin=MONDAY, ready=ready)


def metric(name: str, interval: int, window: float) -> MetricSpec:
    """Counts of minutes have a window of their own, which is not stale while the newest minute is as late as expected."""
    if name in {LATE_INCOMING, LATE_OUTGOING}:
        span = WindowSpec(span=5 * MINUTE, interval=MINUTE, delay=LATE_BY, missing_allowed=1)
    else:
        span = WindowSpec(span=window or 4.0 * interval, interval=float(interval), missing_allowed=1)
    return MetricSpec(collector="simulated", options={}, count="active", window=span)


OPTIONS = {
    LATE_INCOMING: "incoming",
    LATE_OUTGOING: "outgoing",
    OLDEST_ACTIVE_AGE: "oldest_age",
}
"""Options of the rule for metrics of another name."""


def service_level(
    *, interval: int = 15, counts: tuple[str, ...] = METRICS, limit: int | None = None, **changes: object
) -> Reported:
    """The rule of this benchmark, with nothing given but the objective."""
    model = changes.pop("model", None)
    ready = changes.pop("ready", True)
    names = {OPTIONS.get(name, name): name for name in counts}
    return shipped(
        "service_level",
        {**names, **changes},
        interval=interval,
        counts=counts,
        model=model if isinstance(model, Model) else None,
        ready=bool(ready),
        limit=limit,
    )
