"""What the scenarios share: a local stack, settings that point at it, a folder to write to, and commands that are shown as they run."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from devstack.function_host.clock import HostClock
from devstack.processes.child import ChildProcess
from devstack.stack.supervisor import FunctionsProcess, Stack

ROOT = Path(__file__).parents[1]
SPEED = 60.0
"""Seconds of the functions in one of ours, as in the demo: a rule that looks once a minute looks once a second."""

WITHIN = 90.0  # seconds for what takes ten on an idle machine


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

    async def tidemark(self, *words: str, status: int = 0) -> str:
        """Runs a command, shows it and what it prints, and returns that. Raises SystemExit for another status than `status`."""
        return await self.run(
            [sys.executable, "-m", "tidemark", *words], f"tidemark {' '.join(words)}", status
        )

    async def run(self, command: list[str], shown: str, status: int = 0) -> str:
        print(f"+ {shown}", flush=True)
        log = self.folder / "log.txt"
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=self.folder,
                env={**os.environ, **self.settings},
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
            output, _ = await process.communicate()
        print(output.decode(), end="", flush=True)
        if process.returncode != status:
            raise SystemExit(
                f"it ended with status {process.returncode}, not {status}:\n{log.read_text()[-3000:]}"
            )
        return output.decode()

    async def kill(self, words: list[str], when: Callable[[], bool]) -> None:
        """Starts a command, and kills it with SIGKILL once `when`."""
        child = ChildProcess(words[0], [sys.executable, "-m", *words], cwd=self.folder, env=self.settings)
        child.start()
        try:
            await until(when)
            child.kill()
        finally:
            await child.stop_async()

    def functions(self) -> FunctionsProcess:
        """The app with this scenario's tidemark.toml, in a process whose clock runs `SPEED` times as fast."""
        settings = {
            "FUNCTIONS_WORKER_RUNTIME": "python",
            "AzureFunctionsJobHost__extensions__queues__maxPollingInterval": "00:00:00.200",
            "COLLECT_SCHEDULE": "0 * * * * *",
            "VERIFY_SCHEDULE": "30 * * * * *",
        }
        return FunctionsProcess({**self.settings, **settings}, clock=HostClock(SPEED, time.time()))


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
