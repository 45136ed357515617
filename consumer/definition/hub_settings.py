"""The settings of docs/settings.md as keys of a hub's table: `start` is CONSUMER_START. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from datetime import date, datetime
from typing import Any, get_type_hints

from msgspec import Struct

from consumer.config import ConsumerConfig, Found, read_settings

_HUB_NAME = re.compile(r"[A-Za-z0-9._-]{1,256}")

CONNECTIONS = {"connection": "hub_connection", "storage_connection": "storage_connection"}
"""Keys that name a setting with a connection, and the field of ConsumerConfig that each of them is."""

_KEYS = {
    "EVENTHUB_NAME": "hub",
    "EVENTHUB_CONSUMERGROUP": "consumer_group",
    "EVENTHUB_RATELIMIT": "rate",
    "CONSUMER_FLEET_RATELIMIT": "fleet_rate",
    "ALLOW_BACKLOG_OF": "backlog_of",
    "ALLOW_BACKLOG_TO": "backlog_to",
    "BLOB_CONTAINER": "checkpoint_container",
}
_ELSEWHERE = {
    *("sink", "sql", "cosmos_database", "cosmos_container", "writing", "id_from", "meta"),  # a sink's table
    *("cosmos_bucket", "cosmos_priority"),  # there throughput_bucket, priority
    *("name", "shutdown", "http_port", "telemetry", "tracing"),  # the hub's header, or the process
    *("decoder", "decode"),  # the key `decode`
}
"""Fields of ConsumerConfig that are no settings of a hub."""


_UNMARKED = ("CONSUMER_START", "CONSUMER_GIVE_UP_AFTER")
"""Settings of a hub whose fields do not name them, because they are read in another way than by the type of the field."""


def keys_of_settings() -> dict[str, str]:
    """The names of settings by the keys that a hub's table may have."""
    return {key_of(name): name for name in [*_UNMARKED, *_names(ConsumerConfig, _ELSEWHERE)]}


def _names(kind: type[Struct], without: Collection[str] = ()) -> Iterator[str]:
    """The names of settings in the fields of a Struct, and of those within it."""
    for field, hint in get_type_hints(kind, include_extras=True).items():
        if field in without:
            continue
        if metadata := getattr(hint, "__metadata__", ()):
            yield metadata[0]
        elif isinstance(hint, type) and issubclass(hint, Struct):
            yield from _names(hint)


def key_of(name: str) -> str:
    return _KEYS.get(name, name.removeprefix("CONSUMER_").lower())


def as_setting(value: Any) -> str:
    """A value of the file as the text of a setting. Raises ValueError."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError(f"found {value!r}; a text, a number, true or false is accepted")


def hub_name(value: Any) -> str:
    """As `as_setting`. Raises ValueError for what no event hub can be called; for an empty name that of an app setting would hold."""
    name = as_setting(value)
    if not _HUB_NAME.fullmatch(name):
        raise ValueError(
            f"found {value!r}; the name of the event hub is accepted: letters, digits, '.', '-' and '_'"
        )
    return name


def read_hub_settings(
    values: Mapping[str, str], settings: Mapping[str, str]
) -> tuple[Found, list[tuple[str, str]], list[str]]:
    """What a hub's own settings say over the app settings; the problems of its own, by their keys; the other problems."""
    base = {name: value for name, value in settings.items() if name not in _OF_ONE_HUB}
    reading = read_settings({**base, **values})
    mine: list[tuple[str, str]] = []
    others: list[str] = []
    for problem in reading.problems:
        name, _, text = problem.partition(" ")
        name = name.removesuffix(":")
        if name in values:
            mine.append((key_of(name), text))
        else:
            others.append(problem)
    return reading, mine, others


_OF_ONE_HUB = {"EVENTHUB_NAME", "CONSUMER_SINK"}
"""App settings that would name the one hub and its sink; the file names them itself."""
