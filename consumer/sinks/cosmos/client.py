"""One container of Cosmos DB, and the only place that touches the SDK and its private parts.

azure-cosmos has no bulk. Its public transactional batch goes to one logical partition and succeeds or fails as a
whole. The same request becomes the service's bulk request, up to 100 independent operations for a physical partition,
by a different body and five headers, exchanged in the public `raw_request_hook` after the SDK has signed it (neither
is signed). Of the private parts one is used: the map of partition key ranges, whose ids no public call gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import aiohttp
from azure.core.exceptions import AzureError
from azure.core.pipeline import PipelineRequest, PipelineResponse
from azure.cosmos.exceptions import CosmosBatchOperationError, CosmosHttpResponseError
from azure.cosmos.partition_key import NonePartitionKeyValue
from msgspec import Struct

from consumer.sinks.cosmos.answers import Answer
from tidemark.foundation.azure.connections import network_story
from tidemark.foundation.azure.cosmos import CosmosPlace
from tidemark.foundation.azure.retry_after import retry_after
from tidemark.foundation.errors import SettingsError, TidemarkError, UnavailableError

_LARGE_BODY = 1 << 20
SDK_ERRORS = (AzureError, aiohttp.ClientError, OSError)


class BulkUnavailableError(TidemarkError):
    """This SDK, container or service does not do bulk requests as this module makes them."""


class ContainerDefinition(Struct, frozen=True):
    """What must not change while the container is written to, and `rid`, which tells one of its name from another."""

    rid: str
    paths: tuple[str, ...]
    kind: str
    version: int
    system_key: bool = False
    """A container from before partition keys were required."""
    unique_keys: bool = False
    """Whether something besides the id must be unique; settled when a container is made."""

    def same_key(self, other: ContainerDefinition) -> bool:
        return (self.paths, self.kind, self.version) == (other.paths, other.kind, other.version)


class KeyRange(Struct, frozen=True):
    """A physical partition: `lower` is the least effective partition key in it."""

    lower: str
    id: str


class CosmosContainer(CosmosPlace):
    """Requests to one container. Each is sent once; a lost or unreadable answer is an Answer with status 0."""

    async def open(self) -> ContainerDefinition:
        """Connects and reads the definition. Raises SettingsError, UnavailableError."""
        client = await self._connect()
        try:
            with self._named_errors():
                await client.__aenter__()
            return await self.definition()
        except BaseException:
            await self.aclose()
            raise

    async def definition(self) -> ContainerDefinition:
        """The container as it is now. Raises SettingsError where there is none, UnavailableError."""
        with self._named_errors():
            found = await self._open.read()
        key = found["partitionKey"]
        # The service leaves the version out for the first one.
        return ContainerDefinition(
            rid=found["_rid"],
            paths=tuple(key["paths"]),
            kind=key.get("kind", "Hash"),
            version=key.get("version", 1),
            system_key=key.get("systemKey", False),
            unique_keys=bool((found.get("uniqueKeyPolicy") or {}).get("uniqueKeys")),
        )

    async def ranges(self) -> tuple[KeyRange, ...]:
        """The physical partitions as they are now, sorted. Raises BulkUnavailableError, UnavailableError."""
        container = self._open
        try:
            connection = container.client_connection
            provider = connection._routing_map_provider  # noqa: SLF001 - see the module's docstring
            with self._named_errors():
                # The SDK keeps the map by the container's name and asks for what is newer than its version: of a
                # container made anew it would keep the old one's.
                await connection.refresh_routing_map_provider()
                found = await provider.get_routing_map(container.container_link, {}, force_refresh=True)
            ordered: list[dict[str, str]] = found.get_ordered_partition_key_ranges()  # type: ignore[union-attr]
            return tuple(KeyRange(each["minInclusive"], each["id"]) for each in ordered)
        except (AttributeError, KeyError, TypeError) as error:
            raise BulkUnavailableError(f"the SDK's map of partition key ranges: {error!r}") from error

    async def send_bulk(self, rid: str, range_id: str, body: bytes) -> Answer:
        """Up to 100 independent operations for one physical partition. Raises BulkUnavailableError."""
        exchange = _Exchange(rid, range_id, body)
        answer = await self._send([], None, exchange)
        # Without a status nothing was asked: no network, or no token. Of bulk that says nothing.
        if not exchange.done and (answer.by_sdk or answer.operations is not None):
            raise BulkUnavailableError(f"the SDK sent no request through its hook: {answer.message}")
        return answer

    async def send_batch(
        self, rid: str, partition_key: Sequence[Any], operations: Sequence[tuple[str, tuple[Any, ...]]]
    ) -> Answer:
        """Up to 100 operations for one logical partition, all or none."""
        # One undefined value has a name: in a container without a partition key it is written otherwise.
        key: Any = NonePartitionKeyValue if partition_key == [{}] else partition_key
        return await self._send(operations, key, _Exchange(rid))

    async def _send(
        self, operations: Sequence[tuple[str, tuple[Any, ...]]], key: Any, exchange: _Exchange
    ) -> Answer:
        try:
            return Answer(
                await self._open.execute_item_batch(
                    operations,
                    key,
                    no_response=True,
                    raw_request_hook=exchange,
                )
            )
        except CosmosBatchOperationError as error:
            return Answer(error.operation_responses)
        except CosmosHttpResponseError as error:
            return Answer(
                status=error.status_code or 0,
                sub_status=error.sub_status or 0,
                message=str(error.http_error_message or ""),
                retry_after=retry_after(error.headers, cosmos=True),
            )
        except SDK_ERRORS as error:
            return Answer(message=network_story(error))
        except Exception as error:  # from the SDK's own code, such as reading an answer that is none
            if not exchange.done:
                return Answer(message=repr(error), by_sdk=True, unsent=True)
            return Answer(message=f"the answer cannot be read: {error!r}{exchange.answer}", by_sdk=True)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """The SDK's errors as ours: SettingsError for what the operator must change, else UnavailableError."""
        try:
            yield
        except CosmosHttpResponseError as error:
            if error.status_code == 404:
                raise SettingsError(f"there is no {self!r}; create it, or correct its name") from error
            if error.status_code == 401:
                raise SettingsError(
                    f"{self._connection}: the account refuses the key or identity (401)"
                ) from error
            story = f"{self!r} answers {error.status_code}: {error.http_error_message}"
            raise UnavailableError(story, retry_after(error.headers, cosmos=True)) from error
        except SDK_ERRORS as error:
            raise UnavailableError(f"{self!r} cannot be reached: {network_story(error)}") from error


