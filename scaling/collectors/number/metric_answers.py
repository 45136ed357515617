"""Azure Monitor's platform metrics as they are asked for and answered. Pure.

A grain has its value one to three minutes after it ended, and grows until then: so grains count that ended `delay` ago, and of
these the newest that has a value. An answer without any says nothing: a queue without messages has no series, and a queue
that does not exist has none either.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from msgspec import Struct, structs

from scaling.resource_id import ResourceId

API_VERSION = "2024-02-01"

GRAINS = {
    60: "PT1M",
    300: "PT5M",
    900: "PT15M",
    1800: "PT30M",
    3600: "PT1H",
    21_600: "PT6H",
    43_200: "PT12H",
    86_400: "P1D",
}
"""Time grains of Azure Monitor, by their seconds."""

LOOK_BACK = 5
"""Grains in a request at least, and the default for those that are looked at. Chosen."""

EARLY = 3.0
"""Seconds, or a twentieth of a shorter grain than a minute, by which a timer may fire early without reading the grain before. Chosen: no
share of longer grains, for a day would count an hour before it ends.
"""

_REGION = re.compile(r"[a-z0-9]{3,40}")


class Series(Struct, frozen=True):
    """One metric of one resource. `grain` in seconds; `dimensions` by name; `namespace` that of the metric."""

    resource_id: str
    metric: str
    aggregation: str
    grain: int
    dimensions: tuple[tuple[str, str], ...]
    namespace: str
    look_back: int = LOOK_BACK

    @property
    def subscription(self) -> str:
        return self.resource_id.split("/")[2]

    @property
    def scope(self) -> str:
        """The subscription by its id."""
        return f"/subscriptions/{self.subscription}"

    def alone(self, end: int) -> str:
        """Path and query of a read of this alone; `end` is that of the newest grain."""
        chosen = {"$filter": self._filter} if self.dimensions else {}
        asked = {**self._asked, **chosen, "timespan": "/".join(self._span(end))}
        return f"{self.resource_id}/providers/Microsoft.Insights/metrics?{_query(asked)}"

    def together(self, end: int) -> str:
        """Path and query of a read of this and all that differ from it by their resources only."""
        begin, until = self._span(end)
        chosen = {"filter": self._filter} if self.dimensions else {}
        asked = {**self._asked, **chosen, "starttime": begin, "endtime": until}
        return f"/subscriptions/{self.subscription}/metrics:getBatch?{_query(asked)}"

    @property
    def _asked(self) -> dict[str, str]:
        return {
            "api-version": API_VERSION,
            "metricnames": self.metric.replace(",", "%2"),
            "metricnamespace": self.namespace,
            "aggregation": self.aggregation,
            "interval": GRAINS[self.grain],
        }

    def _span(self, end: int) -> tuple[str, str]:
        return _time(end - self.look_back * self.grain), _time(end)

    @property
    def _filter(self) -> str:
        """Round brackets in a value are encoded twice, as the API documents it: here, and with everything else on the way."""
        quoted = str.maketrans({"'": "''", "%": "%25", "(": "%28", ")": "%29"})
        return " and ".join(f"{name} eq '{value.translate(quoted)}'" for name, value in self.dimensions)


def owner_of(resource_id: str) -> tuple[str, str]:
    """The id and the type of what is listed with a region: the resource, or the one that it is a part of."""
    whole = ResourceId.parse(resource_id)
    owner = structs.replace(whole, parts=whole.parts[:1])
    return str(owner), owner.type


def located(subscription: str, type_: str) -> str:
    """Path and query of a list of all resources of a type, with their regions."""
    asked = {"api-version": "2021-04-01", "$filter": f"resourceType eq '{type_}'"}
    return f"/subscriptions/{subscription}/resources?{_query(asked)}"


def _query(asked: Mapping[str, str]) -> str:
    return urlencode(asked, quote_via=quote)


def newest_end(now: float, delay: float, grain: int) -> int:
    """When the newest grain ended that counts as whole."""
    return int((now - delay + min(EARLY, grain / 20)) // grain) * grain


def region_of(answer: Any) -> str:
    """The region in an answer about a resource; empty for an answer without one."""
    region = str(answer.get("resourceregion") or "") if isinstance(answer, Mapping) else ""
    return region if _REGION.fullmatch(region) else ""


def values_of(answer: Any, series: Series, end: int) -> dict[int, float]:
    """The values of whole grains, by the end of each, as far as there are any. Raises ValueError for an answer that is none, for
    more than one time series, and for what is no number.
    """
    values: dict[int, float] = {}
    for point in _points(answer):
        value, at = point.get(series.aggregation), _seconds(point) + series.grain
        if value is None or at > end:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"found the value {str(value)[:40]!r}; accepted is a finite number")
        values[at] = float(value)
    return values


def newest_of(values: Mapping[int, float], series: Series, end: int, grains: int) -> tuple[int, float] | None:
    """End and value of the newest of the last grains that has a value. Raises ValueError where only earlier grains have one."""
    if not values:
        return None
    at = max(values)
    if (behind := (end - at) // series.grain) >= grains:
        raise ValueError(
            f"no value for the {GRAINS[series.grain]} that ended at {_time(end)}; the newest is {behind} before that. If this "
            f'resource always reports so late, give `grains = {behind + 1}`, and `max_age = "{(behind + 3) * series.grain // 60}m"` for the '
            "metric not to be stale: decisions follow older values then"
        )
    return at, values[at]


def _points(answer: Any) -> list[Mapping[str, Any]]:
    """The points of the one time series; none where there is no series."""
    metrics = answer.get("value") if isinstance(answer, Mapping) else None
    if not isinstance(metrics, list) or len(metrics) != 1 or not isinstance(metrics[0], Mapping):
        raise ValueError("the answer does not hold the one metric that was asked for")
    [metric] = metrics
    if metric.get("errorCode") not in {None, "", "Success"}:
        raise ValueError(f"{metric['errorCode']}: {str(metric.get('errorMessage') or 'without words')[:200]}")
    series = metric.get("timeseries") or []
    if not isinstance(series, list) or len(series) > 1:
        raise ValueError(
            f"the answer holds {len(series)} time series; accepted is one: give every one of `dimensions`"
        )
    points = series[0].get("data") if series and isinstance(series[0], Mapping) else []
    return [point for point in points or [] if isinstance(point, Mapping)]


def _seconds(point: Mapping[str, Any]) -> int:
    """When a grain began; a time without a zone is in UTC."""
    begin = datetime.fromisoformat(str(point.get("timeStamp")))
    return round((begin if begin.tzinfo else begin.replace(tzinfo=UTC)).timestamp())


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S.000Z}"
