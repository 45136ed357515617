"""Tables of commands, on a terminal of any width: columns wrap between words and at the joints of names, numbers and times stay whole.
Where that does not fit, each row is a list of its cells. Nothing is cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

_PIECE = re.compile(
    r"""
    \d{4}-\d\d-\d\d(?:T[\d:.]+Z?)?                # a date, or a time of ISO 8601
    | \d\d:\d\d(?::\d\d)?(?:\.\d+)?Z?              # a time of day
    | [+-]?\d[\d,.:]*(?:\ ?%|\ (?:ms|s|min|h|d)\b)?(?![^\W_])  # a number with its unit
    | [^\W_]{1,16}[-_/.@:,=&?]*                   # a word, or what a name has between its joints
    | [-_/.@:,=&?]+
    | [^\s\w]
    """,
    re.VERBOSE,
)
"""What is not broken. Sixteen characters: nothing else in a row is longer, and an identifier in hexadecimal digits has no joints."""


class FittedTable(Table):
    """A table of rich with rich's own frame, whose columns get their widths by what must stay in one line."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = [
            [_text(console, cell) for cell in (column.header, *column.cells)] for column in self.columns
        ]
        widths = self._fitting(columns, options.max_width)
        if widths is None:
            yield from _as_lists(columns, options.max_width)
            return
        fitted = Table(title=self.title)
        for column, (header, *_), width in zip(self.columns, columns, widths, strict=True):
            fitted.add_column(_lines(header, width), justify=column.justify, width=width, no_wrap=True)
        for row in list(zip(*columns, strict=True))[1:]:
            fitted.add_row(*map(_lines, row, widths))
        yield fitted

    def _fitting(self, columns: Sequence[Sequence[Text]], width: int) -> list[int] | None:
        """The widest columns give up width first, none more than its longest piece. None if there is too little room."""
        least = [
            max(column.min_width or 1, *(cell_len(piece) for cell in cells for piece in _pieces(cell.plain)))
            for column, cells in zip(self.columns, columns, strict=True)
        ]
        lines = [[line for cell in cells for line in cell.plain.split("\n")] for cells in columns]
        widths = [max(most, *map(cell_len, texts)) for most, texts in zip(least, lines, strict=True)]
        while sum(widths) > width - len(widths) * _FRAME - 1:
            spare = [place for place, held in enumerate(widths) if held > least[place]]
            if not spare:
                return None
            widths[max(spare, key=widths.__getitem__)] -= 1
        return widths


_FRAME = 3  # a border and two blanks beside each column


def _text(console: Console, cell: Any) -> Text:
    return console.render_str(cell) if isinstance(cell, str) else Text(str(cell))


def _pieces(text: str) -> Iterable[str]:
    return (found[0] for found in _PIECE.finditer(text))


def _lines(text: Text, width: int) -> Text:
    """The text in lines of at most `width`, where no piece is longer."""
    plain, begin, cuts = text.plain, 0, []
    for found in _PIECE.finditer(plain):
        start = found.start()
        if start > begin and cell_len(plain[begin : found.end()].rstrip()) > width:
            cuts.append(start)
            begin = start
        elif "\n" in plain[begin:start]:
            begin = plain.rindex("\n", begin, start) + 1
    parts = list(text.divide(cuts))
    for part in parts:
        part.rstrip()
    return Text("\n").join(parts)


def _as_lists(columns: Sequence[Sequence[Text]], width: int) -> Iterable[Text]:
    """A row's first cell, and below it the others with what they are."""
    first, *others = columns
    for place, cell in enumerate(first[1:], 1):
        yield _lines(Text.assemble(first[0], " ", cell), width)
        named = [Text.assemble(cells[0], " ", cells[place]) for cells in others if cells[place].plain]
        lines = _lines(Text(" · ").join(named), max(1, width - 2)).split("\n")
        yield Text("\n").join(Text("  ") + line for line in lines)
