"""One queue of messages: a queue, a subscription, or the dead letters of either.

Pure: time comes from the clock it is given, and nothing happens by itself. `advance` does
what has become due - locks that ran out, messages that expired or were scheduled for now.
"""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4
from zlib import crc32

from devstack.amqp.wire.errors import NOT_ALLOWED, AmqpError
from devstack.service_bus.messages.messages import (
    PARTITION_KEY,
    DeadLetter,
    Message,
    Sent,
    decode_pairs,
    identity,
)
from devstack.service_bus.messages.schedule import MESSAGE_NOT_FOUND, RecentIds, Schedule
from devstack.service_bus.rules.rules import NOT_EVALUATED, Rule, copies
from devstack.service_bus.sessions import Sessions
from devstack.service_bus.settings import EntityLimits, QueueSettings

Clock = Callable[[], float]
"""Seconds since 1970."""

_NONE: Mapping[Any, Any] = {}
PARTITIONS, PARTITION_BITS = 16, 48
LOCK_LOST = "com.microsoft:message-lock-lost"


@dataclass(frozen=True, slots=True)
class Counts:
    """`active` includes locked and deferred messages, as the service counts them."""

    active: int = 0
    scheduled: int = 0
    dead_letter: int = 0
    transfer: int = 0
    transfer_dead_letter: int = 0

    @property
    def total(self) -> int:
        return self.active + self.scheduled + self.dead_letter + self.transfer + self.transfer_dead_letter


