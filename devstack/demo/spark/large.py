"""`make demo-spark`: the five Spark jobs on larger, made-up data, with a local Cosmos DB and Azurite.

Three jobs look at telemetry, App Insights events and recorded load. Then the story of lost events: a backfill fills an
empty container from capture files up to an outage, the reconciliation fails because of the rest, a second backfill
writes exactly what it found lost, and the reconciliation passes. Ends by itself; status 1 if a step ends otherwise.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from devstack.cosmos.server import DEFAULT_KEY
from devstack.demo.spark import large_data as data
from devstack.demo.spark.child import PROGRAM, JobCall, read_results
from devstack.processes.azurite import Azurite
from devstack.processes.child import ChildProcess
from devstack.servers.certificates import ensure_certificate
from devstack.stack.supervisor import ROOT

READY_WITHIN = 60.0
PROVISIONED = 40_000  # RU/s: four physical partitions
FILL_AT, REPAIR_AT = 36_000, 20_000  # RU/s of the two backfills
SETTINGS = {
    "EventHubConnection": "Endpoint=sb://demo.servicebus.windows.net/;SharedAccessKeyName=none;SharedAccessKey=none",
    "EVENTHUB_NAME": data.HUB,
    "COSMOS_DATABASE": "flights",
    "COSMOS_CONTAINER": "flights",
    "CONSUMER_META": "true",  # a document tells which event it is of
}


class Step(Struct, frozen=True):
    """A job to run. `status` is the one that the story has it end with; `output` its folder."""

    title: str
    job: str
    arguments: tuple[str, ...]
    output: str
    status: int = 0


class Ran(Struct, frozen=True):
    """A step that was run."""

    step: Step
    status: int | None
    seconds: float

    @property
    def as_told(self) -> bool:
        return self.status == self.step.status


def run(console: Console, folder: Path, scale: float) -> int:
    """Makes the data, runs all jobs, prints what happened; returns the exit status.

    Whatever an earlier run left in `folder` is deleted. Raises ProcessError when a server does not start.
    """
    shutil.rmtree(folder, ignore_errors=True)
    made = folder / "data"
    _make(console, made, scale)
    steps = [*look_steps(made), *loss_steps(made, folder)]
    with _servers() as connections:
        done = _run(steps, folder, {**SETTINGS, **connections})
    _show(console, done, folder)
    return 0 if all(ran.as_told for ran in done) else 1


def _make(console: Console, made: Path, scale: float) -> None:
    makers = {
        "capture": data.capture,
        "metrics": data.metrics,
        "telemetry": data.telemetry,
        "app-insights": data.app_insights,
        "arrivals": data.arrivals,
    }
    for name, make in makers.items():
        with console.status(f"making {name}"):
            began = time.monotonic()
            amount = make(made / name, scale)
        text = (
            f"{amount.events:,} in {amount.files} files" if isinstance(amount, data.Flown) else f"{amount:,}"
        )
        console.print(f"{name}: {text}, {time.monotonic() - began:.0f} s", highlight=False)


def look_steps(made: Path) -> list[Step]:
    """The jobs that look at what was recorded."""
    return [
        Step(
            f"{data.TARGETS} targets' samples by the minute, and what consumers reported every {data.EVERY} seconds",
            "telemetry-aggregation",
            ("--metrics", str(made / "metrics"), "--telemetry", str(made / "telemetry")),
            "telemetry-aggregation",
        ),
        Step(
            f"a month of events: sampled from day {data.SAMPLED_FROM + 1} on, a third lost from day"
            f" {data.LOST_FROM + 1} on",
            "sampling-report",
            ("--input", str(made / "app-insights"), "--measurement", "EventXReceived_Count"),
            "sampling-report",
        ),
        Step(
            "a recorded day of load of many plans, replayed with 36 policies around the present one",
            "backtest",
            (str(made / "arrivals" / "grid.toml"), "--arrivals", str(made / "arrivals" / "counts")),
            "backtest",
        ),
    ]


def loss_steps(made: Path, folder: Path) -> list[Step]:
    """The jobs of the lost events, in the order of the story."""
    files = ("--capture", str(made / "capture"), "--quarantine", str(folder / "quarantine"))
    reconcile = (*files, "--no-checkpoints")
    lost = ("--only-missing", str(folder / "reconciliation" / "unsettled"))
    upsert = (*files, "--mode", "upsert")
    return [
        Step(
            "an empty container is filled from the capture files, up to an outage",
            "backfill",
            (*upsert, "--ru-per-second", str(FILL_AT), "--to", data.OUTAGE.isoformat()),
            "backfill",
        ),
        Step(
            "what is in the hub and nowhere else? The check fails",
            "reconciliation",
            reconcile,
            "reconciliation",
            3,
        ),
        Step(
            "exactly what was lost is written",
            "backfill",
            (*upsert, "--ru-per-second", str(REPAIR_AT), *lost),
            "backfill-lost",
        ),
        Step(
            "nothing is lost any more: the check passes", "reconciliation", reconcile, "reconciliation-after"
        ),
    ]


@contextmanager
def _servers() -> Iterator[dict[str, str]]:
    """The connections of a Cosmos DB and an Azurite, until the end."""
    # local.settings.json names it, and who reads that file wants it there; these servers speak plain HTTP.
    ensure_certificate(ROOT / ".devstack" / "certificates")
    with Azurite().running_blocking() as azurite:
        cosmos = ChildProcess(
            "Cosmos DB",
            [
                *(sys.executable, "-m", "devstack.cosmos", "--port", "0", "--database", "flights"),
                *("--container", f"flights:/id:{PROVISIONED}"),
            ],
            cwd=ROOT,
        )
        cosmos.start()
        try:
            cosmos.wait_until_ready(lambda: "ready http" in cosmos.output_tail(), timeout_s=READY_WITHIN)
            endpoint = cosmos.output_tail().rpartition("ready ")[2].split()[0]
            yield {
                "AzureWebJobsStorage": azurite.connection_string,
                "CosmosConnection": f"AccountEndpoint={endpoint};AccountKey={DEFAULT_KEY};",
            }
        finally:
            cosmos.stop()


def _run(steps: list[Step], folder: Path, settings: Mapping[str, str]) -> list[Ran]:
    """All in one process, whose Java starts once; what they tell and show goes where ours goes. A step that was not come to has
    no status.
    """
    calls = [
        JobCall(step.job, (*step.arguments, "--output", str(folder / step.output)), step.title)
        for step in steps
    ]
    path, plan = folder / "results.jsonl", msgspec.json.encode(calls).decode()
    command = [sys.executable, "-m", "devstack.demo.spark.child", plan, str(path.absolute()), "aloud"]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **settings}, check=False)
    results = read_results(path)
    return [
        Ran(step, None, 0.0) if result is None else Ran(step, result.status, result.seconds)
        for step, result in zip_longest(steps, results)
    ]


def _show(console: Console, done: list[Ran], folder: Path) -> None:
    console.rule("[bold]what happened[/]")
    table = Table("job", "", "status", "seconds", expand=False)
    for ran in done:
        mark = "[green]as expected[/]" if ran.as_told else f"[red]{ran.step.status} was expected[/]"
        status = f"{'not run' if ran.status is None else ran.status} {mark}"
        table.add_row(ran.step.job, escape(ran.step.title), status, f"{ran.seconds:.0f}")
    console.print(table)
    for ran in done:
        for page in sorted((folder / ran.step.output).glob("*.html")):
            console.print(
                f"page: {page}", markup=False, highlight=False, soft_wrap=True
            )  # whole, to be opened
    runs = escape(f"{PROGRAM} runs {folder / 'reconciliation-after'}")
    console.print(
        "The demo's database and storage have ended, so reconciliations and backfills need your own. This works now:"
        f"\n  {runs}",
        soft_wrap=True,
    )
    if all(ran.as_told for ran in done):
        console.print("[green]passed:[/] what was lost was found, written, and is lost no more")
    else:
        console.print("[red]failed:[/] the story did not come true")
