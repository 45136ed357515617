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
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec import structs

from consumer.mapping.documents import DocumentMapper, MappingOptions, document_id, partition_key_text
from consumer.mapping.partition_hash import EFFECTIVE_KEYS, EffectiveKey, Scalar
from consumer.model import Batch, Outcome, Record, Routes, Write, WriteResult
from consumer.sinks.cosmos.answers import (
    NO_ANSWER,
    Answer,
    after_conflict,
    doubted,
    may_be_of_container,
    refused,
    result_of,
    result_of_request,
    unclear_refusal,
)
from consumer.sinks.cosmos.client import BulkUnavailableError, ContainerDefinition, CosmosContainer, KeyRange
from consumer.sinks.evidence import Evidence
from tidemark.foundation.azure.connections import Settings
from tidemark.foundation.errors import SettingsError, UnavailableError

WriteMode = Literal["upsert", "create"]

# Of one request, the limits of the JavaScript and .NET SDKs; the service itself takes 2 MB.
MAX_OPERATIONS = 100
MAX_BYTES = 220_201
SINGLE_KEY_REQUESTS = 16  # concurrent requests without bulk

TRY_BULK_EVERY = 600.0
"""Seconds until bulk is tried again after the service or the SDK refused it."""

LOG_EVERY = 10.0
"""Seconds between two log lines about answers that cannot be understood."""

_ONE_LANE = Routes()
_PROBE = "tidemark-probe"
_CONFLICT = 409
_ENVELOPE = 80  # bytes around a document in a request, without its partition key

_log = logging.getLogger(__name__)
_json_text = msgspec.json.Encoder().encode

