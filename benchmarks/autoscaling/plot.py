"""Cost against late messages: who is above and to the right of another pays more and is late more often."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import exp, log
from pathlib import Path
from typing import Protocol

from matplotlib import pyplot as plt

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
    with plt.rc_context(
        {**STYLE, "figure.facecolor": "white", "axes.facecolor": "white", "savefig.facecolor": "white"}
    ):
        figure, (axes, key) = plt.subplots(1, 2, figsize=(12.5, 6.2), width_ratios=(2.4, 1))
        best = _frontier(points)
        axes.step(
            [cost for cost, _ in best], [late for _, late in best], where="post", color=INK, alpha=0.3, lw=1
        )
        key.axis("off")
        for number, (policy, (cost, late)) in enumerate(sorted(points.items(), key=lambda item: item[1]), 1):
            colour = BLUE if policy in ours else ORANGE
            place = (cost, max(late, LEAST))
            axes.scatter(*place, s=70 if policy in ours else 40, color=colour, zorder=3)
            beside = (-3, -13) if policy in ours else (5, 3)  # ours are the nearest to each other
            axes.annotate(str(number), place, xytext=beside, textcoords="offset points", fontsize=8)
            weight = "bold" if policy in ours else "normal"
            line = f"{number:>2}  {policy}: {cost:.2f} x, {late:.1f} %"
            key.text(
                0, 1.0 - number * 0.045, line, fontsize=9, weight=weight, color=INK, transform=key.transAxes
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
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
        for kind in ("png", "svg"):
            figure.savefig(folder / f"pareto.{kind}", dpi=150, bbox_inches="tight")
        plt.close(figure)


def _frontier(points: dict[str, tuple[float, float]]) -> list[tuple[float, float]]:
    """The points no other one beats in both, by cost."""
    found: list[tuple[float, float]] = []
    for cost, late in sorted(points.values()):
        if not found or late < found[-1][1]:
            found.append((cost, max(late, LEAST)))
    return found
