"""What a transform of the consumer (CONSUMER_TRANSFORM) may return, besides one mapping: several writes, deletes, or nothing on
purpose. It needs the package `tidemark-azure` only.

    from tidemark.consuming import delete, drop, upsert

    def transform(document, event):
        if document.get("test"):
            return drop("test")
        if document["gone"]:
            return delete({"id": document["id"], "airport": document["airport"]})
        return [upsert(flight) for flight in document["flights"]]

A transform may return a mapping (an upsert), one of these values, or a list of both. An event is settled when all of its
writes are; writes of one key keep their order. An empty list is an error, because a bug must not lose events: say `drop`. Which
operations a sink can carry out stands in its documentation; it rejects the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict, Unpack

from msgspec import Struct

__all__ = [
    "Change",
    "Drop",
    "Options",
    "Step",
    "append",
    "create",
    "delete",
    "drop",
    "increment",
    "patch",
    "remove",
    "replace",
    "set_value",
    "upsert",
]


class Drop(Struct, frozen=True):
    """Nothing is written: settled, and counted by `reason`, without a dead letter."""

    reason: str


class Step(Struct, frozen=True):
    """One change of a patch."""

    op: Literal["set", "append", "increment", "remove"]
    path: str
    value: Any = None


class Options(TypedDict, total=False):
    """What every change takes: see Change."""

    sink: str
    id: str | None
    ttl: int | None
    version: int | float | str | None


class Change(Struct, frozen=True, kw_only=True):
    """One write. `sink` is the name of a sink where there are several; `ttl` is seconds; `version` is what the version guard
    compares. `id` takes the place of the id that the sink would make.
    """

    operation: Literal["upsert", "create", "replace", "delete", "patch"]
    document: Mapping[str, Any]
    steps: tuple[Step, ...] = ()
    sink: str = ""
    id: str | None = None
    ttl: int | None = None
    version: int | float | str | None = None


def drop(reason: str) -> Drop:
    """Nothing is to be written. Use few reasons, such as `test` or `stale`: each is counted apart."""
    return Drop(reason)


def upsert(document: Mapping[str, Any], **options: Unpack[Options]) -> Change:
    """Writes the document, whether it exists or not."""
    return Change(operation="upsert", document=document, **options)


def create(document: Mapping[str, Any], **options: Unpack[Options]) -> Change:
    """Writes the document if it does not exist."""
    return Change(operation="create", document=document, **options)


def replace(document: Mapping[str, Any], **options: Unpack[Options]) -> Change:
    """Writes the document if it exists."""
    return Change(operation="replace", document=document, **options)


def delete(document: Mapping[str, Any], **options: Unpack[Options]) -> Change:
    """Deletes the document. Of `document` its id and the values of its partition key are needed."""
    return Change(operation="delete", document=document, **options)


def patch(document: Mapping[str, Any], *steps: Step, **options: Unpack[Options]) -> Change:
    """Changes parts of the document, in the order of the steps. Of `document` its id and the values of its partition key are
    needed.
    """
    return Change(operation="patch", document=document, steps=steps, **options)


def set_value(path: str, value: Any) -> Step:
    """A step of a patch: `set_value("/order/state", "paid")`."""
    return Step("set", path, value)


def append(path: str, value: Any) -> Step:
    """A step of a patch: adds the value at the end of a list."""
    return Step("append", path, value)


def increment(path: str, by: float) -> Step:
    """A step of a patch: adds to a number."""
    return Step("increment", path, by)


def remove(path: str) -> Step:
    """A step of a patch: removes a value."""
    return Step("remove", path)
