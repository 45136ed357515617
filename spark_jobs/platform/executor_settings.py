"""What of the consumer's settings goes to Spark's other processes. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from consumer.config import ConsumerConfig

_PREFIXES = ("EVENTHUB_", "COSMOS_", "CONSUMER_", "ALLOW_", "BLOB_", "TIDEMARK_")


def for_executors(settings: Mapping[str, str], config: ConsumerConfig) -> dict[str, str]:
    """The settings that a task needs, and no others: connections are secrets, and the environment has more of them."""
    connections = (config.hub_connection, config.cosmos_connection, config.storage_connection)
    return {
        name: value
        for name, value in settings.items()
        if name.upper().startswith(_PREFIXES)
        or any(
            name.lower() == each.lower() or name.lower().startswith((f"{each}__".lower(), f"{each}:".lower()))
            for each in connections
        )
    }
