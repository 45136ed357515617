"""Data source "cosmos": the documents of a container, one Spark partition per feed range (physical partition).

    spark.read.format("cosmos").option("secretConnectionString", ...).option("database", "telemetry")
         .option("container", "flights").option("fields", "dest=/dest,number=/flight/number").load()

Options:

- `secretConnectionString`; or `secretSettings`, a JSON object of app settings, and in it the connection named `connection`
  (default CosmosConnection), by key or by identity as in `tidemark.foundation.azure.cosmos`
- `database`, `container`
- `fields`: name=/path pairs by comma; only these are read, besides the id and the partition key
- `modifiedSince`: epoch seconds; only documents written since then
- `ruPerSecond`: request units per second that all partitions together may use; each gets an equal share, so it
  is kept whatever runs at the same time
- `pageSize`: documents a page, at most; default 1,000

Throttling (429) is waited out, a lost connection is tried again from the last continuation. Reading is not a snapshot:
documents written meanwhile may or may not be seen.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import floor
from typing import Any, TypeVar

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from azure.core.exceptions import AzureError
from azure.cosmos.aio import ContainerProxy, CosmosClient
from azure.cosmos.exceptions import CosmosHttpResponseError
from msgspec import UNSET
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from consumer.mapping.partition_hash import partition_key_text
from consumer.mapping.paths import parse_path
from spark_jobs.platform.data_source import Source
from spark_jobs.platform.source_options import CONNECTION_STRING, check_secrets, settings_in
from spark_jobs.schemas import arrow_schema, row_schema
from spark_jobs.task_errors import failing_without_secrets, fails_without_secrets
from tidemark.analysis.errors import InputError, JobError
from tidemark.foundation.azure.connections import describe_network_error
from tidemark.foundation.azure.cosmos import cosmos_client
from tidemark.foundation.errors import SettingsError

DOCUMENTS = row_schema("id text, partition_key text, modified_at time, fields text")
"""`partition_key` is JSON array text as `canonical_key` writes it. `fields` is a JSON object of the fields asked for; one
that a document does not have is missing there, too. `modified_at` has whole seconds.
"""

_Answer = TypeVar("_Answer")

CONNECTION = "CosmosConnection"
PATIENCE = 300.0
"""Seconds without a single page after which a partition gives up."""
_PAGE = 1000
_RETRY = 1.0  # seconds, where the service names none
_SCHEMA = arrow_schema(DOCUMENTS)
_TRANSIENT = frozenset({408, 410, 429, 449, 500, 502, 503})
_NO_NUMBER = -1


class FeedRange(InputPartition):
    """What one Spark task reads: a feed range as the SDK describes it, and its share of the request units."""

    def __init__(self, feed_range: Mapping[str, Any], budget: float | None) -> None:
        super().__init__(dict(feed_range))
        self.budget = budget


class CosmosDataSource(Source):
    NAME = "cosmos"
    SCHEMA = DOCUMENTS

    def reader(self, schema: StructType) -> CosmosReader:  # the base's signature
        return CosmosReader({name.lower(): value for name, value in self.options.items()})


class CosmosReader(DataSourceReader):
    """Raises InputError for options that cannot work, JobError where the service refuses."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._settings, self._connection = _connection(options)
        self._database, self._container = (_needed(options, name) for name in ("database", "container"))
        self._fields = _fields(options.get("fields", ""))
        self._budget = _number(options, "ruPerSecond")
        self._since = _number(options, "modifiedSince")
        self._page = int(_number(options, "pageSize") or _PAGE)

    def partitions(self) -> Sequence[FeedRange]:
        async def ranges(proxy: ContainerProxy) -> list[Mapping[str, Any]]:
            return [feed_range async for feed_range in proxy.read_feed_ranges(force_refresh=True)]

        with failing_without_secrets():
            statistics = asyncio.run(self._asked(ranges))
        share = self._budget / len(statistics) if self._budget is not None else None
        return [FeedRange(feed_range, share) for feed_range in statistics]

    def definition(self) -> Mapping[str, Any]:
        """The container's, as the service gives it."""
        return asyncio.run(self._asked(lambda proxy: proxy.read()))

    async def _asked(self, ask: Callable[[ContainerProxy], Awaitable[_Answer]]) -> _Answer:
        async def work() -> _Answer:
            async with await self._client() as client:
                return await ask(self._proxy(client))

        answer: _Answer = await self._answered(work())
        return answer

    @fails_without_secrets
    def read(self, partition: FeedRange) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """One batch a page."""
        with asyncio.Runner() as runner:
            client = runner.run(self._opened())
            try:
                pages = _Pages(self._proxy(client), partition, self._page)
                paths = runner.run(self._answered(pages.open(self._fields, self._since)))
                while (page := runner.run(self._answered(pages.next()))) is not None:
                    if page:
                        yield _batch(page, paths, self._fields)
            finally:
                runner.run(client.close())

    async def _opened(self) -> CosmosClient:
        client = await self._client()
        await self._answered(client.__aenter__())
        return client

    async def _client(self) -> CosmosClient:
        try:
            return await cosmos_client(
                self._settings, self._connection, retry_total=3, retry_throttle_total=9
            )
        except SettingsError as error:
            raise InputError(str(error)) from None

    def _proxy(self, client: CosmosClient) -> ContainerProxy:
        return client.get_database_client(self._database).get_container_client(self._container)

    async def _answered(self, work: Awaitable[Any]) -> Any:
        where = (
            f"container '{self._container}' in database '{self._database}' of connection {self._connection}"
        )
        try:
            return await work
        except CosmosHttpResponseError as error:
            if error.status_code == 404:
                raise InputError(f"there is no {where}") from error
            raise JobError(f"{where} answers {error.status_code}: {error.http_error_message}") from error
        except (AzureError, OSError) as error:
            raise JobError(f"{where} cannot be reached: {describe_network_error(error)}") from error


