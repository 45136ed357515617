"""Starts and stops the whole local stack: Azurite, Service Bus, Event Hubs, its schema registry, Cosmos DB, Resource Manager, the
functions.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

from msgspec import Struct

from devstack.cosmos import CosmosServer
from devstack.event_hubs import EventHubsServer
from devstack.function_host.clock import TRUE, HostClock
from devstack.processes.azurite import Azurite
from devstack.processes.child import ChildProcess, ProcessError, free_ports
from devstack.resource_manager import ResourceManagerServer
from devstack.schema_registry import SchemaRegistryServer
from devstack.servers.certificates import ensure_certificate
from devstack.service_bus import ServiceBusServer
from devstack.stack.catalogue import publish

ROOT = Path(__file__).resolve().parents[2]
SERVICE_BUS_KEY = "SAS_KEY_VALUE"  # of the public emulator; local.settings.json has it, too
IDENTITY_HEADER = "local"
SUBSCRIPTION = "00000000-0000-0000-0000-000000000000"
RESOURCE_GROUP = "local"
TOPIC, QUEUE_SUBSCRIPTION, PLAN = "orders", "fulfilment", "plan-orders"  # what tidemark.toml names
EVENT_HUB, EVENT_HUB_PARTITIONS, CONSUMER_GROUP = "flights", 4, "tidemark"
COSMOS_DATABASE, COSMOS_CONTAINER, PARTITION_KEY, REQUEST_UNITS = "flights", "flights", "/origin", 400
READY_WITHIN = 60.0
STOP_WITHIN = 10.0
LOOK_EVERY = 0.25


_OF_A_CONSUMER = ("ALLOW_", "BLOB_", "CONSUMER_", "COSMOS_", "EVENTHUB_", "TIDEMARK_")


def forget_settings() -> None:
    """Takes a person's own settings out of this process's environment: its children would consume and write by them."""
    for name in [name for name in os.environ if name.startswith(_OF_A_CONSUMER)]:
        del os.environ[name]


class StackPorts(Struct, frozen=True):
    """Ports of the stack; 0 takes any free one. The defaults are those of local.settings.json."""

    azurite: int = 10000
    service_bus: int = 5672
    resource_manager: int = 8443
    identity: int = 8444
    control: int = 8445
    event_hubs: int = 5673
    cosmos: int = 8081
    schema_registry: int = 8446


ANY_PORTS = StackPorts(0, 0, 0, 0, 0, 0, 0, 0)


class Stack:
    """The local servers in this process, Azurite beside it. Use as an async context manager."""

    def __init__(self, ports: StackPorts = ANY_PORTS, *, location: Path | None = None) -> None:
        """`location` keeps the data of Azurite, Event Hubs and the schema registry in a folder; None keeps it in memory, where Cosmos DB has
        it in any case.
        """
        folder = ROOT / ".devstack" / "certificates"
        certificate = ensure_certificate(folder)
        self.azurite = Azurite(ports.azurite, location / "azurite" if location else None)
        self.service_bus = ServiceBusServer(port=ports.service_bus, ca_dir=folder, key=SERVICE_BUS_KEY)
        self.event_hubs = EventHubsServer(
            port=ports.event_hubs,
            ca_dir=folder,
            key=SERVICE_BUS_KEY,
            data_dir=location / "event-hubs" if location else None,
        )
        self.event_hubs.ensure_hub(EVENT_HUB, EVENT_HUB_PARTITIONS, consumer_groups=[CONSUMER_GROUP])
        self.cosmos = CosmosServer(port=ports.cosmos)
        self.cosmos.create_container(
            COSMOS_DATABASE, COSMOS_CONTAINER, PARTITION_KEY, throughput=REQUEST_UNITS
        )
        self.schema_registry = SchemaRegistryServer(
            certificate, ports.schema_registry, location / "schema-registry" if location else None
        )
        self.resource_manager = ResourceManagerServer(
            certificate=certificate,
            port=ports.resource_manager,
            identity_port=ports.identity,
            control_port=ports.control,
        )
        self.resource_manager.identity.header = IDENTITY_HEADER
        publish(
            self.resource_manager,
            f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{RESOURCE_GROUP}",
            service_bus=self.service_bus,
            event_hubs=self.event_hubs,
            cosmos=self.cosmos,
        )
        self._running = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as starting:
            await starting.enter_async_context(self.azurite)
            await starting.enter_async_context(self.service_bus)
            await starting.enter_async_context(self.event_hubs)
            await starting.enter_async_context(self.schema_registry)
            await starting.enter_async_context(self.cosmos)
            await starting.enter_async_context(self.resource_manager)
            self._running = starting.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._running.aclose()

    def add_workload(self, **plan: Any) -> str:
        """Creates what tidemark.toml names: topic, subscription and plan; returns the plan's resource id.

        `plan` are settings of ResourceManagerServer.add_plan. Raises ValueError for those it does not allow.
        """
        self.service_bus.create_topic(TOPIC)
        self.service_bus.create_subscription(TOPIC, QUEUE_SUBSCRIPTION)
        return self.resource_manager.add_plan(SUBSCRIPTION, RESOURCE_GROUP, PLAN, **plan)

    def settings(self) -> dict[str, str]:
        """App settings that point the functions at this stack; against Azure, only these differ."""
        arm = self.resource_manager
        return {
            "AzureWebJobsStorage": self.azurite.connection_string,
            "OrdersServiceBus": self.service_bus.connection_string,
            "EventHubConnection": self.event_hubs.connection_string(EVENT_HUB),
            "SchemaRegistry__fullyQualifiedNamespace": self.schema_registry.namespace,
            "CosmosConnection": self.cosmos.connection_string,
            "AZURE_RESOURCE_MANAGER_ENDPOINT": arm.base_url,
            "IDENTITY_ENDPOINT": arm.identity_endpoint,
            "IDENTITY_HEADER": arm.identity_header,
            "TIDEMARK_CA_BUNDLE": str(arm.ca_path),
        }


class FunctionsProcess:
    """The functions in a process of their own: `func` where wanted and on PATH, else the dev host."""

    def __init__(
        self,
        settings: Mapping[str, str],
        *,
        port: int = 0,
        prefer_func: bool = False,
        clock: HostClock = TRUE,
    ) -> None:
        """`clock` is what they go by; `func` has the true time only."""
        self.clock = clock
        self.port = port or free_ports(1)[0]
        func = shutil.which("func") if prefer_func else None
        self.host = "func" if func else "dev host"
        argv: list[str | Path] = (
            [func, "start", "--port", str(self.port)]
            if func
            else [
                sys.executable,
                "-m",
                "devstack.function_host",
                "--root",
                str(ROOT),
                "--port",
                str(self.port),
                "--speed",
                str(clock.speed),
                "--began",
                str(clock.began),
            ]
        )
        # `func` runs the app with the Python of the active virtual environment.
        environment = {
            **settings,
            "VIRTUAL_ENV": sys.prefix,
            "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
        }
        self._process = ChildProcess(f"functions ({self.host})", argv, cwd=ROOT, env=environment)

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}/api"

    @property
    def running(self) -> bool:
        return self._process.running

    def output_tail(self, lines: int = 20) -> str:
        return self._process.output_tail(lines)

    def start(self) -> None:
        """Starts and waits until the functions answer; blocks. Raises ProcessError with the end of the output."""
        self._process.start()
        try:
            self._process.wait_until_ready(self._answers, timeout_s=READY_WITHIN)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops them and waits until they are gone."""
        self._process.stop(grace_s=STOP_WITHIN)

    async def __aenter__(self) -> Self:
        self._process.start()
        try:
            await asyncio.to_thread(self._process.wait_until_ready, self._answers, timeout_s=READY_WITHIN)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._process.stop_async(grace_s=STOP_WITHIN)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=1):  # noqa: S310 - our own port
                return True
        except urllib.error.HTTPError:
            return True  # it answers; what is wrong, if anything, its status and its log tell
        except OSError:
            return False


def check_running(stack: Stack, functions: FunctionsProcess) -> None:
    """Raises ProcessError when Azurite or the functions are gone: nothing would be scaled any more."""
    if not stack.azurite.running:
        raise ProcessError("Azurite ended by itself; the functions cannot work without it")
    if not functions.running:
        raise ProcessError(f"the functions ended by themselves:\n{functions.output_tail(40)}")


async def guard(check: Callable[[], None], stop: asyncio.Event) -> None:
    """Looks four times a second whether all is still there, until `stop`; raises what `check` raises.

    A task of its own, as requests to a server that died may take a minute to fail. And it sets `stop` at its end:
    the SDKs, and `asyncio.wait_for` of Python 3.11, swallow a cancellation now and then, and whoever lost his that way
    would go on to the end of the load.
    """
    try:
        while not stop.is_set():
            check()
            await asyncio.sleep(LOOK_EVERY)
    finally:
        stop.set()
