"""A dead letter as a JSON document that people can read too. Pure."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from consumer.core.parked import SUFFIX
from consumer.errors import UnreadableError
from consumer.model import DeadLetter, Event, Rejection, split_place

_NUMBER = re.compile(r"[0-9]{1,19}")
_NUMBERS = 2**63  # sequence numbers are below it; an id typed by a person may not be
_OF_EVENT = ("offset", "enqueued_at", "partition_key", "unreadable")
_OF_DEAD_LETTER = ("hub", "consumer_group", "attempts", "failed_at")
_OF_PARTS = {"records": (), "of": 1, "epoch": 0, "first": ""}
"""Fields that a document has only if they say something, as those of an older version never do."""


def to_document(dead_letter: DeadLetter) -> dict[str, Any]:
    """The document of a dead letter. Its body is text if it is UTF-8 and not longer than base64, else base64.

    `position` sorts as text by partition, then by sequence number, and is exact where a reader of JSON takes numbers
    for floats. `partition` is that of keys: `0@<created, ms>` of a hub that was created anew.
    """
    event = dead_letter.event
    return {
        "hub": dead_letter.hub,
        "consumer_group": dead_letter.consumer_group,
        "partition": event.place,
        "sequence_number": event.sequence_number,
        "position": position(event.place, event.sequence_number),
        "offset": event.offset,
        "enqueued_at": event.enqueued_at,
        "partition_key": clean(event.partition_key),
        "properties": plain_properties(event),
        "unreadable": clean(event.unreadable),
        "content_type": clean(event.content_type),
        "content_encoding": clean(event.content_encoding),
        "reason": clean(dead_letter.rejection.reason),
        "detail": clean(dead_letter.rejection.detail),
        "attempts": dead_letter.attempts,
        "failed_at": dead_letter.failed_at,
        **{name: value for name, none in _OF_PARTS.items() if (value := getattr(dead_letter, name)) != none},
        **_body(event.body),
    }


def from_document(document: Mapping[str, Any] | bytes, location: str, dead_letter_id: str) -> DeadLetter:
    """The dead letter of a document or of its JSON. Raises UnreadableError, which names `location` and what to do, if it is none."""
    try:
        return _dead_letter(msgspec.json.decode(document) if isinstance(document, bytes) else document)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise unreadable(location, error, dead_letter_id) from error


def unreadable(location: str, error: Exception, dead_letter_id: str) -> UnreadableError:
    """The error for a stored dead letter, or parked event, that cannot be read, with what to do about it."""
    if not dead_letter_id:
        return UnreadableError(f"{location} is no dead letter ({error!r}): move or delete it")
    what, option = "dead letter", ""
    if f"{SUFFIX}~" in dead_letter_id:
        what, option = "parked event", " --parked"
    return UnreadableError(
        f"{location} is no {what} ({error!r}): correct or move it; `tidemark dead-letters purge{option}"
        f" '{dead_letter_id}'` deletes it, which gives up its event"
    )


def _dead_letter(document: Mapping[str, Any]) -> DeadLetter:
    body = (
        document["body"].encode() if "body" in document else b64decode(document["body_base64"], validate=True)
    )
    partition, incarnation = split_place(document["partition"])
    properties, types = read_properties(document["properties"])
    event = Event(
        properties=properties,
        property_types=types,
        **{name: document[name] for name in _OF_EVENT},
        # Dead letters of an older version have none of these.
        content_type=document.get("content_type"),
        content_encoding=document.get("content_encoding"),
        partition=partition,
        incarnation=incarnation,
        sequence_number=int(document["position"].rpartition("!")[2]),
        body=body,
    )
    why = Rejection(document["reason"], document["detail"])
    parts = msgspec.convert({name: document.get(name, none) for name, none in _OF_PARTS.items()}, _Parts)
    given = {name: document[name] for name in _OF_DEAD_LETTER}
    return DeadLetter(event=event, rejection=why, **given, **msgspec.structs.asdict(parts))


class _Parts(msgspec.Struct, frozen=True):
    records: tuple[str, ...]
    of: int
    epoch: int
    first: str


def position(partition: str, sequence_number: int) -> str:
    """The sort key. `!` sorts before every digit, so partition 1 comes before partition 10."""
    return f"{partition}!{sequence_number:020d}"


def is_of(stored_partition: str, partition: str | None) -> bool:
    """Whether a stored partition is the wanted one: `0` matches those of all hubs of the name, `0@<created, ms>` one."""
    return partition is None or partition.lower() in {stored_partition, split_place(stored_partition)[0]}


def event_of(dead_letter_id: str, hub: str, consumer_group: str) -> tuple[str, int] | None:
    """Partition, as keys have it, and sequence number of a dead letter of this hub and group; None for an id no such dead letter
    can have.
    """
    head = f"{hub}~{consumer_group}~"
    partition, separator, number = dead_letter_id.removeprefix(head).rpartition("~")
    if not dead_letter_id.startswith(head) or not separator or not _NUMBER.fullmatch(number):
        return None
    return (partition, int(number)) if int(number) < _NUMBERS else None


def clean(text: str | None) -> str | None:
    """The text without halves of surrogate pairs, which cannot be encoded."""
    return None if text is None else text.encode(errors="replace").decode()


_TYPES = "tidemark-property-types"
"""Beside the stored properties: the types of those that JSON does not tell."""
_READ: Mapping[str, Callable[[str], Any]] = {
    "BYTES": partial(b64decode, validate=True),
    "UUID": UUID,
    "DECIMAL": Decimal,
}
_STORED = {bytes: "BYTES", UUID: "UUID", Decimal: "DECIMAL"}


def plain_properties(event: Event) -> Any:
    """The properties as JSON values. Never raises: a dead letter that cannot be stored would block its partition."""
    properties = event.properties
    types = {
        name: kind
        for name, value in properties.items()
        if (kind := _STORED.get(type(value)) or event.property_types.get(name))
    }
    try:
        stored = {**properties, **({_TYPES: types} if types else {})}
        return msgspec.json.decode(msgspec.json.encode(stored, enc_hook=str))
    except Exception:  # see above
        return {str(clean(str(name))): clean(repr(value)) for name, value in properties.items()}


def read_properties(stored: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, str]]:
    """The properties of an event that `plain_properties` stored, and the types of those whose value does not say it. A value that is
    not of its type, as a person may have written it, stays as it is.
    """
    properties = dict(stored)
    types = properties.get(_TYPES)
    if not isinstance(types, dict):
        return properties, {}
    del properties[_TYPES]
    for name, kind in types.items():
        if kind in _READ and isinstance(value := properties.get(name), str):
            with suppress(ValueError, ArithmeticError):
                properties[name] = _READ[kind](value)
    return properties, {name: kind for name, kind in types.items() if kind not in _READ}


def _body(body: bytes) -> dict[str, str]:
    encoded = b64encode(body).decode()
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return {"body_base64": encoded}
    # control characters take six bytes each
    return {"body": text} if len(msgspec.json.encode(text)) <= len(encoded) + 64 else {"body_base64": encoded}
