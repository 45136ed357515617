"""How far a stream over capture files has come: an offset of plain values for Spark's checkpoint. Pure.

The offset is the set of all files ever taken. So a file is taken when it is not in the set, however late it comes and
however old its window is, and files that were taken may be deleted. Capture names files by their windows, one after the
other at a fixed distance: a set of names is a few runs of times, and a year of a partition takes no more room than a day.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from spark_jobs.errors import InputError
from spark_jobs.sources.capture.layout import CaptureLayout, Place

Run = list[int]
"""Times in seconds since 1970: the first, the distance between two, and how many. The distance of one time alone is 0."""

Offset = dict[str, list[Run]]
"""By series, the times of the files taken: runs in ascending order that do not overlap. Empty before the first file."""

_SHOWN = 3  # files in an error message


class CaptureFile(NamedTuple):
    name: str
    size: int
    place: Place

    @property
    def stream(self) -> str:
        return f"{self.place.hub}/{self.place.partition}"

    @property
    def order(self) -> tuple[tuple[int, ...], str, str]:
        """The oldest windows first, over all partitions."""
        return self.place.time, self.stream, self.name


def latest_offset(
    start: Offset,
    files: Iterable[CaptureFile],
    *,
    limit: int | None = None,
    ceiling: frozenset[str] | None = None,
    layout: CaptureLayout,
) -> Offset:
    """The offset after the next files, at most `limit`, the oldest windows first over all partitions.

    `ceiling` holds the names that may be taken; None bounds nothing. The newest file of a partition is left for later
    while it is empty: it is being written.
    """
    found = list(files)
    newest: dict[str, CaptureFile] = {}
    for file in found:
        if file.stream not in newest or file.order > newest[file.stream].order:
            newest[file.stream] = file
    due = [
        file
        for file in found
        if (file.size or newest[file.stream] is not file)
        and (ceiling is None or file.name in ceiling)
        and not _holds(start, *layout.series(file.name))
    ]
    due.sort(key=lambda file: file.order)
    times: dict[str, list[int]] = {}
    for file in due[:limit]:
        series, at = layout.series(file.name)
        times.setdefault(series, []).append(at)
    return {**start, **{series: added(start.get(series, []), new) for series, new in times.items()}}


def files_between(
    start: Offset, end: Offset, files: Iterable[CaptureFile], *, layout: CaptureLayout
) -> list[CaptureFile]:
    """The files of a batch: those in `end` and not in `start`. Raises InputError where one of them is gone."""
    check(start)
    wanted = {
        (series, at)
        for series, runs in end.items()
        if runs != start.get(series)
        for at in _times(runs)
        if not _holds(start, series, at)
    }
    chosen = [file for file in files if layout.series(file.name) in wanted]
    gone = wanted - {layout.series(file.name) for file in chosen}
    if gone:
        told = "; ".join(
            f"'{series}' of {datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"
            for series, at in sorted(gone)[:_SHOWN]
        )
        raise InputError(
            f"{len(gone)} capture files of this batch were deleted before they were read (the digits of a name's time are"
            f" shown as #): {told}. Begin with a new checkpoint, or put them back"
        )
    return sorted(chosen, key=lambda file: file.order)


def check(offset: Offset) -> None:
    """Raises InputError for an offset that holds no set of files, as those of earlier versions."""
    if not all(isinstance(runs, list) for runs in offset.values()):
        raise InputError(
            "the stream's checkpoint is of an earlier version, which counted files and did not name them; begin with a"
            " new checkpoint"
        )


def added(runs: Sequence[Run], times: Iterable[int]) -> list[Run]:
    """The runs with more times, none of which they hold. What ends before the first of them stays as it is."""
    new = sorted(times)
    place = bisect_right(runs, new[0], key=lambda run: run[0])
    before, after = runs[: max(0, place - 1)], runs[max(0, place - 1) :]
    return [*before, *_runs(sorted({*_times(after), *new}))]


def _runs(times: Sequence[int]) -> list[Run]:
    """As few as one walk over the times finds."""
    found: list[Run] = []
    for at in times:
        if found:
            first, step, count = found[-1]
            if count == 1 or at == first + step * count:
                found[-1] = [first, (at - first) // count, count + 1]
                continue
        found.append([at, 0, 1])
    return found


def _times(runs: Iterable[Run]) -> Iterable[int]:
    return (first + step * place for first, step, count in runs for place in range(count))


def _holds(offset: Offset, series: str, at: int) -> bool:
    runs = offset.get(series, [])
    place = bisect_right(runs, at, key=lambda run: run[0]) - 1
    if place < 0:
        return False
    first, step, count = runs[place]
    return at == first or (step > 0 and (at - first) % step == 0 and (at - first) // step < count)
