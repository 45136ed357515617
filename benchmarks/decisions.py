"""Decisions per second of the pure core, against the classic rule (fixed thresholds) in the same run.

    python benchmarks/decisions.py [--seconds 1.0] [--runs 5]

The peer is the rule of the first article (Shilkov 2017) as naively as it was written: a history list that is
appended to and filtered, `average > 500` out, `maximum < 300` in, a cooldown. It keeps no bounds, no reasons
and no state of effects; the ratio says what these cost.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

import msgspec

from scaling.config.policy import HPA_IN, HPA_OUT, MetricSpec, Pace, Policy, PolicySpec, RuleSpec
from scaling.decision.decide import decide
from scaling.decision.transitions import absorb, advance
from scaling.flips.explained import decide_and_explain
from scaling.log_entry import decision_id
from scaling.model import NO_CONTROLS, Capacity, EffectRecord, MetricSample, MetricsReport, TargetState
from scaling.rules.view import MetricsView
from scaling.window import Window, WindowSpec

NOW = 1_800_000_000.0
SPEC = WindowSpec(span=600.0, interval=60.0, min_samples=5)
TIMES = [NOW - 60.0 * (9 - i) for i in range(10)]
VALUES = [400.0, 410.0, 395.0, 402.0, 399.0, 405.0, 398.0, 401.0, 403.0, 400.0]
SEED_PACE = Pace(cooldown=600.0)
STATE = TargetState(expected=3, capacity=Capacity(3, NOW), effects=(EffectRecord(NOW - 900.0, 2, 3),))


def policy(rules: tuple[RuleSpec, ...], metrics: int, out: Pace, inward: Pace) -> Policy:
    spec = MetricSpec(collector="queue", options={}, count="active", window=SPEC)
    return Policy(
        PolicySpec(
            target="plan-orders",
            scaler="app_service_plan",
            scaler_options={},
            minimum=1,
            maximum=10,
            metrics={f"m{i}": spec for i in range(metrics)},
            rules=rules,
            out=out,
            inward=inward,
        )
    )


def threshold(metric: str) -> dict[str, object]:
    return {"metric": metric, "scale_out_above": 500, "scale_in_below": 300}


THRESHOLD = policy((RuleSpec(type="threshold", name="t", options=threshold("m0")),), 1, SEED_PACE, SEED_PACE)
LEARNING = policy((RuleSpec(type="service_level", name="s", options={"backlog": "m0"}),), 1, Pace(), Pace())
PROPORTIONAL = policy(
    (RuleSpec(type="target_per_unit", name="h", options={"metric": "m0", "target": 100}),), 1, HPA_OUT, HPA_IN
)
NESTED = [{"type": "threshold", **threshold(f"m{i}")} for i in range(5)]
COMPOSITE = policy(
    (RuleSpec(type="composite", name="c", options={"rules": NESTED}),), 5, SEED_PACE, SEED_PACE
)
WINDOWS = {f"m{i}": Window(TIMES, VALUES) for i in range(5)}
RECENT = TargetState(
    expected=3,
    capacity=Capacity(3, NOW),
    effects=(EffectRecord(NOW - 900.0, 2, 4), EffectRecord(NOW - 10.0, 4, 3)),
    recommendations=tuple((NOW - 15.0 * i, 3 + i % 2) for i in range(20, 0, -1)),
)


def decision(subject: Policy, state: TargetState) -> Callable[[], object]:
    return lambda: decide(subject, WINDOWS, state, now=NOW)


def explained(subject: Policy, windows: dict[str, Window], state: TargetState) -> Callable[[], object]:
    """What the app runs: the decision, and what would have changed it."""
    return lambda: decide_and_explain(subject, windows, state, now=NOW)


def explained_learned() -> Callable[[], object]:
    windows, state = learned()
    return lambda: decide_and_explain(LEARNING, windows, state, now=NOW - 60.0)


def whole_path() -> Callable[[], object]:
    """absorb, decide and advance of one report a minute, as the runner does between load and save."""
    return _path(THRESHOLD, {"m0": Window(TIMES, VALUES)}, STATE)


def _path(subject: Policy, windows: dict[str, Window], state: TargetState) -> Callable[[], object]:
    at = NOW
    chance = random.Random(1)

    def run() -> None:
        nonlocal windows, state, at
        at += 60.0
        sample = MetricSample("m0", at, 400.0 + chance.randrange(10))
        report = MetricsReport("plan-orders", at, (sample,), (), Capacity(state.expected or 3, at))
        windows, state = absorb(subject, windows, state, report, now=at, controls=NO_CONTROLS)
        made = decide(subject, windows, state, now=at, decision_id=decision_id("plan-orders", at))
        state, _ = advance(subject, state, made, report_at=at, level=None)
        if state.pending is not None:  # what was ordered is there at once
            to = state.pending.to_capacity
            state = msgspec.structs.replace(state, pending=None, delivery=None, expected=to)

    return run


def learned() -> tuple[dict[str, Window], TargetState]:
    """Windows and state of the rule that learns, after two days of reports."""
    windows: dict[str, Window] = {}
    state, chance = TargetState(), random.Random(1)
    for index in range(2880, 0, -1):
        at = NOW - 60.0 * index
        sample = MetricSample("m0", at, chance.expovariate(1 / 60.0))
        report = MetricsReport("plan-orders", at, (sample,), (), Capacity(3, at))
        windows, state = absorb(LEARNING, windows, state, report, now=at, controls=NO_CONTROLS)
    return windows, state


def learned_decision() -> Callable[[], object]:
    windows, state = learned()
    return lambda: decide(LEARNING, windows, state, now=NOW - 60.0)


def learned_verdict() -> Callable[[], object]:
    """The rule alone, from the bytes of its memory to its verdict."""
    windows, state = learned()
    (rule,) = LEARNING.flat_rules
    view = MetricsView(
        windows, LEARNING.windows, 3, ready=3, minimum=1, maximum=10, now=NOW - 60.0, memories=state.memories
    )
    return lambda: rule.evaluate(view)


def classic_rule() -> Callable[[], object]:
    """The peer. Its history is as long as ours: ten samples."""
    history = list(zip(TIMES, VALUES, strict=True))
    at, last_action = NOW, NOW - 6_000.0

    def run() -> str | None:
        nonlocal history, at, last_action
        at += 60.0
        history.append((at, 400.0))
        history = [sample for sample in history if sample[0] > at - 600.0]
        if len(history) >= 5 and at - last_action > 600.0:
            values = [value for _, value in history]
            if int(sum(values) / len(values)) > 500:
                last_action = at
                return "up"
            if int(max(values)) < 300:
                last_action = at
                return "down"
        return None

    return run


CASES: dict[str, Callable[[], Callable[[], object]]] = {
    "the classic rule, naive (peer)": classic_rule,
    "explained (what the app runs): threshold, 1 metric": lambda: explained(THRESHOLD, WINDOWS, STATE),
    "explained: target_per_unit, stabilization, rates": lambda: explained(PROPORTIONAL, WINDOWS, RECENT),
    "explained: composite of 5 metrics": lambda: explained(COMPOSITE, WINDOWS, STATE),
    "explained: service_level": explained_learned,
    "decide: threshold, 1 metric": lambda: decision(THRESHOLD, STATE),
    "decide: target_per_unit, stabilization, rates": lambda: decision(PROPORTIONAL, RECENT),
    "decide: composite of 5 metrics, any-out/all-in": lambda: decision(COMPOSITE, STATE),
    "absorb + decide + advance: threshold, 1 metric": whole_path,
    "service_level: verdict": learned_verdict,
    "decide: service_level": learned_decision,
    "absorb (learn) + decide + advance: service_level": lambda: _path(LEARNING, *learned()),
}


def rate(run: Callable[[], object], seconds: float) -> float:
    """Calls per second of processor time: a busy machine does not slow the code under test down."""
    calls, begin = 0, time.process_time()
    while (spent := time.process_time() - begin) < seconds:
        for _ in range(100):
            run()
        calls += 100
    return calls / spent


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="processor time per case and run")
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    rates_of_case: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(given.runs):  # round robin, so that a slow phase of the machine meets all cases
        for name, make in CASES.items():
            rates_of_case[name].append(rate(make(), given.seconds))
    medians = {name: statistics.median(rates) for name, rates in rates_of_case.items()}
    peer = next(iter(medians.values()))
    print(f"{'case':<50} {'per second':>12} {'lowest':>10} {'highest':>10} {'of the peer':>12}")
    for name, median in medians.items():
        low, high = min(rates_of_case[name]), max(rates_of_case[name])
        print(f"{name:<50} {median:>12,.0f} {low:>10,.0f} {high:>10,.0f} {median / peer:>11.1%}")


if __name__ == "__main__":
    main()
