"""The options of the source "eventhubs_capture", which files a task reads, and how: whole into batches, or whole into
the quarantine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]

from spark_jobs.errors import InputError
from spark_jobs.schemas import EVENTS
from spark_jobs.sources.capture.decoder import decode_file
from spark_jobs.sources.capture.layout import DEFAULT, ENDING, CaptureLayout
from spark_jobs.sources.columns.avro_container import CorruptFileError, announced_events
from spark_jobs.sources.files.input_files import FileOptions, FoundFile, Quarantine, packed

NAME = "eventhubs_capture"

PARTITION_BYTES = 32 << 20
"""About one second of decoding: enough to outweigh a task's start, little enough to keep all cores busy."""


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

    def tasks(self) -> list[list[FoundFile]]:
        """Raises InputError for a file that is named otherwise than the layout says."""
        found = self.folder().find(ENDING)
        for file in found:
            self.layout.origin(file.name)
        return packed(found, self.partition_bytes)

    def batches(self, files: Sequence[FoundFile]) -> Iterator[pa.RecordBatch]:
        """Those of a task. Nothing is kept between two files but the settings."""
        folder, quarantine = self.folder(), self.quarantined()
        for file in files:
            try:
                data = folder.read(file.name)
            except FileNotFoundError as error:
                raise InputError(f"the capture file '{file.name}' was deleted before it was read") from error
            yield from self._decoded(file.name, data, quarantine)

    def batches_of_content(self, name: str, data: memoryview, *, url: str) -> Iterator[pa.RecordBatch]:
        """Those of a file below `url` that Spark has opened."""
        return self._decoded(name, data, self.quarantined(url))

    def _decoded(
        self, name: str, data: memoryview, quarantine: Quarantine | None
    ) -> Iterator[pa.RecordBatch]:
        try:
            batches = decode_file(data, self.layout.origin(name), self.columns)
            yield from batches if quarantine is None else list(batches)
        except CorruptFileError as error:
            if quarantine is None:
                raise InputError(
                    f"the capture file '{name}' cannot be read: {error}; give a quarantine folder to set such files aside"
                    " and go on"
                ) from error
            quarantine.take(name, data, str(error), events=max(error.events, announced_events(data)))


def _columns(text: str | None) -> tuple[str, ...]:
    names = tuple(EVENTS.fieldNames())
    if not text:
        return names
    chosen = {name.strip() for name in text.split(",")}
    unknown = sorted(chosen - set(names))
    if unknown:
        raise InputError(f"columns name {', '.join(unknown)}; accepted: {', '.join(names)}")
    return tuple(name for name in names if name in chosen)
