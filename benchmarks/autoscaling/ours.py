"""Our own rules as policies of tidemark.toml, driven by `tidemark.analysis.simulation.driving`."""

from scaling.config.policy import MetricSpec, Pace, Policy, PolicySpec, RuleSpec
from scaling.model import MetricFailure
from scaling.window import WindowSpec
from tidemark.analysis.simulation.driving import BACKLOG, INCOMING, OUTGOING, Shipped
from tidemark.analysis.simulation.world import Model, Seen

MONDAY = 1_799_625_600.0  # 2027-01-11T00:00:00Z
METRICS = (BACKLOG, INCOMING, OUTGOING)


class Reported(Shipped):
    """A policy to which reports may be lost."""

    def miss(self, seen: Seen) -> None:
        """Every metric failed. What came before is in no later sample."""
        self.before = seen
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
) -> Reported:
    """A policy of one rule. `counts` are the metrics it reads; `ready` tells the platform's count of ready ones."""
    model = model or Model()
    span = WindowSpec(span=window or 4.0 * interval, interval=float(interval), missing_allowed=1)
    metric = MetricSpec(collector="simulated", options={}, count="active", window=span)
    spec = PolicySpec(
        target="plan",
        scaler="simulated",
        scaler_options={},
        minimum=model.minimum,
        maximum=model.maximum,
        metrics=dict.fromkeys(counts, metric),
        rules=(RuleSpec(type=rule, name=rule, options=options),),
        out=out or Pace(),
        inward=inward or Pace(),
    )
    return Reported(Policy(spec), {name: name for name in counts}, begin=MONDAY, ready=ready)


def service_level(*, interval: int = 15, counts: tuple[str, ...] = METRICS, **changes: object) -> Reported:
    """The rule of this benchmark, with nothing given but the objective."""
    model = changes.pop("model", None)
    ready = changes.pop("ready", True)
    names = {name: name for name in counts}
    return shipped(
        "service_level",
        {**names, **changes},
        interval=interval,
        counts=counts,
        model=model if isinstance(model, Model) else None,
        ready=bool(ready),
    )