class _Pages:
    """The pages of one feed range, in order, each exactly once."""

    def __init__(self, proxy: ContainerProxy, partition: FeedRange, size: int) -> None:
        self._proxy = proxy
        self._range = partition.value
        self._budget = partition.budget
        self._size = size
        self._query = ""
        self._pages: Any = None
        self._charged = 0.0
        self._begun = 0.0

    async def open(self, fields: Mapping[str, str], since: float | None) -> Sequence[str]:
        """The container's partition key paths."""
        paths = await _paths(self._proxy)
        self._query = query_text(paths, fields, since)
        self._begun = time.monotonic()
        self._start(None)
        return paths

    async def next(self) -> list[dict[str, Any]] | None:
        """The next page, after waiting for its request units; None after the last."""
        if self._budget is not None:
            await asyncio.sleep(pause(self._charged, time.monotonic() - self._begun, self._budget))
        give_up = time.monotonic() + PATIENCE
        while True:
            token = self._pages.continuation_token
            try:
                return [document async for document in await anext(self._pages)]
            except StopAsyncIteration:
                return None
            except AzureError as error:
                if not _passes(error) or time.monotonic() > give_up:
                    raise
                await asyncio.sleep(_retry_after(error))
            self._start(token)

    def _start(self, token: str | None) -> None:
        items: AsyncIterable[Any] = self._proxy.query_items(
            self._query, feed_range=self._range, max_item_count=self._size, response_hook=self._count
        )
        self._pages = items.by_page(token)  # type: ignore[attr-defined]

    def _count(self, headers: Mapping[str, str], *_: object) -> None:
        self._charged += float(headers.get("x-ms-request-charge", 0.0))


async def _paths(proxy: ContainerProxy) -> Sequence[str]:
    """The container's partition key paths."""
    paths: Sequence[str] = (await proxy.read())["partitionKey"]["paths"]
    return paths


