"""Threads that nobody waits for longer than he likes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any

_Item = tuple[Future[Any], Callable[[], Any]]


class Threads(Executor):
    """Up to `count` threads, made when first needed.

    Those of `ThreadPoolExecutor` are joined when the interpreter ends, so that one call of a driver that never
    returns would keep the process for ever. These are daemons: what hangs is left behind.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._work: SimpleQueue[_Item | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        # First the thread: work that cannot get one is not begun later, when nobody waits for it any more.
        if len(self._threads) < self._count and not self._idle.acquire(blocking=False):
            self._start_one()
        future: Future[Any] = Future()
        self._work.put((future, lambda: work(*args, **options)))
        return future

    def _start_one(self) -> None:
        name = f"{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        thread.start()  # raises RuntimeError where the system has no more
        self._threads.append(thread)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - the base's
        """Idle threads end at once, the others after what they do; nobody is waited for."""
        for _ in self._threads:
            self._work.put(None)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, work = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:  # noqa: BLE001 - told to whoever waits
                    future.set_exception(error)
            del item, future, work  # else an idle thread keeps them
            self._idle.release()
