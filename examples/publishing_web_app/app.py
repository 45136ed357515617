"""A web shop whose every order becomes one event, whatever dies on the way.

`POST /orders` with `{"id": ...}` stores the order and answers 201; an order that is there already is answered 200. So a client that got no
answer sends again. What is stored is published in its order, in sets whose position is saved before they are sent: after a crash the
last set is sent again as it was, and the hub drops it if it has it.

Runs as one instance: a second one would be fenced (ProducerDisconnectedError) as soon as the first one publishes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web
from azure.eventhub import EventData
from azure.identity.aio import DefaultAzureCredential
from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, Text, select

from tidemark.publisher import (
    IdempotentProducer,
    OutcomeUnknownError,
    PublishUnavailableError,
    SqlDatabase,
    SqlStateStore,
)

_log = logging.getLogger(__name__)

HUB, PARTITION = "orders-placed", "0"
AT_ONCE = 100  # orders in a set, or as many as fit
LARGEST = 65_536  # bytes of an order; an event of more than 1 MB would never be published
AGAIN_AFTER = 1.0  # seconds, where there was nothing to publish or the hub did not answer

ORDERS = Table(
    "Orders",
    MetaData(),
    Column("Number", Integer, primary_key=True),  # counts up: the order in which they are published
    Column("Id", String(64), unique=True, nullable=False),
    Column("Body", Text, nullable=False),
)


class Shop:
    """The orders in a database, in the order of their numbers."""

    def __init__(self, database: SqlDatabase) -> None:
        self.database = database
        self._one_at_a_time = asyncio.Lock()  # so that no number appears behind one that was published

    async def place(self, request: web.Request) -> web.Response:
        body = await request.text()
        try:
            order = str(json.loads(body)["id"])
        except (ValueError, KeyError, TypeError):
            raise web.HTTPBadRequest(text='found no order; accepted: {"id": ...}') from None

        def insert(connection: Connection) -> int:
            if connection.execute(select(ORDERS.c.Number).where(ORDERS.c.Id == order)).first():
                return 200
            connection.execute(ORDERS.insert().values(Id=order, Body=body))
            return 201

        async with self._one_at_a_time:
            return web.Response(status=await self.database.transact(insert))

    async def after(self, number: int, count: int) -> Sequence[Any]:
        query = select(ORDERS.c.Number, ORDERS.c.Body).where(ORDERS.c.Number > number)
        query = query.order_by(ORDERS.c.Number).limit(count)
        return await self.database.transact(lambda connection: connection.execute(query).all())


def producer(database: SqlDatabase, settings: Mapping[str, str]) -> IdempotentProducer:
    options = {"state_store": SqlStateStore(database), "producer_name": "web-shop"}
    if connection := settings.get("EventHubConnection"):
        return IdempotentProducer.from_connection_string(connection, HUB, **options)
    namespace = settings["EventHubConnection__fullyQualifiedNamespace"]
    return IdempotentProducer(namespace, HUB, DefaultAzureCredential(), **options)


async def publish(shop: Shop, events: IdempotentProducer) -> None:
    """For ever. Raises PublishErrors that sending again does not mend."""
    while True:
        state = await events.saved_state(
            PARTITION
        )  # the set that may or may not be stored goes first, as it was
        count = AT_ONCE if state.pending is None else state.pending.count
        orders = await shop.after(int(state.bookmark or 0), count)
        batch, last = await events.create_batch(partition_id=PARTITION), ""
        for order in orders:
            if not batch.try_add(EventData(order.Body)):
                break  # of the pending set all fit again
            last = str(order.Number)
        try:
            await events.send_batch(batch, bookmark=last)
        except (OutcomeUnknownError, PublishUnavailableError) as error:
            _log.warning("not known to be published, so sent again: %s", error)
            orders = []
        if not orders:
            await asyncio.sleep(AGAIN_AFTER)


async def main() -> None:
    database = SqlDatabase(os.environ["DATABASE_URL"], create_tables=True, tables=[ORDERS])
    shop, app = Shop(database), web.Application(client_max_size=LARGEST)
    app.router.add_post("/orders", shop.place)
    runner = web.AppRunner(app)
    async with producer(database, os.environ) as events:
        await runner.setup()
        await web.TCPSite(runner, port=int(os.environ.get("PORT", "8000"))).start()
        await publish(shop, events)  # what it raises ends the app, and the platform starts it again


if __name__ == "__main__":
    asyncio.run(main())
