"""Lets events without a body through to the routes, as the document None: a decoder would reject them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from consumer.mapping.documents import read_object
from consumer.model import Event, Rejection
from consumer.ports import Decoder

_EMPTY = frozenset({b"", b"null"})
"""Bodies of nothing: Kafka's tombstone, and the same in JSON."""


class TombstoneDecoder:
    """A Decoder around another one, or around the reader of JSON objects."""

    def __init__(self, inner: Decoder | None) -> None:
        self._inner = inner

    def decode(self, event: Event) -> Sequence[Any] | Rejection:
        if event.unreadable is None and event.body.strip() in _EMPTY:
            return [None]
        if self._inner is not None:
            return self._inner.decode(event)
        document = read_object(event)
        return document if isinstance(document, Rejection) else [document]

    def missing(self, events: Sequence[Event]) -> Collection[str]:
        if self._inner is None:
            return ()
        return self._inner.missing([event for event in events if event.body.strip() not in _EMPTY])

    async def load(self, ids: Collection[str], *, deadline: float) -> None:
        if self._inner is not None:
            await self._inner.load(ids, deadline=deadline)
