"""A policy with the steps its rules make, as the checks of `scaling.analysis.lint` look at it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scaling.analysis.steady import Steps, failure
from scaling.config.policy import Policy
from scaling.rules.combine import levels_of, metrics_of
from scaling.rules.request_units.for_rate import RequestUnitsForRateRule

MAX_COUNTS = 1_000
"""Capacities tried one by one. Request units, of which there may be a hundred thousand, are not."""


class Subject:
    """A policy with the steps its rules make under every kind of load, worked out once."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.rules = policy.flat_rules
        sizes = any(isinstance(rule, RequestUnitsForRateRule) for rule in self.rules)
        self.tried = not sizes and policy.maximum - policy.minimum < MAX_COUNTS
        counts = range(policy.minimum, policy.maximum + 1) if self.tried else ()
        self.failures = {count: note for count in counts if (note := failure(policy, count)) is not None}
        self.levels = {count: levels_of(policy.rules, count) for count in counts}
        self.read = dict.fromkeys(name for rule in self.rules for name in metrics_of(rule))
        singles = [(name,) for name in self.read if name in policy.windows]
        together = [
            names
            for names in map(metrics_of, self.rules)
            if len(names) > 1 and all(name in policy.windows for name in names)
        ]
        self.loads = {
            names: Steps(policy, names, self.levels) for names in dict.fromkeys((*singles, *together))
        }

    def moves(self, sign: int) -> bool:
        """True when some count goes up (sign 1) or down (-1) under some load."""
        return any(
            any((after - count) * sign > 0 for after in row)
            for steps in self.loads.values()
            for count, row in steps.rows.items()
        )

    def options(self, kind: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Name and options of every rule of a kind, nested ones included."""
        pending = [(rule.type, rule.name, rule.options) for rule in self.policy.spec.rules]
        while pending:
            found, name, options = pending.pop(0)
            if found == kind:
                yield name, options
            inner = options.get("rules", ()) if found == "composite" else ()
            pending += [(rule["type"], rule.get("name", name), rule) for rule in inner]


def counts_text(counts: Sequence[int]) -> str:
    """`3 instances`, `2 to 5 instances`, `1, 4, 9 instances`."""
    if len(counts) > 2 and counts[-1] - counts[0] == len(counts) - 1:
        return f"{counts[0]} to {counts[-1]} instances"
    return f"{', '.join(map(str, counts))} instance{'' if tuple(counts) == (1,) else 's'}"
