"""Decisions as a release wrote them: the inputs of a log row and the recommendation beside them.

`python -m tests.support.scaling.decision_fixtures` records those of the present code for `scaling.analysis.replay.VERSION`, in
tests/data. A release that decides otherwise raises that version and adds a file; the files that are there are
never written again, for they stand for rows in somebody's table.
"""

import base64
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec

from scaling.analysis import replay
from scaling.config.policy import (
    HPA_IN,
    HPA_OUT,
    Fallback,
    Pace,
    Plateau,
    Policy,
    PolicySpec,
    RateLimit,
    RuleSpec,
)
from scaling.decision.pending_action import record_effect
from scaling.decision.transitions import absorb, advance
from scaling.flips.explained import decide_and_explain as decide
from scaling.model import (
    NO_CONTROLS,
    Capacity,
    Controls,
    Direction,
    Effect,
    EffectOutcome,
    MetricFailure,
    MetricSample,
    MetricsReport,
    Override,
    Pause,
    Reason,
    Recommendation,
    TargetState,
)
from tests.support.scaling.runner import MINUTE, NOW, THRESHOLD, metric

DATA = Path(__file__).parents[2] / "data"


class Recorded(msgspec.Struct, frozen=True):
    """One line of a file: what the log row held."""

    policy: str
    reason: Reason
    inputs: str  # base64 of the bytes
    recommendation: Recommendation


def rule(kind: str, name: str, **options) -> RuleSpec:
    return RuleSpec(type=kind, name=name, options=options)


def made(rules: tuple[RuleSpec, ...], metrics: tuple[str, ...] = ("backlog",), **changes) -> PolicySpec:
    fields = {
        "target": "plan",
        "scaler": "fake",
        "scaler_options": {},
        "minimum": 1,
        "maximum": 10,
        "metrics": {name: metric() for name in metrics},
        "rules": rules,
    }
    return PolicySpec(**(fields | changes))


BY_COUNT = rule(
    "threshold",
    "backlog",
    metric="backlog",
    scale_out_above="250 * instances",
    scale_in_below="100 * (instances - 1)",
    step_out=2,
)
GUARD = rule("guard", "database", metric="load", block_out_above=800.0)
HOURS = rule(
    "schedule",
    "hours",
    periods=[{"days": "mon-fri", "from": "06:00", "to": "18:00", "floor": 3, "ceiling": 8}],
    time_zone="Europe/Amsterdam",
)

POLICIES: dict[str, PolicySpec] = {
    "threshold": made(
        (BY_COUNT,),
        out=Pace(cooldown=180.0),
        inward=Pace(cooldown=600.0),
        plateau=Plateau(metric="backlog", effects=2),
    ),
    "per_unit": made(
        (rule("target_per_unit", "unit", metric="backlog", target=100.0, cap_metric="partitions"),),
        ("backlog", "partitions"),
        out=HPA_OUT,
        inward=HPA_IN,
    ),
    "expression": made(
        (rule("composite", "sum", desired="ceil((backlog + load.average) / 200)"),),
        ("backlog", "load"),
        out=Pace(step=2),
        inward=Pace(step=1, stabilization=300.0),
    ),
    "when": made(
        (rule("composite", "w", scale_out_when="backlog.average > 500", scale_in_when="backlog.maximum < 100"),)
    ),
    "nested": made(
        (
            rule(
                "composite",
                "all",
                rules=[
                    {"type": "threshold", **THRESHOLD.options},
                    {"type": "guard", "metric": "load", "block_out_above": 700.0, "when_missing": "allow"},
                ],
            ),
            HOURS,
        ),
        ("backlog", "load"),
    ),
    "guarded": made(
        (THRESHOLD, GUARD),
        ("backlog", "load"),
        fallback=Fallback(capacity=6, after=120.0),
        out=Pace(rates=(RateLimit(kind="units", amount=1, period=120.0),)),
    ),
    "dry": made((rule("threshold", "each", metrics=["backlog", "load"], scale_out_above=600.0, combine="sum"),),
        ("backlog", "load"),
        dry_run=True,
    ),
    "units": made(
        (
            rule(
                "request_units_for_rate",
                "ru",
                consumers=["backlog", "partitions"],
                rate=10.0,
                ru_per_record="load",
                first_ru_per_record=6.0,
                throttled_share="throttled",
            ),
        ),
        ("backlog", "partitions", "load", "throttled"),
        minimum=400,
        maximum=200_000,
    ),
    "within": made(
        (
            THRESHOLD,
            rule("within_request_units", "ru", request_units="load", rate=10.0, ru_per_record=9.0),
        ),
        ("backlog", "load"),
    ),
    "broken": made((rule("composite", "division", desired="100 / backlog"), THRESHOLD)),
}  # fmt: skip


