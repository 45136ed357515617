"""The options of the source "eventhubs_capture", which files a task reads, and how: whole into batches, or whole into
the quarantine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]

from spark_jobs.schemas import EVENTS
from spark_jobs.sources.capture.avro_events import decode_file
from spark_jobs.sources.capture.layout import DEFAULT, ENDING, CaptureLayout
from spark_jobs.sources.columns.avro_container import CorruptFileError, announced_events, read_header
from spark_jobs.sources.files.input_files import FileOptions, Folder, FoundFile, Quarantine, packed
from spark_jobs.sources.files.path_times import FileFilter
from tidemark.analysis.errors import InputError

NAME = "eventhubs_capture"

PARTITION_BYTES = 32 << 20
"""About one second of decoding: enough to outweigh a task's start, little enough to keep all cores busy."""

_HEADER = 1 << 16  # bytes in which a header ends: Capture's has two thousand


@dataclass(frozen=True)
class CaptureFiles(FileOptions):
    """The options, parsed. Raises InputError naming the one at fault."""

    layout: CaptureLayout
    columns: tuple[str, ...]

    @classmethod
    def of(cls, options: Mapping[str, str]) -> CaptureFiles:
        layout, columns = CaptureLayout(options.get("layout") or DEFAULT), _columns(options.get("columns"))
        files = "the capture files"
        return cls.read(options, NAME, files, PARTITION_BYTES, layout=layout, columns=columns)

    def check(self) -> None:
        """Raises InputError where there are no files, none of the hub that is wanted, or the first is named otherwise than
        the layout says.
        """
        folder = self.folder()
        first = folder.first(ENDING)
        if first is None:
            raise InputError(f"there are no capture files (*{ENDING}) in '{self.path}'")
        hub, name = self.wanted.hub, self.layout.origin(first.name).hub
        if (
            hub is not None
            and folder.first(ENDING, self.layout.look(first.name, FileFilter(hub=hub))) is None
        ):
            raise InputError(
                f"the capture files in '{self.path}' are of the hub '{name}', none is of '{hub}' (EVENTHUB_NAME)"
            )

    def tasks(self) -> list[list[FoundFile]]:
        """Raises InputError for a file that is named otherwise than the layout says."""
        folder = self.folder()
        first = None if self.wanted == FileFilter() else folder.first(ENDING)
        found_files = folder.find(
            ENDING, None if first is None else self.layout.look(first.name, self.wanted)
        )
        for file in found_files:
            self.layout.origin(file.name)
        return packed(found_files, self.partition_bytes, lambda _name: True)

    def batches(self, files: Sequence[FoundFile]) -> Iterator[pa.RecordBatch]:
        """Those of a task. Nothing is kept between two files but the settings."""
        folder, quarantine = self.folder(), self.quarantined()
        for file in files:
            try:
                data, piece = _content(folder, file)
            except FileNotFoundError as error:
                raise InputError(f"the capture file '{file.name}' was deleted before it was read") from error
            if data.nbytes:
                yield from self._decoded(file.name, data, quarantine, piece)
            elif not piece:
                yield from self._decoded(file.name, data, quarantine)

    def batches_of_content(self, name: str, data: memoryview, *, url: str) -> Iterator[pa.RecordBatch]:
        """Those of a file below `url` that Spark has opened."""
        return self._decoded(name, data, self.quarantined(url))

    def _decoded(
        self, name: str, data: memoryview, quarantine: Quarantine | None, piece: str = ""
    ) -> Iterator[pa.RecordBatch]:
        try:
            batches = decode_file(data, self.layout.origin(name), self.columns)
            yield from batches if quarantine is None else list(batches)
        except CorruptFileError as error:
            if quarantine is None:
                where = f", its {piece.replace('-', ' ')}" if piece else ""
                raise InputError(
                    f"the capture file '{name}'{where} cannot be read: {error}; give a quarantine folder to set such files"
                    " aside and go on"
                ) from error
            events = max(error.events, announced_events(data))
            quarantine.take(name, data, str(error), piece=piece, events=events)


def _content(folder: Folder, file: FoundFile) -> tuple[memoryview, str]:
    """What a task decodes, and what to call it where it is a piece: a header and whole blocks, as in a file of their own.

    Blocks belong to the piece in which the sync marker before them ends. A file without a header is the first piece's.
    """
    if file.end is None:
        return folder.read(file.name), ""
    try:
        header = read_header(folder.read(file.name, 0, _HEADER))
    except CorruptFileError:
        return (
            folder.read(file.name) if file.begin == 0 else memoryview(b"")
        ), "" if file.begin == 0 else "rest"
    begin, end = (
        header.end if at <= header.end else folder.behind(file, header.sync, at - 1)
        for at in (file.begin, file.end)
    )
    piece = f"bytes-{begin}-{end}"
    if begin == end:
        return memoryview(b""), piece
    head = bytes(folder.read(file.name, 0, header.end))
    return memoryview(head + bytes(folder.read(file.name, begin, end))), piece


def _columns(text: str | None) -> tuple[str, ...]:
    names = tuple(EVENTS.fieldNames())
    if not text:
        return names
    chosen = {name.strip() for name in text.split(",")}
    unknown = sorted(chosen - set(names))
    if unknown:
        raise InputError(f"columns name {', '.join(unknown)}; accepted: {', '.join(names)}")
    return tuple(name for name in names if name in chosen)
