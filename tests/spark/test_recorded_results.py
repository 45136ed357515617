"""Each job's help, exit status and tables, for fixed inputs, are those recorded in `recorded/`, a file for each job.

`RECORD=1 TORTURE=1 .venv/bin/python -m pytest tests/spark/test_recorded_results.py` writes the files anew: the difference that
version control then shows is what a user of the job would see.
"""

import asyncio
import csv
import json
import os
import random
import re
from contextlib import aclosing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from consumer.config import read_config
from consumer.model import DeadLetter, Event, Rejection
from consumer.running.assembly import Parts
from devstack.event_hubs.storage.capture import CapturedEvent, write_capture
from spark_jobs.cli import JOBS
from tests.spark.result_files import read, runs
from tests.support.analysis import CONFIG
from tests.support.consumer.backfill import server, settings
from tests.support.servers.threaded import running_in_thread
from tests.unit.analysis.cost.test_costs import CLASSIC, FOCUS, PLAN
from tests.unit.spark_jobs.sources.test_source_records import CHECKPOINT, INTERVAL
from tidemark.__main__ import command_line
from tidemark.analysis.cli import SUMMARIES
from tidemark.analysis.errors import CHECK_FAILED
from tidemark.analysis.options import ROOT_FOLDER

pytestmark = [pytest.mark.torture, pytest.mark.wire, pytest.mark.timeout(900)]

RECORDED = Path(__file__).with_name("recorded")
MONDAY = datetime(2026, 1, 5, tzinfo=UTC)
MANY_ROWS = 60
"""Of a longer table every so many rows are recorded, and how many there are."""
GRID = """
base = "plan"
[model]
service_rate = 20
slo = "2m"
price = 0.2
[vary]
rules.threshold.scale_out_above = [200, 500]
out.cooldown = ["2m", "10m"]
"""


def write_lines(path: Path, records: list) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.Encoder().encode_lines(records))


def log_entry(at, target, capacity, **metrics):
    entry = {
        "target": target,
        "at": at,
        "kind": "decision",
        "key": "d",
        "line": "",
        "reason": "within_target",
    }
    return {**entry, "current": capacity, "desired": capacity, "metrics": metrics}


