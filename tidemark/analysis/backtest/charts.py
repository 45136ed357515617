"""The pictures of a backtest."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tidemark.analysis import plots
from tidemark.analysis.backtest.candidates.grid import BASELINE
from tidemark.analysis.backtest.candidates.recommend import Choice
from tidemark.analysis.backtest.replay.score import Score
from tidemark.analysis.backtest.work import Comparison
from tidemark.analysis.plots import BLUE, GREEN, INK, ORANGE, RED, new_figure
from tidemark.analysis.simulation.waits import Series

SMALLEST, LARGEST = 14.0, 180.0
"""Areas of dots, in points squared: of the fewest and of the most actions."""


def pareto(choice: Choice, *, budget: float) -> Figure:
    """Cost against late messages of every candidate; larger dots change the capacity more often."""
    figure, (left, right) = new_figure(1, 2, width=9.5, height=4.0, sharex=True, sharey=True)
    for axes, scores, title in (
        (left, choice.training, "Training part: what the choice is made on"),
        (right, choice.held_out, "Held-out part: what it then costs"),
    ):
        _dots(axes, choice, scores)
        axes.set_title(title)
        axes.set_xlabel("cost per hour")
        axes.axhline(budget * 100, color=INK, linewidth=0.8, linestyle=":")
        axes.set_yscale("symlog", linthresh=0.1)
        axes.set_ylim(-0.02, 2 * max(100 * budget, *(100 * s.late_share for s in scores.values())))
    left.set_ylabel("late messages, %")
    left.xaxis.set_major_locator(MaxNLocator(5))  # shared; of costs that are alike the labels are long
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize="small")
    return figure


def _dots(axes: Axes, choice: Choice, scores: Mapping[str, Score]) -> None:
    most = max((s.actions / max(s.hours, 1e-9) for s in scores.values()), default=0.0) or 1.0

    def draw(names: list[str], colour: str, text: str, **options: object) -> None:
        drawn = [scores[name] for name in names]
        axes.scatter(
            [s.cost / max(s.hours, 1e-9) for s in drawn],
            [s.late_share * 100 for s in drawn],
            s=[SMALLEST + (LARGEST - SMALLEST) * s.actions / max(s.hours, 1e-9) / most for s in drawn],
            color=colour,
            label=text,
            linewidths=0,
            **options,  # type: ignore[arg-type]
        )

    chosen = {BASELINE, choice.recommended}
    draw([n for n in scores if n not in choice.front | chosen], BLUE, "other candidates", alpha=0.3)
    front = sorted(choice.front - chosen, key=lambda n: scores[n].cost)
    draw(front, BLUE, "none better in all three (training)")
    draw([BASELINE], ORANGE, "running policy")
    if choice.recommended != BASELINE:
        draw([choice.recommended], GREEN, "recommended")


def over_time(comparison: Comparison, *, service_rate: float) -> Figure:
    """Load, backlog and instances of the running and of the recommended policy."""
    assert comparison.series is not None  # the caller asked for the series
    theirs, ours = comparison.series
    lines = [
        plots.Line(label, colour, _times(series), series.waiting, series.instances)
        for series, colour, label in ((theirs, ORANGE, "running policy"), (ours, GREEN, "recommended"))
    ]
    figure, panels = plots.over_time(_times(theirs), theirs.arrivals, service_rate, lines)
    split: Any = datetime.fromtimestamp(comparison.split, UTC)
    for axes, text in zip(panels, (" held out from here", "", ""), strict=True):
        plots.mark(axes, split, text, color=RED, linewidth=0.9, fontsize="small")
    return figure


def _times(series: Series) -> list[datetime]:
    return [datetime.fromtimestamp(at, UTC) for at in series.times]
