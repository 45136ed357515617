"""Where a backfill writes: what the consumer's settings say, so that the same events give the same documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing

from msgspec import structs

from consumer.config import ConsumerConfig
from consumer.definition.model import HubDefinition
from consumer.model import Batch, DeadLetter, Outcome, WriteResult
from consumer.ports import CheckpointStore, DeadLetterBox
from consumer.running.assembly import Parts
from consumer.sinks.cosmos.bulk import CosmosBulkSink, WriteMode
from consumer.sinks.cosmos.client import CosmosContainer
from consumer.sinks.cosmos.options import mapping_options, request_headers
from consumer.sinks.cosmos.steps import EXISTS
from consumer.sinks.types import SinkContext
from consumer.versions import SUPERSEDED
from spark_jobs.platform.consumer_hub import cosmos_options, hub_on_cosmos
from tidemark.analysis.errors import InputError, job_errors
from tidemark.foundation.azure.cosmos import cosmos_endpoint


def read_target(
    settings: Mapping[str, str],
    mode: WriteMode = "upsert",
    *,
    hub: str | None = None,
    sink: str | None = None,
) -> HubDefinition:
    """The hub, with its one sink. Raises InputError when a backfill cannot write for it."""
    definition = hub_on_cosmos(settings, "a backfill writes to", hub=hub, sink=sink)
    with job_errors():
        open_sink(definition, mode)  # nothing is connected yet
    if mode == "upsert" and not cosmos_options(definition).patch_mark:
        raise InputError(
            "COSMOS_PATCH_MARK (patch_mark of a file's sink) is false: a backfill would apply patches again that documents have already;"
            " accepted: true"
        )
    if definition.config.dry_run:
        raise InputError("COSMOS_WRITE is false: nothing would be written; a backfill needs it unset or true")
    return definition


async def container_id(hub: HubDefinition) -> str:
    """Of the container that is written to: another one for another account, or after it was created anew.

    Raises InputError where there is no such container, JobError when the account does not answer.
    """
    target = cosmos_options(hub)
    container = CosmosContainer(hub.settings, target.connection, target.database, target.container)
    async with aclosing(container):
        with job_errors():
            definition = await container.open()
    return f"{cosmos_endpoint(hub.settings, target.connection).url} {definition.rid}"


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

    def __init__(self, dead_letters: DeadLetterBox, *, whole: bool = False) -> None:
        """Takes it over and closes it. `whole`: a letter is about its whole event, for what it replaces may name records of sinks
        that are not written here.
        """
        self._dead_letters = dead_letters
        self._whole = whole
        self.reasons: Counter[str] = Counter()

    async def open(self) -> None:
        await self._dead_letters.open()

    async def put(self, letters: Sequence[DeadLetter], *, deadline: float) -> None:
        if self._whole:
            letters = [structs.replace(letter, records=(), of=1) for letter in letters]
        await self._dead_letters.put(letters, deadline=deadline)
        self.reasons.update(dead_letter.rejection.reason for dead_letter in letters)

    async def aclose(self) -> None:
        await self._dead_letters.aclose()


def open_sink(hub: HubDefinition, mode: WriteMode) -> BackfillSink:
    """As the consumer's own, version guard included, in the mode asked for."""
    options, config = cosmos_options(hub), hub.config
    context = SinkContext(hub.settings, config.hub, Parts(config, hub.settings, hub).stream, config.sink)
    return BackfillSink(
        hub.settings,
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
