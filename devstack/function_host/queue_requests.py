"""The requests of Queue Storage that are made for every message: take, delete, hide longer, put; and how many there are.

Texts are as they are in the queue: whoever encodes them as base64 does so outside.
"""

from __future__ import annotations

from datetime import datetime
from email.utils import formatdate, parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import ServiceResponseError
from msgspec import Struct

from tidemark.foundation.azure.storage_requests import (
    HEADERS,
    Reply,
    SharedAccess,
    Signer,
    StorageRequests,
    Wire,
    authorization,
    path_of,
)

if TYPE_CHECKING:
    from azure.storage.queue.aio import QueueClient

_XML = {"Content-Type": "application/xml"}


class Taken(Struct):
    """A message that is hidden from others for a while. `pop_receipt` is what it can be settled with."""

    id: str
    content: str
    pop_receipt: str
    dequeue_count: int
    inserted_on: datetime
    expires_on: datetime
    next_visible_on: datetime


class QueueRequests:
    """Requests of one queue. They raise AzureError: HttpResponseError with the service's code as `error_code`,
    ResourceNotFoundError where there is no such queue or message.

    Takes address and key or signature of `client`. A message that is put may come twice, where the service said that it
    could not take it and had.
    """

    def __init__(self, client: QueueClient, wire: Wire, retries: int) -> None:
        address = urlsplit(client.url)
        self.name = client.queue_name
        self._queue = f"{address.scheme}://{address.netloc}{address.path.rstrip('/')}"
        key = getattr(client.credential, "account_key", None)
        signer: Signer = SharedAccess(address.query)
        if key is not None:
            signer = _QueueKey(AzureNamedKeyCredential(client.credential.account_name, key))
        self._requests = StorageRequests(wire, signer, retries)

    async def take(self, count: int, *, hidden_s: int) -> list[Taken]:
        """Up to `count` messages (32 at most), each hidden for so many seconds."""
        reply = await self._send("GET", f"/messages?numofmessages={count}&visibilitytimeout={hidden_s}")
        try:
            return [_taken(element) for element in ET.fromstring(reply.content)]  # noqa: S314 - of the service, over TLS
        except (ET.ParseError, TypeError, ValueError, KeyError) as error:
            raise ServiceResponseError(f"not a list of messages: {error}") from error

    async def delete(self, message: Taken) -> None:
        await self._send("DELETE", _message(message))

    async def hide(self, message: Taken, seconds: int) -> None:
        """Hides it so long from now on. What it can be settled with changes."""
        reply = await self._send("PUT", f"{_message(message)}&visibilitytimeout={seconds}")
        message.pop_receipt = reply.headers.get("x-ms-popreceipt", message.pop_receipt)

    async def put(self, content: str) -> None:
        body = f"<QueueMessage><MessageText>{escape(content)}</MessageText></QueueMessage>"
        await self._send("POST", "/messages", body.encode())

    async def create(self) -> None:
        """Makes the queue. Nothing happens where there is one of that name."""
        await self._send("PUT", "")

    async def _send(self, method: str, rest: str, body: bytes | None = None) -> Reply:
        headers = _XML if body is not None else {}
        return await self._requests.send(method, f"{self._queue}{rest}", headers, body)


def _message(message: Taken) -> str:
    return f"/messages/{quote(message.id, safe='')}?popreceipt={quote(message.pop_receipt, safe='')}"


def _taken(element: ET.Element) -> Taken:
    fields = {child.tag: child.text or "" for child in element}
    return Taken(
        id=fields["MessageId"],
        content=fields["MessageText"],
        pop_receipt=fields["PopReceipt"],
        dequeue_count=int(fields["DequeueCount"]),
        inserted_on=parsedate_to_datetime(fields["InsertionTime"]),
        expires_on=parsedate_to_datetime(fields["ExpirationTime"]),
        next_visible_on=parsedate_to_datetime(fields["TimeNextVisible"]),
    )


class _QueueKey:
    """Signs by the account's key, anew for each try."""

    def __init__(self, credential: AzureNamedKeyCredential) -> None:
        self._credential = credential

    async def sign(self, method: str, url: str, headers: dict[str, str]) -> str:
        headers["x-ms-date"] = date = formatdate(usegmt=True)
        path, name = path_of(url), self._credential.named_key.name
        version = HEADERS["x-ms-version"]
        signed = f"{method}\n\n{headers.get('Content-Type', '')}\n\nx-ms-date:{date}\nx-ms-version:{version}\n/{name}{path}"
        headers["Authorization"] = authorization(self._credential, signed)
        return url
