"""The pictures of an advice."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from math import nan
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tidemark.analysis import plots
from tidemark.analysis.advise.answered import Answer
from tidemark.analysis.plots import BLUE, GREEN, INK, ORANGE, PURPLE, RED, SKY, new_figure
from tidemark.analysis.simulation.answer import Row, frontier
from tidemark.analysis.simulation.field import TODAY, wait_text
from tidemark.analysis.simulation.waits import Series
from tidemark.foundation.wording import duration_text

LEAST = 0.01
"""Per cent of late messages below which the axis is linear."""

NEAR = 0.05
"""Points whose costs differ by less have no room for two names."""

PEERS = (
    (BLUE, "s"),
    (BLUE, "D"),
    (PURPLE, "^"),
    (PURPLE, "v"),
    (SKY, "o"),
    (SKY, "s"),
    (RED, "^"),
    (RED, "v"),
)
"""Colour and marker of each peer's point, in the order of the rows."""


def curve(advice: Answer) -> Figure:
    """Cost against late messages: who is above and to the right of another pays more and is late more often."""
    figure, (axes,) = new_figure(height=4.6)
    points = [row for row in advice.rows if row.objective is not None]
    best = frontier(points)
    shown = advice.row(advice.choice.shown)

    def place(row: Row) -> tuple[float, float]:
        return row.instance_hours * 24.0 / advice.question.hours, 100.0 * row.late

    axes.plot(*zip(*map(place, best), strict=True), color=GREEN, alpha=0.6, zorder=2)
    costs, lates = zip(*map(place, points), strict=True)
    axes.scatter(costs, lates, s=36, color=GREEN, zorder=3, label="service_level")
    named: list[Row] = []
    for row in (shown, best[-1], best[0]):  # one name only where they lie together
        if all(abs(row.instance_hours / other.instance_hours - 1.0) > NEAR for other in named):
            named.append(row)
            wait, late = row.objective or (0.0, 0.0)
            text = f"{wait_text(wait)}, {100 * late:.3g} %" if row.objective else row.policy
            axes.annotate(text, place(row), xytext=(6, 7), textcoords="offset points", fontsize=8)
    peers = iter(PEERS)
    for row in advice.rows:
        if row.policy == TODAY:
            axes.scatter(*place(row), s=80, color=ORANGE, zorder=4, label=TODAY)
        elif row.objective is None:
            ours = row.policy.startswith("service_level")
            colour, marker = (GREEN, "P") if ours else next(peers, (INK, "o"))
            axes.scatter(*place(row), s=50, color=colour, marker=marker, zorder=3, label=row.policy)
    ring: Any = {"facecolors": "none", "edgecolors": INK, "linewidths": 1.3}
    label = "late least" if advice.choice.taken is None else "best trade-off"
    axes.scatter(*place(shown), s=190, zorder=5, label=label, **ring)
    objective = 100 * advice.question.target.late
    axes.axhline(objective, color=INK, linewidth=0.8, linestyle=":", label="the objective")
    _axes(axes, advice)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize="small")
    return figure


def _axes(axes: Axes, advice: Answer) -> None:
    """Both logarithmic: a share of late messages is asked for where it is small."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(plots.plain)
    axes.minorticks_off()
    axes.set_yscale("symlog", linthresh=LEAST)
    axes.set_ylim(-0.002, max(2 * max(100 * row.late for row in advice.rows), 1.0))
    axes.set_yticks([0, 0.01, 0.1, 1, 10, 100], ["0", "0.01", "0.1", "1", "10", "100"])
    axes.set_xlabel("instance-hours a day")
    axes.set_ylabel(f"messages later than {duration_text(advice.question.target.wait)}, %")


def over_time(advice: Answer) -> Figure:
    """Load, waiting messages and instances of today's policy and of the one shown beside it."""
    taken = advice.row(advice.choice.shown)
    shown = [(taken, GREEN)]
    if advice.today is not None and advice.today is not taken:
        shown.insert(0, (advice.today, ORANGE))
    begin = advice.question.recorded.begin
    lines = []
    for row, colour in shown:
        times, (waiting, count) = _drawn(begin, row.series, row.series.waiting, row.series.instances)
        lines.append(plots.Line(row.policy, colour, times, waiting, count))
    times, (arrivals,) = _drawn(begin, taken.series, taken.series.arrivals)
    figure, _ = plots.over_time(times, arrivals, advice.question.target.service_rate, lines)
    return figure


def _drawn(begin: float, series: Series, *values: Any) -> tuple[Any, list[list[float]]]:
    """Times as dates, and values; nothing is drawn where nothing is known."""
    seconds = series.times
    apart = 1.5 * min((later - earlier for earlier, later in pairwise(seconds)), default=60.0)
    times: list[datetime] = []
    drawn: list[list[float]] = [[] for _ in values]
    for index, second in enumerate(seconds):
        if index and second - seconds[index - 1] > apart:
            times.append(datetime.fromtimestamp(begin + seconds[index - 1] + apart / 1.5, UTC))
            for line in drawn:
                line.append(nan)
        times.append(datetime.fromtimestamp(begin + second, UTC))
        for line, series_values in zip(drawn, values, strict=True):
            line.append(float(series_values[index]))
    return times, drawn
