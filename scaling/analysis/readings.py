"""Metrics that are read in a way that makes their numbers say something else. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from scaling.analysis.steady import Subject
from tidemark.foundation.durations import parse_duration
from tidemark.foundation.wording import duration_text, number_text

MINUTE = 60.0
"""Seconds: the finest grain of Azure Monitor, and what one reading of Service Bus counts takes (docs/service-level.md)."""

SERVICE_BUS = frozenset({"service_bus_queue", "service_bus_subscription"})


def counted_again(subject: Subject) -> Iterator[str]:
    """Counts of a stretch of time, or counts that a service renews once a minute, read more often than that."""
    metrics = subject.policy.spec.metrics
    flows = {
        options.get(key): name
        for name, options in subject.options("service_level")
        for key in ("incoming", "outgoing")
    }
    for name, metric in metrics.items():
        interval, options = metric.window.interval, metric.options
        if (
            metric.collector == "azure_monitor"
            and name in flows
            and options.get("aggregation") in {"total", "count"}
        ):
            grain = parse_duration(options.get("grain", MINUTE))
            if 0 < interval < grain:
                yield (
                    f"rule '{flows[name]}' takes {name} for what came in {duration_text(interval)}, but it is the "
                    f"{options['aggregation']} of {duration_text(grain)}: it counts {number_text(grain / interval)} times. "
                    f"Read it every {duration_text(grain)} (COLLECT_SCHEDULE, or `interval` of the target)"
                )
        if metric.collector in SERVICE_BUS and 0 < interval < MINUTE:
            yield (
                f"{name} is read every {duration_text(interval)}, but counts of Service Bus are limited to about one reading "
                f"a minute and entity: samples in between may repeat the one before, or fail"
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
