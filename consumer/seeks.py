"""Orders of operators for positions, kept with the position. Pure."""

from __future__ import annotations

from msgspec import Struct


class Seek(Struct, frozen=True):
    """An operator's order for a position: from after event `before` (None: there was none) to after `after`, -1 is the beginning.

    `at` is epoch seconds by the clock of the command.
    """

    by: str
    at: float
    before: int | None
    after: int


MOST_SEEKS = 3
"""Orders that are kept: metadata of a blob has 8 KB for all. Chosen."""
