"""target_per_unit with behaviour gives the HPA's count, over a grid of cases a naive transcription computes."""

import itertools
import random
from functools import lru_cache

from scaling.config.policy import MetricSpec, Pace, Policy, PolicySpec, RateLimit, RuleSpec
from scaling.decision.decide import decide
from scaling.model import Capacity, EffectRecord, TargetState
from scaling.window import Window, WindowSpec
from tests.oracles import hpa

NOW = 100_000.0
WINDOW = WindowSpec(span=15.0, interval=15.0)

# Formula: mode, tolerance, target x (current, ready), and loads around every edge of the formula.
MODES = ("average_value", "value")
TOLERANCES = (0.0, 0.1, 0.25)
TARGETS = (5.0, 64.0, 0.5)
CURRENT_READY = ((0, 0), (1, 1), (2, 1), (3, 3), (7, 5), (10, 10))
FACTORS = (0.0, 0.3, 0.74, 0.75, 0.89, 0.9, 0.95, 1.0, 1.05, 1.1, 1.11, 1.25, 1.3, 2.0, 2.01, 5.0, 40.0)

RATES = (
    (),
    (("percent", 100, 15), ("units", 4, 15)),
    (("units", 2, 60),),
    (("percent", 10, 60), ("units", 1, 300)),
    (("percent", 50, 120),),
)
SELECTS = ("max", "min", "disabled")
STABILIZATION = (0.0, 60.0, 300.0)
HISTORIES = (
    (),
    ((NOW - 400, 30), (NOW - 290, 2), (NOW - 60, 9), (NOW - 59, 6)),
    ((NOW - 300, 50), (NOW - 299, 8), (NOW - 30, 1)),
    ((NOW - 45, 12), (NOW - 30, 5), (NOW - 15, 5)),
)
CHANGES = (
    (),
    ((NOW - 100, 4, 6), (NOW - 10, 6, 5)),
    ((NOW - 300, 9, 5), (NOW - 60, 5, 6), (NOW - 14, 6, 7)),
    ((NOW - 119, 20, 12), (NOW - 15, 12, 10)),
)
BOUNDS = ((1, 10), (0, 100), (3, 8))


def formula_cases():
    for mode, tolerance, target, (current, ready), factor in itertools.product(
        MODES, TOLERANCES, TARGETS, CURRENT_READY, FACTORS
    ):
        whole = target * max(current, 1) if mode == "average_value" else target
        yield case(
            mode=mode,
            tolerance=tolerance,
            target=target,
            current=current,
            ready=ready,
            metric=whole * factor,
            minimum=0,
            maximum=1_000,
        )


def behaviour_cases():
    for out_rates, in_rates, selects, windows, history, changes, bounds in itertools.product(
        RATES, RATES, zip(SELECTS, reversed(SELECTS), strict=True), STABILIZATION, HISTORIES, CHANGES, BOUNDS
    ):
        yield from (
            case(
                target=10.0,
                current=current,
                ready=current,
                metric=metric,
                minimum=bounds[0],
                maximum=bounds[1],
                out_rates=out_rates,
                in_rates=in_rates,
                out_select=selects[0],
                in_select=selects[1],
                out_window=windows,
                in_window=300.0 - windows,
                history=history,
                changes=changes,
            )
            for current, metric in ((5, 10.0), (7, 400.0), (12, 65.0))
        )