Send = Callable[[Sequence[Record]], Awaitable[Answer]]


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
    ) -> None:
        self._container = CosmosContainer(settings, connection, database, container)
        self._mapping = mapping
        self._create = mode == "create"
        self._operation = b'{"operationType":"%s","partitionKey":' % mode.capitalize().encode()
        self._bulk_wanted = bulk
        self._definition: ContainerDefinition | None = None
        self._effective_key: EffectiveKey | None = None
        self._mapper: DocumentMapper | None = None
        self._bulk_at = math.inf  # when bulk is tried again
        self._evidence = Evidence()
        self._log_at = -math.inf
        self.bulk = False
        """Whether documents are sent in bulk."""

    async def open(self) -> Routes:
        self._definition = definition = await self._container.open()
        try:
            self._effective_key = self._bulk_key(definition)
            self._mapper = DocumentMapper(self._mapping, definition.paths, self._effective_key)
            routes = await self._try_bulk(definition, self._effective_key) if self._effective_key else None
        except BaseException:
            await self.aclose()
            raise
        self.bulk = routes is not None
        return routes or _ONE_LANE

    def prepare(self, write: Write) -> Record:
        if self._mapper is None:
            raise RuntimeError("the sink is not open")
        return self._mapper.prepare(write)

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
                    await self._write_by_key(batch.records, results)
        except TimeoutError:
            pass  # answers that came in time count; the other outcomes are unknown
        return results

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
        async def send(body: bytes) -> Answer:
            return await self._container.send_bulk(self._opened.rid, batch.lane, body)

        for part in _parts(batch.records, range(len(batch.records))):
            await self._settle(batch.records, part, lambda records: send(self._bulk_body(records)), results)
            await self._explain(batch.records, part, lambda records: send(_bulk_reads(records)), results)

    async def _write_by_key(self, records: Sequence[Record], results: list[WriteResult]) -> None:
        by_key: dict[str, list[int]] = {}
        for index, record in enumerate(records):
            by_key.setdefault(record.partition_key, []).append(index)
        free = asyncio.Semaphore(SINGLE_KEY_REQUESTS)

        async def send(verb: str, of_key: Sequence[Record]) -> Answer:
            decode = document_id if verb == "read" else lambda record: msgspec.json.decode(record.payload)
            key = msgspec.json.decode(of_key[0].partition_key)
            operations = [(verb, (decode(record),)) for record in of_key]
            return await self._container.send_batch(self._opened.rid, key, operations)

        async def write(part: Sequence[int]) -> None:
            async with free:
                await self._settle(
                    records, part, partial(send, "create" if self._create else "upsert"), results
                )
                for index in part:  # a transactional batch fails as a whole if one document does not exist
                    await self._explain(records, [index], partial(send, "read"), results)

        async with asyncio.TaskGroup() as tasks:
            for indices in by_key.values():
                for part in _parts(records, indices):
                    tasks.create_task(write(part))

    async def _settle(
        self, records: Sequence[Record], part: Sequence[int], send: Send, results: list[WriteResult]
    ) -> None:
        """Sends the records at `part` and stores each result at its index.

        A request that is refused as a whole for its content is halved until only the records at fault are refused.
        """
        trial = self._evidence.begin()
        answer = await send([records[index] for index in part])
        operations = answer.operations
        if operations is not None and len(operations) == len(part):
            for index, operation in zip(part, operations, strict=True):
                results[index] = self._noted(result_of(operation))
            self._judge(records, part, trial, operations, results)
            return
        place = _place(records[part[0]])
        if len(part) > 1 and (
            answer.divisible
            or (answer.unclear and self._evidence.failed(("request", *place), answer.unclear))
        ):
            middle = len(part) // 2
            await self._settle(records, part[:middle], send, results)
            await self._settle(records, part[middle:], send, results)
            return
        result = self._noted(result_of_request(answer))
        if len(part) == 1:
            if answer.unclear and self._evidence.failed(place, answer.unclear):
                result = refused(result, answer.message)
            elif self._is_doubtful(place, result, 1):
                result = doubted(result)
        if answer.unreadable:
            self._log_unreadable(answer.unreadable)
        elif operations is not None:
            self._log_unreadable(f"the answer has {len(operations)} results for {len(part)} operations")
        for index in part:
            results[index] = result

    def _judge(
        self,
        records: Sequence[Record],
        part: Sequence[int],
        trial: int,
        operations: Sequence[Mapping[str, Any]],
        results: list[WriteResult],
    ) -> None:
        """Decides whether unlisted refusals are the fault of the records themselves."""
        some_passed = any(results[index].outcome is Outcome.WRITTEN for index in part)
        if some_passed:
            self._evidence.passed(trial)
        alike = sum(may_be_of_container(results[index]) for index in part)
        for index, operation in zip(part, operations, strict=True):
            place, result = _place(records[index]), results[index]
            if not some_passed and self._is_doubtful(place, result, alike):
                results[index] = doubted(result)
                continue
            if self._create and result.status == _CONFLICT:
                continue  # `_explain` handles it
            if result.outcome is not Outcome.RETRY:
                self._evidence.settled(place)
            elif code := unclear_refusal(result.status, operation.get("subStatusCode", 0)):
                if self._evidence.failed(place, code):
                    results[index] = refused(result, operation.get("message", "") or code)
            elif not result.status:
                self._log_unreadable(f"an operation's answer has no status, but {sorted(operation)[:10]}")

    def _is_doubtful(self, place: tuple[str, int], result: WriteResult, alike: int) -> bool:
        return may_be_of_container(result) and self._evidence.is_doubtful(place, str(result.status), alike)

    def _log_unreadable(self, why: str) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._log_at:
            self._log_at = now + LOG_EVERY
            _log.warning("%r: %s; what was sent is tried again", self._container, why)

    def _noted(self, result: WriteResult) -> WriteResult:
        """The result, where a conflict of a create means: written if only the id must be unique, else not known before
        `_explain` has read the document.
        """
        if not self._create or result.status != _CONFLICT:
            return result
        if self._opened.unique_keys:
            return structs.replace(result, outcome=Outcome.RETRY)
        return structs.replace(result, outcome=Outcome.WRITTEN, reason="exists")

    async def _explain(
        self, records: Sequence[Record], part: Sequence[int], read: Send, results: list[WriteResult]
    ) -> None:
        """Reads the documents whose conflict is open. A batch is answered by the replica that writes."""
        open_ = [i for i in part if results[i].status == _CONFLICT and results[i].outcome is Outcome.RETRY]
        if not open_:
            return
        answer = await read([records[index] for index in open_])
        if answer.operations is not None and len(answer.operations) == len(open_):
            for index, operation in zip(open_, answer.operations, strict=True):
                results[index] = after_conflict(results[index], operation)

    def _bulk_body(self, records: Sequence[Record]) -> bytes:
        """The documents are JSON already, so only the text around them is added."""
        operation = self._operation
        pieces = [
            b'%s%s,"resourceBody":%s}' % (operation, _json_text(record.partition_key), record.payload)
            for record in records
        ]
        return b"[%s]" % b",".join(pieces)


def _place(record: Record) -> tuple[str, int]:
    return record.event.partition, record.event.sequence_number


def _bulk_reads(records: Sequence[Record]) -> bytes:
    return _json_text(
        [
            {"operationType": "Read", "id": document_id(record), "partitionKey": record.partition_key}
            for record in records
        ]
    )


def _routes(ranges: Sequence[KeyRange]) -> Routes:
    return Routes(tuple(part.lower for part in ranges), tuple(part.id for part in ranges))


def _parts(records: Sequence[Record], indices: Sequence[int]) -> Iterator[Sequence[int]]:
    """Runs of indices whose records fit into one request; a record larger than any request is sent alone."""
    start = size = 0
    for end, index in enumerate(indices):
        record = records[index]
        bytes_of_it = len(record.payload) + 2 * len(record.partition_key) + _ENVELOPE
        if end > start and (end - start == MAX_OPERATIONS or size + bytes_of_it > MAX_BYTES):
            yield indices[start:end]
            start, size = end, 0
        size += bytes_of_it
    if indices:
        yield indices[start:]
