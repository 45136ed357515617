"""The requests that every decision makes of Table Storage, made here and sent by azure-core: a row, rows, a write.

A thousand targets make three thousand of them a minute. The SDK of tables takes 1.5 ms of CPU for each, in its generated
layers and thirteen policies; azure-core's own transport, retries and tokens with requests made by hand take half of
that (`benchmarks.function_path`). What is rare stays the SDK's: tables, transactions.

The wire is version 2019-02-02 of the service's REST interface, JSON with minimal metadata: a property is typed where
JSON cannot tell its type. An entity that is read and written again keeps properties whose types nobody here knows.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from datetime import datetime
from email.utils import formatdate
from math import isfinite
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from azure.core import AsyncPipelineClient
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import HttpResponseError
from azure.core.pipeline import AsyncPipeline
from azure.core.pipeline.policies import (
    AsyncBearerTokenCredentialPolicy,
    AsyncRetryPolicy,
    AzureSasCredentialPolicy,
    SansIOHTTPPolicy,
)
from azure.core.rest import HttpRequest
from azure.data.tables import EntityProperty
from yarl import URL

from foundation.version import VERSION

if TYPE_CHECKING:
    from azure.core.pipeline import PipelineRequest
    from azure.core.pipeline.transport import AsyncHttpTransport
    from azure.core.rest import AsyncHttpResponse
    from azure.data.tables.aio import TableServiceClient

Row = Mapping[str, Any]
"""A row with its keys."""

SCOPE = "https://storage.azure.com/.default"
INT32 = 2**31

_HEADERS = {
    "x-ms-version": "2019-02-02",
    "DataServiceVersion": "3.0",
    "Accept": "application/json;odata=minimalmetadata",
    "User-Agent": f"tidemark/{VERSION}",
}
_WRITE = {**_HEADERS, "Content-Type": "application/json", "Prefer": "return-no-content"}
_PAGE = "x-ms-continuation-Next"


class Entity(dict[str, Any]):
    """A row as it was read."""

    etag: str = ""
    timestamp: str = ""

    @property
    def written(self) -> float:
        """When it was written last, seconds since the epoch; 0 where the service did not say."""
        return datetime.fromisoformat(self.timestamp).timestamp() if self.timestamp else 0.0


Page = tuple[list[Entity], dict[str, str] | None]
"""Rows, and where the next page begins: None after the last."""


class TableRequests:
    """Requests of one table. They raise AzureError: HttpResponseError with the service's code as `error_code`.

    Takes address and credential of `service`, and its `transport`, which `service` opens and closes. Reads and writes
    that can be repeated are, `retries` times; a new row only where the service says that it was not written.
    """

    def __init__(
        self, service: TableServiceClient, name: str, transport: AsyncHttpTransport[Any, Any], retries: int
    ) -> None:
        address = urlsplit(service.url)
        self._table = f"{address.scheme}://{address.netloc}{address.path.rstrip('/')}/{name}"
        retry = AsyncRetryPolicy(retry_total=retries, retry_backoff_factor=0.5)
        policies = [retry, _signing(service.credential)]
        pipeline = AsyncPipeline(transport, policies=policies)
        self._client = AsyncPipelineClient(self._table, pipeline=pipeline)

    async def query(
        self, query: str, *, select: list[str] | None, top: int | None, page: dict[str, str] | None = None
    ) -> Page:
        """Rows of a query in key order: those of one page, 1,000 or `top` at most."""
        options = {"$filter": query, **(page or {})}
        if select is not None:
            options["$select"] = ",".join(select)
        if top is not None:
            options["$top"] = str(top)
        response = await self._send("GET", "()", _HEADERS, options=options)
        found = json.loads(response.content)
        following = {
            f"Next{key}": value
            for key in ("PartitionKey", "RowKey")
            if (value := response.headers.get(_PAGE + key))
        }
        return [entity_of(each) for each in found["value"]], following or None

    async def get(self, partition: str, row: str) -> Entity:
        response = await self._send("GET", _keys(partition, row), _HEADERS)
        return entity_of(json.loads(response.content))

    async def create(self, row: Row) -> None:
        await self._send("POST", "", _WRITE, body=body_of(row))

    async def put(self, row: Row, etag: str | None = None) -> None:
        """Writes a row whatever is there; with an `etag`, only over the row that has it."""
        headers = _WRITE if etag is None else {**_WRITE, "If-Match": etag}
        await self._send("PUT", _keys(row["PartitionKey"], row["RowKey"]), headers, body=body_of(row))

    async def _send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        *,
        options: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> AsyncHttpResponse:
        query = "&".join(f"{quote(name)}={quote(value, safe='')}" for name, value in (options or {}).items())
        url = str(URL(f"{self._table}{path}{query and '?'}{query}"))  # as it is sent: it is signed
        request = HttpRequest(method, url, headers=dict(headers), content=body)
        response: AsyncHttpResponse = await self._client.send_request(request)
        if response.status_code >= 400:
            error = HttpResponseError(response=response)
            setattr(error, "error_code", _code(response))  # noqa: B010 - undeclared, as the SDKs add it
            raise error
        return response


class _SharedKey(SansIOHTTPPolicy[Any, Any]):
    """Signs by the account's key (Shared Key Lite for the Table service), anew for each try."""

    def __init__(self, credential: AzureNamedKeyCredential) -> None:
        self._credential = credential

    def on_request(self, request: PipelineRequest[Any]) -> None:
        made = request.http_request
        name, key = self._credential.named_key
        date = formatdate(usegmt=True)
        text = f"{date}\n/{name}{URL(made.url).raw_path}"
        digest = hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()
        made.headers["x-ms-date"] = date
        made.headers["Authorization"] = f"SharedKeyLite {name}:{base64.b64encode(digest).decode()}"


