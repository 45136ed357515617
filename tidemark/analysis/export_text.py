"""What Azure's exports and Spark's folders hold besides data. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import PurePath


def is_hidden(file: PurePath) -> bool:
    """Whether a file below an input is no part of it: Spark's writers use such names while they work."""
    return any(part.startswith((".", "_")) for part in file.parts)


def without_marks(lines: Iterable[str]) -> Iterator[str]:
    """The lines without byte order marks. Azure's cost exports are known to write one before the first row, too, where it would
    become a part of the first cell.
    """
    return (line.lstrip("\ufeff") for line in lines)
