"""The options of the source "eventhubs_capture", and which files a task reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from spark_jobs.errors import InputError
from spark_jobs.platform.source_options import STORAGE, check_secrets, positive
from spark_jobs.schemas import EVENTS
from spark_jobs.sources.capture.layout import DEFAULT, ENDING, CaptureLayout, Place
from spark_jobs.sources.files.input_files import Folder, Quarantine, packed

NAME = "eventhubs_capture"


PARTITION_BYTES = 32 << 20
"""About one second of decoding: enough to outweigh a task's start, little enough to keep all cores busy."""


class CaptureFile(NamedTuple):
    name: str
    size: int
    place: Place


@dataclass(frozen=True)
class CaptureSettings:
    """The options, parsed. Raises InputError naming the one at fault."""

    path: str
    layout: str
    quarantine: str | None
    columns: tuple[str, ...]
    storage: dict[str, Any]
    partition_bytes: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> CaptureSettings:
        check_secrets(options)
        path = options.get("path")
        if not path:
            raise InputError(f'the source "{NAME}" needs a path: the folder of the capture files')
        storage = options.get(STORAGE)
        return cls(
            path=path,
            layout=options.get("layout") or DEFAULT,
            quarantine=options.get("quarantine") or None,
            columns=_columns(options.get("columns")),
            storage=json.loads(storage) if storage else {},
            partition_bytes=positive("partitionBytes", options.get("partitionBytes") or str(PARTITION_BYTES)),
        )

    def folder(self) -> Folder:
        return Folder(self.path, self.storage)

    def quarantined(self) -> Quarantine | None:
        return Quarantine(self.quarantine, self.folder(), self.storage) if self.quarantine else None

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
