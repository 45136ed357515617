"""Idempotent publishing as a partition sees it: who publishes, what is new, twice, or out of order (pure).

A producer is an id that the partition gave out, an epoch (its owner level) and a sequence number
of 31 bits that counts its events. A batch is new if it goes on where the last one ended, a
duplicate if it is one of the last batches again, and out of order otherwise.

What the service does is known from its clients only. What is inferred is a setting.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import msgspec

from devstack.amqp.wire.errors import INVALID_FIELD, NOT_ALLOWED, AmqpError
from devstack.amqp.wire.values import Int, Short, Symbol
from devstack.event_hubs.storage.segments import Note

CAPABILITY = "com.microsoft:idempotent-producer"
PRODUCER_ID = "com.microsoft:producer-id"  # long
EPOCH = "com.microsoft:producer-epoch"  # short
NUMBER = "com.microsoft:producer-sequence-number"  # int
OUT_OF_ORDER = "com.microsoft:out-of-order-sequence"
EPOCH_STOLEN = "com.microsoft:producer-epoch-stolen"

MAX_NUMBER = 2**31 - 1
_SHOWN = 5  # producers that an error names


class Idempotence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a hub publishes idempotently.

    `offered`: without it, links attach as if nobody had asked for the capability.
    `remembered_batches`: how many batches of each producer are known again (5 as in Kafka: inferred).
    `first_number`: what a producer begins with when the attach named n: "after" is n + 1 (.NET,
    JavaScript), "same" is n (Python 5.4.0b1). Live tests of both passed, so "either" is the default.
    `echo`: a producer that attaches again gets back the number it names (JavaScript and Python
    count on it: inferred); without it, the last one that the partition has.
    """

    offered: bool = True
    remembered_batches: int = 5
    first_number: Literal["either", "same", "after"] = "either"
    echo: bool = True

    def __post_init__(self) -> None:
        if self.remembered_batches < 0:
            raise ValueError(f"remembered_batches is {self.remembered_batches}, accepted: 0 or more")


class Stamp(NamedTuple):
    """Who sent an event, and the event's number."""

    producer_id: int
    epoch: int
    number: int


class Asked(NamedTuple):
    """What a producer says of itself when it attaches; None leaves it to the service."""

    producer_id: int | None = None
    epoch: int | None = None
    number: int | None = None


class Batch(NamedTuple):
    """The numbers of a batch, first and last included."""

    producer_id: int
    epoch: int
    first: int
    last: int


class Producer(msgspec.Struct, frozen=True, array_like=True):
    """What a partition knows of one. `number` is where it begins, and once it has published, its last.

    `remembered` has the first and last numbers of its last batches, oldest first.
    """

    epoch: int
    number: int
    published: bool = False
    remembered: tuple[tuple[int, int], ...] = ()

    def after(self, batch: Batch, remembered_batches: int) -> "Producer":
        """The same once the batch is stored."""
        remembered = (*self.remembered, (batch.first, batch.last))
        return Producer(
            self.epoch,
            batch.last,
            published=True,
            remembered=remembered[max(0, len(remembered) - remembered_batches) :],
        )


