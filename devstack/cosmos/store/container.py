"""A container: its documents by logical partition, and every operation on one of them.

Nothing here awaits, and nothing reads a clock: `now` is an argument in seconds since 1970.
Operations either return an Outcome or raise CosmosError; a refused one has changed nothing.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from devstack.cosmos.partitions.budget import Budget, Prices
from devstack.cosmos.partitions.hashing import Component
from devstack.cosmos.partitions.keys import KeyDefinition, canonical, identity_reader, mismatch, same_key
from devstack.cosmos.partitions.ranges import Range, RangeMap
from devstack.cosmos.protocol.errors import CosmosError, bad_request, not_found, throttled
from devstack.cosmos.store.lifetimes import Lifetimes, parse_default
from devstack.cosmos.store.patching import patched
from devstack.cosmos.store.rids import document_rid, rid_text
from devstack.cosmos.store.throughput import Offer
from devstack.cosmos.store.unique_keys import UniqueKeys, parse_policy

MAX_DOCUMENT = 2 * 1024 * 1024  # bytes
_SYSTEM = ("_rid", "_self", "_etag", "_attachments", "_ts")
_HAS_SYSTEM = re.compile(rb'"_(?:rid|self|etag|attachments|ts)"').search


class Document(Struct, gc=False):
    """What is stored: the user's JSON, and what the system properties are made of."""

    id: str
    body: bytes
    number: int
    etag: str
    timestamp: int
    change: int
    """The number of the write that made it, over the whole container."""


class Partition:
    """A logical partition: the documents that share a partition key value."""

    def __init__(self, key: tuple[Component, ...], effective: str, holder: Range) -> None:
        self.key = key
        self.name = canonical(key)
        self.effective = effective
        self.range = holder
        self.documents: dict[str, Document] = {}
        self.of_strings = all(type(part) is str for part in key)


class Condition(Struct, frozen=True):
    """ETags that an operation asks for; "*" is any."""

    match: str | None = None
    none_match: str | None = None


ANY = Condition()


class Outcome(Struct, gc=False):
    """An operation that succeeded. `document` is what the service would answer with."""

    status: int
    charge: float
    partition: Partition
    document: Document | None


