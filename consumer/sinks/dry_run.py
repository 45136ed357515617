"""Does everything but write (COSMOS_WRITE=false)."""

from __future__ import annotations

from collections.abc import Sequence

from consumer.model import Batch, Event, Outcome, Record, Routes, WriteResult
from consumer.ports import Sink

_NOT_WRITTEN = WriteResult(Outcome.WRITTEN, reason="dry_run")


class DryRunSink:
    """Opens, prepares and routes as the sink it wraps, and answers each write as done, at no cost.

    Nothing is durable after it: whoever runs it must not save checkpoints on the strength of its answers.
    """

    transactional = False

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    async def open(self) -> Routes:
        return await self._sink.open()

    def prepare(self, event: Event) -> Record:
        return self._sink.prepare(event)

    async def write(self, batch: Batch, *, deadline: float) -> Sequence[WriteResult]:  # noqa: ARG002 - a port
        return [_NOT_WRITTEN] * len(batch.records)

    async def routes(self) -> Routes:
        return await self._sink.routes()

    async def aclose(self) -> None:
        await self._sink.aclose()
