"""The report of a backfill."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise

from msgspec import Struct

from consumer.sinks.cosmos.bulk import WriteMode
from spark_jobs.backfill.budget.progress import Counts, Snapshot
from spark_jobs.backfill.replay import Unit
from tidemark.analysis import plots
from tidemark.analysis.report import Report
from tidemark.foundation.wording import count_text, percent_text

LABELLED = 32
"""Partitions whose names have room beside the picture."""


class PartitionPlan(Struct, frozen=True):
    """What of a partition was selected; `events` counts copies of an event, too."""

    partition: str
    events: int
    first_sequence_number: int
    last_sequence_number: int
    first_enqueued_at: datetime
    last_enqueued_at: datetime


class Backfilled(Struct, frozen=True):
    """What a backfill did. `budget` is per second, of `unit`."""

    hub: str
    target: str
    mode: WriteMode
    unit: Unit
    budget: float
    plan: Sequence[PartitionPlan]
    partitions: dict[str, Counts]
    """Of the attempt that finished each."""
    history: Sequence[Snapshot]
    not_captured: int = 0
    """Positions asked for by --only-missing that no capture file holds, or none that is selected."""
    is_bounded: bool = False
    """Whether some events are not selected by time or partition."""

    @property
    def total(self) -> Counts:
        """All attempts together, the failed ones too."""
        return self.history[-1].total

    @property
    def lines(self) -> list[str]:
        """The result in a few lines."""
        total = self.total
        existed = f" ({total.existed:,} existed and stay as they were)" if total.existed else ""
        dropped = f"{total.dropped:,} dropped, " if total.dropped else ""
        settled = f"{count_text(total.dead_letters, 'dead letter', style=',')}, {dropped}{total.skipped:,} settled before"
        spent = f"{total.request_units:,.0f} RU in {self.history[-1].at:.1f} s, {percent_text(total.throttled_share, 1)} throttled"
        lines = [f"{total.written:,} written{existed}, {settled}; {spent}"]
        if total.left_out:
            lines.append(
                f"{count_text(total.left_out, 'patch, replacement or delete', 'patches, replacements and deletes', style=',')}"
                " left out: mode create changes no document, --mode upsert does"
            )
        if self.not_captured:
            within = ", or not within --from, --to and --partitions" if self.is_bounded else ""
            lines.append(f"{self.not_captured:,} of the missing events are in no capture file{within}")
        return lines


def report_of(done: Backfilled) -> Report:
    report = Report("Backfill", f"{done.hub} into {done.target}, mode {done.mode}")
    total = done.total
    report.facts(
        {
            "Events selected": f"{sum(plan.events for plan in done.plan):,}",
            "Written": f"{total.written:,}",
            "Dead letters": f"{total.dead_letters:,}",
            **({"Dropped": f"{total.dropped:,}"} if total.dropped else {}),
            **({"Left out": f"{total.left_out:,}"} if total.left_out else {}),
            "Settled before": f"{total.skipped:,}",
            "RU per record": "unknown" if total.per_record is None else f"{total.per_record:.2f}",
            "Throttled": percent_text(total.throttled_share, 1),
        }
    )
    report.text("\n\n".join(f"{line}." for line in done.lines))
    _rate(report, done)
    _partitions(report, done)
    _reasons(report, total)
    return report


def _rate(report: Report, done: Backfilled) -> None:
    report.heading("Rate against the budget")
    steps = [
        (before, now) for before, now in pairwise(_without_short_step(done.history)) if now.at > before.at
    ]
    if not steps:
        report.text("Nothing was written.")
        return
    charges = [(now.at, (now.total - before.total).per_record) for before, now in steps]
    known = [(at, value) for at, value in charges if value is not None]
    figure, (rate, *others) = plots.new_figure(2 if known else 1, sharex=True, height=2.6)
    edges = [0.0, *(now.at for _, now in steps)]
    spent = [_spent(done.unit, *step) for step in steps]
    rate.stairs(spent, edges, fill=True, alpha=0.7, color=plots.BLUE)
    rate.axhline(done.budget, color=plots.RED, linestyle="--", label="budget")
    name = "RU/s" if done.unit == "request_units" else "records/s"
    rate.set(title=f"Sent, {name}", ylabel=name, ylim=(0, 1.3 * max(done.budget, *spent)))
    rate.legend(loc="upper right")
    for charge in others:
        charge.plot([at for at, _ in known], [value for _, value in known], color=plots.ORANGE)
        charge.set(title="RU per record written", ylabel="RU")
    figure.axes[-1].set(xlabel="seconds", xlim=(0, edges[-1]))
    record = ", and what a record cost" if known else "; no record was written"
    caption = f"What was sent, by when it was reported (a second may show more than the budget){record}"
    report.figure(figure, caption=caption, name="backfill-rate")


def _without_short_step(history: Sequence[Snapshot]) -> Sequence[Snapshot]:
    """Without the one before the last where these two are close: what a moment brought is no rate."""
    if len(history) > 2 and 2 * (history[-1].at - history[-2].at) < history[-2].at - history[-3].at:
        return [*history[:-2], history[-1]]
    return history


def _spent(unit: Unit, before: Snapshot, now: Snapshot) -> float:
    spent = now.total - before.total
    return (spent.request_units if unit == "request_units" else spent.attempts) / (now.at - before.at)


def _partitions(report: Report, done: Backfilled) -> None:
    report.heading("Partitions")
    existed = ["Existed"] if done.mode == "create" else []  # of the others nobody knows whose they were
    place = ("Partition", "Events", "From", "To", "First enqueued, UTC", "Written")
    report.table(
        (*place, *existed, "Dead letters", "Before"),
        [
            (
                *(plan.partition, plan.events, plan.first_sequence_number, plan.last_sequence_number),
                *(f"{plan.first_enqueued_at:%Y-%m-%d %H:%M:%S}", counts.written),
                *([counts.existed] if existed else []),
                *(counts.dead_letters, counts.skipped),
            )
            for plan in done.plan
            for counts in (done.partitions.get(plan.partition, Counts()),)
        ],
        caption="From and To are sequence numbers; Before is what an earlier run or attempt had settled, and copies",
    )
    times = {plan.partition: _settling(plan.partition, done.history) for plan in done.plan}
    if not any(times.values()):
        return
    rows = len(times)
    figure, (axes,) = plots.new_figure(1, height=min(8.0, 1.2 + 0.22 * rows))
    for row, spans in enumerate(times.values()):
        axes.broken_barh([(begin, end - begin) for begin, end in spans], (row - 0.4, 0.8), color=plots.BLUE)
    axes.set_yticks(range(rows), list(times) if rows <= LABELLED else [""] * rows)
    axes.invert_yaxis()
    axes.set(ylabel="partition", xlabel="seconds", xlim=(0, done.history[-1].at))
    axes.set_title("When events were settled")
    report.figure(
        figure,
        caption="When events of each partition were settled. Blank: before its first and after its last, or nothing came through.",
        name="backfill-partitions",
    )


def _settling(partition: str, history: Sequence[Snapshot]) -> list[tuple[float, float]]:
    """The times, each from one snapshot to the next, in which events of the partition were settled."""
    return [
        (before.at, now.at)
        for before, now in pairwise(history)
        if now.partitions.get(partition, 0) > before.partitions.get(partition, 0)
    ]


def _reasons(report: Report, total: Counts) -> None:
    report.heading("Dead letters by reason")
    if not total.reasons:
        report.text("None.")
        return
    ordered = sorted(total.reasons.items(), key=lambda reason: reason[1], reverse=True)
    figure, (axes,) = plots.new_figure(1, height=0.8 + 0.35 * len(ordered))
    axes.barh([reason for reason, _ in ordered], [count for _, count in ordered], color=plots.RED)
    axes.invert_yaxis()
    axes.set(xlabel="events")
    report.figure(figure, caption="Why events became dead letters", name="backfill-reasons")
    report.table(("Reason", "Events"), ordered)
