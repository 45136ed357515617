"""What is to be done later, unless the server ends before."""

import asyncio
from collections.abc import Callable


class Timers:
    def __init__(self) -> None:
        self._timers: set[asyncio.TimerHandle] = set()

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something later, unless `close` comes before."""

        def run() -> None:
            self._timers.discard(timer)
            action()

        timer = asyncio.get_running_loop().call_later(seconds, run)
        self._timers.add(timer)

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
