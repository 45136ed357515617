"""Several worker processes on one machine: the SDKs keep one Python process to one core.

The parent receives nothing itself. It passes SIGTERM and SIGINT on, replaces a worker that was killed, and stops all
when one ends by itself with an error: what one may not go on with, the others may not either. When the parent itself is
killed, its workers notice (consumer/running/worker.py) and stop in order.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from consumer.running.worker import Worker

log = logging.getLogger("tidemark.consumer")

_LOOK = 0.2  # seconds between two looks at the workers
_AGAIN = (
    1.0  # seconds until a killed worker is replaced; twice as many with each one in a row that did not last
)
_MOST = 30.0  # seconds at most: as long as the leases of a killed one last, by default
_LASTED = 60.0  # seconds after which a worker that is killed did not die of its start


class _Fleet:
    def __init__(self, command: list[str], processes: int) -> None:
        self._command = command
        self._due = [0.0] * processes
        self._started_at = [0.0] * processes
        self._deaths = [0] * processes  # in a row
        self.workers: list[subprocess.Popen[bytes] | None] = [None] * processes
        self.status: int | None = None
        self.stopping = False

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.stop(signal.Signals(number).name)

    def stop(self, why: str) -> None:
        if not self.stopping:
            log.info("%s: stopping %d workers", why, len(self.workers))
        self.stopping = True
        for worker in self.workers:
            if worker is not None and worker.poll() is None:
                worker.send_signal(signal.SIGTERM)

    def look(self, now: float) -> bool:
        """Starts and replaces workers; True while there is something to wait for."""
        running = 0
        for index, worker in enumerate(self.workers):
            status = None if worker is None else worker.poll()
            if worker is not None and status is None:
                running += 1
            elif (
                self.stopping
            ):  # one that ended by our own signal had not come to listening: nothing was begun
                self._ended(0 if status == -signal.SIGTERM else status)
            elif worker is None or (status is not None and status < 0):
                if worker is not None:
                    self._bury(index, worker, -(status or 0), now)
                if now >= self._due[index]:
                    self._start(index, now)
                running += 1
            else:
                self._ended(status)
                self.stop(f"worker {worker.pid} ended with status {status}")
        return running > 0

    def _bury(self, index: int, worker: subprocess.Popen[bytes], killed_by: int, now: float) -> None:
        self.workers[index] = None
        if worker.stdin is not None:
            worker.stdin.close()
        lasted = now - self._started_at[index]
        self._deaths[index] = 1 if lasted >= _LASTED else self._deaths[index] + 1
        pause = min(_MOST, _AGAIN * 2.0 ** min(self._deaths[index] - 1, 10))
        self._due[index] = now + pause
        log.warning(
            "worker %d was killed (%s) after %.0f s; another takes its place in %g s",
            *(worker.pid, _name(killed_by), lasted, pause),
        )

    def _start(self, index: int, now: float) -> None:
        worker = Worker(index, len(self.workers), os.getpid())
        self._started_at[index] = now
        try:
            # Nothing is written to its standard input: that it ends with this process is what it is for.
            started = self.workers[index] = subprocess.Popen(  # noqa: S603 - ourselves
                [*self._command, "--worker", str(worker)], stdin=subprocess.PIPE
            )
        except OSError as error:  # no memory, no more processes: the others go on meanwhile
            log.warning("worker %d of %d cannot be started: %s; tried again", index + 1, worker.count, error)
            self._due[index] = now + _AGAIN
        else:
            if self.stopping:  # the order came while it was being started
                started.terminate()

    def _ended(self, status: int | None) -> None:
        if status and self.status in {None, 0}:
            self.status = status if status > 0 else 128 - status

    def kill(self) -> None:
        for worker in self.workers:
            if worker is not None and worker.poll() is None:
                log.error("worker %d did not stop in time and is killed", worker.pid)
                worker.kill()
                worker.wait()
                self._ended(-signal.SIGKILL)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def supervise(processes: int, *, seconds: float | None, grace: float, root: Path) -> int:
    """Runs workers until a signal, for so many seconds, or until one fails; the exit status.

    `grace` is how long workers may take to stop.
    """
    fleet = _Fleet([sys.executable, "-m", "consumer", "--root", str(root)], processes)
    before = {number: signal.signal(number, fleet.on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    began = time.monotonic()
    stopping_since: float | None = None
    try:
        while fleet.look(time.monotonic()):
            time.sleep(_LOOK)
            now = time.monotonic()
            if seconds is not None and now - began > seconds and not fleet.stopping:
                fleet.stop(f"{seconds:g} s are over")
            if fleet.stopping:
                stopping_since = stopping_since or now
                if now - stopping_since > grace:
                    fleet.kill()
    finally:
        fleet.kill()
        for number, handler in before.items():
            signal.signal(number, handler)
    return fleet.status or 0
