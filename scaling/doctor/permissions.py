"""What a caller may do, from the answer of Resource Manager about its permissions on one resource. Pure.

The answer has one entry for each role that is assigned at the resource or above it. An action is allowed where a role
names it in `actions` and not in its own `notActions`; names match whatever their case, and `*` stands for any text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any


def allows(entries: Sequence[Mapping[str, Any]], action: str) -> bool:
    """Whether any role gives the right to `action`, such as Microsoft.Web/serverfarms/write."""
    return any(
        _named(entry.get("actions"), action) and not _named(entry.get("notActions"), action)
        for entry in entries
    )


def _named(patterns: Any, action: str) -> bool:
    return any(_matches(str(pattern), action) for pattern in patterns or ())


def _matches(pattern: str, action: str) -> bool:
    expression = ".*".join(re.escape(piece) for piece in pattern.split("*"))
    return re.fullmatch(expression, action, re.IGNORECASE) is not None
