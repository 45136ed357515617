"""A line or row of an input, and how far an input was published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class InputLine(Struct, frozen=True):
    """`body` is the line without its end, `number` counts from 1, `end` is the offset of the next line in bytes.

    `count` is the number of lines up to here that are not blank, `digest` that of the whole input up to here. Of a file of rows,
    `row` is what was read, and of a captured event `captured` are its partition key, application and system properties.
    """

    body: bytes
    number: int
    end: int
    count: int
    digest: str | None = None
    row: Any = None
    captured: tuple[str | None, Mapping[str, Any], Mapping[str, Any]] | None = None


class Bookmark(Struct, frozen=True, forbid_unknown_fields=True):
    """How far the input of one partition was published, and how its lines are assigned to partitions.

    `count` and `digest` are those of an InputLine; earlier versions saved no digest. Up to the line `floored`, keys go to the
    partitions that earlier versions chose, so that no line changes its partition. `given` are the options that decide what
    becomes of a line; None in bookmarks of earlier versions. `partitions` is how many the hub had when the input was begun.
    """

    offset: int
    line: int
    count: int
    partitions: int
    key: str | None
    digest: str | None = None
    floored: int = 0
    given: dict[str, str] | None = None
