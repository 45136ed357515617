"""Two Spark jobs of `make demo` over what it just streamed.

The reconciliation reads the hub's capture files, the container and the dead letters, knows nothing of the demo, and
must come to the same result as its proof. The telemetry aggregation reads what the consumers told of themselves.
"""

from __future__ import annotations

import asyncio
import importlib
import shutil
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from rich.console import Console
from rich.markup import escape

from devstack.demo.spark.child import LOOK_EVERY, JobCall, JobResult, as_after_the_demo, run_jobs
from devstack.demo.streaming.run import TARGET, StreamingRun
from devstack.event_hubs.storage.capture import CapturedEvent, captured_event, write_capture
from devstack.event_hubs.storage.hubs import Hub
from devstack.processes.child import ChildProcess, ProcessError
from devstack.setup import environment
from spark_jobs.java import ensure_java
from tidemark.analysis.errors import JobError

Result = TypeVar("Result")

NEEDED = ("pyspark", "pandas", "pyarrow", "numpy", "fastavro", "matplotlib")  # the extra `spark`
WITHIN = 900.0  # seconds for both; the limit is for a machine that does much else
WINDOW = 10  # seconds of a capture file

TITLES = {
    "reconciliation": "Reconciliation of hub, container and dead letters",
    "telemetry-aggregation": "Aggregation of the consumers' telemetry",
}


MADE = ("capture", *TITLES)
"""Folders that the jobs read and write."""


class JobsDone(Struct, frozen=True):
    """What the jobs found. `left_out` says why there are none."""

    results: tuple[JobResult, ...] = ()
    left_out: str = ""

    @property
    def passed(self) -> bool:
        return all(result.status == 0 for result in self.results)


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, Result]) -> AsyncIterator[asyncio.Task[Result]]:
    """Yields the work as a task. At the end it is over, done or not: what it raises, who awaits it hears."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def prepare(console: Console, *, wanted: bool) -> str:
    """While the demo runs, what the jobs need is installed beside it: three quarters of all the demo's packages.

    Returns why there is no Spark, or "".
    """
    if not wanted:
        return "not wanted"
    try:
        if not all(_is_installed(name) for name in NEEDED):
            await _install(console)
        await asyncio.to_thread(ensure_java)
    except (JobError, ProcessError) as error:
        return str(error)
    except Exception as error:  # a full disk, say: told like the others, and no failure of the demo
        return f"{type(error).__name__}: {error}"
    return ""


def _is_installed(name: str) -> bool:
    """A folder of that name is not enough: an installation that was broken off leaves one."""
    try:
        return metadata.distribution(name).read_text("INSTALLER") is not None
    except metadata.PackageNotFoundError:
        return False


async def _install(console: Console) -> None:
    began = time.monotonic()
    console.print("Spark (750 MB) is installed beside the demo, which ends with two of its jobs")
    # What is measured and shown meanwhile is to come first.
    environment.forget_broken_off()
    child = ChildProcess("the installation of Spark", ["nice", *environment.spark_command()])
    child.start()
    try:
        said = await _ended(child)
    finally:
        status = await child.stop_async()
    importlib.invalidate_caches()
    if status != 0:
        raise ProcessError(f"{child.name} failed with exit status {status}:\n{said}")
    console.print(f"Spark is installed: {time.monotonic() - began:.0f} s")


async def _ended(child: ChildProcess) -> str:
    """The last words of a process that has an end."""
    while True:
        if not child.running:
            return child.output_tail()
        await asyncio.sleep(LOOK_EVERY)


async def run_over(
    run: StreamingRun, prepared: asyncio.Task[str], work: Path, folder: Path, console: Console
) -> JobsDone:
    """Runs both jobs; their pages and pictures go to `folder`, what else they need and write to `work`.

    Raises ProcessError when the process of the jobs ends by itself. A machine that has no Spark or Java and cannot get
    them goes without these jobs; that is told, and no failure of the demo.
    """
    missing = await prepared
    if missing:
        return JobsDone(left_out=missing)
    capture = work / "capture"
    await asyncio.to_thread(write_capture, capture, run.hub.name, captured(run.hub), every_seconds=WINDOW)
    calls = [
        _call("reconciliation", work, "--capture", str(capture)),
        _call("telemetry-aggregation", work, *_told(run)),
    ]
    settings = {
        **run.settings,
        "COLUMNS": "1000",
    }  # as wide as any line: what wraps cannot be told from two lines
    results = await run_jobs(
        calls, settings, within=WITHIN, begin=lambda call: console.print(f"Spark begins: {TITLES[call.job]}")
    )
    for call in calls:
        collect(work / call.job, folder)
    return JobsDone(tuple(results))


def _told(run: StreamingRun) -> list[str]:
    """What the consumers and the autoscaler told: a folder of records, and the log's table."""
    folder = run.settings["CONSUMER_TELEMETRY_FOLDER"]
    return ["--telemetry", folder, "--decisions", "table://AzureWebJobsStorage", "--ru-target", TARGET]


def _call(job: str, work: Path, *arguments: str) -> JobCall:
    return JobCall(job, (*arguments, "--output", str(work / job)))


def captured(hub: Hub) -> Iterator[CapturedEvent]:
    """Everything that the hub holds."""
    for partition in hub.partition_ids:
        for stored in hub.partition(partition).log.stored(0):
            yield captured_event(partition, stored)


def collect(output: Path, folder: Path) -> list[Path]:
    """Copies a job's page and pictures, not its tables, into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = sorted((*output.glob("*.html"), *output.glob("*.png")))
    return [Path(shutil.copy(file, folder)) for file in paths]


def show(done: JobsDone, folder: Path, console: Console) -> None:
    """Prints what the jobs found."""
    if done.left_out:
        console.print(f"[yellow]without the Spark jobs:[/] {escape(done.left_out)}", soft_wrap=True)
        return
    for result in done.results:
        mark = "[green]passed:[/]" if result.status == 0 else "[red]failed:[/]"
        title = TITLES.get(result.job, result.job)
        console.print(f"{mark} {title}, {result.seconds:.0f} s")
        for line in result.lines:
            if not line.endswith(".html"):  # where it was written to; a copy is named below
                console.print(f"  {escape(as_after_the_demo(line))}", soft_wrap=True)
    pages = ", ".join(str(page) for page in sorted(folder.glob("*.html")))
    console.print(f"[bold]reports[/] {escape(pages)}", soft_wrap=True)
