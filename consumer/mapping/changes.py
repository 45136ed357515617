"""What is sent for a patch and for a delete: their bodies, and the documents that take their place. Pure.

A patch leaves the number of its event in the document (a mark for each source), and takes place only where no later or equal
mark of the source is. So it takes place once, however often it is sent, and increments of several sources all count. Under
the guard it besides changes nothing that a later event has replaced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from consumer.mapping.operations import WriteOptions, patch_steps
from consumer.mapping.paths import Path, find, parse_path, put
from consumer.model import Operation, PatchStep, Rejection, Write
from consumer.versions import DELETED, VERSION, Change, Mark, Stamp, mark_of, mark_value, order_in_event
from tidemark.foundation.errors import SettingsError

MOST_STEPS = 10
"""Of one patch: the service's limit. The mark takes one of them, and so does a time to live."""

_OPS = {"set": "set", "append": "add", "increment": "incr", "remove": "remove"}
"""The service's names."""
_ONCE = {"append", "increment"}
_NOT_PATCHED = {"id", "_ts", "_etag", "_rid", "_self", "_attachments", VERSION}
_NOT_COPIED = {*_NOT_PATCHED, "_tm", "ttl"}

_encode = msgspec.json.Encoder().encode


class Made(Struct, frozen=True, gc=False):
    """The payload of a record."""

    payload: bytes
    operation: Operation
    change: Change | None = None


