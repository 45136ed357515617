"""How far a stream over capture files has come: an offset of plain values for Spark's checkpoint. Pure.

Capture writes each partition's files in the order of their windows, so per partition the last file taken says which
were. `taken` counts all files ever taken and `present` those at or before the last that were there then: so files that
turn up late, or vanish before they were read, are noticed instead of lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from spark_jobs.errors import InputError
from spark_jobs.sources.capture_layout import Place

Offset = dict[str, dict[str, Any]]
"""By "hub/partition": `file`, `taken`, `present`. Empty before the first file."""


class CaptureFile(NamedTuple):
    name: str
    size: int
    place: Place

    @property
    def stream(self) -> str:
        return f"{self.place.hub}/{self.place.partition}"

    @property
    def order(self) -> tuple[tuple[int, ...], str]:
        return self.place.time, self.name


def latest_offset(
    start: Offset,
    files: Iterable[CaptureFile],
    *,
    limit: int | None = None,
    ceiling: Mapping[str, Any] | None = None,
    layout: Any,
) -> Offset:
    """The offset after the next files, at most `limit`, the oldest windows first over all partitions.

    `ceiling` is the greatest order to go to by partition; `layout.place` gives the place of a file by its name. The
    newest file of a partition is left for later while it is empty: it is being written. Raises InputError where a
    file turned up behind the last one taken.
    """
    due: list[CaptureFile] = []
    by_stream = _by_stream(files)
    for stream, found in by_stream.items():
        last = _last(start, stream, layout)
        _check_late(start, stream, found, last)
        following = [file for file in found if last is None or file.order > last]
        if following and not following[-1].size:
            following.pop()
        if ceiling is not None:
            following = [f for f in following if stream in ceiling and f.order <= ceiling[stream]]
        due += following
    due.sort(key=lambda file: (file.place.time, file.stream, file.name))
    return _advanced(start, due[:limit], by_stream)


def files_between(
    start: Offset, end: Offset, files: Iterable[CaptureFile], *, layout: Any
) -> list[CaptureFile]:
    """The files of a batch, as many as its offsets say. Raises InputError where some are gone."""
    chosen: list[CaptureFile] = []
    by_stream = _by_stream(files)
    for stream, entry in end.items():
        expected = entry["taken"] - start.get(stream, {"taken": 0})["taken"]
        last, until = _last(start, stream, layout), _last(end, stream, layout)
        found = [
            file
            for file in by_stream.get(stream, [])
            if until is not None and (last is None or file.order > last) and file.order <= until
        ]
        if len(found) != expected:
            raise InputError(
                f"{len(found)} capture files of '{stream}' are there up to '{entry['file']}', but the stream's"
                f" checkpoint counted {expected}: some were deleted or added before they were read"
            )
        chosen += found
    return chosen


def _by_stream(files: Iterable[CaptureFile]) -> dict[str, list[CaptureFile]]:
    found: dict[str, list[CaptureFile]] = {}
    for file in files:
        found.setdefault(file.stream, []).append(file)
    for group in found.values():
        group.sort(key=lambda file: file.order)
    return found


def _last(offset: Offset, stream: str, layout: Any) -> tuple[tuple[int, ...], str] | None:
    if stream not in offset:
        return None
    name = offset[stream]["file"]
    return layout.place(name).time, name


def _check_late(start: Offset, stream: str, found: list[CaptureFile], last: Any) -> None:
    if last is None:
        return
    behind = [file.name for file in found if file.order <= last]
    if len(behind) > start[stream]["present"]:
        raise InputError(
            f"{len(behind)} capture files of '{stream}' are there up to '{last[1]}', which were"
            f" {start[stream]['present']} when the stream passed them: at least one came late and was not read."
            " Read them with the batch source, or begin with a new checkpoint"
        )


def _advanced(start: Offset, taken: list[CaptureFile], by_stream: dict[str, list[CaptureFile]]) -> Offset:
    end = {stream: dict(entry) for stream, entry in start.items()}
    for file in taken:
        before = end.get(file.stream, {"taken": 0})["taken"]
        present = sum(other.order <= file.order for other in by_stream[file.stream])
        end[file.stream] = {"file": file.name, "taken": before + 1, "present": present}
    return end
