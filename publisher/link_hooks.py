# ruff: noqa: SLF001 - the private names of the SDK are what this module is for
"""Idempotent links on the connection stack of azure-eventhub 5.15: all its private names that Tidemark uses are here.

The SDK has no idempotent producer: its sender neither asks for the capability nor tells the properties of a link. What
is used instead is one level below: its AMQP client, to which a sender link is given that does. Tests of the contract
are in tests/unit/test_publisher_link_hooks.py; another version of the SDK is refused until they have been run with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from typing import Any, NoReturn

from azure.core.exceptions import AzureError, ClientAuthenticationError
from azure.eventhub import EventData
from azure.eventhub._buffered_producer._partition_resolver import generate_hash_code
from azure.eventhub._constants import GEOREPLICATION_SYMBOL, TIMEOUT_SYMBOL
from azure.eventhub._pyamqp._encode import encode_payload
from azure.eventhub._pyamqp.constants import LinkState
from azure.eventhub._pyamqp.error import AMQPException, ErrorCondition, MessageException, TokenAuthFailure
from azure.eventhub._pyamqp.message import BatchMessage, Message
from azure.eventhub._pyamqp.types import TYPE, VALUE, AMQPTypes
from azure.eventhub._transport._pyamqp_transport import PyamqpTransport
from azure.eventhub._utils import create_properties
from azure.eventhub.aio import EventHubProducerClient
from azure.eventhub.amqp import AmqpAnnotatedMessage

from publisher import failures
from publisher.errors import UnsupportedPublishingError
from publisher.model import Claims, Stamp
from publisher.ports import EncodedEvent, LinkError
from publisher.sequencing import numbers_of
from publisher.steps import FailureKind

SDK = "5.15."
CAPABILITY = b"com.microsoft:idempotent-producer"
PRODUCER_ID = b"com.microsoft:producer-id"
EPOCH = b"com.microsoft:producer-epoch"
NUMBER = b"com.microsoft:producer-sequence-number"
_KEYS = (PRODUCER_ID, EPOCH, NUMBER)
_TYPES = (AMQPTypes.long, AMQPTypes.short, AMQPTypes.int)
_DEFAULT_SIZE = 1024 * 1024  # the service's on the standard tier, where a link does not say
_CLOSING = 2.0  # seconds for a polite good-bye
_SERVER_ERRORS = 500  # HTTP status codes from here on may be gone at the next attempt
_POLL = 0.005  # seconds between two looks at a link that opens; the look itself waits for the socket

PublishableEvent = EventData | AmqpAnnotatedMessage


def check_sdk() -> None:
    """Raises UnsupportedPublishingError for a version of the SDK whose insides nobody has looked at."""
    found = version("azure-eventhub")
    if not found.startswith(SDK):
        raise UnsupportedPublishingError(
            f"azure-eventhub {found} is installed; idempotent publishing is known to work with {SDK}* only"
        )


# --- events


def _symbol(name: bytes) -> bytes:
    return b"\xa3" + bytes([len(name)]) + name


_NUMBER = struct.Struct(">i")
_BEFORE_ID, _BEFORE_EPOCH = _symbol(PRODUCER_ID) + b"\x81", _symbol(EPOCH) + b"\x61"
_BEFORE_NUMBER = _symbol(NUMBER) + b"\x71"
STAMP_SIZE = len(_BEFORE_ID) + 8 + len(_BEFORE_EPOCH) + 2 + len(_BEFORE_NUMBER) + 4
"""Bytes of a stamp, whatever its numbers: every one is written at its full width."""
_ANNOTATIONS = b"\x00\x53\x72"


def encode_event(event: PublishableEvent, *, stamped: bool) -> EncodedEvent:
    """The event as AMQP, encoded once and for good: numbers are put in when it is sent."""
    raw = event.raw_amqp_message if isinstance(event, EventData) else event
    message: Message = PyamqpTransport.to_outgoing_amqp_message(raw)  # type: ignore[no-untyped-call]
    if not stamped:
        return EncodedEvent(_encoded(message), b"")
    own = {
        name: value
        for name, value in (message.message_annotations or {}).items()
        if (name.encode() if isinstance(name, str) else name) not in _KEYS  # of an event that is forwarded
    }
    pairs, count = _annotations(own)
    size = STAMP_SIZE + len(pairs)
    if size < 0xFF and count + 6 <= 0xFF:
        opening = b"\xc1" + bytes([size + 1, count + 6])
    else:
        opening = b"\xd1" + struct.pack(">II", size + 4, count + 6)
    head = (_encoded(Message(header=message.header)) if message.header else b"") + _ANNOTATIONS + opening
    return EncodedEvent(head, pairs + _encoded(message._replace(header=None, message_annotations=None)))


def _annotations(own: dict[Any, Any]) -> tuple[bytes, int]:
    """The encoded keys and values of an event's own annotations, and how many those are."""
    if not own:
        return b"", 0
    section = _encoded(Message(message_annotations=own))
    if section[: len(_ANNOTATIONS)] != _ANNOTATIONS or section[3] not in {0xC1, 0xD1}:
        raise AssertionError(f"annotations in another encoding: {section[:12]!r}")
    if section[3] == 0xC1:
        return section[6:], section[5]
    return section[12:], int.from_bytes(section[8:12], "big")


