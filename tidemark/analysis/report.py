"""A job's report: one self-contained HTML page, its figures inline and beside it as PNG.

The page needs no network, follows the reader's light or dark setting, fits a phone and prints well.
"""

from __future__ import annotations

import html
import re
import shlex
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import floor, isclose, isfinite, log10
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark.foundation.sanitize import without_secrets

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tidemark.foundation.log.terminal import Console


def escape(text: str) -> str:
    """`text` as a part of the page, without secrets: a path or an option may hold one."""
    return html.escape(without_secrets(text))


class Report:
    """Collects a page from top to bottom; every text is escaped. `write` may be called once or often."""

    def __init__(self, title: str, subtitle: str = "") -> None:
        self.title = title
        self.subtitle = subtitle
        self._parts: list[str] = []
        self._pictures: dict[str, bytes] = {}
        self.next_steps: list[tuple[str, str]] = []
        """Why, and the command: at the end of the page, and printed on the terminal."""

    def heading(self, text: str) -> None:
        self._parts.append(f'<h2 id="{slug(text)}">{escape(text)}</h2>')

    def text(self, text: str) -> None:
        """One or more paragraphs, parted by empty lines. No markup is read."""
        self._parts += [f"<p>{escape(part.strip())}</p>" for part in text.split("\n\n") if part.strip()]

    def facts(self, facts: Mapping[str, str]) -> None:
        """A row of big numbers: name to value."""
        cells = "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items()
        )
        self._parts.append(f'<dl class="facts">{cells}</dl>')

    def table(self, headers: Sequence[str], rows: Iterable[Sequence[object]], *, caption: str = "") -> None:
        """Numbers stand to the right, those of a column with as many decimals. None is shown as a dash: not known."""
        lines = [tuple(row) for row in rows]
        columns = list(zip(*lines, strict=True)) or [()] * len(headers)
        head = "".join(_head(header, column) for header, column in zip(headers, columns, strict=True))
        places = [_places(column) for column in columns]
        body = "".join(f"<tr>{''.join(map(_cell, line, places))}</tr>" for line in lines)
        title = f"<caption>{escape(caption)}</caption>" if caption else ""
        self._parts.append(
            f'<div class="wide"><table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        )

    def figure(self, figure: Figure, *, caption: str, name: str) -> None:
        """Takes a figure of `plots.new_figure` over and closes it. `name` is the PNG's, unique in the report."""
        from tidemark.analysis import plots  # noqa: PLC0415 - matplotlib takes a second, and text reports need none

        if name in self._pictures:
            raise ValueError(f"the report '{self.title}' already has a figure named '{name}'")
        wide, narrow, self._pictures[name] = plots.drawn(figure)
        self._parts.append(
            f'<figure role="img" aria-label="{escape(caption)}">{_inline(wide, name, plots.INK)}{_image(narrow, plots.INK)}'
            f"<figcaption>{escape(caption)}</figcaption></figure>"
        )

    def code(self, text: str, *, language: str = "", caption: str = "") -> None:
        title = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
        inner = text.strip("\n")
        mark = f' class="language-{escape(language)}"' if language else ""
        self._parts.append(f"<figure>{title}<pre><code{mark}>{escape(inner)}</code></pre></figure>")

    def next_step(self, why: str, *command: object) -> None:
        """What to run after this, by its words."""
        self.next_steps.append((why, shlex.join(map(str, command))))

    def write(self, folder: Path) -> Path:
        """Writes `<slug of the title>.html` and the PNGs into the folder, which is made; returns the page's path."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in self._pictures.items():
            (folder / f"{name}.png").write_bytes(data)
        page = folder / f"{slug(self.title)}.html"
        page.write_text(self.html(), encoding="utf-8")
        return page

    def html(self) -> str:
        subtitle = f'<p class="subtitle">{escape(self.subtitle)}</p>' if self.subtitle else ""
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta name="color-scheme" content="light dark">'
            f"<title>{escape(self.title)}</title><style>{STYLE}</style></head>\n<body><main>"
            f"<header><h1>{escape(self.title)}</h1>{subtitle}</header>\n"
            + "\n".join([*self._parts, *self._next()])
            + "\n</main></body></html>\n"
        )

    def _next(self) -> Iterator[str]:
        if self.next_steps:
            yield '<h2 id="next">Next</h2>'
        for why, command in self.next_steps:
            yield f"<figure><figcaption>{escape(why)}</figcaption><pre><code>{escape(command)}</code></pre></figure>"


def page_or_reason(
    make: Callable[[], Report], write: Callable[[Report], str], folder: str, console: Console
) -> str:
    """Makes the page, writes it, and prints what to run next; returns where it is. The tables in `folder` are finished by then,
    and no page ever costs a result: whatever fails here is reported in one line, and the answer is the folder.
    """
    try:
        report = make()
        page = write(report)
    # Of whatever kind: plots, fonts, file systems and queries have errors of their own.
    except Exception as error:
        reason = " ".join(str(error).split())[:500]
        console.print(
            f"there is no page of this run ({type(error).__name__}: {reason}); its tables in {folder} are complete",
            markup=False,
            soft_wrap=True,
        )
        return folder
    tell_next(report, console)
    return page


def write_page(make: Callable[[], Report], folder: Path, console: Console, label: str = "page") -> str:
    """As `page_or_reason`, into a folder of this machine; prints where the page is."""

    def write(report: Report) -> str:
        page = str(report.write(folder))
        console.print(f"{label}: {page}", markup=False, soft_wrap=True)
        return page

    return page_or_reason(make, write, str(folder), console)


def tell_next(report: Report, console: Console) -> None:
    """The next commands, a line each."""
    for why, command in report.next_steps:
        console.print(f"next: {command}  ({why})", markup=False, highlight=False, soft_wrap=True)


def slug(text: str) -> str:
    """A name for files and anchors: lower case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "report"


def _head(text: str, column: Sequence[object]) -> str:
    mark = ' class="number"' if any(_is_number(value) for value in column) else ""
    return f"<th{mark}>{escape(text)}</th>"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _places(column: Sequence[object]) -> int:
    """The decimals that give the column's largest number four significant digits; none where all are whole."""
    numbers = [float(value) for value in column if isinstance(value, int | float) and isfinite(value)]
    if all(value.is_integer() for value in numbers):
        return 0
    return max(3 - floor(log10(max(map(abs, numbers)))), 0)


def _cell(value: object, places: int) -> str:
    if value is None:
        return '<td class="unknown">–</td>'  # noqa: RUF001 - a dash for people
    if not isinstance(value, int | float) or isinstance(value, bool):
        text = str(value)
        return f"<td{'' if len(text) <= SHORT else LONG}>{escape(text)}</td>"
    aligned = f"{value:,.{places}f}"
    # Beside numbers a thousand times as large it keeps digits of its own.
    near = value and isclose(float(aligned.replace(",", "")), value, rel_tol=0.01)
    return f'<td class="number">{escape(aligned if near else number(value))}</td>'


SHORT, LONG = 20, ' class="long"'
"""Characters of a cell that stay on one line, a date or a name, and the mark of a cell with more."""


def number(value: float) -> str:
    """For people: whole numbers in full with thousands parted, others with four significant digits."""
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _inline(svg: str, name: str, ink: str) -> str:
    """The SVG without its XML prologue, in the page's text colour, its ids its own among the page's figures."""
    start = svg.index("<svg")
    drawn = svg[start:].replace(ink, "currentColor")
    prefix = slug(name)
    drawn = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', drawn)
    drawn = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', drawn)
    drawn = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", drawn)
    return drawn.strip()


def _image(svg: str, ink: str) -> str:
    """The SVG as an image of its own, for narrow screens: in it the page's text colour must be said again."""
    ground = "<style>svg{color:#1b2631}@media(prefers-color-scheme:dark){svg{color:#e4e9ee}}</style>"
    text = svg[svg.index("<svg") :].replace(ink, "currentColor").replace("</svg>", f"{ground}</svg>")
    data = b64encode(text.encode()).decode()
    return f'<img class="narrow" alt="" src="data:image/svg+xml;base64,{data}">'


STYLE = """
:root { color-scheme: light dark; --ink: #1b2631; --soft: #5b6875; --ground: #fff; --line: #d9dfe5; --shade: #f4f6f8;
  --mark: #0072b2; --edge: #aab4be; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e9ee; --soft: #9aa7b4; --ground: #12181e; --line: #2c3742; --shade: #1a222a; --mark: #56b4e9; --edge: #4d5c6a; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
header { border-bottom: 3px solid var(--mark); margin-bottom: 1.5rem; padding-bottom: .75rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0; }
h2 { font-size: 1.3rem; margin: 2.5rem 0 .75rem; }
p { max-width: 46rem; margin: .75rem 0; }
.subtitle { color: var(--soft); margin: .35rem 0 0; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr)); gap: .75rem; margin: 1.25rem 0; }
.facts div { background: var(--shade); border-radius: .5rem; padding: .75rem .8rem; }
dt { color: var(--soft); font-size: .85rem; }
dd { font-size: 1.25rem; font-weight: 650; font-variant-numeric: tabular-nums; margin: 0; overflow-wrap: anywhere; }
/* A wide table takes the window to its right; what is still beside it has a shadow at that edge. */
.wide { margin: 1rem 0; min-width: 100%; width: max-content;
  max-width: min(100vw - 2.5rem, (100vw + 62rem) / 2 - 2.5rem); --under: var(--ground); }
.wide, pre { overflow-x: auto; background:
  linear-gradient(to right, var(--under) 40%, transparent) -2px -2px / calc(2rem + 2px) calc(100% + 4px) no-repeat local,
  linear-gradient(to left, var(--under) 40%, transparent) calc(100% + 2px) -2px / calc(2rem + 2px) calc(100% + 4px) no-repeat local,
  linear-gradient(to right, var(--edge), transparent) 0 0 / .8rem 100% no-repeat scroll,
  linear-gradient(to left, var(--edge), transparent) 100% 0 / .8rem 100% no-repeat scroll, var(--under); }
table { border-collapse: collapse; font-size: .92rem; min-width: 50%; }
caption { caption-side: top; color: var(--soft); max-width: calc(100vw - 2.5rem); padding: 0 0 .4rem; text-align: left; }
th, td { border-bottom: 1px solid var(--line); padding: .35rem .9rem .35rem 0; text-align: left; vertical-align: top; }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
th.number { text-align: right; }
td.number { font-variant-numeric: tabular-nums; text-align: right; white-space: nowrap; }
td { white-space: nowrap; } td.long { white-space: normal; }
td.unknown { color: var(--soft); text-align: right; }
figure { margin: 1.25rem 0; }
figure svg { display: block; height: auto; max-width: 100%; color: var(--ink); }
figure .narrow { display: none; width: 100%; }
@media screen and (max-width: 40rem) { figure[role] svg { display: none; } figure .narrow { display: block; } }
figcaption { color: var(--soft); font-size: .9rem; margin: .4rem 0; max-width: 46rem; }
pre { border-radius: .5rem; font-size: .88rem; line-height: 1.45; margin: 0; padding: .9rem 1rem; --under: var(--shade); }
@media print {
  :root { --ink: #000; --soft: #444; --ground: #fff; --line: #bbb; --shade: #f4f4f4; }
  main { max-width: none; padding: 0; } figure, tr, .facts { break-inside: avoid; } h2 { break-after: avoid; }
  pre { white-space: pre-wrap; } .wide { width: auto; max-width: none; }
}
"""
