"""What is made of one setting of another autoscaler: a target, and notes of all that is not the same. Written as TOML. Pure."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from scaling.config.toml import bare_key, distinct_keys, table_lines
from scaling.resource_id import ResourceId
from scaling.rules.expression import CAPACITY_NAMES
from tidemark.foundation.durations import seconds_text
from tidemark.foundation.sanitize import one_line, shorten, without_secrets
from tidemark.foundation.wording import count_text

MAX_NOTE = 500
"""Characters of a note: it is one line of the file, and of the screen."""

SCALERS = {
    "microsoft.web/serverfarms": {"scaler": "app_service_plan"},
    "microsoft.compute/virtualmachinescalesets": {
        "scaler": "azure_resource",
        "kind": "virtual_machine_scale_set",
    },
    "microsoft.app/containerapps": {"scaler": "azure_resource", "kind": "container_app_minimum"},
}
"""How a resource of a type is scaled."""

THIS_TARGET = "{this target}"
"""Stands in a note for the name of the target, which is known once all targets are."""

AT_ZERO = frozenset({"virtual_machine_scale_set", "container_app_minimum"})
"""Kinds that can be zero."""


@dataclass(slots=True)
class Imported:
    """One target. `settings` are the app settings that it names, with their values or what these are."""

    name: str
    source: str
    table: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    rules: list[dict[str, Any]] = field(default_factory=list)
    webhooks: dict[str, dict[str, Any]] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    meant: dict[str, str] = field(default_factory=dict, repr=False)
    """What each app setting stands for, of all targets of a run: two that stand for different things have two names. Never written."""
    authentication: str = ""
    """The TriggerAuthentication of the trigger that is read."""

    @property
    def resource(self) -> str:
        """The id of what is scaled, the same however it is written; empty for advice."""
        resource_id = self.table.get("resource_id", "")
        return str(ResourceId.parse(resource_id)).casefold() if resource_id else ""

    def note(self, what: str, why: str) -> None:
        """Notes something that is not carried over, or not as it was: why, and what to do."""
        text = shorten(without_secrets(one_line(f"{what}: {why}")), MAX_NOTE)
        if text not in self.notes:
            self.notes.append(text)

    def scaled_by(self, resource_id: str, why: str) -> None:
        """Sets the scaler by the type of a resource; without a type that is known, advice for somebody else."""
        try:
            scaler = SCALERS.get(ResourceId.parse(resource_id).type.casefold())
        except ValueError:
            scaler = None
        if scaler is not None:
            self.table |= {**scaler, "resource_id": resource_id}
            return
        self.table["scaler"] = "advice"
        self.note("what is scaled", why)

    def setting(self, name: str, stands_for: str, value: str, *, suffix: str = "") -> str:
        """The name of an app setting that stands for this, without its suffix; numbered where the name stands for something else."""
        for count in range(1, len(self.meant) + 2):
            numbered = name if count == 1 else f"{name}{count}"
            if self.meant.setdefault(f"{numbered}{suffix}", stands_for) == stands_for:
                break
        self.settings[f"{numbered}{suffix}"] = value
        return numbered

    def metric(self, name: str, options: dict[str, Any]) -> str:
        """Adds a metric, or finds the same one; returns its name."""
        base = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()).strip("_")
        base = base if base and not base[0].isdigit() else f"metric_{base}".strip("_")
        base = f"{base}_metric" if base in _TAKEN or keyword.iskeyword(base) else base[:60]
        for count in range(1, len(self.metrics) + 2):
            name = base if count == 1 else f"{base}_{count}"
            if self.metrics.setdefault(name, options) == options:
                break
        return name

    @property
    def whole(self) -> dict[str, Any]:
        """The target's table."""
        metrics = {"metrics": self.metrics} if self.metrics else {}
        return {**self.table, **metrics, "rules": self.rules}


_TAKEN = frozenset({*CAPACITY_NAMES, "abs", "ceil", "default", "floor", "known", "max", "min", "round"})
"""Names that mean something else in an expression."""


class Written(Struct, frozen=True):
    """`text` is the file, `settings` the app settings that it names, `notes` by target what is not as it was."""

    text: str
    settings: dict[str, str]
    notes: dict[str, list[str]]


def written(targets: Sequence[Imported], source: str) -> Written:
    """The file with all targets."""
    names = _names(targets)
    webhooks: dict[str, Any] = {}
    settings: dict[str, str] = {}
    for name, imported in zip(names, targets, strict=True):
        imported.notes = [note.replace(THIS_TARGET, name) for note in imported.notes]
        for key, hook in imported.webhooks.items():  # two settings may have one name
            webhooks[key if key not in webhooks else f"{key}-{len(webhooks) + 1}"] = {
                **hook,
                "targets": [name],
            }
        settings |= imported.settings
    lines = list(_head(targets, source, settings))
    if webhooks:
        lines += ["", *table_lines("notify", {"webhooks": webhooks})]
    for name, imported in zip(names, targets, strict=True):
        lines += ["", f"# {shorten(one_line(imported.source), 200)}"]
        lines += [f"# Not as it was: {note}" for note in imported.notes]
        lines += table_lines(f"targets.{bare_key(name)}", imported.whole)
    text = "\n".join(lines) + "\n"
    notes = {name: imported.notes for name, imported in zip(names, targets, strict=True)}
    return Written(text, settings, notes)


def _head(targets: Sequence[Imported], source: str, settings: Mapping[str, str]) -> Iterator[str]:
    yield f"# Written by `tidemark import` from {one_line(source)}: {count_text(len(targets), 'target')}."
    yield "# Read each line that says `Not as it was`. Every setting is explained in docs/policies.md."
    if settings:
        yield "#"
        yield "# App settings that it needs besides those of the app:"
        yield from (f"#   {name} = {one_line(value)}" for name, value in settings.items())
    yield "version = 1"


def _names(targets: Iterable[Imported]) -> list[str]:
    """A name of its own for each target."""
    names = [
        re.sub(r"[^\w.-]+", "-", imported.name, flags=re.ASCII)[:180].strip("-.") for imported in targets
    ]
    return distinct_keys(name or "target" for name in names)


def setting_name(*parts: str) -> str:
    """The name of an app setting, made of words."""
    words = [word for part in parts for word in re.split(r"[^A-Za-z0-9]+", part) if word]
    name = "".join(word[:1].upper() + word[1:] for word in words)[:80]
    return name if name[:1].isalpha() else f"C{name}"


def span_text(seconds: float) -> str:
    """A duration as tidemark.toml has it."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return seconds_text(seconds)


def number(value: float) -> int | float:
    """A whole number without a point."""
    return int(value) if value == int(value) else value
