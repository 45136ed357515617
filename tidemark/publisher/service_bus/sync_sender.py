"""`SyncBigBatchSender`: the BigBatchSender over a blocking client. For its contract see `tidemark.publisher.service_bus.sender`."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import AsyncIterable, Coroutine
from typing import Any, Self, TypeVar

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential, TokenCredential
from azure.servicebus import ServiceBusClient, ServiceBusSender

from tidemark.publisher.blocking import blocking, run_without_loop
from tidemark.publisher.service_bus.claim_check import SyncClaimCheck
from tidemark.publisher.service_bus.core.packing import Limits
from tidemark.publisher.service_bus.core.send_report import SendReport
from tidemark.publisher.service_bus.sender import BigBatchSender

Credential = TokenCredential | AzureSasCredential | AzureNamedKeyCredential

_Result = TypeVar("_Result")


class _OverBlocking(BigBatchSender):
    """Never waits, so it needs no event loop. Not for several threads."""

    _client = ServiceBusClient

    def __init__(
        self, sender: ServiceBusSender, *, claim_check: SyncClaimCheck | None = None, **options: Any
    ) -> None:
        claims = None if claim_check is None else claim_check.awaited
        super().__init__(sender, claim_check=claims, **options)
        self._lock = contextlib.nullcontext()  # SyncBigBatchSender has one that survives interrupts

    async def send(self, messages: Any, **options: Any) -> SendReport:
        if isinstance(messages, AsyncIterable):
            messages = iter(messages)  # type: ignore[call-overload]  # TypeError unless it is another iterable as well
        return await super().send(messages, **options)

    async def _pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - there is no loop that it would hold up


class SyncBigBatchSender(contextlib.AbstractContextManager["SyncBigBatchSender"]):
    """A BigBatchSender whose methods block. Arguments, reports and errors are the same; the SDK's sender is a blocking one,
    the claim check a SyncClaimCheck. Several threads may use it: one call runs at a time, others wait for it.

    An interrupt (KeyboardInterrupt) ends the call that it hits, as a cancellation does; `last_report` says how far it went.
    """

    def __init__(self, sender: ServiceBusSender, **options: Any) -> None:
        self._over(_OverBlocking(sender, **options))

    @classmethod
    def from_connection_string(cls, connection: str, **options: Any) -> Self:
        self = cls.__new__(cls)
        return self._over(_OverBlocking.from_connection_string(connection, **options))

    @classmethod
    def from_namespace(cls, fully_qualified_namespace: str, credential: Credential, **options: Any) -> Self:
        sender = _OverBlocking.from_namespace(fully_qualified_namespace, credential, **options)
        self = cls.__new__(cls)
        return self._over(sender)

    def _over(self, sender: BigBatchSender) -> Self:
        self.awaited = sender
        self._lock = threading.Lock()
        return self

    def _wait(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        with self._lock:
            return run_without_loop(work)

    send = blocking(BigBatchSender.send)
    resume = blocking(BigBatchSender.resume)
    cancel_scheduled = blocking(BigBatchSender.cancel_scheduled)

    @property
    def limits(self) -> Limits | None:
        return self.awaited.limits

    @property
    def last_report(self) -> SendReport | None:
        return self.awaited.last_report

    def close(self) -> None:
        run_without_loop(self.awaited.close())

    def __exit__(self, *_: object) -> None:
        self.close()
