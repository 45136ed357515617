"""Converts an event's body to the document that is written. Pure, and on the hot path: one decode, one encode.

The body must be a JSON object in UTF-8. Two things are repaired silently: a byte order mark is dropped, and of equal keys
the last one counts (RFC 8259 leaves it open; JavaScript and Python agree). Any other body is rejected, and so is a document
that Cosmos DB could never store; `REASONS` lists all reasons.

The document's `id` is set here, and replaces one that it may have:
- `field:<path>`: the value at the path, such as `field:order/number`; a whole number becomes its decimal text;
- `position`: hub, partition and sequence number, so that an event delivered twice is one document. In a hub that was
  created anew the partition is `0@<created, ms>`, so that its events replace no document of the hub before it.

A transform is the user's function `transform(document, event) -> mapping`. It may change and return its document. An
exception or any other result rejects the event, None included: an event is written or becomes a dead letter, never lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, NoReturn

import msgspec
from msgspec import UNSET, Struct, UnsetType

from consumer.mapping.partition_hash import EffectiveKey, Scalar
from consumer.model import Event, Record, Rejection, Write
from tidemark.foundation.errors import SettingsError

Transform = Callable[[Mapping[str, Any], Event], Mapping[str, Any]]
Path = tuple[str, ...]

REASONS = {
    "unreadable": "the message has no body of bytes",
    "empty": "the body is empty",
    "encoding": "the body is not UTF-8, or holds half of a surrogate pair",
    "json": "the body is not JSON",
    "number": "NaN, Infinity, or a number beyond a double's range",
    "nesting": "deeper than Cosmos DB's 128 levels",
    "not_object": "JSON, but not an object",
    "transform": "the transform failed or returned no mapping",
    "document": "the transform returned a value that JSON cannot hold",
    "id": "no legal id: missing, no text or whole number, empty, over 1,023 bytes, or with one of / \\ ? #",
    "partition_key": "an object, a list or over 2,048 bytes at a partition key path",
    "too_large": "the document, id and metadata included, is over 2 MB",
    "unexpected": "preparing the event failed in an unexpected way",
}
"""Every reason for a rejection in this module."""

# The service's documented limits per document.
MAX_DOCUMENT = 2 * 1024 * 1024
MAX_ID = 1023
MAX_PARTITION_KEY = 2048
MAX_DEPTH = 128

META = "_tm"
"""The field for the event's position, if it is wanted: partition, sequence number, enqueued time."""
_META_FIELDS = ("partition", "sequence_number", "enqueued_at")

_BOM = b"\xef\xbb\xbf"
_ILLEGAL_IN_ID = re.compile(r"[/\\?#]")
_STEP = re.compile(r'/(?:"([^"]+)"|([^/"]+))')

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class MappingOptions(Struct, frozen=True):
    """The settings of the mapping. Raises SettingsError for an unknown id strategy."""

    hub: str
    id_from: str = "field:id"
    """`position`, or `field:<path>`."""
    transform: Transform | None = None
    meta: bool = False
    """True: every document gets `_tm` with its event's partition, sequence number and enqueued time."""

    def __post_init__(self) -> None:
        if self.id_path is None and _ILLEGAL_IN_ID.search(self.hub):
            raise SettingsError(
                f"the hub's name '{self.hub}' cannot be part of a document id; use field:<path>"
            )

    @property
    def id_path(self) -> Path | None:
        """The path of the id; None means position."""
        kind, _, path = self.id_from.partition(":")
        if kind == "position" and not path:
            return None
        if kind == "field" and path:
            return parse_path(path if path.startswith("/") else f"/{path}")
        raise SettingsError(
            f"the id strategy '{self.id_from}' is not known; accepted: position, or field:<path> such as field:id "
            "or field:order/number"
        )


