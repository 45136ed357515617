"""The report of the sampling job: what broke and when, raw against corrected, and the queries to see it oneself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from math import isnan

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from msgspec import Struct
from pyspark.sql import Row

from spark_jobs.sampling_report.breaks import Fit
from spark_jobs.sampling_report.changes import Change, Share
from spark_jobs.sampling_report.kql import SCHEMAS, Question, queries
from spark_jobs.sampling_report.verdicts import LOSSES, Analysis, Day, Kind
from tidemark.analysis import plots
from tidemark.analysis.report import Report, number
from tidemark.foundation.wording import count_text, percent_text

ROWS_SHOWN = 62
"""Bins in the page's table: two months of days. All are in the table `bins`."""


class Findings(Struct, frozen=True):
    """What is shown. `bins` are rows of BINS; `changes` and `lost` are by place in `analysis.findings`.

    `copies` are rows in other files of the export; they are counted once.
    """

    question: Question
    source: str
    bins: Sequence[Row]
    copies: int
    days: Sequence[Day]
    analysis: Analysis
    changes: Mapping[int, Sequence[Change]]
    lost: Mapping[int, float]

    @property
    def rows(self) -> int:
        return sum(row.rows for row in self.bins)


def build(findings: Findings) -> Report:
    question = findings.question
    of = f"'{question.measurement}' of " if question.measurement else ""
    report = Report(
        f"Sampling report {question.event}",
        f"{of}'{question.event}' in {findings.source}, {_span(findings)} UTC, per {_width(question.bin)}",
    )
    report.facts(_facts(findings))
    _verdicts(report, findings)
    _raw_and_corrected(report, findings)
    _rates(report, findings)
    _table(report, findings)
    _method(report)
    return report


def _facts(findings: Findings) -> dict[str, str]:
    weighted = findings.rows - sum(row.without_item_count for row in findings.bins)
    events = sum(row.corrected_count or 0 for row in findings.bins)
    error = sum((row.corrected_count_error or 0) ** 2 for row in findings.bins) ** 0.5
    kinds = [finding.kind for finding in findings.analysis.findings]
    facts = {
        "rows stored": number(findings.rows),
        "events, corrected": f"{number(events)} ± {number(round(2 * error))}" if error else number(events),
        "stored of all": f"{100 * weighted / events:.3g} %" if events else "not known",
        "sampling began": str(kinds.count(Kind.SAMPLED) + kinds.count(Kind.UNDECIDED)),
        "losses": str(sum(kind in LOSSES for kind in kinds)),
    }
    if findings.lost:
        facts["events missing"] = f"about {number(round(sum(findings.lost.values())))}"
    if findings.copies:
        facts["copies left out"] = number(findings.copies)
    if without := findings.rows - weighted:
        facts["rows without itemCount"] = number(without)
    return facts


def _verdicts(report: Report, findings: Findings) -> None:
    report.heading("What happened")
    for place, finding in enumerate(findings.analysis.findings):
        text = f"{finding.day:%A, %B} {finding.day.day}, {finding.day.year}: {finding.sentence()}"
        if place in findings.lost:
            text += f" About {number(round(findings.lost[place]))} events are missing."
        if changed := findings.changes.get(place, ()):
            text += " With it, " + "; ".join(change.sentence() for change in changed) + "."
        report.text(text)
    if not findings.analysis.findings:
        report.text("No break: neither the sampling rate nor the corrected count changed and stayed changed.")
    empty = [day.day for day in findings.days if day.corrected == 0]
    if empty:
        report.text(
            f"{count_text(len(empty), 'day')} without any event, from {min(empty)} on: either nothing was tracked, or the"
            " export does not hold its events. Such a day counts as 0 events."
        )
    if missing := sum(row.without_item_count for row in findings.bins):
        report.text(
            f"{count_text(missing, 'row', style=',')} without itemCount: no corrected number counts such a row, so it is too low."
        )
    if moved := _changed(findings):
        report.table(
            ("day", "dimension", "events moved", "went away", "sampled at, %", "came", "sampled at, %"),
            moved,
            caption="What changed with a break: the days from it on against the same weekdays of the week before.",
        )


def _changed(findings: Findings) -> list[tuple[object, ...]]:
    def side(share: Share | None) -> tuple[object, ...]:
        return (share.value, share.sampling_rate) if share else (None, None)

    return [
        (
            str(finding.day),
            change.dimension,
            percent_text(change.moved, 0),
            *side(change.gone),
            *side(change.came),
        )
        for place, finding in enumerate(findings.analysis.findings)
        for change in findings.changes.get(place, ())
    ]


def _raw_and_corrected(report: Report, findings: Findings) -> None:
    report.heading("Raw against corrected")
    question, analysis = findings.question, findings.analysis
    report.figure(
        _curves(findings, findings.analysis.count, sums=False),
        caption="Events as stored, and times itemCount (band: two standard errors)."
        + (" Dotted: how the weekdays would have gone on without a break." if analysis.count.breaks else ""),
        name="count",
    )
    if question.measurement is not None:
        report.figure(
            _curves(findings, analysis.total, sums=True),
            caption=f"Sum of '{question.measurement}' as stored, and times itemCount.",
            name="sum",
        )
    _kql(report, findings, ("raw", "corrected"))


