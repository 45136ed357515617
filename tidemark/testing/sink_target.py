"""The target of a suite for sinks, and how its tests write to it."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import pytest

from consumer.errors import FencedError
from consumer.model import Batch, Checkpoint, Claim, Event, Outcome, Record, Write, WriteResult
from consumer.ports import OrderedSink, Sink

Document = Mapping[str, Any]

PARTITION = "0"
TIMEOUT = 30.0
"""Seconds for a write that is not meant to fail."""


def flight(number: int, **fields: Any) -> dict[str, Any]:
    """A document as the suite writes it."""
    return {"id": f"f{number}", "dest": f"D{number % 7}", **fields}


class SinkTarget(ABC):
    """A target that is empty at the beginning of each test, and the sinks that write to it. One hub, one consumer group."""

    appends = False
    """Whether every event adds a row or message. False: a later event of an id replaces the document."""
    reads_documents = True
    """Whether the sink needs a JSON object in the body. False: it forwards any body."""
    exact = True
    """Whether an event that is written again, by a new process too, is stored once. False: it may be stored again."""
    unwritable: Document | None = None
    """A document that the sink can never write; None if there is none."""

    @abstractmethod
    def sink(self) -> Sink:
        """A new sink, not open yet, as another process of the consumer would build it."""

    @abstractmethod
    async def stored(self) -> Sequence[Document]:
        """All documents that are stored, in the order of storing if the target has one."""

    async def claim(self, mark: int = -1) -> Claim:
        """A new claim of partition "0", whose checkpoint has events up to `mark`. Each has a higher epoch than the one before.

        A sink that stores checkpoints itself overrides this.
        """
        self._epoch = getattr(self, "_epoch", 0) + 1
        checkpoint = Checkpoint(PARTITION, mark, str(mark)) if mark >= 0 else None
        return Claim(PARTITION, f"owner-{self._epoch}", self._epoch, checkpoint)

    async def remove(self) -> None:
        """Removes the target, so that there is no table, hub or container any more."""
        pytest.skip("this target cannot be removed")

    def unreachable(self) -> AbstractAsyncContextManager[object]:
        """While it is entered, nothing reaches the target or nothing is answered, and writes cannot succeed."""
        pytest.skip("this target cannot be made unreachable")


class Sinks:
    """The sinks of a test."""

    def __init__(self, target: SinkTarget) -> None:
        self._target = target
        self._made: list[Sink] = []

    def new(self) -> Sink:
        """One that is not open."""
        self._made.append(self._target.sink())
        return self._made[-1]

    async def open(self) -> Sink:
        """One that is open and has claimed partition "0", if it is ordered."""
        sink = self.new()
        if (await sink.open()).by_partition:
            cast("OrderedSink", sink).attach(await self._target.claim())
        return sink

    async def aclose(self) -> None:
        for sink in self._made:
            await sink.aclose()


def event(number: int, document: Document | bytes | None = None) -> Event:
    """An event of partition "0" whose body is the document, or the flight of that number."""
    if not isinstance(document, bytes):
        document = json.dumps(flight(number) if document is None else document).encode()
    return Event(PARTITION, number, str(number * 64), 1_795_000_000.0, document)


def soon() -> float:
    return asyncio.get_running_loop().time() + TIMEOUT


async def write(sink: Sink, events: Sequence[Event], deadline: float | None = None) -> Sequence[WriteResult]:
    """Prepares and writes events, lane by lane, in their order; the results are in the order of events."""
    return await write_records(sink, [sink.prepare(Write(given)) for given in events], deadline)


async def write_records(
    sink: Sink, records: Sequence[Record], deadline: float | None = None
) -> Sequence[WriteResult]:
    """Writes records, lane by lane, in their order; the results are in the order of records."""
    routes = await sink.routes()
    lanes: dict[str, list[tuple[int, Record]]] = {}
    for index, record in enumerate(records):
        lanes.setdefault(routes.lane_of(record), []).append((index, record))
    results: dict[int, WriteResult] = {}
    for lane, numbered in lanes.items():
        batch = Batch(1, lane, tuple(record for _, record in numbered))
        answers = await sink.write(batch, deadline=soon() if deadline is None else deadline)
        assert len(answers) == len(numbered)
        results |= {index: answer for (index, _), answer in zip(numbered, answers, strict=True)}
    return [results[index] for index in range(len(records))]


async def outcomes_of(sink: Sink, records: Sequence[Record]) -> Sequence[Outcome]:
    """The outcomes of records. As in the consumer, a rejected one is written only if the sink stores dead letters itself."""
    is_written = [record.rejection is None or sink.transactional for record in records]
    results = iter(
        await write_records(sink, [r for r, written in zip(records, is_written, strict=True) if written])
    )
    outcomes = [next(results).outcome if written else Outcome.REJECT for written in is_written]
    return [
        outcome if record.rejection is None else Outcome.REJECT
        for record, outcome in zip(records, outcomes, strict=True)
    ]


async def tried(sink: Sink, events: Sequence[Event], deadline: float | None = None) -> Sequence[Outcome]:
    """The outcomes of a write, where an exception counts as RETRY, as it does in the consumer."""
    try:
        return [result.outcome for result in await write(sink, events, deadline)]
    except FencedError:
        raise
    except Exception:
        return [Outcome.RETRY] * len(events)
