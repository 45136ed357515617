"""How the demo's second scene looks while it runs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table

from devstack.demo.common.view import Row, progress, sparklines
from devstack.demo.streaming.run import SMOOTHED, Instance, StreamingRun, StreamSample, rates_of
from tidemark.foundation.wording import count_text, percent_text

_STATES = {"running": "green", "killed": "red", "stopped": "dim"}


class StreamingPart:
    """The consumers and their database."""

    def __init__(self, run: StreamingRun) -> None:
        self.run = run

    def summary(self) -> str:
        now, rates = self.run.samples[-1], rates_of(self.run.samples[-SMOOTHED - 1 :])[-1]
        return (
            f"{now.documents + now.letters} of {self.run.records} settled, {rates.written:.0f} written/s, "
            f"lag {sum(now.lag)}, {rates.used:.0f} of {now.provisioned} RU/s, {percent_text(rates.throttled, 0)} throttled, "
            f"{count_text(now.running, 'consumer')}, {count_text(now.letters, 'dead letter')}"
        )

    def screen(self, width: int) -> RenderableType:
        run, samples = self.run, self.run.samples
        now, rates = samples[-1], rates_of(samples)
        rows: list[Row] = [
            ("lag", f"{sum(now.lag):,}", [float(sum(s.lag)) for s in samples], "yellow"),
            ("written/s", f"{rates[-1].written:,.0f}", [rate.written for rate in rates], "cyan"),
            ("RU/s provisioned", f"{now.provisioned:,}", [float(s.provisioned) for s in samples], "green"),
            ("RU/s used", f"{rates[-1].used:,.0f}", [rate.used for rate in rates], "green"),
            ("throttled", percent_text(rates[-1].throttled, 0), [rate.throttled for rate in rates], "red"),
        ]
        settled = f"{now.documents:,} written, {now.letters} dead letters"
        done = progress(now.documents + now.letters, run.records, width, settled)
        title = f"hub flights to container flights: {run.records:,} records, {now.at:.0f} s gone"
        beside = Table.grid(padding=(0, 4))
        beside.add_row(_instances(run.instances), _lags(run.hub.partition_ids, samples, max(width // 3, 10)))
        return Panel(Group(sparklines(rows, width), done, beside), title=title)


def _instances(instances: Sequence[Instance]) -> Table:
    table = Table.grid(padding=(0, 2))
    for instance in instances:
        state = f"[{_STATES.get(instance.state, 'yellow')}]{instance.state}[/]"
        held = f"partitions {' '.join(instance.partitions)}" if instance.partitions else "no partitions"
        table.add_row(instance.name, f"process {instance.pid}", state, held)
    return table


def _lags(partitions: Sequence[str], samples: Sequence[StreamSample], width: int) -> Table:
    most = max(max(sample.lag, default=0) for sample in samples) or 1
    table = Table.grid(padding=(0, 2))
    for partition, lag in zip(partitions, samples[-1].lag, strict=True):
        bar = ProgressBar(
            total=most, completed=lag, width=width, complete_style="yellow", finished_style="yellow"
        )
        table.add_row(f"partition {partition}", bar, f"lag {lag:,}")
    return table
