"""From the batch that the Event Hubs trigger passes to a function to our events."""

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

    The metadata of a batch is common to its events. Raises TidemarkError when the host did not say which partition it
    is, or an event's number: without them nothing can be settled.
    """
    if not events:
        raise TidemarkError("the trigger called with no events: started by hand? It works only from the hub")
    metadata: Mapping[str, Any] = events[0].metadata or {}
    partition = _json(metadata, "PartitionContext", {}).get("PartitionId")
    if not isinstance(partition, str) or not partition:
        raise TidemarkError(
            f"the trigger's metadata has no PartitionContext.PartitionId; found {', '.join(sorted(metadata)) or 'none'}"
        )
    own = _dictionaries(metadata, "PropertiesArray", len(events))
    system = _dictionaries(metadata, "SystemPropertiesArray", len(events))
    return partition, [
        _event(partition, index, *each) for index, each in enumerate(zip(events, own, system, strict=True))
    ]


def _event(
    partition: str, index: int, event: EventHubEvent, own: Mapping[str, Any], system: Mapping[str, Any]
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
        own,
    )


def _offset(event: EventHubEvent, system: Mapping[str, Any]) -> str:
    """As the hub has it, '' where that is not known: for an offset that is no number, as those of hubs with
    geo-replication, the host says -1, and the true one beside it.
    """
    text = system.get("OffsetString")
    if isinstance(text, str) and text:
        return text
    return "" if event.offset is None or str(event.offset) == "-1" else str(event.offset)


def _epoch_seconds(moment: datetime | None) -> float:
    """The host tells times in UTC and does not say so."""
    if moment is None:
        return 0.0
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _dictionaries(metadata: Mapping[str, Any], name: str, count: int) -> list[Mapping[str, Any]]:
    """One per event, empty where the host sent none."""
    found = _json(metadata, name, [])
    padded = [*found[:count], *([{}] * (count - len(found)))]
    return [each if isinstance(each, dict) else {} for each in padded]


def _json(metadata: Mapping[str, Any], name: str, default: Any) -> Any:
    """The host passes structured metadata as JSON text; some versions of the library decode it."""
    value = metadata.get(name, default)
    try:
        value = json.loads(value) if isinstance(value, str | bytes) else value
    except (ValueError, RecursionError):
        return default
    return value if isinstance(value, type(default)) else default
