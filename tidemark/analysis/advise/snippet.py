"""The recommended policy as a table to paste into tidemark.toml. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaling.config.policy import HPA_OUT, PolicySpec
from scaling.config.toml import bare_key, table_lines
from tidemark.analysis.simulation.field import Target

DELAYS = ("behavior", "out", "in", "plateau")
"""Keys of a target that hold changes back: `service_level` has its own hold time."""


def recommended(target: Target, spec: PolicySpec, table: Mapping[str, Any] | None) -> dict[str, Any]:
    """The target's table with the rule of `spec` in place of its rules; without one, a table of a Service Bus queue to fill in."""
    (rule_spec,) = spec.rules
    rule = {"type": rule_spec.type, **rule_spec.options}
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
    return "\n".join(table_lines(f"targets.{bare_key(target)}", table)) + "\n"
