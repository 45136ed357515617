"""Changed keys as TOML, for people to copy into tidemark.toml. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def as_toml(value: Any) -> str:
    """One value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {as_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    return str(value)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def changes_text(target: str, changes: Mapping[str, Any]) -> str:
    """The changes of a candidate below a comment that names the target's table; one line per key."""
    lines = [f"# in [targets.{_key(target)}]"]
    lines += [f"{key} = {as_toml(value)}" for key, value in changes.items()]
    return "\n".join(lines)