def _signing(credential: Any) -> Any:
    """The policy for a credential of the SDK's client."""
    if isinstance(credential, AzureNamedKeyCredential):
        return _SharedKey(credential)
    if isinstance(credential, AzureSasCredential):
        return AzureSasCredentialPolicy(credential)
    return AsyncBearerTokenCredentialPolicy(credential, SCOPE)


def _keys(partition: str, row: str) -> str:
    return f"(PartitionKey='{_key(partition)}',RowKey='{_key(row)}')"


def _key(text: str) -> str:
    return quote(text.replace("'", "''"), safe="~")


def body_of(row: Row) -> bytes:
    """A row as the service takes it. Raises TypeError for what no property can be."""
    body: dict[str, Any] = {}
    for name, value in row.items():
        kind, told = _typed(name, value)
        if kind is not None:
            body[f"{name}@odata.type"] = kind
        if told is not None:
            body[name] = told
    return json.dumps(body).encode()  # text that is no UTF-8 travels escaped


def _typed(name: str, value: Any) -> tuple[str | None, Any]:
    if value is None or type(value) in {str, bool}:
        return None, value
    if type(value) is bytes:
        return "Edm.Binary", base64.b64encode(value).decode()
    if type(value) is int:
        return (None, value) if -INT32 <= value < INT32 else ("Edm.Int64", str(value))
    if type(value) is float:
        return "Edm.Double", value if isfinite(value) else _NOT_FINITE[str(value)]
    if isinstance(value, EntityProperty):
        return str(getattr(value.edm_type, "value", value.edm_type)), value.value
    raise TypeError(
        f"column '{name}' holds a {type(value).__name__}; accepted are text, bytes, numbers, true and false"
    )


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def entity_of(read: Mapping[str, Any]) -> Entity:
    """A row out of the service's JSON."""
    entity = Entity()
    for name, value in read.items():
        if name.endswith("@odata.type"):
            continue
        if name.startswith("odata."):
            if name == "odata.etag":
                entity.etag = value
            continue
        kind = read.get(f"{name}@odata.type")
        if name == "Timestamp":
            entity.timestamp = value
        elif kind == "Edm.Binary":
            entity[name] = base64.b64decode(value)
        elif kind == "Edm.Double":
            entity[name] = float(value)
        elif kind == "Edm.Int64":
            entity[name] = int(value)
        elif kind in {None, "Edm.String", "Edm.Int32", "Edm.Boolean"}:
            entity[name] = value
        else:
            entity[name] = EntityProperty(value, kind)
    return entity


def _code(response: AsyncHttpResponse) -> str:
    """The service's word for an error: from JSON, from XML where its front answers, else from a header."""
    body = response.content
    try:
        return str(json.loads(body)["odata.error"]["code"])
    except (ValueError, LookupError, TypeError):
        _, _, rest = body.partition(b"<Code>")
        code = rest.partition(b"</Code>")[0].decode("ascii", "replace")
        return code or response.headers.get("x-ms-error-code", "")
