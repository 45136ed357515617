"""300 orders by a client that sends again what is not answered; an acknowledgement is lost, and the app is killed on the way."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

import aiohttp
import msgspec

from devstack.demo.streaming.world import bodies
from devstack.processes.child import ChildProcess, free_ports
from devstack.servers.faults import Fault
from examples.publishing_web_app.app import HUB
from examples.stage import Stage, until

ORDERS, KILLED_AT = 300, 120


async def order(session: aiohttp.ClientSession, url: str, number: int) -> None:
    """As a client that is never content without an answer."""
    while True:
        try:
            async with session.post(url, json={"id": f"order-{number}"}) as answer:
                if answer.ok:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.05)


async def play(stage: Stage) -> list[str]:
    hub = stage.stack.event_hubs.ensure_hub(HUB, 1)
    (port,) = free_ports(1)
    stage.settings |= {"DATABASE_URL": f"sqlite:///{stage.folder}/shop.db", "PORT": str(port)}

    def start() -> ChildProcess:
        app = [sys.executable, "-m", "examples.publishing_web_app.app"]
        child = ChildProcess("the web app", app, cwd=stage.folder, env=stage.settings)
        child.start()
        return child

    def published() -> Counter[str]:
        return Counter(msgspec.json.decode(body)["id"] for _, body in bodies(hub, "0"))

    stage.stack.event_hubs.faults.add(Fault(f"send:{HUB}", "drop_ack"))
    app = start()
    try:
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            one_by_one = asyncio.Semaphore(4)

            async def place(number: int) -> None:
                async with one_by_one:
                    await order(session, f"http://localhost:{port}/orders", number)

            for number in range(ORDERS):
                group.create_task(place(number))
            await until(lambda: len(published()) >= KILLED_AT)
            app.kill()
            await app.stop_async()
            at_the_kill = len(published())
            app = start()
            await until(lambda: len(published()) == ORDERS)
    finally:
        await app.stop_async()
    assert set(published().values()) == {1}
    return [
        f"killed with SIGKILL at {at_the_kill} events, and started again; one acknowledgement was lost",
        f"{ORDERS} orders: {published().total()} events, each once",
    ]
