"""How the messages of one call are sent: what to do next, and what the answers mean.

Pure: no I/O, no clock. `Sending.next` gives an effect (publisher.service_bus.core.send_steps), the caller carries it out and gives back
what came of it.

What is known to be refused is tried again, or reported as not sent; what may have been accepted is never sent again
unless `resend_unknown` is set, and then in the same batch with the same message ids.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from operator import attrgetter
from typing import Any

from msgspec import Struct

from tidemark.foundation.pacing.retry_delay import delay
from tidemark.publisher.service_bus.core import send_steps as steps
from tidemark.publisher.service_bus.core.errors import OversizedMessageError, UnsendableMessageError
from tidemark.publisher.service_bus.core.packing import Lanes, Limits, learned, learned_singly
from tidemark.publisher.service_bus.core.send_report import Indices, Outgoing, Refused, SendReport

_index = attrgetter("index")
_COUNTED = ("batches", "payload", "claims", "retries", "size_refusals")
READ_AT_ONCE = 64  # messages; encoding them takes the loop a few milliseconds


Measure = Callable[[Any, int, Limits], Outgoing]
"""A message of the caller at its index, measured. Raises OversizedMessageError or UnsendableMessageError."""


class SendPolicy(Struct, frozen=True):
    """How a call goes about it.

    `look_ahead`: bytes of encoded messages that are read and measured before those in front of them are sent; at
    least two batches. `attempts` for each batch, `retry_delay` in seconds between them unless the service says.
    `resend_unknown`: send again what may have arrived, for entities that detect duplicates. `mixed`: let messages of
    several sessions and partition keys share a batch and keep one order; for entities that are neither partitioned
    nor have sessions. Not `ordered`: fill each batch with what fits best of the look-ahead. That saves a tenth of the
    batches for messages of 100 bytes to 100 KB, a quarter for those that are up to 256 KB, and nothing for small ones.
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
        """Seconds until the next attempt: what the service asked for, else `retry_delay`; `chance` adds to it."""
        return delay(self.retry_delay if retry_after is None else retry_after, chance=chance, least=0.0)


class Progress(Struct, frozen=True):
    """How far a call has come: accepted messages, their bytes, batches, and what waits in memory."""

    sent: int
    payload: int
    batches: int
    waiting: int


