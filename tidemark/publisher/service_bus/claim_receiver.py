"""The receive side of claim checks: reads the body, calls a handler, settles the message, and clears the blob away.

In which order, and what follows from it:

    mark     handler, mark the blob, complete. If completing fails, the next delivery finds the mark, is completed, and the handler is
             not called again. So does a copy that the sender sent twice.
    delete   handler, complete, delete the blob. If completing fails, the next delivery calls the handler again. A second copy of the
             message finds no blob, and is a dead letter.
    keep     handler, complete. A lifecycle rule deletes the blob.

A process that ends between the handler and what follows leaves the message to the next delivery: handlers are called at least once.
"""

from __future__ import annotations

import enum
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar, cast

from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiver
from azure.servicebus.aio import ServiceBusReceiver as AsyncServiceBusReceiver
from msgspec import Struct

from tidemark.publisher.blocking import blocking, run_without_loop, wait_if_needed
from tidemark.publisher.errors import PublishError, PublishSettingsError
from tidemark.publisher.service_bus.claim_check import ClaimCheck, SyncClaimCheck
from tidemark.publisher.service_bus.core.errors import (
    ClaimDamagedError,
    ClaimMissingError,
    ClaimSettledError,
)

_log = logging.getLogger(__name__)

_Function = TypeVar("_Function", bound=Callable[..., Any])
Handler = Callable[[ServiceBusReceivedMessage, bytes], Awaitable[None] | None]
"""Takes a message and its body."""


class ClaimPolicy(Struct, frozen=True):
    """`after`: what becomes of a blob whose message was processed (see the module). `gone`: what becomes of a message without its
    blob: a dead letter, whose reason is claim_missing, or another delivery.
    """

    after: Literal["mark", "delete", "keep"] = "mark"
    gone: Literal["dead_letter", "abandon"] = "dead_letter"

    def __post_init__(self) -> None:
        for name, accepted in (("after", ("mark", "delete", "keep")), ("gone", ("dead_letter", "abandon"))):
            if getattr(self, name) not in accepted:
                raise PublishSettingsError(
                    f"{name} is {getattr(self, name)!r}, accepted: {', '.join(accepted)}"
                )


class Processed(enum.Enum):
    """What became of a message."""

    COMPLETED = "completed"
    DUPLICATE = "duplicate"
    """Completed without the handler: another delivery or copy of it was processed."""
    DEAD_LETTERED = "dead-lettered"
    ABANDONED = "abandoned"
    """The service delivers it again: the handler or the storage failed."""
    UNSETTLED = "unsettled"
    """The service did not take the settlement, such as after the lock has expired. It delivers the message again."""


