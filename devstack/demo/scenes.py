"""`make demo`: a plan that follows a day of real load, then real records that stream into a database, both autoscaled
on this machine, with everything embedded. At the end two Spark jobs look at what was streamed.

The real Azure SDKs talk to the local servers over sockets; functions, consumers and Spark run in processes of their
own, as in production. Ends by itself, leaves no process behind, and fails (exit status 1) when a message or a record
was lost or nothing was scaled.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from enum import StrEnum
from pathlib import Path

from azure.data.tables.aio import TableServiceClient
from msgspec import Struct
from rich.console import Console

from devstack.demo import large_messages
from devstack.demo.common.view import DemoView
from devstack.demo.orders import report
from devstack.demo.orders.counters import Counters
from devstack.demo.orders.run import SPEED, DemoRun, first_look
from devstack.demo.orders.trace import WORLD_CUP, read_trace
from devstack.demo.orders.traffic import Ledger, send_trace
from devstack.demo.orders.view import OrdersPart
from devstack.demo.spark import jobs as demo_jobs
from devstack.demo.streaming import report as streaming_report
from devstack.demo.streaming.proof import Proof, prove
from devstack.demo.streaming.report import StreamOutcome
from devstack.demo.streaming.run import StreamingRun
from devstack.demo.streaming.view import StreamingPart
from devstack.function_host.clock import TRUE, HostClock
from devstack.stack.supervisor import (
    ANY_PORTS,
    ROOT,
    TOPIC,
    FunctionsProcess,
    Stack,
    forget_settings,
    guard,
)
from scaling.storage.decision_log import TableDecisionLog
from scaling.storage.states import TableStateStore

MEAN_RATE = 55.0  # messages per second; the trace's peak is 3.8 times its mean
START_DELAY = 0.5  # seconds until a new instance works, half a minute to the functions
DAY = 86_400.0
DATA = "data"
"""Folder below the reports with all that the Spark jobs read and wrote, so that the next command finds it."""

SETTINGS = {
    "FUNCTIONS_WORKER_RUNTIME": "python",
    "AzureFunctionsJobHost__extensions__queues__maxPollingInterval": "00:00:00.200",
}

ORDERS_SETTINGS = {
    "TIDEMARK_CONFIG": "devstack/data/demo-orders.toml",
    "COLLECT_SCHEDULE": "0 * * * * *",  # every minute, and of these one passes in a second
    "VERIFY_SCHEDULE": "30 */5 * * * *",
}
FLIGHTS_SETTINGS = {
    "TIDEMARK_CONFIG": "devstack/data/demo-flights.toml",
    "COLLECT_SCHEDULE": "*/1 * * * * *",
    "VERIFY_SCHEDULE": "*/5 * * * * *",
}

ORDERS_WORDS = (
    "[bold]Scene 1.[/] A recorded day of load passes in {seconds:.0f} seconds. The functions' clock runs {speed:.0f} times "
    "as fast as yours: they look every minute, which is every second here, and a new instance takes half a minute to start. "
    "The load changes {faster:.0f} times as fast as when it was recorded, so the fixed thresholds rest for five minutes "
    "after a change, not for the ten they were published with; all else is set as in production. service_level decides. "
    "The fixed thresholds, the rule this product began with, are simulated beside it."
)

FLIGHTS_WORDS = (
    "[bold]Scene 2.[/] {records:,} records, real flights but for a few that are no JSON, stream through an event hub into "
    "Cosmos DB. Its 400 RU/s are too few, and halfway one of two consumers is killed."
)


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


async def run(console: Console, plan: Plan, folder: Path) -> int:
    """Runs the demo; returns the exit status. The reports go to `folder`, what they were made from into its folder `data`.

    Raises ProcessError, or a group that holds it, when a server, the functions or a consumer did not start or ended.
    """
    forget_settings()
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()
    assert main is not None  # we are a coroutine that runs
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, main.cancel)
    try:
        passed = await _run(console, plan, _empty_data_folder(folder), folder)
    except asyncio.CancelledError:
        console.print("[yellow]stopped; no process is left behind[/]")
        return 130
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    return 0 if passed else 1


def _empty_data_folder(folder: Path) -> Path:
    """Without what an earlier run left; named as pages and commands name it, which is from the root of the clone."""
    data = folder / DATA
    for made in ("telemetry", *demo_jobs.MADE):  # by name: the folder may be a person's own
        shutil.rmtree(data / made, ignore_errors=True)
    return data if Path.cwd() == ROOT else data.absolute()


async def _run(console: Console, plan: Plan, work: Path, folder: Path) -> bool:
    """Both scenes, each with its report; whether all of it is as it should be."""
    passed = True
    with console.status(
        "starting Azurite, Service Bus, Event Hubs, Cosmos DB and Resource Manager"
    ) as status:
        async with (
            Stack(ANY_PORTS) as stack,
            demo_jobs.beside(demo_jobs.prepare(console, wanted=plan.parts is not Parts.ORDERS)) as spark,
        ):
            status.stop()
            if plan.parts is not Parts.FLIGHTS:
                demo = await _orders(stack, plan.seconds, console)
                passed = await _report_orders(demo, folder, console)
                storage = stack.azurite.connection_string
                passed = await large_messages.show(stack.service_bus, storage, console) and passed
            if plan.parts is not Parts.ORDERS:
                run, outcome = await _flights(stack, plan.records, work, console)
                passed = await _report_flights(run, outcome, folder, console) and passed
                with console.status("two Spark jobs look at what was streamed"):
                    jobs = await demo_jobs.run_over(run, spark, work, folder, console)
                demo_jobs.show(jobs, folder, console)
                passed = jobs.passed and passed
    return passed


async def _orders(stack: Stack, seconds: float, console: Console) -> DemoRun:
    """The first scene: a recorded day passes in `seconds`, each of them a minute to the functions."""
    plan_id = stack.add_workload(capacity=1, start_delay=START_DELAY)
    trace, ledger = read_trace(WORLD_CUP, duration=seconds, mean_rate=MEAN_RATE), Ledger()
    async with Counters(ledger.totals) as counters:
        settings = {
            **SETTINGS,
            **ORDERS_SETTINGS,
            "ORDERS_PLAN_ID": plan_id,
            "ORDERS_COUNTERS_URL": counters.url,
        }
        clock = HostClock(SPEED, time.time())
        async with _functions(stack, settings, console, clock) as functions:
            words = ORDERS_WORDS.format(seconds=seconds, speed=SPEED, faster=DAY / (seconds * SPEED))
            console.print(words)
            # Before the load, or the first report would find a queue of unknown age.
            await first_look(stack, functions)
            demo = DemoRun(stack, functions, stack.resource_manager.plan(plan_id), trace, ledger)
            await _drive_orders(demo, console)
    await _forget(stack)
    return demo


async def _forget(stack: Stack) -> None:
    """Deletes what the first scene's functions wrote down: its times are of a clock that ran ahead of the second's."""
    async with TableServiceClient.from_connection_string(stack.azurite.connection_string) as service:
        for table in (TableDecisionLog.TABLE, TableStateStore.TABLE):
            await service.delete_table(table)


async def _flights(
    stack: Stack, records: int, work: Path, console: Console
) -> tuple[StreamingRun, StreamOutcome]:
    """The second scene: records stream into a database."""
    async with _functions(stack, {**SETTINGS, **FLIGHTS_SETTINGS}, console) as functions:
        console.print(FLIGHTS_WORDS.format(records=records))
        run = StreamingRun(stack, functions, records, (work / "telemetry").absolute())
        proof = await _drive_streaming(run, console)
    return run, streaming_report.outcome(run, proof)


@asynccontextmanager
async def _functions(
    stack: Stack, settings: Mapping[str, str], console: Console, clock: HostClock = TRUE
) -> AsyncIterator[FunctionsProcess]:
    """The functions, with one scene's settings."""
    with console.status("starting the functions") as status:
        async with FunctionsProcess({**stack.settings(), **settings}, clock=clock) as functions:
            status.stop()
            console.print(f"dashboard: {functions.url}/dashboard")
            yield functions


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
    async with aclosing(run):
        with DemoView(console, StreamingPart(run)) as view:
            async with asyncio.TaskGroup() as group:
                group.create_task(guard(run.check, run.stop))
                group.create_task(run.send())
                group.create_task(run.direct())
                group.create_task(run.watch(view.update))
        return await prove(run.hub, run.container, run.blobs)


async def _report_orders(demo: DemoRun, folder: Path, console: Console) -> bool:
    """Draws and prints what happened; whether it is as it should be."""
    outcome = report.outcome(demo)
    with console.status("drawing the report"):
        files = await asyncio.to_thread(report.write, demo, outcome, folder)
    report.show(outcome, files, console)
    return not outcome.failures


async def _report_flights(run: StreamingRun, outcome: StreamOutcome, folder: Path, console: Console) -> bool:
    """As above."""
    with console.status("drawing the report"):
        files = await asyncio.to_thread(streaming_report.write, run, outcome, folder)
    streaming_report.show(outcome, files, console)
    return not outcome.failures
