"""The end of `make demo`: two Spark jobs over what the demo just did.

The reconciliation reads the hub's capture files, the container and the dead letters, knows nothing of the demo, and
must come to the same result as its proof. The telemetry aggregation reads what the consumers told of themselves.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from rich.console import Console
from rich.markup import escape

from devstack.event_hubs.capture import CapturedEvent, captured_event, write_capture
from devstack.event_hubs.hubs import Hub
from devstack.spark_child import JobCall, JobResult, run_jobs
from devstack.streaming_run import TARGET, StreamingRun

WITHIN = 900.0  # seconds for both; the limit is for a machine that does much else
WINDOW = 10  # seconds of a capture file
# The work is over in seconds: what Java's second compiler costs (half of all its CPU time) never comes back.
JAVA = "-XX:TieredStopAtLevel=1"

TITLES = {
    "reconciliation": "Reconciliation of hub, container and dead letters",
    "telemetry-aggregation": "Aggregation of the consumers' telemetry",
}


class JobsDone(Struct, frozen=True):
    """What the jobs found. `left_out` says why there are none."""

    results: tuple[JobResult, ...] = ()
    left_out: str = ""

    @property
    def passed(self) -> bool:
        return all(result.status == 0 for result in self.results)


async def run_over(run: StreamingRun, work: Path, folder: Path, console: Console) -> JobsDone:
    """Runs both jobs; their pages and pictures go to `folder`, what else they need and write to `work`.

    Raises ProcessError when the process of the jobs ends by itself. A machine that has no Java and cannot get one goes
    without these jobs; that is told, and no failure of the demo.
    """
    from spark_jobs.errors import JobError  # noqa: PLC0415 - only when the demo comes to this
    from spark_jobs.java import ensure_java  # noqa: PLC0415

    with console.status("looking for Java") as status:
        try:
            await asyncio.to_thread(ensure_java)
        except JobError as error:
            return JobsDone(left_out=str(error))
        status.update("writing capture files")
        capture = work / "capture"
        await asyncio.to_thread(write_capture, capture, run.hub.name, captured(run.hub), every_seconds=WINDOW)
        calls = [
            _call("reconciliation", work, "--capture", str(capture)),
            _call("telemetry-aggregation", work, *_told(run)),
        ]
        java = f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} {JAVA}".strip()
        settings = {**run.settings, "JAVA_TOOL_OPTIONS": java}
        results = await run_jobs(
            calls, settings, within=WITHIN, begin=lambda call: status.update(f"Spark: {call.job}")
        )
    for call in calls:
        collect(work / call.job, folder)
    return JobsDone(tuple(results))


def _told(run: StreamingRun) -> list[str]:
    """What the consumers and the autoscaler told: a folder of records, and the log's table."""
    folder = run.settings["CONSUMER_TELEMETRY_FOLDER"]
    return ["--telemetry", folder, "--decisions", "table://AzureWebJobsStorage", "--ru-target", TARGET]


def _call(job: str, work: Path, *arguments: str) -> JobCall:
    return JobCall(job, (*arguments, "--output", str(work / job), "--cores", "2", "--memory", "1g"))


def captured(hub: Hub) -> Iterator[CapturedEvent]:
    """Everything that the hub holds."""
    for partition in hub.partition_ids:
        for stored in hub.partition(partition).log.stored(0):
            yield captured_event(partition, stored)


def collect(output: Path, folder: Path) -> list[Path]:
    """Copies a job's page and pictures, not its tables, into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    found = sorted((*output.glob("*.html"), *output.glob("*.png")))
    return [Path(shutil.copy(file, folder)) for file in found]


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
            if not line.startswith("report: "):
                console.print(f"  {escape(line)}", soft_wrap=True)
    pages = ", ".join(str(page) for page in sorted(folder.glob("*.html")))
    console.print(f"[bold]reports[/] {escape(pages)}", soft_wrap=True)
