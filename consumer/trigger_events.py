"""From the batch that the Event Hubs trigger passes to a function to our events."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from consumer.errors import ConsumerError
from consumer.model import Event


class TriggerEvent(Protocol):
    """What is used of `azure.functions.EventHubEvent`."""

    sequence_number: int | None
    offset: Any
    enqueued_time: Any
    partition_key: str | None
    metadata: Mapping[str, Any] | None

    def get_body(self) -> bytes: ...


def from_trigger(events: Sequence[Any]) -> tuple[str, list[Event]]:
    """The partition's id and its events in order.

    The metadata of a batch is common to its events. Raises ConsumerError when the host did not say which partition it
    is, or an event's number: without them nothing can be settled.
    """
    if not events:
        raise ConsumerError("the trigger called with no events")
    metadata: Mapping[str, Any] = events[0].metadata or {}
    partition = _json(metadata, "PartitionContext", {}).get("PartitionId")
    if not isinstance(partition, str) or not partition:
        raise ConsumerError(
            f"the trigger's metadata has no PartitionContext.PartitionId; found {', '.join(sorted(metadata)) or 'none'}"
        )
    properties = _json(metadata, "PropertiesArray", [])
    return partition, [_event(partition, event, properties, index) for index, event in enumerate(events)]


def _event(partition: str, event: TriggerEvent, properties: Sequence[Any], index: int) -> Event:
    if event.sequence_number is None:
        raise ConsumerError(f"event {index} of partition {partition} has no sequence number in its metadata")
    own = properties[index] if index < len(properties) else None
    return Event(
        partition,
        event.sequence_number,
        "" if event.offset is None else str(event.offset),
        event.enqueued_time.timestamp() if event.enqueued_time is not None else 0.0,
        event.get_body(),
        event.partition_key or None,
        own if isinstance(own, dict) else {},
    )


def _json(metadata: Mapping[str, Any], name: str, default: Any) -> Any:
    """The host passes structured metadata as JSON text; some versions of the library decode it."""
    value = metadata.get(name, default)
    try:
        value = json.loads(value) if isinstance(value, str | bytes) else value
    except ValueError:
        return default
    return value if isinstance(value, type(default)) else default
