"""The recommended policy as a table to paste into tidemark.toml. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scaling.config.policy import HPA_OUT, PolicySpec
from tidemark.analysis.backtest.candidates.variation import as_toml, bare_key
from tidemark.analysis.simulation.field import Target

DELAYS = ("behavior", "out", "in", "plateau")
"""Keys of a target that hold changes back: `service_level` has its own hold time."""


def recommended(target: Target, spec: PolicySpec, table: Mapping[str, Any] | None) -> dict[str, Any]:
    """The target's table with the rule of `spec` in place of its rules; without one, a table of a Service Bus queue to fill in."""
    (own,) = spec.rules
    rule = {"type": own.type, **own.options}
    pace = {"behavior": "hpa"} if spec.out == HPA_OUT else {}
    if table is None:
        metric = {
            "collector": "service_bus_queue",
            "connection": "ServiceBus",
            "queue": target.name,
            "window": "5m",
        }
        return {
            "scaler": "app_service_plan",
            "resource_id": "%PLAN_ID%",
            "minimum": target.minimum,
            "maximum": target.maximum,
            "dry_run": True,
            **pace,
            "metrics": {"backlog": metric},
            "rules": [rule],
        }
    kept = {key: value for key, value in table.items() if key not in {*DELAYS, "rules"}}
    return {**kept, **pace, "rules": [rule]}


def as_text(target: str, table: Mapping[str, Any]) -> str:
    """The table as TOML."""
    return "\n".join(_lines(f"targets.{bare_key(target)}", table)) + "\n"


def _lines(path: str, table: Mapping[str, Any], opening: str = "[{}]") -> Iterator[str]:
    """Values first, then tables, as TOML asks for; a table of tables only has no line of its own."""
    plain = {key: value for key, value in table.items() if not _tables(value)}
    if plain or not table:
        yield opening.format(path)
        yield from (f"{bare_key(key)} = {as_toml(value)}" for key, value in plain.items())
    for key, value in table.items():
        below = f"{path}.{bare_key(key)}"
        if isinstance(value, Mapping):
            yield from (
                ("", *_lines(below, value))
                if any(not _tables(v) for v in value.values())
                else _lines(below, value)
            )
        elif _tables(value):
            for each in value:
                yield from ("", f"[[{below}]]", *(f"{bare_key(k)} = {as_toml(v)}" for k, v in each.items()))


def _tables(value: Any) -> bool:
    if isinstance(value, Mapping):
        return True
    return isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) for each in value)
