"""Parses TOML, and refuses tables that are too deep for the code that walks them. Pure."""

from __future__ import annotations

import tomllib
from typing import Any

from tidemark.foundation.sanitize import describe_error

DEEPEST = 32
"""Levels of tables and arrays: our own files have six. A key of 5,000 dotted parts ends a walk in RecursionError."""


def parsed(text: str) -> dict[str, Any]:
    """Raises ValueError in words: for what is not TOML, numbers too large to be read, and tables that are too deep."""
    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a TOMLDecodeError is a ValueError, and not the only one
        raise ValueError(f"not valid TOML: {describe_error(error)}") from None
    level: list[Any] = [tree]
    for _ in range(DEEPEST):
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
        level = [inner for inner in level if isinstance(inner, dict | list)]
    if level:
        raise ValueError(f"tables and arrays are nested deeper than {DEEPEST} levels")
    return tree
