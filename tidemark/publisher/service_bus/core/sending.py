"""Decides how the messages of one call are sent, and what answers mean.

Pure: no I/O, no clock. `Sending.next` returns an effect (tidemark.publisher.service_bus.core.send_steps); the caller performs it
and passes the answer.

Messages that were certainly refused are sent again, or reported as not sent. Messages that may have been accepted are sent
again only with `resend_unknown`, in the same batch with the same message ids.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from operator import attrgetter
from typing import Any

from msgspec import Struct

from tidemark.foundation.pacing.retry_delay import delay
from tidemark.foundation.wording import count_text
from tidemark.publisher.service_bus.core import send_steps as steps
from tidemark.publisher.service_bus.core.errors import OversizedMessageError, UnsendableMessageError
from tidemark.publisher.service_bus.core.packing import (
    Lanes,
    Limits,
    learn_from_refusal,
    learn_from_single_refusal,
)
from tidemark.publisher.service_bus.core.send_report import Indices, Outgoing, Refused, SendReport

_index = attrgetter("index")
_COUNTED = ("batches", "payload", "claims", "retries", "size_refusals")
READ_AT_ONCE = 64  # messages; chosen: encoding them blocks the event loop for a few milliseconds


Measure = Callable[[Any, int, Limits], Outgoing]
"""Encodes and measures the message at an index. Raises OversizedMessageError or UnsendableMessageError."""


class SendPolicy(Struct, frozen=True):
    """How a call sends its messages.

    look_ahead
        Bytes of encoded messages that are read and measured before the first of them is sent; at least two batches.
    attempts, retry_delay
        Attempts for each batch, and the seconds between them unless the service asks for others.
    resend_unknown
        Send messages with an unknown outcome again; for entities that detect duplicates.
    mixed
        Let messages of several sessions and partition keys share a batch and keep one order; for entities without
        partitions and sessions.
    ordered
        False fills each batch with the messages of the look-ahead that fit best. That saves a tenth of the batches for
        messages of 100 bytes to 100 KB, a quarter for those of up to 256 KB, and none for small ones.
    """

    look_ahead: int = 16 * 1024 * 1024
    attempts: int = 5
    retry_delay: float = 2.0  # what Service Bus asks for when it throttles
    resend_unknown: bool = False
    mixed: bool = False
    ordered: bool = True

    def __post_init__(self) -> None:
        if self.look_ahead < 0:
            raise ValueError(f"look_ahead is {self.look_ahead}, accepted: 0 or more bytes")
        if self.attempts < 1:
            raise ValueError(f"attempts is {self.attempts}, accepted: 1 or more")
        if self.retry_delay < 0:
            raise ValueError(f"retry_delay is {self.retry_delay}, accepted: 0 or more seconds")

    def wait(self, retry_after: float | None, chance: Callable[[], float] | None) -> float:
        """Seconds until the next attempt: what the service asked for, or `retry_delay`; `chance` adds a random part."""
        return delay(self.retry_delay if retry_after is None else retry_after, chance=chance, least=0.0)


class Progress(Struct, frozen=True):
    """Progress of a call: accepted messages, their bytes, batches, and messages that wait in memory."""

    sent: int
    payload: int
    batches: int
    waiting: int


class Sending:
    """One call, or the rest of an earlier one with the report `before`.

    `resend_unknown` sends the report's unknown messages again. `limits` change with the service's refusals. `report` may be
    called at any time, also after the caller gave up during an effect: a transfer without an answer counts as unknown.
    """

    def __init__(
        self,
        measure: Measure,
        limits: Limits,
        policy: SendPolicy,
        *,
        before: SendReport | None = None,
        resend_unknown: bool = False,
        chance: Callable[[], float] | None = None,
    ) -> None:
        self.limits = limits
        self.error: Exception | None = None
        self._measure = measure
        self._policy = policy
        self._chance = chance
        self._lanes = Lanes(mixed=policy.mixed, ordered=policy.ordered)
        self._taken: deque[Any] = deque()
        self._in_flight: tuple[Outgoing, ...] = ()
        self._maybe_sent: set[int] = set()  # indices of messages in an attempt without an answer
        self._stored: set[int] = set()  # indices of messages whose body is in a blob
        self._reason = ""
        self._before = before or SendReport(Indices(), exhausted=False)
        self._sent = self._before.sent.copy()
        self._numbers = dict(self._before.sequence_numbers)
        self._unknown = list(self._before.unknown)
        self._refused = list(self._before.refused)
        self.next_index = self._before.next_index
        """Index of the first message that was not taken, where the source continues."""
        self._measured = 0  # messages of a collection that were measured ahead
        self._exhausted = self._before.exhausted
        self._counters = {name: getattr(self._before, name) for name in _COUNTED}
        self._steps: Generator[steps.Effect, Any, None] = self._run()
        self._resume(resend_unknown=resend_unknown)

    def next(self, answer: Any = None) -> steps.Effect | None:
        """The next effect after the answer to the last one; None at the end."""
        try:
            return self._steps.send(answer)
        except StopIteration:
            return None

    def measure_ahead(self, messages: Iterable[Any]) -> None:
        """Measure the next part of a collection before any message is sent; keep what fits into the look-ahead.

        Raises OversizedMessageError or UnsendableMessageError for the first message that cannot be sent.
        """
        for message in messages:
            item = self._measure(message, self._measured, self.limits)
            if self.next_index == self._measured and self._lanes.size < self._window():
                self._lanes.add(item, self.limits)
                self.next_index += 1
            self._measured += 1

    def report(self, rest: Any = None) -> SendReport:
        """The outcome of every message so far; `rest` is the iterator over messages that were not taken."""
        waiting = [*self._in_flight, *self._lanes]
        unknown = [*self._unknown, *(item for item in waiting if item.index in self._maybe_sent)]
        return replace(
            self._before,
            sent=self._sent,
            unknown=tuple(sorted(unknown, key=_index)),
            unsent=tuple(
                sorted((item for item in waiting if item.index not in self._maybe_sent), key=_index)
            ),
            refused=tuple(self._refused),
            exhausted=self._exhausted,
            reason=self._reason,
            next_index=self.next_index,
            sequence_numbers=self._numbers,
            rest=rest,
            **self._counters,
        )

    def progress(self) -> Progress:
        waiting = len(self._lanes) + len(self._in_flight)
        return Progress(len(self._sent), self._counters["payload"], self._counters["batches"], waiting)

    def give_back(self) -> list[Any]:
        """Return messages that were read and not measured, for the caller to put back before the rest."""
        taken = list(self._taken)
        if taken:
            self._taken.clear()
            self._exhausted = False
        return taken

    def abandon(self, reason: str, effect: steps.Effect | None) -> None:
        """Record that the caller gave up during an effect, as a cancelled task does; None: between two effects."""
        self._reason = self._reason or reason
        if isinstance(effect, steps.Transfer):
            self._maybe_sent.update(item.index for item in effect.items)

    # --- steps ---

    def _resume(self, *, resend_unknown: bool) -> None:
        to_send = list(self._before.unsent)
        if resend_unknown or self._policy.resend_unknown:
            to_send += self._unknown
            self._maybe_sent.update(item.index for item in self._unknown)
            self._unknown.clear()
        for item in sorted(to_send, key=_index):
            self._lanes.add(item, self.limits)

    def _run(self) -> Generator[steps.Effect, Any, None]:
        while True:
            yield from self._fill()
            items = () if self._reason else tuple(self._lanes.take(self.limits))
            if not items:
                return
            self._in_flight = items
            yield from self._deliver(items)

    def _window(self) -> int:
        """Bytes to read ahead: at least two batches, because a batch is full once there is a message behind it."""
        return max(self._policy.look_ahead, 2 * self.limits.batch)

    def _fill(self) -> Generator[steps.Effect, Any, None]:
        while not self._reason and self._lanes.size < self._window():
            if self._taken:
                self._take_one()
            elif self._exhausted:
                return
            else:
                messages = yield steps.Read(READ_AT_ONCE)
                self._taken.extend(messages)
                self._exhausted = len(messages) < READ_AT_ONCE

    def _take_one(self) -> None:
        message, index = self._taken.popleft(), self.next_index
        self.next_index += 1
        try:
            self._lanes.add(self._measure(message, index, self.limits), self.limits)
        except (OversizedMessageError, UnsendableMessageError) as error:
            self._refuse(error, message)

    def _refuse(self, error: OversizedMessageError | UnsendableMessageError, message: Any) -> None:
        self.error, self._reason = error, str(error)
        id_, size, limit = (getattr(error, name, None) for name in ("message_id", "size", "limit"))
        self._refused.append(Refused(error.index, id_, size, limit, str(error), message))

    def _deliver(self, items: tuple[Outgoing, ...]) -> Generator[steps.Effect, Any, None]:
        attempt = 1
        while True:
            answer = yield from self._attempt(items)
            match answer:
                case steps.Accepted(numbers):
                    self._accepted(items, numbers)
                    return
                case steps.TooLarge():
                    self._too_large(items, answer)
                    return
                case steps.Rejected(reason):
                    self._reason = reason
                    return
                case steps.Unknown(reason):
                    self._maybe_sent.update(item.index for item in items)
                    if not self._policy.resend_unknown or attempt >= self._policy.attempts:
                        self._reason = reason
                        return
                case steps.Busy(reason):
                    if attempt >= self._policy.attempts:
                        self._reason = f"{reason} ({count_text(attempt, 'attempt')})"
                        return
            attempt += 1
            self._counters["retries"] += 1
            retry_after = answer.retry_after if isinstance(answer, steps.Busy) else None
            yield steps.Pause(self._policy.wait(retry_after, self._chance))

    def _attempt(self, items: tuple[Outgoing, ...]) -> Generator[steps.Effect, Any, steps.Answer]:
        for item in items:
            if item.claim is None or item.index in self._stored:
                continue
            stored: steps.Answer = yield steps.Store(item)
            if not isinstance(stored, steps.Accepted):
                return stored
            self._stored.add(item.index)
        answer: steps.Answer = yield steps.Transfer(items, singly=self._singly(items))
        return answer

    def _singly(self, items: tuple[Outgoing, ...]) -> bool:
        return len(items) == 1 and not self.limits.batchable(items[0])

    def _accepted(self, items: tuple[Outgoing, ...], numbers: tuple[int, ...]) -> None:
        self._in_flight = ()
        self._counters["batches"] += 1
        for position, item in enumerate(items):
            self._sent.add(item.index)
            self._counters["payload"] += item.size
            self._counters["claims"] += item.claim is not None
            self._maybe_sent.discard(item.index)
            self._stored.discard(item.index)
            if numbers:
                self._numbers[item.index] = numbers[position]

    def _too_large(self, items: tuple[Outgoing, ...], answer: steps.TooLarge) -> None:
        self._counters["size_refusals"] += 1
        self._in_flight = ()
        if self._singly(items):
            self.limits = learn_from_single_refusal(self.limits, size=items[0].size, allowed=answer.allowed)
        else:
            measured = items[0].envelope + sum(item.cost for item in items)
            self.limits = learn_from_refusal(
                self.limits,
                count=len(items),
                measured=measured,
                counted=answer.counted,
                allowed=answer.allowed,
            )
        if len(items) == 1 and not self.limits.sendable(items[0]):
            self._measure_again(items[0])
        else:
            self._lanes.put_back(items, self.limits)

    def _measure_again(self, item: Outgoing) -> None:
        """Measure a message again that is larger than the limits said: a claim check may still make it small enough."""
        try:
            self._lanes.put_back([self._measure(item.message, item.index, self.limits)], self.limits)
        except OversizedMessageError as error:
            if item.index in self._maybe_sent:  # it may have been accepted in an earlier attempt
                self._in_flight, self._reason = (item,), str(error)
                return
            self._refuse(error, item.message)
