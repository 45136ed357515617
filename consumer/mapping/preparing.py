"""What becomes of an event before its sink: its body is decoded to documents, these are mapped to writes (or dropped), and each
write becomes a record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from traceback import extract_tb
from typing import Any

from msgspec import structs

from consumer.mapping.documents import read_object, rejected
from consumer.model import Dropped, Event, Mapped, Record, Rejection, Write
from consumer.ports import Decoder

Prepare = Callable[[Write], Record]
"""Sink.prepare."""

MapDocuments = Callable[[Event, Sequence[Any]], Mapped]
"""Makes writes of the documents of an event. Computes only."""


RECORD_BYTES = 1024
"""Bytes that a record takes besides its payload, about: as an object in the pipeline, with its work."""


class Preparation:
    """Without a decoder a body is read as a JSON object. With neither decoder nor mapping the sink reads the body itself."""

    def __init__(
        self, prepare: Prepare, *, decoder: Decoder | None = None, mapping: MapDocuments | None = None
    ) -> None:
        self._prepare = prepare
        self.decoder = decoder
        """To be asked for what it misses before `records` of the events."""
        self._mapping = mapping
        self._is_plain = decoder is None and mapping is None

    def records(self, events: Sequence[Event]) -> list[Record]:
        """The records of events, in order; at least one for each event.

        Preparing only computes, so an exception would be raised at every attempt, and would block the events behind this
        one: it rejects the event. MemoryError is about the machine, and is raised.
        """
        records: list[Record] = []
        for event in events:
            try:
                if self._is_plain:
                    records.append(self._prepare(Write(event)))
                else:
                    records += self._records_of(event)
            except MemoryError:
                raise
            except Exception as error:  # see above
                records.append(rejected(event, _unexpected(error)))
        return records

    def records_within(self, events: Sequence[Event], size: int) -> tuple[list[Record], int]:
        """The records of the first events until they have `size` bytes and more, and the number of these events.

        What a decoder unpacks, and what one event becomes, may be a thousand times what was received.
        """
        if self._is_plain:
            return self.records(events), len(events)
        records: list[Record] = []
        taken = made = 0
        while taken < len(events) and made < size:
            of_event = self.records(events[taken : taken + 1])
            made += sum(len(record.payload) + RECORD_BYTES for record in of_event)
            records += of_event
            taken += 1
        return records, taken

    def _records_of(self, event: Event) -> list[Record]:
        mapped = self._map(event)
        if isinstance(mapped, Dropped | Rejection):
            mapped = [mapped]
        elif not mapped:
            mapped = [Rejection("no_writes", "the event became no document; drop it to skip it on purpose")]
        # What is rejected has its place in the list as its index, as its write would have where each element makes one; or else one of
        # its own, for a dead letter names it by that, and a replay must not take a record for it that is written.
        taken = {item.index for item in mapped if isinstance(item, Write)}
        return [
            self._record(event, item, -1 - place if place in taken else place, len(mapped))
            for place, item in enumerate(mapped)
        ]

    def _map(self, event: Event) -> Mapped:
        documents = _read_json(event) if self.decoder is None else self.decoder.decode(event)
        if isinstance(documents, Rejection):
            return documents
        if self._mapping is not None:
            return self._mapping(event, documents)
        return [Write(event, document, index) for index, document in enumerate(documents)]

    def _record(self, event: Event, item: Write | Dropped | Rejection, index: int, of: int) -> Record:
        if isinstance(item, Dropped):
            return Record(event, "", dropped=item, index=index, of=of)
        if isinstance(item, Rejection):
            return structs.replace(rejected(event, item), index=index, of=of)
        try:
            record = self._prepare(item)
        except MemoryError:
            raise
        except Exception as error:  # see `records`; the event's other writes go on
            record = rejected(event, _unexpected(error))
        if of == 1 and not item.index and not item.sink:
            return record
        return structs.replace(record, sink=item.sink, index=item.index, of=of)


def _read_json(event: Event) -> Sequence[Any] | Rejection:
    """An event without a body is a tombstone: None."""
    if not event.body and event.unreadable is None:
        return [None]
    document = read_object(event)
    return document if isinstance(document, Rejection) else [document]


def _unexpected(error: Exception) -> Rejection:
    where = extract_tb(error.__traceback__)[-1]
    return Rejection(
        "unexpected",
        f"preparing the event raised {type(error).__name__}: {error} (in {where.name}, line {where.lineno})",
    )
