"""Sends the requests to Table Storage that every evaluation needs: reads and writes of rows. Creating tables and transactions are
rare, and use the SDK.

The protocol is version 2019-02-02 of the service's REST interface, as JSON with minimal metadata: a property has a type where
JSON does not show it. An entity that is read and written again keeps properties of unknown types.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import datetime
from email.utils import formatdate
from math import isfinite
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import msgspec
from azure.core.credentials import AzureNamedKeyCredential
from azure.data.tables import EntityProperty

from tidemark.foundation.azure.storage_requests import (
    Reply,
    StorageRequests,
    Wire,
    authorization,
    path_of,
    signer_of,
)

if TYPE_CHECKING:
    from azure.data.tables.aio import TableServiceClient

Row = Mapping[str, Any]
"""A row, with its keys."""

INT32 = 2**31
"""Above the highest Edm.Int32; what is larger is written as Edm.Int64, which is text in JSON. Source: the Table service's types."""

_HEADERS = {"DataServiceVersion": "3.0", "Accept": "application/json;odata=minimalmetadata"}
_WRITE = {**_HEADERS, "Content-Type": "application/json", "Prefer": "return-no-content"}
_PAGE = "x-ms-continuation-Next"


class Entity(dict[str, Any]):
    """A row that was read."""

    etag: str = ""
    timestamp: str = ""

    @property
    def written(self) -> float:
        """When the row was last written, in seconds since the epoch; 0 if the service did not return it."""
        return datetime.fromisoformat(self.timestamp).timestamp() if self.timestamp else 0.0


Page = tuple[list[Entity], dict[str, str] | None]
"""Rows, and where the next page begins; None after the last page."""


class TableRequests:
    """Sends requests to one table, with the address and credential of `service`. Raises AzureErrors: HttpResponseError has the
    service's code as `error_code`.

    A failed request is repeated up to `retries` times; a new row only if the service answered that it was not written.
    """

    def __init__(self, service: TableServiceClient, name: str, wire: Wire, retries: int) -> None:
        address = urlsplit(service.url)
        self._table = f"{address.scheme}://{address.netloc}{address.path.rstrip('/')}/{name}"
        self._requests = StorageRequests(wire, signer_of(service.credential, _TableKey), retries)

    async def query(
        self, query: str, *, select: list[str] | None, top: int | None, page: dict[str, str] | None = None
    ) -> Page:
        """One page of the rows of a query, in key order: at most 1,000, or `top`."""
        options = {"$filter": query, **(page or {})}
        if select is not None:
            options["$select"] = ",".join(select)
        if top is not None:
            options["$top"] = str(top)
        response = await self._send("GET", "()", _HEADERS, options=options)
        answer = _read(response.content)
        following = {
            f"Next{key}": value
            for key in ("PartitionKey", "RowKey")
            if (value := response.headers.get(_PAGE + key))
        }
        return [entity_of(row) for row in answer["value"]], following or None

    async def get(self, partition: str, row: str) -> Entity:
        response = await self._send("GET", _keys(partition, row), _HEADERS)
        return entity_of(_read(response.content))

    async def create(self, row: Row) -> None:
        await self._send("POST", "", _WRITE, body=body_of(row))

    async def put(self, row: Row, etag: str | None = None) -> None:
        """Write a row, whether or not it exists; with an `etag`, only over the row that has it."""
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
    ) -> Reply:
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in (options or {}).items())
        return await self._requests.send(method, f"{self._table}{path}{query and '?'}{query}", headers, body)


class _TableKey:
    """Signs with the account key, anew for each attempt."""

    def __init__(self, credential: AzureNamedKeyCredential) -> None:
        self._credential = credential

    async def sign(self, method: str, url: str, headers: dict[str, str]) -> str:
        headers["x-ms-date"] = date = formatdate(usegmt=True)
        name = self._credential.named_key.name
        headers["Authorization"] = authorization(self._credential, f"{date}\n/{name}{path_of(url)}")
        return url


def _keys(partition: str, row: str) -> str:
    return f"(PartitionKey='{_key(partition)}',RowKey='{_key(row)}')"


def _key(text: str) -> str:
    return quote(text.replace("'", "''"), safe="~")


def body_of(row: Row) -> bytes:
    """A row as JSON for the service. Raises TypeError for a value that no property can have."""
    body: dict[str, Any] = {}
    for name, value in row.items():
        kind, written = _typed(name, value)
        if kind is not None:
            body[f"{name}@odata.type"] = kind
        if written is not None:
            body[name] = written
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:  # text that is no UTF-8 is escaped
        return json.dumps(body).encode()


def _read(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:  # text that is no UTF-8
        return json.loads(body)


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
    """A row from the service's JSON."""
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
