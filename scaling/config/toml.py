"""Parses TOML, and refuses tables that are too deep for the code that walks them; writes tables as TOML. Pure."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tidemark.foundation.sanitize import describe_error, sanitize_line

_BARE = re.compile(r"[A-Za-z0-9_-]+")

DEEPEST = 32
"""Levels of tables and arrays: our own files have six. A key of 5,000 dotted parts ends a walk in RecursionError."""


def parsed(text: str) -> dict[str, Any]:
    """Raises ValueError in words: for what is not TOML, numbers too large to be read, and tables that are too deep."""
    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a TOMLDecodeError is a ValueError, and not the only one
        is_toml = isinstance(
            error, tomllib.TOMLDecodeError
        )  # its text is a sentence without the name of its class
        raise ValueError(
            f"not valid TOML: {sanitize_line(str(error)) if is_toml else describe_error(error)}"
        ) from None
    level: list[Any] = [tree]
    for _ in range(DEEPEST):
        level = [inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)]
        level = [inner for inner in level if isinstance(inner, dict | list)]
    if level:
        raise ValueError(f"tables and arrays are nested deeper than {DEEPEST} levels")
    return tree


def as_toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{bare_key(k)} = {as_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    return str(value)


def bare_key(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def distinct_keys(names: Iterable[str]) -> list[str]:
    """The names as keys of one table: the second of the same letters, small or capital, ends in -2."""
    taken: Counter[str] = Counter()
    keys = []
    for name in names:
        taken[name.casefold()] += 1
        count = taken[name.casefold()]
        keys.append(name if count == 1 else f"{name}-{count}")
    return keys


def table_lines(path: str, table: Mapping[str, Any], opening: str = "[{}]") -> Iterator[str]:
    """Values first, then tables, as TOML asks for; a table of tables only has no line of its own."""
    plain = {key: value for key, value in table.items() if not _tables(value)}
    if plain or not table:
        yield opening.format(path)
        yield from (f"{bare_key(key)} = {as_toml(value)}" for key, value in plain.items())
    for key, value in table.items():
        below = f"{path}.{bare_key(key)}"
        if isinstance(value, Mapping):
            yield from (
                ("", *table_lines(below, value))
                if any(not _tables(v) for v in value.values())
                else table_lines(below, value)
            )
        elif _tables(value):
            for item in value:
                yield from ("", f"[[{below}]]", *(f"{bare_key(k)} = {_wide(v)}" for k, v in item.items()))


def _wide(value: Any) -> str:
    """A list of tables with a line for each."""
    if not isinstance(value, list) or not _tables(value):
        return as_toml(value)
    return "\n".join(("[", *(f"  {as_toml(item)}," for item in value), "]"))


def _tables(value: Any) -> bool:
    if isinstance(value, Mapping):
        return True
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)
