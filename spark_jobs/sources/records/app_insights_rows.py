"""Custom events of Application Insights from the forms in which people export them. Pure.

One row stands for `itemCount` events; a record that does not say how many is refused, for 1 would be a guess.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from io import StringIO
from math import isfinite
from typing import Any

import msgspec

from spark_jobs.sources.columns.event_columns import us_moment
from spark_jobs.sources.records.records import GZIP_MAGIC, Record, RejectedError, records
from tidemark.analysis.export_text import without_marks

CLASSIC, WORKSPACE = "customEvents", "AppEvents"

_NAMES: dict[str, tuple[str, ...]] = {
    "timestamp": ("timestamp", "TimeGenerated", "time"),
    "name": ("name", "Name"),
    "item_count": ("itemCount", "ItemCount"),
    "measurements": ("customMeasurements", "Measurements"),
    "dimensions": ("customDimensions", "Properties"),
    "operation_id": ("operation_Id", "OperationId"),
    "role": ("cloud_RoleName", "AppRoleName"),
    "sdk_version": ("sdkVersion", "SDKVersion"),
    "item_id": ("itemId", "_ItemId"),
}
_TABLE_OF = ("itemType", "Type", "category", "Category")
_EVENTS = {"customEvent", "customEvents", "AppEvents", "AppEvent"}
_MAX_COUNT = 2**31 - 1
_BEFORE = b"\xef\xbb\xbf \t\r\n"  # what may stand before a document
_QUERY = re.compile(rb'\{\s*"tables"\s*:')
_PORTAL_TIME = re.compile(  # browsers write a narrow space (202F) before AM
    r"(\d{1,2})/(\d{1,2})/(\d{4}),? (\d{1,2}):(\d\d):(\d\d)(?:\.(\d{1,7}))?(?:[ \u202f]([AP])M)?", re.ASCII
)
_ABSENT = frozenset({"", "None", "null", "NaN", "nan"})
"""Texts for no value: `az monitor log-analytics query` prints each cell as Python's text of it."""
_AS_JSON = (
    "export as JSON (`az monitor app-insights query`), whose times are unambiguous: 2026-11-21T08:02:14.123Z"
)