class DocumentMapper:
    """Prepares events for one container.

    `partition_key_paths` are those of the container's definition; `effective_key` computes a record's route, which is ''
    without it. Raises SettingsError for an id or a partition key in `_tm` that can never be there.
    """

    def __init__(
        self,
        options: MappingOptions,
        partition_key_paths: Sequence[str] = ("/id",),
        effective_key: EffectiveKey | None = None,
    ) -> None:
        self._hub = options.hub
        self._transform = options.transform
        self._meta = options.meta
        self._id_path = options.id_path
        self._paths = tuple(parse_path(path) for path in partition_key_paths)
        self._effective_key = effective_key
        if self._meta:
            _check_meta_paths(self._paths, self._id_path)

    def prepare(self, write: Write) -> Record:
        """The record of a write; one that cannot be written has a rejection. Raises nothing but MemoryError."""
        event = write.event
        document = read_object(event) if write.document is None else write.document
        if self._transform is not None and not isinstance(document, Rejection):
            document = _transformed(self._transform, document, event)
        if isinstance(document, Rejection):
            return rejected(event, document)
        try:
            return self._record(event, document)
        except UnicodeEncodeError:
            return rejected(
                event, Rejection("encoding", "the transform left half of a surrogate pair in a text")
            )

    def _record(self, event: Event, document: dict[str, Any]) -> Record:
        if self._meta:  # first, because id and partition key may be taken from it
            values_of_event = (event.place, event.sequence_number, event.enqueued_at)
            document[META] = dict(zip(_META_FIELDS, values_of_event, strict=True))
        identity = self._identity(document, event)
        if isinstance(identity, Rejection):
            return rejected(event, identity)
        document["id"] = identity
        values: list[Scalar] = []
        for path in self._paths:
            value = find(document, path)
            problem = _partition_key_problem(value, path)
            if problem is not None:
                return rejected(event, problem)
            values.append(value)
        payload = _payload(document)
        if isinstance(payload, Rejection):
            return rejected(event, payload)
        partition_key = partition_key_text(values)
        route = self._effective_key(values) if self._effective_key else ""
        return Record(event, _order_key(values, partition_key) + identity, payload, partition_key, route)

    def _identity(self, document: Mapping[str, Any], event: Event) -> str | Rejection:
        if self._id_path is None:
            return f"{self._hub}~{event.place}~{event.sequence_number}"
        value = find(document, self._id_path)
        if isinstance(value, str):
            return _id_problem(value) or value
        is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if is_whole and not isinstance(value, bool):
            return str(int(value))
        where = "/".join(self._id_path)
        return Rejection("id", f"'{where}' is {_kind(value)}; expected a text or a whole number")


def read_object(event: Event) -> dict[str, Any] | Rejection:
    """The event's body as a JSON object, or the rejection."""
    if event.unreadable is not None:
        return Rejection("unreadable", event.unreadable)
    body = event.body.removeprefix(_BOM)
    try:
        document = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _why_not_json(body, error)
    if not isinstance(document, dict):
        return Rejection("not_object", f"the body is {_kind(document)}; expected a JSON object")
    return document


def parse_path(text: str) -> Path:
    """The names in a path such as `/order/number` or `/"a/b"/c`. Raises SettingsError."""
    names = tuple(quoted or plain for quoted, plain in _STEP.findall(text))
    if not names or _STEP.sub("", text):
        raise SettingsError(f"'{text}' is not a path; expected names after slashes, such as /order/number")
    return names


def find(document: Any, path: Path) -> Any:
    """The value at a path; UNSET if there is none."""
    for name in path:
        if not isinstance(document, dict):
            return UNSET
        document = document.get(name, UNSET)
    return document


def partition_key_text(values: Sequence[Scalar]) -> str:
    """A partition key as the JSON array text of the service: `["LGA"]`; `{}` stands for a missing value."""
    if UNSET in values:
        return f"[{','.join('{}' if value is UNSET else _encode(value).decode() for value in values)}]"
    return _encode(values).decode()


def _check_meta_paths(paths: Sequence[Path], id_path: Path | None) -> None:
    for path in paths:
        if path[0] == META and path[1:] not in {(name,) for name in _META_FIELDS}:
            raise SettingsError(
                f"the container is partitioned by /{'/'.join(path)}, which no document has: CONSUMER_META puts "
                f"{', '.join(_META_FIELDS)} into '{META}'; set CONSUMER_META=false if the events bring it themselves"
            )
    if id_path and id_path[0] == META and id_path[1:] not in {("partition",), ("sequence_number",)}:
        raise SettingsError(
            f"the id strategy field:{'/'.join(id_path)} finds no text or whole number: CONSUMER_META puts "
            f"{', '.join(_META_FIELDS)} into '{META}'; use position, which is unique, or field:{META}/sequence_number"
        )


def document_id(record: Record) -> str:
    """The id of a record's document."""
    return _decode_id(record.payload).id


class _Identified(Struct, frozen=True):
    id: str


_decode_id = msgspec.json.Decoder(_Identified).decode


