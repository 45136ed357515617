"""What both parts are while they run."""

from __future__ import annotations

import asyncio
import contextlib
import time

import aiohttp

from devstack.demo.common.functions_api import Entry, FunctionsApi
from devstack.stack.supervisor import FunctionsProcess, Stack, check_running

SAMPLE_EVERY = 0.5


class Run:
    """State of one run, shared by its tasks. Times are seconds, those in `events` since the start."""

    def __init__(self, stack: Stack, functions: FunctionsProcess) -> None:
        self.stack = stack
        self.functions = functions
        self.target: Entry = {}
        self.log: list[Entry] = []
        self.events: list[tuple[float, str]] = []
        self.stop = asyncio.Event()
        self.began = time.monotonic()
        self.began_at = time.time()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def seconds_of(self, at: float) -> float:
        """Seconds since the start at which the functions' clock showed `at`."""
        return self.functions.clock.true_time(at) - self.began_at

    @property
    def line(self) -> str:
        """What the newest decision says."""
        return self.target.get("line") or ""

    def check(self) -> None:
        """Raises ProcessError when a server is gone."""
        check_running(self.stack, self.functions)

    async def read(self, api: FunctionsApi) -> None:
        """Takes in what the functions say now; what fails, the next look will show."""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            self.target = await api.target()
            self.log = await api.latest()
