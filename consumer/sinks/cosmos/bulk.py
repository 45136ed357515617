"""Writes documents to Cosmos DB in bulk: one request for up to 100 documents of a physical partition.

The lanes are the container's physical partitions (partition key range ids). If the SDK, the service or the container
(partition key hash version 1) does not support bulk, which is tested at open and every ten minutes, there is one lane, and
documents are sent in public transactional batches, one request per partition key value. With many values that is as slow
as single upserts.
"""

from __future__ import annotations

import asyncio
import logging
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import structs

from consumer.mapping.documents import DocumentMapper, MappingOptions
from consumer.mapping.operations import WriteOptions
from consumer.mapping.partition_hash import (
    EFFECTIVE_KEYS,
    UNCERTAIN,
    EffectiveKey,
    Scalar,
    partition_key_text,
)
from consumer.model import Batch, Dropped, Operation, Outcome, Record, Routes, Write, WriteResult
from consumer.sinks.cosmos.answers import NO_ANSWER, Answer, result_of_request
from consumer.sinks.cosmos.client import BulkUnavailableError, ContainerDefinition, CosmosContainer, KeyRange
from consumer.sinks.cosmos.requests import Sent, bulk_body, parts, sdk_operation
from consumer.sinks.cosmos.steps import Rules, Step, next_step, stamp_of
from consumer.sinks.cosmos.writing import RecordWriter
from consumer.versions import SUPERSEDED
from tidemark.foundation.azure.connections import Settings
from tidemark.foundation.errors import SettingsError, UnavailableError
from tidemark.foundation.sanitize import describe_error

WriteMode = Literal["upsert", "create"]

MODE_CREATE = "mode_create"
"""Why mode create drops a write that would change what exists."""

SINGLE_KEY_REQUESTS = 16  # concurrent requests without bulk

TRY_BULK_EVERY = 600.0
"""Seconds until bulk is tried again after the service or the SDK refused it."""

_ONE_LANE = Routes()
_READ = Step("Read")
_PROBE = "tidemark-probe"

_log = logging.getLogger(__name__)
_json_text = msgspec.json.Encoder().encode


