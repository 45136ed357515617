"""docs/images/autoscaling-grid.svg and the tables by service of both READMEs, drawn from the file of results.

python -m benchmarks.autoscaling.report
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from itertools import product
from pathlib import Path

from msgspec.structs import replace

from benchmarks.autoscaling.cells import WORLDS, Cell
from benchmarks.autoscaling.grid import (
    LONG_SHARES,
    PLAN,
    RESULTS,
    SERVICES,
    SHARES,
    SLOW,
    USUAL,
    Row,
    read,
)

FILE = Path(__file__).parents[2] / "docs" / "images" / "autoscaling-grid.svg"
README = Path(__file__).parents[1] / "README.md"
FRONT = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- by service: benchmarks.autoscaling.report -->\n", "<!-- end -->\n"

ALLOWED, FEW = 1.0, 3.0
"""Per cent of late messages: the objective, and what is drawn as near it."""

BLOCKS = {
    "every message takes as long": Cell(),
    "log-normal times": Cell(times="log-normal"),
    "5 % take ten times as long": Cell(times="two classes"),
    "evaluated every 60 s": Cell(look=60),
    "wait 20 min": Cell(wait=1200),
    "the service rate halves": Cell(halves=True),
}
"""Each is the base cell but for what its title says."""

NOTES = (
    f"Instance-hours as a multiple of the work, and late messages. Green: at most {ALLOWED:g} % late, yellow: at most {FEW:g} %.",
    "Above each column: messages that an instance serves a second / processes at once, and the time of one.",
)

LEFT, COLUMN, LINE = 210, 96, 20

STYLE = """<style>
text { font: 12px system-ui, sans-serif; fill: #24292f; } .title { font-weight: 600; } .note { fill: #57606a; }
.kept { fill: #aceebb; } .near { fill: #fae17d; } .late { fill: #ffcecb; } .none { fill: #eaeef2; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; } .note { fill: #9198a1; }
.kept { fill: #0f5323; } .near { fill: #5a4600; } .late { fill: #78191b; } .none { fill: #21262d; } }
</style>"""


def best_target(rows: Mapping[Cell, Row], cell: Cell, peer: str) -> Row | None:
    """Of a peer in the world of `cell`: the cheapest target that keeps the objective, or the one that is late least."""
    cells = [
        replace(cell, policy=f"{peer} {share}", sense="", options="") for share in (*SHARES, *LONG_SHARES)
    ]
    found = [rows[each] for each in cells if each in rows]
    return min(found, key=lambda row: (max(row.late, ALLOWED), row.work), default=None)


def lines(rows: Mapping[Cell, Row], cell: Cell) -> Iterator[tuple[str, Row | None]]:
    """Who is compared in one world, with what became of them; None where it was not replayed."""
    for sense in USUAL:
        yield f"service_level, {sense}", rows.get(replace(cell, sense=sense))
    for peer in ("KEDA", "Functions"):
        yield f"{peer}, best target", best_target(rows, cell, peer)
    yield "Azure Monitor", rows.get(replace(cell, policy="AzureMonitor 0.875"))


def text_of(row: Row | None) -> str:
    return "" if row is None else f"{row.work:.2f}x {row.late:.1f} %"


def draw(rows: Mapping[Cell, Row]) -> str:
    parts, y = [], 20
    for title, base in BLOCKS.items():
        parts.append(f'<text class="title" x="4" y="{y}">{escape(title)}</text>')
        for column, world in enumerate(SLOW):
            x = LEFT + column * COLUMN
            parts.append(f'<text class="note" x="{x + 4}" y="{y}">{world}, {_seconds(world)}</text>')
            for number, (name, row) in enumerate(lines(rows, replace(base, world=world)), 1):
                top = y + number * LINE
                if not column:
                    parts.append(f'<text x="4" y="{top}">{escape(name)}</text>')
                parts.append(
                    f'<rect class="{_class(row)}" x="{x}" y="{top - 14}" width="{COLUMN - 3}" height="{LINE - 2}"/>'
                    f'<text x="{x + 4}" y="{top}">{text_of(row)}</text>'
                )
        y += (len(list(lines({}, base))) + 2) * LINE
    for note in NOTES:
        parts.append(f'<text class="note" x="4" y="{y}">{note}</text>')
        y += LINE
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + len(SLOW) * COLUMN} {y}">',
            STYLE,
            *parts,
            "</svg>\n",
        ]
    )


def _seconds(world: str) -> str:
    service_rate, concurrency = WORLDS[world]
    return f"{concurrency / service_rate:.3g} s"


def _class(row: Row | None) -> str:
    if row is None:
        return "none"
    return "kept" if row.late <= ALLOWED else "near" if row.late <= FEW else "late"


def table(rows: Mapping[Cell, Row]) -> str:
    """Markdown: what a user of each service gets, beside the best target of KEDA and Functions."""
    shown: list[tuple[str, list[Row | None]]] = []
    for limit, (service, look) in product((0, PLAN), SERVICES):
        own = [rows.get(Cell(world, sense=service, look=look, limit=limit)) for world in SLOW]
        plan = f", at most {limit} changes an hour" if limit else ""
        shown.append((f"{service}, every {look} s{plan}", own))
    for peer in ("KEDA", "Functions"):
        best = [best_target(rows, Cell(world), peer) for world in SLOW]
        shown.append((f"{peer}, best target of each column", best))
    replayed = {(row.traces, row.hours) for _, own in shown for row in own if row is not None}
    how = [
        f"{count} traces" + (f", the first {hours} hours of each" if hours else "")
        for count, hours in sorted(replayed)
    ]
    return "\n".join(
        [
            *_markdown("", shown, text_of),
            "",
            f"Replayed: {'; '.join(how)}.",
            "",
            *_markdown("changes an hour; stopped by scale-ins while processed", shown, changes_of),
            "",
        ]
    )


def changes_of(row: Row | None) -> str:
    return "" if row is None else f"{row.changes_per_hour:.0f}; {row.aborted:.2g} %"


def _markdown(
    title: str, shown: Sequence[tuple[str, Sequence[Row | None]]], text: Callable[[Row | None], str]
) -> list[str]:
    """A table with a column for each world."""
    head = " | ".join(f"{world}, {_seconds(world)}" for world in SLOW)
    lines = [f"| {name} | {' | '.join(map(text, own))} |" for name, own in shown]
    return [f"| {title} | {head} |", "|---" * (len(SLOW) + 1) + "|", *lines]


FRONT_WORLDS = {
    "10/16": "messages of 1.6 s, 16 at once",
    "0.5/16": "of 32 s, 16 at once",
    "(1/30)/1": "of 30 s, one at a time",
}


def front_table(rows: Mapping[Cell, Row]) -> str:
    """Markdown for the first page: what an App Service plan gets, in three worlds."""
    cells = [
        ("`service_level`, Event Hubs", Cell(sense="Event Hubs", limit=PLAN)),
        ("`service_level`, storage queues", Cell(sense="storage queue", limit=PLAN)),
        (
            "`service_level`, Service Bus, whose counts may be read once a minute",
            Cell(sense="Service Bus", look=60, limit=PLAN),
        ),
        (
            "`service_level` that knows the concurrency alone, every 15 s",
            Cell(sense="+ concurrency", limit=PLAN),
        ),
    ]
    shown = [(name, [rows.get(replace(cell, world=world)) for world in FRONT_WORLDS]) for name, cell in cells]
    for peer in ("KEDA", "Functions"):
        best = [best_target(rows, Cell(world), peer) for world in FRONT_WORLDS]
        shown.append((f"{peer}, the best of four targets in each column", best))
    azure = [rows.get(Cell(world, policy="AzureMonitor 0.875")) for world in FRONT_WORLDS]
    shown.append(
        (
            "Azure Monitor autoscale, out above 7/8 and in below 1/2 of what instances process at once",
            azure,
        )
    )
    lines = [
        f"| {name} | {' | '.join(text_of(row).replace('x ', ', ') for row in own)} |" for name, own in shown
    ]
    head = f"| | {' | '.join(FRONT_WORLDS.values())} |"
    return "\n".join([head, "|---" * (len(FRONT_WORLDS) + 1) + "|", *lines, ""])


def with_table(readme: str, text: str) -> str:
    """The README with the table between its marks."""
    before, _, rest = readme.partition(BEGIN)
    return before + BEGIN + "\n" + text + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    FILE.write_text(draw(read(RESULTS)), encoding="utf-8")
    for page, text in ((README, table(read(RESULTS))), (FRONT, front_table(read(RESULTS)))):
        page.write_text(with_table(page.read_text(encoding="utf-8"), text), encoding="utf-8")
