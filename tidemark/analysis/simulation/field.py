"""Who is compared on a recorded load: today's policy, what others use, and rules of ours. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct, structs

from scaling.config.policy import HPA_IN, HPA_OUT, MetricSpec, Pace, Policy, PolicySpec, QueueSpec, RuleSpec
from scaling.rules.service_level.rule import ServiceLevelRule
from scaling.window import WindowSpec
from tidemark.analysis.simulation import peers, world
from tidemark.analysis.simulation.driving import (
    BACKLOG,
    INCOMING,
    LATE_BY,
    LATE_INCOMING,
    LATE_OUTGOING,
    MINUTE,
    OLDEST_AGE,
    OUTGOING,
    Shipped,
)
from tidemark.foundation.durations import seconds_text
from tidemark.foundation.wording import duration_text

TODAY = "today's policy"

LATES = (0.1, 0.3, 1.0, 3.0, 10.0)
WAITS = (0.25, 0.5)
"""Times the objective's share of late messages, and times its wait: the points of the curve."""

MOST_LATE = 0.5
OFTEN = 15.0
"""Seconds between two evaluations that are tried, too, where the target is evaluated less often."""

UNIT_SHARES = (0.5, 0.75)
"""Targets of `target_per_unit` that are tried, as shares of what an instance processes at once. Of slow messages 0.75 to 0.9 cost
least at 1 % late (docs/service-level.md); the lower one is for bursts.
"""

UNPACED = Pace()
"""`service_level` has a hold time of its own, which cooldowns and stabilization would only lengthen."""

EVERY = f", every {OFTEN:g} s"
OFTENER = f"service_level{EVERY}"


class Target(Struct, frozen=True, kw_only=True):
    """What is known of a target, or assumed of it.

    `service_rate` messages per second of a busy instance, `concurrency` messages it processes at once, `start_up` seconds
    from asked-for to serving; `wait` and `late` are the objective. `interval` seconds between two evaluations. `reads` says which of
    the policy's metrics is what (`driving`). `policy` is None where nothing is configured, or where it reads what no
    history tells. `given` are options of `service_level` that it need not learn.
    """

    name: str
    service_rate: float
    concurrency: float
    start_up: float
    wait: float
    late: float
    minimum: int
    maximum: int
    interval: float
    reads: dict[str, str]
    policy: PolicySpec | None = None
    given: dict[str, float | str] = {}

    @property
    def model(self) -> world.Model:
        return world.Model(
            service_rate=self.service_rate,
            concurrency=self.concurrency,
            start_up=round(self.start_up),
            wait=round(self.wait),
            minimum=self.minimum,
            maximum=self.maximum,
        )


class Entry(Struct, frozen=True):
    """One that is compared. `spec` is the policy of ours, if it is one; `peer` and `numbers` those of another.
    `objective` is (wait, late) of a point of the curve. `oftener` is evaluated more often than the target is.
    """

    name: str
    spec: PolicySpec | None = None
    peer: str = ""
    numbers: tuple[float, ...] = ()
    objective: tuple[float, float] | None = None
    oftener: bool = False

    @property
    def ours(self) -> bool:
        """One that may be recommended in place of today's."""
        return self.spec is not None and self.name != TODAY

    def policy(self, target: Target, begin: float) -> world.Policy:
        """Made anew for a load that begins at `begin`."""
        if self.spec is not None:
            reads = {name: kind for name, kind in target.reads.items() if name in self.spec.metrics}
            return Shipped(Policy(self.spec), reads, begin=begin)
        if self.peer == "keda":
            return peers.Keda(*self.numbers)
        out, inward, window, cooldown, step = self.numbers
        return peers.AzureMonitor(out, inward, window, cooldown, int(step))


def field(target: Target) -> Iterator[Entry]:
    """All of them, in the order of the page. Names are unique."""
    if target.policy is not None:
        yield Entry(TODAY, target.policy)
    yield Entry("Azure Monitor 100/10", peer="azure", numbers=(100, 10, 600, 300, 1))
    out, inward = 0.875 * target.concurrency, 0.5 * target.concurrency
    yield Entry(f"Azure Monitor {out:.3g}/{inward:.3g}", peer="azure", numbers=(out, inward, 300, 60, 4))
    yield Entry("KEDA 5 (default)", peer="keda", numbers=(5.0,))
    per_instance = max(0.75 * target.concurrency, 1.0)
    if per_instance != 5.0:
        yield Entry(f"KEDA {per_instance:.3g}", peer="keda", numbers=(per_instance,))
    points = [(target.wait, min(target.late * times, MOST_LATE)) for times in LATES]
    points += [(max(target.wait * times, 1.0), target.late) for times in WAITS]
    for wait, late in dict.fromkeys(sorted(points, key=lambda point: (-point[0], -point[1]))):
        yield Entry(
            name_of(wait, late), service_level(target, wait, late, target.interval), objective=(wait, late)
        )
    units = dict.fromkeys(max(float(f"{share * target.concurrency:.3g}"), 1.0) for share in UNIT_SHARES)
    for unit in units:
        yield Entry(f"target_per_unit {unit:g}", target_per_unit(target, unit, target.interval))
    if target.interval > OFTEN:
        yield Entry(OFTENER, service_level(target, target.wait, target.late, OFTEN), oftener=True)
        for unit in units:
            spec = target_per_unit(target, unit, OFTEN)
            yield Entry(f"target_per_unit {unit:g}{EVERY}", spec, oftener=True)


