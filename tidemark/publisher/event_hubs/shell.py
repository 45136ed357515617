"""One partition of a producer: takes the steps that its PartitionPublisher asks for, one operation at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from msgspec.structs import replace

from tidemark.foundation.errors import SettingsError, UnavailableError
from tidemark.publisher.cancellation import cancellations, is_unexpected, settled
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
"""Seconds for one request to the state store."""

_OF_STORE: dict[type[Exception], FailureKind] = {
    StateConflictError: FailureKind.CONFLICT,
    InvalidProducerStateError: FailureKind.INVALID,
    UnavailableError: FailureKind.NOT_STORED,
    SettingsError: FailureKind.REFUSED,
}


@dataclass(eq=False)
class PartitionShell:
    """See the module. `_store` None: nothing is loaded or saved. `_spelled` is the key with the namespace as
    the connection spells it, under which earlier versions saved. `_created_at` answers the step.
    """

    publisher: PartitionPublisher
    _links: Links
    _retry: RetryPolicy
    _store: ProducerStateStore | None
    _key: StateKey
    _spelled: StateKey
    _created_at: Callable[[steps.Identify], Awaitable[str | None]]
    _link: Link | None = field(default=None, init=False)
    _is_closed: bool = field(default=False, init=False)
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def max_message_size(self) -> int:
        """What the link takes, which is opened unless it is. Raises PublishErrors."""
        if self._link is None:
            await self.prepare()
        return 0 if self._link is None else self._link.max_message_size

    async def prepare(self, *, timeout: float | None = None) -> None:
        """Open the link, unless it is. Raises PublishErrors."""
        async with self._one_at_a_time:
            deadline = _deadline(timeout)
            await self._run(self.publisher.prepare(deadline), deadline)

    async def saved_state(self) -> SavedState:
        async with self._one_at_a_time:
            await self._run(self.publisher.restore(), None)
            return self.publisher.saved_state

    async def abandon_pending(self) -> None:
        async with self._one_at_a_time:
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
        """Send what `begin` gives when it is its turn. `end` is told the number of the first event once all are
        published, even if the caller was cancelled meanwhile; else `withdraw` is called. Raises PublishErrors.
        """
        deadline = _deadline(timeout)
        async with self._one_at_a_time:
            events = begin()
            with contextlib.ExitStack() as unpublished:
                unpublished.callback(withdraw)

                def published(first: int | None) -> None:
                    unpublished.pop_all()
                    end(first)

                await self._run(self.publisher.publish(events, deadline), deadline, events, published)

    async def settle(self, deadline: float) -> None:
        """Save what was confirmed, after the call under way. Raises PublishErrors."""
        try:
            async with asyncio.timeout_at(deadline), self._one_at_a_time:
                await self._run(self.publisher.settle(deadline), deadline)
        except TimeoutError:
            raise PublishUnavailableError(
                f"partition {self._key.partition_id}: the call under way did not end by the deadline of closing"
            ) from None

    async def close(self) -> None:
        """No link is opened any more."""
        self._is_closed = True
        await self.close_link()

    async def close_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            try:
                await link.close()
            except Exception as error:  # noqa: BLE001 - it is of no more use either way
                _log.warning("partition %s: closing its link failed", self._key.partition_id, exc_info=error)

    async def _run(
        self,
        taken: Steps[_Result],
        deadline: float | None,
        events: SentSet | None = None,
        on_result: Callable[[_Result], None] = lambda _: None,
    ) -> None:
        """Take the steps. Cancelled, it ends at a point where it is known what became of the events, if that
        can be had: then the steps have had their effects, or have withdrawn them, before CancelledError is raised.
        """
        cancelled: BaseException | None = None
        try:
            step = next(taken)
            while True:
                answer, cancelled = await self._take(step, deadline, events)
                while cancelled is not None:  # nothing is begun any more
                    is_failed = isinstance(answer, Failed)
                    step = taken.send(replace(answer, cancelled=True) if is_failed else answer)
                    answer = Failed(FailureKind.NOT_STORED, "cancelled", self._now())
                step = taken.send(answer)
        except StopIteration as end:
            on_result(end.value)
            if cancelled is not None:
                raise cancelled from None
        except PublishError as error:
            if cancelled is not None:
                raise cancelled from error
            raise

    async def _take(
        self, step: Step, deadline: float | None, events: SentSet | None
    ) -> tuple[Any, BaseException | None]:
        """The answer, and what the caller is to be cancelled by. Nothing is raised: whatever happens to a transfer, its
        numbers are used, and the publisher has to know.
        """
        before = cancellations()
        try:
            answer = await self._perform(step, deadline, events)
        except BaseException as error:  # noqa: BLE001 - what is not an answer is raised once the steps know
            if not is_unexpected(error):
                return await self._cut_off(step, "cancelled"), error
            story = f"unexpected {type(error).__name__}: {error}"
            _log.warning("partition %s: %s", self._key.partition_id, story, exc_info=error)
            answer = await self._cut_off(step, story)
        # Also after an unexpected error: work that a cancelled caller waited for may end in one.
        return answer, asyncio.CancelledError() if cancellations() > before else None

    async def _cut_off(self, step: Step, story: str) -> Failed:
        """A cancellation, or an error that nobody thought of, says nothing about what was sent or saved before it."""
        if not isinstance(step, steps.Transfer):
            return Failed(FailureKind.NOT_STORED, story, self._now())
        with contextlib.suppress(asyncio.CancelledError):  # once more; the first is raised in the end
            await self.close_link()  # nobody knows where in a frame it was
        return Failed(FailureKind.UNKNOWN, story, self._now(), link_lost=True)

    async def _perform(self, step: Step, deadline: float | None, events: SentSet | None) -> Any:
        """Raises CancelledError where the step was cut off. A transfer and a save are waited for instead."""
        try:
            match step:
                case steps.Transfer():
                    return await self._transfer(step, deadline, events)
                case steps.Load():
                    return await self._use_store(step, deadline)
                case steps.Identify():
                    return await self._identify(step, deadline)
                case steps.Save():
                    return await settled(self._use_store(step, deadline))
                case steps.Open():
                    return await settled(self._open(step, deadline), grace=0.0)
                case steps.Pause():
                    await asyncio.sleep(step.seconds)
                    return steps.Done()
        except LinkError as error:
            if error.link_lost:
                await self.close_link()
            return Failed(error.kind, str(error), self._now(), link_lost=error.link_lost)

    async def _transfer(
        self, step: steps.Transfer, deadline: float | None, events: SentSet | None
    ) -> steps.Done:
        if self._link is None or events is None:
            raise AssertionError("a transfer without a link or events")
        await self._link.transfer(
            events.encoded, step.stamp, timeout=self._within(self._retry.attempt_timeout, deadline)
        )
        return steps.Done()

    async def _open(self, step: steps.Open, deadline: float | None) -> Claims | Failed:
        await self.close_link()
        if self._is_closed:
            return Failed(FailureKind.REFUSED, "the producer was closed", self._now())
        timeout = self._within(self._retry.open_timeout, deadline)
        self._link = await self._links.open(self._key.partition_id, step.claims, timeout=timeout)
        return self._link.claims

    async def _use_store(self, step: steps.Load | steps.Save, deadline: float | None) -> Any:
        store = self._store
        if store is None:
            raise AssertionError("a step of the store without a store")
        until = self._now() + self._within(STORE_TIMEOUT, deadline)
        try:
            if isinstance(step, steps.Load):
                return await self._load(store, until)
            return await store.save(self._key, step.record, step.token, deadline=until)
        except tuple(_OF_STORE) as error:
            kind = next(kind for type_, kind in _OF_STORE.items() if isinstance(error, type_))
            return Failed(kind, str(error), self._now(), getattr(error, "retry_after", None))

    async def _identify(self, step: steps.Identify, deadline: float | None) -> str | Failed | None:
        try:
            async with asyncio.timeout(self._within(self._retry.open_timeout, deadline)):
                return await self._created_at(step)
        except TimeoutError:
            return Failed(
                FailureKind.NOT_STORED, "the service did not say in time which hub it is", self._now()
            )

    async def _load(self, store: ProducerStateStore, until: float) -> Any:
        found = await store.load(self._key, deadline=until)
        if found is None and self._spelled != self._key:
            old = await store.load(self._spelled, deadline=until)
            return (None, None) if old is None else (old[0], None)  # the next save moves it
        return found or (None, None)

    def _within(self, most: float, deadline: float | None) -> float:
        return most if deadline is None else max(0.001, min(most, deadline - self._now()))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else asyncio.get_running_loop().time() + timeout
