"""One container of Cosmos DB. Only this module uses the SDK and its private parts.

azure-cosmos has no bulk. Its public transactional batch writes to one logical partition and succeeds or fails as a whole.
With another body and five headers the same request becomes the service's bulk request: up to 100 independent operations
for a physical partition. The public `raw_request_hook` replaces them after the SDK has signed the request, and neither is
signed. One private part is used: the map of partition key ranges, because no public call returns their ids.

The SDK takes five times as long for a bulk request as sending it takes. So for some seconds requests are sent without it, to the
address and with the headers of the last one that it sent: it decides about regions, credentials and everything else, and is
asked anew after any failure that may have to do with these (docs/adr/0022-bulk-requests-follow-the-sdk.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import Any
from uuid import uuid4

import aiohttp
import msgspec
from azure.core.exceptions import AzureError
from azure.core.pipeline import PipelineRequest, PipelineResponse
from azure.core.rest import HttpRequest
from azure.cosmos.exceptions import CosmosBatchOperationError, CosmosHttpResponseError
from azure.cosmos.partition_key import NonePartitionKeyValue
from msgspec import Struct
from yarl import URL

from consumer.sinks.cosmos.answers import Answer
from tidemark.foundation.azure.connections import Settings, describe_network_error
from tidemark.foundation.azure.cosmos import ContainerConnection
from tidemark.foundation.azure.retry_after import retry_after
from tidemark.foundation.errors import SettingsError, TidemarkError, UnavailableError
from tidemark.foundation.pacing.patience import OF_A_SERVICE
from tidemark.foundation.tracing.spans import current_header

_LARGE_BODY = 1 << 20
FOLLOW_FOR = 30.0
"""Seconds for which the last request of the SDK is followed. A signature holds for 15 minutes, a token for 5 at least; the SDK looks
for regions every 5 minutes."""
_SAY_NOTHING = frozenset({400, 413, 429})
"""Refusals that are about the documents or the rate, and not about the address or the credential."""
_OF_ONE_REQUEST = frozenset(
    {
        "accept-encoding",
        "content-length",
        "prefer",
        "traceparent",
        "tracestate",
        "x-ms-activity-id",
        "x-ms-client-request-id",
        "x-ms-cosmos-intended-collection-rid",
        "x-ms-documentdb-partitionkeyrangeid",
        "x-ms-session-token",
    }
)
"""Headers that are not followed."""
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=OF_A_SERVICE.connect, sock_read=65.0)
"""As azure-cosmos; the caller's deadline is shorter."""
_read_operations = msgspec.json.Decoder(list[dict[str, Any]]).decode
SDK_ERRORS = (AzureError, aiohttp.ClientError, OSError)


class BulkUnavailableError(TidemarkError):
    """The SDK, the container or the service does not support the bulk requests of this module."""


class ContainerDefinition(Struct, frozen=True):
    """The properties that must not change while the container is written to; `rid` changes when it is created anew."""

    rid: str
    paths: tuple[str, ...]
    kind: str
    version: int
    system_key: bool = False
    """A container from before partition keys were required."""
    unique_keys: bool = False
    """Whether something besides the id must be unique; fixed when the container is created."""
    default_ttl: int | None = None
    """Seconds, -1 for no end unless a document says one; None: the time to live of documents is plain data."""

    def same_key(self, other: ContainerDefinition) -> bool:
        return (self.paths, self.kind, self.version) == (other.paths, other.kind, other.version)


class KeyRange(Struct, frozen=True):
    """A physical partition: `lower` is the least effective partition key in it."""

    lower: str
    id: str


