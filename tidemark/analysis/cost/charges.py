"""Rows of Azure's cost exports as charges of a resource and a day: FOCUS 1.0, and actual or amortized costs of before. Pure.

Columns by Microsoft's pages on the schemas of cost and usage details (FOCUS 1.0, EA, MCA, pay-as-you-go), in any case.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from math import isfinite
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct

from tidemark.analysis.errors import InputError

COLUMNS: dict[str, tuple[str, ...]] = {
    "resource": ("resourceid", "instanceid", "instancename"),
    "day": ("chargeperiodstart", "date", "usagedatetime"),
    "period": ("billingperiodenddate",),
    "amount": ("billedcost", "costinbillingcurrency", "pretaxcost", "cost"),
    "quantity": ("consumedquantity", "quantity", "usagequantity"),
    "currency": ("billingcurrency", "billingcurrencycode", "currency"),
    "category": ("chargecategory", "chargetype"),
    "meter": ("x_skumetername", "metername"),
    "group": ("x_skumetersubcategory", "metersubcategory"),
    "region": ("regionid", "resourcelocation"),
}
"""What is read, by the names it has; the first one that is there counts."""

NEEDED = ("resource", "day", "amount")

_AMERICAN = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4})")
_REQUEST_UNITS = re.compile(r"\bRUs?(/s)?\b", re.IGNORECASE)
_EPOCH = date(1970, 1, 1).toordinal()


class Charge(Struct, frozen=True):
    """Of one resource (`resource` as `billed_id` gives it) on one day (UTC, since 1970). `quantity` is of whatever its meter
    counts, None where the export does not say. `usage` is False for purchases, refunds and taxes. `region` is
    empty where the export does not say it.
    """

    resource: str
    day: int
    amount: float
    quantity: float | None = None
    currency: str = ""
    usage: bool = True
    request_units: bool = False
    autoscale: bool = False
    region: str = ""


def billed_id(resource_id: str) -> str:
    """The resource that the bill names for it: of a Cosmos DB database or container its account. Ids have no case."""
    return resource_id.strip().rstrip("/").lower().partition("/sqldatabases/")[0]


def columns_of(names: Sequence[str], amount: str | None, where: str) -> dict[str, str]:
    """What is read, to the column as the file writes it. `amount` is asked for by name. Raises InputError."""
    known = {name.strip().lower(): name for name in names}
    accepted = COLUMNS if amount is None else {**COLUMNS, "amount": (amount.lower(),)}
    by_meaning = {
        what: known[column]
        for what, columns in accepted.items()
        for column in [next((name for name in columns if name in known), "")]
        if column
    }
    for what, name in by_meaning.items():
        if (
            len(
                alike := [
                    name_alike for name_alike in names if name_alike.strip().lower() == name.strip().lower()
                ]
            )
            > 1
        ):
            raise InputError(
                f"{where} has several columns for the {what}: {', '.join(alike)}; accepted is one of each name, in any case"
            )
    if missing := [what for what in NEEDED if what not in by_meaning]:
        accepted_names = "; ".join(f"{what}: {' or '.join(accepted[what])}" for what in missing)
        found = f"has the columns {', '.join(names)}" if names else "is empty"
        raise InputError(f"{where} is no cost export: it {found}; accepted: {accepted_names}")
    return by_meaning


def charges_of(
    rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str], wanted: Collection[str], where: str
) -> Iterator[Charge]:
    """The charges of resources that are `wanted`. Raises InputError naming row and column; after the last row for dates that
    may be month or day first.
    """
    dates, day, period = set[Any](), columns["day"], columns.get("period", columns["day"])
    for number, row in enumerate(rows, start=2):
        dates |= {row[day], row.get(period)}
        resource = billed_id(str(row[columns["resource"]] or ""))
        if resource in wanted:
            yield _charge(resource, row, columns, f"{where}, row {number}")
    _check_month_first(dates, f"{where}, column {day}")


def _charge(resource: str, row: Mapping[str, Any], columns: Mapping[str, str], where: str) -> Charge:
    def text(what: str) -> str:
        return str(row.get(columns.get(what, "")) or "")

    meter = f"{text('group')} {text('meter')}"
    given = row.get(columns.get("quantity", ""))
    return Charge(
        resource,
        _day(row[columns["day"]], f"{where}, column {columns['day']}"),
        _number(row[columns["amount"]], f"{where}, column {columns['amount']}"),
        None if given in (None, "") else _number(given, f"{where}, column {columns['quantity']}"),
        text("currency").strip().upper(),
        text("category").strip().lower() in ("", "usage"),
        _REQUEST_UNITS.search(meter) is not None,
        "autoscale" in meter.lower(),
        text("region").lower().replace(" ", ""),
    )


def _number(value: Any, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not isfinite(number):
        raise InputError(f"{where}: found {value!r}; accepted is a number")
    return number


def _day(value: Any, where: str) -> int:
    """Exports write 2026-11-21T00:00Z, 2026-11-21, or 11/21/2026: month first, whatever the country."""
    try:
        if isinstance(value, datetime):
            when = value if value.tzinfo is None else value.astimezone(UTC)
            return when.toordinal() - _EPOCH
        if isinstance(value, date):
            return value.toordinal() - _EPOCH
        if american := _AMERICAN.match(str(value).strip()):
            month, day, year = map(int, american.groups())
            return date(year, month, day).toordinal() - _EPOCH
        when = datetime.fromisoformat(str(value).strip())
        return (when if when.tzinfo is None else when.astimezone(UTC)).toordinal() - _EPOCH
    except ValueError:
        raise InputError(
            f"{where}: found {value!r}; accepted are 2026-11-21, 2026-11-21T00:00Z and 11/21/2026"
        ) from None


def _check_month_first(dates: Iterable[Any], where: str) -> None:
    """Azure's CSV exports write month/day/year in every country (github.com/Azure/azure-powershell/issues/20185), or ISO dates.
    A spreadsheet that saves the file may turn them around. The end of a billing period shows the order, or any day after the 12th, or
    several days of one month. Raises InputError for dates that are day first, and for those that do not show it.
    """
    pairs = {
        tuple(map(int, match.groups()[:2])) for date in dates if (match := _AMERICAN.match(str(date).strip()))
    }
    turned = next((pair for pair in sorted(pairs) if pair[0] > 12), None)
    is_shown = any(second > 12 for _, second in pairs) or (
        len(pairs) > 1 and len({first for first, _ in pairs}) == 1
    )
    if turned or not (is_shown or all(first == second for first, second in pairs)):
        first, second = turned or min(pair for pair in pairs if pair[0] != pair[1])
        raise InputError(
            f"{where}: {first}/{second} {'is no' if turned else 'may not be'} month and day, as Azure writes them, and nothing "
            "in the file shows the order; accepted is a file as Azure wrote it: with its column BillingPeriodEndDate, or a day after the 12th"
        )


# -- which files of an export count ------------------------------------------------------------------------

MANIFEST = "manifest.json"

_PERIOD = re.compile(r"^(?P<period>(?:.*/)?\d{8}-\d{8})/(?P<run>[^/]+)/")
_RUN_TIME = re.compile(r"20\d{10}")
_PART = re.compile(r"part_\d+_\d+(?P<ending>\..+)")


class Run(NamedTuple):
    """What `manifest.json` says about a run of an export: its time (seconds since 1970) and the names of its files."""

    at: float
    files: frozenset[str]


class _Info(Struct, rename="camel"):
    submitted_time: Annotated[datetime, Meta(tz=True)]


class _Blob(Struct, rename="camel"):
    blob_name: str


class _Manifest(Struct, rename="camel"):
    run_info: _Info
    blobs: list[_Blob] = []


def run_of(manifest: bytes) -> Run | None:
    """Of a manifest's text; None where it has no time."""
    try:
        described = msgspec.json.decode(manifest, type=_Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    names = frozenset(blob.blob_name.rpartition("/")[2] for blob in described.blobs)
    return Run(described.run_info.submitted_time.timestamp(), names)


def newest_runs(files: Iterable[tuple[str, float]]) -> list[str]:
    """Of files with their times, those that count. An export of the month to date writes all of the month again in each run,
    in a folder of its own below that of the period (20261101-20261130): the newest run of a period has all of it. Where
    the folder is the run's time (202611161527), that counts, for a file that was copied may have another.
    """
    ordered = sorted(files)
    newest: dict[str, tuple[str, float, str]] = {}
    for path, at in ordered:
        if match := _PERIOD.match(path):
            period, run = match["period"], match["run"]
            run_time = run if _RUN_TIME.fullmatch(run) else ""
            newest[period] = max(newest.get(period, ("", 0.0, "")), (run_time, at, run))
    return [
        path
        for path, _ in ordered
        if (match := _PERIOD.match(path)) is None or newest[match["period"]][2] == match["run"]
    ]


def sources_of(files: Iterable[str], runs: Mapping[str, Run]) -> dict[str, str]:
    """Each file with the first file of its source. Files are one source only where they are known to be parts of one run: its
    manifest lists them, or Azure named them so in the run's folder. `runs` are by folder.

    Raises InputError for a run of which a file is missing.
    """
    ordered, first = sorted(files), dict[tuple[str, str], str]()
    sources = {}
    for path in ordered:
        folder, _, name = path.rpartition("/")
        run, part = runs.get(folder), _PART.fullmatch(name)
        group = path
        if run is not None and name in run.files:
            group = MANIFEST
        elif part and _PERIOD.match(path):
            group = part["ending"]
        sources[path] = first.setdefault((folder, group), path)
    for folder in {path.rpartition("/")[0] for path in ordered} & runs.keys():
        if missing := sorted(runs[folder].files - {path.rpartition("/")[2] for path in ordered}):
            raise InputError(
                f"{folder}/{MANIFEST} lists the file {missing[0]}, which is not there: charges would be missing; copy the"
                " whole run, or wait until it is written"
            )
    return sources


def check_once(twice: tuple[str, int, str, str] | None) -> None:
    """Raises InputError where a resource's charges of a day (since 1970) come from two sources."""
    if twice is None:
        return
    resource, day, one, other = twice
    raise InputError(
        f"--costs has charges of {resource} on {date.fromordinal(_EPOCH + day)} twice, in {one} and in {other}: exports of two"
        " kinds (FOCUS, actual, amortized), of overlapping periods, or copies would be added up; accepted: one export, so"
        f" give --costs its folder or file. Files are parts of one run where its {MANIFEST} beside them lists them"
    )


class Origins:
    """Which source has a resource's charges of a day. Raises InputError where two do."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], str] = {}

    def add(self, charges: Iterable[Charge], source: str) -> None:
        for charge in charges:
            known = self._known.setdefault((charge.resource, charge.day), source)
            check_once(None if known == source else (charge.resource, charge.day, known, source))
