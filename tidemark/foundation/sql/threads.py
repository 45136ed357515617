"""A thread pool that never delays the end of the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any

_Item = tuple[Future[Any], Callable[[], Any]]


class Threads(Executor):
    """Up to `count` threads, started when first needed.

    Python joins the threads of `ThreadPoolExecutor` at its end, so one call of a driver that never returns would keep the
    process alive. These threads are daemons, and hanging calls are abandoned.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._work: SimpleQueue[_Item | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        # The thread comes first: work without a thread must not start later, when its caller has gone.
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

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - the base's
        """End idle threads now and the others after their work, without waiting."""
        for _ in self._threads:
            self._work.put(None)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, work = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:  # raised in the waiting caller
                    future.set_exception(error)
            del item, future, work  # otherwise an idle thread keeps them in memory
            self._idle.release()
