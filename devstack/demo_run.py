"""One run of the demo: its world, what was measured of it, and when it is done."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import aiohttp
from msgspec import Struct

from devstack.processes import ProcessError
from devstack.resource_manager.plans import Plan
from devstack.supervisor import QUEUE_SUBSCRIPTION, TOPIC, FunctionsProcess, Stack
from devstack.trace import Trace
from devstack.traffic import Fleet, Ledger

DRAIN_SECONDS = 40.0  # at the most, after the load has ended
CONCURRENCY = 16  # messages a worker holds: maxConcurrentCalls of the Functions' Service Bus trigger
PROCESSING = 0.6  # seconds per message; a saturated worker serves 16 / 0.6 = 27 messages per second
SAMPLE_EVERY = 0.5


class Sample(Struct, frozen=True):
    """The world at one moment of the demo, `at` seconds after its start."""

    at: float
    rate: float
    backlog: int
    capacity: int
    ready: int
    sent: int
    done: int


class DemoRun:
    """State of one run, shared by its tasks."""

    def __init__(self, stack: Stack, functions: FunctionsProcess, plan: Plan, trace: Trace) -> None:
        self.stack = stack
        self.functions = functions
        self.plan = plan
        self.trace = trace
        self.ledger = Ledger()
        self.samples: list[Sample] = []
        self.status: dict[str, Any] = {}
        self.log: list[dict[str, Any]] = []
        self.stop = asyncio.Event()
        self.began = time.monotonic()
        self.began_at = time.time()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def fleet(self) -> Fleet:
        return Fleet(
            self.stack.service_bus.connection_string,
            TOPIC,
            QUEUE_SUBSCRIPTION,
            self.ledger,
            ready=lambda: [i.id for i in self.plan.instances() if i.ready_at <= time.time()],
            concurrency=CONCURRENCY,
            processing=PROCESSING,
        )

    async def watch(self, show: Callable[[], None]) -> None:
        """Samples the world, reads the functions' own API, and ends the run when its work is done."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
            while not self.stop.is_set():
                await self._look(session)
                show()
                if self._finished():
                    self.stop.set()
                self._check_running()
                await asyncio.sleep(SAMPLE_EVERY)
            self.log = await self._whole_log(session)

    def _check_running(self) -> None:
        """Raises ProcessError when Azurite or the functions are gone: nothing would be scaled any more."""
        if not self.stack.azurite.running:
            raise ProcessError("Azurite ended by itself; the functions cannot work without it")
        if not self.functions.running:
            raise ProcessError(f"the functions ended by themselves:\n{self.functions.output_tail(40)}")

    async def _look(self, session: aiohttp.ClientSession) -> None:
        counts = self.stack.service_bus.counts(f"{TOPIC}/Subscriptions/{QUEUE_SUBSCRIPTION}")
        self.samples.append(
            Sample(
                self.elapsed,
                self.trace.rate(self.elapsed),
                counts.active,
                self.plan.capacity,
                self.plan.ready_count(),
                self.ledger.sent,
                self.ledger.done,
            )
        )
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):  # the next look will show it
            self.status = await self._read(session, "status")
            self.log = (await self._read(session, "log", limit="40"))["entries"]

    async def _whole_log(self, session: aiohttp.ClientSession) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        parameters = {"limit": "1000", "since": str(self.began_at)}
        while True:
            page = await self._read(session, "log", **parameters)
            entries += page["entries"]
            if page["continuation"] is None:
                return entries[::-1]
            parameters["continuation"] = page["continuation"]

    async def _read(self, session: aiohttp.ClientSession, what: str, **parameters: str) -> dict[str, Any]:
        """Raises aiohttp.ClientError for every answer but 200, TimeoutError after ten seconds."""
        url = f"{self.functions.url}/scaling/{what}"
        async with session.get(url, params=parameters, raise_for_status=True) as answer:
            view: dict[str, Any] = await answer.json()
            return view

    def _finished(self) -> bool:
        if self.ledger.sent < self.trace.total:
            return False
        settled = self.ledger.left == 0 and self.plan.capacity == 1
        return settled or self.elapsed > self.trace.duration + DRAIN_SECONDS
