"""The steps that change documents: their options, and the function that each of them makes of its options.

A function gets a document and its event and returns the document, changed in place where that is enough; `Split` for
several documents, `Dropped` for none. A missing field is left alone unless a step cannot do without it. WrongTypeError
rejects the event.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct

from consumer.mapping.paths import Path
from consumer.mapping.steps.expression import Condition, Term, value_term
from consumer.mapping.steps.options import (
    Apply,
    Name,
    OptionError,
    Options,
    Paths,
    Settings,
    read_all,
    read_paths,
    read_wide_paths,
)
from consumer.mapping.steps.paths import WrongTypeError, kind, look_up, path_text, places, put
from consumer.model import Dropped, Event


class Split(Struct, frozen=True):
    """The documents that a step made of one; each keeps its place in ids, also if others are dropped."""

    documents: list[Any]


class Unwrap(Options, frozen=True):
    """The value at a path becomes the document; null at it makes the event a tombstone."""

    unwrap: Name


class SplitAt(Options, frozen=True):
    """Each element of the list at a path becomes a document; `/` is the document itself."""

    split: Name


class Filter(Options, frozen=True):
    """Only documents for which an expression holds go on; the others are dropped, counted by the reason `drop`."""

    filter: Name
    drop: Name = "filter"


class DropFields(Options, frozen=True):
    drop_fields: Paths


class KeepFields(Options, frozen=True):
    keep_fields: Paths


class Rename(Options, frozen=True):
    """From paths to paths. All are taken out before any is put in, so that names can be exchanged."""

    rename: Annotated[dict[Name, Name], Meta(min_length=1)]


class Set(Options, frozen=True):
    """Values by path: constants, `@partition`, `@property('x')` and the like, or `@/path` of the document."""

    set: Annotated[dict[Name, Any], Meta(min_length=1)]


class Header(Options, frozen=True):
    """Application properties of the event, by name, to paths of the document."""

    header: Annotated[dict[Name, Name], Meta(min_length=1)]


class Flatten(Options, frozen=True):
    """Objects within objects become fields of the document; their names are joined by the delimiter. Lists stay."""

    flatten: Name


class Hoist(Options, frozen=True):
    """The document becomes the one field of a new one."""

    hoist: Name


def make_unwrap(options: Unwrap, _settings: Settings) -> Apply:
    [path] = read_paths("unwrap", [options.unwrap])

    def apply(document: Any, _event: Event) -> Any:
        member = look_up(document, path)
        if member is UNSET:
            raise WrongTypeError(f"'{path_text(path)}' is missing; it was to become the document")
        return member

    return apply


def make_split(options: SplitAt, _settings: Settings) -> Apply:
    path: Path = () if options.split == "/" else tuple(read_paths("split", [options.split])[0])

    def apply(document: Any, _event: Event) -> Split:
        members = look_up(document, path)
        if not isinstance(members, list):
            raise WrongTypeError(f"'{path_text(path) or '/'}' is {kind(members)}; expected a list")
        return Split(members)

    return apply


def make_filter(options: Filter, _settings: Settings) -> Apply:
    [condition] = read_all("filter", Condition, [options.filter])
    dropped = Dropped(options.drop)
    return lambda document, event: document if condition(document, event) else dropped


def make_drop_fields(options: DropFields, _settings: Settings) -> Apply:
    paths = read_wide_paths("drop_fields", options.drop_fields)

    def apply(document: Any, _event: Event) -> Any:
        for path in paths:
            for holder, key, _ in reversed([*places(document, path)]):  # from the end, so that indexes stay
                del holder[key]
        return document

    return apply


def make_keep_fields(options: KeepFields, _settings: Settings) -> Apply:
    paths = read_paths("keep_fields", options.keep_fields)

    def apply(document: Any, _event: Event) -> Any:
        kept: dict[str, Any] = {}
        for path in paths:
            value = look_up(document, path)
            if value is UNSET:
                continue
            for depth in range(1, len(path)):
                if isinstance(look_up(document, path[:depth]), list):
                    raise WrongTypeError(
                        f"'{path_text(path[:depth])}' is a list, which is kept as a whole or not"
                    )
            put(kept, path, value)
        return kept

    return apply


def make_rename(options: Rename, _settings: Settings) -> Apply:
    sources, targets = read_paths("rename", options.rename), read_paths("rename", options.rename.values())
    if len(set(targets)) < len(targets):
        raise OptionError("rename", "found two fields with one new name; each needs its own")

    def apply(document: Any, _event: Event) -> Any:
        taken = [_take(document, path) for path in sources]
        for value, path in zip(taken, targets, strict=True):
            if value is UNSET:
                continue
            if look_up(document, path) is not UNSET:
                raise WrongTypeError(f"'{path_text(path)}' exists already; a field was to get this name")
            put(document, path, value)
        return document

    return apply


def _take(document: Any, path: Path) -> Any:
    """Removes the value at a path and returns it; UNSET if there is none."""
    holder = look_up(document, path[:-1])
    return holder.pop(path[-1], UNSET) if isinstance(holder, dict) else UNSET


def make_set(options: Set, _settings: Settings) -> Apply:
    paths = read_paths("set", options.set)
    terms = read_all("set", _value, options.set.values())

    def apply(document: Any, event: Event) -> Any:
        for path, term in zip(paths, terms, strict=True):
            put(_object(document), path, _own(term(document, event)))
        return document

    return apply


def _value(value: Any) -> Term:
    """A constant, copied for each document, or what a text with @ names; @@ stands for one @ of a constant."""
    if isinstance(value, str):
        if value.startswith("@@"):
            value = value[1:]
        elif value.startswith("@"):
            return value_term(value)
    if isinstance(value, dict | list):
        encoded = msgspec.json.encode(value)
        return lambda _document, _event: msgspec.json.decode(encoded)
    return lambda _document, _event: value


def make_header(options: Header, _settings: Settings) -> Apply:
    targets = read_paths("header", options.header.values())
    names = tuple(options.header)

    def apply(document: Any, event: Event) -> Any:
        for name, path in zip(names, targets, strict=True):
            if name in event.properties:
                put(_object(document), path, _own(event.properties[name]))
        return document

    return apply


def _own(value: Any) -> Any:
    """A copy of what later steps may change: it is elsewhere in the document, or in the event, too."""
    return deepcopy(value) if isinstance(value, dict | list) else value


def _object(document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise WrongTypeError(f"the document is {kind(document)}; expected an object")
    return document


def make_flatten(options: Flatten, _settings: Settings) -> Apply:
    def apply(document: Any, _event: Event) -> Any:
        flat: dict[str, Any] = {}
        stack = [_named("", _object(document))]
        while stack:
            for name, value in stack[-1]:
                if isinstance(value, dict) and value:
                    stack.append(_named(f"{name}{options.flatten}", value))
                    break
                if name in flat:
                    raise WrongTypeError(f"two fields are named '{name}' when the document is flat")
                flat[name] = value
            else:
                stack.pop()
        return flat

    return apply


def _named(prefix: str, fields: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    return iter([(f"{prefix}{name}", value) for name, value in fields.items()])


def make_hoist(options: Hoist, _settings: Settings) -> Apply:
    return lambda document, _event: {options.hoist: document}