def _order_key(values: Sequence[Scalar], partition_key: str) -> str:
    """Equal for partition keys that are equal in Cosmos DB, where numbers are doubles: `1` and `1.0`, and integers beyond 2^53
    with one double. It is undocumented whether `-0.0` equals `0`; with one key they are only written one after the other.
    """
    if not any(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return partition_key
    return partition_key_text(
        [
            float(value) + 0.0 if isinstance(value, int | float) and not isinstance(value, bool) else value
            for value in values
        ]
    )


def rejected(event: Event, rejection: Rejection) -> Record:
    return Record(event, f"{event.partition}~{event.sequence_number}", rejection=rejection)


def _transformed(transform: Transform, document: dict[str, Any], event: Event) -> dict[str, Any] | Rejection:
    try:
        mapped = transform(document, event)
        if isinstance(mapped, Mapping):
            return mapped if isinstance(mapped, dict) else dict(mapped)
    except MemoryError:  # the machine's fault, not the event's
        raise
    except Exception as error:  # the user's code may raise anything
        return Rejection("transform", f"the transform raised {type(error).__name__}: {error}")
    return Rejection("transform", f"the transform returned {_kind(mapped)}; expected a mapping")


def _id_problem(text: str) -> Rejection | None:
    if not text:
        return Rejection("id", "the id is empty")
    if (
        len(text) > MAX_ID // 4 and (size := len(text.encode())) > MAX_ID
    ):  # a character has at most four bytes
        return Rejection("id", f"the id has {size} bytes; at most {MAX_ID} are accepted")
    if _ILLEGAL_IN_ID.search(text):
        return Rejection("id", f"the id {text!r} holds one of / \\ ? #")
    return None


def _partition_key_problem(value: Any, path: Path) -> Rejection | None:
    """None for what the service accepts: text, number, true, false, null, and a missing value ("undefined")."""
    if isinstance(value, str):
        if len(value) <= MAX_PARTITION_KEY // 4 or len(value.encode()) <= MAX_PARTITION_KEY:
            return None
        what = f"a text of {len(value.encode())} bytes, over {MAX_PARTITION_KEY}"
    elif value is None or isinstance(value, bool | UnsetType):
        return None
    elif isinstance(value, int | float):
        try:
            if isfinite(value):
                return None
        except OverflowError:
            pass
        where = "/".join(path)
        return Rejection("number", f"the number at partition key path '/{where}' is beyond a double's range")
    else:
        what = _kind(value)
    return Rejection(
        "partition_key", f"'/{'/'.join(path)}' is {what}; expected a text, number, true, false or null"
    )


def _payload(document: dict[str, Any]) -> bytes | Rejection:
    try:
        payload = _encode(document)
    except RecursionError:
        return _too_deep()
    except UnicodeEncodeError:
        raise
    except (TypeError, ValueError) as error:
        return Rejection("document", f"the document cannot be written as JSON: {error}")
    if len(payload) > MAX_DOCUMENT:
        return Rejection(
            "too_large", f"the document has {len(payload):,} bytes; at most {MAX_DOCUMENT:,} are accepted"
        )
    # Counting brackets first, because nearly no document has so many.
    if payload.count(b"{") + payload.count(b"[") > MAX_DEPTH and _depth(document) > MAX_DEPTH:
        return _too_deep()
    return payload


def _too_deep() -> Rejection:
    return Rejection("nesting", f"the document is nested deeper than {MAX_DEPTH} levels")


def _depth(document: Any) -> int:
    depth, level = 0, [document]
    while level := [value for value in level if isinstance(value, dict | list | tuple)]:
        depth += 1
        level = [inner for value in level for inner in (value.values() if isinstance(value, dict) else value)]
    return depth


def _why_not_json(body: bytes, error: Exception) -> Rejection:
    """Examines a body again that could not be decoded, to name the cause."""
    if not body.strip():
        return Rejection("empty", "the body is empty")
    if isinstance(error, RecursionError):
        return _too_deep()
    try:
        text = body.decode()
    except UnicodeDecodeError:
        zipped = " but compressed (gzip)" if body.startswith(b"\x1f\x8b") else ""
        return Rejection("encoding", f"the body is not UTF-8{zipped}")
    if isinstance(error, msgspec.ValidationError):
        return Rejection("number", str(error))
    try:
        json.loads(text, parse_constant=_not_finite)
    except ArithmeticError as constant:
        return Rejection("number", f"{constant} is no JSON number")
    except (ValueError, RecursionError):
        return Rejection("json", str(error))
    # The standard library accepts only this of what strict decoders refuse.
    return Rejection("encoding", "a text holds half of a surrogate pair")


def _not_finite(constant: str) -> NoReturn:
    raise ArithmeticError(constant)


def _kind(value: Any) -> str:
    """The JSON name of a value's kind."""
    return _WORDS.get(type(value), f"a {type(value).__name__}")


_WORDS = {UnsetType: "missing", type(None): "null", bool: "true or false", str: "a text", dict: "an object"}
_WORDS |= {list: "a list", int: "a number", float: "a number"}
