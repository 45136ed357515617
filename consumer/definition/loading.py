"""Loads what a consumer does: from the file that CONSUMER_FILE names, or else from the app settings alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import structs

from consumer.config import FILE, read_config
from consumer.definition.model import Definition, HubDefinition
from consumer.definition.reading import TryOut, read_definition
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.pacing.rate_limiter import divided
from tidemark.foundation.settings_reader import ConfigError
from tidemark.foundation.wording import file_problem


def load_definition(settings: Mapping[str, str], try_out: TryOut | None = None) -> Definition:
    """Raises SettingsError, which names everything that is wrong. `try_out` as of `read_definition`, of a file alone."""
    name = settings.get(FILE, "").strip()
    if not name:
        config = read_config(settings)
        hub = HubDefinition(structs.replace(config, doubts=()), settings)
        return Definition((hub,), doubts=config.doubts)
    try:
        text = Path(name).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise SettingsError(f"{FILE} is '{name}': the file cannot be read: {file_problem(error)}") from None
    try:
        return read_definition(text, settings, name=Path(name).name, try_out=try_out)
    except ConfigError as error:
        raise SettingsError(str(error)) from error


def only_hub(definition: Definition, name: str) -> Definition:
    """The definition with one of its hubs, and that one's part of the rate of all. Raises SettingsError."""
    hub = find_hub(definition, name)
    rate = divided(definition.rate, definition.hubs.index(hub), len(definition.hubs))
    return structs.replace(definition, hubs=(hub,), rate=rate)


def find_hub(definition: Definition, name: str | None, *, asked_by: str = "--hub") -> HubDefinition:
    """The hub of a name, or the only one. Raises SettingsError."""
    names = [hub.name for hub in definition.hubs]
    if name is None:
        if len(names) == 1:
            return definition.hubs[0]
        raise SettingsError(f"{asked_by}: is missing; the file has the hubs {', '.join(names)}")
    if name not in names:
        raise SettingsError(f"{asked_by}: found '{name}'; accepted: {', '.join(names)}")
    return definition.hubs[names.index(name)]
