"""The schemas that a decoder knows, by id. A schema never changes, so it is fetched once and kept without a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from consumer.decoding.bodies import Definition
from consumer.model import Rejection
from tidemark.foundation.errors import UnavailableError

ASK_AGAIN = 60.0
"""Seconds after which a registry is asked again for an id that it did not have: it may have been registered late. Chosen: a hub
of foreign ids then costs a request a minute for each, instead of one for each event."""

MOST_UNKNOWN = 100_000
"""Ids that are remembered as unknown. Chosen: producers may write anything where an id is expected."""


class Source(Protocol):
    """Where schemas come from."""

    async def fetch(self, ids: Collection[str], into: Callable[[str, Definition | None], None]) -> None:
        """Calls `into` for each id as its answer arrives, with None for a schema that does not exist; also for others that come
        along. Raises UnavailableError if an id has no answer.
        """
        ...


class Schemas:
    """`read` makes of a definition what the decoder uses, or the rejection of all events with this schema."""

    def __init__(
        self,
        source: Source | None,
        read: Callable[[str, Definition], Any],
        clock: Callable[[], float],
        known: Mapping[str, Any] | None = None,
    ) -> None:
        self._source = source
        self._read = read
        self._clock = clock
        self._known: dict[str, Any] = dict(known or {})
        self._unknown: dict[str, float] = {}
        """Id -> when it may be asked for again."""
        self._loading = asyncio.Lock()

    def get(self, schema_id: str) -> Any:
        """What `read` made of the schema, or a Rejection."""
        schema = self._known.get(schema_id)
        if schema is not None:
            return schema
        if schema_id in self._unknown or self._source is None:
            return Rejection("schema_unknown", f"the schema {schema_id} is not known")
        raise RuntimeError(f"the schema {schema_id} was not loaded before it was needed")

    def missing(self, ids: Collection[str]) -> list[str]:
        """Those that `load` has to fetch."""
        if self._source is None:
            return []
        now = self._clock()
        return [
            schema_id
            for schema_id in ids
            if schema_id not in self._known and self._unknown.get(schema_id, now) <= now
        ]

    async def load(self, ids: Collection[str], *, deadline: float) -> None:
        """Fetches schemas by `deadline`, in the loop's time; several tasks that need one schema ask for it once.

        Raises UnavailableError. What was answered until then is kept.
        """
        try:
            async with asyncio.timeout_at(deadline), self._loading:
                if self._source is not None and (wanted := self.missing(ids)):
                    await self._source.fetch(wanted, self._take)
        except TimeoutError:
            raise UnavailableError(
                f"the schema registry: no answer in time for {', '.join(sorted(ids))[:200]}"
            ) from None

    def _take(self, schema_id: str, definition: Definition | None) -> None:
        if definition is not None:
            self._unknown.pop(schema_id, None)
            self._known[schema_id] = self._read(schema_id, definition)
            return
        self._unknown.pop(schema_id, None)  # the newest last
        self._unknown[schema_id] = self._clock() + ASK_AGAIN
        while len(self._unknown) > MOST_UNKNOWN:
            del self._unknown[next(iter(self._unknown))]
