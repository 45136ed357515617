"""Data for `make demo-spark`: telemetry, App Insights events, capture files and load, made up but always the same.

Each maker writes into a folder of its own and needs no server. `scale` 1 is what the demo has; smaller is for tests.
"""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from msgspec import Struct
from pyarrow import parquet

from consumer.telemetry.records import IntervalRecord, PartitionRecord
from devstack.demo.common import flights
from devstack.demo.orders.trace import WORLD_CUP
from devstack.event_hubs.storage.capture import CapturedEvent, write_capture

START = datetime(2026, 11, 1, tzinfo=UTC)
DAY = timedelta(days=1)

# capture files
HUB, PARTITIONS, HOURS = "flights", 8, 12
FLIGHTS = 336_000  # three events each
UPDATES = ("scheduled", "departed", "landed")
APART = 50  # flights of the partition between two updates of one
POISON_EVERY = 20_000
OUTAGE = START + timedelta(hours=HOURS - 1)
"""What was enqueued from here on the consumer is said to have lost."""

# telemetry
TARGETS, METRICS, METRIC_DAYS = 50, ("backlog", "rate", "latency", "instances"), 7
INSTANCES, TELEMETRY_DAYS, EVERY = 4, 3, 5

# App Insights
APP_DAYS, PER_DAY, SAMPLED_FROM, LOST_FROM = 30, 12_000, 12, 21
SAMPLED_TO, KEPT = 3, 0.65
"""One record in three is sent from day 12 on; from day 21 on a third of the events is lost, too."""

# load
LOADS, THINNED = 20, 40  # the largest peak needs 9.6 of at most 10 instances
GRID = """\
base = "plan-orders"

[model]
service_rate = 10  # messages per second of one instance
slo = "2m"
price = 0.2

[vary]
rules.threshold.scale_out_above = ["100 * instances", "250 * instances", "500 * instances", "1000 * instances"]
out.cooldown = ["1m", "3m", "6m"]
in.cooldown = ["5m", "10m", "20m"]
"""
"""Around what tidemark.toml has for plan-orders."""


class Flown(Struct, frozen=True):
    """What was captured."""

    events: int
    files: int
    corrupt: int


