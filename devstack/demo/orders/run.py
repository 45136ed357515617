"""The demo's first scene, a plan that follows its load: its world, what was measured of it, and when it is done.

The functions' clock runs `SPEED` times as fast as ours: one of our seconds is a minute to them. So the rules keep the
settings of production, minutes and all, and a report of every minute comes every second.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import aiohttp
import msgspec
from msgspec import Struct

from devstack.demo.common.functions_api import FunctionsApi
from devstack.demo.common.run import SAMPLE_EVERY, Run
from devstack.demo.orders.trace import Trace
from devstack.demo.orders.traffic import Fleet, Ledger
from devstack.processes.child import ProcessError
from devstack.resource_manager.common.plans import Plan
from devstack.stack.supervisor import (
    PLAN,
    QUEUE_SUBSCRIPTION,
    TOPIC,
    FunctionsProcess,
    Stack,
    check_running,
    guard,
)
from scaling.shadow.comparison import ShadowView

SPEED = 60.0  # seconds of the functions in one of ours
LOOK_WITHIN = 30.0  # seconds for the first look
DRAIN_SECONDS = 40.0  # at the most, after the load has ended
CONCURRENCY = 16  # messages a worker holds: maxConcurrentCalls of the Functions' Service Bus trigger
PROCESSING = 0.6  # seconds per message, 36 to the functions
SERVED = CONCURRENCY / PROCESSING  # messages per second (minute) that keep a worker busy


class Sample(Struct, frozen=True):
    """The world at one moment of the demo, `at` seconds after its start. `rate` is per second; `simulated` are the instances
    and `simulated_backlog` the messages there would be by the simulated rules, once they are known.
    """

    at: float
    rate: float
    backlog: int
    capacity: int
    ready: int
    simulated: int | None
    sent: int
    done: int
    simulated_backlog: int | None = None


async def first_look(stack: Stack, functions: FunctionsProcess) -> None:
    """Waits until the functions have seen the plan once. Raises ProcessError, or a group that holds it, when they have
    not within half a minute, or a server is gone.
    """
    stop = asyncio.Event()
    try:
        async with asyncio.timeout(LOOK_WITHIN), asyncio.TaskGroup() as group:
            group.create_task(guard(lambda: check_running(stack, functions), stop))
            group.create_task(_decided(functions, stop))
    except TimeoutError:
        raise ProcessError(f"the functions decided nothing:\n{functions.output_tail(40)}") from None


async def _decided(functions: FunctionsProcess, stop: asyncio.Event) -> None:
    """Sets `stop` when the plan was decided for."""
    async with FunctionsApi(functions.url, PLAN) as api:
        while not stop.is_set():
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                if (await api.target()).get("decided_at") is not None:
                    stop.set()
            await asyncio.sleep(SAMPLE_EVERY)


class DemoRun(Run):
    """The plan and its load."""

    def __init__(
        self, stack: Stack, functions: FunctionsProcess, plan: Plan, trace: Trace, ledger: Ledger
    ) -> None:
        super().__init__(stack, functions)
        self.plan = plan
        self.trace = trace
        self.ledger = ledger
        self.samples: list[Sample] = []
        self.compared: ShadowView | None = None
        """What decides beside what is simulated, over the recorded day."""

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
                self._compare()
                show()
                if self._finished():
                    self.stop.set()
                await asyncio.sleep(SAMPLE_EVERY)
            self.log = await api.log(self.began_at)

    def _compare(self) -> None:
        """Takes the product's own comparison, as long as the day goes on."""
        shadow = self.target.get("shadow")
        if shadow is not None and self.elapsed <= self.trace.duration:
            self.compared = msgspec.convert(shadow, ShadowView)

    def _sample(self) -> None:
        counts = self.stack.service_bus.counts(f"{TOPIC}/Subscriptions/{QUEUE_SUBSCRIPTION}")
        beside, apart = self.compared, None
        if beside is not None and self.elapsed <= self.trace.duration:
            apart = beside.backlog_apart
        self.samples.append(
            Sample(
                self.elapsed,
                self.trace.rate(self.elapsed),
                counts.active,
                self.plan.capacity,
                self.plan.ready_count(),
                beside.current if beside is not None else None,
                self.ledger.sent,
                self.ledger.done,
                None if apart is None else max(counts.active + apart, 0),
            )
        )

    def _finished(self) -> bool:
        if self.ledger.sent < self.trace.total:
            return False
        settled = self.ledger.left == 0 and self.plan.capacity == 1
        return settled or self.elapsed > self.trace.duration + DRAIN_SECONDS
