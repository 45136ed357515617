"""Converts the batch that the Event Hubs trigger passes to a function into events of the consumer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from azure.functions import EventHubEvent

from consumer.model import Event
from tidemark.foundation.errors import TidemarkError


def from_trigger(events: Sequence[Any]) -> tuple[str, list[Event]]:
    """The partition's id and its events in order.

    The metadata of a batch is common to its events. Raises TidemarkError when the host did not pass the partition or
    the sequence number of an event: without them nothing can be settled.
    """
    if not events:
        raise TidemarkError("the trigger called with no events: started by hand? It works only from the hub")
    metadata: Mapping[str, Any] = events[0].metadata or {}
    partition = _json(metadata, "PartitionContext", {}).get("PartitionId")
    if not isinstance(partition, str) or not partition:
        raise TidemarkError(
            f"the trigger's metadata has no PartitionContext.PartitionId; found {', '.join(sorted(metadata)) or 'none'}"
        )
    properties = _dictionaries(metadata, "PropertiesArray", len(events))
    system = _dictionaries(metadata, "SystemPropertiesArray", len(events))
    return partition, [
        _event(partition, index, *parts)
        for index, parts in enumerate(zip(events, properties, system, strict=True))
    ]


def _event(
    partition: str, index: int, event: EventHubEvent, properties: Mapping[str, Any], system: Mapping[str, Any]
) -> Event:
    if event.sequence_number is None:
        raise TidemarkError(f"event {index} of partition {partition} has no sequence number in its metadata")
    return Event(
        partition,
        event.sequence_number,
        _offset(event, system),
        _epoch_seconds(event.enqueued_time),
        event.get_body(),
        event.partition_key or None,
        properties,
        content_type=_text(system, "content-type"),
        content_encoding=_text(system, "content-encoding"),
    )


def _text(system: Mapping[str, Any], name: str) -> str | None:
    """A field of the AMQP properties section, which .NET's EventData.SystemProperties has under its AMQP name."""
    value = system.get(name)
    return value if isinstance(value, str) else None


def _offset(event: EventHubEvent, system: Mapping[str, Any]) -> str:
    """The offset as the hub has it, '' if it is unknown.

    Offsets of hubs with geo-replication are no numbers: the host passes -1, and the true offset as OffsetString.
    """
    text = system.get("OffsetString")
    if isinstance(text, str) and text:
        return text
    return "" if event.offset is None or str(event.offset) == "-1" else str(event.offset)


def _epoch_seconds(time: datetime | None) -> float:
    """Epoch seconds. The host passes times in UTC without a time zone."""
    if time is None:
        return 0.0
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _dictionaries(metadata: Mapping[str, Any], name: str, count: int) -> list[Mapping[str, Any]]:
    """One per event, empty where the host sent none."""
    entries = _json(metadata, name, [])
    padded = [*entries[:count], *([{}] * (count - len(entries)))]
    return [entry if isinstance(entry, dict) else {} for entry in padded]


def _json(metadata: Mapping[str, Any], name: str, default: Any) -> Any:
    """The host passes structured metadata as JSON text; some versions of the library decode it."""
    value = metadata.get(name, default)
    try:
        value = json.loads(value) if isinstance(value, str | bytes) else value
    except (ValueError, RecursionError):
        return default
    return value if isinstance(value, type(default)) else default
