"""What a metric measures, as a short text that changes when something else is read under its name. Pure.

The samples of a metric are kept from one start of the app to the next, and so is what rules learned from them. After a change of
`tidemark.toml`, or of an app setting that it names, they may be of another queue. The fingerprint says so, in one text for all that
decides what is read: the collector, the count, and its options, with connections as the addresses they lead to. Options that decide
how it is read (how often, by which credentials, within which time) are named by the collector and have no part in it.

It is a hash: an option may come from a secret setting. Options that have their defaults are left out, so that a release with a new
option gives the same text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any

import msgspec

LENGTH = 12
"""Characters: one of 48 bits is the same as another by chance in none of a billion changes."""


def fingerprint(
    cls: type[Any],
    kind: str,
    count: tuple[str, bool],
    params: msgspec.Struct,
    options: Mapping[str, Any],
    settings: Mapping[str, str],
) -> str:
    """The fingerprint of `count` (its name, and whether it only grows), as the collector class `cls` reads it with `params`, which `options` were parsed to.

    A class may have `HOW`, names of options without a part in it, and `measured(params, settings)`, which returns what counts in place of options.
    """
    defaults = {
        field.encode_name: field.default for field in msgspec.structs.fields(params) if not field.required
    }
    what = {
        name: value
        for name, value in options.items()
        if name not in getattr(cls, "HOW", ()) and not (name in defaults and value == defaults[name])
    }
    with suppress(
        Exception
    ):  # a class of the user's own may raise anything, and then counts as it is written
        what |= cls.measured(params, settings) if hasattr(cls, "measured") else {}
    text = json.dumps([kind, *count, what], sort_keys=True, default=str)
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:LENGTH]
