"""The beat of an event loop: what a consumer is doing, published every second for the threads that answer probes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from consumer.core.statistics import PipelineStatistics
from consumer.probes.health import BEAT, Progress, Pulse
from consumer.probes.server import Board


@dataclass(eq=False)
class Beating:
    """Beats until its task is cancelled. The functions are called on the event loop and never block."""

    board: Board
    statistics: Callable[[], PipelineStatistics | None]
    """Returns None before the consumer is open."""
    waits_for: Callable[[], str]
    errors: Callable[[], Mapping[str, str]]
    stopping: Callable[[], bool]
    call_timeout: float

    def __post_init__(self) -> None:
        self._progress = Progress()

    async def run(self) -> None:
        while True:
            self.beat(asyncio.get_running_loop().time())
            await asyncio.sleep(BEAT)

    def beat(self, now: float) -> None:
        """Publishes the state at `now`."""
        statistics = self.statistics()
        since = (None, None) if statistics is None else self._progress.note(statistics, now)
        self.board.pulse = Pulse(
            now,
            self.waits_for(),
            statistics,
            *since,
            call_timeout=self.call_timeout,
            errors=dict(self.errors()),
            stopping=self.stopping(),
        )