class Queue:
    """Every method brings the queue up to date first.

    `available` is called whenever a message may be received that could not be before.
    """

    def __init__(
        self, name: str, settings: QueueSettings, clock: Clock, *, is_dead_letter: bool = False
    ) -> None:
        self.name = name
        self.settings = settings
        self.available: Callable[[], None] = lambda: None
        self.dead_letters: Queue | None = None
        if not is_dead_letter:
            self.dead_letters = Queue(
                f"{name}/$deadletterqueue", _of_dead_letters(settings), clock, is_dead_letter=True
            )
        self.created_at = self.updated_at = clock()
        self.rules: dict[str, Rule] | None = None  # by lower-case name; of subscriptions only
        self.properties: dict[str, str] = {}  # said of it by clients, and not acted upon
        self.clock = clock
        self._messages: dict[int, Message] = {}
        # By session, None without sessions: a heap that may name messages that are gone.
        self._ready: dict[str | None, list[int]] = {}
        self.sessions = Sessions()
        self._recent = RecentIds()
        self._locks: dict[bytes, Message] = {}
        self._deadlines: list[tuple[float, int]] = []  # heap of (when, sequence number); may be stale
        self._schedule = Schedule()
        self._last_number = 0

    def update(self, settings: QueueSettings) -> None:
        """Change the settings for what happens from now on; locks that are held keep their time."""
        self.settings = settings
        self.updated_at = self.clock()
        if self.dead_letters is not None:
            self.dead_letters.update(_of_dead_letters(settings))

    # --- in ---

    def send(self, sent: Sent) -> int:
        """Enqueue now, or at the time the message is scheduled for; returns its number."""
        now = self.clock()
        self.advance()
        if self._recent.has(sent, now, self.settings.duplicate_window):
            return self._last_number
        if sent.scheduled_for is not None and sent.scheduled_for > now:
            number = self._next_number(sent)
            self._schedule.add(number, sent, sent.scheduled_for)
            return number
        return self._enqueue(sent, now)

    def offer(self, sent: Sent) -> None:
        """What a topic has for its subscription: taken as far as the rules say."""
        accepted, failures = copies(list((self.rules or {}).values()), sent)
        for copy in accepted:
            self.send(copy)
        if failures and self.settings.dead_letter_on_filter_errors:
            message = Message(sent, self._next_number(sent), self.clock(), None)
            self._die(message, NOT_EVALUATED, "; ".join(failures))

    def _enqueue(self, sent: Sent, now: float) -> int:
        limits = [ttl for ttl in (sent.ttl, self.settings.default_ttl) if ttl is not None]
        message = Message(sent, self._next_number(sent), now, now + min(limits) if limits else None)
        self._put(message)
        return message.sequence_number

    def _next_number(self, sent: Sent) -> int:
        """Of a partitioned entity its top bits are the partition: that of the message's key, else each in turn."""
        self._last_number += 1
        if not self.limits.partitioned:
            return self._last_number
        key = identity(sent.bare).session_id or decode_pairs(sent.annotations, sent.annotation_count).get(
            PARTITION_KEY
        )
        partition = self._last_number if key is None else crc32(str(key).encode())
        return (partition % PARTITIONS << PARTITION_BITS) + self._last_number

    def cancel_scheduled(self, numbers: list[int]) -> None:
        self.advance()
        self._schedule.cancel(numbers)

    # --- out ---

    def receive(self, session: str | None = None) -> Message | None:
        """The next message (of the session), locked for the lock duration; None if there is none."""
        message = self._next(session)
        if message is not None:
            self._lock(message)
        return message

    def receive_deferred(self, numbers: list[int], *, lock: bool) -> list[Message]:
        """Deferred messages by number, locked or removed.

        Raises AmqpError, with nothing done, if one of them is not deferred or is locked.
        """
        self.advance()
        messages = [self._messages.get(number) for number in numbers]
        deferred = [m for m in messages if m is not None and m.deferred and m.lock_token is None]
        if len(deferred) != len(numbers):
            raise AmqpError(MESSAGE_NOT_FOUND, f"not all of {numbers} are deferred in {self.name!r}")
        for message in deferred:
            if lock:
                self._lock(message)
            else:
                del self._messages[message.sequence_number]
        return deferred

    def peek(self, from_number: int, count: int) -> list[Message]:
        """Up to `count` messages from this number on, locked, deferred and scheduled ones included, as Azure has it.

        What is scheduled for a topic waits in the topic, so that its subscriptions list none of it. A partitioned entity returns
        one message whatever `count` is, as the service was seen to do (azure-sdk-for-js#1108).
        """
        self.advance()
        count = min(count, 1) if self.limits.partitioned else count
        scheduled = {
            number: Message(sent, number, sent.scheduled_for or 0.0, None, is_scheduled=True)
            for number, sent in self._schedule.items()
        }
        by_number = {**self._messages, **scheduled}
        numbers = heapq.nsmallest(count, (number for number in by_number if number >= from_number))
        return [by_number[number] for number in numbers]

    # --- decisions about a locked message; AmqpError if the lock is lost ---

    def complete(self, token: bytes) -> None:
        message = self._unlock(token)
        del self._messages[message.sequence_number]

    def abandon(self, token: bytes, changes: Mapping[Any, Any] = _NONE) -> None:
        """Make it available again, or a dead letter when it has failed too often; `changes` as in Sent.changed."""
        self._failed(self._changed(token, changes))

    def release(self, token: bytes) -> None:
        """Make it available again as if it had not been delivered."""
        self._restore(self._unlock(token))

    def defer(self, token: bytes, changes: Mapping[Any, Any] = _NONE) -> None:
        """Set it aside; only its number gets it back."""
        message = self._changed(token, changes)
        message.deferred = True
        message.delivery_count += 1

    def dead_letter(
        self, token: bytes, reason: str, description: str, changes: Mapping[Any, Any] = _NONE
    ) -> None:
        if self.dead_letters is None:
            raise AmqpError(NOT_ALLOWED, f"{self.name!r} holds dead letters already")
        self._bury(self._changed(token, changes), reason, description)

    def renew(self, token: bytes) -> float:
        """Lock it for another lock duration; returns until when."""
        message = self._locked(token)
        message.locked_until = self.clock() + self.settings.lock_duration
        heapq.heappush(self._deadlines, (message.locked_until, message.sequence_number))
        return message.locked_until

    # --- state ---

    @property
    def limits(self) -> EntityLimits:
        return self.settings.limits

    def counts(self) -> Counts:
        self.advance()
        dead = 0 if self.dead_letters is None else self.dead_letters.counts().active
        return Counts(active=len(self._messages), scheduled=len(self._schedule), dead_letter=dead)

    @property
    def size_in_bytes(self) -> int:
        return sum(len(message.sent.bare) for message in self._messages.values())

    def advance(self) -> None:
        """Do everything that is due by now."""
        now = self.clock()
        for sent in self._schedule.pop_due(now):
            self._enqueue(replace(sent, scheduled_for=None), now)
        while self._deadlines and self._deadlines[0][0] <= now:
            _, number = heapq.heappop(self._deadlines)
            message = self._messages.get(number)
            if message is None:
                continue
            if message.lock_token is None:
                if message.expires_at is not None and message.expires_at <= now:
                    self._expire(message)
            elif message.locked_until <= now:
                del self._locks[message.lock_token]
                message.lock_token = None
                self._failed(message)

    def sessions_with_messages(self) -> list[str]:
        """Sessions that have a message to receive, the one with the oldest message first."""
        self.advance()
        waiting = sorted((heap[0], session) for session, heap in self._ready.items() if heap)
        return [session for _, session in waiting if session is not None]

    def sessions_listed(self) -> list[str]:
        """Sessions that have a message, whatever its state, or a stored state; AmqpError where there are no sessions."""
        self.advance()
        if not self.settings.requires_session:
            raise AmqpError(
                NOT_ALLOWED, f"{self.name!r} has no sessions: it takes no sessionful message receiver"
            )
        ids = (identity(message.sent.bare).session_id or "" for message in self._messages.values())
        return sorted({*ids, *self.sessions.states})

    def _make_ready(self, message: Message) -> None:
        session = (identity(message.sent.bare).session_id or "") if self.settings.requires_session else None
        heapq.heappush(self._ready.setdefault(session, []), message.sequence_number)
        self.available()

    def _next(self, session: str | None) -> Message | None:
        self.advance()
        ready = self._ready.get(session, [])
        while ready:
            message = self._messages.get(heapq.heappop(ready))
            if message is not None and message.lock_token is None and not message.deferred:
                return message
        return None

    def _lock(self, message: Message) -> None:
        # UUIDs travel in .NET's byte order.
        token = uuid4().bytes_le
        message.lock_token, self._locks[token] = token, message
        message.locked_until = self.clock() + self.settings.lock_duration
        heapq.heappush(self._deadlines, (message.locked_until, message.sequence_number))

    def _locked(self, token: bytes) -> Message:
        self.advance()
        message = self._locks.get(token)
        if message is None:
            raise AmqpError(LOCK_LOST, f"the lock on the message in {self.name!r} has expired or is unknown")
        return message

    def _unlock(self, token: bytes) -> Message:
        message = self._locked(token)
        del self._locks[token]
        message.lock_token = None
        return message

    def _changed(self, token: bytes, changes: Mapping[Any, Any]) -> Message:
        """The message, unlocked and changed; subscriptions share what was sent, so theirs stays."""
        message = self._unlock(token)
        if changes:
            message.sent = message.sent.changed(changes)
        return message

    def _put(self, message: Message) -> None:
        self._messages[message.sequence_number] = message
        if message.expires_at is not None:
            heapq.heappush(self._deadlines, (message.expires_at, message.sequence_number))
        self._make_ready(message)

    def _restore(self, message: Message) -> None:
        """Make an unlocked message available, unless its time is over."""
        if message.expires_at is not None and message.expires_at <= self.clock():
            self._expire(message)
        elif not message.deferred:
            self._make_ready(message)

    def _expire(self, message: Message) -> None:
        if self.settings.dead_letter_on_expiration and self.dead_letters is not None:
            self._bury(message, "TTLExpiredException", "The message expired and was dead lettered.")
        else:
            del self._messages[message.sequence_number]

    def _failed(self, message: Message) -> None:
        message.delivery_count += 1
        limit = self.settings.max_delivery_count
        if self.dead_letters is not None and message.delivery_count >= limit:
            text = f"Message could not be consumed after {limit} delivery attempts."
            self._bury(message, "MaxDeliveryCountExceeded", text)
        else:
            self._restore(message)

    def _bury(self, message: Message, reason: str, description: str) -> None:
        del self._messages[message.sequence_number]
        self._die(message, reason, description)

    def _die(self, message: Message, reason: str, description: str) -> None:
        assert self.dead_letters is not None  # the callers have checked
        message.dead_letter = DeadLetter(reason, description, self.name)
        message.deferred, message.expires_at = False, None
        self.dead_letters._put(message)  # noqa: SLF001 - the same class


def _of_dead_letters(settings: QueueSettings) -> QueueSettings:
    """Dead letters have neither sessions nor duplicates, whatever their queue has."""
    return replace(settings, requires_session=False, duplicate_window=None)
