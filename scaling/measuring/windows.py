"""What the samples of a metric measure, and what becomes of them where that has changed. Pure.

A metric that is made to read another queue keeps its name, and by its name its samples are stored. Each report says what it has measured
(`scaling.fingerprint`), and so does each window. While a new version of an app is deployed, processes of both versions collect
and decide side by side, each with its own `tidemark.toml` and settings:

* a window follows the reports: the first that measures something else, as the process that decides on it expects, begins it anew;
* once it has a sample, reports of the former kind are dropped, until none of the new kind came for a while (the deployment was rolled
  back);
* a process decides only by windows of what its own configuration asks for. For any other, a metric has no samples.

So two versions never empty a window in turns. Reports and windows without a fingerprint are those of 0.2.0, and are taken for what is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from msgspec import structs

from scaling.config.policy import Policy
from scaling.model import MetricFailure, MetricSample, MetricsReport
from scaling.window import EMPTY, GAP_INTERVALS, Origin, Window, WindowSpec, observe
from tidemark.foundation.wording import time_text

OVERLAP = 180.0
"""Seconds since the last report of the new kind after which one of the former kind counts again. Chosen: three collections of one a
minute, as for a stale metric; at least `GAP_INTERVALS` collections.
"""


def windows_after_report(
    policy: Policy, windows: Mapping[str, Window], report: MetricsReport, *, now: float
) -> dict[str, Window]:
    """The windows with a report's samples and failures of their metrics. One that it does not mention counts as failed."""
    items: dict[str, MetricSample | MetricFailure] = {sample.metric: sample for sample in report.samples}
    items.update((failure.metric, failure) for failure in report.failures)
    updated: dict[str, Window] = {}
    for name, spec in policy.windows.items():
        window = windows.get(name, EMPTY)
        reported = report.fingerprints.get(name)
        if reported and reported != window.origin.fingerprint:
            asked = policy.spec.metrics[name].fingerprint or reported
            taking = _taking(window, spec, reported, asked, report.at, now)
            if taking is None:
                updated[name] = window
                continue
            window = taking
        item = items.get(name) or MetricFailure(name, report.at, "the collector's report does not mention it")
        updated[name] = observe(window, item, spec, now=now, read_at=report.at)
    return updated


def _taking(
    window: Window, spec: WindowSpec, reported: str, asked: str, at: float, now: float
) -> Window | None:
    """The window that takes a reading which does not measure what its samples do; None where the reading is dropped."""
    origin, is_empty = window.origin, not window.times and window.readings is None
    if not origin.fingerprint and (is_empty or reported == asked):
        return structs.replace(window, origin=Origin(reported))
    if origin.fingerprint and (reported != asked or _is_former(window, spec, reported, at, now)):
        return None
    return Window(origin=Origin(reported, at, origin.fingerprint))


def _is_former(window: Window, spec: WindowSpec, reported: str, at: float, now: float) -> bool:
    """Whether a report is from before the window's beginning, or of a process of before that still runs beside others."""
    origin, latest = window.origin, now + max(spec.interval, 1.0)
    if origin.since is None or origin.since > latest:
        return False
    times = window.readings.times if window.readings is not None else window.times
    if (
        reported != origin.former or not times
    ):  # without a sample, nothing was read there yet: a misspelt name, put right
        return at <= origin.since
    heard = max(times[-1] + spec.delay, -inf if window.failure is None else window.failure.at)
    return heard <= latest and at - heard <= max(OVERLAP, GAP_INTERVALS * spec.interval)


def as_asked(policy: Policy, windows: Mapping[str, Window]) -> Mapping[str, Window]:
    """The windows that may be decided by: those of something else than the policy asks for are empty."""
    others = [
        name
        for name, spec in policy.spec.metrics.items()
        if spec.fingerprint and windows.get(name, EMPTY).origin.fingerprint not in {"", spec.fingerprint}
    ]
    return {**windows, **dict.fromkeys(others, EMPTY)} if others else windows


def begun_anew(before: Mapping[str, Window], after: Mapping[str, Window]) -> tuple[str, ...]:
    """The metrics that measure something else since the report between the two."""
    return tuple(
        name
        for name, window in after.items()
        if window.origin.since is not None and window.origin.since != before.get(name, EMPTY).origin.since
    )


def anew_text(name: str, window: Window) -> str:
    """That a metric is collected anew, for people."""
    return (
        f"{name} measures something else since {time_text(window.origin.since or 0.0)}, and is collected anew"
    )


def dropped_texts(policy: Policy, windows: Mapping[str, Window], report: MetricsReport) -> tuple[str, ...]:
    """What of a report was not taken into the `windows` after it, or is decided by in other processes only."""
    texts: list[str] = []
    for name, spec in policy.spec.metrics.items():
        kept = windows.get(name, EMPTY).origin.fingerprint
        reported, asked = report.fingerprints.get(name, ""), spec.fingerprint
        if reported and reported != kept:
            why = "it measures something else than is configured here"
            if reported == asked:
                why = "other processes have just reported something else under its name, and may still do so"
            texts.append(f"a sample of {name} is dropped: {why}")
        elif asked and kept and kept != asked:
            text = "the samples under its name measure something else than is configured here"
            texts.append(f"{name} is not known here: {text}")
    return tuple(texts)
