"""Writes dead letters again through a sink, apart from the stream of events."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from itertools import count
from typing import Protocol, runtime_checkable

from consumer.mapping.preparing import Preparation
from consumer.model import Batch, DeadLetter, Outcome, Record, Routes, WriteResult
from consumer.ports import Sink
from tidemark.foundation.errors import UnavailableError
from tidemark.foundation.pacing.retry_delay import delay


@runtime_checkable
class ReplayingSink(Protocol):
    """A transactional sink. It needs a method of its own, because `write` skips events at or below the position."""

    async def replay(self, record: Record, *, deadline: float) -> WriteResult:
        """Writes one record and removes its dead letter, in one transaction. Without such a dead letter it does nothing.

        Raises UnavailableError: the outcome is unknown, and repeating the call is safe.
        """
        ...


class Replay:
    """Maps dead letters by the present settings and writes them; those of one key in their order."""

    def __init__(self, sink: Sink, routes: Routes) -> None:
        """`routes` as the sink's `open` gave them."""
        self._sink = sink
        self._routes = routes
        self._preparation = Preparation(sink.prepare)
        self._batch_ids = count(1)

    async def write(self, dead_letters: Sequence[DeadLetter], *, deadline: float) -> Sequence[WriteResult]:
        """One result per dead letter, in their order. Records that still need a retry at `deadline` are RETRY."""
        results: dict[int, WriteResult] = {}
        pending: dict[int, Record] = {}
        for index, dead_letter in enumerate(dead_letters):
            [record] = self._preparation.records([dead_letter.event])
            if record.rejection is None:
                pending[index] = record
            else:
                reason = f"{record.rejection.reason}: {record.rejection.detail}"
                results[index] = WriteResult(Outcome.REJECT, reason=reason)
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
                    del pending[index]
            if any(answer.rerouted for answer in answers.values()):
                self._routes = await self._sink.routes()
            if asyncio.get_running_loop().time() + pause >= deadline:
                break
            await asyncio.sleep(pause)
        untried = WriteResult(Outcome.RETRY, reason="no time was left to try it")
        return [results.get(index, untried) for index in range(len(dead_letters))]

    async def _attempt(self, pending: dict[int, Record], deadline: float) -> dict[int, WriteResult]:
        """Writes the first pending record of each key."""
        first: dict[str, int] = {}
        for index, record in pending.items():
            first.setdefault(record.key, index)
        chosen = list(first.values())
        if isinstance(self._sink, ReplayingSink):
            return {index: await self._replay(self._sink, pending[index], deadline) for index in chosen}
        lanes: dict[str, list[int]] = {}
        for index in chosen:
            lanes.setdefault(self._routes.lane_of(pending[index]), []).append(index)
        answered = await asyncio.gather(
            *(self._write(lane, [pending[i] for i in indices], deadline) for lane, indices in lanes.items())
        )
        return {
            index: answer
            for indices, answers in zip(lanes.values(), answered, strict=True)
            for index, answer in zip(indices, answers, strict=True)
        }

    async def _write(self, lane: str, records: list[Record], deadline: float) -> Sequence[WriteResult]:
        try:
            return await self._sink.write(
                Batch(next(self._batch_ids), lane, tuple(records)), deadline=deadline
            )
        except Exception as error:  # a sink's exception is RETRY for the whole batch
            return [WriteResult(Outcome.RETRY, reason=str(error))] * len(records)

    async def _replay(self, sink: ReplayingSink, record: Record, deadline: float) -> WriteResult:
        try:
            return await sink.replay(record, deadline=deadline)
        except UnavailableError as error:
            return WriteResult(Outcome.RETRY, reason=str(error), retry_after=error.retry_after)