def name_of(wait: float, late: float) -> str:
    return f"service_level {wait_text(wait)}, {100 * late:.3g} %"


def wait_text(wait: float) -> str:
    return f"{wait:g} s" if wait < 300 else duration_text(wait)


def service_level(target: Target, wait: float, late: float, interval: float) -> PolicySpec:
    """The target's policy with the rule in place of its own."""
    return _with_rule(target, "service_level", rule_options(target, wait, late), target.reads, interval)


def target_per_unit(target: Target, unit: float, interval: float) -> PolicySpec:
    """The same with messages per instance, as steady as the HPA is: `behavior = "hpa"`."""
    backlog = next(name for name, kind in target.reads.items() if kind == BACKLOG)
    options: dict[str, object] = {"metric": backlog, "target": unit}
    return _with_rule(target, "target_per_unit", options, (backlog,), interval, HPA_OUT, HPA_IN)


def _with_rule(
    target: Target,
    kind: str,
    options: dict[str, object],
    reads: Iterable[str],
    interval: float,
    out: Pace = UNPACED,
    inward: Pace = UNPACED,
) -> PolicySpec:
    metrics = {name: _metric(target, target.reads[name], interval) for name in reads}
    rules = (RuleSpec(type=kind, name=kind, options=options),)
    if target.policy is not None:
        return structs.replace(
            target.policy,
            metrics=metrics,
            rules=rules,
            out=out,
            inward=inward,
            plateau=None,
            report_interval=interval,
        )
    return PolicySpec(
        target=target.name,
        scaler="simulated",
        scaler_options={},
        minimum=target.minimum,
        maximum=target.maximum,
        metrics=metrics,
        rules=rules,
        out=out,
        inward=inward,
    )


def _metric(target: Target, kind: str, interval: float) -> MetricSpec:
    """The window has as many samples as the policy's, or five; of late counts, a sample for each minute."""
    todays = [] if target.policy is None else list(target.policy.metrics.values())
    samples = max((metric.window.span / target.interval for metric in todays), default=5.0)
    each, delay = (MINUTE, LATE_BY) if kind in {LATE_INCOMING, LATE_OUTGOING} else (interval, 0.0)
    window = WindowSpec(span=samples * each, interval=each, delay=delay)
    return MetricSpec(collector="simulated", options={}, count="active", window=window)


def rule_options(target: Target, wait: float, late: float) -> dict[str, object]:
    """The rule's options, as tidemark.toml has them."""
    metrics = {kind.removeprefix("late_"): name for name, kind in target.reads.items()}
    return {**metrics, "wait": seconds_text(wait), "late": float(f"{late:.6g}"), **target.given}


def reads_of(spec: PolicySpec, queue: str) -> dict[str, str]:
    """Which of a policy's metrics is what of the queue that its metric `queue` is: what its rules say."""
    params = [rule.params for rule in Policy(spec).flat_rules if isinstance(rule, ServiceLevelRule)]
    own = [each for each in params if each.backlog == queue]
    kinds = {queue: BACKLOG}
    for each in own:
        for name, kind, late in (
            (each.incoming, INCOMING, LATE_INCOMING),
            (each.outgoing, OUTGOING, LATE_OUTGOING),
            (each.oldest_age, OLDEST_AGE, OLDEST_AGE),
        ):
            if name is not None:
                kinds[name] = late if spec.metrics[name].window.delay else kind
    return kinds


def objective_of(spec: PolicySpec) -> QueueSpec | None:
    """What a policy asks for by a rule of its own, or of its shadow's queue; None where it has neither."""
    if spec.shadow is not None and spec.shadow.queue is not None:
        return spec.shadow.queue
    rules = (rule for rule in Policy(spec).flat_rules if isinstance(rule, ServiceLevelRule))
    rule = next(rules, None)
    if rule is None:
        return None
    objective = rule.objective
    takes, at_once = objective.takes, objective.concurrency
    return QueueSpec(
        backlog=rule.params.backlog,
        service_rate=None if takes is None or at_once is None else at_once / takes,
        wait=objective.wait,
        late=objective.late,
        concurrency=objective.concurrency,
        start_up=objective.start_up,
    )
