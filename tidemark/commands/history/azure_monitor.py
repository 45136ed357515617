"""Reads metrics from Azure Monitor, through Resource Manager: one request an answer, nothing tried again.

A refusal that waiting may mend is UnavailableError, with the seconds it asks for; any other is PullError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from scaling.scalers.arm.clients import open_monitor
from scaling.scalers.arm.errors import Failure, Kind, classify
from tidemark.commands.history.model import MINUTE, Point, PullError, Source, Span
from tidemark.foundation.azure.opening import LazyClient
from tidemark.foundation.errors import UnavailableError
from tidemark.foundation.sanitize import error_text

if TYPE_CHECKING:
    from azure.mgmt.monitor.aio import MonitorManagementClient

DEADLINE = 60.0
"""Seconds for one answer of up to POINTS points. Chosen: some megabytes over a slow line."""

NAMES = 1_000
"""Most names of entities that are asked for."""

ROLE = "the role Monitoring Reader on it"

_MENDS = frozenset({Kind.THROTTLED, Kind.BUSY, Kind.UNKNOWN})


class Answer(Struct, frozen=True):
    """The time series of one metric; `date` is when it was answered, by Azure's clock, if it was in the answer."""

    series: list[list[Point]]
    date: float | None = None


class MetricsReader:
    """One client per subscription, opened by its first use."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self._clients: dict[str, LazyClient[MonitorManagementClient]] = {}

    async def read(self, source: Source, span: Span, *, top: int) -> Answer:
        """At most `top` time series of `source`, a point per minute of `span`; more of them are cut without a word."""
        response, date = await self._list(source, span, top=top, aggregation=source.aggregation)
        return Answer([_points(each, source.aggregation) for each in _series(response)], date)

    async def names(self, source: Source, span: Span) -> list[str]:
        """The values of the dimension that `source` is filtered by, of which Azure Monitor has anything in `span`."""
        response, _ = await self._list(source, span, top=NAMES, result_type="Metadata")
        values = (each.metadatavalues or [] for each in _series(response))
        return sorted({str(value.value) for found in values for value in found if value.value is not None})

    async def aclose(self) -> None:
        await asyncio.gather(*(client.aclose() for client in self._clients.values()))

    async def _list(self, source: Source, span: Span, **options: Any) -> tuple[Any, float | None]:
        continuation: dict[str, str] = {}

        def note(response: Any) -> None:
            continuation.update(response.http_response.headers)

        try:
            client = await self._client(source)
            async with asyncio.timeout(DEADLINE):
                response = await client.metrics.list(
                    source.resource_id.lstrip("/"),
                    timespan=f"{_time(span.begin)}/{_time(span.end)}",
                    interval="PT1M",
                    metricnames=source.metric,
                    filter=source.filter,
                    raw_response_hook=note,
                    **options,
                )
        except TimeoutError:
            raise UnavailableError(f"{source.resource_id}: no answer within {DEADLINE:g} s") from None
        except ValueError as error:  # a setting, or an answer that is no answer
            raise PullError(f"{source.resource_id}: {error_text(error)}") from error
        except Exception as error:
            raise _told(source, classify(error)) from error
        return response, _date(
            {name.casefold(): value for name, value in continuation.items()}.get("date", "")
        )

    async def _client(self, source: Source) -> MonitorManagementClient:
        subscription = source.resource_id.split("/")[2]
        if subscription not in self._clients:
            self._clients[subscription] = LazyClient(lambda: open_monitor(self._settings, subscription))
        return await self._clients[subscription].get()


def _told(source: Source, failure: Failure) -> PullError | UnavailableError:
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


def _series(response: Any) -> Sequence[Any]:
    """The time series of the answer's metric. Raises UnavailableError where it could not be read: an answer without the
    metric is none, and does not mean that there are no time series.
    """
    if not response.value:
        raise UnavailableError("the answer holds no metric")
    for metric in response.value:
        if metric.error_code not in {None, "", "Success"}:
            raise UnavailableError(f"{metric.id}: {metric.error_code} {metric.error_message or ''}".rstrip())
    return [series for metric in response.value for series in metric.timeseries or []]


def _points(series: Any, aggregation: str) -> list[Point]:
    return [(_seconds(each.time_stamp), getattr(each, aggregation)) for each in series.data or []]


def _seconds(moment: datetime) -> float:
    """A time without a zone is in UTC, whatever the zone of this machine."""
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _time(minute: int) -> str:
    return f"{datetime.fromtimestamp(minute * MINUTE, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).replace(tzinfo=UTC).timestamp() if text else None
    except (ValueError, TypeError, OverflowError):
        return None