def read_documents(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """DOCUMENTS of a container, by the options of the data source."""
    spark.dataSource.register(CosmosDataSource)
    return spark.read.format("cosmos").options(**options).load().select(*DOCUMENTS.fieldNames())


def keys_and_ttl(options: Mapping[str, str]) -> tuple[Sequence[str], int | None]:
    """The paths of a container's partition key, and its defaultTtl: None where no document has a time to live, -1 where only its
    own counts. By the options of the data source. Raises as the reader does.
    """
    definition = CosmosReader({name.lower(): value for name, value in options.items()}).definition()
    return definition["partitionKey"]["paths"], definition.get("defaultTtl")


def query_text(paths: Sequence[str], fields: Mapping[str, str], since: float | None = None) -> str:
    """The query that reads ids, times, partition keys (k0, k1, ...) and fields (f0, f1, ...), and nothing else."""
    where = "" if since is None else f" WHERE c._ts >= {floor(since)}"
    columns = ["c.id", "c._ts"]
    columns += [f"{_place(path)} AS k{place}" for place, path in enumerate(paths)]
    columns += [f"{_place(path)} AS f{place}" for place, path in enumerate(fields.values())]
    return f"SELECT {', '.join(columns)} FROM c{where}"  # noqa: S608 - every name is a quoted literal, the time a number


def canonical_key(values: Sequence[Any]) -> str:
    """A partition key as JSON array text, numbers as Cosmos DB has them: doubles, the whole ones without a fraction."""
    return partition_key_text([_as_double(value) for value in values])


def pause(charged: float, elapsed: float, budget: float) -> float:
    """Seconds to wait so that `charged` request units have not been used faster than `budget` per second."""
    return max(0.0, charged / budget - elapsed)


def _as_double(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    double = float(value)
    return int(double) if double.is_integer() else double


def _place(path: str) -> str:
    return "c" + "".join(f"[{msgspec.json.encode(name).decode()}]" for name in parse_path(path))


def _batch(
    page: Sequence[Mapping[str, Any]], paths: Sequence[str], fields: Mapping[str, str]
) -> pa.RecordBatch:
    def row(document: Mapping[str, Any]) -> dict[str, Any]:
        key = [document.get(f"k{place}", UNSET) for place in range(len(paths))]
        asked = ((name, f"f{place}") for place, name in enumerate(fields))
        known = {name: document[column] for name, column in asked if column in document}
        return {
            "id": document["id"],
            "partition_key": canonical_key(key),
            "modified_at": datetime.fromtimestamp(document["_ts"], UTC),
            "fields": msgspec.json.encode(known).decode(),
        }

    return pa.RecordBatch.from_pylist(list(map(row, page)), schema=_SCHEMA)


def _connection(options: Mapping[str, str]) -> tuple[dict[str, str], str]:
    check_secrets(options)
    if text := options.get(CONNECTION_STRING.lower()):
        return {CONNECTION: text}, CONNECTION
    return settings_in("cosmos", options), options.get("connection", CONNECTION)


def _needed(options: Mapping[str, str], name: str) -> str:
    value = options.get(name, "").strip()
    if not value:
        raise InputError(f"cosmos: option {name} is missing")
    return value


def _fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, equals, path = (part.strip() for part in pair.partition("="))
        try:
            parse_path(path)
        except SettingsError as error:
            raise InputError(f"cosmos: option fields has '{pair}'; accepted: name=/path ({error})") from None
        if not name or not equals or name in fields:
            raise InputError(f"cosmos: option fields has '{pair}'; accepted: name=/path, each name once")
        fields[name] = path
    return fields


def _number(options: Mapping[str, str], name: str) -> float | None:
    text = options.get(name.lower(), "").strip()
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = _NO_NUMBER
    if not 0 < number < float("inf"):
        raise InputError(f"cosmos: option {name} is '{text}'; accepted: a number above 0")
    return number


def _passes(error: AzureError) -> bool:
    """Worth another try: throttled, unavailable, or no answer at all."""
    return not isinstance(error, CosmosHttpResponseError) or error.status_code in _TRANSIENT


def _retry_after(error: AzureError) -> float:
    headers = error.headers if isinstance(error, CosmosHttpResponseError) else None
    delay = (headers or {}).get("x-ms-retry-after-ms")
    return float(delay) / 1000 if delay else _RETRY
