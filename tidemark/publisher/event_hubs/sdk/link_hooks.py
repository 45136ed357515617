"""Idempotent links on the connection stack of azure-eventhub 5.15. The modules of this folder use its private names.

The SDK has no idempotent producer: its sender does not ask for the capability, and does not return the properties of a link.
So this module uses the AMQP client below it, and gives that a sender link which does both. The tests of this contract are in
tests/unit/publisher/event_hubs/test_publisher_link_hooks.py. Import this module through tidemark.publisher.event_hubs.sdk.links,
which checks the version.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn

from azure.core.exceptions import AzureError, ClientAuthenticationError
from azure.eventhub._constants import GEOREPLICATION_SYMBOL, TIMEOUT_SYMBOL
from azure.eventhub._pyamqp import constants
from azure.eventhub._pyamqp.error import AMQPException, TokenAuthFailure
from azure.eventhub._pyamqp.message import BatchMessage
from azure.eventhub._pyamqp.types import TYPE, VALUE, AMQPTypes
from azure.eventhub._utils import create_properties
from azure.eventhub.aio import EventHubProducerClient
from azure.eventhub.exceptions import EventHubError

from tidemark.publisher.cancellation import cancel_count, finish_before_cancelling
from tidemark.publisher.errors import UnsupportedPublishingError
from tidemark.publisher.event_hubs.core import failures
from tidemark.publisher.event_hubs.core.steps import FailureKind
from tidemark.publisher.event_hubs.ports.links import EncodedEvent, InsidesError, LinkError
from tidemark.publisher.event_hubs.sdk import single_frames
from tidemark.publisher.event_hubs.sdk.event_encoding import STAMP_KEYS, measured_event, stamped_events
from tidemark.publisher.event_hubs.sdk.links import created_at_of
from tidemark.publisher.model import Claims, Stamp
from tidemark.publisher.sdk_insides import CHANGED_SDK_ERRORS

CAPABILITY = b"com.microsoft:idempotent-producer"
_TYPES = (AMQPTypes.long, AMQPTypes.short, AMQPTypes.int)
_DEFAULT_SIZE = 1024 * 1024  # of the standard tier, for a link that announces none
_CLOSING = 2.0  # seconds to close a link; chosen
_SERVER_ERRORS = 500  # from this HTTP status on, another attempt may succeed
_NAMES = "check the hub's name and the namespace of the connection"
_RIGHTS = (
    "check the connection's key or identity: publishing needs the right Send (Azure Event Hubs Data Sender)"
)
_POLL = 0.005  # seconds between two checks of a link that opens; the check itself waits for the socket


class SdkLinks:
    """The Links of an EventHubProducerClient, which they close. Each partition has a connection, as in the SDK."""

    encode = staticmethod(measured_event)

    def __init__(self, client: EventHubProducerClient) -> None:
        if client._amqp_transport.KIND != "pyamqp":
            raise UnsupportedPublishingError(
                "uamqp_transport=True: idempotent publishing needs the SDK's own AMQP"
            )
        self._client = client
        self.namespace: str = client._address.hostname
        self.hub: str = client.eventhub_name

    async def partition_ids(self) -> list[str]:
        try:
            return await self._client.get_partition_ids()
        except Exception as error:  # distinguished below
            cause = error.__context__ if isinstance(error, EventHubError) else None
            _raise_link_error(
                cause or error, None, f"asking {self.namespace} for the partitions of {self.hub}"
            )

    async def created_at(self) -> str | None:
        return await created_at_of(self._client)

    async def open(self, partition_id: str, claims: Claims | None, *, timeout: float) -> SdkLink:
        link = None
        try:
            async with asyncio.timeout(timeout):
                auth = await self._client._create_auth_async(auth_uri=self._client._auth_uri)
                link = SdkLink(self._sender(partition_id, auth))
                await link.attach(claims)
                return link
        except BaseException as error:  # distinguished below; nothing is swallowed
            if link is not None:
                await link.close()
            _raise_link_error(error, claims, f"opening a link to {self.hub} of {self.namespace}")

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
        await _wait_until(sender.auth_complete_async)
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
        await _wait_until(sender.client_ready_async)
        await _wait_until(self._is_attached)  # if it was refused, the reason follows
        self.max_message_size = link.remote_max_message_size or _DEFAULT_SIZE
        properties = link.remote_properties or {}
        self.claims = Claims(*(properties.get(key) for key in STAMP_KEYS))

    async def _is_attached(self) -> bool:
        sender = self._sender
        if sender._link.get_state() is constants.LinkState.ATTACHED:
            return True
        await sender._connection.listen(wait=sender._socket_timeout)
        return False

    async def transfer(self, events: Sequence[EncodedEvent], stamp: Stamp | None, *, timeout: float) -> None:
        delivery = _Delivery(stamped_events(events, stamp), timeout)
        try:
            await self._send(delivery)
        except TimeoutError:
            _raise_unanswered(f"no answer within {timeout:g} s")
        except AMQPException as error:
            self._raise_lost_link(delivery, error)
        except LinkError:
            raise
        except Exception as error:
            reason = f"the connection was lost: {type(error).__name__}: {error}"
            raise _error_type_of(error)(FailureKind.UNKNOWN, reason, link_lost=True) from error
        if delivery.reason is constants.LinkDeliverySettleReason.TIMEOUT:
            if not delivery.is_out:  # the SDK checks the time before it sends
                raise LinkError(FailureKind.NOT_STORED, f"not sent within {timeout:g} s", link_lost=True)
            _raise_unanswered(f"no answer within {timeout:g} s")
        if delivery.reason is constants.LinkDeliverySettleReason.NOT_DELIVERED:
            self._raise_lost_link(delivery)
        if constants.SEND_DISPOSITION_ACCEPT not in delivery.state:
            _raise_rejection(delivery.state)

    async def _send(self, delivery: _Delivery) -> None:
        """Send and wait for the answer, also if the caller is cancelled meanwhile. Raises what the SDK raises."""
        if delivery.size > single_frames.LARGEST:
            await finish_before_cancelling(self._deliver(delivery))
            return
        try:
            await self._deliver(delivery)  # a task would be a fifth of the work for a small delivery
        except asyncio.CancelledError:
            # Reads of the SDK may be cancelled at any point, as the SDK does every 0.2 s; its writes may not.
            if not delivery.is_out:
                raise
            await finish_before_cancelling(self._answer(delivery))

    async def _deliver(self, delivery: _Delivery) -> None:
        # The SDK's own timeout covers neither writes nor a token that is fetched.
        async with asyncio.timeout(delivery.timeout + 1):
            if delivery.size <= single_frames.LARGEST:
                await self._deliver_in_one_frame(delivery)
            if delivery.pending is None:
                delivery.pending = await self._sender._link.send_transfer(
                    BatchMessage(data=delivery.events),
                    on_send_complete=delivery.settle,
                    timeout=delivery.timeout,
                    send_async=True,
                )
            await self._answer(delivery)

    async def _deliver_in_one_frame(self, delivery: _Delivery) -> None:
        """Send the events and read the next frame, if nothing needs the SDK's own way. That may go on where this ends."""
        sender = self._sender
        if not (single_frames.is_free(sender) and await sender.client_ready_async()):
            return
        delivery.pending, frame = single_frames.begin(
            sender, delivery.events, delivery.settle, delivery.timeout
        )
        await single_frames.write(sender, frame)
        await single_frames.read_next_frame(sender)

    async def _answer(self, delivery: _Delivery) -> None:
        while delivery.reason is None:
            if not await self._sender.do_work_async():
                raise OSError("it was closed")

    def _raise_lost_link(self, delivery: _Delivery, error: AMQPException | None = None) -> NoReturn:
        cause = getattr(self._sender._link, "_error", None) or error
        condition = _condition(cause)
        kind = failures.of_loss(condition)
        if kind is FailureKind.UNKNOWN and delivery.pending is None:
            kind = FailureKind.NOT_STORED  # it was lost before the transfer
        reason = f"the link was lost: {condition} {_description(cause)}"
        raise LinkError(kind, reason, link_lost=True) from error

    async def close(self) -> None:
        with contextlib.suppress(Exception):  # the link may be broken
            async with asyncio.timeout(_CLOSING):
                await self._sender.close_async()
        transport = self._transport
        with contextlib.suppress(Exception):
            if transport is not None and transport.writer is not None:  # the SDK sometimes forgets the socket
                transport.writer.transport.abort()
                async with asyncio.timeout(_CLOSING):
                    await transport.close()


