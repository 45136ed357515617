"""What a broken sampling rate and a broken corrected count mean together. Pure.

A retained event stands for `itemCount` events. Where the rate falls and the corrected count goes on, the events are
there, only sampled. Where the corrected count falls, no rate explains it: events were not tracked, or lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from enum import StrEnum

from msgspec import Struct

from spark_jobs.sampling_report.breaks import WINDOW, Break, BreakSettings, Fit, detectable_fall, fit_breaks
from tidemark.foundation.wording import percent_text

NEAR = 1
"""Days between two breaks that are still one: a roll-out in the afternoon breaks the rate today, the count tomorrow."""
HISTORY = 7
"""Days that counts must be known before a break: a whole week of weekdays."""

_REST = 0.1  # of the events, at least, for what is left to say what is missing


class Kind(StrEnum):
    SAMPLED = "sampled"
    """The rate fell, the corrected count did not: nothing is lost."""
    LOST = "lost"
    """The corrected count fell, and the rate does not explain it."""
    SAMPLED_AND_LOST = "sampled and lost"
    UNDECIDED = "sampled, loss unknown"
    """The rate fell; too few days around it to say whether the corrected count did."""
    RATE_ROSE = "sampled less"
    COUNT_ROSE = "more events"
    SUM_FELL = "smaller values"
    """The corrected sum of the measurement fell, the corrected count did not: each event stands for less."""
    SUM_ROSE = "larger values"


_OTHER_VALUES = "{total}, and the corrected count did not change with it: each event reports another value."
_SENTENCES = {
    Kind.SAMPLED: "{rate}, and the corrected count went on as before: sampled, nothing lost{seen}.",
    Kind.LOST: "{count} against its weekdays, and no change of the sampling rate explains it: lost.",
    Kind.SAMPLED_AND_LOST: "{rate}, and {count} as well: part is sampled, part is lost.",
    Kind.UNDECIDED: "{rate}; there are too few days around it to say whether events were lost, too.",
    Kind.RATE_ROSE: "{rate}: fewer events are left out than before.",
    Kind.COUNT_ROSE: "{count} against its weekdays.",
    Kind.SUM_FELL: _OTHER_VALUES,
    Kind.SUM_ROSE: _OTHER_VALUES,
}

LOSSES = frozenset({Kind.LOST, Kind.SAMPLED_AND_LOST})


class Day(Struct, frozen=True):
    """A day as aggregated: `rate` in percent, `corrected` events, and the corrected `total` of the measurement; None
    where nothing is known of the day. `error` and `total_error` are standard errors.
    """

    day: date
    rate: float | None
    corrected: float | None
    error: float = 0.0
    total: float | None = None
    total_error: float = 0.0


class Finding(Struct, frozen=True):
    day: date
    kind: Kind
    rate: Break | None = None
    count: Break | None = None
    total: Break | None = None
    detectable: float | None = None
    """With `sampled`: the smallest fall of the corrected count, as a share, that would have been seen."""

    @property
    def breaks(self) -> tuple[Break | None, Break | None, Break | None]:
        return self.rate, self.count, self.total

    def sentence(self) -> str:
        """For people, without the day."""
        return _SENTENCES[self.kind].format(
            rate=_change("the sampling rate", self.rate),
            count=_change("the corrected count", self.count),
            total=_change("the corrected sum", self.total),
            seen=f"; a fall by {percent_text(self.detectable, 0)} or more would have shown"
            if self.detectable
            else "",
        )


class Analysis(Struct, frozen=True):
    findings: tuple[Finding, ...]
    rate: Fit
    count: Fit
    total: Fit | None
    """None without a measurement, and where a daily sum is below 0: shares of it mean nothing then."""


def analyse(days: Sequence[Day], settings: BreakSettings | None = None) -> Analysis:
    """Judges consecutive days, the first to the last without a gap."""
    rules = settings or BreakSettings()
    rate = _fit_rate([day.rate for day in days], rules)
    count = _fit([(day.corrected, day.error) for day in days], rules)
    totals = [(day.total, day.total_error) for day in days]
    judged = any(total is not None for total, _ in totals) and all((total or 0.0) >= 0 for total, _ in totals)
    total = _fit(totals, rules) if judged else None
    findings = [*_of_rates(days, rate, count, rules), *_of_totals(days, count, total)]
    return Analysis(
        tuple(sorted(findings, key=lambda finding: (finding.day, finding.kind))), rate, count, total
    )


def _fit_rate(rates: Sequence[float | None], rules: BreakSettings) -> Fit:
    """Adaptive sampling leaves out less at weekends, so a rate may have a season; a short history cannot show it."""
    seasonal = fit_breaks(rates, seasonal=True, settings=rules)
    return seasonal if seasonal.breaks else fit_breaks(rates, seasonal=False, settings=rules)


def _fit(values: Sequence[tuple[float | None, float]], rules: BreakSettings) -> Fit:
    return fit_breaks(
        [value for value, _ in values],
        seasonal=True,
        errors=[error / value if value else 0.0 for value, error in values],
        settings=rules,
    )


def lost_events(days: Sequence[Day], fit: Fit, finding: Finding) -> float | None:
    """About how many events are missing from a loss until its next break: expected as before, less what is there."""
    if finding.count is None or finding.kind not in LOSSES:
        return None
    begin, ratio = finding.count.index, finding.count.ratio
    later = [change.index for change in fit.breaks if change.index > begin]
    missing = 0.0
    for day in range(begin, min(later, default=len(days))):
        corrected = days[day].corrected
        if corrected is None:
            continue
        # What is left knows of bank holidays, the model does not; but of next to nothing it knows nothing.
        whole = corrected / ratio if ratio >= _REST else fit.expected[day] / ratio
        missing += whole - corrected
    return missing


def _of_rates(days: Sequence[Day], rate: Fit, count: Fit, rules: BreakSettings) -> list[Finding]:
    findings, paired = [], set()
    for change in rate.breaks:
        partner = _near(change, count) if change.fell else None
        if partner is not None:
            paired.add(partner.index)
        findings.append(_of_rate(days, change, partner, count, rules))
    for change in count.breaks:
        if change.index not in paired:
            kind = Kind.LOST if change.fell else Kind.COUNT_ROSE
            findings.append(Finding(days[change.index].day, kind, count=change))
    return findings


def _of_totals(days: Sequence[Day], count: Fit, total: Fit | None) -> list[Finding]:
    return [
        Finding(days[change.index].day, Kind.SUM_FELL if change.fell else Kind.SUM_ROSE, total=change)
        for change in (total.breaks if total else ())
        if _near(change, count) is None
    ]


def _of_rate(
    days: Sequence[Day], rate: Break, count: Break | None, fit: Fit, rules: BreakSettings
) -> Finding:
    day = days[rate.index].day
    if not rate.fell:
        return Finding(day, Kind.RATE_ROSE, rate=rate)
    if count is not None:
        return Finding(days[min(rate.index, count.index)].day, Kind.SAMPLED_AND_LOST, rate=rate, count=count)
    known = [place for place, of_day in enumerate(days) if of_day.corrected is not None]
    before = [place for place in known if rate.index - WINDOW <= place < rate.index]
    after = [place for place in known if rate.index <= place < rate.index + WINDOW]
    least = detectable_fall(len(before), len(after), fit.scale, rules) if len(before) >= HISTORY else None
    return Finding(day, Kind.SAMPLED if least else Kind.UNDECIDED, rate=rate, detectable=least)


def _near(change: Break, other: Fit) -> Break | None:
    """The break of another series in the same direction, at the same time."""
    near = [
        candidate
        for candidate in other.breaks
        if candidate.fell == change.fell and abs(candidate.index - change.index) <= NEAR
    ]
    return min(near, key=lambda candidate: abs(candidate.index - change.index), default=None)


def _change(what: str, change: Break | None) -> str:
    if change is None:
        return what
    verb = "fell" if change.fell else "rose"
    return f"{what} {verb} to {percent_text(change.ratio, 0)} of what it was ({percent_text(change.low, 0)} to {percent_text(change.high, 0)})"
