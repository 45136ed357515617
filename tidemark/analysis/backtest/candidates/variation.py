"""Which parts of a target's table a grid varies, all their combinations, and changed keys as TOML. Pure."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from msgspec import Struct

from scaling.config.toml import as_toml, bare_key

MAX_CANDIDATES = 10_000
"""Candidates of one grid. More than that is a search for chance, and no held-out part can tell them apart."""

SETTING = "COLLECT_SCHEDULE"
"""The only app setting a grid may vary: how often the collector ticks matters more than most parameters."""

_PART = re.compile(r"([^\[\]]+)(?:\[(\d+)\])?")


class GridError(ValueError):
    """A key of a grid that is not usable; the text says what was found and what is accepted."""


class Axis(Struct, frozen=True):
    """One key of a target's table (`rules.backlog.step_out`, `out.cooldown`) with the values to try."""

    path: tuple[str, ...]
    values: tuple[Any, ...]

    @property
    def key(self) -> str:
        return ".".join(self.path)


class Setting(Struct, frozen=True):
    """One value of one axis."""

    path: tuple[str, ...]
    value: Any


def read_axes(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[Axis]:
    """The axes of a `[vary]` table: its leaves are lists of values; quoted keys may have dots. Raises GridError."""
    axes: list[Axis] = []
    for key, value in tree.items():
        inner = (*path, *key.split("."))
        if isinstance(value, Mapping):
            axes += read_axes(value, inner)
        elif isinstance(value, list) and value:
            axes.append(Axis(inner, tuple(value)))
        else:
            raise GridError(f"{'.'.join(inner)}: found {value!r}; a list of values to try is accepted")
    return axes


def combinations(axes: Sequence[Axis]) -> Iterator[tuple[Setting, ...]]:
    """Every combination of one value per axis, the last axis fastest."""
    choices = [[Setting(axis.path, value) for value in axis.values] for axis in axes]
    yield from itertools.product(*choices)


def count(axes: Sequence[Axis]) -> int:
    return math.prod(len(axis.values) for axis in axes)


def applied(table: Mapping[str, Any], settings: Sequence[Setting]) -> dict[str, Any]:
    """The target's table with the settings in place. Raises GridError for a path that leads nowhere."""
    changed = deepcopy(dict(table))
    for setting in settings:
        holder: dict[str, Any] | list[Any] = changed
        for part in setting.path[:-1]:
            holder = _inner(holder, part, setting.path)
        if isinstance(holder, list):
            raise GridError(f"{'.'.join(setting.path)}: names no option of a rule; write rules.NAME.OPTION")
        holder[setting.path[-1]] = deepcopy(setting.value)
    return changed


def _inner(
    holder: dict[str, Any] | list[Any], part: str, path: tuple[str, ...]
) -> dict[str, Any] | list[Any]:
    """One step down: into a table, into an entry of a list by `[index]`, into the rule of that name or type."""
    key = ".".join(path)
    if isinstance(holder, list):
        return _named(holder, part, key)
    match = _PART.fullmatch(part)
    name, index = (match.group(1), match.group(2)) if match else (part, None)
    inner = holder.setdefault(name, {})
    if isinstance(inner, list) and index is not None:
        if int(index) >= len(inner):
            raise GridError(f"{key}: there is no {name}[{index}]; the target has {len(inner)} {name}")
        inner = inner[int(index)]
    if not isinstance(inner, dict | list):
        raise GridError(f"{key}: {part} is {inner!r}, no table")
    return inner


def _named(entries: Sequence[Any], wanted: str, key: str) -> dict[str, Any]:
    tables = [entry for entry in entries if isinstance(entry, dict)]
    matches = [entry for entry in tables if wanted in {entry.get("name"), entry.get("type")}]
    if len(matches) != 1:
        names = ", ".join(str(entry.get("name", entry.get("type"))) for entry in tables) or "none"
        raise GridError(f"{key}: {len(matches)} rules are called '{wanted}'; the target has {names}")
    return matches[0]


def label(settings: Sequence[Setting], axes: Sequence[Axis]) -> str:
    """A short name of a combination: the last words of its keys, longer where two would be alike."""
    return " ".join(f"{_short(s.path, axes)}={_value(s.value)}" for s in settings)


def _short(path: tuple[str, ...], axes: Sequence[Axis]) -> str:
    for length in range(1, len(path) + 1):
        tail = path[-length:]
        if sum(axis.path[-length:] == tail for axis in axes) == 1:
            return ".".join(tail)
    return ".".join(path)


def _value(value: Any) -> str:
    text = str(value)
    return f'"{text}"' if " " in text else text


def changes_text(target: str, changes: Mapping[str, Any]) -> str:
    """The changes of a candidate below a comment that names the target's table; one line per key."""
    lines = [f"# in [targets.{bare_key(target)}]"]
    lines += [f"{key} = {as_toml(value)}" for key, value in changes.items()]
    return "\n".join(lines)
