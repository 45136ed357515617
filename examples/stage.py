"""What the scenarios share: a local stack, settings that point at it, a folder to write to, and commands that are shown as they run."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from devstack.function_host.clock import HostClock
from devstack.processes.child import ChildProcess, ProcessError
from devstack.stack.supervisor import FunctionsProcess, Stack

ROOT = Path(__file__).parents[1]
SPEED = 60.0
"""Seconds of the functions in one of ours, as in the demo: a rule that looks once a minute looks once a second."""

WITHIN = 120.0  # seconds for what takes ten on an idle machine


class Stage:
    """One scenario at work. What it writes goes to `folder`, which is gone afterwards."""

    def __init__(self, name: str, stack: Stack, folder: Path) -> None:
        self.here = Path(__file__).parent / name
        self.stack = stack
        self.folder = folder
        self.settings = {
            **stack.settings(),
            "TIDEMARK_CONFIG": str(self.here / "tidemark.toml"),
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "110",
        }

    async def tidemark(self, *words: str) -> str:
        """Runs a command, shows it and what it prints, and returns that. Raises ProcessError where its status is not 0."""
        print(f"+ tidemark {' '.join(words)}", flush=True)
        output, log = self.folder / "output.txt", self.folder / "log.txt"
        redirected = ["bash", "-c", f"exec \"$@\" >'{output}' 2>'{log}'", "bash"]
        child = self._child([*redirected, sys.executable, "-m", "tidemark", *words])
        try:
            await until(lambda: not child.running)
        finally:
            status = await child.stop_async()
        printed = output.read_text()
        print(printed, end="", flush=True)
        if status != 0:
            raise ProcessError(f"it ended with status {status}:\n{log.read_text()[-3000:]}")
        return printed

    async def kill(self, words: list[str], when: Callable[[], bool]) -> None:
        """Starts a module with these words, and kills it with SIGKILL once `when`. Raises ProcessError where it ends before."""
        child = self._child([sys.executable, "-m", *words])
        try:
            await until(lambda: when() or not child.running)
            if not child.running:
                raise ProcessError(f"{words[0]} ended by itself:\n{child.output_tail()}")
            child.kill()
        finally:
            await child.stop_async()

    def _child(self, command: list[str]) -> ChildProcess:
        """It ends with this process, however that ends."""
        child = ChildProcess(command[0], command, cwd=self.folder, env=self.settings)
        child.start()
        return child

    @asynccontextmanager
    async def functions(self) -> AsyncIterator[None]:
        """The app with this scenario's tidemark.toml, in a process whose clock runs `SPEED` times as fast."""
        settings = {
            "FUNCTIONS_WORKER_RUNTIME": "python",
            "AzureFunctionsJobHost__extensions__queues__maxPollingInterval": "00:00:00.200",
            "COLLECT_SCHEDULE": "0 * * * * *",
            "VERIFY_SCHEDULE": "30 * * * * *",
        }
        async with FunctionsProcess(
            {**self.settings, **settings}, clock=HostClock(SPEED, time.time())
        ) as app:
            try:
                yield
            except TimeoutError:
                print(app.output_tail())
                raise


async def until(holds: Callable[[], bool], *, within: float = WITHIN) -> None:
    """Waits until `holds`. Raises TimeoutError."""
    async with asyncio.timeout(within):
        while not holds():
            await asyncio.sleep(0.05)


async def beside(
    work: Coroutine[Any, Any, None], stop: asyncio.Event, story: Coroutine[Any, Any, None]
) -> None:
    """Runs the story; `work` goes on beside it, and is told to stop by `stop` at its end."""
    async with asyncio.TaskGroup() as group:
        group.create_task(work)
        try:
            await story
        finally:
            stop.set()
