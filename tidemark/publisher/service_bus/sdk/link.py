"""Uses senders of the SDK for one transfer at a time, and reads from their errors what became of it.

A contract test checks the private names of azure-servicebus that this module and `message_sizes` use against the pinned version:
the limits of the link, a batch of encoded messages, the management request, and the retries of the sender, which are switched
off because they would send again what may have been accepted. Import this module through
tidemark.publisher.service_bus.sdk.sdk_way, which checks the version.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from azure.servicebus import ServiceBusMessageBatch, ServiceBusSender
from azure.servicebus._common import constants, mgmt_handlers
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.constants import ConnectionState, LinkState
from azure.servicebus._pyamqp.error import ErrorCondition, MessageException, TokenAuthFailure
from azure.servicebus._pyamqp.message import Message, Properties
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.aio import ServiceBusSender as AsyncServiceBusSender
from azure.servicebus.exceptions import MessageSizeExceededError, OperationTimeoutError, ServiceBusError

from tidemark.publisher.blocking import wait_if_needed
from tidemark.publisher.errors import PublishSettingsError
from tidemark.publisher.sdk_insides import CHANGED_SDK_ERRORS
from tidemark.publisher.service_bus.core import send_steps as steps
from tidemark.publisher.service_bus.core.packing import Limits
from tidemark.publisher.service_bus.sdk import public_sdk
from tidemark.publisher.service_bus.sdk.message_sizes import Encoder, batch_envelope, scheduling_entry
from tidemark.publisher.service_bus.sdk.public_sdk import NEVER

_Number = TypeVar("_Number", int, float)
_SIZE = re.compile(r"size:\s*(\d+) bytes")
_LIMIT = re.compile(r"limit \((\d+) bytes\)")
_WAIT = re.compile(r"wait (\d+(?:\.\d+)?) seconds?")

# Temporary refusals: the service is busy, is moving the entity, or has an internal error.
_PASSING = {
    "com.microsoft:server-busy",
    "com.microsoft:container-close",
    "com.microsoft:entity-being-moved",
    "amqp:internal-error",
}


class Link(public_sdk.Link):
    """A link over private names of the SDK."""

    def __init__(self, sender: AsyncServiceBusSender | ServiceBusSender, timeout: float) -> None:
        super().__init__(sender, timeout)
        self._is_suspect = False  # after an unexpected error, the link is attached again
        if sender._amqp_transport.KIND != PyamqpTransport.KIND:
            raise PublishSettingsError(
                "the sender was created with uamqp_transport=True, accepted: the SDK's own transport"
            )
        self.sender._config.retry_total = 0

    def request_overhead(self) -> int:
        """Measured with the SDK's own properties."""
        transport = self.sender._amqp_transport
        properties: dict[str | bytes, Any] = {
            constants.ASSOCIATEDLINKPROPERTYNAME: transport.get_handler_link_name(self.sender._handler),
            constants.REQUEST_RESPONSE_TIMEOUT: transport.AMQP_UINT_VALUE(int(self._timeout * 1000)),
            "operation": constants.REQUEST_RESPONSE_SCHEDULE_MESSAGE_OPERATION,
            "type": constants.MGMT_REQUEST_OP_TYPE_ENTITY_MGMT,
        }
        request = Message(
            value={constants.MGMT_REQUEST_MESSAGES: [b"x" * 256]},  # the long forms of list and map
            properties=Properties(message_id="0" * 36, reply_to=self.sender._mgmt_target),
            application_properties=properties,
        )
        return len(encode_payload(bytearray(), request)) - 256

    async def _attached(self) -> Limits:
        if self._is_suspect or _gone(self.sender):
            await wait_if_needed(self.sender._close_handler())
        enter = getattr(self.sender, "__aenter__", None) or self.sender.__enter__
        await wait_if_needed(enter())
        limits = Limits(
            batch=self.sender._max_batch_size_on_link, message=self.sender._max_message_size_on_link
        )
        self._is_suspect = False
        return limits

    def _prepared(self, effect: steps.Transfer, encoder: Encoder) -> Callable[[], Any]:
        sender = self.sender
        if encoder.schedule_at is None:
            return partial(sender.send_messages, outgoing(sender, effect, encoder), timeout=self._timeout)
        return partial(
            sender._mgmt_request_response_with_retry,
            constants.REQUEST_RESPONSE_SCHEDULE_MESSAGE_OPERATION,
            {
                constants.MGMT_REQUEST_MESSAGES: [
                    scheduling_entry(item.message_id, item.session_id, item.partition_key, item.encoded)
                    for item in effect.items
                ]
            },
            mgmt_handlers.schedule_op,
            timeout=self._timeout,
        )

    def _answer_to(self, error: BaseException) -> steps.Answer:
        if isinstance(error, ServiceBusError):
            return answer_to(error)
        self._is_suspect = True
        return steps.Unknown(self._unexpected(error))

    def _not_sent(self, error: BaseException) -> steps.Answer:
        return not_sent(error) if isinstance(error, ServiceBusError) else steps.Busy(self._unexpected(error))

    def _unexpected(self, error: BaseException) -> str:
        if isinstance(error, CHANGED_SDK_ERRORS):
            self.failure = error
        return f"unexpected {type(error).__name__}: {error}"


