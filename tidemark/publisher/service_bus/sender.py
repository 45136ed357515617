"""`BigBatchSender` sends any number of messages to a Service Bus queue or topic, in as few batches as possible: see
docs/publishing-service-bus.md. Its decisions are in `tidemark.publisher.service_bus.core.sending`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, ClassVar, Self

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential, TokenCredential
from azure.core.credentials_async import AsyncTokenCredential
from azure.servicebus import ServiceBusSender as BlockingSender
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender

from tidemark.foundation.tracing.names import SERVICE_BUS
from tidemark.foundation.tracing.spans import failed
from tidemark.publisher.blocking import wait_if_needed
from tidemark.publisher.cancellation import cancel_count, is_unexpected
from tidemark.publisher.errors import PublishSettingsError
from tidemark.publisher.service_bus.claim_check import ClaimCheck
from tidemark.publisher.service_bus.core import send_steps as steps
from tidemark.publisher.service_bus.core.errors import ClaimCheckError
from tidemark.publisher.service_bus.core.packing import Limits
from tidemark.publisher.service_bus.core.send_report import SendReport
from tidemark.publisher.service_bus.core.sending import READ_AT_ONCE, Sending, SendPolicy
from tidemark.publisher.service_bus.sdk import send_call
from tidemark.publisher.service_bus.sdk.sdk_way import Encoder, Link, SdkWay
from tidemark.publisher.service_bus.sdk.send_call import Journal, OnProgress
from tidemark.publisher.tracing import spans_of

Credential = AsyncTokenCredential | TokenCredential | AzureSasCredential | AzureNamedKeyCredential

_NO_RETRIES: dict[str, Any] = {"retry_total": 0}  # the SDK would send again what may have been accepted
_CANCEL_AT_ONCE = 1000  # sequence numbers in one request: 9 KB


class Source:
    """Reads an iterable, synchronous or asynchronous, in parts."""

    def __init__(self, iterator: Iterator[Any] | AsyncIterator[Any]) -> None:
        self._iterator = iterator
        self._pushed_back: list[Any] = []

    async def read(self, count: int) -> list[Any]:
        """Up to `count` messages; fewer at the end. Raises what the iterable raises."""
        messages = self._pushed_back[:count]
        del self._pushed_back[:count]
        try:
            if isinstance(self._iterator, AsyncIterator):
                while len(messages) < count:
                    messages.append(await anext(self._iterator))
            else:
                # One by one, so that an error of the iterable loses no message.
                for message in islice(self._iterator, count - len(messages)):
                    messages.append(message)
        except StopAsyncIteration:
            pass
        except BaseException:
            self.push_back(messages)
            raise
        return messages

    def push_back(self, messages: list[Any]) -> None:
        self._pushed_back[:0] = messages


class BigBatchSender(AbstractAsyncContextManager["BigBatchSender"]):
    """Sends to one queue or topic. Reuse it, because it remembers the limits that refusals of the service have revealed.

    It takes over `sender`, a sender of the SDK, and switches off its retries. `limit` in bytes makes batches smaller
    than the entity allows. `timeout` in seconds bounds one transfer. The `journal` is called before and after every transfer.
    Without `sdk_insides` it uses no private names of the SDK. `tracing`: whether transfers make spans, and messages carry a
    trace context; None asks TIDEMARK_TRACING in the environment. One call runs at a time; others wait.
    """

    _client: ClassVar[Any] = ServiceBusClient

    def __init__(
        self,
        sender: ServiceBusSender | BlockingSender,
        *,
        claim_check: ClaimCheck | None = None,
        policy: SendPolicy | None = None,
        limit: int | None = None,
        timeout: float = send_call.DEFAULT_TIMEOUT,
        journal: Journal | None = None,
        sdk_insides: bool = True,
        tracing: bool | None = None,
    ) -> None:
        self._way = SdkWay(sdk_insides=sdk_insides)
        self._link = Link(self._way, sender, timeout)
        self._claim_check = claim_check
        self._policy = policy or SendPolicy()
        self._learned = send_call.LearnedLimits(limit)
        self._journal = journal
        self._spans = spans_of(sender.entity_name, on=tracing, system=SERVICE_BUS)
        self._lock: AbstractAsyncContextManager[None] = asyncio.Lock()
        self._closing = AsyncExitStack()
        self.last_report: SendReport | None = None

    @classmethod
    def from_connection_string(cls, connection: str, **options: Any) -> Self:
        """A sender that owns its client, for the entity in `queue_name` or `topic_name`.

        `client_options` go to the SDK's client, all other options to the constructor.
        """
        return cls._with(partial(cls._client.from_connection_string, connection), **options)

    @classmethod
    def from_namespace(cls, fully_qualified_namespace: str, credential: Credential, **options: Any) -> Self:
        """The same with an identity. The caller closes the credential."""
        return cls._with(partial(cls._client, fully_qualified_namespace, credential), **options)

    @classmethod
    def _with(
        cls,
        create: Callable[..., Any],
        *,
        queue_name: str | None = None,
        topic_name: str | None = None,
        client_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Self:
        if (queue_name is None) == (topic_name is None):
            raise PublishSettingsError(
                f"queue_name is {queue_name!r} and topic_name {topic_name!r}, accepted: exactly one of them"
            )
        client = create(**{**_NO_RETRIES, **(client_options or {})})
        sender = (
            client.get_topic_sender(topic_name) if queue_name is None else client.get_queue_sender(queue_name)
        )
        created = cls(sender, **options)
        for closable in (client, sender):
            created._closing.push_async_callback(lambda owned: wait_if_needed(owned.close()), closable)
        return created

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the client, if this sender owns it. A running call fails."""
        await self._closing.aclose()

    @property
    def limits(self) -> Limits | None:
        """The limits of batches, as announced and as learned; None before the first call."""
        return self._learned.current

    async def send(
        self,
        messages: Iterable[Any] | AsyncIterable[Any],
        *,
        session_id: str | None = None,
        schedule_at: datetime | None = None,
        id_prefix: str | None = None,
        on_progress: OnProgress | None = None,
    ) -> SendReport:
        """Send all messages, or schedule them for `schedule_at`.

        All messages of a collection (list, tuple, set, ...) are measured before any is sent; of other iterables only as
        many as the policy's `look_ahead`. `session_id` is used for messages without one. A message without an id gets
        `<id_prefix>-<index>`; the default prefix is random.

        Raises OversizedMessageError or UnsendableMessageError if nothing was sent, PartiallySentError if some messages were,
        and PublishUnavailableError or PublishRefusedError if the entity cannot be opened. Exceptions of the iterable pass
        through; `last_report` then says what was sent, as it does after a cancellation.
        """
        send_call.check_iterable(messages)
        before = send_call.new_report(session_id, schedule_at, id_prefix)
        async with self._lock:
            sending, encoder = await self._begin(before)
            if isinstance(messages, Collection):
                ahead = iter(messages)
                while part := list(islice(ahead, READ_AT_ONCE)):
                    sending.measure_ahead(part)
                    await self._pause(0)  # lets other tasks run
                source = Source(islice(iter(messages), sending.next_index, None))
            elif isinstance(messages, AsyncIterable):
                source = Source(aiter(messages))
            else:
                source = Source(iter(messages))
            return await self._carry_out(sending, encoder, source, on_progress)

    async def resume(
        self, report: SendReport, *, resend_unknown: bool = False, on_progress: OnProgress | None = None
    ) -> SendReport:
        """Send the messages that were not sent according to a report, and continue its iterable.

        `resend_unknown` sends messages with an unknown outcome again, which doubles those that arrived unless the entity
        detects duplicates. Raises what `send` raises. The new report covers both calls.
        """
        async with self._lock:
            call = await self._begin(report, resend_unknown=resend_unknown)
            return await self._carry_out(*call, report.rest or Source(iter(())), on_progress)

    async def cancel_scheduled(self, report: SendReport) -> None:
        """Cancel the messages that a call scheduled. Raises ServiceBusError if one of them was enqueued already."""
        numbers = list(report.sequence_numbers.values())
        async with self._lock:
            for start in range(0, len(numbers), _CANCEL_AT_ONCE):
                part = numbers[start : start + _CANCEL_AT_ONCE]
                await wait_if_needed(self._link.sender.cancel_scheduled_messages(part))

    async def _begin(self, before: SendReport, *, resend_unknown: bool = False) -> tuple[Sending, Encoder]:
        await self._open()
        scheduled = before.schedule_at is not None
        limits = self._learned.begin(self._link.limits, scheduled=scheduled)
        encoder = Encoder(
            self._way,
            id_prefix=before.id_prefix,
            session_id=before.session_id,
            schedule_at=before.schedule_at,
            request_overhead=self._link.request_overhead() if scheduled else 0,
            claims=None if self._claim_check is None else self._claim_check.settings,
            spans=self._spans,
        )
        sending = Sending(
            encoder.measure,
            limits,
            self._policy,
            before=before,
            resend_unknown=resend_unknown,
            chance=random.random,
        )
        return sending, encoder

    async def _open(self) -> None:
        for attempt in range(1, self._policy.attempts + 1):
            refused = await self._link.open()
            if refused is None:
                return
            if not isinstance(refused, steps.Busy) or attempt == self._policy.attempts:
                sender = self._link.sender
                raise send_call.open_error(
                    refused, sender.entity_name, sender.fully_qualified_namespace, attempt
                )
            await self._pause(self._policy.wait(refused.retry_after, random.random))

    async def _carry_out(
        self, sending: Sending, encoder: Encoder, source: Source, on_progress: OnProgress | None
    ) -> SendReport:
        performing = None
        before = cancel_count()
        try:
            effect = sending.next()
            while effect is not None:
                if cancel_count() > before:
                    # asyncio.wait_for of Python 3.11, which the SDK uses, may swallow a cancellation.
                    raise asyncio.CancelledError
                performing = effect
                answer = await self._perform(effect, encoder, source)
                performing = None
                effect = sending.next(answer)
                if on_progress is not None and isinstance(answer, steps.Accepted):
                    on_progress(sending.progress())
        except BaseException as error:
            sending.abandon(f"given up: {type(error).__name__}", performing)
            raise
        finally:
            self._learned.remember(sending.limits, scheduled=encoder.schedule_at is not None)
            source.push_back(sending.give_back())
            self.last_report = sending.report(source)
        return send_call.report_or_raise(sending, self.last_report)

    async def _perform(self, effect: steps.Effect, encoder: Encoder, source: Source) -> Any:
        match effect:
            case steps.Read(count):
                return await source.read(count)
            case steps.Transfer():
                return await self._transfer(effect, encoder)
            case steps.Store():
                return await self._store(effect)
            case steps.Pause(seconds):
                await self._pause(seconds)
                return None

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _transfer(self, effect: steps.Transfer, encoder: Encoder) -> steps.Answer:
        if self._journal is not None:
            self._journal.sending(effect.items)
        contexts = (item.context for item in effect.items)
        with self._spans.span("send", "", len(effect.items), contexts) as span:
            answer = await self._link.transfer(effect, encoder)
            if not isinstance(answer, steps.Accepted):
                failed(span, type(answer).__name__.lower())
        if self._journal is not None:
            self._journal.answered(answer)
        return answer

    async def _store(self, effect: steps.Store) -> steps.Answer:
        assert self._claim_check is not None and effect.item.claim is not None  # the encoder has both or none
        try:
            await self._claim_check.store(effect.item.claim)
        except PublishSettingsError as error:
            return steps.Rejected(str(error))
        except BaseException as error:
            if not is_unexpected(error):
                raise
            # Nothing was sent, and storing a blob again is harmless.
            return steps.Busy(
                str(error) if isinstance(error, ClaimCheckError) else f"storing a claim: {error!r}"
            )
        return steps.Accepted()
