"""Writes dead letters again through a sink, apart from the stream of events."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Sequence
from itertools import count
from typing import Protocol, runtime_checkable

from consumer.core.parked import has_names, name_of
from consumer.mapping.preparing import Preparation
from consumer.model import Batch, DeadLetter, Outcome, Record, Routes, WriteResult
from consumer.ports import Sink
from tidemark.foundation.errors import UnavailableError
from tidemark.foundation.pacing.retry_delay import delay


@runtime_checkable
class ReplayingSink(Protocol):
    """An ordered sink. It needs a method of its own, because `write` skips events at or below the mark."""

    async def replay(self, records: Sequence[Record], *, deadline: float) -> WriteResult:
        """Writes the records of one event, once however often it is repeated. A transactional sink removes the dead letter in the
        same transaction, and does nothing without it.

        Raises UnavailableError: the outcome is unknown, and repeating the call is safe.
        """
        ...


@runtime_checkable
class ComparingSink(Protocol):
    """A sink that can say without a write what its version guard would leave alone."""

    async def superseded(self, records: Sequence[Record], *, deadline: float) -> Sequence[bool]:
        """Of each record whether a later event has changed its target. Raises UnavailableError."""
        ...


class Replay:
    """Maps dead letters by the present settings and writes them; those of one key in their order."""

    def __init__(
        self, sink: Sink, routes: Routes, preparation: Preparation | None = None, *, whole: bool = False
    ) -> None:
        """`routes` as the sink's `open` gave them. Without a `preparation` the sink reads the bodies itself. `whole` writes all records
        of an event, also those that are not in its dead letter because they were written.
        """
        self.sink = sink
        self._routes = routes
        self._preparation = preparation or Preparation(sink.prepare)
        self._whole = whole
        self._batch_ids = count(1)

    async def write(self, dead_letters: Sequence[DeadLetter], *, deadline: float) -> Sequence[WriteResult]:
        """One result per dead letter, in their order. Those that still need a retry at `deadline` are RETRY.

        An event with several records is written when all of them are that its dead letter names; see `records_left`.
        """
        late = await self._without_schema(dead_letters, deadline)
        ready = [each for each, why in zip(dead_letters, late, strict=True) if not why]
        written = iter(await self._write_ready(ready, deadline))
        return [WriteResult(Outcome.RETRY, reason=why) if why else next(written) for why in late]

    async def _without_schema(self, dead_letters: Sequence[DeadLetter], deadline: float) -> list[str]:
        """For each dead letter why its schema could not be fetched; '' where it was, or none is needed."""
        decoder = self._preparation.decoder
        events = [dead_letter.event for dead_letter in dead_letters]
        if decoder is None or not (ids := decoder.missing(events)):
            return [""] * len(events)
        try:
            await decoder.load(ids, deadline=deadline)
        except UnavailableError as error:
            return [str(error) if decoder.missing([event]) else "" for event in events]
        return [""] * len(events)

    async def _write_ready(
        self, dead_letters: Sequence[DeadLetter], deadline: float
    ) -> Sequence[WriteResult]:
        prepared = [self._preparation.records([dead_letter.event]) for dead_letter in dead_letters]
        if not self._whole:
            prepared = [
                records_left(records, letter.records, letter.of)
                for records, letter in zip(prepared, dead_letters, strict=True)
            ]
        together = isinstance(self.sink, ReplayingSink)
        units: list[list[Record]] = []
        for records in prepared:
            units += [records] if together else [[record] for record in records]
        results = iter(await self._write_units(units, deadline))
        return [_of_event([next(results) for _ in range(1 if together else len(each))]) for each in prepared]

    async def write_records(
        self, records: Sequence[Record], *, deadline: float, by_key: bool = False
    ) -> Sequence[WriteResult]:
        """One result per record, in their order; those of one key are written one after the other. `by_key`: what comes after a
        rejected record of its key is not tried, and RETRY.
        """
        return await self._write_units([[record] for record in records], deadline, by_key=by_key)

    async def _write_units(
        self, units: Sequence[list[Record]], deadline: float, *, by_key: bool = False
    ) -> list[WriteResult]:
        """A unit is what is written together: one record, or with a ReplayingSink those of one event."""
        results: dict[int, WriteResult] = {}
        pending: dict[int, list[Record]] = {}
        for index, records in enumerate(units):
            to_write = [record for record in records if record.dropped is None]
            rejected = [record.rejection for record in records if record.rejection is not None]
            if rejected:
                reason = "; ".join(f"{rejection.reason}: {rejection.detail}" for rejection in rejected)
                results[index] = WriteResult(Outcome.REJECT, reason=reason, rejection=rejected[0])
            elif to_write or self.sink.transactional:  # such a sink removes the dead letter itself
                pending[index] = to_write or records
            else:
                results[index] = WriteResult(Outcome.WRITTEN, reason="dropped")
        failures = 0
        while pending:
            answers = await self._attempt(pending, deadline)
            results |= answers
            retries = [answer for answer in answers.values() if answer.outcome is Outcome.RETRY]
            failures = failures + 1 if len(retries) == len(answers) else 0
            waits = [delay(answer.retry_after, failures, random.random) for answer in retries]
            pause = max(waits, default=0.0)
            for index, answer in answers.items():
                if answer.outcome is not Outcome.RETRY:
                    done = pending.pop(index)
                    if by_key and answer.outcome is Outcome.REJECT:
                        results |= _take_behind(done, pending)
            if any(answer.rerouted for answer in answers.values()):
                self._routes = await self.sink.routes()
            if asyncio.get_running_loop().time() + pause >= deadline:
                break
            await asyncio.sleep(pause)
        untried = WriteResult(Outcome.RETRY, reason="no time was left to try it")
        return [results.get(index, untried) for index in range(len(units))]

    async def _attempt(self, pending: dict[int, list[Record]], deadline: float) -> dict[int, WriteResult]:
        """Writes the pending units that have no key in common with one before them."""
        chosen: list[int] = []
        before: set[str] = set()
        for index, records in pending.items():
            keys = {record.key for record in records}
            if before.isdisjoint(keys):
                chosen.append(index)
            before |= keys
        if isinstance(self.sink, ReplayingSink):
            return {index: await self._replay(self.sink, pending[index], deadline) for index in chosen}
        lanes: dict[str, list[int]] = {}
        for index in chosen:
            lanes.setdefault(self._routes.lane_of(pending[index][0]), []).append(index)
        answered = await asyncio.gather(
            *(
                self._write(lane, [pending[i][0] for i in indices], deadline)
                for lane, indices in lanes.items()
            )
        )
        return {
            index: answer
            for indices, answers in zip(lanes.values(), answered, strict=True)
            for index, answer in zip(indices, answers, strict=True)
        }

    async def _write(self, lane: str, records: list[Record], deadline: float) -> Sequence[WriteResult]:
        try:
            return await self.sink.write(
                Batch(next(self._batch_ids), lane, tuple(records)), deadline=deadline
            )
        except Exception as error:  # a sink's exception is RETRY for the whole batch
            return [WriteResult(Outcome.RETRY, reason=str(error))] * len(records)

    async def _replay(self, sink: ReplayingSink, records: list[Record], deadline: float) -> WriteResult:
        try:
            return await sink.replay(records, deadline=deadline)
        except UnavailableError as error:
            return WriteResult(Outcome.RETRY, reason=str(error), retry_after=error.retry_after)


def records_left(records: list[Record], names: Collection[str], of: int) -> list[Record]:
    """The records of an event that were not written when it was rejected. All of them, if the names say nothing of what the present
    settings make of the event: rather twice than not at all.
    """
    known = has_names(records, names, of)
    return [record for record in records if name_of(record) in names] if known else records


def _take_behind(rejected: Sequence[Record], pending: dict[int, list[Record]]) -> dict[int, WriteResult]:
    """Removes what has a key in common with rejected records, and returns its results."""
    keys = {record.key for record in rejected}
    behind = [index for index, records in pending.items() if any(record.key in keys for record in records)]
    for index in behind:
        del pending[index]
    return dict.fromkeys(behind, WriteResult(Outcome.RETRY, reason="behind a rejected record of its key"))


def _of_event(results: Sequence[WriteResult]) -> WriteResult:
    """The result of an event: rejected if any record is, else to be tried again if any record is."""
    for outcome in (Outcome.REJECT, Outcome.RETRY):
        found = [result for result in results if result.outcome is outcome]
        if found:
            return found[0]
    return results[0]
