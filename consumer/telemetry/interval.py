"""The growth of the counters between two snapshots of a pipeline. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consumer.core.statistics import PipelineStatistics, Totals
from tidemark.foundation.wording import count_text, percent_text

LAGS_SHOWN = 8
"""Partitions that a log line names at most: those with the highest lag."""


REASONS_SHOWN = 5
"""Reasons for dropping that a log line names at most: the most frequent ones."""


class Interval(Totals, kw_only=True):
    """The growth of the totals in `seconds`, and the rates that follow from it."""

    seconds: float

    @property
    def received_per_s(self) -> float:
        return self._rate(self.received)

    @property
    def written_per_s(self) -> float:
        return self._rate(self.written)

    @property
    def retried_per_s(self) -> float:
        return self._rate(self.retried)

    @property
    def request_units_per_s(self) -> float:
        return self._rate(self.request_units)

    @property
    def throttled_share(self) -> float:
        """The share of attempts answered 429, 0 to 1; 0 without attempts."""
        return min(1.0, self.throttled / self.attempts) if self.attempts else 0.0

    @property
    def request_units_per_record(self) -> float | None:
        """The average charge of a written record, without charges for refused attempts; None if none was written."""
        return self.written_units / self.written if self.written else None

    @property
    def dropped_count(self) -> int:
        return sum(self.dropped.values())

    def _rate(self, amount: float) -> float:
        return amount / self.seconds if self.seconds > 0 else 0.0


def between(earlier: Totals, later: Totals, seconds: float) -> Interval:
    """The interval between two totals, `seconds` long. Counters never fall."""
    counts = [name for name in Totals.__struct_fields__ if name != "dropped"]
    growth: dict[str, Any] = {name: getattr(later, name) - getattr(earlier, name) for name in counts}
    growth["dropped"] = {
        reason: more
        for reason, count in later.dropped.items()
        if (more := count - earlier.dropped.get(reason, 0))
    }
    charged = {name: max(0.0, growth[name]) for name in ("request_units", "written_units")}
    return Interval(seconds=seconds, **{**growth, **charged})


def line(interval: Interval, statistics: PipelineStatistics) -> str:
    """One line for people: successes, failures, retries, elapsed, RU, backlog; rates, lag."""
    charge = interval.request_units_per_record
    limit = statistics.rate_limit
    units = "" if statistics.request_unit_limit is None else f" of {statistics.request_unit_limit:,g}"
    counts = (
        f"{count_text(interval.written, 'success', 'successes', style=',')}, "
        f"{count_text(interval.dead_letters, 'failure', style=',')}, {count_text(interval.retried, 'retry', 'retries', style=',')}"
    )
    parts = [
        f"{counts} in {interval.seconds:.1f} s",
        "no RU charged" if charge is None else f"avg {charge:.2f} RU",
        f"backlog {statistics.backlog_count:,} ({_bytes(statistics.backlog_bytes)})",
        f"{interval.written_per_s:,.1f} records/s of {'no limit' if limit is None else f'{limit:,g}'}"
        + shared_text(statistics.rate_hubs_count),
        f"{interval.request_units_per_s:,.0f} RU/s{units}, {percent_text(interval.throttled_share, 1)} throttled",
        lag_text(statistics),
    ]
    if statistics.parked_count:
        parts.append(f"{statistics.parked_count:,} parked")
    if interval.dropped:
        parts.append(dropped_text(interval.dropped))
    if statistics.totals.expired:
        parts.append(f"{statistics.totals.expired:,} lost to retention since the start")
    if statistics.oldest_age >= 10:
        parts.append(
            f"oldest begun {statistics.oldest_age:.0f} s ago ({statistics.cause or 'no cause reported'})"
        )
    if statistics.paused:
        parts.append("receiving paused")
    return "; ".join(parts)


def shared_text(hubs: int) -> str:
    """Behind a limit, whose it is."""
    return f" of {hubs} hubs together" if hubs else ""


def problems_text(statistics: PipelineStatistics) -> str:
    """What holds up the parked events of partitions, for a row; '' if nothing does."""
    held: dict[str, list[str]] = {}
    for partition in statistics.partitions:
        if partition.problem:
            held.setdefault(partition.problem, []).append(partition.partition)
    return "; ".join(
        f"partition {name}: {problem}"
        + (f" (and {count_text(len(others), 'more partition')})" if others else "")
        for problem, (name, *others) in held.items()
    )


def dropped_text(dropped: Mapping[str, int]) -> str:
    """`1,204 dropped (stale 1,200, test 4)`, the most frequent reasons first."""
    ordered = sorted(dropped.items(), key=lambda item: -item[1])
    cells = [f"{reason} {count:,}" for reason, count in ordered[:REASONS_SHOWN]]
    if len(ordered) > len(cells):
        cells.append(count_text(len(ordered) - len(cells), "other reason"))
    return f"{sum(dropped.values()):,} dropped ({', '.join(cells)})"


def lag_text(statistics: PipelineStatistics) -> str:
    """The lag as `lag 1,204 (0: 1,200, 1: 4)`. If there are many partitions, those with the highest lag are named."""
    partitions = statistics.partitions
    if not partitions:
        return "no partitions"
    lags = [(partition.partition, partition.lag) for partition in partitions]
    highest = sorted(lags, key=lambda entry: -1 if entry[1] is None else entry[1], reverse=True)[:LAGS_SHOWN]
    names = {name for name, _ in highest}
    cells = [f"{name}: {'?' if lag is None else f'{lag:,}'}" for name, lag in lags if name in names]
    if len(lags) > len(cells):
        cells.append(f"{len(lags) - len(cells)} more")
    known = [lag for _, lag in lags if lag is not None]
    return f"lag {f'{sum(known):,}' if known else '?'} ({', '.join(cells)})"


def _bytes(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"