class _Exchange:
    """Changes a request of the SDK right before it is sent: it is meant for the container with `rid` and no other of
    the same name, to which the SDK would follow without a word. With a body, it becomes the service's bulk request.
    """

    def __init__(self, rid: str, range_id: str = "", body: bytes | None = None) -> None:
        self._body = body
        self._headers = {"x-ms-cosmos-intended-collection-rid": rid}
        if body is not None:
            self._headers |= {
                "x-ms-cosmos-batch-atomic": "False",
                "x-ms-cosmos-batch-continue-on-error": "True",
                "x-ms-documentdb-partitionkeyrangeid": range_id,
                "Content-Length": str(len(body)),
            }
        self.done = False
        self.answer = ""
        """What came back, for the log."""

    def note_answer(self, response: PipelineResponse[Any, Any]) -> None:
        http = response.http_response
        headers = http.headers
        self.answer = (
            f"; it was HTTP {http.status_code}, {headers.get('content-type', 'of no type')}, "
            f"{headers.get('content-length', 'unknown')} bytes, activity {headers.get('x-ms-activity-id', 'none')}"
        )

    def __call__(self, request: PipelineRequest[Any]) -> None:
        http = request.http_request
        if http.method != "POST":  # the SDK hands its options to a read of the account as well
            return
        body = http.data
        if self._body is not None:
            http.headers.pop("x-ms-documentdb-partitionkey", None)
            body = self._body
        # aiohttp copes better with a file where a body is large, and says so.
        http.data = body if len(body) <= _LARGE_BODY else BytesIO(body)
        http.headers.update(self._headers)
        if (
            request.context is not None
        ):  # as the option `raw_response_hook` would, which an SDK without hooks passes on
            request.context["raw_response_hook"] = self.note_answer
        self.done = True
