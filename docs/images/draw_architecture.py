"""Draws docs/images/architecture.svg from the imports: `python docs/images/draw_architecture.py`.

Each package of a part stands above all that it imports, so that a reader sees without an arrow what may use what. Two ways
through the picture are numbered: that of a sample through the autoscaler, and that of an event through the consumer.
A test compares the file with what this script draws.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DRAWN = Path(__file__).with_name("architecture.svg")

FLOORS = (
    ("tidemark",),
    ("spark_jobs", "tidemark.commands"),
    ("tidemark.analysis", "tidemark.testing"),
    ("scaling", "consumer"),
    ("tidemark.publisher",),
    ("tidemark.foundation",),
)
"""The parts from the command line down to what all share. Parts of one floor do not import each other, but for the few
modules that tests/unit/test_import_rules.py names."""
WIDTHS = {"spark_jobs": 3, "scaling": 5, "consumer": 4, "tidemark.publisher": 3}  # shares of a floor's width
SAMPLE = ("collectors", "service", "rules", "decision", "scalers")
EVENT = ("receiving", "mapping", "core", "sinks", "stores")
WAYS = {"scaling": ("sample", SAMPLE), "consumer": ("event", EVENT)}
LEGEND = {
    "sample": "A sample: collected (1), put into its window (2), judged by the rules (3), decided on (4), carried out (5)",
    "event": "An event: received (1), mapped (2), started at the rate (3), written (4), covered by a checkpoint (5)",
}
WIDTH, MARGIN, GAP, BOX, HEADER = 1200, 16, 8, 30, 30  # pixels
STYLE = """
  .part { fill: #f4f6f8; stroke: #9aa5b1; } .box { fill: #ffffff; stroke: #9aa5b1; } text { fill: #1f2933; }
  .name { font-weight: 600; } .sample { fill: #0b69a3; } .event { fill: #8a3d0c; } .badge { fill: #ffffff; font-weight: 600; }
  @media (prefers-color-scheme: dark) {
    .part { fill: #1c232b; stroke: #52606d; } .box { fill: #28323c; stroke: #616e7c; } text { fill: #e4e7eb; }
    .sample { fill: #5aa9e0; } .event { fill: #e08a55; } .badge { fill: #10161c; }
  }
"""


def part_of(module: str) -> str | None:
    """The part that a module belongs to: the longest that its name begins with."""
    parts = [part for floor in FLOORS for part in floor if f"{module}.".startswith(f"{part}.")]
    return max(parts, key=len, default=None)


def package_of(module: str, part: str) -> str | None:
    """The package directly below the part that a module is in, or None for a module beside the packages."""
    name = module[len(part) + 1 :].partition(".")[0]
    return name if (ROOT / part.replace(".", "/") / name / "__init__.py").exists() and name else None


def imported_by(path: Path) -> Iterator[str]:
    """The modules that a file names in its imports, inside functions as well."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def packages(part: str) -> dict[str, set[str]]:
    """Each package of a part, with the packages of the same part that it imports."""
    folder = ROOT / part.replace(".", "/")
    below: dict[str, set[str]] = defaultdict(set)
    for path in sorted(folder.rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        package = package_of(module, part)
        if part_of(module) != part or package is None:
            continue
        names = (package_of(name, part) for name in imported_by(path) if part_of(name) == part)
        below[package] |= {name for name in names if name is not None and name != package}
    return below


def rows(below: dict[str, set[str]]) -> list[list[str]]:
    """The packages in rows, from the top down. A package stands directly above the highest of those that it imports."""
    level: dict[str, int] = {}
    for package in TopologicalSorter(below).static_order():
        level[package] = 1 + max((level[name] for name in below[package]), default=0)
    return [
        sorted(name for name in level if level[name] == height)
        for height in range(max(level.values(), default=0), 0, -1)
    ]


def duty(part: str, package: str) -> str:
    """What the package's docstring says first."""
    source = (ROOT / part.replace(".", "/") / package / "__init__.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def badge(part: str, package: str, x: float, y: float) -> str:
    """The number of a package on the way through its part, or nothing."""
    way, stations = WAYS.get(part, ("", ()))
    if package not in stations:
        return ""
    number = stations.index(package) + 1
    return (
        f'<circle class="{way}" cx="{x:.0f}" cy="{y}" r="9"/>'
        f'<text class="badge" x="{x:.0f}" y="{y + 4}" text-anchor="middle" font-size="12">{number}</text>'
    )


def draw_part(
    part: str, layout: list[list[str]], x: float, y: float, width: float, height: float
) -> Iterator[str]:
    """The part as a frame, with a row of boxes for each height."""
    yield f'<rect class="part" x="{x:.0f}" y="{y}" width="{width:.0f}" height="{height}" rx="6"/>'
    yield f'<text class="name" x="{x + 10:.0f}" y="{y + 20}">{part.replace(".", "/")}/</text>'
    for number, names in enumerate(layout):
        box = (width - GAP) / len(names) - GAP
        top = y + HEADER + number * (BOX + GAP)
        for place, name in enumerate(names):
            left = x + GAP + place * (box + GAP)
            yield f"<g><title>{escape(duty(part, name))}</title>"
            yield f'<rect class="box" x="{left:.0f}" y="{top}" width="{box:.0f}" height="{BOX}" rx="4"/>'
            yield f'<text x="{left + box / 2:.0f}" y="{top + 20}" text-anchor="middle">{name}</text>'
            yield badge(part, name, left, top) + "</g>"


def drawing() -> str:
    """The picture as SVG, for light and dark pages."""
    lines, y = [], MARGIN
    for floor in FLOORS:
        layouts = {part: rows(packages(part)) for part in floor}
        height = HEADER + max(len(layout) for layout in layouts.values()) * (BOX + GAP)
        whole = sum(WIDTHS.get(part, 1) for part in floor)
        x = float(MARGIN)
        for part, layout in layouts.items():
            width = (WIDTH - 2 * MARGIN - GAP * (len(floor) - 1)) * WIDTHS.get(part, 1) / whole
            lines += draw_part(part, layout, x, y, width, height)
            x += width + GAP
        y += height + GAP
    for way, text in LEGEND.items():
        y += 20
        lines.append(
            f'<circle class="{way}" cx="{MARGIN + 9}" cy="{y - 5}" r="7"/><text x="{MARGIN + 24}" y="{y}">{text}</text>'
        )
    size = f'viewBox="0 0 {WIDTH} {y + MARGIN}"'
    title = "<title>The packages of Tidemark: each stands above what it imports</title>"
    font = 'font-family="system-ui, sans-serif" font-size="13"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>{title}<style>{STYLE}</style>',
            *lines,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    DRAWN.write_text(drawing(), encoding="utf-8")