def capture(folder: Path, scale: float) -> Flown:
    """Three updates of each flight in the order of a hub's partitions, some events that are none, and files that cannot
    be read: copies of others, cut short or overwritten.
    """
    count = max(2 * APART, round(FLIGHTS * scale / PARTITIONS))
    with ProcessPoolExecutor(2) as pool:
        halves = [pool.submit(_capture, folder, half, count) for half in (0, 1)]
        files = [file for half in halves for file in half.result()]
    corrupt = [files[0].with_name("58.avro"), files[-1].with_name("59.avro")]
    whole = files[0].read_bytes()
    corrupt[0].write_bytes(whole[: len(whole) * 2 // 3])
    corrupt[1].write_bytes(b"this was a file once")
    events = PARTITIONS * (count * len(UPDATES) + count * len(UPDATES) // POISON_EVERY)
    return Flown(events, len(files), len(corrupt))


def _capture(folder: Path, half: int, count: int) -> list[Path]:
    """The partitions of one process: every other one."""
    mine = range(half, PARTITIONS, 2)
    dealt: dict[int, list[dict[str, object]]] = {partition: [] for partition in mine}
    for number, flight in enumerate(flights.flights(count * PARTITIONS)):
        if number % PARTITIONS in dealt:
            dealt[number % PARTITIONS].append(flight)
    files = []
    for partition, those in dealt.items():
        minutes = HOURS * 60
        files += write_capture(folder, HUB, _events(partition, those), every_seconds=minutes * 60 // 48)
    return files


def _events(partition: int, those: list[dict[str, object]]) -> Iterator[CapturedEvent]:
    bodies = [
        body for step in range(len(those) + APART * (len(UPDATES) - 1)) for body in _updates(those, step)
    ]
    for place in range(len(bodies) // POISON_EVERY):
        bodies.insert((place + 1) * POISON_EVERY, b"no position received")
    for number, body in enumerate(bodies):
        at = START + timedelta(hours=HOURS) * (number / len(bodies))
        yield CapturedEvent(str(partition), number, str(number * 500), at, body, {"source": "tower"})


def _updates(those: list[dict[str, object]], step: int) -> Iterator[bytes]:
    for update, status in enumerate(UPDATES):
        number = step - update * APART
        if 0 <= number < len(those):
            yield msgspec.json.encode({**those[number], "status": status})


def metrics(folder: Path, scale: float) -> int:
    """Samples of many targets by the minute, as Parquet; how many."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    minutes = np.arange(max(60, round(METRIC_DAYS * 1_440 * scale)))
    at = pa.array(np.datetime64("2026-11-01T00:00:00", "us") + minutes.astype("timedelta64[m]"))
    day = 1 + 0.8 * np.sin(minutes * math.tau / 1_440)
    rows = 0
    for target in range(TARGETS):
        tables = [
            pa.table(
                {
                    "target": pa.array([f"plan-{target:02d}"] * len(minutes)),
                    "metric": pa.array([metric] * len(minutes)),
                    "at": at.cast(pa.timestamp("us", "UTC")),
                    "value": pa.array(
                        np.ceil(day * 3)
                        if metric == "instances"
                        else day * rng.gamma(2.0, 100.0 * (place + 1), len(minutes))
                    ),
                }
            )
            for place, metric in enumerate(METRICS)
        ]
        parquet.write_table(pa.concat_tables(tables), folder / f"{target:02d}.parquet")
        rows += len(METRICS) * len(minutes)
    return rows


def telemetry(folder: Path, scale: float) -> int:
    """What consumers tell every five seconds, as JSON lines; how many. Once a day the database throttles an hour."""
    encode = msgspec.json.Encoder().encode
    rng = random.Random(2)
    count = max(60, round(TELEMETRY_DAYS * 86_400 * scale / EVERY))
    for instance in range(INSTANCES):
        received = 0
        lines: list[bytes] = []
        for step in range(count):
            at = START.timestamp() + (step + 1) * EVERY
            throttled = 10 <= at / 3_600 % 24 < 11
            written = rng.randrange(300, 500) * (1 if throttled else EVERY)
            received += written
            lines.append(
                encode(_interval(f"consumer-{instance}", at, written, received, throttled=throttled))
            )
        place = folder / f"date={START:%Y-%m-%d}" / "hour=00"
        place.mkdir(parents=True, exist_ok=True)
        for first in range(0, count, 20_000):
            (place / f"{instance}-{first:07d}.jsonl").write_bytes(
                b"\n".join(lines[first : first + 20_000]) + b"\n"
            )
    return count * INSTANCES


def _interval(instance: str, at: float, written: int, received: int, *, throttled: bool) -> IntervalRecord:
    lag = 90_000 if throttled else written // 2
    return IntervalRecord(
        at=at,
        consumer="flights",
        instance=instance,
        hub=HUB,
        consumer_group="$Default",
        seconds=float(EVERY),
        received=written,
        written=written,
        dead_letters=0,
        retried=written if throttled else 0,
        attempts=2 * written if throttled else written,
        throttled=written if throttled else 0,
        checkpoints=1,
        checkpoints_failed=0,
        request_units=5.2 * written,
        written_units=5.2 * written,
        rate_limit=500.0,
        backlog_count=lag // 10,
        backlog_bytes=lag * 50,
        oldest_age_s=2.0 if throttled else 0.2,
        in_flight_batches=2,
        paused=False,
        stopping=False,
        partitions=(PartitionRecord(instance[-1], received + lag, received, received - 100, lag, 50),),
    )


def app_insights(folder: Path, scale: float) -> int:
    """A month of custom events: sampled from a day on, lost from another one on.

    How many records there are. Business days have twice as many events as weekends.
    """
    folder.mkdir(parents=True)
    rng = random.Random(3)
    rows = 0
    for day in range(APP_DAYS):
        begin = START + day * DAY
        happened = round(
            max(400, PER_DAY * scale) * (1.0 if begin.weekday() < 5 else 0.5) * rng.uniform(0.95, 1.05)
        )
        sampled = SAMPLED_TO if day >= SAMPLED_FROM else 1
        sent = round(happened * (KEPT if day >= LOST_FROM else 1.0) / sampled)
        with (folder / f"{begin:%Y-%m-%d}.jsonl").open("w", encoding="utf-8") as file:
            for _ in range(sent):
                file.write(json.dumps(_app_event(begin, sampled, day, rng)) + "\n")
        rows += sent
    return rows


def _app_event(begin: datetime, sampled: int, day: int, rng: random.Random) -> dict[str, object]:
    at = begin + rng.random() * DAY
    return {
        "timestamp": at.isoformat().replace("+00:00", "Z"),
        "name": "EventXReceived",
        "itemType": "customEvent",
        "itemCount": sampled,
        "customMeasurements": {"EventXReceived_Count": rng.randrange(1, 9)},
        "customDimensions": {"device": f"d{rng.randrange(200)}"},
        "operation_Id": f"{rng.getrandbits(64):016x}",
        "cloud_RoleName": "ingest" if rng.random() < 0.7 else "gateway",
        "sdkVersion": "dotnet:2.3.0" if day >= SAMPLED_FROM else "dotnet:2.1.0",
    }


def arrivals(folder: Path, scale: float) -> int:
    """The recorded day of load (devstack/data/README.md) for many targets, each a bit later and larger, in `counts`, and
    the parameters to try in `grid.toml`; how many targets.
    """
    counts = folder / "counts"
    counts.mkdir(parents=True)
    (folder / "grid.toml").write_text(GRID, encoding="utf-8")
    with WORLD_CUP.open(encoding="utf-8", newline="") as file:
        day = [float(row["arrivals"]) for row in csv.DictReader(file)]
    targets = max(2, round(LOADS * scale))
    for target in range(targets):
        turned = [*day[17 * target :], *day[: 17 * target]]
        size = (1 + target / 40) / THINNED
        begin = round(START.timestamp())
        lines = (f"{begin + 60 * minute},{value * size:.2f}\n" for minute, value in enumerate(turned))
        with (counts / f"plan-{target:02d}.csv").open("w", encoding="utf-8") as out:
            out.write("t,arrivals\n")
            out.writelines(lines)
    return targets
