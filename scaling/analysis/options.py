"""What can be said of single options of a policy: metrics that are read in a way that makes their numbers say something else, floors that
a budget does not pay for, a budget that never binds, a fallback that outlasts what it answers. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from scaling.analysis.steady import Subject
from scaling.budget.spending import DAY, day_of
from scaling.collectors.number.metric_answers import GRAINS
from scaling.config.policy import Budget, MetricSpec, Policy
from scaling.rules.combine import safe_evaluate
from scaling.rules.schedule import ScheduleRule
from scaling.rules.view import MetricsView
from tidemark.foundation.durations import parse_duration
from tidemark.foundation.wording import duration_text, number_text

MINUTE = 60.0
"""Seconds: the finest grain of Azure Monitor, and what one reading of Service Bus counts takes (docs/service-level.md)."""

DEPRECATED = {
    **dict.fromkeys(("INMSGS", "EHINMSGS"), "IncomingMessages"),
    **dict.fromkeys(("OUTMSGS", "EHOUTMSGS"), "OutgoingMessages"),
    **dict.fromkeys(("EHINBYTES", "EHINMBS"), "IncomingBytes"),
    **dict.fromkeys(("EHOUTBYTES", "EHOUTMBS"), "OutgoingBytes"),
    "INREQS": "IncomingRequests",
    "SUCCREQ": "SuccessfulRequests",
    "SVRBSY": "ThrottledRequests",
    "EHABL": "CaptureBacklog",
    "EHAMSGS": "CapturedMessages",
    "EHAMBS": "CapturedBytes",
}
"""Metrics of Event Hubs by the deprecated ones that they replace (Microsoft's table of supported metrics)."""

SERVICE_BUS = frozenset({"service_bus_queue", "service_bus_subscription"})
BY_MESSAGES = frozenset({"oldest_age", "sessions"})
"""Their counts that are read by the data plane, at a tenth of the cost."""


def is_counted(metric: MetricSpec) -> bool:
    """Whether reads of the metric are requests for the counts of Service Bus."""
    return metric.collector in SERVICE_BUS and metric.count not in BY_MESSAGES


_ENTITY = ("connection", "queue", "topic", "subscription")


def counted_again(subject: Subject) -> Iterator[str]:
    """Counts that a service renews once a minute, read more often than that."""
    for name, metric in subject.policy.spec.metrics.items():
        if is_counted(metric) and 0 < metric.window.interval < MINUTE:
            yield (
                f"{name} is read every {duration_text(metric.window.interval)}, but counts of Service Bus are limited to about one "
                f"reading a minute and entity: samples in between may repeat the one before, or fail. Give it every = '1m'; what "
                "else the target reads keeps its pace"
            )


def counted_in_part(subject: Subject) -> Iterator[str]:
    """Flows of a rule that counts messages per reading, of which each reading counts another time range, or other readers."""
    metrics = subject.policy.spec.metrics
    flows = {
        options.get(key): (rule, key, metrics.get(str(options.get("backlog"))))
        for rule, options in subject.options("service_level")
        for key in ("incoming", "outgoing")
    }
    for name, metric in metrics.items():
        options, interval = metric.options, metric.window.interval
        if metric.collector != "azure_monitor" or name not in flows:
            continue
        rule, flow, backlog = flows[name]
        grain = parse_duration(options.get("grain", MINUTE))
        if options.get("aggregation") in {"total", "count"} and grain < interval:
            way = f'Give grain = "{interval / MINUTE:g}m", or read' if interval in GRAINS else "Read"
            yield (
                f"rule '{rule}' takes {name} for what came in {duration_text(interval)}, but it is the "
                f"{options['aggregation']} of {duration_text(grain)}. {way} it every {duration_text(grain)} (COLLECT_SCHEDULE, or "
                "`interval` of the target)"
            )
        if flow == "outgoing" and options.get("metric") == "OutgoingMessages":
            yield (
                f"rule '{rule}' takes {name} for what was completed, but OutgoingMessages counts what all readers received, and "
                "again where they read again. CompleteMessage counts a queue of Service Bus; event_hub_lag has `outgoing` of one "
                "consumer group"
            )
        if backlog is not None and backlog.collector == "service_bus_subscription":
            yield (
                f"rule '{rule}' takes {name} for what one subscription does, but Azure Monitor counts the topic: what is sent to it "
                "before filters, and what all of its subscriptions complete. That is right only where there is one, without a filter"
            )


def other_metrics(subject: Subject) -> Iterator[str]:
    """Metrics of Azure Monitor that are deprecated, and dimensions that never have a value."""
    for name, metric in subject.policy.spec.metrics.items():
        options = metric.options
        if metric.collector != "azure_monitor":
            continue
        successor = DEPRECATED.get(str(options.get("metric")))
        if successor and "eventhub" in str(options.get("resource_id")).casefold():
            yield (
                f"{name} reads {options['metric']}, which is deprecated and counts the whole namespace; {successor} takes its place, "
                "by hub with dimensions = { EntityName = ... }"
            )
        entity = str(options.get("dimensions", {}).get("EntityName", ""))
        if "/subscriptions/" in entity.casefold():
            yield (
                f"{name} asks for EntityName '{entity[:80]}', but a subscription has none, and no value ever comes. "
                f"'{entity.partition('/')[0]}' counts the topic with all of its subscriptions"
            )


def unpeekable_ages(subject: Subject) -> Iterator[str]:
    """An age of an entity whose sessions are counted: each read of it fails."""
    ages, sessions = (
        {
            name: (metric.collector, *(metric.options.get(key) for key in _ENTITY))
            for name, metric in subject.policy.spec.metrics.items()
            if metric.collector in SERVICE_BUS and metric.count == count
        }
        for count in ("oldest_age", "sessions")
    )
    for name, entity in ages.items():
        if other := next(
            (other_name for other_name, other_entity in sessions.items() if other_entity == entity), None
        ):
            yield (
                f"{name} is the oldest_age of what {other} counts the sessions of: a session can only be peeked by who locks it, so "
                "its reads fail. Take a count in its place"
            )


def unread_texts(subject: Subject) -> Iterator[str]:
    """A path that reads numbers from texts, beside a number for no value."""
    for name, metric in subject.policy.spec.metrics.items():
        options = metric.options
        if metric.collector == "http_json" and "to_number" in str(options.get("path")) and "empty" in options:
            yield (
                f"{name} has empty = {options['empty']:g} and a path with to_number: `empty` counts where there is no value; a "
                "text that is no number fails the read, and then nothing is scaled in"
            )


def ended_calendars(subject: Subject) -> Iterator[str]:
    """Files of holidays that name no day, or none after a last one. Whether that one is over is another question on each day."""
    rules = [rule for rule in subject.policy.flat_rules if isinstance(rule, ScheduleRule)]
    for name, last in {name: last for rule in rules for name, last in rule.ends_of_files().items()}.items():
        if last is None:
            yield f"'{name}' names no day"
        else:
            yield f"the last day of '{name}' is {last}, and no day after that is one of it"


def never_holding_periods(subject: Subject) -> Iterator[str]:
    """Periods of which `on` and `days` exclude each other."""
    for rule in subject.policy.flat_rules:
        for name in rule.never_holding() if isinstance(rule, ScheduleRule) else ():
            yield f"the period '{name}' never holds: none of the dates of its `on` is one of its `days`"


MONDAY = 946_857_600.0  # 3 January 2000
STEP = 900.0


def unpaid_floors(subject: Subject) -> Iterator[str]:
    """The floors of schedules, where those of the dearest day of a week take more than the budget."""
    policy = subject.policy
    budget, rules = policy.spec.budget, [r for r in policy.flat_rules if isinstance(r, ScheduleRule)]
    if budget is None or not rules:
        return
    week = [MONDAY + DAY * day for day in range(7)]
    named = [within for rule in rules for within in rule.named_days()]
    cost = max(_floors_of(policy, budget, rules, within) for within in week + named)
    if cost > budget.hours:
        yield (
            f"the floors of its schedules take {_amount_text(budget, cost)} on the dearest day, and budget is "
            f"{_amount_text(budget, budget.hours)}: the floors will not be held to the end of that day"
        )


def _floors_of(policy: Policy, budget: Budget, rules: list[ScheduleRule], within: float) -> float:
    at, end = day_of(within, budget.time_zone)
    total = 0.0
    while at < end:
        view = MetricsView({}, {}, 0, ready=0, minimum=policy.minimum, maximum=policy.maximum, now=at)
        floors = [safe_evaluate(rule, view).floor or 0 for rule in rules]
        total += min(max([policy.minimum, *floors]), policy.maximum) * STEP / 3600.0
        at += STEP
    return total


def never_binds(subject: Subject) -> Iterator[str]:
    """A budget that the maximum does not reach, however long it lasts."""
    budget, most = subject.policy.spec.budget, subject.policy.maximum * 24.0
    if budget is not None and budget.hours >= most:
        yield (
            f"budget can never bind: the maximum of {subject.policy.maximum} takes {_amount_text(budget, most)} a day, and budget is "
            f"{_amount_text(budget, budget.hours)}"
        )


def _amount_text(budget: Budget, hours: float) -> str:
    unit = "" if budget.unit == "money" else f" {budget.unit.replace('_', '-')}"
    return f"{number_text(round(budget.in_its_unit(hours), 2))}{unit}"


def outlasted_fallbacks(subject: Subject) -> Iterator[str]:
    """A fallback that comes sooner than a window is whole again: what it costs lasts longer than what it answers."""
    policy = subject.policy
    fallback = policy.spec.fallback
    if fallback is None or fallback.capacity <= policy.minimum:
        return
    longest = max(policy.windows, key=lambda name: policy.windows[name].span, default=None)
    if longest is None or (span := policy.windows[longest].span) <= fallback.after:
        return
    yield (
        f"fallback.after ({duration_text(fallback.after)}) is shorter than the window of {longest} "
        f"({duration_text(span)}): once {policy.spec.facts.counted(fallback.capacity)} are there, nothing is scaled in "
        f"before the failed reads have left that window, {duration_text(span)} after the last one"
    )