class Changes:
    """Makes patches and deletions for a container that is partitioned by `paths`."""

    def __init__(self, options: WriteOptions, paths: Sequence[Path]) -> None:
        self._options = options
        self._paths = paths
        self._keys = {path[0] for path in paths}

    def keys_of(self, write: Write, id_path: Path | None) -> dict[str, Any] | Rejection:
        """The document of an event with an empty body, which is a delete: its id is the event's partition key; other keys of the
        container come from application properties of their names.
        """
        event = write.event
        name = write.id or event.partition_key
        if name is None or id_path is None:
            return Rejection(
                "id",
                "an empty body deletes the document whose id is the event's partition key, which the event has not"
                if id_path
                else "an empty body deletes no document whose id is a position",
            )
        document: dict[str, Any] = {}
        put(document, id_path, name)
        if write.partition_key is not None:
            return document
        for path in self._paths:
            if path in {("id",), id_path}:
                continue
            value = event.properties.get(path[-1], UNSET)
            if value is UNSET:
                return Rejection(
                    "partition_key",
                    f"an empty body has no '/{'/'.join(path)}', by which the container is partitioned; send it as the"
                    f" application property '{path[-1]}'",
                )
            put(document, path, value)
        return document

    def deletion(self, identity: str, document: Mapping[str, Any], stamp: Stamp | None) -> Made:
        """Under the guard a tombstone, so that an earlier event does not bring the document back."""
        seconds = int(self._options.tombstone)
        if stamp is None or not seconds:
            return Made(b"", Operation.DELETE, Change(identity, stamp))
        tombstone = self._bare(identity, document)
        if self._options.version_path is not None:
            put(tombstone, self._options.version_path, stamp.v)
        tombstone |= {DELETED: True, "ttl": seconds, VERSION: stamp}
        return Made(_encode(tombstone), Operation.DELETE, Change(identity, stamp))

    def patch(
        self,
        write: Write,
        identity: str,
        document: Mapping[str, Any],
        stamp: Stamp | None,
        ttl: int | None,
        source: str,
    ) -> Made | Rejection:
        options = self._options
        steps: Sequence[PatchStep] | Rejection = write.patch or (
            patch_steps(options.patch, document) if options.patch else self._every_field(document)
        )
        if isinstance(steps, Rejection):
            return steps
        created = self._bare(identity, document)
        operations = []
        for step in steps:
            operation = self._operation(step, created)
            if isinstance(operation, Rejection):
                return operation
            operations.append(operation)
        added = self._own(write, stamp, ttl, source)
        operations += [{"op": "set", "path": f"/{name}", "value": value} for name, value in added.items()]
        created |= added
        if not steps or len(operations) > MOST_STEPS:
            return Rejection(
                "patch",
                f"the patch has {len(steps)} steps; accepted: 1 to {MOST_STEPS - len(added)}, because Cosmos DB takes"
                f" {MOST_STEPS} and {len(added)} of them are Tidemark's own",
            )
        body: dict[str, Any] = {"operations": operations}
        if condition := _condition(added, stamp, options):
            body["condition"] = condition
        is_repeatable = options.patch_mark or not _ONCE.intersection(step.op for step in steps)
        change = Change(identity, stamp, _encode(created), is_repeatable)
        return Made(_encode(body), Operation.PATCH, change)

    def _own(self, write: Write, stamp: Stamp | None, ttl: int | None, source: str) -> dict[str, Any]:
        """The fields that Tidemark sets with the patch."""
        added: dict[str, Any] = {} if ttl is None else {"ttl": ttl}
        if stamp is not None and stamp.v is not None:  # the version itself shows what was applied
            added[VERSION] = stamp
        elif self._options.patch_mark:
            number = mark_value(write.event.sequence_number, order_in_event(write.index))
            added[mark_of(source)] = Mark(number, write.event.enqueued_at, source)
        return added

    def _bare(self, identity: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """A document with nothing but its id and partition key."""
        bare: dict[str, Any] = {"id": identity}
        for path in self._paths:
            value = find(document, path)
            if value is not UNSET:
                put(bare, path, value)
        return bare

    def _every_field(self, document: Mapping[str, Any]) -> tuple[PatchStep, ...]:
        return tuple(
            PatchStep("set", _pointer((name,)), value)
            for name, value in document.items()
            if name not in _NOT_COPIED and name not in self._keys
        )

    def _operation(self, step: PatchStep, created: dict[str, Any]) -> dict[str, Any] | Rejection:
        """The step as the service takes it; it is applied to the document that is created where none is."""
        try:
            path = _parse(step.path)
        except SettingsError as error:
            return Rejection("patch", str(error))
        if step.op not in _OPS:
            return Rejection("patch", f"the patch step '{step.op}' is not known; accepted: {', '.join(_OPS)}")
        is_key = path[0] in self._keys and any(
            path == key[: len(path)] or key == path[: len(key)] for key in self._paths
        )
        if is_key or path[0] in _NOT_PATCHED:
            return Rejection(
                "patch", f"'{step.path}' cannot be patched: it is the id, the partition key, or the service's"
            )
        if step.op == "increment" and (
            isinstance(step.value, bool) or not isinstance(step.value, int | float)
        ):
            return Rejection("patch", f"'{step.path}' is incremented by {step.value!r}; expected a number")
        if not _apply(step, path, created):
            return Rejection(
                "patch",
                f"'{step.op} {step.path}' does not fit what the steps before it make of a document that is created",
            )
        operation = {"op": _OPS[step.op], "path": _pointer(path)}
        if step.op == "remove":
            return operation
        if step.op == "append":
            operation["path"] += "/-"
        return {**operation, "value": step.value}


def _apply(step: PatchStep, path: Path, created: dict[str, Any]) -> bool:
    """Changes the document that is created as the service would change one that exists. False if it would refuse."""
    before = find(created, path)
    value = step.value
    if step.op == "remove":
        return before is UNSET or _take_out(created, path)
    if step.op == "append":
        value = [step.value]
    if before is not UNSET and step.op != "set":
        is_fit = type(before) is list if step.op == "append" else type(before) in {int, float}
        return is_fit and put(created, path, before + value)
    return put(created, path, value)


def _take_out(document: dict[str, Any], path: Path) -> bool:
    put(document, path, None)  # copies the objects on the way
    del find(document, path[:-1])[path[-1]]
    return True


_parse = lru_cache(4096)(parse_path)
"""Paths come from settings and from names of fields, so that there are few."""


@lru_cache(4096)
def _pointer(path: Path) -> str:
    return "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in path)


def _condition(added: Mapping[str, Any], stamp: Stamp | None, options: WriteOptions) -> str:
    """Whether the document may be patched, as the service's query language says it; '' for always."""
    terms = [
        f"(NOT IS_DEFINED({_field((name,))}.n) OR {_field((name,))}.n < {_text(mark.n)})"
        for name, mark in added.items()
        if isinstance(mark, Mark)
    ]
    if stamp is not None:
        terms.append(f"NOT IS_DEFINED({_field((DELETED,))})")
        terms.append(_is_after(stamp, options.version_path))
    return f"FROM c WHERE {' AND '.join(terms)}" if terms else ""


def _is_after(stamp: Stamp, version_path: Path | None) -> str:
    """Stamp.is_after of the document's own stamp."""
    stored = _field((VERSION,))
    if version_path is not None:
        value, field = _text(stamp.v), _field(version_path)
        before = f"(NOT IS_DEFINED({stored}.v) AND (NOT IS_DEFINED({field}) OR {field} < {value}))"
        return f"({before} OR {stored}.v < {value})"
    source, number, time = _text(stamp.of), stamp.n, _text(stamp.at)
    index = f"(NOT IS_DEFINED({stored}.i) OR {stored}.i < {_text(stamp.i)})" if stamp.i else "false"
    same = f"({stored}.n < {number} OR ({stored}.n = {number} AND {index}))"
    other = f"({stored}.at < {time} OR ({stored}.at = {time} AND {stored}.of < {source}))"
    return f"(NOT IS_DEFINED({stored}) OR ({stored}.of = {source} AND {same}) OR ({stored}.of != {source} AND {other}))"


def _field(path: Path) -> str:
    return "c" + "".join(f"[{_text(name)}]" for name in path)


def _text(value: Any) -> str:
    """A value as a literal of the query language: JSON in ASCII."""
    return json.dumps(value)
