"""Child processes that are waited for, stopped by their id, and never outlive this one. POSIX only."""

import asyncio
import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

_POLL_S = 0.02
_LOWEST_PORT, _HIGHEST_PORT = 20_000, 32_767
_CHANCE = random.SystemRandom()  # tests of one seed in several processes would choose the same ports

# Run in the child before the program itself: asks Linux to end the child when its parent ends, however that happens.
# A tiny wrapper rather than preexec_fn, which may deadlock in a process with threads. The request survives exec; if
# the parent was already gone when it was made, the wrapper ends by itself.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


class ProcessError(RuntimeError):
    """A child process did not start, did not become ready in time, or ended by itself."""


class ChildProcess:
    """One child process in a process group of its own, its output kept in an unnamed temporary file.

    start() must be called from a thread that lives as long as the child is wanted, in practice the main thread:
    Linux counts the end of the starting *thread* as the end of the parent. All else may be called from any thread: one may
    wait until the process is ready while another stops it.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare; `name` is used in messages, `env` is added to the environment of this process."""
        self.name = name
        self._argv = [str(argument) for argument in argv]
        self._cwd = cwd
        self._env = dict(env or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._stopping = threading.Lock()

    @property
    def pid(self) -> int:
        process = self._process
        if process is None:
            raise ProcessError(f"{self.name} was not started")
        return process.pid

    @property
    def running(self) -> bool:
        process = self._process
        return process is not None and process.poll() is None

    def start(self) -> None:
        """Spawn the process; returns at once. Raises ProcessError if it runs already or cannot be spawned."""
        if self._process is not None:
            raise ProcessError(f"{self.name} was already started")
        output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process; closed by stop()
        try:
            self._process = subprocess.Popen(
                [*_dying_with_parent(), *self._argv],
                cwd=self._cwd,
                env={**os.environ, **self._env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal reaches us only; we stop the children in order
            )
        except OSError as error:
            output.close()
            raise ProcessError(f"{self.name} could not be started: {error}") from error
        self._output = output

    def wait_until_ready(self, is_ready: Callable[[], bool], *, timeout_s: float) -> None:
        """Block until is_ready() says so; it is asked from this thread, some fifty times a second.

        Let it look at what the process itself wrote rather than at a port, where somebody else may be listening.
        Raises ProcessError, quoting the end of the output, if the process ends first or the time is over.
        """
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            if not self.running:
                raise ProcessError(f"{self.name} ended before it was ready{self._quoted_output()}")
            if time.monotonic() > deadline:
                raise ProcessError(f"{self.name} was not ready within {timeout_s:g} s{self._quoted_output()}")
            time.sleep(_POLL_S)

    def output_tail(self, lines: int = 20) -> str:
        """The last lines the process wrote to its standard output and error."""
        with self._stopping:
            if self._output is None:
                return ""
            size = os.fstat(self._output.fileno()).st_size
            start = max(
                0, size - 16_384
            )  # far more than 20 lines; a long-lived child may have written megabytes
            # pread leaves alone the file offset, at which the child writes: the two processes share it.
            tail = os.pread(self._output.fileno(), size - start, start).decode(errors="replace")
        return "\n".join(tail.splitlines()[-lines:])

    def kill(self) -> None:
        """SIGKILL to the process and its group, if it runs; stop() is due all the same."""
        process = self._process
        if process is not None and process.poll() is None:
            _signal_group(process, signal.SIGKILL)

    def stop(self, *, grace_s: float = 5.0) -> int | None:
        """End the process and its group: SIGTERM, then SIGKILL after grace_s. Blocks until it is gone; idempotent.

        The exit status, negative for the signal that ended it; None if it was not started, or stopped before.
        """
        with self._stopping:
            process = self._process
            if process is None:
                return None
            if process.poll() is None:
                _signal_group(process, signal.SIGTERM)
                try:
                    process.wait(grace_s)
                except subprocess.TimeoutExpired:
                    _signal_group(process, signal.SIGKILL)
                    process.wait()
            if self._output is not None:
                self._output.close()
            self._process = self._output = None
            return process.returncode

    async def stop_async(self, *, grace_s: float = 5.0) -> int | None:
        """stop() for callers on an event loop."""
        return await asyncio.to_thread(self.stop, grace_s=grace_s)

    def _quoted_output(self) -> str:
        tail = self.output_tail()
        return f"; it wrote:\n{tail}" if tail else "; it wrote nothing"


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    # ESRCH: it ended between poll() and here; not yet reaped, so the id cannot belong to anybody else.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def free_ports(count: int) -> range:
    """Ports in a row of the loopback address that were free a moment ago.

    They are below those that systems give to clients (Linux from 32768, macOS and Windows from 49152): a port that a server
    releases stays free for its next start. Of those that the system chooses for port 0, a client had taken one in between.

    Raises ProcessError if none are found.
    """
    for _ in range(1000):
        first = _CHANCE.randrange(_LOWEST_PORT, _HIGHEST_PORT + 1 - count)
        ports = range(first, first + count)
        if all(map(port_is_free, ports)):
            return ports
    raise ProcessError(f"no {count} free ports in a row from {_LOWEST_PORT} to {_HIGHEST_PORT}")


def port_is_free(port: int) -> bool:
    """Tell whether a server could listen on this port of the loopback address now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: TIME_WAIT is no obstacle
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _dying_with_parent() -> list[str]:
    if not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "prctl"):
        return []
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid())]
