"""What the options of all steps share: their types, how a wrong one is reported, and changes at paths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from consumer.mapping.paths import Path
from consumer.mapping.steps.paths import places, read_path, read_single_path
from consumer.model import Event
from tidemark.foundation.errors import SettingsError

Apply = Callable[[Any, Event], Any]
Settings = Mapping[str, str]

Name = Annotated[str, Meta(min_length=1)]
Paths = Annotated[tuple[Name, ...], Meta(min_length=1)]


class OptionError(Exception):
    """A wrong option of a step: its name, and what was found and is accepted."""

    def __init__(self, option: str, text: str) -> None:
        super().__init__(f"{option}: {text}")
        self.option, self.text = option, text


class Options(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of one step."""


def read_all(option: str, read: Callable[[Any], Any], values: Iterable[Any]) -> list[Any]:
    try:
        return [read(value) for value in values]
    except (ValueError, SettingsError) as error:
        raise OptionError(option, str(error)) from None


def read_paths(option: str, texts: Iterable[str]) -> list[Path]:
    """Paths of one value each."""
    return read_all(option, read_single_path, texts)


def read_wide_paths(option: str, texts: Iterable[str]) -> list[Path]:
    """Paths that may have * for all elements of a list."""
    return read_all(option, read_path, texts)


def change_at(paths: Iterable[Path], change: Callable[[Any, str], Any]) -> Apply:
    """Changes the values at paths where they are; null and what is missing stays."""

    def apply(document: Any, _event: Event) -> Any:
        for path in paths:
            for holder, key, where in places(document, path):
                if holder[key] is not None:
                    holder[key] = change(holder[key], where)
        return document

    return apply