def random_cases(count, seed=20260815):
    """Combinations the grids leave out; seeded, so the same every time."""
    rng = random.Random(seed)
    for _ in range(count):
        current = rng.randint(0, 40)
        history = sorted((NOW - rng.randint(1, 700), rng.randint(0, 60)) for _ in range(rng.randint(0, 6)))
        changes = sorted(
            (NOW - rng.randint(1, 700), rng.randint(0, 20), rng.randint(21, 40))
            for _ in range(rng.randint(0, 4))
        )
        changes = [(at, a, b) if rng.random() < 0.5 else (at, b, a) for at, a, b in changes]
        yield case(
            mode=rng.choice(MODES),
            tolerance=rng.choice(TOLERANCES),
            target=rng.choice((1.0, 7.0, 33.3)),
            current=current,
            ready=rng.randint(0, current),
            metric=float(rng.randint(0, 600)),
            minimum=rng.choice((0, 3, 5)),
            maximum=rng.choice((5, 20, 50)),
            out_rates=rng.choice(RATES),
            in_rates=rng.choice(RATES),
            out_select=rng.choice(SELECTS),
            in_select=rng.choice(SELECTS),
            out_window=float(rng.choice((0, 30, 300))),
            in_window=float(rng.choice((0, 30, 300))),
            history=tuple(history),
            changes=tuple(changes),
        )


def case(**given):
    return {
        "now": NOW,
        "mode": "average_value",
        "tolerance": 0.1,
        "history": (),
        "changes": (),
        "out_rates": (),
        "in_rates": (),
        "out_select": "max",
        "in_select": "max",
        "out_window": 0.0,
        "in_window": 0.0,
        **given,
    }


def pace(rates, select, window):
    limits = tuple(RateLimit(kind=kind, amount=amount, period=period) for kind, amount, period in rates)
    return Pace(stabilization=window, rates=limits, select=select)


def policy_of(c):
    """Built once for the many cases that share it."""
    return built(*(c[name] for name in POLICY))


POLICY = (
    *("target", "tolerance", "mode", "minimum", "maximum"),
    *("out_rates", "out_select", "out_window", "in_rates", "in_select", "in_window"),
)


@lru_cache(maxsize=1_000)
def built(*settings):
    c = dict(zip(POLICY, settings, strict=True))
    options = {"metric": "backlog", "target": c["target"], "tolerance": c["tolerance"], "mode": c["mode"]}
    return Policy(
        PolicySpec(
            target="plan-orders",
            scaler="app_service_plan",
            scaler_options={},
            minimum=c["minimum"],
            maximum=c["maximum"],
            metrics={
                "backlog": MetricSpec(collector="queue", options={}, count="active", window=WINDOW),
            },
            rules=(RuleSpec(type="target_per_unit", name="hpa", options=options),),
            out=pace(c["out_rates"], c["out_select"], c["out_window"]),
            inward=pace(c["in_rates"], c["in_select"], c["in_window"]),
        )
    )


def ours(c):
    state = TargetState(
        expected=c["current"],
        capacity=Capacity(c["current"], NOW, ready=c["ready"]),
        effects=tuple(EffectRecord(at, before, after) for at, before, after in c["changes"]),
        recommendations=c["history"],
    )
    windows = {"backlog": Window([NOW], [c["metric"]])}
    return decide(policy_of(c), windows, state, now=NOW).desired


def expected_of(c):
    """The HPA's count; below its minimum the HPA takes two syncs where we take one: to the minimum, and on."""
    expected = hpa.next_count(c)
    if c["current"] < c["minimum"]:
        return max(expected, hpa.next_count({**c, "minimum": 0}))
    return expected


def check(cases):
    seen = 0
    outcomes = {"out": 0, "in": 0, "stay": 0}
    for c in cases:
        expected = expected_of(c)
        assert expected == ours(c), f"{c}"
        seen += 1
        outcomes["out" if expected > c["current"] else "in" if expected < c["current"] else "stay"] += 1
    assert min(outcomes.values()) > seen / 20, outcomes  # the cases exercise every direction
    return seen


def test_the_formula_agrees_on_every_edge_of_modes_tolerance_and_readiness():
    assert check(formula_cases()) == 2 * 3 * 3 * 6 * 17


def test_stabilization_rate_policies_and_bounds_agree_over_the_grid():
    assert check(behaviour_cases()) == 5 * 5 * 3 * 3 * 4 * 4 * 3 * 3


def test_random_combinations_of_everything_agree():
    assert check(random_cases(4_000)) == 4_000