def _encoded(message: Message) -> bytes:
    output = bytearray()
    encode_payload(output, message)
    return bytes(output)


def size_in_batch(event: EncodedEvent, *, stamped: bool) -> int:
    """Bytes that the event adds to a batch: itself, its stamp, and a data section around both."""
    size = len(event.head) + len(event.tail) + STAMP_SIZE * stamped
    return size + (5 if size < 256 else 8)


def stamped_events(events: Sequence[EncodedEvent], stamp: Stamp | None) -> list[bytes]:
    """The events as they are sent."""
    if stamp is None:
        return [head for head, _ in events]
    common = b"".join(
        (
            _BEFORE_ID,
            stamp.producer_group_id.to_bytes(8, "big"),
            _BEFORE_EPOCH,
            stamp.owner_level.to_bytes(2, "big"),
            _BEFORE_NUMBER,
        )
    )
    numbers = numbers_of(stamp.first, len(events))
    return [
        b"".join((head, common, _NUMBER.pack(number), tail))
        for (head, tail), number in zip(events, numbers, strict=True)
    ]


def partition_of_key(key: str, partition_ids: Sequence[str]) -> str:
    """The partition that the service would choose for a partition key. `partition_ids` in the order of the service."""
    # The SDK hashes characters where the service hashes bytes.
    found: int = generate_hash_code(key.encode().decode("latin-1"))  # type: ignore[no-untyped-call]
    return partition_ids[abs(found % len(partition_ids))]


# --- links


class SdkLinks:
    """The Links of an EventHubProducerClient, which is closed with them. A connection per partition, as the SDK has."""

    def __init__(self, client: EventHubProducerClient) -> None:
        check_sdk()
        if client._amqp_transport.KIND != "pyamqp":
            raise UnsupportedPublishingError(
                "uamqp_transport=True: idempotent publishing needs the SDK's own AMQP"
            )
        self._client = client
        self.namespace: str = client._address.hostname
        self.hub: str = client.eventhub_name

    async def partition_ids(self) -> list[str]:
        """Raises what the SDK raises."""
        return await self._client.get_partition_ids()

    async def open(self, partition_id: str, claims: Claims | None, *, timeout: float) -> SdkLink:
        link = None
        try:
            async with asyncio.timeout(timeout):
                auth = await self._client._create_auth_async(auth_uri=self._client._auth_uri)
                link = SdkLink(self._sender(partition_id, auth))
                await link.attach(claims)
                return link
        except BaseException as error:  # noqa: BLE001 - told apart below; nothing is swallowed
            if link is not None:
                await link.close()
            _refuse(error, claims, f"opening the link to {self.hub}/Partitions/{partition_id}")

    def _sender(self, partition_id: str, auth: Any) -> Any:
        client = self._client
        config = client._config
        transport = client._amqp_transport
        return transport.create_send_client(
            config=config,
            target=f"amqps://{client._address.hostname}{client._address.path}/Partitions/{partition_id}",
            auth=auth,
            network_trace=config.network_tracing,
            idle_timeout=client._idle_timeout and client._idle_timeout * transport.TIMEOUT_FACTOR,
            retry_policy=transport.create_retry_policy(config=config),  # which is not to retry at all
            keep_alive_interval=client._keep_alive,
            client_name=f"{client._container_id}-partition{partition_id}",
            link_properties=transport.create_link_properties(
                {TIMEOUT_SYMBOL: int(config.send_timeout * transport.TIMEOUT_FACTOR)}
            ),
            properties=create_properties(config.user_agent, amqp_transport=transport),
            msg_timeout=0,
        )

    async def close(self) -> None:
        await self._client.close()


