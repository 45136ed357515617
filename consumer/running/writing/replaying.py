"""Writes dead letters again through a sink, apart from the stream of events."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from itertools import count
from math import inf
from typing import Protocol, cast, runtime_checkable

from msgspec import structs

from consumer.core.parked import has_names, name_of, names_of
from consumer.mapping.preparing import Preparation
from consumer.model import Batch, DeadLetter, Outcome, Record, Routes, WriteResult
from consumer.ports import OrderedSink, Sink
from consumer.rejections import rejection_of_event, rejection_of_result
from consumer.running.writing.calls import of_all
from consumer.versions import SUPERSEDED
from tidemark.foundation.errors import UnavailableError
from tidemark.foundation.pacing.retry_delay import delay


@runtime_checkable
class ComparingSink(Protocol):
    """A sink that can say without a write what its version guard would leave alone."""

    async def superseded(self, records: Sequence[Record], *, deadline: float) -> Sequence[bool]:
        """Of each record whether a later event has changed its target. Raises UnavailableError."""
        ...


class Replayed(WriteResult, frozen=True, gc=False):
    """The result of a dead letter, and, if some of its event's records are written and others are not, the letter that is left."""

    left: DeadLetter | None = None


class Replay:
    """Maps dead letters by the present settings and writes them; those of one key in their order."""

    def __init__(
        self, sink: Sink, routes: Routes, preparation: Preparation | None = None, *, whole: bool = False
    ) -> None:
        """`routes` as the sink's `open` gave them. Without a `preparation` the sink reads the bodies itself. `whole` writes all records
        of an event, also those that are not in its dead letter because they were written, but for sinks that append.
        """
        self.sink = sink
        self._routes = routes
        self.preparation = preparation or Preparation(sink.prepare)
        self._whole = whole
        self._silence, self._ask_at = "", -inf
        self._open: set[str] = set()  # keys of records that `write` left to be tried again
        self._batch_ids = count(1)
        self._lanes = _Lanes()

    async def write(self, dead_letters: Sequence[DeadLetter], *, deadline: float) -> Sequence[Replayed]:
        """One result per dead letter, in their order. Those that still need a retry at `deadline` are RETRY, and so are those of
        their keys in later calls: written now, they would be overwritten once the earlier ones are.

        An event with several records is written when all of them are that its dead letter names; see `records_left`.
        """
        late = await self.why_waiting(dead_letters, deadline=deadline)
        ready = [letter for letter, why in zip(dead_letters, late, strict=True) if not why]
        written = iter(await self._write_ready(ready, deadline))
        return [Replayed(Outcome.RETRY, reason=why) if why else next(written) for why in late]

    async def why_waiting(self, dead_letters: Sequence[DeadLetter], *, deadline: float) -> list[str]:
        """For each dead letter why its schema could not be fetched; '' where it was, or none is needed. A registry that lets a question
        wait for more than a second is not asked again for as long.
        """
        decoder, now = self.preparation.decoder, asyncio.get_running_loop().time
        events = [dead_letter.event for dead_letter in dead_letters]
        if decoder is None or not (ids := decoder.missing(events)):
            return [""] * len(events)
        if (began := now()) >= self._ask_at:
            self._silence = ""
            try:
                await decoder.load(
                    ids, deadline=(began + deadline) / 2
                )  # the other half is for what needs none
            except UnavailableError as error:
                self._silence, self._ask_at = str(error), 2 * now() - began - 1.0
        return [self._silence if decoder.missing([event]) else "" for event in events]

    async def _write_ready(self, dead_letters: Sequence[DeadLetter], deadline: float) -> list[Replayed]:
        records_of_letters = [self.records_of(letter) for letter in dead_letters]
        units = [[] if self._is_behind(own) else self._units(own) for own in records_of_letters]
        answers = iter(await self._write_units([unit for own in units for unit in own], deadline))
        results = []
        for letter, records, own in zip(dead_letters, records_of_letters, units, strict=True):
            pairs = [pair for unit in own for pair in zip(unit, next(answers), strict=True)]
            results.append(_of_event(letter, pairs or [(record, _BEHIND) for record in records]))
            self._open |= {record.key for record, answer in pairs if answer.outcome is Outcome.RETRY}
        return results

    def _is_behind(self, records: Sequence[Record]) -> bool:
        """Whether an event waits for one of a call before, and so do later ones for it."""
        keys = {record.key for record in records if _without_writing(record) is None}
        if self._open.isdisjoint(keys):
            return False
        self._open |= keys
        return True

    def records_of(self, letter: DeadLetter) -> list[Record]:
        """The records of a dead letter's event that are to be written, as the present settings make them."""
        records = self.preparation.records([letter.event])
        left = records_left(records, letter.records, letter.of)
        if not self._whole:
            return left
        return [record for record in records if record in left or not self._routes.of(record).appends]

    def _units(self, records: Sequence[Record]) -> list[list[Record]]:
        """What is written together: of an ordered sink the records of the event, else each record."""
        units: dict[tuple[str, int], list[Record]] = {}
        for record in records:
            units.setdefault((record.sink, -1 if self._is_ordered(record) else record.index), []).append(
                record
            )
        return list(units.values())

    def _is_ordered(self, record: Record) -> bool:
        return self.sink.transactional or self._routes.of(record).by_partition

    async def write_records(
        self, records: Sequence[Record], *, deadline: float, by_key: bool = False
    ) -> Sequence[WriteResult]:
        """One result per record, in their order; those of one key are written one after the other. `by_key`: what comes after a
        rejected record of its key is not tried, and RETRY.
        """
        answers = await self._write_units([[record] for record in records], deadline, by_key=by_key)
        return [answer for [answer] in answers]

    async def _write_units(
        self, units: Sequence[list[Record]], deadline: float, *, by_key: bool = False
    ) -> list[list[WriteResult]]:
        """A result for each record of each unit. A transactional sink gets rejected and dropped records too: it changes the dead
        letter itself.
        """
        known = [[_without_writing(record) for record in unit] for unit in units]
        is_given = [[self.sink.transactional or answer is None for answer in own] for own in known]
        pending: dict[int, list[Record]] = {}
        for index, (unit, given) in enumerate(zip(units, is_given, strict=True)):
            if any(given) and any(record.rejection is None for record in unit):
                pending[index] = [record for record, is_one in zip(unit, given, strict=True) if is_one]
        answered: dict[int, Sequence[WriteResult]] = {}
        lanes, clock = self._lanes, asyncio.get_running_loop().time
        while heads := _heads(pending):
            due = {index: lanes.due(self._lane_of(pending[index])) for index in heads}
            if (first := min(due.values())) >= deadline:
                for index in heads:
                    why = lanes.asked(self._lane_of(pending[index]))
                    answered.setdefault(index, [why] * len(pending[index]))
                break
            await asyncio.sleep(max(0.0, first - clock()))
            ready = {index: pending[index] for index in heads if due[index] <= max(first, clock())}
            answers = await self._attempt(ready, deadline)
            answered |= answers
            if any(answer.rerouted for own in answers.values() for answer in own):
                with suppress(UnavailableError):  # then its answers ask for them again
                    self._routes = await self.sink.routes()
            lanes.note(((self._lane_of(ready[index]), own) for index, own in answers.items()), clock())
            for index, own in answers.items():
                if all(answer.outcome is not Outcome.RETRY for answer in own):
                    done = pending.pop(index)
                    if by_key and any(answer.outcome is Outcome.REJECT for answer in own):
                        answered |= _take_behind(done, pending)
        return [
            _joined(own, given, answered.get(index, ()))
            for index, (own, given) in enumerate(zip(known, is_given, strict=True))
        ]

    def _lane_of(self, records: Sequence[Record]) -> str:
        return records[0].sink if self._is_ordered(records[0]) else self._routes.lane_of(records[0])

    async def _attempt(
        self, ready: dict[int, list[Record]], deadline: float
    ) -> dict[int, Sequence[WriteResult]]:
        """Writes units that have no key in common, those of several sinks at the same time."""
        groups: dict[str, list[int]] = {}
        for index, records in ready.items():
            groups.setdefault(self._lane_of(records), []).append(index)

        async def write(lane: str, own: list[int]) -> Sequence[Sequence[WriteResult]]:
            if self._is_ordered(ready[own[0]][0]):
                return [await self._replay(ready[index], deadline) for index in own]
            return [[each] for each in await self._write(lane, [ready[i][0] for i in own], deadline)]

        written = await asyncio.gather(*(write(lane, own) for lane, own in groups.items()))
        return {
            index: answer
            for own, answers in zip(groups.values(), written, strict=True)
            for index, answer in zip(own, answers, strict=True)
        }

    async def _write(self, lane: str, records: list[Record], deadline: float) -> Sequence[WriteResult]:
        try:
            batch = Batch(next(self._batch_ids), lane, tuple(records))
            return of_all(batch, await self.sink.write(batch, deadline=deadline))
        except Exception as error:  # a sink's exception is RETRY for the whole batch
            return [WriteResult(Outcome.RETRY, reason=str(error) or repr(error))] * len(records)

    async def _replay(self, records: list[Record], deadline: float) -> Sequence[WriteResult]:
        answer: Sequence[WriteResult] | WriteResult
        try:
            answer = await cast("OrderedSink", self.sink).replay(records, deadline=deadline)
        except Exception as error:  # as in `_write`
            wait = getattr(error, "retry_after", None)
            answer = WriteResult(Outcome.RETRY, reason=str(error) or repr(error), retry_after=wait)
        # A sink of one's own may give one result for all of them, as was asked for until 0.2.0.
        return [answer] * len(records) if isinstance(answer, WriteResult) else answer