class Container:
    """`offer` is the container's own or, with `shared_budget`, its database's; both are set by the account."""

    def __init__(
        self,
        *,
        name: str,
        rid: bytes,
        properties: dict[str, Any],
        definition: KeyDefinition,
        ranges: int,
        prices: Prices,
    ) -> None:
        self.name = name
        self.rid = rid
        self.rid_text = rid_text(rid)
        self.properties = properties
        self.definition = definition
        self.map = RangeMap(definition, ranges)
        self.prices = prices
        self.offer: Offer | None = None
        self.shared_budget: Budget | None = None
        self.stored_bytes = 0
        self.identify = identity_reader(definition)
        self._partitions: dict[str, Partition] = {}
        self._by_text: dict[str, Partition] = {}
        self._documents = 0
        self.changes = 0
        """The number of the last write; it makes the ETag, too."""
        self._lifetimes = Lifetimes(parse_default(properties.get("defaultTtl")))
        self._unique = UniqueKeys(parse_policy(properties.get("uniqueKeyPolicy")))

    def replace_properties(self, properties: dict[str, Any]) -> None:
        """A new time to live holds for what is there. Raises CosmosError (400)."""
        default = parse_default(properties.get("defaultTtl"))
        if properties.get("uniqueKeyPolicy") != self.properties.get("uniqueKeyPolicy"):
            raise bad_request("The uniqueKeyPolicy of a container cannot be changed")
        self.properties = properties
        self._lifetimes = Lifetimes(default)
        for partition, document in self.documents():
            self._note_life(partition, document)

    def expire(self, now: float) -> None:
        """Remove the documents whose time is over; to be called before anything is asked of the container."""
        for key, name, change in self._lifetimes.pop_ended(now):
            partition = self._partitions[key]
            document = partition.documents.get(name)
            if document is not None and document.change == change:
                self._remove(partition, document)

    # Where a key lives

    def partition(self, text: str | None) -> Partition:
        """By the JSON form of a whole key. Raises CosmosError (400)."""
        partition = self._by_text.get(text) if text is not None else None
        if partition is None:
            key = self.definition.parse(text)
            if len(key) < len(self.definition.paths):
                raise bad_request(f"The partition key {text} has fewer values than the container has paths")
            partition = self.partition_of(key)
            if partition.documents and text is not None:
                self._by_text[text] = partition
        return partition

    def partition_of(self, key: tuple[Component, ...]) -> Partition:
        """By value. An empty one is not kept until something is written to it."""
        partition = self._partitions.get(canonical(key))
        if partition is None:
            effective = self.definition.effective(key)
            partition = Partition(key, effective, self.map.of(effective))
        return partition

    def partitions(self) -> Iterator[Partition]:
        """Those that hold documents, or did."""
        yield from self._partitions.values()

    def documents(self) -> Iterator[tuple[Partition, Document]]:
        for partition in self._partitions.values():
            for document in partition.documents.values():
                yield partition, document

    def full(self, document: Document) -> bytes:
        """A document's JSON with the system properties."""
        rid = rid_text(document_rid(self.rid, document.number))
        link = f"{self.properties['_self']}docs/{rid}/"
        etag = document.etag.replace('"', '\\"')
        system = (
            f'"_rid":"{rid}","_self":"{link}","_etag":"{etag}",'
            f'"_attachments":"attachments/","_ts":{document.timestamp}}}'
        )
        return document.body[:-1] + b"," + system.encode()

    # Physical partitions

    def split(self, old: Range) -> tuple[Range, Range]:
        """Cut a range in two; requests that name it are refused from now on."""
        halves = self.map.split(old)
        self._rehome(lambda partition: partition.range is old)
        for half in halves:
            half.lsn = old.lsn
        return halves

    def merge(self, left: Range) -> Range:
        """Join a range and its right neighbour. Raises ValueError if it has none."""
        merged = self.map.merge(left)
        gone = set(merged.parents)
        self._rehome(lambda partition: partition.range.id in gone)
        return merged

    def _rehome(self, moved: Callable[[Partition], bool]) -> None:
        for partition in self._partitions.values():
            if moved(partition):
                partition.range = self.map.of(partition.effective)

    # Request units

    def admit(self, holder: Range, now: float) -> None:
        """Raises CosmosError (429) if the range has nothing left this second."""
        offer = self.offer
        if offer is None:
            return
        if self.shared_budget is not None:
            wait = self.shared_budget.wait(offer.level.ru, now)
        else:
            wait = holder.budget.wait(offer.level.ru / len(self.map.ranges), now)
        if wait > 0:
            holder.throttled += 1
            raise throttled(wait)

    @property
    def shares(self) -> bool:
        """Whether the throughput is the database's."""
        return self.shared_budget is not None

    # Operations on one document; the caller has asked `admit` before

    def read(self, partition: Partition, name: str, condition: Condition) -> Outcome:
        """A document, or 304 without one if it is as `none_match` says. Raises CosmosError."""
        document = partition.documents.get(name)
        charge = self.prices.read(len(document.body) if document else 0)
        self._charge(partition.range, charge)
        if document is None:
            raise self._missing(name, charge)
        if condition.none_match is not None and _matches(condition.none_match, document):
            return Outcome(304, charge, partition, None)
        return Outcome(200, charge, partition, document)

    def write(
        self,
        verb: str,
        partition: Partition,
        name: str | None,
        body: bytes | Raw,
        condition: Condition,
        now: float,
    ) -> Outcome:
        """Create, Upsert or Replace; `name` is the id in the address, which the body has to repeat.

        Raises CosmosError.
        """
        body = bytes(body)
        if body[-1:] != b"}" or body[:1] != b"{" or _HAS_SYSTEM(body):
            body = _stored_form(body)
        identity, key = self.identify(body)
        if key != partition.key or not partition.of_strings:
            self._check_key(key, partition)
        if name is not None and name != identity:
            raise bad_request(f"The id in the body, {identity!r}, is not the one addressed, {name!r}")
        old = partition.documents.get(identity)
        if old is None:
            if verb == "Replace":
                raise self._refusal(partition, self._missing(identity))
        elif verb == "Create":
            exists = CosmosError(409, f"Resource with specified id {identity!r} already exists.")
            raise self._refusal(partition, exists, old)
        else:
            self._check(partition, condition, old)
        if len(body) > MAX_DOCUMENT:
            raise CosmosError(413, f"Request size is too large: {len(body)} bytes, accepted: {MAX_DOCUMENT}")
        self._unique.check(partition.name, identity, body)
        document = self._store(partition, identity, body, old, now)
        charge = self.prices.write(len(body))
        self._charge(partition.range, charge)
        return Outcome(201 if old is None else 200, charge, partition, document)

    def patch(
        self, partition: Partition, name: str, instructions: bytes | Raw, condition: Condition, now: float
    ) -> Outcome:
        """Raises CosmosError, 412 if the condition within the instructions does not hold."""
        old = partition.documents.get(name)
        if old is None:
            raise self._refusal(partition, self._missing(name))
        self._check(partition, condition, old)
        try:
            body = patched(self.full(old), bytes(instructions))
        except CosmosError as error:
            raise (self._refusal(partition, error, old) if error.status == 412 else error) from None
        return self.write("Replace", partition, name, body, ANY, now)

    def delete(self, partition: Partition, name: str, condition: Condition) -> Outcome:
        """Raises CosmosError."""
        old = partition.documents.get(name)
        if old is None:
            raise self._refusal(partition, self._missing(name))
        self._check(partition, condition, old)
        self._remove(partition, old)
        charge = self.prices.write(len(old.body))
        self._charge(partition.range, charge)
        return Outcome(204, charge, partition, None)

    def restore(self, partition: Partition, documents: dict[str, Document]) -> None:
        """Put a logical partition back as it was before a batch that failed."""
        for document in partition.documents.values():
            self.stored_bytes -= len(document.body)
            self._unique.remove(partition.name, document.body)
        partition.documents = documents
        for document in documents.values():
            self.stored_bytes += len(document.body)
            self._unique.add(partition.name, document.id, document.body)
            self._note_life(partition, document)

    def charge_page(self, holders: Sequence[Range], size: int) -> float:
        """Charge a page of a query, of `size` bytes, in equal parts to the ranges it is over; returns the charge."""
        charge = self.prices.page(size)
        for holder in holders:
            self._charge(holder, charge / len(holders))
        return charge

    def _check_key(self, key: tuple[Any, ...], partition: Partition) -> None:
        if not same_key(self.definition.checked(key), partition.key):
            raise mismatch()

    def _charge(self, holder: Range, charge: float) -> None:
        holder.operations += 1
        (self.shared_budget or holder.budget).spend(charge)

    def _missing(self, name: str, charge: float = 0.0) -> CosmosError:
        error = not_found(f"document {name!r}")
        error.charge = charge
        return error

    def _refusal(
        self, partition: Partition, error: CosmosError, document: Document | None = None
    ) -> CosmosError:
        """What the state of a document refuses is charged too, and is no operation that was carried out."""
        error.charge = self.prices.read(len(document.body) if document else 0)
        (self.shared_budget or partition.range.budget).spend(error.charge)
        return error

    def _check(self, partition: Partition, condition: Condition, document: Document) -> None:
        if condition.match is not None and not _matches(condition.match, document):
            error = CosmosError(412, "One of the specified pre-condition is not met")
            raise self._refusal(partition, error, document)

    def _store(
        self, partition: Partition, name: str, body: bytes, old: Document | None, now: float
    ) -> Document:
        change = self.changes + 1
        etag = f'"{change:08x}-0000-0700-0000-000000000000"'
        number = self._documents + 1 if old is None else old.number
        document = Document(name, body, number, etag, int(now), change)
        self._note_life(partition, document)
        self.changes = change
        self._documents = max(self._documents, number)
        if old is not None:
            self._unique.remove(partition.name, old.body)
        self._unique.add(partition.name, name, body)
        if not partition.documents:
            self._partitions.setdefault(partition.name, partition)
        partition.documents[name] = document
        partition.range.lsn += 1
        self.stored_bytes += len(body) - (len(old.body) if old else 0)
        return document

    def _remove(self, partition: Partition, document: Document) -> None:
        del partition.documents[document.id]
        self._unique.remove(partition.name, document.body)
        self.stored_bytes -= len(document.body)
        partition.range.lsn += 1

    def _note_life(self, partition: Partition, document: Document) -> None:
        """Raises CosmosError (400) for a time to live that is none."""
        self._lifetimes.note(partition.name, document.id, document.change, document.timestamp, document.body)


def _matches(etag: str, document: Document) -> bool:
    return etag in ("*", document.etag)


def _stored_form(body: bytes) -> bytes:
    """The user's JSON without the system properties that a document read before brings along."""
    body = body.strip()
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise bad_request(f"The document is not valid: {error}") from None
    if not isinstance(document, dict):
        return body
    for name in _SYSTEM:
        document.pop(name, None)
    return msgspec.json.encode(document)
