"""The entities of a namespace: queues, topics and subscriptions, found by name or address."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from devstack.amqp.wire.errors import NOT_ALLOWED, NOT_FOUND, AmqpError
from devstack.service_bus.messages.messages import Sent
from devstack.service_bus.messages.schedule import RecentIds, Schedule
from devstack.service_bus.queue import Clock, Counts, Queue
from devstack.service_bus.rules.rules import DEFAULT_RULE, TRUE_FILTER, Rule
from devstack.service_bus.settings import EntityLimits, QueueSettings, check_status

ENTITY_DISABLED = "com.microsoft:entity-disabled"
_DEAD_LETTER_SUFFIX = "/$deadletterqueue"


class EntityExistsError(Exception):
    """An entity of that name is there already."""


@dataclass(slots=True)
class Topic:
    """Offers every message to all its subscriptions, whose rules say what they take. Without a subscription a message is gone."""

    name: str
    clock: Clock
    status: str = "Active"
    subscriptions: dict[str, Queue] = field(default_factory=dict)  # by lower-case name
    limits: EntityLimits = field(default_factory=EntityLimits)
    duplicate_window: float | None = None  # seconds; None: no duplicate detection
    properties: dict[str, str] = field(default_factory=dict)  # said of it by clients, and not acted upon
    created_at: float = 0.0
    updated_at: float = 0.0
    _schedule: Schedule = field(default_factory=Schedule)
    _recent: RecentIds = field(default_factory=RecentIds)
    _last_number: int = 0

    def __post_init__(self) -> None:
        check_status(self.status)
        self.created_at = self.updated_at = self.clock()

    def update(self, status: str) -> None:
        check_status(status)
        self.status = status
        self.updated_at = self.clock()

    @property
    def sends(self) -> bool:
        return self.status in ("Active", "ReceiveDisabled")

    def send(self, sent: Sent) -> int:
        """Copy now, or at the time the message is scheduled for; returns its number in the topic."""
        self.advance()
        if self._recent.has(sent, self.clock(), self.duplicate_window):
            return self._last_number
        self._last_number += 1
        if sent.scheduled_for is not None and sent.scheduled_for > self.clock():
            self._schedule.add(self._last_number, sent, sent.scheduled_for)
        else:
            self._copy(sent)
        return self._last_number

    def _copy(self, sent: Sent) -> None:
        for subscription in self.subscriptions.values():
            subscription.offer(sent)

    def cancel_scheduled(self, numbers: list[int]) -> None:
        self.advance()
        self._schedule.cancel(numbers)

    def advance(self) -> None:
        """Do everything that is due by now."""
        for sent in self._schedule.pop_due(self.clock()):
            self._copy(replace(sent, scheduled_for=None))

    def counts(self) -> Counts:
        """Only scheduled messages are the topic's own; the others are its subscriptions'."""
        self.advance()
        return Counts(scheduled=len(self._schedule))


class Broker:
    """Names are case-insensitive, and kept as they were first written."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.queues: dict[str, Queue] = {}  # by lower-case name
        self.topics: dict[str, Topic] = {}  # by lower-case name

    def create_queue(self, name: str, settings: QueueSettings | None = None) -> Queue:
        """Raises EntityExistsError if a queue or topic has the name."""
        self._check_free(name)
        queue = self.queues[name.lower()] = Queue(name, settings or QueueSettings(), self._clock)
        return queue

    def create_topic(
        self,
        name: str,
        status: str = "Active",
        limits: EntityLimits | None = None,
        duplicate_window: float | None = None,
    ) -> Topic:
        """Raises EntityExistsError if a queue or topic has the name."""
        self._check_free(name)
        topic = self.topics[name.lower()] = Topic(
            name, self._clock, status, limits=limits or EntityLimits(), duplicate_window=duplicate_window
        )
        return topic

    def create_subscription(self, topic: str, name: str, settings: QueueSettings | None = None) -> Queue:
        """Raises EntityExistsError if the topic has such a subscription, AmqpError if there is no topic."""
        subscriptions = self.topic(topic).subscriptions
        if name.lower() in subscriptions:
            raise EntityExistsError(f"subscription {name!r} of topic {topic!r} exists already")
        address = f"{self.topic(topic).name}/Subscriptions/{name}"
        subscription = subscriptions[name.lower()] = Queue(address, settings or QueueSettings(), self._clock)
        subscription.rules = {DEFAULT_RULE.lower(): Rule(DEFAULT_RULE, TRUE_FILTER, created_at=self._clock())}
        return subscription

    def rules(self, address: str) -> dict[str, Rule]:
        """Of a subscription, by lower-case name. Raises AmqpError if it is none."""
        rules = self.source(address).rules
        if rules is None:
            raise AmqpError(NOT_ALLOWED, f"{address!r} is no subscription: only those have rules")
        return rules

    def rule(self, address: str, name: str) -> Rule:
        """Raises AmqpError if there is none."""
        named = self.rules(address).get(name.lower())
        if named is None:
            raise _not_found(f"{address}/Rules/{name}")
        return named

    def put_rule(self, address: str, rule: Rule, *, update: bool = False) -> Rule:
        """Raises EntityExistsError if there is one and it is not to be updated, AmqpError if there is none to update."""
        rules = self.rules(address)
        if update:
            created_at = self.rule(address, rule.name).created_at
        elif rule.name.lower() in rules:
            raise EntityExistsError(f"rule {rule.name!r} of {address!r} exists already")
        else:
            created_at = self._clock()
        stored = rules[rule.name.lower()] = replace(rule, created_at=created_at)
        return stored

    def remove_rule(self, address: str, name: str) -> None:
        """Raises AmqpError if there is none."""
        self.rule(address, name)
        del self.rules(address)[name.lower()]

    def delete(self, address: str) -> None:
        """Remove an entity with all its messages; raises AmqpError if there is none."""
        path = address.lower()
        topic_name, _, name = path.partition("/subscriptions/")
        if self.queues.pop(path, None) is not None or self.topics.pop(path, None) is not None:
            return
        if topic_name not in self.topics or self.topics[topic_name].subscriptions.pop(name, None) is None:
            raise _not_found(address)

    def topic(self, name: str) -> Topic:
        """Raises AmqpError if there is none."""
        if name.lower() not in self.topics:
            raise _not_found(name)
        return self.topics[name.lower()]

    def target(self, address: str) -> Queue | Topic:
        """Where messages to this address go; raises AmqpError if there is no such entity."""
        entity = self.queues.get(address.lower()) or self.topics.get(address.lower())
        if entity is None:
            raise _not_found(address)
        return entity

    def source(self, address: str) -> Queue:
        """Where messages of this address come from; raises AmqpError if there is no such entity."""
        path = address.lower()
        if path.endswith(_DEAD_LETTER_SUFFIX):
            dead_letters = self.source(address[: -len(_DEAD_LETTER_SUFFIX)]).dead_letters
            if dead_letters is not None:
                return dead_letters
            raise _not_found(address)
        if path in self.queues:
            return self.queues[path]
        if path in self.topics:
            raise AmqpError(NOT_ALLOWED, f"{address!r} is a topic: receive from one of its subscriptions")
        topic_name, separator, name = path.partition("/subscriptions/")
        topic = self.topics.get(topic_name)
        if not separator or topic is None or name not in topic.subscriptions:
            raise _not_found(address)
        return topic.subscriptions[name]

    def check_sends(self, address: str) -> None:
        """Raises AmqpError if the entity does not take messages now."""
        entity = self.target(address)
        status = entity.status if isinstance(entity, Topic) else entity.settings.status
        if not (entity.sends if isinstance(entity, Topic) else entity.settings.sends):
            raise AmqpError(ENTITY_DISABLED, f"entity {entity.name!r} is {status} and takes no messages")

    def check_receives(self, address: str) -> None:
        """Raises AmqpError if the entity does not give messages away now; dead letters go by their entity."""
        entity = self.source(address)
        topic = self.topics.get(address.lower().partition("/subscriptions/")[0])
        if topic is not None and topic.status == "Disabled":
            raise AmqpError(ENTITY_DISABLED, f"topic {topic.name!r} is Disabled and gives no messages")
        if not entity.settings.receives:
            status = entity.settings.status
            raise AmqpError(ENTITY_DISABLED, f"entity {entity.name!r} is {status} and gives no messages")

    def advance(self) -> None:
        """Do everything that is due by now."""
        for entity in self._entities():
            entity.advance()

    def counts(self, address: str) -> Counts:
        """Of a queue, topic, subscription or its dead letters; raises AmqpError if there is none."""
        if address.lower() in self.topics:
            return self.topic(address).counts()
        return self.source(address).counts()

    def _entities(self) -> Iterator[Queue | Topic]:
        for queue in self.queues.values():
            yield from _with_dead_letters(queue)
        for topic in self.topics.values():
            yield topic
            for subscription in topic.subscriptions.values():
                yield from _with_dead_letters(subscription)

    def _check_free(self, name: str) -> None:
        if name.lower() in self.queues or name.lower() in self.topics:
            raise EntityExistsError(f"an entity named {name!r} exists already")


def _with_dead_letters(queue: Queue) -> Iterator[Queue]:
    yield queue
    if queue.dead_letters is not None:
        yield queue.dead_letters


def _not_found(address: str) -> AmqpError:
    return AmqpError(NOT_FOUND, f"the messaging entity {address!r} could not be found")
