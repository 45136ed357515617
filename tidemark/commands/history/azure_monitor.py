"""Reads metrics from Azure Monitor, through Resource Manager: one request an answer, nothing tried again.

A refusal that waiting may mend is UnavailableError, with the seconds it asks for; any other is PullError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from msgspec import Struct

from scaling.scalers.arm.clients import open_resources
from scaling.scalers.arm.errors import Failure, Kind, classify
from scaling.scalers.arm.resources import Entry
from tidemark.commands.history.model import MINUTE, Point, PullError, Source, Span
from tidemark.foundation.azure.opening import LazyClient
from tidemark.foundation.errors import UnavailableError
from tidemark.foundation.sanitize import error_text

VERSION = "2024-02-01"
"""Of the API, as azure-mgmt-monitor 7.0.0 asks it."""

DEADLINE = 60.0
"""Seconds for one answer of up to POINTS points. Chosen: some megabytes over a slow line."""

NAMES = 1_000
"""Most names of entities that are asked for."""

ROLE = "the role Monitoring Reader on it"

_MENDS = frozenset({Kind.THROTTLED, Kind.BUSY, Kind.UNKNOWN})


_Series = TypeVar("_Series")


class Answer(Struct, frozen=True):
    """The time series of one metric; `date` is when it was answered, by Azure's clock, if it was in the answer."""

    series: list[list[Point]]
    date: float | None = None


class MetricsReader:
    """Reads by one client of Resource Manager, opened by its first use."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._client = LazyClient(lambda: open_resources(settings))

    async def read(self, source: Source, span: Span, *, top: int) -> Answer:
        """At most `top` time series of `source`, a point per minute of `span`; more of them are cut without a word."""
        kind = source.aggregation
        return Answer(*await self._list(source, span, partial(_points, kind), top=top, aggregation=kind))

    async def names(self, source: Source, span: Span) -> list[str]:
        """The values of the dimension that `source` is filtered by, of which Azure Monitor has anything in `span`."""
        values, _ = await self._list(source, span, _values, top=NAMES, resultType="Metadata")
        return sorted({name for names in values for name in names})

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _list(
        self, source: Source, span: Span, of_series: Callable[[Entry], _Series], **options: Any
    ) -> tuple[list[_Series], float | None]:
        asked = {
            "timespan": f"{_time(span.begin)}/{_time(span.end)}",
            "interval": "PT1M",
            "metricnames": source.metric,
            **({"$filter": source.filter} if source.filter else {}),
            **options,
        }
        path = f"{source.resource_id}/providers/Microsoft.Insights/metrics"
        try:
            client = await self._client.get()
            async with asyncio.timeout(DEADLINE):
                document, date = await client.get_dated(
                    path, VERSION, urlencode(asked, safe="$", quote_via=quote)
                )
        except TimeoutError:
            raise UnavailableError(f"{source.resource_id}: no answer within {DEADLINE:g} s") from None
        except ValueError as error:  # a setting, or an answer that is no answer
            raise PullError(f"{source.resource_id}: {error_text(error)}") from error
        except Exception as error:
            raise _refused(source, classify(error)) from error
        try:
            return [of_series(series) for series in _series(document)], _date(date)
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            raise PullError(f"{source.resource_id}: the answer holds no time series: {error!r}") from error


def _refused(source: Source, failure: Failure) -> PullError | UnavailableError:
    """The failure as who must act reads it."""
    where = source.resource_id
    match failure.kind:
        case kind if kind in _MENDS:
            return UnavailableError(f"{where}: {failure.story}", failure.retry_after)
        case Kind.FORBIDDEN:
            return PullError(f"{where}: access refused; reading its metrics needs {ROLE} ({failure.story})")
        case Kind.NO_IDENTITY:
            return PullError(f"{where}: no token could be had; sign in with `az login` ({failure.story})")
        case Kind.NOT_FOUND:
            return PullError(f"{where}: does not exist ({failure.story})")
        case _:
            return PullError(f"{where}: the metric {source.metric} is refused ({failure.story})")


def _series(document: Entry) -> list[Entry]:
    """The time series of the answer's metric. Raises UnavailableError where it could not be read: an answer without the
    metric is none, and does not mean that there are no time series.
    """
    metrics = document.get("value")
    if not metrics:
        raise UnavailableError("the answer holds no metric")
    for metric in metrics:
        if (code := metric.get("errorCode")) not in {None, "", "Success"}:
            problem = f"{metric.get('id')}: {code} {metric.get('errorMessage') or ''}"
            raise UnavailableError(problem.rstrip())
    return [series for metric in metrics for series in metric.get("timeseries") or []]


def _values(series: Entry) -> list[str]:
    values = (dimension.get("value") for dimension in series.get("metadatavalues") or [])
    return [str(value) for value in values if value is not None]


def _points(aggregation: str, series: Entry) -> list[Point]:
    return [(_seconds(point["timeStamp"]), point.get(aggregation)) for point in series.get("data") or []]


def _seconds(text: str) -> float:
    """A time without a zone is in UTC, whatever the zone of this machine."""
    begin = datetime.fromisoformat(text)
    return (begin if begin.tzinfo else begin.replace(tzinfo=UTC)).timestamp()


def _time(minute: int) -> str:
    return f"{datetime.fromtimestamp(minute * MINUTE, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).replace(tzinfo=UTC).timestamp() if text else None
    except (ValueError, TypeError, OverflowError):
        return None
