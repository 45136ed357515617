"""Writes telemetry records as files that may be read at any time: a file appears complete and is never changed.

The path is `date=2026-11-21/hour=08/<instance>-<n>.jsonl` below a local folder or one in a data lake, where the files are
compressed (`.jsonl.gz`). Date and hour are the records' own times in UTC. A thread writes, because file systems block. If
the folder cannot be written, the oldest records are dropped once KEPT are waiting; the consumer is not affected.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from tidemark.foundation.errors import SettingsError
from tidemark.foundation.sanitize import describe_error
from tidemark.foundation.version import install_hint
from tidemark.foundation.wording import count_text

log = logging.getLogger("tidemark.consumer")

KEPT = 100_000
"""The most records that wait for a folder that cannot be written: four hours of them with 32 partitions, days with one."""

LAKE = {"abfs", "abfss", "az"}


class TelemetryRecord(Protocol):
    @property
    def at(self) -> float: ...


class _File(Struct):
    """A file to be written. Writing it again after an unknown outcome replaces it by the same content."""

    path: str
    lines: list[bytes]


class Landing:
    """Takes records on any thread and writes them every `rotate` seconds. Call `start` first and `aclose` at the end."""

    def __init__(
        self,
        folder: str,
        instance: str,
        *,
        rotate: float = 60.0,
        options: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`options` are passed to the file system. A data lake uses the identity or AZURE_STORAGE_* variables by default.

        Raises SettingsError for a folder whose kind of file system is unknown or not installed.
        """
        self._folder = folder.rstrip("/")
        self._protocol = folder.partition("://")[0] if "://" in folder else "file"
        self._options = dict(options or ({"anon": False} if self._protocol in LAKE else {}))
        self._instance = re.sub(r"[^A-Za-z0-9._-]", "_", instance)
        self._compress = self._protocol != "file"
        self._rotate = rotate
        self._clock = clock
        self._lines: deque[tuple[float, bytes]] = deque(maxlen=KEPT)
        self._files: deque[_File] = deque()
        self._waiting = 0
        self._number = 0
        self._dropped = 0
        self._down = False
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._ended: asyncio.Future[None] | None = None
        self._thread: threading.Thread | None = None
        import fsspec.core  # type: ignore[import-untyped]  # noqa: PLC0415 - takes 0.1 s, and most write no records

        self._url_to_fs = fsspec.core.url_to_fs
        try:
            fsspec.get_filesystem_class(self._protocol)
        except (ImportError, ValueError) as error:
            raise SettingsError(
                f"CONSUMER_TELEMETRY_FOLDER is '{self._folder}': {error}; accepted: a local folder, or"
                f" abfss://container@account.dfs.core.windows.net/path ({install_hint('data-lake')})"
            ) from error

    def start(self) -> None:
        """Begins to write. Needs a running event loop."""
        loop = asyncio.get_running_loop()
        ended = self._ended = loop.create_future()

        def run() -> None:
            try:
                self._run()
            finally:
                try:
                    loop.call_soon_threadsafe(ended.cancel)  # which `aclose` waits for
                except RuntimeError:  # the loop was closed, so no task waits
                    log.debug("telemetry landed after the end")

        # A daemon: a file system that hangs must not keep the process.
        self._thread = threading.Thread(target=run, name="telemetry", daemon=True)
        self._thread.start()

    def add(self, record: TelemetryRecord) -> None:
        """Takes a record; never blocks."""
        line = msgspec.json.encode(record) + b"\n"
        with self._lock:
            self._dropped += len(self._lines) == KEPT
            self._lines.append((record.at, line))

    async def aclose(self, deadline: float) -> None:
        """Writes the remaining records, until `deadline` (of the loop's clock)."""
        if self._ended is None:
            return
        self._stop.set()
        left = max(0.0, deadline - asyncio.get_running_loop().time())
        done, _ = await asyncio.wait((self._ended,), timeout=left)
        if not done:
            log.warning(
                "%s: %s did not land in time",
                self._folder,
                count_text(self._waiting + len(self._lines), "telemetry record"),
            )
        self._ended = None

    # -- on the thread

    def _run(self) -> None:
        while not self._stop.wait(self._rotate):
            self.land()
        self.land()

    def land(self) -> None:
        """Writes all waiting records. A failure is logged once per outage, and the records wait."""
        self._collect()
        try:
            while self._files:
                self._write(self._files[0])
                self._waiting -= len(self._files.popleft().lines)
        except Exception as error:  # a file system may raise anything, and telemetry ends nothing
            if not self._down:
                log.warning(
                    "%s: telemetry records wait, writing failed: %s", self._folder, describe_error(error)
                )
            self._down = True
            return
        if self._down:
            log.info("%s: telemetry records land again, dropped: %d", self._folder, self._dropped)
        self._down, self._dropped = False, 0

    def _collect(self) -> None:
        """Turns the waiting lines into files, one per hour of their times."""
        with self._lock:
            lines, self._lines = self._lines, deque(maxlen=KEPT)
        hours: dict[str, list[bytes]] = {}
        for at, line in lines:
            time = datetime.fromtimestamp(at, UTC)
            hours.setdefault(f"date={time:%Y-%m-%d}/hour={time:%H}", []).append(line)
        ending = "jsonl.gz" if self._compress else "jsonl"
        for hour, texts in hours.items():
            # Milliseconds of the clock: higher than all numbers before, also those of an earlier process of the same name.
            self._number = max(self._number + 1, int(self._clock() * 1000))
            self._files.append(
                _File(f"{self._folder}/{hour}/{self._instance}-{self._number}.{ending}", texts)
            )
            self._waiting += len(texts)
        while self._waiting > KEPT:
            dropped = len(self._files.popleft().lines)
            self._waiting -= dropped
            self._dropped += dropped

    def _write(self, file: _File) -> None:
        data = b"".join(file.lines)
        if self._compress:
            data = gzip.compress(data, mtime=0)
        system, path = self._url_to_fs(file.path, **self._options)
        if self._protocol != "file":
            system.pipe_file(path, data)  # a blob appears when its last block is committed
            return
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.tmp")
        temporary.write_bytes(data)
        temporary.replace(target)
