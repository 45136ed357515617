"""`make demo`: a day of real load in under two minutes, autoscaled on this machine, with everything embedded.

The real Azure SDKs talk to the local servers over sockets; the functions run in a process of their own, as
under `func start`. Ends by itself, leaves no process behind, and fails (exit status 1) when a message was
lost or nothing was scaled.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from rich.console import Console

from devstack import report
from devstack.demo_run import DemoRun
from devstack.demo_view import DemoView
from devstack.supervisor import (
    ANY_PORTS,
    ROOT,
    TOPIC,
    FunctionsProcess,
    Stack,
)
from devstack.trace import WORLD_CUP, read_trace
from devstack.traffic import send_trace

LOAD_SECONDS = 110.0
MEAN_RATE = 55.0  # messages per second; the trace's peak is 3.8 times its mean
START_DELAY = 1.5  # seconds until a new instance works; the trace's minutes pass in 0.08 s

SETTINGS = {
    "TIDEMARK_CONFIG": "devstack/data/demo.toml",
    "COLLECT_SCHEDULE": "*/1 * * * * *",
    "VERIFY_SCHEDULE": "*/5 * * * * *",
    "FUNCTIONS_WORKER_RUNTIME": "python",
    "AzureFunctionsJobHost__extensions__queues__maxPollingInterval": "00:00:00.200",
}


async def run(console: Console, *, folder: Path = ROOT / "demo-report", seconds: float = LOAD_SECONDS) -> int:
    """Runs the demo with `seconds` of load; returns the exit status.

    Raises ProcessError, or a group that holds it, when a server or the functions did not start or ended.
    """
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()
    assert main is not None  # noqa: S101 - we are a coroutine that runs
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, main.cancel)
    try:
        demo = await _run(console, seconds)
        outcome = report.outcome(demo)
        with console.status("drawing the report"):
            files = await asyncio.to_thread(report.write, demo, outcome, folder)
    except asyncio.CancelledError:
        console.print("[yellow]stopped; no process is left behind[/]")
        return 130
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    report.show(outcome, files, console)
    return 0 if outcome.passed else 1


async def _run(console: Console, seconds: float) -> DemoRun:
    trace = read_trace(WORLD_CUP, duration=seconds, mean_rate=MEAN_RATE)
    with console.status("starting Azurite, Service Bus and Resource Manager") as status:
        async with Stack(ANY_PORTS) as stack:
            plan_id = stack.add_workload(capacity=1, start_delay=START_DELAY)
            settings = {**stack.settings(), **SETTINGS, "ORDERS_PLAN_ID": plan_id}
            status.update("starting the functions")
            async with FunctionsProcess(settings) as functions:
                status.stop()
                demo = DemoRun(stack, functions, stack.resource_manager.plan(plan_id), trace)
                await _drive(demo, console)
                return demo


async def _drive(demo: DemoRun, console: Console) -> None:
    """Load, fleet and view run side by side; the first to fail ends the others."""
    connection = demo.stack.service_bus.connection_string
    with DemoView(console, demo) as view:
        async with asyncio.TaskGroup() as group:
            group.create_task(send_trace(connection, TOPIC, demo.trace, demo.ledger, stop=demo.stop))
            group.create_task(demo.fleet().follow(stop=demo.stop))
            group.create_task(demo.watch(lambda: view.update(demo)))
