"""Paths into documents, such as `/order/number` or `/"a/b"/c`. Pure."""

from __future__ import annotations

import re
from typing import Any

from msgspec import UNSET

from tidemark.foundation.errors import SettingsError

Path = tuple[str, ...]

_STEP = re.compile(r'/(?:"([^"]+)"|([^/"]+))')


def parse_path(text: str) -> Path:
    """The names in a path such as `/order/number` or `/"a/b"/c`. Raises SettingsError."""
    names = tuple(quoted or plain for quoted, plain in _STEP.findall(text))
    if not names or _STEP.sub("", text):
        raise SettingsError(f"'{text}' is not a path; expected names after slashes, such as /order/number")
    return names


def find(document: Any, path: Path) -> Any:
    """The value at a path; UNSET if there is none."""
    for name in path:
        if not isinstance(document, dict):
            return UNSET
        document = document.get(name, UNSET)
    return document


def put(document: dict[str, Any], path: Path, value: Any) -> bool:
    """Sets the value at a path. Objects on the way are created, or copied, because other writes of the event may have them too.
    False if something else than an object is on the way.
    """
    for name in path[:-1]:
        inner = document.get(name, {})
        if not isinstance(inner, dict):
            return False
        document[name] = document = dict(inner)
    document[path[-1]] = value
    return True