class ClaimReceiver:
    """Processes the messages of a receiver in PEEK_LOCK mode; keep locks alive with the SDK's AutoLockRenewer if handlers are slow."""

    def __init__(
        self,
        receiver: AsyncServiceBusReceiver | ServiceBusReceiver,
        claim_check: ClaimCheck,
        policy: ClaimPolicy | None = None,
    ) -> None:
        """Without a policy it is that of a queue; for a subscription, whose siblings read the same blobs, it is "keep"."""
        self._receiver: Any = receiver
        self._claims = claim_check
        is_of_topic = "/subscriptions/" in receiver.entity_path.lower()
        self._policy = policy or ClaimPolicy(after="keep" if is_of_topic else "mark")

    async def process(self, message: ServiceBusReceivedMessage, handler: Handler) -> Processed:
        """Process one message and settle it. An exception of the handler is logged, and the message abandoned.

        Raises PublishSettingsError where the storage refuses for good; the message is abandoned.
        """
        try:
            body = await self._claims.restore(message)
        except ClaimSettledError as error:
            _log.info("message %s: %s", message.message_id, error)
            return await self._settle("complete_message", message, Processed.DUPLICATE)
        except (ClaimMissingError, ClaimDamagedError) as error:
            return await self._refuse(message, error)
        except PublishError as error:
            return await self._abandon(message, error)
        try:
            await wait_if_needed(handler(message, body))
            if self._policy.after == "mark":
                await self._claims.mark_settled(message)
        except Exception as error:  # whatever a handler raises
            return await self._abandon(message, error)
        return await self._complete(message)

    async def process_all(self, handler: Handler) -> dict[Processed, int]:
        """Process messages until the receiver has no more (its `max_wait_time`). Returns how many became what."""
        counts = dict.fromkeys(Processed, 0)
        if hasattr(self._receiver, "__aiter__"):
            async for message in self._receiver:
                counts[await self.process(message, handler)] += 1
        else:
            for message in self._receiver:
                counts[await self.process(message, handler)] += 1
        return counts

    async def _complete(self, message: ServiceBusReceivedMessage) -> Processed:
        outcome = await self._settle("complete_message", message, Processed.COMPLETED)
        if outcome is Processed.COMPLETED and self._policy.after == "delete":
            try:
                await self._claims.delete(message)
            except PublishError as error:  # a lifecycle rule deletes it
                _log.warning("message %s is completed, its blob stays: %s", message.message_id, error)
        return outcome

    async def _refuse(self, message: ServiceBusReceivedMessage, error: PublishError) -> Processed:
        is_missing = isinstance(error, ClaimMissingError)
        if is_missing and self._policy.gone == "abandon":
            return await self._abandon(message, error)
        _log.warning("message %s becomes a dead letter: %s", message.message_id, error)
        reason = "claim_missing" if is_missing else "claim_damaged"
        return await self._settle(
            "dead_letter_message",
            message,
            Processed.DEAD_LETTERED,
            reason=reason,
            error_description=str(error),
        )

    async def _abandon(self, message: ServiceBusReceivedMessage, error: Exception) -> Processed:
        _log.warning("message %s is delivered again", message.message_id, exc_info=error)
        outcome = await self._settle("abandon_message", message, Processed.ABANDONED)
        if isinstance(error, PublishSettingsError):
            raise error
        return outcome

    async def _settle(
        self, how: str, message: ServiceBusReceivedMessage, outcome: Processed, **details: str
    ) -> Processed:
        try:
            await wait_if_needed(getattr(self._receiver, how)(message, **details))
        except Exception as error:  # of the SDK: the lock has expired, or the connection is lost
            _log.warning("message %s was not settled", message.message_id, exc_info=error)
            return Processed.UNSETTLED
        return outcome


class SyncClaimReceiver:
    """A ClaimReceiver for blocking code, over a blocking receiver."""

    def __init__(
        self,
        receiver: ServiceBusReceiver,
        claim_check: SyncClaimCheck,
        policy: ClaimPolicy | None = None,
    ) -> None:
        self.awaited = ClaimReceiver(receiver, claim_check.awaited, policy)

    _wait = staticmethod(run_without_loop)
    process = blocking(ClaimReceiver.process)
    process_all = blocking(ClaimReceiver.process_all)


def restores_claims(
    claim_check: ClaimCheck | SyncClaimCheck, *, after: Literal["mark", "delete", "keep"] = "mark"
) -> Callable[[_Function], _Function]:
    """A decorator for functions of Azure Functions with a Service Bus trigger: the function gets the message, its body, and
    what else it asks for by name, such as a context.

    The platform settles the message: it completes it when the function returns, and delivers it again when the function raises.
    So the blob is cleared away before that, and only "mark" recognises another delivery, which returns without a call. Blocking
    functions need a SyncClaimCheck. The decorated function raises what the function raises, and ClaimCheckErrors.
    """
    ClaimPolicy(after=after)
    claims = claim_check.awaited if isinstance(claim_check, SyncClaimCheck) else claim_check

    def decorate(function: _Function) -> _Function:
        first, second, *others = inspect.signature(function).parameters.values()
        signature = inspect.Signature([first, *others])  # the platform reads names and passes values by name

        async def call(*args: Any, **named: Any) -> Any:
            given = signature.bind(*args, **named).arguments
            message = given.pop(first.name)
            try:
                body = await claims.restore(message)
            except ClaimSettledError as error:
                _log.info("message %s: %s", message.message_id, error)
                return None
            result = await wait_if_needed(function(message, body, **given))
            if after != "keep":
                await (claims.mark_settled if after == "mark" else claims.delete)(message)
            return result

        @functools.wraps(function)
        async def awaited(*args: Any, **named: Any) -> Any:
            return await call(*args, **named)

        @functools.wraps(function)
        def blocks(*args: Any, **named: Any) -> Any:
            return run_without_loop(call(*args, **named))

        wrapper: Any = awaited if inspect.iscoroutinefunction(function) else blocks
        del wrapper.__wrapped__
        wrapper.__signature__ = signature
        hints = {name: hint for name, hint in function.__annotations__.items() if name != second.name}
        wrapper.__annotations__ = hints
        return cast(_Function, wrapper)

    return decorate
