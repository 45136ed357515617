"""What Cosmos DB takes as an id, a partition key and a document. Pure."""

from __future__ import annotations

import re
from math import isfinite
from typing import Any

import msgspec
from msgspec import UnsetType

from consumer.mapping.paths import Path
from consumer.model import Rejection

# The service's documented limits per document.
MAX_DOCUMENT = 2 * 1024 * 1024
MAX_ID = 1023
MAX_PARTITION_KEY = 2048
MAX_DEPTH = 128

ILLEGAL_IN_ID = re.compile(r"[/\\?#]")

_encode = msgspec.json.Encoder().encode


def id_problem(text: str) -> Rejection | None:
    if not text:
        return Rejection("id", "the id is empty")
    if (
        len(text) > MAX_ID // 4 and (size := len(text.encode())) > MAX_ID
    ):  # a character has at most four bytes
        return Rejection("id", f"the id has {size} bytes; at most {MAX_ID} are accepted")
    if ILLEGAL_IN_ID.search(text):
        return Rejection("id", f"the id {text!r} holds one of / \\ ? #")
    return None


def partition_key_problem(value: Any, path: Path) -> Rejection | None:
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
        what = kind_of(value)
    return Rejection(
        "partition_key", f"'/{'/'.join(path)}' is {what}; expected a text, number, true, false or null"
    )


def encode_document(document: dict[str, Any]) -> bytes | Rejection:
    try:
        payload = _encode(document)
    except RecursionError:
        return too_deep()
    except UnicodeEncodeError:
        raise
    except (TypeError, ValueError) as error:
        return Rejection("document", f"the document cannot be written as JSON: {error}")
    if (problem := size_problem(payload)) is not None:
        return problem
    # Counting brackets first, because nearly no document has so many.
    if payload.count(b"{") + payload.count(b"[") > MAX_DEPTH and _depth(document) > MAX_DEPTH:
        return too_deep()
    return payload


def size_problem(payload: bytes) -> Rejection | None:
    if len(payload) <= MAX_DOCUMENT:
        return None
    return Rejection(
        "too_large", f"the document has {len(payload):,} bytes; at most {MAX_DOCUMENT:,} are accepted"
    )


def too_deep() -> Rejection:
    return Rejection("nesting", f"the document is nested deeper than {MAX_DEPTH} levels")


def _depth(document: Any) -> int:
    depth, level = 0, [document]
    while level := [value for value in level if isinstance(value, dict | list | tuple)]:
        depth += 1
        level = [inner for value in level for inner in (value.values() if isinstance(value, dict) else value)]
    return depth


def kind_of(value: Any) -> str:
    """The JSON name of a value's kind."""
    return _WORDS.get(type(value), f"a {type(value).__name__}")


_WORDS = {UnsetType: "missing", type(None): "null", bool: "true or false", str: "a text", dict: "an object"}
_WORDS |= {list: "a list", int: "a number", float: "a number"}
