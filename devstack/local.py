"""`make start`: the local stack on its fixed ports, a small fleet that drains the backlog, and the functions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from pathlib import Path

from azure.core.exceptions import ResourceExistsError
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from rich.console import Console

from devstack.demo.common import flights
from devstack.demo.orders.traffic import Fleet, Ledger, send_messages
from devstack.processes.child import ProcessError, port_is_free
from devstack.stack.supervisor import (
    ANY_PORTS,
    QUEUE_SUBSCRIPTION,
    ROOT,
    TOPIC,
    FunctionsProcess,
    Stack,
    StackPorts,
    check_running,
)

PORT = 7071  # of `func start`
START_DELAY = 30.0
CONCURRENCY = 16
PROCESSING = 4.0  # a saturated instance serves 4 messages per second: a few hundred messages make a backlog


async def run(console: Console, *, prefer_func: bool) -> int:
    """Runs until Ctrl-C; returns the exit status.

    Raises ProcessError when a part of the stack does not start, or ends by itself.
    """
    ports = StackPorts()
    _check_ports(ports, functions=True)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    with console.status("starting the local servers"):
        stack = await Stack(ports, location=ROOT / ".devstack").__aenter__()
    try:
        fleet = _fleet(stack)
        async with FunctionsProcess(local_settings(), port=PORT, prefer_func=prefer_func) as functions:
            _tell(console, stack, functions)
            draining = asyncio.create_task(fleet.follow(stop=stop))
            try:
                while not stop.is_set() and not draining.done():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(stop.wait(), 1.0)
                    check_running(stack, functions)
            finally:
                stop.set()
                await draining
            return 0
    finally:
        await stack.__aexit__(None, None, None)


async def serve(console: Console, *, free_ports: bool, data: Path | None) -> None:
    """Runs the servers until Ctrl-C. Prints NAME=VALUE lines once all of them answer.

    Raises ProcessError when one does not start, or Azurite ends by itself.
    """
    ports = ANY_PORTS if free_ports else StackPorts()
    if not free_ports:
        _check_ports(ports)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with Stack(ports, location=data) as stack:
        stack.add_workload(capacity=1, start_delay=START_DELAY)
        lines = {**stack.settings(), "DEVSTACK_CONTROL": stack.resource_manager.control_url}
        # Whoever reads these lines is another program: neither markup nor a line break within a value.
        console.out("\n".join(f"{name}={value}" for name, value in lines.items()), highlight=False)
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 1.0)
            if not stack.azurite.running:
                raise ProcessError("Azurite ended by itself")


def _fleet(stack: Stack) -> Fleet:
    """What drains the backlog: a worker for each instance of the plan."""
    plan = stack.resource_manager.plan(stack.add_workload(capacity=1, start_delay=START_DELAY))
    return Fleet(
        stack.service_bus.connection_string,
        TOPIC,
        QUEUE_SUBSCRIPTION,
        Ledger(),
        ready=lambda: [i.id for i in plan.instances() if i.ready_at <= time.time()],
        concurrency=CONCURRENCY,
        processing=PROCESSING,
    )


def _tell(console: Console, stack: Stack, functions: FunctionsProcess) -> None:
    control = stack.resource_manager.control_url
    console.print(
        f"functions ({functions.host}): {functions.url}\n"
        f"dashboard: {functions.url}/dashboard\n"
        f"faults and plans: {control}/plans, {control}/faults\n"
        "make a backlog with: .venv/bin/python -m devstack send 2000\n"
        "send flights with: .venv/bin/python -m devstack flights 20000 --poison 5\n"
        "write them to Cosmos DB with: .venv/bin/tidemark consume\n"
        "its documents live as long as this; all else is kept in .devstack. Stop with Ctrl-C",
        soft_wrap=True,
    )


def _check_ports(ports: StackPorts, *, functions: bool = False) -> None:
    """Raises ProcessError naming every fixed port somebody else listens on: settings cannot follow other ports."""
    wanted = {
        "Azurite": range(ports.azurite, ports.azurite + 3),
        "Service Bus": [ports.service_bus],
        "Event Hubs": [ports.event_hubs],
        "Cosmos DB": [ports.cosmos],
        "the schema registry": [ports.schema_registry],
        "Resource Manager": [ports.resource_manager, ports.identity, ports.control],
        "the functions": [PORT] if functions else [],
    }
    taken = [
        f"{port} ({name})" for name, numbers in wanted.items() for port in numbers if not port_is_free(port)
    ]
    if taken:
        raise ProcessError(
            f"in use already: port{'s' if len(taken) > 1 else ''} {', '.join(taken)}; "
            "is `make start` running in another terminal?"
        )


def local_settings() -> dict[str, str]:
    """The values of local.settings.json."""
    text = (ROOT / "local.settings.json").read_text(encoding="utf-8")
    values: dict[str, str] = json.loads(text)["Values"]
    return values


def settings() -> dict[str, str]:
    """Where to send: the environment's values win, as for the command line."""
    return {name: os.environ.get(name, value) for name, value in local_settings().items()}


async def send_flights(count: int, first: int, poison: int) -> None:
    """Sends real flights to the local event hub, and `poison` events that are none."""
    values = settings()
    events = flights.with_poison(list(flights.bodies(count, first=first)), poison)
    await flights.send(values["EventHubConnection"], values["EVENTHUB_NAME"], events)


async def send(count: int, queue: str = "") -> None:
    """Sends `count` messages to the queue, which is made if it is missing, or to the local topic."""
    values = settings()
    connection = values["OrdersServiceBus"]
    if queue:
        certificate = str(ROOT / values["TIDEMARK_CA_BUNDLE"])
        administration = ServiceBusAdministrationClient.from_connection_string(
            connection, connection_verify=certificate
        )
        async with administration:
            with contextlib.suppress(ResourceExistsError):
                await administration.create_queue(queue)
    client = ServiceBusClient.from_connection_string(connection)
    async with client, client.get_queue_sender(queue) if queue else client.get_topic_sender(TOPIC) as sender:
        await send_messages(sender, Ledger(), count)
