"""The report of a reconciliation: is everything settled, and if not, where."""

from __future__ import annotations

import os.path
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm, Normalize
from msgspec import Struct
from numpy.typing import NDArray

from consumer.model import Checkpoint
from spark_jobs.reconciliation.schemas import UNSETTLED, Identity, Status
from tidemark.analysis import plots
from tidemark.analysis.report import Report, number
from tidemark.foundation.wording import count_text, duration_text

ROWS_SHOWN = 200
"""Rows of a table in the page; the Parquet tables have all."""
_COLUMNS = 96
"""Columns of the heat map: four days of hours. More hours share columns."""
_HOUR = timedelta(hours=1)
LABELLED = 32
"""Partitions whose labels have room beside a picture."""
WRITTEN_COLUMNS = 12
"""Columns whose cells have room for their numbers: cells that are alike are a block that says nothing otherwise."""

_MEANING = {
    Status.WRITTEN: "a document is of this event",
    Status.DEAD_LETTERED: "kept as a dead letter",
    Status.PARKED: "parked: the consumer tries it again later",
    Status.SUPERSEDED: "its document was written again by a later event of the same id",
    Status.PENDING: "not due: beyond the checkpoint, or within the grace",
    Status.OVERDUE: "beyond the checkpoint for longer than the grace",
    Status.REMOVED: "not there, and need not be any more: its time to live is over, or that of the tombstone of its document; whether it was ever written is not known",
    Status.DROPPED: "nothing is made of it here, on purpose: dropped, or only for other sinks",
    Status.STALE: "its document is there, but of an earlier event",
    Status.LOST: "neither document nor dead letter",
}

_IDENTITY = {
    Identity.POSITION: "Ids are made of positions, so a document proves its event.",
    Identity.META: (
        "Ids come from the body, and documents keep the position of their last writer: it proves that event, and an earlier "
        "event of the same id is superseded by it."
    ),
    Identity.BODY: (
        "Ids come from the body, and nothing in a document names its event: a document of the event's id, written after "
        "the event was enqueued, is taken for it. An event whose id comes again later cannot be proven to have been "
        "written itself; CONSUMER_META=true makes the answer exact."
    ),
}


class Findings(Struct, frozen=True):
    """What is shown. Rows are dictionaries by the column names of schemas.py; lists of them are the first of `*_total`.

    `missing` sequence numbers are in no event, document or dead letter.
    """

    hub: str
    source: str
    identity: Identity
    counts: Mapping[Status, int]
    copies: int
    hours: Sequence[Mapping[str, Any]]
    unsettled: Sequence[Mapping[str, Any]]
    duplicates: Sequence[Mapping[str, Any]]
    duplicates_total: int
    gaps: Sequence[Mapping[str, Any]]
    gaps_total: int
    missing: int
    checkpoints: Mapping[str, Checkpoint] | None
    failed: bool
    span: tuple[datetime, datetime] | None = None
    """The first and the last hour; None: of `hours`, whose rows are those of columns of the heat map otherwise."""
    yet_to_come: str = ""
    """What the function of this name returns."""

    @property
    def events_total(self) -> int:
        return sum(self.counts.values())

    @property
    def unsettled_total(self) -> int:
        return sum(self.counts.get(status, 0) for status in UNSETTLED)


def build(findings: Findings) -> Report:
    report = Report(f"Reconciliation {findings.hub}", f"{findings.source}; {_span(findings)}")
    report.facts(_facts(findings))
    report.text(_verdict(findings))
    report.text(findings.yet_to_come)
    report.text(_IDENTITY[findings.identity])
    _statuses(report, findings)
    if findings.hours:
        _maps(report, findings)
    _unsettled(report, findings)
    columns = "partition sequence_number enqueued_at kind documents dead_letters document_id"
    total = findings.duplicates_total
    _listed(report, "Settled twice", findings.duplicates, columns, total=total, table="duplicates")
    _gaps(report, findings)
    _partitions(report, findings)
    return report


