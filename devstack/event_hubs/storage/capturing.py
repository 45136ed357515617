"""Capture at work: a reader of all partitions that writes files, off the event loop."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

import msgspec

from devstack.amqp.wire.errors import ProtocolError
from devstack.event_hubs.storage.capture import (
    CapturedEvent,
    CaptureSettings,
    PartitionWriter,
    captured_event,
    require_fastavro,
)
from devstack.event_hubs.storage.hubs import Hub, Hubs, Partition
from devstack.event_hubs.storage.log import Clock, Stored

_PAUSE = 0.25  # seconds between two looks at what is new
_AT_ONCE = 2000  # events that one visit to the disk takes along
_PROGRESS = ".captured"  # folder of what tells a server that starts again where to go on
_log = logging.getLogger(__name__)


P = ParamSpec("P")
T = TypeVar("T")


class _Progress(msgspec.Struct, frozen=True):
    """How far the whole files of a partition reach; `created_at` tells a hub from its namesakes."""

    created_at: float
    next_sequence_number: int


class _Track:
    """One partition: what of it is written. Its methods block on the disk."""

    def __init__(
        self, settings: CaptureSettings, hub: Hub, partition: Partition, files: list[Path], now: float
    ) -> None:
        self.partition = partition
        self._created_at = hub.created_at
        self._progress = settings.folder / _PROGRESS / settings.namespace / hub.name / f"{partition.id}.json"
        self._writer = PartitionWriter(settings, hub.name, partition.id, files, since=now)
        self.next_sequence_number = self._saved = self._load()

    def write(self, batch: list[Stored]) -> None:
        for stored in batch:
            try:
                event = captured_event(self.partition.id, stored)
            except ProtocolError as error:
                event = self._unreadable(stored, error)
            self._writer.add(event)
        self.next_sequence_number = batch[-1].sequence_number + 1
        self._save()

    def is_over(self, now: float) -> bool:
        """Whether the window has ended; does not block."""
        return self._writer.is_over(now)

    def advance(self, now: float) -> None:
        self._writer.advance(now)
        self._save()

    def close(self) -> None:
        self._writer.close()
        self._save()

    def abandon(self) -> None:
        """Let go of a file that could not be finished."""
        self._writer.abandon()

    def _load(self) -> int:
        with suppress(FileNotFoundError):
            saved = msgspec.json.decode(self._progress.read_bytes(), type=_Progress)
            if saved.created_at == self._created_at:
                return saved.next_sequence_number
        return 0

    def _save(self) -> None:
        """Once a file is whole, never before: a kill in between writes one file twice, and loses nothing."""
        in_file = self._writer.first_in_file
        reached = self.next_sequence_number if in_file is None else in_file
        if reached == self._saved:
            return
        self._progress.parent.mkdir(parents=True, exist_ok=True)
        written = self._progress.with_suffix(".new")
        written.write_bytes(msgspec.json.encode(_Progress(self._created_at, reached)))
        written.replace(self._progress)
        self._saved = reached

    def _unreadable(self, stored: Stored, error: ProtocolError) -> CapturedEvent:
        _log.warning(
            "event %d of partition %s is no AMQP message, its bytes are captured as its body: %s",
            stored.sequence_number,
            self.partition.id,
            error,
        )
        return captured_event(self.partition.id, stored._replace(message=b""))._replace(body=stored.message)


class Capture:
    """Writes files from all that the hubs receive.

    `run` until it is cancelled, then `close`. `files` are the ones that are whole, oldest first.
    Raises CaptureError without fastavro or what the codec needs.
    """

    def __init__(self, settings: CaptureSettings, hubs: Hubs, clock: Clock) -> None:
        require_fastavro(settings.codec)
        self.files: list[Path] = []
        self._settings = settings
        self._hubs = hubs
        self._clock = clock
        self._tracks: dict[Partition, _Track] = {}
        self._busy = asyncio.Lock()

    async def run(self) -> None:
        while True:
            await self._catch_up()
            await asyncio.sleep(_PAUSE)

    async def flush(self) -> list[Path]:
        """Write everything there is by now, and end the windows; returns the files that this made whole."""
        before = len(self.files)
        await self._catch_up(close=True)
        return self.files[before:]

    async def close(self) -> None:
        """Flush, and let go of all files. Raises OSError if the disk does not take what is left."""
        try:
            await self.flush()
        finally:
            for track in self._tracks.values():
                await _on_disk(track.abandon)

    async def _catch_up(self, *, close: bool = False) -> None:
        async with self._busy:
            now = self._clock()
            present = {partition: hub for hub in self._hubs for partition in hub.partitions}
            for partition, hub in present.items():
                if partition not in self._tracks:
                    self._tracks[partition] = await _on_disk(
                        _Track, self._settings, hub, partition, self.files, now
                    )
            for partition, track in list(self._tracks.items()):
                await self._write(track)
                if close or partition not in present:
                    await _on_disk(track.close)
                elif track.is_over(now):
                    await _on_disk(track.advance, now)
                if partition not in present:
                    del self._tracks[partition]

    async def _write(self, track: _Track) -> None:
        log = track.partition.log
        missed = log.begin_sequence_number - track.next_sequence_number
        if missed > 0:
            _log.warning(
                "up to %d events of partition %s were gone before they were captured, from %d on",
                missed,
                track.partition.id,
                track.next_sequence_number,
            )
        while batch := list(log.stored(track.next_sequence_number, _AT_ONCE)):
            await _on_disk(track.write, batch)


async def _on_disk(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run what blocks in a thread, to its end even if the caller is cancelled: nobody else may write meanwhile."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await work
        raise