class CosmosBulkSink:
    """The Cosmos DB sink; `connection` names the settings of the account.

    With mode `create` a document that exists already is left as it is and counts as written; a document that violates a
    unique key is rejected. `bulk=False` never sends the bulk request.
    """

    transactional = False

    def __init__(
        self,
        settings: Settings,
        *,
        database: str,
        container: str,
        mapping: MappingOptions,
        connection: str = "CosmosConnection",
        mode: WriteMode = "upsert",
        bulk: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._container = CosmosContainer(settings, connection, database, container, headers)
        if mode == "create":
            _check_creates(mapping.writing)
            writing = structs.replace(mapping.writing, operation=Operation.CREATE)
            mapping = structs.replace(mapping, writing=writing)
        self._mapping = mapping
        self._only_creates = mode == "create"
        self._bulk_wanted = bulk
        self._definition: ContainerDefinition | None = None
        self._effective_key: EffectiveKey | None = None
        self._mapper: DocumentMapper | None = None
        self._bulk_at = math.inf  # when bulk is tried again
        self._writer = RecordWriter(self._container)
        self.bulk = False
        """Whether documents are sent in bulk."""

    async def open(self) -> Routes:
        self._definition = definition = await self._container.open()
        try:
            self._effective_key = self._bulk_key(definition)
            self._mapper = self._mapper_of(definition)
            routes = await self._try_bulk(definition, self._effective_key) if self._effective_key else None
        except BaseException:
            await self.aclose()
            raise
        self.bulk = routes is not None
        return routes or _ONE_LANE

    def _mapper_of(self, definition: ContainerDefinition) -> DocumentMapper:
        writing, has_ttl = self._mapping.writing, definition.default_ttl is not None
        if writing.ttl and not has_ttl:
            raise SettingsError(
                f"{self._container!r} has no defaultTtl, so that the time to live '{writing.ttl}' would be plain data: set"
                " the container's defaultTtl to -1 (on, without a default), or leave COSMOS_TTL unset"
            )
        if writing.guarded and writing.tombstone and not has_ttl:
            _log.warning(
                "%r has no defaultTtl: the tombstones of deleted documents will stay for ever; set the container's"
                " defaultTtl to -1 (on, without a default)",
                self._container,
            )
        self._writer.rules = Rules(
            definition.unique_keys, writing.if_missing, writing.version_path, tombstones=writing.tombstone > 0
        )
        return DocumentMapper(self._mapping, definition.paths, self._effective_key, has_ttl=has_ttl)

    def prepare(self, write: Write) -> Record:
        if self._mapper is None:
            raise RuntimeError("the sink is not open")
        record = self._mapper.prepare(write)
        # A transform may ask for a delete or a patch, whatever the settings say.
        if self._only_creates and record.rejection is None and record.operation is not Operation.CREATE:
            return structs.replace(record, dropped=Dropped(MODE_CREATE))
        return record

    async def write(self, batch: Batch, *, deadline: float) -> Sequence[WriteResult]:
        results = [NO_ANSWER] * len(batch.records)
        try:
            async with asyncio.timeout_at(deadline):
                if await self._bulk_works_again():
                    return [WriteResult(Outcome.RETRY, reason="bulk works again", rerouted=True)] * len(
                        results
                    )
                # A batch that was cut before bulk worked names no range.
                if self.bulk and batch.lane not in _ONE_LANE.lanes:
                    await self._write_bulk(batch, results)
                else:
                    await self._write_by_key(batch.records, range(len(results)), results)
        except TimeoutError:
            pass  # answers that came in time count; the other outcomes are unknown
        except Exception as error:
            if all(record.change is None or record.change.is_repeatable for record in batch.records):
                raise
            # The caller would send the whole batch again, and some of it must not take place twice.
            _log.warning("%r: %s; what has an answer counts", self._container, describe_error(error))
        return results

    async def superseded(self, records: Sequence[Record], *, deadline: float) -> Sequence[bool]:
        """Of each record whether a later event has changed its document, by a read. Without a guard none is.

        Raises UnavailableError.
        """
        free = asyncio.Semaphore(SINGLE_KEY_REQUESTS)

        async def compare(record: Record) -> bool:
            if stamp_of(record) is None:
                return False
            key = msgspec.json.decode(record.partition_key)
            async with free, asyncio.timeout_at(deadline):
                answer = await self._container.send_batch(
                    self._opened.rid, key, [sdk_operation(record, _READ)], minimal=False
                )
            if not answer.operations:
                raise UnavailableError(f"{self._container!r} did not answer a read: {answer.message}")
            outcome = next_step(record, _READ, answer.operations[0], self._writer.rules)
            return isinstance(outcome, WriteResult) and outcome.reason == SUPERSEDED

        try:
            return await asyncio.gather(*map(compare, records))
        except TimeoutError:
            raise UnavailableError(f"{self._container!r} did not answer reads in time") from None

    async def _bulk_works_again(self) -> bool:
        """Whether bulk was tried again now and works; then the routes must be read."""
        now = asyncio.get_running_loop().time()
        if self.bulk or self._effective_key is None or now < self._bulk_at:
            return False
        self._bulk_at = now + TRY_BULK_EVERY
        try:
            self.bulk = await self._try_bulk(self._opened, self._effective_key) is not None
        except UnavailableError as error:
            _log.info("%r: it is unknown whether bulk requests work now: %s", self._container, error)
        if self.bulk:
            _log.info("%r: bulk requests work now", self._container)
        return self.bulk

    async def routes(self) -> Routes:
        try:
            definition = await self._container.definition()
            ranges = await self._container.ranges() if self.bulk else ()
        except (SettingsError, BulkUnavailableError) as error:  # both worked at open()
            raise UnavailableError(str(error)) from error
        if not definition.same_key(self._opened):
            raise UnavailableError(
                f"{self._container!r} was re-created with another partition key, {', '.join(definition.paths)}: "
                "restart the consumer, so that documents are prepared for it"
            )
        if definition != self._definition:
            try:
                self._mapper = self._mapper_of(definition)
            except SettingsError as error:
                raise UnavailableError(str(error)) from error
        self._definition = definition
        return _routes(ranges) if self.bulk else _ONE_LANE

    @property
    def _opened(self) -> ContainerDefinition:
        if self._definition is None:
            raise RuntimeError(f"{self._container!r} is not open")
        return self._definition

    async def aclose(self) -> None:
        await self._container.aclose()

    def _bulk_key(self, definition: ContainerDefinition) -> EffectiveKey | None:
        if not self._bulk_wanted or definition.system_key:
            return None
        key = EFFECTIVE_KEYS.get((definition.kind, definition.version))
        if key is None:
            _log.warning(
                "%r: partition key hash version %s has no bulk; writing one request per partition key value, which "
                "costs many times the CPU",
                *(self._container, definition.version),
            )
        return key

    async def _try_bulk(self, definition: ContainerDefinition, effective_key: EffectiveKey) -> Routes | None:
        """The lanes if a bulk request that reads a document which does not exist is answered with 404; else None.

        Raises UnavailableError unless the service or the SDK said that bulk does not work.
        """
        self._bulk_at = asyncio.get_running_loop().time() + TRY_BULK_EVERY
        key: list[Scalar] = [_PROBE] * len(definition.paths)
        operation = {"operationType": "Read", "id": _PROBE, "partitionKey": partition_key_text(key)}
        try:
            ranges = await self._container.ranges()
            lower_bounds = [key_range.lower for key_range in ranges]
            target = ranges[bisect_right(lower_bounds, effective_key(key)) - 1]
            answer = await self._container.send_bulk(definition.rid, target.id, _json_text([operation]))
        except BulkUnavailableError as error:
            why = str(error)
        else:
            if answer.operations is not None and len(answer.operations) == 1:
                return _routes(ranges)
            verdict = result_of_request(answer)
            if verdict.outcome is Outcome.RETRY:
                raise UnavailableError(
                    f"{self._container!r}: {verdict.reason} ({answer.status})", verdict.retry_after
                )
            why = f"the service answered {answer.status}: {answer.message}"
        _log.warning(
            "%r: bulk requests do not work here (%s); writing one request per partition key value, which costs many "
            "times the CPU; bulk is tried again in %.0f s",
            *(self._container, why, TRY_BULK_EVERY),
        )
        return None

    async def _write_bulk(self, batch: Batch, results: list[WriteResult]) -> None:
        async def send(operations: Sequence[Sent]) -> Answer:
            options = {"minimal": False} if _is_read(operations) else {}
            return await self._container.send_bulk(
                self._opened.rid, batch.lane, bulk_body(operations), **options
            )

        records = batch.records
        certain: Sequence[int] = range(len(records))
        uncertain = [index for index in certain if records[index].route == UNCERTAIN]
        if uncertain:  # only their partition key leads to their range
            await self._write_by_key(records, uncertain, results)
            certain = [index for index in certain if records[index].route != UNCERTAIN]
        await self._writer.write(records, certain, send, results, atomic=False)

    async def _write_by_key(
        self, records: Sequence[Record], indices: Sequence[int], results: list[WriteResult]
    ) -> None:
        by_key: dict[str, list[int]] = {}
        for index in indices:
            by_key.setdefault(records[index].partition_key, []).append(index)
        free = asyncio.Semaphore(SINGLE_KEY_REQUESTS)

        async def send(operations: Sequence[Sent]) -> Answer:
            options = {"minimal": False} if _is_read(operations) else {}
            key = msgspec.json.decode(operations[0][0].partition_key)
            sent = [sdk_operation(record, step) for record, step in operations]
            async with free:
                return await self._container.send_batch(self._opened.rid, key, sent, **options)

        async with asyncio.TaskGroup() as tasks:
            for of_key in by_key.values():
                for part in parts(records, of_key):
                    tasks.create_task(self._writer.write(records, part, send, results, atomic=True))


def _check_creates(writing: WriteOptions) -> None:
    """With mode create nothing that exists may change. Raises SettingsError."""
    asked = writing.operation_from is not None or writing.empty == "delete"
    if asked or writing.operation not in {Operation.UPSERT, Operation.CREATE}:
        raise SettingsError(
            "COSMOS_OPERATION, COSMOS_OPERATION_FROM and COSMOS_EMPTY ask for more than creating documents, and mode create"
            " changes nothing that exists; use mode upsert, with COSMOS_GUARD so that nothing newer is overwritten"
        )


def _is_read(operations: Sequence[Sent]) -> bool:
    """Whether the answer must have the documents; of a create's conflict only their being there counts."""
    record, step = operations[0]
    return step.verb == "Read" and stamp_of(record) is not None


def _routes(ranges: Sequence[KeyRange]) -> Routes:
    return Routes(tuple(part.lower for part in ranges), tuple(part.id for part in ranges))
