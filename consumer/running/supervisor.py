"""Runs several worker processes on one machine, because one Python process uses only one core.

The parent receives no events. It passes SIGTERM and SIGINT on and replaces a worker that was killed. When a worker ends by
itself with an error, the parent stops all of them, because the error concerns all. When the parent is killed, its workers
notice (consumer/running/worker.py) and stop in order.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import time
from pathlib import Path

from consumer.probes.fleet import FleetAnswers, worker_port
from consumer.probes.server import EVERYWHERE, ProbeServer
from consumer.running.worker import Worker

log = logging.getLogger("tidemark.consumer")

_POLL_EVERY = 0.2  # seconds between two polls of the workers
_FIRST_PAUSE = 1.0
"""Seconds before a killed worker is replaced; doubled with each death in a row."""
_LONGEST_PAUSE = 30.0
"""Seconds at most: by default the leases of a killed worker expire after the same time (CONSUMER_LEASE_EXPIRY)."""
_LASTED = 60.0
"""Seconds after which the death of a worker no longer counts as a failed start: some twenty times what a start takes."""


class _Fleet:
    def __init__(self, command: list[str], processes: int) -> None:
        self._command = command
        self._due = [0.0] * processes
        self._started_at = [0.0] * processes
        self._deaths = [0] * processes  # in a row
        self.workers: list[subprocess.Popen[bytes] | None] = [None] * processes
        self.status: int | None = None
        self.stopping = False

    def stop(self, why: str) -> None:
        if not self.stopping:
            log.info("%s: stopping %d workers", why, len(self.workers))
        self.stopping = True
        for worker in self.workers:
            if worker is not None and worker.poll() is None:
                worker.send_signal(signal.SIGTERM)

    def poll(self, now: float) -> bool:
        """Starts and replaces workers; True while a worker runs or is to be started."""
        running = 0
        for index, worker in enumerate(self.workers):
            status = None if worker is None else worker.poll()
            if worker is not None and status is None:
                running += 1
            elif self.stopping:
                # A worker that the SIGTERM ended had not installed its handler yet, so it had begun nothing.
                self._note_status(0 if status == -signal.SIGTERM else status)
            elif worker is None or (status is not None and status < 0):
                if worker is not None:
                    self._schedule_replacement(index, worker, -(status or 0), now)
                if now >= self._due[index]:
                    self._start(index, now)
                running += 1
            else:
                self._note_status(status)
                self.stop(f"worker {worker.pid} ended with status {status}")
        return running > 0

    def _schedule_replacement(
        self, index: int, worker: subprocess.Popen[bytes], killed_by: int, now: float
    ) -> None:
        self.workers[index] = None
        if worker.stdin is not None:
            worker.stdin.close()
        lasted = now - self._started_at[index]
        self._deaths[index] = 1 if lasted >= _LASTED else self._deaths[index] + 1
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self._deaths[index] - 1, 10))
        self._due[index] = now + pause
        log.warning(
            "worker %d was killed (%s) after %.0f s; another takes its place in %g s",
            *(worker.pid, _name(killed_by), lasted, pause),
        )

    def _start(self, index: int, now: float) -> None:
        worker = Worker(index, len(self.workers))
        self._started_at[index] = now
        try:
            # Its standard input is a pipe that is never written: by its end the worker knows that this process is gone.
            started = self.workers[index] = subprocess.Popen(  # noqa: S603 - ourselves
                [*self._command, "--worker", str(worker)], stdin=subprocess.PIPE
            )
        except OSError as error:  # no memory, or too many processes: the other workers continue
            log.warning("worker %d of %d cannot be started: %s; tried again", index + 1, worker.count, error)
            self._due[index] = now + _FIRST_PAUSE
        else:
            if self.stopping:  # the order to stop came during the start
                started.terminate()

    def _note_status(self, status: int | None) -> None:
        if status and self.status in {None, 0}:
            self.status = status if status > 0 else 128 - status

    def ages(self) -> list[float | None]:
        """By worker the seconds since its start; None for one that does not run. Called on other threads."""
        now, workers = time.monotonic(), list(self.workers)
        return [
            None if worker is None or worker.returncode is not None else now - self._started_at[index]
            for index, worker in enumerate(workers)
        ]

    def kill(self) -> None:
        for worker in self.workers:
            if worker is not None and worker.poll() is None:
                log.error("worker %d did not stop in time and is killed", worker.pid)
                worker.kill()
                worker.wait()
                self._note_status(-signal.SIGKILL)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def supervise(
    processes: int,
    *,
    seconds: float | None,
    grace: float,
    root: Path,
    http_port: int = 0,
    hub: str | None = None,
    until: str | None = None,
) -> int:
    """Runs workers until a signal, for `seconds`, or until one fails; returns the exit status.

    Workers may take `grace` seconds to stop; then they are killed. At `http_port`, if it is not 0, this process answers
    probes for all of them. With `hub` they consume this one only, with `until` up to that position. Raises SettingsError if that port is taken.
    """
    given = {"--hub": hub, "--until": until}
    options = [text for name, value in given.items() if value is not None for text in (name, value)]
    fleet = _Fleet([sys.executable, "-m", "consumer", "--root", str(root), *options], processes)
    signals = (signal.SIGTERM, signal.SIGINT)
    before = {s: signal.signal(s, lambda number, _: fleet.stop(signal.Signals(number).name)) for s in signals}
    began = time.monotonic()
    stopping_since: float | None = None
    probes: ProbeServer | None = None
    try:
        if http_port:
            ports = [worker_port(http_port, index) for index in range(processes)]
            probes = ProbeServer(EVERYWHERE, http_port, FleetAnswers(ports, fleet.ages))
        while fleet.poll(time.monotonic()):
            time.sleep(_POLL_EVERY)
            now = time.monotonic()
            if seconds is not None and now - began > seconds and not fleet.stopping:
                fleet.stop(f"{seconds:g} s are over")
            if fleet.stopping:
                stopping_since = stopping_since or now
                if now - stopping_since > grace:
                    fleet.kill()
    finally:
        fleet.kill()
        if probes is not None:
            probes.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    return fleet.status or 0
