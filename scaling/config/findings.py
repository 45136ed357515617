"""What is wrong with a target's policy, in a word, a sentence and its severity. Pure."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Severity(StrEnum):
    """`error`: the policy cannot work as written; `warning`: hardly meant so; `note`: good to know."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Finding(Struct, frozen=True):
    """One finding. `kind` names the check; `text` begins with the target's key path in tidemark.toml."""

    severity: Severity
    kind: str
    target: str
    text: str
