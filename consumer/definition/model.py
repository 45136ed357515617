"""What a consumer's file says, or else the app settings: hubs, and what becomes of their events. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from msgspec import Struct

from consumer.config import ConsumerConfig
from consumer.mapping.steps.routes import Mapper


def digest_of(*parts: Any) -> str:
    """Equal for equal parts of a file, in any process."""
    # json, because an app setting may hold bytes that are no UTF-8, which it escapes.
    return blake2b(json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


class SinkDefinition(Struct, frozen=True):
    """One sink of the file."""

    name: str
    type: str
    options: Any
    """A Struct, as the type of the sink reads it."""


class HubDefinition(Struct, frozen=True):
    """One hub with its own pipeline, leases, checkpoints and dead letters."""

    config: ConsumerConfig
    settings: Mapping[str, str]
    """The app settings, under the hub's own."""
    sinks: tuple[SinkDefinition, ...] = ()
    """Those that its routes name. None without a file: the settings name the sink."""
    mapper: Mapper | None = None
    """Steps and routes."""
    takes_tombstones: bool = False
    """Whether an event without a body goes to the routes, instead of being rejected."""

    @property
    def name(self) -> str:
        return self.config.name


class Definition(Struct, frozen=True):
    """All hubs of a consumer process."""

    hubs: tuple[HubDefinition, ...]
    rate: float | None = None
    """Records per second of all hubs together; None: each hub has its own."""
    is_file: bool = False
    doubts: tuple[str, ...] = ()
    """What looks like a mistake and is none for sure, as sentences."""