class CosmosContainer(ContainerConnection):
    """Requests to one container. Each is sent once; a lost or unreadable answer becomes an Answer with status 0. `headers` are
    sent with each of them.
    """

    _pattern: _Pattern | None = None

    def __init__(
        self,
        settings: Settings,
        connection: str,
        database: str,
        container: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(settings, connection, database, container)
        self._headers = dict(headers or {})

    async def open(self) -> ContainerDefinition:
        """Connects and reads the definition. Raises SettingsError, UnavailableError."""
        await self.aclose()  # the client before, if it is opened again
        client = await self._connect()
        # The SDK sends them with every request, so also with those that become bulk requests.
        client.client_connection.default_headers.update(self._headers)
        try:
            with self._named_errors():
                await client.__aenter__()
            return await self.definition()
        except BaseException:
            await self.aclose()
            raise

    async def definition(self) -> ContainerDefinition:
        """The container as it is now. Raises SettingsError if it does not exist, UnavailableError."""
        with self._named_errors():
            properties = await self._open.read()
        key = properties["partitionKey"]
        # The service omits version 1.
        return ContainerDefinition(
            rid=properties["_rid"],
            paths=tuple(key["paths"]),
            kind=key.get("kind", "Hash"),
            version=key.get("version", 1),
            system_key=key.get("systemKey", False),
            unique_keys=bool((properties.get("uniqueKeyPolicy") or {}).get("uniqueKeys")),
            default_ttl=properties.get("defaultTtl"),
        )

    async def ranges(self) -> tuple[KeyRange, ...]:
        """The physical partitions as they are now, sorted. Raises BulkUnavailableError, UnavailableError."""
        container = self._open
        try:
            connection = container.client_connection
            provider = connection._routing_map_provider  # noqa: SLF001 - see the module's docstring
            with self._named_errors():
                # The SDK caches the map by the container's name and asks only for changes since its version, so it
                # would keep the map of a container that was deleted and created anew.
                await connection.refresh_routing_map_provider()
                routing_map = await provider.get_routing_map(container.container_link, {}, force_refresh=True)
            ordered: list[dict[str, str]] = routing_map.get_ordered_partition_key_ranges()  # type: ignore[union-attr]
            return tuple(KeyRange(key_range["minInclusive"], key_range["id"]) for key_range in ordered)
        except (AttributeError, KeyError, TypeError) as error:
            raise BulkUnavailableError(f"the SDK's map of partition key ranges: {error!r}") from error

    async def send_bulk(self, rid: str, range_id: str, body: bytes, *, minimal: bool = True) -> Answer:
        """Up to 100 independent operations for one physical partition; `minimal` answers have no documents.

        Raises BulkUnavailableError.
        """
        exchange = _Exchange(rid, range_id, body)
        now = asyncio.get_running_loop().time()
        if (pattern := self._pattern) is not None and now < pattern.until:
            headers = {**exchange.headers, "Prefer": "return=minimal"} if minimal else exchange.headers
            answer = await self._follow(pattern, headers, body)
            if answer.operations is None and answer.status not in _SAY_NOTHING and self._pattern is pattern:
                self._pattern = None  # the SDK sends the next one, and sees for itself
            return answer
        answer = await self._send([], None, exchange, minimal=minimal)
        if answer.operations is not None and exchange.sent is not None:
            self._pattern = _Pattern(exchange.sent, until=now + FOLLOW_FOR)
        # Without a status nothing was sent, for lack of network or token. That says nothing about bulk.
        if not exchange.done and (answer.by_sdk or answer.operations is not None):
            raise BulkUnavailableError(f"the SDK sent no request through its hook: {answer.message}")
        return answer

    async def send_batch(
        self,
        rid: str,
        partition_key: Sequence[Any],
        operations: Sequence[tuple[str, tuple[Any, ...]] | tuple[str, tuple[Any, ...], dict[str, Any]]],
        *,
        minimal: bool = True,
    ) -> Answer:
        """Up to 100 operations for one logical partition, all or none."""
        # The SDK has a name for one undefined value: in a container without a partition key it is written otherwise.
        key: Any = NonePartitionKeyValue if partition_key == [{}] else partition_key
        return await self._send(operations, key, _Exchange(rid), minimal=minimal)

    async def _send(
        self, operations: Sequence[Any], key: Any, exchange: _Exchange, *, minimal: bool
    ) -> Answer:
        try:
            responses = await self._open.execute_item_batch(
                operations, key, no_response=minimal, raw_request_hook=exchange
            )
            return Answer(responses)
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
            return Answer(message=describe_network_error(error))
        except Exception as error:  # of the SDK's own code, for example when it cannot parse the answer
            if not exchange.done:
                return Answer(message=repr(error), by_sdk=True, unsent=True)
            return Answer(message=f"the answer cannot be read: {error!r}{exchange.answer}", by_sdk=True)

    async def _follow(self, pattern: _Pattern, headers: Mapping[str, str], body: bytes) -> Answer:
        if self._session is None:
            raise RuntimeError(f"{self!r} is not open")
        try:
            async with self._session.post(
                pattern.url,
                data=_readable(body),
                headers={**pattern.headers, **headers, "x-ms-activity-id": str(uuid4())},
                allow_redirects=False,
                ssl=pattern.verifies,
                timeout=_TIMEOUT,
            ) as response:
                content = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            return Answer(message=describe_network_error(error))
        return _answer(response.status, response.headers, content)

    async def aclose(self) -> None:
        self._pattern = None
        await super().aclose()

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Raises SDK errors as SettingsError if the operator must change something, else as UnavailableError."""
        try:
            yield
        except CosmosHttpResponseError as error:
            if error.status_code == 404:
                raise SettingsError(f"there is no {self!r}; create it, or correct its name") from error
            if error.status_code == 401:
                raise SettingsError(
                    f"{self._connection}: the account refuses the key or identity (401)"
                ) from error
            message = f"{self!r} answers {error.status_code}: {error.http_error_message}"
            raise UnavailableError(message, retry_after(error.headers, cosmos=True)) from error
        except SDK_ERRORS as error:
            raise UnavailableError(f"{self!r} cannot be reached: {describe_network_error(error)}") from error


class _Exchange:
    """Changes a request of the SDK right before it is sent, so that it is valid only for the container with `rid`: the SDK
    would silently follow to another of the same name. With a body, it becomes the service's bulk request.
    """

    def __init__(self, rid: str, range_id: str = "", body: bytes | None = None) -> None:
        self._body = body
        self.headers = {"x-ms-cosmos-intended-collection-rid": rid, **current_header()}
        if body is not None:
            self.headers |= {
                "x-ms-cosmos-batch-atomic": "False",
                "x-ms-cosmos-batch-continue-on-error": "True",
                "x-ms-documentdb-partitionkeyrangeid": range_id,
                "Content-Length": str(len(body)),
            }
        self.done = False
        self.answer = ""
        """The response in words, for the log."""
        self.sent: HttpRequest | None = None
        """The request as it was answered."""

    def note_answer(self, response: PipelineResponse[Any, Any]) -> None:
        http = response.http_response
        self.sent = response.http_request
        self.answer = _in_words(http.status_code, http.headers)

    def __call__(self, request: PipelineRequest[Any]) -> None:
        http = request.http_request
        if http.method != "POST":  # the SDK passes its options to a read of the account too
            return
        body = http.data
        if self._body is not None:
            http.headers.pop("x-ms-documentdb-partitionkey", None)
            body = self._body
        http.data = _readable(body)
        http.headers.update(self.headers)
        if request.context is not None:  # set here, because an SDK without hooks passes the option itself on
            request.context["raw_response_hook"] = self.note_answer
        self.done = True


class _Pattern:
    """Where a request was sent, and with which headers. The credential is among them: this has no repr on purpose."""

    def __init__(self, sent: HttpRequest, until: float) -> None:
        self.url = URL(sent.url, encoded=True)
        self.headers = {
            name: str(value) for name, value in sent.headers.items() if name.casefold() not in _OF_ONE_REQUEST
        } | {"Accept-Encoding": "identity"}
        self.verifies = self.url.host not in {"localhost", "127.0.0.1"}  # as the SDK does, for emulators
        self.until = until


def _readable(body: Any) -> Any:
    """The body for aiohttp, which warns about large ones as bytes: it blocks the loop less with a file."""
    return body if len(body) <= _LARGE_BODY else BytesIO(body)


def _answer(status: int, headers: Mapping[str, str], content: bytes) -> Answer:
    if status >= 400:
        sub_status = headers.get("x-ms-substatus", "")
        return Answer(
            status=status,
            sub_status=int(sub_status) if sub_status.isdecimal() else 0,
            message=content.decode(errors="replace"),
            retry_after=retry_after(headers, cosmos=True),
        )
    try:
        return Answer(_read_operations(content))
    except (ValueError, RecursionError) as error:
        return Answer(
            message=f"the answer cannot be read: {error!r}{_in_words(status, headers)}", by_sdk=True
        )


def _in_words(status: int, headers: Mapping[str, str]) -> str:
    return (
        f"; it was HTTP {status}, {headers.get('content-type', 'of no type')}, "
        f"{headers.get('content-length', 'unknown')} bytes, activity {headers.get('x-ms-activity-id', 'none')}"
    )
