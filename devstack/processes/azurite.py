"""Azurite, the storage emulator, as a child process.

    async with Azurite() as azurite:                    # free ports, data in memory
        QueueServiceClient.from_connection_string(azurite.connection_string)

It is run by its JavaScript file, without the npx wrapper, so that its process id is the one that is signalled.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from devstack.processes.child import ChildProcess, ProcessError, free_ports, port_is_free
from devstack.processes.node import ensure_node, ensure_packages
from devstack.servers.started import Started

ACCOUNT_NAME = "devstoreaccount1"
# The key every Azurite has, published in its documentation; it protects nothing.
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

_SERVICES = ("blob", "queue", "table")
_READY_WITHIN_S = (
    60.0  # measured 2.5 to 2.8 s on an idle machine; loaded build agents take several times that
)
_ATTEMPTS = 3  # a free port may be taken by somebody else before Azurite listens on it


class Azurite(Started):
    """One Azurite. Not restartable: make another one on the same location to continue with its data."""

    def __init__(self, port_base: int = 0, location: Path | None = None) -> None:
        """Prepare.

        port_base: ports of blob, queue and table are this and the next two; 0 takes free ports.
        location: directory the data is kept in, made if missing; None keeps it in memory.
        """
        self._port_base = port_base
        self._location = location
        self._ports = range(0)
        self._process: ChildProcess | None = None
        self._attempts = 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def pid(self) -> int:
        """The process id. Raises ProcessError if not started."""
        if self._process is None:
            raise ProcessError("Azurite was not started")
        return self._process.pid

    @property
    def ports(self) -> dict[str, int]:
        """The port of each service: blob, queue, table. Raises ProcessError if not started."""
        if self._process is None:
            raise ProcessError("Azurite was not started")
        return dict(zip(_SERVICES, self._ports, strict=True))

    @property
    def connection_string(self) -> str:
        """For the storage SDKs; the short UseDevelopmentStorage=true only knows the default ports."""
        endpoints = "".join(
            f"{service.capitalize()}Endpoint=http://127.0.0.1:{port}/{ACCOUNT_NAME};"
            for service, port in self.ports.items()
        )
        return (
            f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT_NAME};AccountKey={ACCOUNT_KEY};{endpoints}"
        )

    async def start(self) -> None:
        """Start and wait until the three services answer.

        Call it from the main thread (see ChildProcess). Raises ProcessError with the end of Azurite's output, or
        NodeError; nothing is left running then.
        """
        tools = await asyncio.to_thread(_tools)
        while self._process is None:
            process = self._spawn(*tools)
            try:
                await asyncio.to_thread(self._adopt, process)
            except asyncio.CancelledError:
                await process.stop_async()
                raise

    async def stop(self) -> None:
        """Stop it and wait until it is gone; idempotent."""
        await asyncio.to_thread(self._stop)

    @contextlib.contextmanager
    def running_blocking(self) -> Iterator[Self]:
        """Start, yield, stop, for callers that are no coroutines, such as a session-wide fixture."""
        tools = _tools()
        while self._process is None:
            self._adopt(self._spawn(*tools))
        try:
            yield self
        finally:
            self._stop()

    def _spawn(self, node: Path, script: Path) -> ChildProcess:
        self._attempts += 1
        self._ports = self._choose_ports()
        process = ChildProcess("Azurite", [node, script, *self._arguments()])
        process.start()
        return process

    def _adopt(self, process: ChildProcess) -> None:
        """Wait until it is ready and keep it; leave it stopped if it may be tried again, and raise if not."""
        try:
            process.wait_until_ready(lambda: self._says_it_listens(process), timeout_s=_READY_WITHIN_S)
        except ProcessError as error:
            process.stop()
            port_was_taken = self._port_base == 0 and "EADDRINUSE" in str(error)
            if not port_was_taken or self._attempts >= _ATTEMPTS:
                raise
        else:
            self._process = process

    def _stop(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None

    def _choose_ports(self) -> range:
        if self._port_base == 0:
            return free_ports(len(_SERVICES))
        ports = range(self._port_base, self._port_base + len(_SERVICES))
        for service, port in zip(_SERVICES, ports, strict=True):
            if not port_is_free(port):
                raise ProcessError(f"port {port}, wanted for Azurite's {service} service, is in use")
        return ports

    def _says_it_listens(self, process: ChildProcess) -> bool:
        said = process.output_tail()
        return all(f"successfully listening at http://127.0.0.1:{port}" in said for port in self._ports)

    def _arguments(self) -> list[str]:
        # --skipApiVersionCheck: today's SDKs ask for a service version Azurite 3.37 does not list, and get a 400.
        arguments = ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
        for service, port in zip(_SERVICES, self._ports, strict=True):
            arguments += [f"--{service}Host", "127.0.0.1", f"--{service}Port", str(port)]
        if self._location is None:
            return [*arguments, "--inMemoryPersistence"]
        self._location.mkdir(parents=True, exist_ok=True)
        return [*arguments, "--location", str(self._location)]


def _tools() -> tuple[Path, Path]:
    node = ensure_node()
    return node, ensure_packages(node, only_azurite=True) / "azurite" / "dist" / "src" / "azurite.js"