def app_event_row(text: bytes) -> dict[str, Any]:
    """A row of APP_EVENTS from a record as JSON. Raises RejectedError."""
    try:
        record = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RejectedError(f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise RejectedError(f"the record is a {type(record).__name__}; accepted are objects")
    return _row(_flattened(record) if "event" in record and "context" in record else record)


def app_event_records(data: bytes, file: str) -> Iterator[Record]:
    """The records of an export: JSON lines, a list, the answer of a query (`tables`), or CSV by the file's name.

    Raises RejectedError where the file is none of these.
    """
    if _is_csv(file):
        return _csv_records(data)
    stripped = data.lstrip(_BEFORE)
    if _QUERY.match(stripped):
        return _query_records(stripped)
    return records(data)


def app_event_lines(head: bytes, file: str) -> bool:
    """Whether the export `file`, which begins with `head`, is JSON lines."""
    begin = head.lstrip(_BEFORE)
    return not (_is_csv(file) or _QUERY.match(begin) or begin.startswith((b"[", GZIP_MAGIC)))


def _is_csv(file: str) -> bool:
    return file.lower().removesuffix(".gz").endswith(".csv")


def _csv_records(data: bytes) -> Iterator[Record]:
    """Each row as an object by the header's names; the portal writes "timestamp [UTC]". Times come in ISO 8601."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RejectedError(f"the file is not UTF-8: {error}") from None
    rows = csv.reader(without_marks(StringIO(text, newline="")), strict=True)
    names, place = _time_column(next(rows, []))
    times = []
    try:
        for row in rows:
            times += row[place : place + 1]
    except csv.Error as error:
        raise RejectedError(f"the file is not CSV: line {rows.line_num}: {error}") from None
    return _in_iso(text, names, place, day_first=_day_comes_first(times))


def _time_column(header: Sequence[str]) -> tuple[list[str], int]:
    """The names of the columns without their zones, and which one is the event's time. Raises RejectedError."""
    split = [re.fullmatch(r"\s*(.*?)\s*(?:\[(.*)\])?\s*", name, re.DOTALL) for name in header]
    named = [(parts[1], parts[2]) for parts in split if parts]
    for name, zone in named:
        if name in _NAMES["timestamp"] and zone is not None and zone.strip().upper() != "UTC":
            raise RejectedError(
                f"the file's times are those of a place that it does not name: column '{name} [{zone}]'; accepted is"
                f" [UTC]: set the portal's time zone to UTC and export again, or {_AS_JSON}"
            )
    names = [name for name, _ in named]
    if twice := sorted({name for name in names if name and names.count(name) > 1}):
        raise RejectedError(f"the file has the column '{twice[0]}' twice; accepted is one of each name")
    return names, next((names.index(name) for name in _NAMES["timestamp"] if name in names), len(names))


def _day_comes_first(times: Iterable[str]) -> bool | None:
    """Whether the portal wrote 21/11/2026, as all times of the file together show; None where it makes no difference.

    Raises RejectedError where they show neither or both.
    """
    pairs = {(int(match[1]), int(match[2])) for time in times if (match := _portal_match(time))}
    day_first = next((pair for pair in sorted(pairs) if pair[0] > 12 >= pair[1]), None)
    month_first = next((pair for pair in sorted(pairs) if pair[1] > 12 >= pair[0]), None)
    if day_first and month_first:
        raise RejectedError(
            f"the file's dates are in two orders: {day_first[0]}/{day_first[1]} and {month_first[0]}/{month_first[1]}; {_AS_JSON}"
        )
    if day_first or month_first:
        return day_first is not None
    if unclear := sorted(pair for pair in pairs if pair[0] != pair[1]):
        raise RejectedError(_unclear("/".join(map(str, unclear[0])), "no date of the file tells"))
    return None


def _unclear(date: str, why: str) -> str:
    return (
        f"the date {date} may be month and day or day and month, and {why} which; {_AS_JSON}; or export a time that has a day"
        " after the 12th of a month"
    )


def _in_iso(text: str, names: Sequence[str], place: int, *, day_first: bool | None) -> Iterator[Record]:
    rows = csv.reader(without_marks(StringIO(text, newline="")), strict=True)
    next(rows, None)
    for number, row in enumerate(rows, start=2):
        if row:
            if place < len(row) and _portal_match(row[place]):
                with suppress(RejectedError):  # the row is rejected later, with its reason
                    row[place] = event_time(row[place], day_first=day_first).isoformat()
            extra = {} if len(row) == len(names) else {"": f"{len(row)} of {len(names)} columns"}
            yield number, json.dumps({**dict(zip(names, row, strict=False)), **extra}).encode()


def _query_records(data: bytes) -> Iterator[Record]:
    try:
        tables = [
            ([column["name"] for column in table["columns"]], table["rows"])
            for table in msgspec.json.decode(data)["tables"]
        ]
        records = [dict(zip(names, row, strict=True)) for names, rows in tables for row in rows]
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise RejectedError(
            f"not the answer of a query, with tables of columns and rows: {error!r}"
        ) from None
    for number, record in enumerate(records, start=1):
        yield number, json.dumps(record).encode()


def _flattened(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record of continuous export, in the names of the classic table."""
    try:
        event, context = record["event"][0], record["context"]
        custom = context.get("custom") or {}
        measured = [pair for metric in custom.get("metrics") or [] for pair in metric.items()]
        return {
            "timestamp": context["data"]["eventTime"],
            "name": event["name"],
            "itemCount": event["count"],
            "customMeasurements": {name: _total(value) for name, value in measured},
            "customDimensions": {
                name: value
                for dimension in custom.get("dimensions") or []
                for name, value in dimension.items()
            },
            "operation_Id": (context.get("operation") or {}).get("id"),
            "cloud_RoleName": (context.get("device") or {}).get("roleName"),
            "itemId": ((record.get("internal") or {}).get("data") or {}).get("id"),
        }
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise RejectedError(f"a record of continuous export without {error!r}") from None


def _total(value: Any) -> Any:
    return value["value"] if isinstance(value, dict) else value


def _row(record: Mapping[str, Any]) -> dict[str, Any]:
    if "" in record:
        raise RejectedError(f"the row has {record['']}")
    foreign = [
        record[name] for name in _TABLE_OF if not _is_absent(record.get(name)) and record[name] not in _EVENTS
    ]
    if foreign:
        raise RejectedError(f"the record is of '{foreign[0]}'; accepted are customEvents and AppEvents")
    fields = {name: _first(record, names) for name, names in _NAMES.items()}
    name = next(
        (record[column] for column in _NAMES["name"] if record.get(column)), None
    )  # an event may be called None
    if not isinstance(name, str) or not name:
        raise RejectedError(f"the event has no name; found the fields {', '.join(map(str, record))[:300]}")
    dimensions = _object(fields["dimensions"], "dimensions")
    measurements = _object(fields["measurements"], "measurements")
    return {
        **fields,
        "name": name,
        "timestamp": event_time(fields["timestamp"]),
        "item_count": _count(fields["item_count"]),
        "measurements": [
            (key, _number(key, value)) for key, value in measurements.items() if not _is_absent(value)
        ],
        "dimensions": [(key, _text(value)) for key, value in dimensions.items()],
        **{key: _text(fields[key]) or None for key in ("operation_id", "role", "sdk_version", "item_id")},
        "source": WORKSPACE if "TimeGenerated" in record or "ItemCount" in record else CLASSIC,
    }


def _first(record: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    values = (record.get(name) for name in names)
    return next((value for value in values if not _is_absent(value)), None)


def _is_absent(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value in _ABSENT)


def _object(value: Any, what: str) -> dict[str, Any]:
    """An object, or its JSON text, as exports of the classic table have it."""
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise RejectedError(f"the {what} are no JSON object: {error}") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RejectedError(f"the {what} are a {type(value).__name__}; accepted is an object")
    return value


def _count(value: Any) -> int:
    try:
        count = int(value) if not isinstance(value, float) or value.is_integer() else None
    except (TypeError, ValueError):
        count = None
    if count is None or isinstance(value, bool) or not 1 <= count <= _MAX_COUNT:
        raise RejectedError(
            f"itemCount is {value!r}; accepted is a whole number from 1 on: export the column, without it nobody knows"
            " how many events a record stands for"
        )
    return count


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if isinstance(value, bool) or not isfinite(number):
        raise RejectedError(f"the measurement '{name}' is {value!r}; accepted is a number")
    return number


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()


def event_time(value: Any, *, day_first: bool | None = None) -> datetime:
    """A time in ISO 8601 or as the portal prints it ("11/21/2026, 8:02:14.123 AM"); UTC. Raises RejectedError.

    `day_first` is the order of day and month in the portal's form; None: as the date itself shows.
    """
    if isinstance(value, str):
        try:
            match = _portal_match(value)
            # ISO 8601 with at most six digits of a second: Azure writes seven.
            time = (
                _portal_time(match, day_first=day_first)
                if match
                else datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", value.strip()))
            )
        except RejectedError:
            raise
        except ValueError:
            pass
        else:
            return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    raise RejectedError(
        f"the event's time is {value!r}; accepted are times like '2026-11-21T08:02:14.123Z' and"
        " '11/21/2026, 8:02:14.123 AM'"
    )


def _portal_match(time: str) -> re.Match[str] | None:
    return _PORTAL_TIME.fullmatch(time.strip().upper())


def _portal_time(match: re.Match[str], *, day_first: bool | None) -> datetime:
    """Raises ValueError, and RejectedError where nothing shows the order of day and month."""
    first, second = int(match[1]), int(match[2])
    if day_first is None:
        if first != second and max(first, second) <= 12:
            raise RejectedError(_unclear(f"{match[1]}/{match[2]}/{match[3]}", "it does not tell"))
        day_first = first > 12
    if not day_first:
        return us_moment(match)
    swapped = _PORTAL_TIME.fullmatch(f"{match[2]}/{match[1]}{match.string[match.end(2) :]}")
    assert swapped is not None  # two numbers change places
    return us_moment(swapped)
