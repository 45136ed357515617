"""The options of the source "eventhubs_capture", and which files a task reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from spark_jobs.errors import InputError
from spark_jobs.schemas import EVENTS
from spark_jobs.sources.capture.layout import DEFAULT, ENDING, CaptureLayout, Place
from spark_jobs.sources.files.input_files import FileOptions, packed

NAME = "eventhubs_capture"


PARTITION_BYTES = 32 << 20
"""About one second of decoding: enough to outweigh a task's start, little enough to keep all cores busy."""


class CaptureFile(NamedTuple):
    name: str
    size: int
    place: Place


@dataclass(frozen=True)
class CaptureSettings(FileOptions):
    """The options, parsed. Raises InputError naming the one at fault."""

    layout: str
    columns: tuple[str, ...]

    @classmethod
    def of(cls, options: Mapping[str, str]) -> CaptureSettings:
        layout, columns = options.get("layout") or DEFAULT, _columns(options.get("columns"))
        files = "the capture files"
        return cls.read(options, NAME, files, PARTITION_BYTES, layout=layout, columns=columns)

    def files(self) -> list[CaptureFile]:
        layout = CaptureLayout(self.layout)
        return [CaptureFile(*found, layout.place(found.name)) for found in self.folder().find(ENDING)]

    def tasks(self) -> list[list[CaptureFile]]:
        return packed(self.files(), self.partition_bytes)


def _columns(text: str | None) -> tuple[str, ...]:
    names = tuple(EVENTS.fieldNames())
    if not text:
        return names
    chosen = {name.strip() for name in text.split(",")}
    unknown = sorted(chosen - set(names))
    if unknown:
        raise InputError(f"columns name {', '.join(unknown)}; accepted: {', '.join(names)}")
    return tuple(name for name in names if name in chosen)