class SdkLink:
    """A link on the SDK's AMQP client."""

    def __init__(self, sender: Any) -> None:
        self._sender = sender
        self._transport: Any = None
        self.claims = Claims()
        self.max_message_size = _DEFAULT_SIZE

    async def attach(self, claims: Claims | None) -> None:
        """Raises what the SDK raises."""
        sender = self._sender
        opening = asyncio.ensure_future(sender.open_async())
        try:
            await asyncio.shield(opening)
        finally:
            if not opening.done():
                opening.cancel()
                await asyncio.wait({opening})
            if sender._connection is not None:
                self._transport = sender._connection._transport
        await _until(sender.auth_complete_async)
        wanted = [GEOREPLICATION_SYMBOL] if claims is None else [GEOREPLICATION_SYMBOL, CAPABILITY]
        link = sender._session.create_sender_link(
            target_address=sender.target,
            link_credit=sender._link_credit,
            send_settle_mode=sender._send_settle_mode,
            rcv_settle_mode=sender._receive_settle_mode,
            max_message_size=sender._max_message_size,
            properties={**sender._link_properties, **_link_properties(claims)},
            desired_capabilities=wanted,
        )
        sender._link = link
        await link.attach()
        await _until(sender.client_ready_async)
        while link.get_state() is not LinkState.ATTACHED:  # it was refused, and the reason follows
            await sender._connection.listen(wait=sender._socket_timeout)
        self.max_message_size = link.remote_max_message_size or _DEFAULT_SIZE
        said = link.remote_properties or {}
        self.claims = Claims(*(said.get(key) for key in _KEYS))

    async def transfer(self, events: Sequence[EncodedEvent], stamp: Stamp | None, *, timeout: float) -> None:
        message = BatchMessage(data=stamped_events(events, stamp))
        try:
            async with asyncio.timeout(
                timeout + 1
            ):  # the SDK's own first; it does not watch the socket's writes
                await self._sender.send_message_async(message, timeout=timeout)
        except TimeoutError:
            story = f"no answer within {timeout:g} s"
            raise LinkError(FailureKind.UNKNOWN, story, link_lost=True) from None
        except AMQPException as error:
            self._raise(error)
        except (OSError, AzureError, ValueError) as error:
            raise LinkError(
                FailureKind.UNKNOWN, f"the connection was lost: {error}", link_lost=True
            ) from error

    def _raise(self, error: AMQPException) -> NoReturn:
        condition = _condition(error)
        # The SDK's word for "not delivered", and for an answer that it cannot read, is UnknownError.
        if isinstance(error, MessageException) and error.condition != ErrorCondition.UnknownError:
            kind = failures.of_rejection(condition)
            lost = kind is FailureKind.UNKNOWN
            raise LinkError(kind, f"rejected: {condition} {_text(error)}", link_lost=lost) from error
        cause = getattr(self._sender._link, "_error", None) or error
        condition = _condition(cause)
        kind = failures.of_loss(condition)
        raise LinkError(kind, f"the link was lost: {condition} {_text(cause)}", link_lost=True) from error

    async def close(self) -> None:
        with contextlib.suppress(Exception):  # what is left of a broken link
            async with asyncio.timeout(_CLOSING):
                await self._sender.close_async()
        transport = self._transport
        with contextlib.suppress(Exception):
            if transport is not None and transport.writer is not None:  # the SDK forgets the socket at times
                transport.writer.transport.abort()
                async with asyncio.timeout(_CLOSING):
                    await transport.close()


def _link_properties(claims: Claims | None) -> dict[bytes, Any]:
    """All three or none; null leaves it to the service."""
    if claims is None:
        return {}
    return {
        key: None if value is None else {TYPE: kind, VALUE: value}
        for key, kind, value in zip(_KEYS, _TYPES, claims, strict=True)
    }


async def _until(ready: Callable[[], Awaitable[bool]]) -> None:
    while not await ready():  # noqa: ASYNC110 - it is the SDK that looks, at a socket
        await asyncio.sleep(_POLL)


def _refuse(error: BaseException, claims: Claims | None, doing: str) -> NoReturn:
    """As a LinkError; what is no failure of the service or the network is raised as it is."""
    if isinstance(error, TimeoutError):
        raise LinkError(FailureKind.NOT_STORED, f"{doing}: no answer in time", link_lost=True) from None
    if isinstance(error, ClientAuthenticationError):
        raise LinkError(FailureKind.REFUSED, f"{doing}: {error}", link_lost=True) from error
    if isinstance(error, AMQPException):
        condition = _condition(error)
        with_state = claims is not None and claims.producer_group_id is not None
        kind = failures.of_attach(condition, with_state=with_state)
        if isinstance(error, TokenAuthFailure) and int(error.status_code or 500) < _SERVER_ERRORS:
            kind = FailureKind.REFUSED
        raise LinkError(kind, f"{doing}: {condition} {_text(error)}", link_lost=True) from error
    if isinstance(error, OSError | AzureError):
        raise LinkError(FailureKind.NOT_STORED, f"{doing}: {error}", link_lost=True) from error
    raise error


def _condition(error: Any) -> str:
    return _condition_text(getattr(error, "condition", None))


def _condition_text(condition: Any) -> str:
    value = getattr(condition, "value", condition)
    return value.decode() if isinstance(value, bytes) else str(value or "amqp:unknown")


def _text(error: Any) -> str:
    story = getattr(error, "description", None) or getattr(error, "message", None) or ""
    return story.decode(errors="replace") if isinstance(story, bytes) else str(story)
