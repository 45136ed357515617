"""`make demo`: real records that stream into a database, then a plan that follows a day of real load, both autoscaled
on this machine, with everything embedded. Beside the plan, two Spark jobs look at what was streamed.

The real Azure SDKs talk to the local servers over sockets; functions, consumers and Spark run in processes of their
own, as in production. Ends by itself, leaves no process behind, and fails (exit status 1) when a message or a record
was lost or nothing was scaled.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
from enum import StrEnum
from pathlib import Path

from msgspec import Struct
from rich.console import Console

from devstack.demo.common.view import DemoView
from devstack.demo.orders import report
from devstack.demo.orders.run import DemoRun
from devstack.demo.orders.trace import WORLD_CUP, read_trace
from devstack.demo.orders.traffic import send_trace
from devstack.demo.orders.view import OrdersPart
from devstack.demo.spark import jobs as demo_jobs
from devstack.demo.spark.jobs import JobsDone
from devstack.demo.streaming import report as streaming_report
from devstack.demo.streaming.proof import Proof, prove
from devstack.demo.streaming.report import StreamOutcome
from devstack.demo.streaming.run import StreamingRun
from devstack.demo.streaming.view import StreamingPart
from devstack.stack.supervisor import (
    ANY_PORTS,
    TOPIC,
    FunctionsProcess,
    Stack,
    guard,
)

MEAN_RATE = 55.0  # messages per second; the trace's peak is 3.8 times its mean
START_DELAY = 1.5  # seconds until a new instance works; the trace's minutes pass in 0.08 s

SETTINGS = {
    "TIDEMARK_CONFIG": "devstack/data/demo.toml",
    "COLLECT_SCHEDULE": "*/1 * * * * *",
    "VERIFY_SCHEDULE": "*/5 * * * * *",
    "FUNCTIONS_WORKER_RUNTIME": "python",
    "AzureFunctionsJobHost__extensions__queues__maxPollingInterval": "00:00:00.200",
}


class Parts(StrEnum):
    """What of the demo is run."""

    BOTH = "both"
    ORDERS = "orders"
    FLIGHTS = "flights"


class Plan(Struct, frozen=True):
    """How much of it: seconds of load, and records to stream."""

    seconds: float
    records: int
    parts: Parts


class Done(Struct):
    """The parts that were run."""

    orders: DemoRun | None = None
    streaming: tuple[StreamingRun, StreamOutcome] | None = None
    jobs: JobsDone | None = None


async def run(console: Console, plan: Plan, folder: Path) -> int:
    """Runs the demo; returns the exit status. The reports go to `folder`.

    Raises ProcessError, or a group that holds it, when a server, the functions or a consumer did not start or ended.
    """
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()
    assert main is not None  # noqa: S101 - we are a coroutine that runs
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, main.cancel)
    try:
        with tempfile.TemporaryDirectory(prefix="tidemark-demo-") as work:
            done = await _run(console, plan, Path(work), folder)
        passed = await _report(done, folder, console)
    except asyncio.CancelledError:
        console.print("[yellow]stopped; no process is left behind[/]")
        return 130
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    return 0 if passed else 1


async def _run(console: Console, plan: Plan, work: Path, folder: Path) -> Done:
    done = Done()
    with console.status(
        "starting Azurite, Service Bus, Event Hubs, Cosmos DB and Resource Manager"
    ) as status:
        async with (
            Stack(ANY_PORTS) as stack,
            demo_jobs.beside(demo_jobs.prepare(console, wanted=plan.parts is not Parts.ORDERS)) as spark,
        ):
            plan_id = stack.add_workload(capacity=1, start_delay=START_DELAY)
            settings = {**stack.settings(), **SETTINGS, "ORDERS_PLAN_ID": plan_id}
            status.update("starting the functions")
            async with FunctionsProcess(settings) as functions:
                status.stop()
                console.print(f"dashboard: {functions.url}/dashboard")
                if plan.parts is not Parts.ORDERS:
                    streaming = StreamingRun(stack, functions, plan.records, work / "telemetry")
                    proof = await _drive_streaming(streaming, console)
                    done.streaming = streaming, streaming_report.outcome(streaming, proof)
                async with demo_jobs.beside(_look_over(done, spark, work, folder, console)) as jobs:
                    if plan.parts is not Parts.FLIGHTS:
                        trace = read_trace(WORLD_CUP, duration=plan.seconds, mean_rate=MEAN_RATE)
                        done.orders = DemoRun(stack, functions, stack.resource_manager.plan(plan_id), trace)
                        await _drive_orders(done.orders, console)
                    with console.status("two Spark jobs look at what was streamed"):
                        done.jobs = await jobs
            return done


async def _look_over(
    done: Done, spark: asyncio.Task[str], work: Path, folder: Path, console: Console
) -> JobsDone | None:
    """Both Spark jobs, where something was streamed."""
    if done.streaming is None:
        return None
    return await demo_jobs.run_over(done.streaming[0], spark, work, folder, console)


async def _drive_orders(demo: DemoRun, console: Console) -> None:
    """Load, fleet and view run side by side; the first to fail ends the others."""
    connection = demo.stack.service_bus.connection_string
    with DemoView(console, OrdersPart(demo)) as view:
        async with asyncio.TaskGroup() as group:
            group.create_task(guard(demo.check, demo.stop))
            group.create_task(send_trace(connection, TOPIC, demo.trace, demo.ledger, stop=demo.stop))
            group.create_task(demo.fleet().follow(stop=demo.stop))
            group.create_task(demo.watch(view.update))


async def _drive_streaming(run: StreamingRun, console: Console) -> Proof:
    """Records, consumers and view run side by side; the first to fail ends the others."""
    try:
        with DemoView(console, StreamingPart(run)) as view:
            async with asyncio.TaskGroup() as group:
                group.create_task(guard(run.check, run.stop))
                group.create_task(run.send())
                group.create_task(run.direct())
                group.create_task(run.watch(view.update))
        return await prove(run.hub, run.container, run.blobs)
    finally:
        await run.aclose()


async def _report(done: Done, folder: Path, console: Console) -> bool:
    """Draws and prints what happened; whether all of it is as it should be."""
    passed = True
    if done.streaming is not None:
        run, story = done.streaming
        with console.status("drawing the report"):
            files = await asyncio.to_thread(streaming_report.write, run, story, folder)
        streaming_report.show(story, files, console)
        passed = not story.failures
    if done.orders is not None:
        outcome = report.outcome(done.orders)
        with console.status("drawing the report"):
            files = await asyncio.to_thread(report.write, done.orders, outcome, folder)
        report.show(outcome, files, console)
        passed = passed and not outcome.failures
    if done.jobs is not None:
        demo_jobs.show(done.jobs, folder, console)
        passed = passed and done.jobs.passed
    return passed
