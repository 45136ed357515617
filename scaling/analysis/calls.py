"""Whether the budgets of calls suffice for what is configured, before anything is called. Pure.

Counted is what no list spares, and what is left where lists can be had; the numbers of requests are those of docs/calls.md.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import ceil

from scaling.analysis.options import is_counted
from scaling.calls.budgets import LIST_FROM, Budget, call_of
from scaling.calls.call_budgets import RESERVED
from scaling.config.checks import Finding, Severity
from scaling.config.policy import MetricSpec, PolicySpec
from scaling.config.policy_file import Config
from tidemark.foundation.wording import number_text

PAGE = 100
"""Queues, or subscriptions of a topic, in a page of a list; each page is asked twice, for counts and for settings."""

_NAMED = {"service_bus_queue": "queue", "service_bus_subscription": "subscription"}
"""The option of a collector that may be a pattern."""

Demand = defaultdict[tuple[str, str], float]
"""Calls a minute, by API and scope."""


def short_budgets(config: Config, budgets: Mapping[str, Budget]) -> Iterator[Finding]:
    """Where more is to be read every minute than may be called."""
    checks = _checks_of(config)
    for (api, scope), needed in sorted(demand_of(config).items()):
        budget = budgets[api]
        left = budget.calls * 60.0 / budget.seconds * (1.0 - RESERVED)
        if needed > left:
            text = (
                f"calls: {number_text(round(needed, 1))} a minute of {api} are needed for {scope}, and {number_text(round(left, 1))} are to"
                f" be had ({budget.words}, less a fifth for changes): each target is read every {ceil(needed / left)} minutes"
                f" or so; {_way_on(needed, left, checks[api, scope])} (docs/calls.md)"
            )
            yield Finding(Severity.WARNING, "calls_beyond_budget", "", text)


def demand_of(config: Config) -> Demand:
    """What no list spares, and the lists themselves."""
    demand, metrics = _checks_of(config), dict[str, tuple[MetricSpec, float]]()
    for policy in config.policies.values():
        spec = policy.spec
        rate = 60.0 / max(spec.interval, config.interval)
        for charge in _reads_of_throughput(spec):
            demand[charge] += rate
        for metric in spec.metrics.values():  # those with equal options share one read
            key = json.dumps(
                [metric.collector, metric.options, is_counted(metric)], sort_keys=True, default=str
            )
            metric_rate = min(rate, 60.0 / metric.window.interval) if is_counted(metric) else rate
            metrics[key] = metric, max(metric_rate, metrics.get(key, (metric, 0.0))[1])
    return _of_metrics(list(metrics.values()), demand)


def _checks_of(config: Config) -> Demand:
    """Reads a minute by the checks of effects (VERIFY_SCHEDULE), which no target's `interval` changes."""
    demand = Demand(float)
    for policy in config.policies.values():
        for charge in _reads_of_throughput(policy.spec):
            demand[charge] += 60.0 / config.checks
    return demand


def _reads_of_throughput(spec: PolicySpec) -> Sequence[tuple[str, str]]:
    resource = spec.scaler_options.get("resource_id")
    if spec.scaler != "cosmos_throughput" or not resource:
        return ()
    asked = call_of("GET", f"https://arm{resource}/throughputSettings/default")
    return [charge for charge in asked.charges if charge[0] == "cosmos_reads"]


def _way_on(needed: float, left: float, checks: float) -> str:
    spread = "or spread them over subscriptions, namespaces or accounts"
    if checks > left / 2:  # an interval many times as long would be longer than windows
        return (
            f"their checks of effects alone take {number_text(round(checks, 1))}: run these less often (VERIFY_SCHEDULE), which "
            f"notices somebody else's changes as late, {spread}"
        )
    times = ceil((needed - checks) / (left - checks))
    return f"give these targets an `interval` {times} times as long, which decides as seldom, {spread}"


def _of_metrics(metrics: Sequence[tuple[MetricSpec, float]], demand: Demand) -> Demand:
    """`found` with the reads of `metrics`, each with how often a minute it is read."""
    entities, rates = Counter[tuple[str, str]](), dict[tuple[str, str], float]()
    for metric, rate in metrics:
        if metric.collector == "log_query":
            demand["log_queries", "Log Analytics"] += rate
        elif is_counted(metric):
            place = str(metric.options.get("connection", "")), str(metric.options.get("topic", ""))
            is_pattern = bool({"*", "?"} & set(str(metric.options.get(_NAMED[metric.collector]))))
            entities[place] += 1  # of a pattern, too: its list takes as many requests as one entity
            demand["service_bus", place[0]] += min(rate, 1.0) * is_pattern  # the list of names
            rates[place] = max(rate, rates.get(place, 0.0))
    for place, count in entities.items():
        alone, more = (3, 1) if place[1] else (2, 0)  # a subscription takes its topic's read, too
        demand["service_bus", place[0]] += _listed(count, alone=alone, more=more) * rates[place]
    return demand


def _listed(count: int, *, alone: int, more: int) -> int:
    """Requests for `count` entities of one place: `alone` each, or the pages of a list, and `more`."""
    return alone * count if count < LIST_FROM else 2 * ceil(count / PAGE) + more
