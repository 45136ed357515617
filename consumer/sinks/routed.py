"""One sink made of several, by name: each record goes to the sink that its write names.

Each sink keeps its own lanes, congestion control and throttling, and, if it is ordered, its own mark and fence. What such a sink
has stored already it answers as written, so that the checkpoint of the consumer, which is the lowest of all, may lag behind
its mark.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import cast

from msgspec import structs

from consumer.mapping.documents import rejected
from consumer.mapping.preparing import Prepare
from consumer.model import Batch, Claim, Record, Rejection, Routes, Write, WriteResult
from consumer.ports import AskedSink, OrderedSink, Sink
from tidemark.foundation.errors import SettingsError, UnavailableError
from tidemark.foundation.sanitize import describe_error

log = logging.getLogger("tidemark.consumer")


class RoutedSink:
    """Its sinks must not be transactional. A write that names none of them is rejected (`no_sink`)."""

    transactional = False

    def __init__(self, sinks: Mapping[str, Sink]) -> None:
        """Raises SettingsError for a sink that keeps the consumer's checkpoint itself."""
        for name, sink in sinks.items():
            if sink.transactional:
                raise SettingsError(
                    f"the sink '{name}' stores the consumer's checkpoint with its rows, which is possible for an only sink; among"
                    " others it must have a mark of its own"
                )
        self._sinks = dict(sinks)
        self._routes: dict[str, Routes] = {}  # of the sinks that are open

    async def open(self) -> Routes:
        for name, sink in self._sinks.items():
            if name not in self._routes:
                try:
                    self._routes[name] = await sink.open()
                except SettingsError as error:
                    raise SettingsError(f"sink '{name}': {error}") from error
                except UnavailableError as error:
                    raise UnavailableError(f"sink '{name}': {error}", error.retry_after) from error
        return self._all_routes()

    def prepare(self, write: Write) -> Record:
        sink = self._sinks.get(write.sink)
        if sink is None:
            return _no_sink(write, ", ".join(self._sinks))
        record = sink.prepare(write)
        # Records of two sinks are different documents, whatever their keys.
        return structs.replace(record, key=f"{write.sink}/{record.key}", sink=write.sink)

    async def write(self, batch: Batch, *, deadline: float) -> Sequence[WriteResult]:
        if not batch.records:
            return []
        lane = batch.lane.partition("/")[2]
        sink = self._sinks[batch.records[0].sink]
        return await sink.write(structs.replace(batch, lane=lane), deadline=deadline)

    async def replay(self, records: Sequence[Record], *, deadline: float) -> Sequence[WriteResult]:
        """Writes records of one ordered sink, as OrderedSink.replay."""
        return await cast("OrderedSink", self._sinks[records[0].sink]).replay(records, deadline=deadline)

    async def routes(self) -> Routes:
        """A sink that does not answer keeps the routes that it had: its records are then refused, and it is asked again."""
        names = list(self._sinks)
        answers = await asyncio.gather(
            *(sink.routes() for sink in self._sinks.values()), return_exceptions=True
        )
        for name, routes in zip(names, answers, strict=True):
            if isinstance(routes, Routes):
                self._routes[name] = routes
            else:
                log.warning("reading the partitions of sink '%s' failed: %s", name, describe_error(routes))
        return self._all_routes()

    async def ask(self) -> None:
        """Asks all of its sinks. Raises UnavailableError for the first that does not answer."""
        asking = [ask_target(sink) for sink in self._sinks.values()]
        answers = await asyncio.gather(*asking, return_exceptions=True)
        for name, answer in zip(self._sinks, answers, strict=True):
            if isinstance(answer, BaseException):
                raise UnavailableError(f"sink '{name}': {answer}") from answer

    def _all_routes(self) -> Routes:
        return Routes(of_sinks=dict(self._routes))

    def attach(self, claim: Claim) -> None:
        for sink in self._ordered():
            sink.attach(claim)

    def detach(self, partition: str) -> None:
        for sink in self._ordered():
            sink.detach(partition)

    def _ordered(self) -> list[OrderedSink]:
        return [
            cast("OrderedSink", self._sinks[name])
            for name, routes in self._routes.items()
            if routes.by_partition
        ]

    async def aclose(self) -> None:
        closed = await asyncio.gather(
            *(sink.aclose() for sink in self._sinks.values()), return_exceptions=True
        )
        errors = [error for error in closed if isinstance(error, BaseException)]
        if errors:
            raise errors[0]


async def ask_target(sink: Sink) -> None:
    """Asks the target of a sink, by its routes if it has no other question. Any exception means that it was not reached."""
    await (sink.ask() if isinstance(sink, AskedSink) else sink.routes())


def prepare_for_only(name: str, prepare: Prepare) -> Prepare:
    """`prepare` of a hub's only sink, for the writes of a user's function, which may name another one."""

    def prepare_named(write: Write) -> Record:
        return prepare(write) if write.sink in {"", name} else _no_sink(write, name)

    return prepare_named


def _no_sink(write: Write, accepted: str) -> Record:
    named = f"'{write.sink}', to which no route of this hub goes" if write.sink else "no sink"
    return rejected(write.event, Rejection("no_sink", f"the write names {named}; accepted: {accepted}"))
