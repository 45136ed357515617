"""Performs the steps that the PartitionPublisher of one partition yields, one operation at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from msgspec.structs import replace

from tidemark.foundation.errors import SettingsError, UnavailableError
from tidemark.publisher.cancellation import cancel_count, finish_before_cancelling, is_unexpected
from tidemark.publisher.errors import InvalidProducerStateError, PublishError, PublishUnavailableError
from tidemark.publisher.event_hubs.batch import SentSet
from tidemark.publisher.event_hubs.core import steps
from tidemark.publisher.event_hubs.core.producer_state import PartitionPublisher
from tidemark.publisher.event_hubs.core.steps import Failed, FailureKind, Step, Steps
from tidemark.publisher.event_hubs.ports.links import Link, LinkError, Links
from tidemark.publisher.event_hubs.ports.state_store import ProducerStateStore, StateConflictError
from tidemark.publisher.model import Claims, RetryPolicy, SavedState, StateKey

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

STORE_TIMEOUT = 10.0
"""Seconds for one request to the state store. Chosen: a store that answers later counts as unavailable."""

_KIND_OF_STORE_ERROR: dict[type[Exception], FailureKind] = {
    StateConflictError: FailureKind.CONFLICT,
    InvalidProducerStateError: FailureKind.INVALID,
    UnavailableError: FailureKind.NOT_STORED,
    SettingsError: FailureKind.REFUSED,
}
_STORE_ERRORS = tuple(_KIND_OF_STORE_ERROR)


@dataclass(eq=False)
class PartitionShell:
    """See the module. Without a `_store` nothing is loaded or saved. Earlier versions saved under `_old_key`, which has the
    namespace in the spelling of the connection. `_created_at` answers the step Identify.
    """

    publisher: PartitionPublisher
    _links: Links
    _retry: RetryPolicy
    _store: ProducerStateStore | None
    _key: StateKey
    _old_key: StateKey
    _created_at: Callable[[steps.Identify], Awaitable[str | None]]
    _link: Link | None = field(default=None, init=False)
    _is_closed: bool = field(default=False, init=False)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def max_message_size(self) -> int:
        """The largest message of the link, in bytes. Opens the link if necessary. Raises PublishErrors."""
        if self._link is None:
            await self.prepare()
        return self.size_of_open_link

    @property
    def size_of_open_link(self) -> int:
        """As above; 0 without an open link."""
        link = self._link
        return 0 if link is None else link.max_message_size

    async def prepare(self, *, timeout: float | None = None) -> None:
        """Open the link if necessary. Raises PublishErrors."""
        async with self._lock:
            deadline = _deadline(timeout)
            await self._run(self.publisher.prepare(deadline), deadline)

    async def saved_state(self) -> SavedState:
        async with self._lock:
            await self._run(self.publisher.restore(), None)
            return self.publisher.saved_state

    async def abandon_pending(self) -> None:
        async with self._lock:
            await self._run(self.publisher.restore(), None)
            self.publisher.abandon_pending()

    async def publish(
        self,
        begin: Callable[[], SentSet],
        end: Callable[[int | None], None],
        withdraw: Callable[[], None] = lambda: None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Send the events that `begin` returns, once earlier operations have ended.

        Calls `end` with the number of the first event when all are published, even if the caller was cancelled meanwhile;
        otherwise calls `withdraw`. Raises PublishErrors.
        """
        deadline = _deadline(timeout)
        async with self._lock:
            events = begin()
            is_published = False

            def published(first: int | None) -> None:
                nonlocal is_published
                is_published = True
                end(first)

            try:
                await self._run(self.publisher.publish(events, deadline), deadline, events, published)
            finally:
                if not is_published:
                    withdraw()

    async def settle(self, deadline: float) -> None:
        """Wait for the running call, then save what was confirmed. Raises PublishErrors."""
        try:
            async with asyncio.timeout_at(deadline), self._lock:
                await self._run(self.publisher.settle(deadline), deadline)
        except TimeoutError:
            raise PublishUnavailableError(
                f"partition {self._key.partition_id}: the running call did not end by the deadline of closing"
            ) from None

    async def close(self) -> None:
        """Close the link, and open none again."""
        self._is_closed = True
        await self.close_link()

    async def close_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            try:
                await link.close()
            except Exception as error:  # the link is given up either way
                _log.warning("partition %s: closing its link failed", self._key.partition_id, exc_info=error)

    async def _run(
        self,
        pending_steps: Steps[_Result],
        deadline: float | None,
        events: SentSet | None = None,
        on_result: Callable[[_Result], None] = lambda _: None,
    ) -> None:
        """Perform the steps. A cancelled run ends only once the outcome of the events is known, if possible: CancelledError is
        raised after the publisher has taken note of it.
        """
        cancelled: BaseException | None = None
        try:
            step = next(pending_steps)
            while True:
                answer, cancelled = await self._perform_safely(step, deadline, events)
                while cancelled is not None:  # after a cancellation no step is performed
                    is_failed = isinstance(answer, Failed)
                    step = pending_steps.send(replace(answer, cancelled=True) if is_failed else answer)
                    answer = Failed(FailureKind.NOT_STORED, "cancelled", self._now())
                step = pending_steps.send(answer)
        except StopIteration as end:
            on_result(end.value)
            if cancelled is not None:
                raise cancelled from None
        except PublishError as error:
            if cancelled is not None:
                raise cancelled from error
            raise

    async def _perform_safely(
        self, step: Step, deadline: float | None, events: SentSet | None
    ) -> tuple[Any, BaseException | None]:
        """The answer, and the cancellation to raise later. Never raises: whatever ends a transfer, its numbers are used, and
        the publisher must take note of it.
        """
        before = cancel_count()
        try:
            answer = await self._perform(step, deadline, events)
        except BaseException as error:  # raised after the publisher has taken note of it
            if not is_unexpected(error):
                return await self._failed_by_interruption(step, "cancelled"), error
            reason = f"unexpected {type(error).__name__}: {error}"
            _log.warning("partition %s: %s", self._key.partition_id, reason, exc_info=error)
            answer = await self._failed_by_interruption(step, reason)
        # Also after an unexpected error, in which work that outlived a cancellation may end.
        return answer, asyncio.CancelledError() if cancel_count() > before else None

    async def _failed_by_interruption(self, step: Step, reason: str) -> Failed:
        """The answer after a cancellation or an unexpected error, which leave the outcome of a transfer unknown."""
        if not isinstance(step, steps.Transfer):
            return Failed(FailureKind.NOT_STORED, reason, self._now())
        with contextlib.suppress(asyncio.CancelledError):  # a second one; the first is raised at the end
            await self.close_link()  # it may have stopped within a frame
        return Failed(FailureKind.UNKNOWN, reason, self._now(), link_lost=True)

    async def _perform(self, step: Step, deadline: float | None, events: SentSet | None) -> Any:
        """Raises CancelledError for an interrupted step. A cancelled caller still waits for a transfer or a save."""
        try:
            match step:
                case steps.Transfer():
                    return await self._transfer(step, deadline, events)
                case steps.Load():
                    return await self._use_store(deadline)
                case steps.Identify():
                    return await self._identify(step, deadline)
                case steps.Save():
                    return await self._save(step, deadline)
                case steps.Open():
                    return await finish_before_cancelling(self._open(step, deadline), grace=0.0)
                case steps.Pause():
                    return await asyncio.sleep(step.seconds)
        except LinkError as error:
            if error.link_lost:
                await self.close_link()
            return Failed(error.kind, str(error), self._now(), link_lost=error.link_lost)

    async def _transfer(self, step: steps.Transfer, deadline: float | None, events: SentSet | None) -> None:
        if self._link is None or events is None:
            raise AssertionError("a transfer without a link or events")
        await self._link.transfer(
            events.encoded, step.stamp, timeout=self._within(self._retry.attempt_timeout, deadline)
        )

    async def _open(self, step: steps.Open, deadline: float | None) -> Claims | Failed:
        await self.close_link()
        if self._is_closed:
            return Failed(FailureKind.REFUSED, "the producer was closed", self._now())
        timeout = self._within(self._retry.open_timeout, deadline)
        self._link = await self._links.open(self._key.partition_id, step.claims, timeout=timeout)
        return self._link.claims

    async def _save(self, step: steps.Save, deadline: float | None) -> Any:
        store, until = self._store_until(deadline)
        save: Callable[..., Awaitable[str]] = getattr(store, "save_soon", store.save)
        try:
            return await finish_before_cancelling(save(self._key, step.record, step.token, deadline=until))
        except _STORE_ERRORS as error:
            return self._failed_in_store(error)

    async def _use_store(self, deadline: float | None) -> Any:
        try:
            return await self._load(*self._store_until(deadline))
        except _STORE_ERRORS as error:
            return self._failed_in_store(error)

    def _store_until(self, deadline: float | None) -> tuple[ProducerStateStore, float]:
        if self._store is None:
            raise AssertionError("a step of the store without a store")
        return self._store, self._now() + self._within(STORE_TIMEOUT, deadline)

    def _failed_in_store(self, error: Exception) -> Failed:
        kind = next(kind for type_, kind in _KIND_OF_STORE_ERROR.items() if isinstance(error, type_))
        return Failed(kind, str(error), self._now(), getattr(error, "retry_after", None))

    async def _identify(self, step: steps.Identify, deadline: float | None) -> str | Failed | None:
        try:
            async with asyncio.timeout(self._within(self._retry.open_timeout, deadline)):
                return await self._created_at(step)
        except TimeoutError:
            reason = "the service did not return the hub's creation time in time"
            return Failed(FailureKind.NOT_STORED, reason, self._now())

    async def _load(self, store: ProducerStateStore, until: float) -> Any:
        saved: tuple[Any, str | None] | None = await store.load(self._key, deadline=until)
        if saved is None and self._old_key != self._key:
            old = await store.load(self._old_key, deadline=until)
            saved = old and (old[0], None)  # without its token, so that the next save uses the new key
        return saved or (None, None)

    def _within(self, seconds: float, deadline: float | None) -> float:
        return seconds if deadline is None else max(0.001, min(seconds, deadline - self._now()))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else asyncio.get_running_loop().time() + timeout