def write_inputs(folder: Path) -> None:
    """What the jobs read but for capture files: configuration, arrivals, logs, telemetry, samples, exports."""
    rng = random.Random(26)
    (folder / "tidemark.toml").write_text(CONFIG)
    (folder / "grid.toml").write_text(GRID)
    with (folder / "arrivals.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(("t", "target", "arrivals", "instances", "backlog"))
        for n in range(500):
            busy = n // 90 % 2
            for target, times in (("plan", 1), ("other", 2)):
                known = not 100 <= n < 103
                arrived = times * (rng.randrange(2000, 2400) if busy else 900) if known else ""
                lines.writerow((MONDAY.timestamp() + 60 * n, target, arrived, 3, 400 * busy if known else ""))
    with (folder / "weeks.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(("t", "target", "arrivals"))
        for n in range(3 * 168):
            at = MONDAY + timedelta(hours=n)
            office = 6 if at.weekday() < 5 and 8 <= at.hour < 18 else 0.4
            for target in ("busy", "calm"):
                lines.writerow((at.isoformat(), target, 3600 * office * (2 if target == "busy" else 1)))
    log = [
        log_entry(MONDAY.timestamp() + 60 * n, "plan", 2 + n // 50, backlog=float(max(n % 60 - 30, 0) * 40))
        for n in range(200)
    ]
    write_lines(folder / "log" / "log.jsonl", [*log, log[-1]])
    first = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    write_lines(
        folder / "cost-log" / "log.jsonl",
        [log_entry(first + 10_800.0 * n, "orders", 2 + n // 9) for n in range(20)],
    )
    (folder / "costs").mkdir()
    (folder / "costs" / "focus.csv").write_text(FOCUS)
    (folder / "costs" / "actual.csv").write_text(CLASSIC.replace("01/0", "02/0"))
    write_lines(
        folder / "telemetry" / "records.jsonl",
        [
            {**msgspec.to_builtins(each), "at": MONDAY.timestamp() + 20.0 * n, "instance": f"a-{n % 2}"}
            for n in range(60)
            for each in (INTERVAL, CHECKPOINT)
        ],
    )
    at = [MONDAY + timedelta(seconds=7 * n) for n in range(900)]
    values = [float("nan") if n == 500 else rng.randrange(10_000) / 8 for n in range(900)]
    columns = {"target": ["plan"] * 900, "metric": [("backlog", "lag")[n % 2] for n in range(900)]}
    samples = pa.table({**columns, "at": pa.array(at, pa.timestamp("us", "UTC")), "value": values})
    (folder / "metrics").mkdir()
    pq.write_table(samples, folder / "metrics" / "0.parquet")
    pq.write_table(samples.slice(100, 20), folder / "metrics" / "copies.parquet")
    write_lines(folder / "export" / "events.jsonl", list(sampled_events(rng)))


def sampled_events(rng):
    """Of an Application Insights event for 22 days, of which one in three is kept from the fourteenth day on."""
    for day in range(22):
        sampled = day >= 14
        for n in range(60 if sampled else 180):
            at = MONDAY + timedelta(days=day, seconds=rng.randrange(86_400))
            yield {
                "timestamp": at.isoformat(),
                "name": "Received",
                "itemCount": 3 if sampled else 1,
                "customMeasurements": {"Count": n % 9 + 1},
                "operation_Id": f"{day}-{n}",
                "sdkVersion": "dotnet:2.3.0" if sampled else "dotnet:2.1.0",
            }


def write_events(folder: Path, environment: dict[str, str]) -> None:
    """Capture files of 40 events of two partitions, without one of them, and two dead letters, one beside a document."""
    bodies = {
        (partition, n): json.dumps({"id": f"f{partition}-{n % 15}", "origin": f"O{n % 5}", "n": n}).encode()
        for partition in ("0", "1")
        for n in range(20)
    }
    bodies["0", 5] = b"{broken"
    captured = [
        CapturedEvent(partition, n, str(n * 100), MONDAY + timedelta(minutes=3 * n), body)
        for (partition, n), body in sorted(bodies.items())
        if (partition, n) != ("1", 9)
    ]
    write_capture(folder / "capture", "flights", captured, every_seconds=900)
    write_capture(folder / "capture" / "copies", "flights", captured[:3])

    async def store_letters() -> None:
        letters = Parts(read_config(environment), environment).dead_letters()
        async with aclosing(letters):
            await letters.open()
            for partition, n in (("0", 5), ("1", 6)):
                at = (MONDAY + timedelta(minutes=3 * n)).timestamp()
                event = Event(partition, n, str(n * 100), at, bodies[partition, n])
                letter = DeadLetter("flights", "$Default", event, Rejection("json", "ends early"), 1, at)
                await letters.put([letter], deadline=asyncio.get_running_loop().time() + 60)

    asyncio.run(store_letters())


INPUTS = {
    "advise": "--arrivals {0}/arrivals.csv --config {0}/tidemark.toml --price 0.2 --service-rate 20 --allow unknown=0",
    "backtest": "{0}/grid.toml --arrivals {0}/arrivals.csv --log {0}/log --config {0}/tidemark.toml",
    "cost": "--costs {0}/costs --log {0}/cost-log --config {0}/tidemark.toml --resource orders=" + PLAN,
    "seasons": "--arrivals {0}/weeks.csv --service-rate 1 --concurrency 16 --maximum 20 --config {0}/tidemark.toml",
    "telemetry-aggregation": "--telemetry {0}/telemetry --decisions {0}/log --metrics {0}/metrics --price plan=0.2",
    "sampling-report": "--input {0}/export --measurement Count --allow sampled=10%",
    "backfill": "--capture {0}/capture --root {0} --records-per-second 10000 --to 2026-01-05T00:50 --allow dead-letters=0",
    "reconciliation": "--capture {0}/capture --root {0} --no-checkpoints",
    # Without Spark:
    "local advise": "{0}/arrivals.csv --target plan --config {0}/tidemark.toml --service-rate 20 --processes 1",
    "local backtest": "{0}/grid.toml --arrivals {0}/arrivals.csv --config {0}/tidemark.toml --processes 1",
    "local cost": "--costs {0}/costs --log {0}/cost-log --config {0}/tidemark.toml --resource orders=" + PLAN,
    "local seasons": "{0}/weeks.csv --target busy --service-rate 1 --concurrency 16 --maximum 20 --config {0}/tidemark.toml",
    "local telemetry-aggregation": "--metrics {0}/metrics",
}
"""By job, in the order in which they run: the reconciliation judges what the backfill wrote."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, azurite):
    made = tmp_path_factory.mktemp("inputs")
    write_inputs(made)
    with running_in_thread(server) as running, pytest.MonkeyPatch.context() as patch:
        environment = settings(running.call(lambda: running.server.connection_string), azurite)
        for name, value in {**environment, "PLAN_ID": PLAN, "CONSUMER_META": "true"}.items():
            patch.setenv(name, value)
        write_events(made, environment)
        yield made


def plain(value):
    """A cell as JSON has it, floats with the twelve digits that any order of adding them up gives."""
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, datetime | date | timedelta):
        return str(value)
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def tables_as_text(tables):
    for name, table in sorted(tables.items()):
        columns = ", ".join(f"{field.name} {field.type}" for field in table.schema)
        rows = sorted(json.dumps([plain(cell) for cell in row.values()]) for row in table.to_pylist())
        yield f"\n{name}: {len(rows)} rows of {columns}"
        yield from rows[:: len(rows) // MANY_ROWS + 1]


def without_now(table: pa.Table) -> pa.Table:
    """Without the columns that tell when the test wrote its documents and dead letters."""
    return table.drop_columns([name for name in ("modified_at", "failed_at") if name in table.column_names])


def tables_of(output: Path, *, of_spark: bool):
    if of_spark:
        return {name: without_now(read(output, name)) for name in runs(output)[-1].versions}
    return {file.stem: pq.read_table(file) for file in output.glob("*.parquet")}


@pytest.mark.parametrize("name", INPUTS)
def test_help_status_and_tables_are_those_recorded(spark, folder, name):
    job = name.removeprefix("local ")
    of_spark, output = job == name, folder / "out" / name.replace(" ", "-")
    command = ["spark", job] if of_spark else [job]

    arguments = [*INPUTS[name].format(folder).split(), "--output", str(output)]
    done = CliRunner().invoke(command_line(), [*command, *arguments])
    assert done.exit_code in {0, CHECK_FAILED}, done.output
    text = CliRunner().invoke(command_line(), [*command, "--help"]).output
    text = re.sub(r"[ ╭╮╰╯─│]{2,}| +$", "  ", text, flags=re.MULTILINE).replace(
        "  \n", "\n"
    )  # without frames
    text += "\n".join(
        [f"exit status {done.exit_code}", *tables_as_text(tables_of(output, of_spark=of_spark))]
    )
    text = re.sub(rf"file:(?=/)|{re.escape(str(folder))}|{ROOT_FOLDER}", "", text) + "\n"

    recorded = RECORDED / f"{name.replace(' ', '-')}.txt"
    if os.environ.get("RECORD"):
        recorded.write_text(text)
    assert text == recorded.read_text(), done.output


def test_every_job_is_recorded():
    assert {*INPUTS} == {*JOBS, *(f"local {name}" for name in (*SUMMARIES, "telemetry-aggregation"))}
