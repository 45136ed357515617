"""What the demo's second scene leaves behind: the proof and numbers on the screen, a plot and the decisions in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct
from rich.console import Console

from devstack.demo.common.report import (
    Change,
    changes,
    panels,
    show_changes,
    show_end,
    show_numbers,
    write_log,
)
from devstack.demo.streaming.proof import Account, Proof, account
from devstack.demo.streaming.run import StreamingRun, StreamSample, rates_of
from devstack.stack.supervisor import REQUEST_UNITS
from tidemark.foundation.wording import percent_text


class StreamOutcome(Struct, frozen=True):
    """The numbers of one run. Times are seconds since its start, None for what did not happen."""

    proof: Proof
    account: Account
    changes: tuple[Change, ...]
    refused: int
    refused_before: float
    refused_after: float
    peak_lag: int
    killed_at: float | None
    taken_over: float | None
    drained_at: float | None
    failures: tuple[str, ...]


def outcome(run: StreamingRun, proof: Proof) -> StreamOutcome:
    """Counts what happened: records by the proof, throughput and refusals by the samples."""
    made = changes(run, ((sample.at, sample.provisioned) for sample in run.samples))
    written = account(Path(run.settings["CONSUMER_TELEMETRY_FOLDER"]))
    before, after = _refused_share(run.samples, made)
    return StreamOutcome(
        proof=proof,
        account=written,
        changes=made,
        refused=run.samples[-1].throttled,
        refused_before=before,
        refused_after=after,
        peak_lag=max(sum(sample.lag) for sample in run.samples),
        killed_at=run.killed_at,
        taken_over=run.taken_over,
        drained_at=run.drained_at,
        failures=failures_of(run, proof, made, written),
    )


def _refused_share(samples: list[StreamSample], made: tuple[Change, ...]) -> tuple[float, float]:
    """Share of the operations that were refused, before the first change of throughput and after it."""
    first = made[0][0] if made else samples[-1].at
    turn = next(sample for sample in reversed(samples) if sample.at <= first)
    return _share(samples[0], turn), _share(turn, samples[-1])


def _share(before: StreamSample, after: StreamSample) -> float:
    writes, refused = after.writes - before.writes, after.throttled - before.throttled
    return refused / (writes + refused) if refused else 0.0


def failures_of(
    run: StreamingRun, proof: Proof, made: tuple[Change, ...], written: Account
) -> tuple[str, ...]:
    """What of the story did not come true; nothing where all of it did."""
    failures = list(proof.problems)
    if proof.records != run.records:
        failures.append(f"{proof.records} of {run.records} records reached the hub")
    if run.samples[-1].throttled == 0:
        failures.append("nothing was throttled")
    if not any(after > before for _, before, after, _ in made):
        failures.append("the throughput was never raised")
    if written.written == 0:
        failures.append("the consumers' telemetry shows no write")
    if run.killed_at is None:
        failures.append("no consumer was killed")
    failures += [
        f"{instance.name} ended with status {instance.status}"
        for instance in run.instances
        if instance.state != "killed" and instance.status != 0
    ]
    return tuple(failures)


def write(run: StreamingRun, result: StreamOutcome, folder: Path) -> list[Path]:
    """Writes the plot and the decisions; returns the files."""
    log, plot = folder / "consumer-decisions.jsonl", folder / "consumer.png"
    write_log(run.log, log)
    proof = result.proof
    with panels(plot, height=8.5, ratios=(3, 3, 2)) as drawn:
        drawn[0].set_title(
            f"{proof.records:,} records: {proof.documents:,} documents, {proof.letters} dead letters, {proof.lost} lost, "
            f"{proof.duplicates} duplicates; {proof.replayed:,} written again",
            fontsize=11,
        )
        for axes, draw in zip(drawn, (_plot_lag, _plot_rates, _plot_throttled), strict=True):
            draw(axes, run)
            axes.set_xlim(0, run.samples[-1].at)
            _mark(axes, result, named=axes is drawn[0])
        drawn[-1].set_xlabel("seconds")
    return [plot, plot.with_suffix(".svg"), log]


def _plot_lag(axes: Any, run: StreamingRun) -> None:
    colours = ("#08519c", "#3182bd", "#6baed6", "#bdd7e7")
    names = [f"partition {id_}" for id_ in run.hub.partition_ids]
    at = [sample.at for sample in run.samples]
    lags = [[sample.lag[index] for sample in run.samples] for index in range(len(names))]
    axes.stackplot(at, lags, labels=names, colors=colours)
    axes.set_ylabel("lag (records)")
    axes.legend(loc="upper left", frameon=False)


def _plot_rates(axes: Any, run: StreamingRun) -> None:
    rates = rates_of(run.samples)
    at = [rate.at for rate in rates]
    axes.step(
        [sample.at for sample in run.samples],
        [sample.provisioned for sample in run.samples],
        where="post",
        color="#1b7837",
        label="RU/s provisioned",
    )
    axes.fill_between(at, [rate.used for rate in rates], color="#a6dba0", alpha=0.7, label="RU/s used")
    axes.set_ylabel("RU/s")
    written = axes.twinx()
    written.plot(
        at, [rate.written for rate in rates], color="#d95f02", linewidth=1.4, label="records written/s"
    )
    written.set_ylabel("records/s", color="#d95f02")
    written.set_ylim(bottom=0)
    written.spines[["top"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    more, names = written.get_legend_handles_labels()
    # Above the plot: lines are everywhere in it.
    axes.legend(
        handles + more, labels + names, loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False
    )


def _plot_throttled(axes: Any, run: StreamingRun) -> None:
    rates = rates_of(run.samples)
    at = [rate.at for rate in rates]
    axes.fill_between(at, [100 * rate.throttled for rate in rates], color="#cb181d", alpha=0.6)
    axes.set_ylabel("answered 429 (%)")


def _mark(axes: Any, result: StreamOutcome, *, named: bool) -> None:
    """The kill, the end of its lease, and when everything was written."""
    taken = None
    if result.killed_at is not None and result.taken_over is not None:
        taken = result.killed_at + result.taken_over
    for at, text, colour in (
        (result.killed_at, "SIGKILL", "#cb181d"),
        (taken, "taken over", "#756bb1"),
        (result.drained_at, "all written", "#666666"),
    ):
        if at is None:
            continue
        axes.axvline(at, color=colour, linestyle="--", linewidth=1)
        if named:
            place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
            axes.annotate(text, (at, 1), xytext=(3, -9), color=colour, fontsize=9, **place)


def show(result: StreamOutcome, files: list[Path], console: Console) -> None:
    """Prints what happened."""
    show_changes("Throughput", result.changes, ("up", "down"), " RU/s", console)
    show_numbers(_rows(result), files, console)
    show_end(result.failures, "every record is a document or a dead letter, none twice", console)


def _rows(result: StreamOutcome) -> list[tuple[str, str]]:
    proof = result.proof
    rows = [
        ("records in the hub", f"{proof.records}"),
        ("documents", f"{proof.documents}, compared with what was sent"),
        ("dead letters", f"{proof.letters}, compared with what was sent"),
        ("lost", f"{proof.lost}"),
        ("duplicates", f"{proof.duplicates}"),
        ("replayed", f"{proof.replayed} records written again, to the same documents"),
        ("telemetry", result.account.beside(proof)),
        (
            "throttled",
            (
                f"{result.refused} operations answered 429: {percent_text(result.refused_before, 0)} of all at {REQUEST_UNITS} RU/s"
                f", {percent_text(result.refused_after, 1)} after the first change"
            ),
        ),
        ("peak lag", f"{result.peak_lag} records"),
    ]
    if result.killed_at is not None:
        taken = (
            ""
            if result.taken_over is None
            else f", its partitions taken over {result.taken_over:.1f} s later"
        )
        rows.append(("killed", f"one of two consumers after {result.killed_at:.1f} s{taken}"))
    if result.drained_at is not None:
        rows.append(("all written", f"after {result.drained_at:.1f} s"))
    return rows