def _rates(report: Report, findings: Findings) -> None:
    report.heading("Sampling rate")
    figure, (axes,) = plots.new_figure(height=2.6)
    rates = [plots.drawn_value(row.sampling_rate) for row in findings.bins for _ in range(2)]
    axes.fill_between(_edges(findings), rates, color=plots.SKY, alpha=0.55)
    axes.plot(_edges(findings), rates, color=plots.BLUE)
    axes.set_ylim(0, 105)
    axes.set_ylabel("stored of all events, %")
    _finish(axes, findings)
    report.figure(
        figure, caption="100 / average itemCount. A gap is a bin without events.", name="sampling-rate"
    )
    _kql(report, findings, ("rate",))


def _curves(findings: Findings, fit: Fit | None, *, sums: bool) -> Figure:
    figure, (axes,) = plots.new_figure(height=3.4)
    times = [plots.as_number(row.bin_start) for row in findings.bins]
    raw = [row.raw_sum if sums else row.rows for row in findings.bins]
    corrected = [row.corrected_sum if sums else row.corrected_count for row in findings.bins]
    errors = [row.corrected_sum_error if sums else row.corrected_count_error for row in findings.bins]
    band = [
        (plots.drawn_value(value), 2 * (error or 0)) for value, error in zip(corrected, errors, strict=True)
    ]
    low, high = [value - error for value, error in band], [value + error for value, error in band]
    mark = "o" if len(times) < ROWS_SHOWN else None
    axes.fill_between(times, low, high, color=plots.BLUE, alpha=0.2, linewidth=0)
    for values, colour, label in ((raw, plots.ORANGE, "raw"), (corrected, plots.BLUE, "corrected")):
        drawn = list(map(plots.drawn_value, values))
        axes.plot(times, drawn, color=colour, label=label, marker=mark, markersize=3)
    if fit is not None and fit.breaks and findings.question.bin == timedelta(days=1):
        days, label = [_midnight(day.day) for day in findings.days], "without a break"
        axes.plot(days, fit.unbroken, color=plots.INK, linewidth=0.8, linestyle=":", label=label)
    axes.set_ylim(bottom=min([0.0, *(value for value in low if not isnan(value))]))
    axes.set_ylabel(f"{'sum' if sums else 'events'} per {_width(findings.question.bin)}")
    _finish(axes, findings)
    # Above the plot: marks and lines are everywhere below.
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3)
    return figure


def _finish(axes: Axes, findings: Findings) -> None:
    """Marks the breaks, and the time axis."""
    for finding in findings.analysis.findings:
        colour = plots.RED if finding.kind in LOSSES else plots.PURPLE
        plots.mark(axes, _midnight(finding.day), f" {finding.kind}", color=colour, linewidth=1.2, fontsize=9)
    plots.time_axis(axes)


def _kql(report: Report, findings: Findings, which: Sequence[str]) -> None:
    """The table that the data came from first."""
    ordered = sorted(SCHEMAS.items(), key=lambda item: item[0] != findings.source)
    for name in which:
        for table, columns in ordered:
            text = queries(findings.question, columns)[name]
            report.code(text, language="kql", caption=f"{name.capitalize()}, {table}")


def _table(report: Report, findings: Findings) -> None:
    report.heading("Bins")
    measured = findings.question.measurement is not None
    headers = ["from", "stored", "corrected", "± (one standard error)", "sampling rate, %"]
    headers += ["raw sum", "corrected sum", "± (one standard error)"] if measured else []
    days = not findings.question.bin % timedelta(days=1)
    rows = [_row(row, measured=measured, days=days) for row in findings.bins[-ROWS_SHOWN:]]
    whole = len(findings.bins) <= ROWS_SHOWN
    which = f"All {len(findings.bins)}" if whole else f"The last {ROWS_SHOWN} of {len(findings.bins)}"
    report.table(headers, rows, caption=f"{which}; the table 'bins' beside this page has all of them.")


def _row(row: Row, *, measured: bool, days: bool) -> tuple[object, ...]:
    counts = (
        f"{row.bin_start:%Y-%m-%d}" if days else f"{row.bin_start:%Y-%m-%d %H:%M}",
        row.rows,
        row.corrected_count,
        row.corrected_count_error,
        row.sampling_rate,
    )
    return (*counts, row.raw_sum, row.corrected_sum, row.corrected_sum_error) if measured else counts


def _method(report: Report) -> None:
    report.heading("How this was judged")
    report.text(
        "A stored event with item count w stands for w events. SDKs keep or leave out whole operations, so the standard "
        "error is that of drawn operations: the root of the sum over operations of (1 - p) t², with t the operation's "
        "corrected total and p the probability it was kept with (Horvitz-Thompson estimator, Poisson sampling).\n\n"
        "A break is a day from which on a level stays changed. Counts are judged against the weekdays, by medians, "
        "so that a bank holiday is no break; the first and the last day are judged only if the time range was given. "
        "'Sampled' means that the rate fell and the corrected count did not; 'lost' that the corrected count fell and "
        "the rate does not explain it."
    )


def _midnight(day: date) -> float:
    return plots.as_number(datetime.combine(day, time(), UTC))


def _edges(findings: Findings) -> list[float]:
    """Begin and end of each bin: the rate holds for all of it."""
    return [
        plots.as_number(at)
        for row in findings.bins
        for at in (row.bin_start, row.bin_start + findings.question.bin)
    ]


def _span(findings: Findings) -> str:
    last = findings.bins[-1].bin_start + findings.question.bin
    return f"{findings.bins[0].bin_start:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M}"


def _width(width: timedelta) -> str:
    words = {timedelta(days=1): "day", timedelta(hours=1): "hour", timedelta(days=7): "week"}
    return words.get(width, f"{width // timedelta(minutes=1)} minutes")
