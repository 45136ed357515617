"""3,000 events into a table that only grows; the consumer is killed on the way, and no row is missing or there twice."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec

from devstack.demo.common import flights
from examples.stage import Stage

EVENTS, KILLED_AT = 3_000, 500


def rows(database: Path, what: str) -> int:
    """0 while there is no table."""
    try:
        with sqlite3.connect(database) as connection:
            (count,) = connection.execute(f"SELECT count({what}) FROM Payments").fetchone()  # noqa: S608 - our own words
        return int(count)
    except sqlite3.OperationalError:
        return 0


async def play(stage: Stage) -> list[str]:
    stage.stack.event_hubs.ensure_hub("payments", 4, consumer_groups=["tidemark"])
    database = stage.folder / "payments.db"
    with sqlite3.connect(database) as connection:
        connection.execute(
            "CREATE TABLE Payments (Id TEXT, Cents INTEGER)"
        )  # no key: a repeated event would be a second row
    stage.settings |= {
        "EVENTHUB_NAME": "payments",
        "EVENTHUB_CONSUMERGROUP": "tidemark",
        "EVENTHUB_RATELIMIT": "1000",
        "CONSUMER_SINK": "sql",
        "CONSUMER_SQL_URL": f"sqlite:///{database}",
        "CONSUMER_SQL_TABLE": "Payments",
        "CONSUMER_SQL_COLUMNS": "Id=$.id, Cents=$.cents",
        "CONSUMER_LEASE_INTERVAL": "1s",
        "CONSUMER_LEASE_EXPIRY": "4s",
    }
    bodies = (msgspec.json.encode({"id": f"payment-{n}", "cents": n % 977}) for n in range(EVENTS))
    await flights.send(stage.settings["EventHubConnection"], "payments", bodies, at_once=250)
    await stage.kill(["tidemark", "consume"], lambda: rows(database, "*") >= KILLED_AT)
    killed_at = rows(database, "*")
    await stage.tidemark("consume", "--until", "latest")
    assert killed_at < EVENTS
    assert rows(database, "*") == rows(database, "DISTINCT Id") == EVENTS
    return [
        f"killed with SIGKILL at {killed_at:,} rows",
        f"{EVENTS:,} events: {rows(database, '*'):,} rows, each once",
    ]