def yet_to_come(newest: datetime | None, *, now: datetime, until: datetime | None, lag: timedelta) -> str:
    """Which events capture files cannot hold yet, in words; "" where there are none. `newest` is when the last event that was
    read was enqueued, `until` and `lag` are --to and --capture-lag.
    """
    granted = duration_text(lag.total_seconds())
    if until is not None and until <= now:
        if now >= until + lag:
            return ""
        return (
            f"Files with events of before --to may still come: it is not yet {until + lag:%Y-%m-%d %H:%M:%S}Z, {granted}"
            " (--capture-lag) after it. What comes until then is not compared; run this again afterwards."
        )
    if newest is None:
        return ""
    age = now - newest
    sentence = f"The newest event in the capture files came {duration_text(max(age.total_seconds(), 0))} before this run."
    if age > lag:
        return f"{sentence} Either the hub was quiet since then, or Capture could not write: what it holds back is not compared."
    return f"{sentence} Capture writes a file when its window is over, after 15 minutes at most: what came since then is not compared."


def _facts(findings: Findings) -> dict[str, str]:
    passing = (Status.PENDING, Status.PARKED, Status.REMOVED)
    pending, parked, removed = (findings.counts.get(status, 0) for status in passing)
    return {
        "check": "failed" if findings.failed else "passed",
        "events": number(findings.events_total),
        "settled": number(findings.events_total - findings.unsettled_total - pending - parked - removed),
        "pending": number(pending),
        **({"parked": number(parked)} if parked else {}),
        **({"removed": number(removed)} if removed else {}),
        "not settled": number(findings.unsettled_total),
        "settled twice": number(findings.duplicates_total),
        "numbers missing": number(findings.missing),
    }


def _verdict(findings: Findings) -> str:
    if not findings.events_total:
        return "There is no event in what was read."
    parts = []
    if findings.unsettled_total:
        parts.append(f"{number(findings.unsettled_total)} events are due and not settled")
    if findings.duplicates_total:
        parts.append(f"{number(findings.duplicates_total)} are settled twice")
    if findings.missing:
        parts.append(f"{number(findings.missing)} sequence numbers are nowhere")
    if not parts:
        parked = findings.counts.get(Status.PARKED, 0)
        rest = (
            f", but for {count_text(parked, 'parked event')}, which the consumer tries again"
            if parked
            else ""
        )
        places = ["in Cosmos DB", "kept as a dead letter"]
        if findings.counts.get(Status.DROPPED):
            places.append("left out on purpose")
        if findings.counts.get(Status.REMOVED):
            places.append("of a document whose time to live is over")
        where = f"{', '.join(places[:-1])}{',' * (len(places) > 2)} or {places[-1]}"
        return f"Every event that is due is {where}{rest}."
    said = "; ".join(parts)
    return f"{said[0].upper()}{said[1:]}."


def _statuses(report: Report, findings: Findings) -> None:
    report.heading("What became of the events")
    rows = [(_words(status), findings.counts.get(status, 0), _MEANING[status]) for status in Status]
    report.table(("status", "events", "meaning"), rows)
    if findings.copies:
        report.text(
            f"{number(findings.copies)} events were read more than once, from overlapping capture files. Each counts once."
        )


def _maps(report: Report, findings: Findings) -> None:
    report.heading("By partition and hour")

    def unsettled(row: Mapping[str, Any]) -> int:
        return sum(int(row[status.value]) for status in UNSETTLED) + int(row["duplicates"])

    events = _grid(findings.hours, lambda row: row["events"], findings.span)
    wrong = _grid(findings.hours, unsettled, findings.span)
    report.figure(
        _heat(events, "viridis", Normalize(0)),
        caption=f"Events by the hour they were enqueued in, UTC{_range(events)}.",
        name="events",
    )
    if wrong.cells.any():
        report.figure(
            _heat(wrong, "autumn_r", LogNorm(1, max(wrong.cells.max(), 2.0))),
            caption="Events not settled though due, or settled twice. Blank: none.",
            name="findings",
        )


