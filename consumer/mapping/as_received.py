"""Keeps the bytes of an event whose body is the document that is written. Pure, and on the hot path: one decode, and no encode.

Nothing may be lost against encoding the document anew, which also repairs equal keys (consumer.mapping.documents): the bytes are kept
only if no object in the body has two equal keys. A body has two quotation marks for each key and each text, and more if a text
contains one. The last of two equal keys is the only one in the decoded document: then the body has more quotation marks than
that accounts for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from consumer.mapping.limits import MAX_DEPTH, MAX_DOCUMENT, id_problem, partition_key_problem
from consumer.mapping.partition_hash import EffectiveKey, partition_key_text
from consumer.mapping.paths import Path, find
from consumer.model import Operation, Record, Write

MOST_KEYS = 10_000
"""Partition keys whose text and route are remembered, about 3 MB. Above, all are forgotten. Chosen: a benchmark's hub of sensors has
100, and where nearly every event has a key of its own nothing is gained."""

_TOO_DEEP = -(1 << 62)
"""A count that stays negative, whatever is added to it."""

_decode = msgspec.json.Decoder().decode


class AsReceived:
    """For a container with partition keys at `paths`; `effective_key` computes a record's route."""

    def __init__(self, paths: Sequence[Path], effective_key: EffectiveKey | None) -> None:
        self._paths = tuple(paths)
        self._texts = (str,) * len(self._paths)
        self._effective_key = effective_key
        self._name = self._paths[0][0] if len(self._paths) == len(self._paths[0]) == 1 else None
        self._keys: dict[str | tuple[str, ...], tuple[str, str]] = {}
        """Text and route of partition keys."""

    def prepare(self, write: Write) -> Record | None:
        """The record of an upsert of the body; None if something else is asked for, or something is to be changed, repaired or
        rejected.
        """
        event = write.event
        body = event.body
        if event.unreadable is not None or len(body) > MAX_DOCUMENT or not _is_plain(write):
            return None
        try:
            document = _decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if not isinstance(document, dict):
            return None
        identity = document.get("id")
        if not isinstance(identity, str) or not has_each_key_once(body, document) or id_problem(identity):
            return None
        key_values: Any
        if self._name is not None:  # faster than the general case below
            key_values = document.get(self._name)
            is_text = type(key_values) is str
        else:
            key_values = tuple([find(document, path) for path in self._paths])
            is_text = tuple(map(type, key_values)) == self._texts
        if not is_text:  # `1`, `1.0` and `true` are equal in Python
            return None
        key = self._keys.get(key_values) or self._learn(key_values)
        return None if key is None else Record(event, key[0] + identity, body, *key)

    def _learn(self, key_values: str | tuple[str, ...]) -> tuple[str, str] | None:
        values = (key_values,) if isinstance(key_values, str) else key_values
        if any(map(partition_key_problem, values, self._paths)):
            return None
        key = partition_key_text(values), self._effective_key(values) if self._effective_key else ""
        if len(self._keys) >= MOST_KEYS:
            self._keys.clear()
        self._keys[key_values] = key
        return key


def _is_plain(write: Write) -> bool:
    """Whether it asks for nothing but an upsert of the event's body."""
    return (
        write.document is None
        and write.operation is Operation.UPSERT
        and not write.patch
        and write.id is None
        and write.partition_key is None
        and write.ttl is None
    )


def has_each_key_once(body: bytes, document: dict[str, Any]) -> bool:
    """Whether no object in `body` has two equal keys, and none is nested too deep, by its decoded form. False if that is not
    certain.
    """
    return body.count(b'"') == 2 * (len(document) + _count_texts(document.values(), MAX_DEPTH - 1))


def _count_texts(values: Iterable[Any], levels: int) -> int:
    """Texts, and keys of inner objects, on all levels. Negative if there are more levels than allowed."""
    count = 0
    for value in values:
        kind = type(value)  # quicker than isinstance, and a decoder makes no subclasses
        if kind is str:
            count += 1
        elif kind is dict:
            count += len(value) + _count_texts(value.values(), levels - 1) if levels else _TOO_DEEP
        elif kind is list:
            count += _count_texts(value, levels - 1) if levels else _TOO_DEEP
    return count
