"""1,000 events are consumed, and three documents are deleted by somebody: one Spark job finds them. Another says what a plan cost."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from azure.cosmos.aio import CosmosClient
from deltalake import DeltaTable

from devstack.demo.common import flights
from devstack.demo.spark.child import JobCall, run_jobs
from devstack.demo.spark.jobs import captured
from devstack.event_hubs.storage.capture import write_capture
from examples.stage import Stage
from scaling.log_entry import LogEntry, LogKind

EVENTS = 1_000
LOST = ("reading-17", "reading-170", "reading-717")
FIRST_DAY = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
QUARTER = 900.0  # seconds between two readings of the capacity


def scaling_log() -> bytes:
    """Two days of a plan: two instances, and six of them from eight to two o'clock. `tidemark log --json` writes such lines."""
    capacities = [6 if 8 <= n // 4 % 24 < 14 else 2 for n in range(2 * 96)]
    return msgspec.json.Encoder().encode_lines(
        LogEntry("plan-readings", FIRST_DAY + n * QUARTER, LogKind.DECISION, f"{n}", "", "", capacity)
        for n, capacity in enumerate(capacities)
    )


async def play(stage: Stage) -> list[str]:
    stack, folder = stage.stack, stage.folder
    hub = stack.event_hubs.ensure_hub("readings", 4, consumer_groups=["tidemark"])
    stack.cosmos.create_container("plant", "readings", "/id", throughput=10_000)
    stage.settings |= {
        "EVENTHUB_NAME": "readings",
        "EVENTHUB_CONSUMERGROUP": "tidemark",
        "COSMOS_DATABASE": "plant",
        "COSMOS_CONTAINER": "readings",
    }
    bodies = (msgspec.json.encode({"id": f"reading-{number}"}) for number in range(EVENTS))
    await flights.send(stage.settings["EventHubConnection"], "readings", bodies, at_once=250)
    await stage.tidemark("consume", "--until", "latest")
    async with CosmosClient.from_connection_string(stage.settings["CosmosConnection"]) as client:
        container = client.get_database_client("plant").get_container_client("readings")
        for lost in LOST:
            await container.delete_item(lost, partition_key=lost)
    write_capture(
        folder / "capture", "readings", captured(hub), every_seconds=60
    )  # Event Hubs Capture does it in Azure
    (folder / "log.jsonl").write_bytes(scaling_log())
    calls = [
        JobCall("reconciliation", ("--capture", f"{folder}/capture", "--output", f"{folder}/reconciliation")),
        JobCall(
            "cost",
            (
                *("--costs", str(stage.here / "costs.csv"), "--log", f"{folder}/log.jsonl"),
                *("--config", stage.settings["TIDEMARK_CONFIG"], "--output", f"{folder}/cost"),
            ),
        ),
    ]
    # As `tidemark spark JOB` runs them, but with one start of Spark for both.
    reconciliation, cost = await run_jobs(calls, stage.settings, within=300)
    assert (reconciliation.status, cost.status) == (3, 0), (reconciliation.lines, cost.lines)
    assert DeltaTable(folder / "reconciliation" / "unsettled").to_pyarrow_table().num_rows == len(LOST)
    (plan,) = DeltaTable(folder / "cost" / "targets").to_pyarrow_table().to_pylist()
    return [
        f"reconciliation: {reconciliation.lines[0]}; exit status 3",
        f"cost: ${plan['money']:.2f} for {plan['unit_hours']:.0f} instance-hours; at the peak all day ${plan['static_money']:.2f}",
    ]
