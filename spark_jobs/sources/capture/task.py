"""What a task does with capture files: whole into batches, or whole into the quarantine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa  # type: ignore[import-untyped]

from spark_jobs.errors import InputError
from spark_jobs.sources.capture.decoder import Source, decode_file
from spark_jobs.sources.capture.layout import CaptureLayout, Place
from spark_jobs.sources.capture.settings import CaptureFile, CaptureSettings
from spark_jobs.sources.columns.avro_container import CorruptFileError, announced_events
from spark_jobs.sources.files.input_files import Quarantine


def batches_of(settings: CaptureSettings, files: Sequence[CaptureFile]) -> Iterator[pa.RecordBatch]:
    """The batches of a task. Nothing is kept between two files but the settings."""
    folder, quarantine = settings.folder(), settings.quarantined()
    for file in files:
        try:
            data = folder.read(file.name)
        except FileNotFoundError as error:
            raise InputError(f"the capture file '{file.name}' was deleted before it was read") from error
        yield from _decoded(file.name, file.place, data, settings, quarantine)


def read_file(
    name: str, data: memoryview, *, settings: CaptureSettings, url: str
) -> Iterator[pa.RecordBatch]:
    quarantine = Quarantine(settings.quarantine, url) if settings.quarantine else None
    return _decoded(name, CaptureLayout(settings.layout).place(name), data, settings, quarantine)


def _decoded(
    name: str, place: Place, data: memoryview, settings: CaptureSettings, quarantine: Quarantine | None
) -> Iterator[pa.RecordBatch]:
    try:
        batches = decode_file(data, Source(place.hub, place.partition, name), settings.columns)
        yield from batches if quarantine is None else list(batches)
    except CorruptFileError as error:
        if quarantine is None:
            raise InputError(
                f"the capture file '{name}' cannot be read: {error}; give a quarantine folder to set such files aside and"
                " go on"
            ) from error
        quarantine.take(name, data, str(error), events=_events(data, error))


def _events(data: memoryview, error: CorruptFileError) -> int:
    return max(error.events, announced_events(data))