class Publishers:
    """The producers of one partition.

    `new_id` gives an id that nobody had before, `notes` has what `keep` was told of each producer.
    """

    def __init__(
        self,
        settings: Idempotence,
        new_id: Callable[[], int],
        notes: Mapping[int, bytes],
        keep: Callable[[Note], None],
    ) -> None:
        self.settings = settings
        # batches_ and events_accepted, batches_ and events_dropped, rejected:<condition>
        self.counts: Counter[str] = Counter()
        self._new_id = new_id
        self._keep = keep
        self._producers = {key: msgspec.json.decode(text, type=Producer) for key, text in notes.items()}

    def attach(self, asked: Asked) -> Stamp:
        """The producer as it is from now on, with the number to tell it.

        A higher epoch begins anew and shuts out the lower one. Raises AmqpError for an id that was
        not given out here and for an epoch that is too low.
        """
        if asked.producer_id is None:
            return self._begin(self._new_id(), asked.epoch or 0, asked.number or 0)
        producer = self._producers.get(asked.producer_id)
        if producer is None:
            known = ", ".join(map(str, list(self._producers)[-_SHOWN:])) or "none"
            raise AmqpError(
                NOT_ALLOWED,
                f"{PRODUCER_ID} {asked.producer_id} is unknown to this partition, newest that are known: {known}",
            )
        epoch = producer.epoch if asked.epoch is None else asked.epoch
        _refuse_stale(asked.producer_id, epoch, producer.epoch)
        if epoch > producer.epoch:
            return self._begin(asked.producer_id, epoch, asked.number or 0)
        if asked.number is not None and not producer.published:
            producer = self._know(asked.producer_id, Producer(epoch, asked.number))
        echoed = asked.number if self.settings.echo else None
        return Stamp(asked.producer_id, epoch, producer.number if echoed is None else echoed)

    def publish(self, claims: Sequence[Mapping[Any, Any]], store: Callable[[Note], object]) -> None:
        """Have a batch stored, unless it is a duplicate. `claims` are the annotations of its events.

        `store` gets what to note with the events.
        Raises AmqpError, as read_batch and is_new do, for a batch that is rejected.
        """
        try:
            batch = read_batch(claims)
            new = self.is_new(batch)
        except AmqpError as error:
            self.counts[f"rejected:{error.condition}"] += 1
            raise
        if new:
            after = self._producers[batch.producer_id].after(batch, self.settings.remembered_batches)
            store(Note(batch.producer_id, msgspec.json.encode(after)))
            self._producers[batch.producer_id] = after
        self.counts["batches_accepted" if new else "batches_dropped"] += 1
        self.counts["events_accepted" if new else "events_dropped"] += len(claims)

    def is_new(self, batch: Batch) -> bool:
        """Whether the batch is to be stored; it is not if it has been before.

        Raises AmqpError for one that is out of order, of an epoch that was shut out, or of nobody known.
        """
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            raise AmqpError(NOT_ALLOWED, f"{PRODUCER_ID} {batch.producer_id} is unknown to this partition")
        _refuse_stale(batch.producer_id, batch.epoch, producer.epoch)
        if batch.epoch > producer.epoch:
            raise AmqpError(NOT_ALLOWED, f"{EPOCH} is {batch.epoch}, but {producer.epoch} is attached")
        if (batch.first, batch.last) in producer.remembered:
            return False
        expected = self._expected(producer)
        if batch.first not in expected:
            wanted = " or ".join(map(str, expected))
            raise AmqpError(
                OUT_OF_ORDER, f"{NUMBER} {batch.first} to {batch.last}, expected to begin with {wanted}"
            )
        return True

    def fence(self) -> None:
        """Shut out all producers, as others with the same ids and higher epochs do."""
        for producer_id, producer in list(self._producers.items()):
            self._begin(producer_id, producer.epoch + 1, 0)

    def forget(self) -> None:
        """Know none of the producers any more: ids do not live forever."""
        for producer_id in self._producers:
            self._keep(Note(producer_id, b""))
        self._producers.clear()

    def describe(self) -> dict[str, Any]:
        """As JSON: the producers and the counts."""
        producers = [
            {"id": id_, "epoch": one.epoch, "number": one.number, "published": one.published}
            for id_, one in self._producers.items()
        ]
        return {"producers": producers, **self.counts}

    def _begin(self, producer_id: int, epoch: int, number: int) -> Stamp:
        self._know(producer_id, Producer(epoch, number))
        return Stamp(producer_id, epoch, number)

    def _know(self, producer_id: int, producer: Producer) -> Producer:
        self._keep(Note(producer_id, msgspec.json.encode(producer)))
        self._producers[producer_id] = producer
        return producer

    def _expected(self, producer: Producer) -> list[int]:
        if producer.published:
            return [following(producer.number)]
        first = self.settings.first_number
        same, after = [producer.number], [following(producer.number)]
        return {"either": same + after, "same": same, "after": after}[first]


def following(number: int) -> int:
    """The sequence number after this one; after the highest comes 0."""
    return number + 1 if number < MAX_NUMBER else 0


def read_batch(claims: Sequence[Mapping[Any, Any]]) -> Batch:
    """The batch that events with these annotations make up; a batch has at least one.

    Raises AmqpError if an event lacks one, or they are of several producers or not consecutive.
    """
    stamps = [_stamp(claim, index) for index, claim in enumerate(claims)]
    for before, after in pairwise(stamps):
        if before[:2] != after[:2]:
            raise AmqpError(INVALID_FIELD, f"a batch of two producers: {before} and {after}")
        if after.number != following(before.number):
            raise AmqpError(
                OUT_OF_ORDER, f"{NUMBER} {before.number} is followed by {after.number} in a batch"
            )
    first, last = stamps[0], stamps[-1]
    return Batch(first.producer_id, first.epoch, first.number, last.number)


def read_asked(properties: Mapping[Any, Any] | None) -> Asked:
    """What the properties of an attach ask for. Raises AmqpError for a value of the wrong type."""
    asked = properties or {}
    return Asked(*(_typed(asked, key, kind) for key, kind in _TYPES))


def link_properties(stamp: Stamp) -> dict[str, Any]:
    """What the answer to an attach tells a producer."""
    return {
        Symbol(PRODUCER_ID): stamp.producer_id,
        Symbol(EPOCH): Short(stamp.epoch),
        Symbol(NUMBER): Int(stamp.number),
    }


_TYPES: tuple[tuple[str, type[int]], ...] = ((PRODUCER_ID, int), (EPOCH, Short), (NUMBER, Int))


def _stamp(claim: Mapping[Any, Any], index: int) -> Stamp:
    values = [_typed(claim, key, kind) for key, kind in _TYPES]
    missing = [key for (key, _), value in zip(_TYPES, values, strict=True) if value is None]
    if missing:
        raise AmqpError(
            INVALID_FIELD, f"event {index} of an idempotent batch has no {' and no '.join(missing)}"
        )
    return Stamp(*(value for value in values if value is not None))


def _typed(properties: Mapping[Any, Any], key: str, kind: type[int]) -> int | None:
    value = properties.get(key)
    if value is None:
        return None
    if type(value) is not kind or value < 0:
        wanted = {int: "long", Short: "short", Int: "int"}[kind]
        raise AmqpError(
            INVALID_FIELD, f"{key} is {value!r} ({type(value).__name__}), accepted: a {wanted} from 0 on"
        )
    return int(value)


def _refuse_stale(producer_id: int, epoch: int, current: int) -> None:
    if epoch < current:
        raise AmqpError(
            EPOCH_STOLEN, f"{EPOCH} {epoch} of {PRODUCER_ID} {producer_id} was shut out by {current}"
        )