class _Lanes:
    """When each lane is tried again, also by later calls: one that asks for an hour holds no other."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._asked: dict[str, WriteResult] = {}

    def due(self, lane: str) -> float:
        return self._due.get(lane, -inf)

    def asked(self, lane: str) -> WriteResult:
        """The result by which a lane waits."""
        return self._asked.get(lane, _UNTRIED)

    def note(self, answers: Iterable[tuple[str, Sequence[WriteResult]]], now: float) -> None:
        """Takes the results of one attempt. All of a lane waits for the longest that any of its records was asked to."""
        lanes: dict[str, list[WriteResult]] = {}
        for lane, results_of_unit in answers:
            lanes.setdefault(lane, []).extend(results_of_unit)
        for lane, results in lanes.items():
            retries = [answer for answer in results if answer.outcome is Outcome.RETRY]
            failures = self._failures.get(lane, 0) + 1 if len(retries) == len(results) else 0
            self._failures[lane] = failures
            waits = [delay(answer.retry_after, failures, random.random) for answer in retries]
            self._due[lane] = now + max(waits, default=0.0)
            asked = structs.replace(retries[-1], request_units=0.0) if retries else _UNTRIED
            self._asked[lane] = asked


def _heads(pending: dict[int, list[Record]]) -> list[int]:
    """The units that have no key in common with one before them."""
    before: set[str] = set()
    heads = []
    for index, records in pending.items():
        keys = {record.key for record in records}
        if before.isdisjoint(keys):
            heads.append(index)
        before |= keys
    return heads


def _without_writing(record: Record) -> WriteResult | None:
    """The result of a record that no sink is needed for."""
    if record.rejection is not None:
        why = record.rejection
        return WriteResult(Outcome.REJECT, reason=f"{why.reason}: {why.detail}", rejection=why)
    return None if record.dropped is None else WriteResult(Outcome.WRITTEN, reason=DROPPED)


def _joined(
    known: Sequence[WriteResult | None], is_given: Sequence[bool], answers: Sequence[WriteResult]
) -> list[WriteResult]:
    """What is known without the sink, and its answers for the records that it was given; none were given in time without any."""
    left = iter(answers)
    results: list[WriteResult] = []
    for own, is_one in zip(known, is_given, strict=True):
        answer = next(left, _UNTRIED) if is_one else _UNTRIED
        results.append(answer if own is None or (is_one and own.outcome is Outcome.WRITTEN) else own)
    return results


DROPPED = "dropped"
"""The reason of a result where the present settings want nothing to be written."""
_UNWRITTEN = (DROPPED, SUPERSEDED)

_BEHIND = WriteResult(Outcome.RETRY, reason="an earlier event of its key was not written")
_UNTRIED = WriteResult(Outcome.RETRY, reason="no time was left to try it")


def records_left(records: list[Record], names: Collection[str], of: int) -> list[Record]:
    """The records of an event that were not written when it was rejected. All of them, if the names say nothing of what the present
    settings make of the event: rather twice than not at all.
    """
    known = has_names(records, names, of)
    return [record for record in records if name_of(record) in names] if known else records


def _take_behind(
    rejected: Sequence[Record], pending: dict[int, list[Record]]
) -> dict[int, Sequence[WriteResult]]:
    """Removes what has a key in common with rejected records, and returns its results."""
    keys = {record.key for record in rejected}
    why = WriteResult(Outcome.RETRY, reason="behind a rejected record of its key")
    behind = [index for index, records in pending.items() if any(record.key in keys for record in records)]
    return {index: [why] * len(pending.pop(index)) for index in behind}


def _of_event(letter: DeadLetter, answers: Sequence[tuple[Record, WriteResult]]) -> Replayed:
    """The result of an event: rejected if any record is, else to be tried again if any record is."""
    severity = {Outcome.REJECT: 0, Outcome.RETRY: 1, Outcome.WRITTEN: 2}
    # Of several records one that is written counts, not one that is dropped or superseded.
    result = min(
        (answer for _, answer in answers),
        key=lambda each: (severity[each.outcome], each.reason in _UNWRITTEN),
    )
    if result.outcome is Outcome.REJECT:
        refused = [(record, answer) for record, answer in answers if answer.outcome is Outcome.REJECT]
        reasons = "; ".join(filter(None, dict.fromkeys(answer.reason for _, answer in refused)))
        why = rejection_of_event([(record, rejection_of_result(answer)) for record, answer in refused])
        result = structs.replace(result, reason=reasons, rejection=why)
    open_ = [record for record, answer in answers if answer.outcome is not Outcome.WRITTEN]
    left = None
    if open_ and len(open_) < len(answers):
        names, of = names_of(open_)
        left = structs.replace(letter, records=names, of=of)
    return Replayed(**structs.asdict(result), left=left)
