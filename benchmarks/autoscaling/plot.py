"""Cost against late messages: who is above and to the right of another pays more and is late more often."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import product
from math import exp, log
from pathlib import Path
from typing import Any, Protocol

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from tidemark.analysis.plots import BLUE, INK, ORANGE, STYLE

LEAST = 0.02
"""Per cent of late messages that is drawn for none: the axis is logarithmic."""


class Row(Protocol):
    @property
    def policy(self) -> str: ...
    @property
    def apart(self) -> bool: ...
    @property
    def cost(self) -> float: ...
    @property
    def late(self) -> float: ...


def draw(rows: Sequence[Row], ours: Collection[str], folder: Path) -> None:
    """pareto.png and pareto.svg: geometric mean of the cost, mean share of late messages."""
    points = {}
    for policy in dict.fromkeys(row.policy for row in rows):
        counted = [row for row in rows if row.policy == policy and not row.apart]
        if counted:
            cost = exp(sum(log(row.cost) for row in counted) / len(counted))
            points[policy] = (cost, sum(row.late for row in counted) / len(counted))
    figure = picture(points, ours)
    for kind in ("png", "svg"):
        figure.savefig(folder / f"pareto.{kind}", dpi=150)
    plt.close(figure)


def picture(points: Mapping[str, tuple[float, float]], ours: Collection[str]) -> Figure:
    """Each policy (cost, per cent late) with its name at its point; those of `ours` in blue."""
    with plt.rc_context(
        {**STYLE, **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "white")}
    ):
        figure, axes = plt.subplots(figsize=(11, 7), layout="constrained")
        best = _frontier(dict(points))
        axes.step(*zip(*best, strict=True), where="post", color=INK, alpha=0.3, lw=1)
        for policy, (cost, late) in points.items():
            size, colour = (70, BLUE) if policy in ours else (40, ORANGE)
            axes.scatter(cost, max(late, LEAST), s=size, color=colour, zorder=3)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(0.97, 8.4)
        axes.set_xticks([1, 1.25, 1.5, 2, 3, 4, 6, 8], ["1", "1.25", "1.5", "2", "3", "4", "6", "8"])
        axes.minorticks_off()
        axes.set_yticks(
            [0.02, 0.1, 0.5, 1, 2, 5, 10, 25, 50, 100],
            ["0", "0.1", "0.5", "1", "2", "5", "10", "25", "50", "100"],
        )
        axes.axvline(1.0, color=INK, alpha=0.4, ls=":")
        axes.set_xlabel("instance-hours, times those of a clairvoyant (geometric mean over the traces)")
        axes.set_ylabel("late messages, % (mean over the traces)")
        axes.set_title("Cheaper to the left, fewer late messages below: Tidemark's rules in blue")
        figure.canvas.draw()  # from now on it is known where the points are
        _name_points(figure, axes, points, ours)
    return figure


def _name_points(
    figure: Figure, axes: Axes, points: Mapping[str, tuple[float, float]], ours: Collection[str]
) -> None:
    """Writes each name at the nearest place that is free, ours first; farther ones have a line to their points."""
    centres = axes.transData.transform([(cost, max(late, LEAST)) for cost, late in points.values()])
    taken = [Bbox.from_bounds(x - 6, y - 6, 12, 12) for x, y in centres]
    renderer: Any = figure.canvas.get_renderer()  # type: ignore[attr-defined]  # of Agg
    for policy in sorted(points, key=lambda name: (name not in ours, points[name])):
        cost, late = points[policy]
        weight = "bold" if policy in ours else "normal"
        for radius, (x, y) in product((9, 16, 26, 38, 52, 70), AROUND):
            line: Any = {"arrowstyle": "-", "color": INK, "alpha": 0.4, "lw": 0.7} if radius > 9 else None
            label = axes.annotate(
                policy,
                (cost, max(late, LEAST)),
                xytext=(radius * x, radius * y),
                textcoords="offset points",
                ha="left" if x > 0 else "right" if x < 0 else "center",
                va="center" if not y else "bottom" if y > 0 else "top",
                fontsize=8,
                weight=weight,
                arrowprops=line,
            )
            label.update_positions(renderer)
            box = Text.get_window_extent(label, renderer)  # without the line
            if (
                axes.bbox.containsx(box.x0)
                and axes.bbox.containsx(box.x1)
                and axes.bbox.containsy(box.y0)
                and not box.count_overlaps(taken)
            ):
                taken.append(box)
                break
            label.remove()
        else:
            raise ValueError(f"the picture has no free place for the name '{policy}'")


AROUND = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))
"""Where a name may stand, from its point on."""


def _frontier(points: dict[str, tuple[float, float]]) -> list[tuple[float, float]]:
    """The points no other one beats in both, by cost."""
    found: list[tuple[float, float]] = []
    for cost, late in sorted(points.values()):
        if not found or late < found[-1][1]:
            found.append((cost, max(late, LEAST)))
    return found
