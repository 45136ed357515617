"""The demo's second part, a plan that follows its load: its world, what was measured of it, and when it is done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from msgspec import Struct

from devstack.demo.common.functions_api import FunctionsApi
from devstack.demo.common.run import SAMPLE_EVERY, Run
from devstack.demo.orders.trace import Trace
from devstack.demo.orders.traffic import Fleet, Ledger
from devstack.resource_manager.plans import Plan
from devstack.stack.supervisor import (
    PLAN,
    QUEUE_SUBSCRIPTION,
    TOPIC,
    FunctionsProcess,
    Stack,
)

DRAIN_SECONDS = 40.0  # at the most, after the load has ended
CONCURRENCY = 16  # messages a worker holds: maxConcurrentCalls of the Functions' Service Bus trigger
PROCESSING = 0.6  # seconds per message; a saturated worker serves 16 / 0.6 = 27 messages per second


class Sample(Struct, frozen=True):
    """The world at one moment of the demo, `at` seconds after its start."""

    at: float
    rate: float
    backlog: int
    capacity: int
    ready: int
    sent: int
    done: int


class DemoRun(Run):
    """The plan and its load."""

    def __init__(self, stack: Stack, functions: FunctionsProcess, plan: Plan, trace: Trace) -> None:
        super().__init__(stack, functions)
        self.plan = plan
        self.trace = trace
        self.ledger = Ledger()
        self.samples: list[Sample] = []

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
        async with FunctionsApi(self.functions.url, PLAN) as api:
            while not self.stop.is_set():
                self._sample()
                await self.read(api)
                show()
                if self._finished():
                    self.stop.set()
                await asyncio.sleep(SAMPLE_EVERY)
            self.log = await api.log(self.began_at)

    def _sample(self) -> None:
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

    def _finished(self) -> bool:
        if self.ledger.sent < self.trace.total:
            return False
        settled = self.ledger.left == 0 and self.plan.capacity == 1
        return settled or self.elapsed > self.trace.duration + DRAIN_SECONDS