class Sending:
    """One call, or what the report `before` of an earlier one left over.

    `resend_unknown` sends what the report calls unknown once more. `limits` afterwards are what was learned. `report`
    may be asked for at any time, also after the caller gave up in the middle of an effect: a transfer that was not
    answered is unknown.
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
        self._perhaps: set[int] = set()  # indices of which an attempt went unanswered
        self._stored: set[int] = set()  # indices whose body is in its blob
        self._reason = ""
        self._before = before or SendReport(Indices(), exhausted=False)
        self._sent = self._before.sent.copy()
        self._numbers = dict(self._before.sequence_numbers)
        self._unknown = list(self._before.unknown)
        self._refused = list(self._before.refused)
        self.next_index = self._before.next_index
        """Of the first message that was not taken: the source has to go on from there."""
        self._measured = 0  # of a collection, ahead
        self._exhausted = self._before.exhausted
        self._tally = {name: getattr(self._before, name) for name in _COUNTED}
        self._steps: Generator[steps.Effect, Any, None] = self._run()
        self._resume(resend_unknown=resend_unknown)

    def next(self, answer: Any = None) -> steps.Effect | None:
        """What to do now that the last effect gave `answer`; None when there is nothing left to do."""
        try:
            return self._steps.send(answer)
        except StopIteration:
            return None

    def measure_ahead(self, messages: Iterable[Any]) -> None:
        """Measure the next part of a collection before anything is sent; what fits into the look-ahead is kept.

        Raises OversizedMessageError or UnsendableMessageError for the first message that cannot be sent.
        """
        for message in messages:
            item = self._measure(message, self._measured, self.limits)
            if self.next_index == self._measured and self._lanes.size < self._window():
                self._lanes.add(item, self.limits)
                self.next_index += 1
            self._measured += 1

    def report(self, rest: Any = None) -> SendReport:
        """What became of every message so far; `rest` is the iterator over those that were not taken."""
        waiting = [*self._in_flight, *self._lanes]
        unknown = [*self._unknown, *(each for each in waiting if each.index in self._perhaps)]
        return replace(
            self._before,
            sent=self._sent,
            unknown=tuple(sorted(unknown, key=_index)),
            unsent=tuple(sorted((each for each in waiting if each.index not in self._perhaps), key=_index)),
            refused=tuple(self._refused),
            exhausted=self._exhausted,
            reason=self._reason,
            next_index=self.next_index,
            sequence_numbers=self._numbers,
            rest=rest,
            **self._tally,
        )

    def progress(self) -> Progress:
        waiting = len(self._lanes) + len(self._in_flight)
        return Progress(len(self._sent), self._tally["payload"], self._tally["batches"], waiting)

    def give_back(self) -> list[Any]:
        """What was read from the iterable and not looked at: the caller puts it before the rest, as if never read."""
        taken = list(self._taken)
        if taken:
            self._taken.clear()
            self._exhausted = False
        return taken

    def abandon(self, reason: str, effect: steps.Effect | None) -> None:
        """The caller gives up in the middle of an effect, as a cancelled task does; None: between two."""
        self._reason = self._reason or reason
        if isinstance(effect, steps.Transfer):
            self._perhaps.update(item.index for item in effect.items)

    # --- steps ---

    def _resume(self, *, resend_unknown: bool) -> None:
        again = list(self._before.unsent)
        if resend_unknown or self._policy.resend_unknown:
            again += self._unknown
            self._perhaps.update(item.index for item in self._unknown)
            self._unknown.clear()
        for item in sorted(again, key=_index):
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
        """Bytes to read ahead: twice a batch at least, or no batch would be known to be full."""
        return max(self._policy.look_ahead, 2 * self.limits.batch)

    def _fill(self) -> Generator[steps.Effect, Any, None]:
        while not self._reason and self._lanes.size < self._window():
            if self._taken:
                self._take_one()
            elif self._exhausted:
                return
            else:
                got = yield steps.Read(READ_AT_ONCE)
                self._taken.extend(got)
                self._exhausted = len(got) < READ_AT_ONCE

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
        """Send these until it is known what became of them, or that it will not be known."""
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
                case steps.Rejected(story):
                    self._reason = story
                    return
                case steps.Unknown(story):
                    self._perhaps.update(item.index for item in items)
                    if not self._policy.resend_unknown or attempt >= self._policy.attempts:
                        self._reason = story
                        return
                case steps.Busy(story):
                    if attempt >= self._policy.attempts:
                        self._reason = f"{story} ({attempt} attempts)"
                        return
            attempt += 1
            self._tally["retries"] += 1
            asked = answer.retry_after if isinstance(answer, steps.Busy) else None
            yield steps.Pause(self._policy.wait(asked, self._chance))

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
        self._tally["batches"] += 1
        for position, item in enumerate(items):
            self._sent.add(item.index)
            self._tally["payload"] += item.size
            self._tally["claims"] += item.claim is not None
            self._perhaps.discard(item.index)
            self._stored.discard(item.index)
            if numbers:
                self._numbers[item.index] = numbers[position]

    def _too_large(self, items: tuple[Outgoing, ...], answer: steps.TooLarge) -> None:
        """Learn from it, and put the chunk back: only it is formed anew."""
        self._tally["size_refusals"] += 1
        self._in_flight = ()
        if self._singly(items):
            self.limits = learned_singly(self.limits, size=items[0].size, allowed=answer.allowed)
        else:
            measured = items[0].envelope + sum(item.cost for item in items)
            self.limits = learned(
                self.limits, count=len(items), measured=measured, said=answer.said, allowed=answer.allowed
            )
        if len(items) == 1 and not self.limits.sendable(items[0]):
            self._measure_again(items[0])
        else:
            self._lanes.put_back(items, self.limits)

    def _measure_again(self, item: Outgoing) -> None:
        """The message is larger than the entity was thought to take: now a claim check has to do, or nothing can."""
        try:
            self._lanes.put_back([self._measure(item.message, item.index, self.limits)], self.limits)
        except OversizedMessageError as error:
            if item.index in self._perhaps:  # refused now, and perhaps accepted before
                self._in_flight, self._reason = (item,), str(error)
                return
            self._refuse(error, item.message)
