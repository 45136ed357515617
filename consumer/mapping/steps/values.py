"""The steps that change values where they are: `cast`, `time`, `mask`, `hash`. null, and what is missing, stays."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, field

from consumer.mapping.steps.conversions import CASTS, convert_time, read_form
from consumer.mapping.steps.options import (
    Apply,
    Name,
    OptionError,
    Options,
    Paths,
    Settings,
    change_at,
    read_all,
    read_wide_paths,
)
from consumer.mapping.steps.paths import WrongTypeError, value_text
from consumer.model import Event
from tidemark.foundation.wording import count_text

LEAST_KEY = 16
"""Characters of a key: with fewer, whoever has the hashes can try all keys."""


class Cast(Options, frozen=True):
    """Types by path: text, number, integer, boolean."""

    cast: Annotated[dict[Name, Name], Meta(min_length=1)]


class Time(Options, frozen=True):
    """Times at paths, from one form to another: iso, epoch_s, epoch_ms, epoch_us, or a format of strftime."""

    time: Paths | Name
    to: Name
    source: Name = field(name="from", default="iso")


class Mask(Options, frozen=True):
    """Values at paths are replaced by the empty value of their type, or by `with`."""

    mask: Paths
    replacement: Any = field(name="with", default=UNSET)


class Hash(Options, frozen=True):
    """Values at paths become HMAC-SHA-256 in hexadecimal; `key` names the setting that has the key."""

    hash: Paths
    key: Name


def make_cast(options: Cast, _settings: Settings) -> Apply:
    paths = read_wide_paths("cast", options.cast)
    unknown = [name for name in options.cast.values() if name not in CASTS]
    if unknown:
        raise OptionError("cast", f"found {unknown[0]!r}; accepted: {', '.join(CASTS)}")
    steps = [change_at([path], CASTS[name]) for path, name in zip(paths, options.cast.values(), strict=True)]

    def apply(document: Any, event: Event) -> Any:
        for step in steps:
            step(document, event)
        return document

    return apply


def make_time(options: Time, _settings: Settings) -> Apply:
    paths = read_wide_paths("time", [options.time] if isinstance(options.time, str) else options.time)
    [source], [target] = (
        read_all("from", read_form, [options.source]),
        read_all("to", read_form, [options.to]),
    )
    return change_at(paths, lambda value, where: convert_time(value, where, source, target))


_EMPTY: dict[type, Callable[[], Any]] = {bool: bool, int: int, float: float, str: str, list: list, dict: dict}


def make_mask(options: Mask, _settings: Settings) -> Apply:
    paths = read_wide_paths("mask", options.mask)
    if options.replacement is not UNSET:
        constant = msgspec.json.encode(options.replacement)  # copied, as other steps may change it
        return change_at(paths, lambda _value, _where: msgspec.json.decode(constant))
    return change_at(paths, lambda value, _where: _EMPTY.get(type(value), lambda: None)())


def make_hash(options: Hash, settings: Settings) -> Apply:
    paths = read_wide_paths("hash", options.hash)
    key = settings.get(options.key, "")
    if not options.key.isidentifier():
        raise OptionError("key", "found no name; the name of a setting that holds the key is accepted")
    if len(key) < LEAST_KEY:
        state = f"has {count_text(len(key), 'character')}" if key else "is not set"
        raise OptionError(
            "key", f"the setting {options.key} {state}; at least {LEAST_KEY} characters are accepted"
        )
    secret = key.encode()

    def change(value: Any, where: str) -> str:
        try:
            return hmac.new(secret, value_text(value, where).encode(), hashlib.sha256).hexdigest()
        except UnicodeEncodeError:
            raise WrongTypeError(f"'{where}' holds half of a surrogate pair") from None

    return change_at(paths, change)
