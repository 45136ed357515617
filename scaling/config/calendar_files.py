"""Puts the events of iCalendar files into the rules `schedule` that name them. Pure: the caller reads the files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from scaling.schedules.icalendar import parse_calendar
from tidemark.foundation.settings_reader import Shared

ReadFile = Callable[[str], bytes]
"""The bytes of a file beside tidemark.toml. Raises OSError, and ValueError for one that is too large."""

_NAME = re.compile(r"[\w-][\w.-]*(?:/[\w-][\w.-]*)*\.ics")


def add_calendars(tree: Mapping[str, Any], shared: Shared, read: ReadFile | None) -> None:
    """Adds the option `files` to each table with periods of which `on` or `not_on` name files; notes what is wrong with these."""
    known: dict[str, tuple[Any, str]] = {}
    for table, periods, path in _periods_in(tree, ""):
        for index, period in enumerate(periods):
            for option in ("on", "not_on"):
                for name in _files_in(period, option):
                    files = table.setdefault("files", {})
                    if not isinstance(files, dict) or (name not in known and name in files):
                        continue  # noted where the rule is read; and a tree that was read before
                    if name not in known:
                        known[name] = _events_of(name, read)
                    files[name], problem = known[name]
                    if problem:
                        shared.problem(f"{path}.periods[{index}].{option}", problem)


def _periods_in(value: Any, path: str) -> Iterator[tuple[dict[str, Any], list[Any], str]]:
    """Each table with a list of periods, that list, and the table's path."""
    if isinstance(value, dict):
        if isinstance(periods := value.get("periods"), list):
            yield value, periods, path
        for key, inner in list(value.items()):
            yield from _periods_in(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _periods_in(inner, f"{path}[{index}]")


def _files_in(period: Any, option: str) -> list[str]:
    entries = period.get(option) if isinstance(period, dict) else None
    if not isinstance(entries, list):
        return []  # what is wrong with it is noted where the rule is read
    return [entry for entry in entries if isinstance(entry, str) and entry.endswith(".ics")]


def _events_of(name: str, read: ReadFile | None) -> tuple[Any, str]:
    """The events as plain data, and what is wrong with the file."""
    if not _NAME.fullmatch(name):
        return [], f"found '{name}'; accepted are names of files beside tidemark.toml or in a folder there"
    if read is None:
        return [], f"'{name}': files are not read here"
    try:
        return msgspec.to_builtins(parse_calendar(read(name))), ""
    except OSError as error:
        return [], f"'{name}' cannot be read: {error.strerror or type(error).__name__}"
    except ValueError as error:
        return [], f"'{name}', {error}"