def _range(grid: _Grid) -> str:
    """The least and the most of the cells with any, in words: one colour alone says neither."""
    some = grid.cells[grid.cells > 0]
    if len(grid.begins) == 1 or not some.size:
        return ""
    per = "an hour" if grid.hours == 1 else f"{grid.hours} hours"
    least, most = f"{some.min():,.0f}", f"{some.max():,.0f}"
    return f": {least if least == most else f'{least} to {most}'} in {per} of a partition{'' if grid.cells.all() else ', or none'}"


class _Grid(Struct, frozen=True):
    partitions: list[str]
    begins: list[datetime]
    hours: int
    """In a column."""
    cells: NDArray[np.float64]


def column_of(first: datetime, last: datetime) -> timedelta:
    """How wide a column of the heat map is, from the first hour to the last."""
    return ((last - first) // _HOUR // _COLUMNS + 1) * _HOUR


def _hours(
    rows: Sequence[Mapping[str, Any]], span: tuple[datetime, datetime] | None
) -> tuple[datetime, datetime]:
    return span or (min(row["hour"] for row in rows), max(row["hour"] for row in rows))


def _grid(
    rows: Sequence[Mapping[str, Any]], value: Any, span: tuple[datetime, datetime] | None = None
) -> _Grid:
    partitions = sorted({row["partition"] for row in rows}, key=_natural)
    first, last = _hours(rows, span)
    width = column_of(first, last)
    hours = width // _HOUR
    columns = (last - first) // width + 1
    cells = np.zeros((len(partitions), columns))
    for row in rows:
        cells[partitions.index(row["partition"]), (row["hour"] - first) // width] += value(row)
    return _Grid(partitions, [first + column * width for column in range(columns)], hours, cells)


def _heat(grid: _Grid, colours: str, scale: Normalize) -> Any:
    rows = len(grid.partitions)
    figure, (axes,) = plots.new_figure(height=min(8.0, 1.4 + 0.22 * rows))
    per = "hour" if grid.hours == 1 else f"{grid.hours} hours"
    if len(grid.begins) == 1:  # one column of colours would be a block that says nothing
        bars = axes.barh(grid.partitions, grid.cells[:, 0], color=plots.BLUE)
        axes.invert_yaxis()
        if rows <= LABELLED:
            axes.bar_label(bars, fmt="{:,.0f}", padding=3)
        else:
            axes.set_yticks([])
        axes.grid(visible=False)
        axes.set(title=f"{grid.begins[0]:%Y-%m-%d %H:%M} UTC", ylabel="partition", xlabel=f"events per {per}")
        axes.margins(x=0.12, y=0.01)
        return figure
    cells = np.where(grid.cells > 0, grid.cells, np.nan)
    first, width = plots.as_number(grid.begins[0]), grid.hours * _HOUR / timedelta(days=1)
    sides = (first, first + width * len(grid.begins), rows - 0.5, -0.5)
    picture = axes.imshow(
        cells, aspect="auto", cmap=colours, norm=scale, interpolation="nearest", extent=sides
    )
    axes.set_ylabel("partition")
    axes.set_yticks(range(rows), grid.partitions if rows <= LABELLED else [""] * rows)
    plots.time_axis(axes)
    axes.grid(visible=False)
    if len(grid.begins) <= WRITTEN_COLUMNS and rows <= LABELLED:
        for row, column in np.argwhere(grid.cells > 0):
            light = sum(picture.cmap(scale(grid.cells[row, column]))[:3]) > 1.5
            place: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7}
            number_of = f"{grid.cells[row, column]:,.0f}"
            axes.text(
                first + width * (column + 0.5), row, number_of, color="black" if light else "white", **place
            )
    figure.colorbar(picture, ax=axes, label=f"events per {per}", format="{x:,.0f}")
    return figure


_HEADERS = {
    "enqueued_at": "enqueued",
    "rejection": "mapping rejects it",
    "settled": "of these settled",
    "enqueued_after": "after",
    "enqueued_before": "before",
}
"""Of columns whose name does not say it."""


def _listed(
    report: Report,
    heading: str,
    rows: Sequence[Mapping[str, Any]],
    columns: str,
    *,
    total: int,
    table: str,
    text: str = "",
    more: str = "",
) -> None:
    """The rows' `columns`; `total` are in the table of this name, and where there are none nothing is said."""
    if not total:
        return
    report.heading(heading)
    report.text(text)
    names = columns.split()
    which = (
        f"All {number(total)}" if len(rows) == total else f"The first {number(len(rows))} of {number(total)}"
    )
    report.table(
        [_HEADERS.get(name, _words(name)) for name in names],
        [[_cell(name, row[name]) for name in names] for row in rows],
        caption=f"{which}; the table '{table}' beside this page has all of them.{more}",
    )


def _cell(name: str, value: Any) -> object:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    if name == "sequence_number":
        return str(value)
    return _words(value) if name == "status" else value


def _unsettled(report: Report, findings: Findings) -> None:
    folder = _folder([row["file"] for row in findings.unsettled if row["file"]])
    rows = [{**row, "file": row["file"] and row["file"].removeprefix(folder)} for row in findings.unsettled]
    columns = "partition sequence_number enqueued_at status document_id rejection file"
    more = f" Files are in {folder}." if folder else ""
    total = findings.unsettled_total
    _listed(report, "Not settled", rows, columns, total=total, table="unsettled", more=more)


def _folder(files: Sequence[str]) -> str:
    """What is the same of all paths, up to the last slash."""
    prefix: str = os.path.commonprefix(files)  # noqa: RUF071 - URLs have two slashes in a row
    return prefix[: prefix.rfind("/") + 1]


def _gaps(report: Report, findings: Findings) -> None:
    text = (
        "'Between files': whole capture files are missing, or were named more than --capture-lag after --to. 'Within a file': the hub itself does not have them. 'Expired': "
        "before the first event that is left, and not settled by the checkpoint. Numbers that are known from documents or dead "
        "letters are settled: only the events' capture is missing."
    )
    rows = [
        {**row, "sequence_numbers": f"{row['first']} to {row['last']}", "where": row["kind"]}
        for row in findings.gaps
    ]
    columns = "partition sequence_numbers missing settled where enqueued_after enqueued_before"
    heading, total = "Missing sequence numbers", findings.gaps_total
    _listed(report, heading, rows, columns, total=total, table="gaps", text=text)


def _partitions(report: Report, findings: Findings) -> None:
    if not findings.hours and not findings.checkpoints:
        return
    report.heading("Partitions")
    names = {row["partition"] for row in findings.hours} | set(findings.checkpoints or ())
    rows = []
    for partition in sorted(names, key=_natural):
        of_partition = [row for row in findings.hours if row["partition"] == partition]
        checkpoint = (findings.checkpoints or {}).get(partition)
        counts = [sum(row[status.value] for row in of_partition) for status in Status]
        rows.append(
            (partition, sum(counts), *counts, str(checkpoint.sequence_number) if checkpoint else None)
        )
    report.table(("partition", "events", *(_words(status) for status in Status), "checkpoint"), rows)


def _span(findings: Findings) -> str:
    if not findings.hours:
        return "no events"
    first, last = _hours(findings.hours, findings.span)
    return f"{first:%Y-%m-%d %H:%M} to {last + _HOUR:%Y-%m-%d %H:%M} UTC"


def _words(status: str) -> str:
    return status.replace("_", " ")


def _natural(partition: str) -> tuple[bool, int, str]:
    """Partition 2 before partition 10."""
    return (not partition.isdecimal(), int(partition) if partition.isdecimal() else 0, partition)
