"""Where a backfill writes: what the consumer's settings say, so that the same events give the same documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import structs

from consumer.config import ConsumerConfig
from consumer.model import Batch, DeadLetter, Outcome, WriteResult
from consumer.ports import CheckpointStore, DeadLetterBox
from consumer.running.assembly import Parts, sink_table
from consumer.sinks.cosmos.bulk import CosmosBulkSink, WriteMode
from consumer.sinks.cosmos.client import CosmosContainer
from consumer.sinks.cosmos.options import CosmosOptions, mapping_options, request_headers
from consumer.sinks.cosmos.steps import EXISTS
from consumer.sinks.types import SinkContext
from consumer.versions import SUPERSEDED
from spark_jobs.platform.source_options import consumer_on_cosmos
from tidemark.analysis.errors import InputError, job_errors
from tidemark.foundation.azure.cosmos import cosmos_endpoint


def read_target(settings: Mapping[str, str], mode: WriteMode = "upsert") -> ConsumerConfig:
    """The consumer that the settings describe. Raises InputError when a backfill cannot write for it."""
    config = consumer_on_cosmos(settings, "a backfill writes to")
    with job_errors():
        Parts(config, settings)
        open_sink(config, settings, mode)  # nothing is connected yet
    if config.dry_run:
        raise InputError("COSMOS_WRITE is false: nothing would be written; a backfill needs it unset or true")
    return config


async def container_id(config: ConsumerConfig, settings: Mapping[str, str]) -> str:
    """Of the container that is written to: another one for another account, or after it was created anew.

    Raises InputError where there is no such container, JobError when the account does not answer.
    """
    container = CosmosContainer(
        settings, config.cosmos_connection, config.cosmos_database, config.cosmos_container
    )
    try:
        with job_errors():
            definition = await container.open()
    finally:
        await container.aclose()
    return f"{cosmos_endpoint(settings, config.cosmos_connection).url} {definition.rid}"


class BackfillSink(CosmosBulkSink):
    """The consumer's sink; counts the documents that mode create, or the version guard, left as they were."""

    existed = 0

    async def write(self, batch: Batch, *, deadline: float) -> Sequence[WriteResult]:
        results = await super().write(batch, deadline=deadline)
        self.existed += sum(
            result.outcome is Outcome.WRITTEN and result.reason in {EXISTS, SUPERSEDED} for result in results
        )
        return results


class CountedDeadLetters(DeadLetterBox):
    """The consumer's own dead letters, so that an event that both reject is one dead letter; counts those stored, by reason."""

    def __init__(self, dead_letters: DeadLetterBox) -> None:
        """Takes it over and closes it."""
        self._dead_letters = dead_letters
        self.reasons: Counter[str] = Counter()

    async def open(self) -> None:
        await self._dead_letters.open()

    async def put(self, letters: Sequence[DeadLetter], *, deadline: float) -> None:
        await self._dead_letters.put(letters, deadline=deadline)
        self.reasons.update(dead_letter.rejection.reason for dead_letter in letters)

    async def aclose(self) -> None:
        await self._dead_letters.aclose()


def open_sink(config: ConsumerConfig, settings: Mapping[str, str], mode: WriteMode) -> BackfillSink:
    """As the consumer's own, version guard included, in the mode asked for."""
    options = CosmosOptions(**sink_table(config))
    context = SinkContext(settings, config.hub, Parts(config, settings).stream, config.sink)
    return BackfillSink(
        settings,
        database=options.database,
        container=options.container,
        mapping=mapping_options(options, context),
        connection=options.connection,
        mode=mode,
        headers=request_headers(options.throughput_bucket, options.priority or "low"),
    )


def open_checkpoints(config: ConsumerConfig, settings: Mapping[str, str], name: str) -> CheckpointStore:
    """The checkpoints of a backfill, kept where the consumer keeps its own, under another consumer group."""
    group = f"{config.consumer_group}~backfill~{name}"
    return Parts(structs.replace(config, consumer_group=group), settings).checkpoints()