def outgoing(sender: Any, effect: steps.Transfer, encoder: Encoder) -> ServiceBusMessageBatch:
    """The batch that the SDK sends, with messages that are encoded already.

    A single message takes the place of the batch's own message, and the transport sends it unchanged.
    """
    first = effect.items[0]
    batch = ServiceBusMessageBatch(amqp_transport=sender._amqp_transport)
    batch._count = len(effect.items)
    if effect.singly:
        batch._message = encoder.wire(first)
    else:
        batch._message = batch_envelope(first.message_id, first.session_id, first.partition_key)
        batch._message[5] = [item.encoded for item in effect.items]
    return batch


def answer_to(error: ServiceBusError) -> steps.Answer:
    """The answer for an error after the transfer. Only a refusal by the service proves that nothing was accepted."""
    reason = _story(error)
    if isinstance(error, MessageSizeExceededError):
        return steps.TooLarge(reason, _number(_SIZE, reason, int), _number(_LIMIT, reason, int))
    if not _refused_by_service(error) or isinstance(error, OperationTimeoutError):
        return steps.Unknown(reason)
    if _condition(error) in _PASSING:
        return steps.Busy(reason, _number(_WAIT, reason, float))
    return steps.Rejected(reason)


def not_sent(error: ServiceBusError) -> steps.Answer:
    """The answer for an error while the link was attached, when nothing was sent."""
    reason = _story(error)
    if isinstance(error, tuple(NEVER)):
        return steps.Rejected(reason)
    return steps.Busy(reason, _number(_WAIT, reason, float))


def _story(error: ServiceBusError) -> str:
    """The SDK's text as a sentence, without the condition that it appends, and with the reason for a refused token, which it omits."""
    text = str(error).partition(" Error condition:")[0]
    inner = error.inner_exception
    if isinstance(inner, TokenAuthFailure):
        text = " ".join(str(inner).split())
    condition = _condition(error)
    advice = next((advice for kind, advice in NEVER.items() if isinstance(error, kind)), None)
    return text.rstrip(". ") + (f" ({condition})" if condition else "") + (f"; {advice}" if advice else "")


def _refused_by_service(error: ServiceBusError) -> bool:
    inner = error.inner_exception
    if isinstance(inner, MessageException):
        return inner.condition not in (ErrorCondition.UnknownError, ErrorCondition.ClientError)
    return error._status_code is not None


def _gone(sender: Any) -> bool:
    """Whether the link is detached or the connection closed, and the SDK has not reacted yet.

    It would send the transfer nevertheless; now it is still certain that nothing was sent. The service detaches a link after
    ten idle minutes, and the SDK's keep-alive notices it within 30 seconds.
    """
    if not sender._running:
        return False
    handler = sender._handler
    return (
        handler._link.state is not LinkState.ATTACHED
        or handler._connection.state is not ConnectionState.OPENED
    )


def _condition(error: ServiceBusError) -> str:
    condition = error._condition
    return str(getattr(condition, "value", condition) or "").removeprefix("b'").removesuffix("'")


def _number(pattern: re.Pattern[str], text: str, kind: Callable[[str], _Number]) -> _Number | None:
    match = pattern.search(text)
    return kind(match[1]) if match else None
