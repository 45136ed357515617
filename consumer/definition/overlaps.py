"""Hubs and sinks of one file that do not go together. Pure but for reading connection strings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

from consumer.config import DeadLettersKind
from consumer.definition.model import HubDefinition
from consumer.sinks.types import find_sink_type
from tidemark.foundation.azure.connections import event_hubs_endpoint


def find_overlaps(hubs: Sequence[HubDefinition]) -> Iterator[tuple[str, str]]:
    """Where each problem is in the file, and its text."""
    for hub in hubs:
        if hub.sinks and len(_ordered(hub)) == len(hub.sinks):
            yield from ((f"hubs.{hub.name}.park", text) for text in hub.config.parking.problems(ordered=True))
    for earlier, hub in combinations(hubs, 2):
        one, other = earlier.config, hub.config
        if one.hub.lower() != other.hub.lower():
            continue
        same_group = one.consumer_group.lower() == other.consumer_group.lower()
        if _namespace(earlier) == _namespace(hub):
            if same_group:
                yield (
                    f"hubs.{hub.name}.consumer_group",
                    (
                        f"hubs.{earlier.name} reads hub '{other.hub}' in group '{other.consumer_group}' too; a group of its own is"
                        " accepted, as two consumers of one group take each other's partitions"
                    ),
                )
            continue
        namesake = f"hubs.{earlier.name} is a hub of the same name in another namespace, and"
        if shared := _shared_positions(earlier, hub):
            yield (
                f"hubs.{hub.name}",
                (
                    f"{namesake} both write to {shared} with ids by position, which would replace each other's documents; an id from"
                    " a field, or another container, is accepted"
                ),
            )
        if same_group and _letters(earlier) is not None and _letters(earlier) == _letters(hub):
            yield (
                f"hubs.{hub.name}.dead_letter_container",
                (
                    f"{namesake} both keep dead letters in this container of Cosmos DB, where they would replace each other;"
                    " another container, or blob, is accepted"
                ),
            )


def find_doubts(hub: HubDefinition) -> Iterator[str]:
    """Sinks of one hub that write to one container without the guard, and those that park nothing beside others, as sentences."""
    ordered = _ordered(hub)
    if hub.config.parking.reasons and 0 < len(ordered) < len(hub.sinks):
        yield (
            f"hubs.{hub.name}: {', '.join(ordered)} of these sinks park nothing, because they write in the order of each partition:"
            " what they reject is a dead letter at once"
        )
    for one, other in combinations(hub.sinks, 2):
        unguarded = [sink for sink in (one, other) if getattr(sink.options, "guard", "none") == "none"]
        if one.type == other.type == "cosmos" and unguarded and _place(one.options) == _place(other.options):
            yield (
                f"hubs.{hub.name}: sinks.{one.name} and sinks.{other.name} write to one container, each in an order of its own: an"
                " earlier event may replace what a later one wrote. Use one sink, or guard = 'number' in both"
            )


def _ordered(hub: HubDefinition) -> list[str]:
    return [f"sinks.{sink.name}" for sink in hub.sinks if find_sink_type(sink.type).ordered]


def _namespace(hub: HubDefinition) -> str:
    return event_hubs_endpoint(hub.settings, hub.config.hub_connection).address.lower()


def _shared_positions(*hubs: HubDefinition) -> str:
    """A container into which both hubs write with ids by position; '' if there is none."""
    one, other = (
        {
            _place(sink.options): sink.name
            for sink in hub.sinks
            if getattr(sink.options, "id", "") == "position"
        }
        for hub in hubs
    )
    return next((f"sinks.{other[place]}" for place in other if place in one), "")


def _place(options: Any) -> tuple[Any, ...]:
    return tuple(getattr(options, name, None) for name in ("connection", "database", "container"))


def _letters(hub: HubDefinition) -> tuple[str, ...] | None:
    config = hub.config
    if config.dead_letters is not DeadLettersKind.COSMOS:
        return None
    return config.cosmos_connection, config.cosmos_database, config.dead_letters_container
