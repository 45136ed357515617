"""docs/images/service-level.svg: a burst under the rule `service_level`, by the code that ships.

python -m benchmarks.autoscaling.picture
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.autoscaling import ours
from benchmarks.autoscaling.worlds import run
from scaling.rules.service_level.sizing import HURRY_WAIT, KEEP_UP_WAIT, REPORT_AGE
from tidemark.analysis.simulation.driving import Shipped
from tidemark.analysis.simulation.world import Model, Seen

FILE = Path(__file__).parents[2] / "docs" / "images" / "service-level.svg"

LEARNED, SHOWN = 2 * 3600, 2400
"""Seconds before the picture begins, and in it."""
BURST = (LEARNED + 420, LEARNED + 1320)

WIDTH, LEFT, RIGHT, HEIGHT, GAP, TOP = 760, 52, 178, 150, 46, 26

STYLE = """<style>
text { font: 12px system-ui, sans-serif; fill: #24292f; } .note { fill: #57606a; }
.axis { stroke: #8c959f; } .grid { stroke: #d0d7de; stroke-dasharray: 2 3; }
path { fill: none; stroke-width: 1.6; } .a { stroke: #57606a; } .b { stroke: #0969da; } .c { stroke: #bc4c00; }
.ka { fill: #57606a; } .kb { fill: #0969da; } .kc { fill: #bc4c00; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; } .note { fill: #9198a1; } .grid { stroke: #3d444d; }
.a { stroke: #9198a1; } .b { stroke: #4493f8; } .c { stroke: #f0883e; }
.ka { fill: #9198a1; } .kb { fill: #4493f8; } .kc { fill: #f0883e; } }
</style>"""

Series = Sequence[tuple[float, float]]


class Recorded:
    """The rule, with what it saw and said at each report."""

    def __init__(self, policy: Shipped) -> None:
        self.policy, self.interval = policy, policy.interval
        self.rows: list[tuple[Seen, float, float, int]] = []

    def see(self, seen: Seen) -> int:
        wanted = self.policy.see(seen)
        expected = next((e for e in self.policy.made.evidence if e.statistic == "expected"), None)
        if seen.t >= LEARNED and expected is not None:
            self.rows.append((seen, expected.value, expected.threshold, wanted))
        return wanted


def draw() -> str:
    model = Model()
    seconds = np.arange(LEARNED + SHOWN)
    arrivals = 60.0 + 6.0 * np.sin(seconds / 47.0)
    arrivals[BURST[0] : BURST[1]] += 80.0
    recorded = Recorded(ours.service_level(model=model))
    run(arrivals, recorded, model, 8)
    rows = [
        (seen.t - LEARNED, seen, expected, ready_for, total)
        for seen, expected, ready_for, total in recorded.rows
    ]

    came = [(float(at), float(arrivals[LEARNED + at])) for at in range(0, SHOWN, 15)]
    serving = [(at, float(seen.ready)) for at, seen, *_ in rows]
    waiting = [(at, seen.waiting) for at, seen, *_ in rows]
    levels = [
        [(at, seconds * expected) for at, _, expected, *_ in rows]
        for seconds in (KEEP_UP_WAIT * (model.wait - REPORT_AGE * recorded.interval), HURRY_WAIT * model.wait)
    ]
    panels = [
        _panel(
            0,
            "messages per second",
            [
                ("arrive", came),
                ("expected", [(at, expected) for at, _, expected, *_ in rows]),
                ("ready for, with the margin", [(at, ready_for) for at, _, _, ready_for, _ in rows]),
            ],
        ),
        _panel(
            1,
            "instances",
            [("serving", serving), ("asked for", [(at, float(total)) for at, *_, total in rows])],
        ),
        _panel(
            2,
            "messages waiting",
            [
                ("wait", waiting),
                ("may stand in the queue", levels[0]),
                (f"{HURRY_WAIT:.2g} of the wait: hurry", levels[1]),
            ],
        ),
    ]
    height = TOP + 3 * (HEIGHT + GAP) + 8
    label = "A burst of a quarter of an hour: arrivals and forecast, instances, messages waiting"
    box = f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box}>'
    return "\n".join([head, STYLE, *panels, "</svg>", ""])


def _panel(number: int, title: str, lines: Sequence[tuple[str, Series]]) -> str:
    top, right = TOP + number * (HEIGHT + GAP), WIDTH - RIGHT
    highest = _round_up(max(value for _, line in lines for _, value in line))

    def point(at: float, value: float) -> str:
        x = LEFT + at / SHOWN * (right - LEFT)
        return f"{x:.1f},{top + HEIGHT - value / highest * HEIGHT:.1f}"

    parts = [f'<text x="{LEFT}" y="{top - 8}">{title}</text>']
    for share in (0.0, 0.5, 1.0):
        y = top + HEIGHT * (1.0 - share)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="note" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{share * highest:g}</text>'
        )
    for name, (key, line) in zip("abc", lines, strict=False):
        parts.append(f'<path class="{name}" d="M{" L".join(point(at, value) for at, value in line)}"/>')
        parts.append(
            f'<text class="k{name}" x="{right + 10}" y="{top + 14 + 18 * "abc".index(name)}">{key}</text>'
        )
    for minute in range(0, SHOWN // 60 + 1, 10):
        x = LEFT + minute * 60 / SHOWN * (right - LEFT)
        parts.append(
            f'<text class="note" x="{x:.1f}" y="{top + HEIGHT + 14}" text-anchor="middle">{minute} min</text>'
        )
    return "\n".join(parts)


def _round_up(value: float) -> float:
    """The next of 1, 2, 4, 5, 8 or 10 times a power of ten."""
    power = 10.0 ** np.floor(np.log10(value))
    return next(float(step * power) for step in (1, 2, 4, 5, 8, 10) if value <= step * power)


if __name__ == "__main__":
    FILE.write_text(draw(), encoding="utf-8")
