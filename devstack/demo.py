"""`make demo`: a day of real load in under two minutes, autoscaled on this machine, with everything embedded.

The real Azure SDKs talk to the local servers over sockets; the functions run in a process of their own, as
under `func start`. Ends by itself, leaves no process behind, and fails (exit status 1) when a message was
lost or nothing was scaled.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from pathlib import Path
from typing import Any

import aiohttp
from msgspec import Struct
from rich.console import Console

from devstack import report
from devstack.demo_view import DemoView
from devstack.resource_manager.plans import Plan
from devstack.supervisor import (
    ANY_PORTS,
    RESOURCE_GROUP,
    ROOT,
    SUBSCRIPTION,
    FunctionsProcess,
    Stack,
)
from devstack.trace import WORLD_CUP, Trace, read_trace
from devstack.traffic import Fleet, Ledger, send_trace

TOPIC, QUEUE_SUBSCRIPTION, PLAN = "orders", "fulfilment", "plan-orders"

LOAD_SECONDS = 110.0
MEAN_RATE = 55.0  # messages per second; the trace's peak is 3.8 times its mean
DRAIN_SECONDS = 40.0  # at the most, after the load has ended
START_DELAY = 1.5  # seconds until a new instance works; the trace's minutes pass in 0.08 s
CONCURRENCY = 16  # messages a worker holds: maxConcurrentCalls of the Functions' Service Bus trigger
PROCESSING = 0.6  # seconds per message; a saturated worker serves 16 / 0.6 = 27 messages per second
SAMPLE_EVERY = 0.5

SETTINGS = {
    "TIDEMARK_CONFIG": "devstack/data/demo.toml",
    "COLLECT_SCHEDULE": "*/1 * * * * *",
    "VERIFY_SCHEDULE": "*/5 * * * * *",
    "FUNCTIONS_WORKER_RUNTIME": "python",
    "AzureFunctionsJobHost__extensions__queues__maxPollingInterval": "00:00:00.200",
}


class Sample(Struct, frozen=True):
    """The world at one moment of the demo, `at` seconds after its start."""

    at: float
    rate: float
    backlog: int
    capacity: int
    ready: int
    sent: int
    done: int


class Demo:
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

    async def watch(self, view: DemoView) -> None:
        """Samples the world, reads the functions' own API, and ends the run when its work is done."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
            while not self.stop.is_set():
                await self._look(session)
                view.update(self)
                if self._finished():
                    self.stop.set()
                if not self.functions.running:
                    raise RuntimeError(
                        f"the functions ended by themselves:\n{self.functions.output_tail(40)}"
                    )
                await asyncio.sleep(SAMPLE_EVERY)
            self.log = await self._whole_log(session)

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
            async with session.get(f"{self.functions.url}/scaling/status") as answer:
                self.status = await answer.json()
            async with session.get(f"{self.functions.url}/scaling/log", params={"limit": "40"}) as answer:
                self.log = (await answer.json())["entries"]

    async def _whole_log(self, session: aiohttp.ClientSession) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        parameters = {"limit": "1000", "since": str(self.began_at)}
        while True:
            async with session.get(f"{self.functions.url}/scaling/log", params=parameters) as answer:
                page = await answer.json()
            entries += page["entries"]
            if page["continuation"] is None:
                return entries[::-1]
            parameters["continuation"] = page["continuation"]

    def _finished(self) -> bool:
        if self.ledger.sent < self.trace.total:
            return False
        settled = self.ledger.left == 0 and self.plan.capacity == 1
        return settled or self.elapsed > self.trace.duration + DRAIN_SECONDS


async def run(console: Console, *, folder: Path = ROOT / "demo-report", seconds: float = LOAD_SECONDS) -> int:
    """Runs the demo with `seconds` of load; returns the exit status."""
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()
    assert main is not None  # noqa: S101 - we are a coroutine that runs
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, main.cancel)
    try:
        demo = await _run(console, seconds)
    except asyncio.CancelledError:
        console.print("[yellow]stopped; no process is left behind[/]")
        return 130
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    outcome = report.outcome(demo)
    with console.status("drawing the report"):
        files = await asyncio.to_thread(report.write, demo, outcome, folder)
    report.show(outcome, files, console)
    return 0 if outcome.passed else 1


async def _run(console: Console, seconds: float) -> Demo:
    trace = read_trace(WORLD_CUP, duration=seconds, mean_rate=MEAN_RATE)
    with console.status("starting Azurite, Service Bus and Resource Manager") as status:
        async with Stack(ANY_PORTS) as stack:
            stack.service_bus.create_topic(TOPIC)
            stack.service_bus.create_subscription(TOPIC, QUEUE_SUBSCRIPTION)
            plan_id = stack.resource_manager.add_plan(
                SUBSCRIPTION, RESOURCE_GROUP, PLAN, sku="P1v3", capacity=1, start_delay=START_DELAY
            )
            settings = {**stack.settings(), **SETTINGS, "ORDERS_PLAN_ID": plan_id}
            status.update("starting the functions")
            async with FunctionsProcess(settings) as functions:
                status.stop()
                demo = Demo(stack, functions, stack.resource_manager.plan(plan_id), trace)
                await _drive(demo, console)
                return demo


async def _drive(demo: Demo, console: Console) -> None:
    """Load, fleet and view run side by side; the first to fail ends the others."""
    connection = demo.stack.service_bus.connection_string
    with DemoView(console, demo) as view:
        async with asyncio.TaskGroup() as group:
            group.create_task(send_trace(connection, TOPIC, demo.trace, demo.ledger, stop=demo.stop))
            group.create_task(demo.fleet().follow(stop=demo.stop))
            group.create_task(demo.watch(view))
