"""One look for all plots of the reports: readable on light and on dark ground, in colour blindness and in print."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from textwrap import fill
from typing import Any, NamedTuple

import matplotlib as mpl
import matplotlib.dates
import numpy as np

mpl.use("Agg")

from cycler import cycler
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.ticker import LogFormatter, MaxNLocator, ScalarFormatter

INK = "#24303c"
"""Text, axes and ticks; the report's SVG draws them in the page's own text colour instead."""

# Okabe and Ito's palette for all kinds of colour vision, its yellow and black left out: neither shows on both grounds.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9"
COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY)

STYLE: Any = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"),
    **dict.fromkeys(("axes.labelcolor", "axes.edgecolor", "axes.titlecolor"), INK),
    **dict.fromkeys(("text.color", "xtick.color", "ytick.color"), INK),
    "axes.prop_cycle": cycler(color=COLOURS),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.titlelocation": "left",
    "axes.titlesize": "medium",
    "axes.titleweight": "bold",
    "grid.color": "#8894a0",
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "font.size": 10,
    "lines.linewidth": 1.6,
    "svg.hashsalt": "tidemark",  # the same figure gives the same bytes
}

mpl.rcParams.update(STYLE)  # for good: legends and titles take the style when they are made, after the figure


def new_figure(
    rows: int = 1, columns: int = 1, *, width: float = 9.0, height: float = 3.2, **options: Any
) -> tuple[Figure, list[Axes]]:
    """A figure and its axes, row by row, in the shared style. `height` is inches per row; `options` go to subplots.

    Figures are pyplot's: `Report.figure` closes them.
    """
    figure, axes = plt.subplots(
        rows, columns, figsize=(width, height * rows), layout="constrained", squeeze=False, **options
    )
    return figure, list(axes.flat)


def drawn_value(value: float | None) -> float:
    """A gap in the line where the value is not known."""
    return float("nan") if value is None else float(value)


def time_axis(axes: Axes, *, is_narrow: bool = False) -> None:
    """Labels an axis of UTC times as shortly as their span allows."""
    dates: Any = mpl.dates  # its calls carry no types
    fewer = {
        dates.MONTHLY: 7,
        dates.DAILY: 6,
        dates.HOURLY: 7,
        dates.MINUTELY: 7,
        dates.SECONDLY: 6,
    }
    few: Any = {"minticks": 3, "maxticks": fewer} if is_narrow else {}
    locator = dates.AutoDateLocator(tz="UTC", **few)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz="UTC"))


def as_number(at: datetime) -> float:
    """A time as the axis of `time_axis` has it."""
    return float(mpl.dates.date2num(at))  # type: ignore[no-untyped-call]


def windows(
    times: Sequence[datetime], *values: Sequence[float | None], to_end: bool = False
) -> tuple[list[Any], list[list[float]]]:
    """Windows as lines show them: with a gap where some are missing; `to_end`, for steps, with the end of the last, too."""
    if not times:
        return [], [[] for _ in values]
    width = float(
        np.median([(after - before).total_seconds() for before, after in pairwise(times)] or [60.0])
    )
    apart = timedelta(seconds=width)
    at: list[Any] = []  # datetimes, which matplotlib draws and its types do not know
    drawn: list[list[float]] = [[] for _ in values]
    for place, time in enumerate(times):
        if place and time - times[place - 1] > MISSING * apart:
            at.append(times[place - 1] + apart)
            for line in drawn:
                line.append(float("nan"))
        at.append(time)
        for line, series in zip(drawn, values, strict=True):
            line.append(drawn_value(series[place]))
    if to_end:
        at.append(times[-1] + apart)
        for line in drawn:
            line.append(line[-1])
    return at, drawn


MISSING = 2.5
"""Windows from one to the next, beyond which some are missing. Chosen: samples at uneven times leave single windows without any."""


class Line(NamedTuple):
    """One policy over time."""

    label: str
    colour: str
    times: Sequence[Any]
    backlog: Sequence[float]
    instances: Sequence[float]


def over_time(
    times: Sequence[Any], arrivals: Sequence[float], service_rate: float, lines: Iterable[Line]
) -> tuple[Figure, list[Axes]]:
    """Arrivals per second, waiting messages and instances, one below the other."""
    figure, panels = new_figure(3, height=1.9, sharex=True)
    load, backlog, instances = panels
    load.fill_between(times, arrivals, color=BLUE, alpha=0.5, linewidth=0)
    load.set_title("Arrivals per second")
    for line in lines:
        backlog.plot(line.times, line.backlog, color=line.colour, label=line.label, linewidth=1.1)
        instances.step(line.times, line.instances, where="post", color=line.colour, linewidth=1.1)
    needed = [rate / service_rate for rate in arrivals]
    instances.plot(times, needed, color=INK, linewidth=0.9, linestyle=":", label="needed by the arrivals")
    backlog.set_title("Waiting messages, at most")
    _partly_logarithmic(backlog)
    instances.set_title("Instances, at most")
    instances.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    for axes in (backlog, instances):
        axes.legend(loc="upper left", fontsize="small")
    time_axis(instances)
    return figure, panels


def _partly_logarithmic(axes: Axes) -> None:
    """An axis that is linear up to 100, or to a hundred thousandth of the most, with room for a legend of two lines above the most."""
    most = axes.dataLim.ymax
    linear = max(100.0, 10.0 ** (math.floor(math.log10(most)) - 5) if most > 0 else 0.0)
    axes.set_yscale("symlog", linthresh=linear)
    height = 1.45 * (most / linear if most < linear else 1 + math.log10(most / linear))
    axes.set_ylim(0, max(1.0, linear * (height if height < 1 else 10 ** (height - 1))))
    ticks: Any = axes.yaxis.get_major_locator()
    ticks.set_params(numticks=DECADES)


DECADES = 6
"""Labels of a logarithmic axis that stand one above the other in a panel."""


def mark(axes: Axes, at: Any, text: str, *, color: str, linewidth: float, fontsize: Any) -> None:
    """A dashed line at a time, with the text at its top."""
    axes.axvline(at, color=color, linestyle="--", linewidth=linewidth)
    place: Any = ("data", "axes fraction")
    axes.annotate(text, (at, 1.0), xycoords=place, va="top", color=color, fontsize=fontsize)


FEW = 12
"""Points of a line that are drawn as points, too. Chosen: of so many each can be distinguished, and one alone makes no line."""

LEAST_BARS = 8
"""Bars for which a plot has room at least: one alone would fill it."""

ALONE = 0.5 / 24
"""Days that an axis shows on either side of a single time: matplotlib would show four years."""

NARROW = 4.4
"""Inches of a figure on a phone: its text is then about as large there as that of the page."""
STACKED = 0.75
"""Height of a panel that was beside another one, of what it was: it is narrower, too."""
COLOUR_BAR = "<colorbar>"
"""How matplotlib names the axes of a colour bar."""
NARROW_TITLE = 40
"""Characters of a bold title that fit into it."""
MARGIN = 10.0
"""Pixels, of 100 an inch, between a legend that was shrunk and the edge: texts do not shrink evenly."""


def plain(value: float, _: object = None) -> str:
    """A label of an axis: `1,000`, `2,399.5`, `0.1` and `20 T`, never 1e3."""
    for size, sign in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= max(size, 1e8):  # what is less is short enough
            scaled = value / size
            return f"{scaled:,.4g} {sign}" if abs(scaled) < 1000 else f"{scaled:,.0f} {sign}"
    return f"{value:,.2f}".rstrip("0").rstrip(".") if abs(value) >= 100 else f"{value:g}"


def fit_axes(figure: Figure) -> None:
    """Begins an axis of counts at zero, with thousands parted and room for its legend, unless its limits were set."""
    for axes in figure.axes:
        if axes.images or not axes.has_data():
            continue
        for axis, (_, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            formatter = axis.get_major_formatter()
            if isinstance(formatter, LogFormatter) or (high >= 1000 and type(formatter) is ScalarFormatter):
                axis.set_major_formatter(plain)
        if axes.get_yscale() == "linear" and axes.get_autoscaley_on() and axes.dataLim.ymin >= 0:
            room = 1.3 if axes.get_legend() is not None else 1.06
            axes.set_ylim(0, room * axes.dataLim.ymax if axes.dataLim.ymax > 0 else 1)


def show_few_points(figure: Figure) -> None:
    """Draws the points of lines that have few or that stand alone in gaps, fits the axis of a single time to it, and keeps one bar
    from filling the plot.
    """
    fit_axes(figure)
    for axes in figure.axes:
        if axes.get_label() != COLOUR_BAR and not np.isfinite(axes.dataLim.get_points()).all():
            axes.text(0.5, 0.5, "not known", transform=axes.transAxes, ha="center", va="center")
            axes.set_yticks([])
        for line in axes.lines:
            if line.get_transform() != axes.transData or line.get_marker() != "None":
                continue  # a line across the plot, or one with points already
            known = np.isfinite(np.asarray(line.get_ydata(), dtype=float))
            alone = known & ~np.roll(known, 1) & ~np.roll(known, -1)
            if 0 < known.sum() <= FEW:
                line.set(marker="o", markersize=4)
            elif alone.any():
                line.set(marker="o", markersize=3, markevery=np.flatnonzero(alone).tolist())
        beside = [
            other.dataLim.intervalx
            for other in axes.get_shared_x_axes().get_siblings(axes)
            if other.has_data()
        ]
        low, high = (
            min((interval[0] for interval in beside), default=0.0),
            max((interval[1] for interval in beside), default=1.0),
        )
        if low == high and isinstance(axes.xaxis.get_major_formatter(), mpl.dates.ConciseDateFormatter):
            axes.set_xlim(low - ALONE, high + ALONE)
        for bars in (
            container for container in axes.containers if getattr(container, "orientation", "") == "vertical"
        ):
            lefts, width = [bar.get_x() for bar in bars], bars[0].get_width()
            spare = LEAST_BARS * width - (max(lefts) + width - min(lefts))
            if spare > 0:
                axes.set_xlim(min(lefts) - spare / 2, max(lefts) + width + spare / 2)


def fit_to_phone(figure: Figure) -> None:
    """Makes the figure as narrow as a phone: panels stand one below the other, titles are wrapped, fewer times are labelled, and
    legends fit.
    """
    panels = [axes for axes in figure.axes if axes.get_label() != COLOUR_BAR]
    stack(figure, panels)
    figure.set_figwidth(NARROW)
    for axes in panels:
        axes.set_title(fill(axes.get_title(loc="left"), NARROW_TITLE))
        if isinstance(axes.xaxis.get_major_formatter(), mpl.dates.ConciseDateFormatter):
            time_axis(axes, is_narrow=True)
    for legend in list(figure.legends):
        narrow_legend(figure, legend)
    figure.draw_without_rendering()
    for axes in panels:
        shrink_legend(axes, figure.bbox.x1)
        if axes.images and _overlap([text.get_window_extent() for text in axes.texts]):
            for text in axes.texts:
                text.set_visible(False)


def stack(figure: Figure, panels: Sequence[Axes]) -> None:
    """Panels that stand side by side, one below the other, each with its own labels."""
    grids = [place.get_gridspec() for axes in panels if (place := axes.get_subplotspec()) is not None]
    if not grids or grids[0].ncols == 1:
        return
    places: Any = figure.add_gridspec(len(panels), 1)
    for axes, place in zip(panels, places, strict=True):
        axes.set_subplotspec(place)
        axes.tick_params(labelbottom=True, labelleft=True)
        axes.set_ylabel(axes.get_ylabel() or panels[0].get_ylabel())
    figure.set_figheight(figure.get_figheight() * len(panels) / grids[0].nrows * STACKED)


def narrow_legend(figure: Figure, legend: Legend) -> None:
    """Lays the legend of a whole figure, below its panels, out anew: in two columns, or in one if that is too wide."""
    handles: Any = legend.legend_handles
    texts = [text.get_text() for text in legend.get_texts()]
    for columns in (2, 1):
        legend.remove()
        legend = figure.legend(handles, texts, loc="outside lower center", ncols=columns, fontsize="small")
        figure.draw_without_rendering()
        if legend.get_window_extent().width <= figure.bbox.width:
            return


def shrink_legend(axes: Axes, edge: float) -> None:
    """Makes the texts of a legend that goes beyond the edge smaller, until it is within."""
    legend = axes.get_legend()
    if legend is None:
        return
    beyond = legend.get_window_extent().x1 - edge
    texts = sum(text.get_window_extent().width for text in legend.get_texts())
    if beyond > 0 and texts > 2 * beyond:
        for text in legend.get_texts():
            text.set_fontsize(text.get_fontsize() * (1 - (beyond + MARGIN) / texts))


def _overlap(boxes: Sequence[Any]) -> bool:
    """Of texts that stand row by row."""
    return any(before.overlaps(after) for before, after in pairwise(boxes))


def drawn(figure: Figure) -> tuple[str, str, bytes]:
    """The figure as SVG for a wide page and for a narrow one, and as PNG on white; closes it."""
    show_few_points(figure)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=144, facecolor="white")
    wide = _vector(figure)
    fit_to_phone(figure)
    narrow = _vector(figure)
    plt.close(figure)
    return wide, narrow, picture.getvalue()


def _vector(figure: Figure) -> str:
    image = io.StringIO()
    figure.savefig(image, format="svg", metadata={"Date": None})
    return image.getvalue()
