"""An event loop that blocking callers run in their own threads."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from asyncio.events import (
    _get_running_loop,  # documented for event loops; get_running_loop raises without one
)
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

_Result = TypeVar("_Result")

_IDLE = 0.5
"""Seconds between two turns of the loop while nobody calls: connections answer what the service asks meanwhile. Chosen: far
below the idle timeout of a connection, which is minutes.
"""
_MOMENT = 0.005  # seconds of such a turn; chosen: several rounds of the loop


class SharedLoop:
    """Runs coroutines of any thread on one loop. The first caller runs the loop; others hand their calls to it.

    When the first call ends before the others, a thread of this class goes on with the loop. `closing` is held by who closes it.
    """

    def __init__(self) -> None:
        self.closing = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._turn = threading.Lock()  # held by the thread that runs the loop
        self._count_lock = threading.Lock()
        self._handed_over = 0  # calls that wait for another thread to run the loop
        self._changed = asyncio.Event()  # on the loop: a call that was handed over has ended
        self._wake = threading.Event()
        self._is_ending = False
        self._thread = threading.Thread(target=self._go_on, name="publisher", daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        return self._loop.is_closed()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """The result of the coroutine. An interrupt cancels it, and is raised once it has ended."""
        is_within_loop = _get_running_loop() is not None
        if is_within_loop or not self._turn.acquire(blocking=False):
            return self._hand_over(work)
        try:
            task = self._loop.create_task(work)
            with _cancel_on_interrupt(self._loop, task) as interrupts:
                try:
                    return self._loop.run_until_complete(task)
                except asyncio.CancelledError:
                    if interrupts:
                        raise KeyboardInterrupt from None
                    raise
                except BaseException:
                    self._leave(task)
                    raise
        finally:
            self._turn.release()
            if self._handed_over:
                self._wake.set()

    def _leave(self, task: asyncio.Task[Any]) -> None:
        """Cancel a task that an exception of a signal handler has left, and let it end on the other thread."""
        if not task.done():
            with self._count_lock:
                self._handed_over += 1
            task.add_done_callback(self._forget)
            task.cancel()

    def _hand_over(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        with self._count_lock:
            self._handed_over += 1
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        future.add_done_callback(self._forget)
        self._wake.set()
        try:
            return future.result()
        except BaseException:
            future.cancel()  # an interrupt; otherwise it has ended
            raise

    def _forget(self, _: object) -> None:
        with self._count_lock:
            self._handed_over -= 1
        self._loop.call_soon_threadsafe(self._changed.set)

    def _go_on(self) -> None:
        """Run the loop while calls were handed over, and for a moment when it was idle for long."""
        while not self._is_ending:
            self._wake.wait(_IDLE)  # a call that is handed over sets it
            self._wake.clear()
            with self._turn:
                if not self._is_ending:
                    self._loop.run_until_complete(self._until_done())
        with self._turn:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def _until_done(self) -> None:
        await asyncio.sleep(_MOMENT)
        while self._handed_over:
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        self._is_ending = True
        self._wake.set()
        self._thread.join()


@contextlib.contextmanager
def _cancel_on_interrupt(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> Iterator[list[int]]:
    """Let SIGINT cancel the task, as asyncio.Runner does, instead of ending it in the middle of a step. Yields the signals."""
    interrupts: list[int] = []
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield interrupts
        return

    def cancel(number: int, _: object) -> None:
        if interrupts:
            raise KeyboardInterrupt
        interrupts.append(number)
        task.cancel()
        loop.call_soon_threadsafe(lambda: None)  # wakes the selector

    signal.signal(signal.SIGINT, cancel)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
