"""Two columns of the table of the consumer's settings in docs/settings.md: what is accepted, and the default.

People write the names and what a setting means. The two columns come from the code that reads the settings, where it knows more than
that a text is accepted, or has a default of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from consumer.config import SettingsReader, config_of
from devstack.documentation.schema_tables import default_text

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
HEAD = "| setting | accepted | default | meaning |\n|---|---|---|---|\n"

_T = TypeVar("_T")


class _Recorder(SettingsReader):
    """A reader without settings, which notes what is accepted for each, and its default."""

    def __init__(self) -> None:
        super().__init__({})
        self.found: dict[str, tuple[str, str]] = {}

    def value(self, name: str, default: _T, read: Callable[[str], _T], accepted: str) -> _T:
        del read
        words = accepted.removeprefix("a ").split("; ")[0]
        if isinstance(default, StrEnum):
            words = re.sub(r"\w+", r"`\g<0>`", words)
        is_time = words.startswith("seconds above 0")
        self.found[name] = ("duration" if is_time else words, default_text(default or None, seconds=is_time))
        if isinstance(default, bool):
            self.found[name] = (words, default_text(default))
        return default

    def of(self, name: str, default: _T, least: int = 1) -> _T:
        value = super().of(name, default, least)
        if name not in self.found:
            self.found[name] = (
                "comma-separated" if isinstance(default, tuple) else "",
                default_text(default),
            )
        return value


def with_columns(page: str) -> str:
    """The page with both columns as the code has them."""
    recorder = _Recorder()
    config_of(recorder)
    before, head, rest = page.partition(HEAD)
    table, gap, after = rest.partition("\n\n")
    lines = [_row(line, recorder.found) for line in table.splitlines()]
    return before + head + "\n".join(lines) + gap + after


def _row(line: str, found: dict[str, tuple[str, str]]) -> str:
    names, accepted, default, meaning = re.split(
        r"(?<!\\) \| ", line.removeprefix("| ").removesuffix(" |"), maxsplit=3
    )
    known = [found.get(name, ("", "")) for name in re.findall(r"`(\w+)`", names)]
    words = list(dict.fromkeys(each[0] for each in known))
    defaults = [each[1] for each in known]
    if all(words):
        accepted = "; ".join(words)
    if all(defaults):
        default = "; ".join([", ".join(dict.fromkeys(defaults)), *default.split("; ")[1:]])
    return f"| {names} | {accepted} | {default} | {meaning} |"


def settings_page() -> str:
    """docs/settings.md as it should be."""
    return with_columns(PAGE.read_text("utf-8"))
