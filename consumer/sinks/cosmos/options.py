"""The options of a sink to Cosmos DB."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from consumer.mapping.documents import MappingOptions
from consumer.mapping.operations import write_options
from consumer.options import WritingTexts
from consumer.sinks.cosmos.bulk import CosmosBulkSink
from consumer.sinks.types import SinkContext, SinkType


class CosmosOptions(WritingTexts, frozen=True, kw_only=True):
    """The container that gets the documents."""

    database: str
    container: str
    connection: str = "CosmosConnection"
    """The name of the setting with the connection string, or of the identity settings."""
    id: str = "field:id"
    """`field:<path>`, or `position`: ids made of hub, partition and sequence number."""
    throughput_bucket: Annotated[int, Meta(ge=0, le=5)] = 0
    """The throughput bucket of the requests; 0 is none."""
    priority: Literal["", "high", "low"] = ""
    """The priority of the requests, where the account has priorities."""
    meta: bool = False
    """Whether each document gets `_tm` with its event's partition, sequence number and enqueued time."""

    def __post_init__(self) -> None:
        write_options(self)


def mapping_options(options: CosmosOptions, context: SinkContext) -> MappingOptions:
    """Raises SettingsError for options that mean nothing."""
    writing = write_options(options, context.stream.topic)
    return MappingOptions(context.hub, options.id, options.meta, writing)


def request_headers(throughput_bucket: int, priority: str) -> dict[str, str]:
    """The headers of every request by which the service distinguishes clients of a container."""
    headers = {
        "x-ms-cosmos-throughput-bucket": str(throughput_bucket or ""),
        "x-ms-cosmos-priority-level": priority.capitalize(),
    }
    return {name: value for name, value in headers.items() if value}


def _build(options: CosmosOptions, context: SinkContext) -> CosmosBulkSink:
    return CosmosBulkSink(
        context.settings,
        database=options.database,
        container=options.container,
        mapping=mapping_options(options, context),
        connection=options.connection,
        headers=request_headers(options.throughput_bucket, options.priority),
    )


COSMOS = SinkType("cosmos", CosmosOptions, _build)