class _Delivery:
    def __init__(self, events: list[bytes], timeout: float) -> None:
        self.events = events
        self.size = sum(map(len, events)) + 8 * len(events)
        self.timeout = timeout
        self.pending: Any = None
        self.reason: constants.LinkDeliverySettleReason | None = None
        self.state: dict[str, Any] = {}

    async def settle(self, reason: constants.LinkDeliverySettleReason, state: dict[str, Any] | None) -> None:
        """Called by the SDK."""
        self.reason, self.state = reason, state or {}

    @property
    def is_out(self) -> bool:
        """Whether all of it was written."""
        return self.pending is not None and bool(self.pending.sent)


def _raise_unanswered(reason: str) -> NoReturn:
    raise LinkError(FailureKind.UNKNOWN, reason, link_lost=True) from None


def _raise_rejection(state: dict[str, Any]) -> NoReturn:
    """Raise the LinkError of an answer that does not accept the events."""
    error = (state.get(constants.SEND_DISPOSITION_REJECT) or [None])[0]
    if error is None:
        _raise_unanswered(f"an answer without a meaning: {state!r}")
    condition = _as_text(error[0])
    kind = failures.of_rejection(condition)
    lost = kind is FailureKind.UNKNOWN
    raise LinkError(kind, f"rejected: {condition} {_as_text(error[1] or b'')}", link_lost=lost)


