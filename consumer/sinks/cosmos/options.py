"""The options of a sink to Cosmos DB."""

from __future__ import annotations

from msgspec import Struct

from consumer.mapping.documents import MappingOptions
from consumer.mapping.transforms import load_transform
from consumer.sinks.cosmos.bulk import CosmosBulkSink
from consumer.sinks.types import SinkContext, SinkType


class CosmosOptions(Struct, frozen=True):
    """The container that gets the documents."""

    database: str
    container: str
    connection: str = "CosmosConnection"
    """The name of the setting with the connection string, or of the identity settings."""
    id: str = "field:id"
    """`field:<path>`, or `position`: ids made of hub, partition and sequence number."""
    meta: bool = False
    """Whether each document gets `_tm` with its event's partition, sequence number and enqueued time."""
    transform: str = ""
    """`module:function` of the user's own code."""


def _build(options: CosmosOptions, context: SinkContext) -> CosmosBulkSink:
    transform = load_transform(options.transform) if options.transform else None
    return CosmosBulkSink(
        context.settings,
        database=options.database,
        container=options.container,
        mapping=MappingOptions(context.hub, options.id, transform, options.meta),
        connection=options.connection,
    )


COSMOS = SinkType("cosmos", CosmosOptions, _build)
