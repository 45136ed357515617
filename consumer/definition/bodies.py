"""Reads bodies for steps and routes: any JSON value, and nothing for an event without a body."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from consumer.mapping.documents import read_object
from consumer.model import Event, Rejection
from consumer.ports import Decoder

_decode = msgspec.json.Decoder().decode


class BodyReader:
    """A Decoder around another one; without one, bodies are JSON. An event without a body is the document None (a tombstone)."""

    def __init__(self, inner: Decoder | None) -> None:
        self._inner = inner

    def decode(self, event: Event) -> Sequence[Any] | Rejection:
        if not event.body.strip() and event.unreadable is None:
            return [None]
        if self._inner is not None:
            return self._inner.decode(event)
        document = read_object(event)
        if isinstance(document, Rejection):
            # A list may be split by a step, and null is a tombstone.
            is_other = document.reason == "not_object"
            return [_decode(event.body.removeprefix(b"\xef\xbb\xbf"))] if is_other else document
        return [document]

    def missing(self, events: Sequence[Event]) -> Collection[str]:
        return (
            ()
            if self._inner is None
            else self._inner.missing([event for event in events if event.body.strip()])
        )

    async def load(self, ids: Collection[str], *, deadline: float) -> None:
        if self._inner is not None:
            await self._inner.load(ids, deadline=deadline)
