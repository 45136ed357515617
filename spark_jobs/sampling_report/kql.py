"""The report's queries in KQL, to be pasted into Application Insights or a Log Analytics workspace. Pure.

They are those by which the loss in the article "Finding Lost Events in Azure Application Insights" was explained: the
values as stored, the sampling rate, and the values times `itemCount`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from msgspec import Struct


class Columns(Struct, frozen=True):
    """What a table's columns are called."""

    table: str
    name: str
    timestamp: str
    measurements: str
    item_count: str


SCHEMAS: Mapping[str, Columns] = {
    "customEvents": Columns("customEvents", "name", "timestamp", "customMeasurements", "itemCount"),
    "AppEvents": Columns("AppEvents", "Name", "TimeGenerated", "Measurements", "ItemCount"),
}
"""Classic Application Insights, and the workspace it is based on today."""

_UNITS = {"d": timedelta(1), "h": timedelta(hours=1), "m": timedelta(minutes=1), "s": timedelta(seconds=1)}


class Question(Struct, frozen=True):
    """What is asked: `measurement` None counts events; `since` and `until` None leave that side open."""

    event: str
    measurement: str | None
    bin: timedelta
    since: datetime | None = None
    until: datetime | None = None


def queries(question: Question, columns: Columns) -> dict[str, str]:
    """The three queries by what they show: raw, rate, corrected."""
    head = "\n".join(_head(question, columns))
    by = f"by bin({columns.timestamp}, {timespan(question.bin)})"
    weight = columns.item_count
    if question.measurement is None:
        raw, corrected = "summarize Raw = count()", f"summarize Corrected = sum({weight})"
        points = ("", "")
    else:
        value = f"todouble({columns.measurements}[{literal(question.measurement)}])"
        raw, corrected = "summarize Raw = sum(Value)", "summarize Corrected = sum(Value)"
        points = (
            f"| project Value = {value}, {columns.timestamp}\n",
            f"| project Value = {value} * {weight}, {columns.timestamp}\n",
        )
    return {
        "raw": f"{head}\n{points[0]}| {raw} {by}\n| render timechart",
        "rate": f"{head}\n| summarize SamplingRate = 100.0 / avg({weight}) {by}\n| render areachart",
        "corrected": f"{head}\n{points[1]}| {corrected} {by}\n| render timechart",
    }


def literal(text: str) -> str:
    """A KQL string: quoted, with control characters and what would end it escaped."""
    return '"' + "".join(map(_escaped, text)) + '"'


def timespan(length: timedelta) -> str:
    """A KQL timespan of whole seconds, in the largest unit that fits: 1d, 12h, 90m."""
    for unit, size in _UNITS.items():
        if not length % size:
            return f"{length // size}{unit}"
    raise ValueError(f"{length} is no whole number of seconds")


def moment(at: datetime) -> str:
    """A KQL datetime, UTC."""
    return f"datetime({at.astimezone(UTC).strftime('%Y-%m-%dT%H:%M:%S.%fZ')})"


def _head(question: Question, columns: Columns) -> list[str]:
    lines = [columns.table, f"| where {columns.name} == {literal(question.event)}"]
    if question.since is not None:
        lines.append(f"| where {columns.timestamp} >= {moment(question.since)}")
    if question.until is not None:
        lines.append(f"| where {columns.timestamp} < {moment(question.until)}")
    return lines


def _escaped(character: str) -> str:
    # What does not print could hide a quote's end from the reader, or turn the direction of the text.
    if character.isprintable() and character not in '\\"':
        return character
    return f"\\u{ord(character):04x}" if character in "\b\f" else json.dumps(character)[1:-1]