def walk(name: str, spec: PolicySpec, ticks: int = 400) -> Iterator[tuple[bytes, Recommendation]]:
    """What the log would hold of some hours of this target, all kinds of trouble included."""
    random = Random(name)
    policy, windows, state = Policy(spec), {}, TargetState()
    here, level, controls = max(2, spec.minimum), 300.0, NO_CONTROLS
    for tick in range(ticks):
        now = NOW + 3.25 + MINUTE * tick
        if random.random() < 0.15:
            level = random.choice([0.0, 20.0, 80.0, 300.0, 650.0, 900.0, 3000.0])
        if random.random() < 0.03:
            here = max(here + random.choice([-1, 2]), 1)  # an external change
        controls = ordered(random, controls, now)
        if random.random() < 0.01:
            state = TargetState(corrupt_since=now)
        report = reported(random, policy, here, level, now)
        windows, state = absorb(policy, windows, state, report, now=now, controls=controls)
        identity = f"{spec.target}@{tick}"
        answer = decide(policy, windows, state, now=now, controls=controls, decision_id=identity)
        yield (
            replay.encode_inputs(policy, windows, state, controls, now=now, decision_id=identity),
            answer,
        )
        window = windows[spec.plateau.metric] if spec.plateau else None
        at = window.values[-1] if window and window.values else None
        state, action = advance(policy, state, answer, report_at=report.at, level=at)
        if action is not None and random.random() < 0.85:
            here = action.to_capacity
            effect = Effect(
                action.action_id,
                "plan",
                EffectOutcome.APPLIED,
                action.from_capacity,
                here,
                here,
                now + 4.0,
            )
            state = record_effect(state, effect)


def ordered(random: Random, before: Controls, now: float) -> Controls:
    """Operators' orders: few, and most of them for a while."""
    chance = random.random()
    if chance < 0.02:
        return Controls(pauses=(Pause("kim", now, random.choice([None, *Direction]), now + 240.0),))
    if chance < 0.035:
        return Controls(override=Override(random.choice([1, 5, 99]), "kim", now, now + 180.0))
    return NO_CONTROLS if chance < 0.1 else before


def reported(random: Random, policy: Policy, here: int, level: float, now: float) -> MetricsReport:
    samples, failures = [], []
    for metric_name in policy.windows:
        chance = random.random()
        value = {"throttled": random.choice([0.0, 0.0, 0.5]), "partitions": random.choice([2.0, 8.0])}.get(
            metric_name, max(level + random.choice([-20.0, 0.0, 15.0]), 0.0)
        )  # fmt: skip
        if chance < 0.02:
            reason = random.choice([Reason.COLLECT_FAILED, Reason.ENTITY_DISABLED])
            failures.append(MetricFailure(metric_name, now, "no answer", reason))
        elif chance < 0.03:
            samples.append(MetricSample(metric_name, now, -1.0))
        elif chance > 0.02 + 0.02:
            samples.append(MetricSample(metric_name, now, value))
    trouble = random.random()
    if trouble < 0.02:
        return MetricsReport("plan", now, tuple(samples), tuple(failures), None, "403")
    capacity = Capacity(
        here,
        now,
        floor=1,
        ceiling=random.choice([None, None, 200_000, 5]),
        ready=random.choice([None, here]),
        pending=trouble < 0.04,
        held_by="autoscale" if trouble > 0.98 else None,
    )
    return MetricsReport("plan", now, tuple(samples), tuple(failures), capacity)


def record() -> Iterator[Recorded]:
    """The first decision of each reason under each policy."""
    for name, spec in POLICIES.items():
        kept = set()
        for inputs, answer in walk(name, spec):
            kind = (answer.reason, answer.acts)
            if kind not in kept:
                kept.add(kind)
                yield Recorded(name, answer.reason, base64.b64encode(inputs).decode(), answer)


def path_of(version: int) -> Path:
    return DATA / f"decisions-v{version}.jsonl"


def read(version: int) -> list[Recorded]:
    return [msgspec.json.decode(line, type=Recorded) for line in path_of(version).read_bytes().splitlines()]


if __name__ == "__main__":
    version = getattr(replay, "VERSION", 1)
    if path_of(version).exists():
        sys.exit(f"{path_of(version).name} is there: it stands for rows that are stored; raise VERSION")
    lines = [msgspec.json.encode(recorded) for recorded in record()]
    path_of(version).write_bytes(b"\n".join(lines) + b"\n")
