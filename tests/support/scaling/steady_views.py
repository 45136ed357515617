"""Views and policies for tests of rules: every metric's window is complete unless said otherwise."""

from scaling.config.policy import MetricSpec, Policy, PolicySpec, RuleSpec
from scaling.config.rule_registry import build_rule
from scaling.rules import MetricsView
from scaling.window import Window, WindowSpec

NOW = 1_800_000_000.0
MINUTE = WindowSpec(span=600.0, interval=60.0, min_samples=5)


def window(*values, end=NOW, interval=60.0):
    """Samples an interval apart, the last at `end`; a value of None is a missing one."""
    times = [end - interval * (len(values) - 1 - i) for i in range(len(values))]
    kept = [(at, float(value)) for at, value in zip(times, values, strict=True) if value is not None]
    return Window([at for at, _ in kept], [value for _, value in kept])


def steady(value):
    return window(*[value] * 10)


def view(current=3, *, ready=None, minimum=1, maximum=10, now=NOW, specs=None, **windows):
    """A view; a metric given as a number has had that value all along."""
    found = {name: w if isinstance(w, Window) else steady(w) for name, w in windows.items()}
    return MetricsView(
        windows=found,
        specs=specs or dict.fromkeys(found, MINUTE),
        current=current,
        ready=current if ready is None else ready,
        minimum=minimum,
        maximum=maximum,
        now=now,
    )


def rule(kind, name="r", **options):
    return build_rule(kind, options, name=name)


def policy(
    *rules, metrics=("backlog",), per_instance=(), minimum=1, maximum=10, window_spec=MINUTE, **limits
):
    """A policy of rules given as option dicts with their `type`."""
    specs = [dict(r) for r in rules]
    return Policy(
        PolicySpec(
            target="plan-orders",
            scaler="app_service_plan",
            scaler_options={},
            minimum=minimum,
            maximum=maximum,
            metrics={
                name: MetricSpec(
                    collector="queue",
                    options={},
                    count="active",
                    window=window_spec,
                    per_instance=name in per_instance,
                )
                for name in metrics
            },
            rules=tuple(
                RuleSpec(type=r.pop("type"), name=r.pop("name", f"rule-{i}"), options=r)
                for i, r in enumerate(specs)
            ),
            **limits,
        )
    )