def _link_properties(claims: Claims | None) -> dict[bytes, Any]:
    """The properties that claim an identity: all three or none. With null, the service chooses a value."""
    if claims is None:
        return {}
    return {
        key: None if value is None else {TYPE: kind, VALUE: value}
        for key, kind, value in zip(STAMP_KEYS, _TYPES, claims, strict=True)
    }


async def _wait_until(ready: Callable[[], Awaitable[bool]]) -> None:
    before = cancel_count()
    while not await ready():
        if cancel_count() > before:  # asyncio.wait_for of Python 3.11, which the SDK uses, may swallow one
            raise asyncio.CancelledError
        await asyncio.sleep(_POLL)


def _raise_link_error(error: BaseException, claims: Claims | None, doing: str) -> NoReturn:
    """Raise the error as a LinkError. A BaseException that is no Exception is raised unchanged."""
    if not isinstance(error, Exception):
        raise error
    kind, reason = _classify(error, claims)
    raise _error_type_of(error)(kind, f"{doing}: {reason}", link_lost=True) from error


def _classify(error: Exception, claims: Claims | None) -> tuple[FailureKind, str]:
    if isinstance(error, TimeoutError):
        return FailureKind.NOT_STORED, "no answer in time"
    if isinstance(error, ClientAuthenticationError):
        return FailureKind.REFUSED, str(error)
    if isinstance(error, AMQPException):
        condition = _condition(error)
        with_state = claims is not None and claims.producer_group_id is not None
        kind = failures.of_attach(condition, with_state=with_state)
        if isinstance(error, TokenAuthFailure) and int(error.status_code or 500) < _SERVER_ERRORS:
            kind = FailureKind.REFUSED
        reason = f"{_error_text(error)} ({condition})"
        if kind is FailureKind.REFUSED:
            reason += f"; {_NAMES if condition == 'amqp:not-found' else _RIGHTS}"
        return kind, reason
    if isinstance(error, OSError | AzureError | EventHubError):
        return FailureKind.NOT_STORED, str(error)
    return FailureKind.NOT_STORED, f"unexpected {type(error).__name__}: {error}"


def _error_type_of(error: Exception) -> type[LinkError]:
    return InsidesError if isinstance(error, CHANGED_SDK_ERRORS) else LinkError


def _condition(error: Any) -> str:
    condition = getattr(error, "condition", None)
    return _as_text(getattr(condition, "value", condition) or "amqp:unknown")


def _description(error: Any) -> str:
    return _as_text(getattr(error, "description", None) or getattr(error, "message", None) or "")


def _error_text(error: AMQPException) -> str:
    """The text of the error on one line, without a final period, so that the sentence can be continued."""
    return " ".join((_description(error) or str(error)).split()).rstrip(". ")


def _as_text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
