"""Azure Monitor's metrics of a resource, as `GET {resource}/providers/Microsoft.Insights/metrics` tells them.

Values are added with `MetricsApi.add`, or over the control port. A plan needs none: its instances report CpuPercentage from
its own history. What is as in Azure: a point for every minute of the timespan, without a value where there is none; no time
series for a dimension's value that never had one; with a filter `top` time series, 10 unless told, the rest cut silently;
only 30 days at a time; nothing from before 93 days; the newest minutes not yet whole.

Fault at arm.get_metrics, beside those of every route:

    truncated   time series end halfway
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

from devstack.resource_manager.common.documents import Answer, ArmError, Call, front_door_error
from devstack.resource_manager.common.plans import Clock, Plan

MINUTE = 60
GRAINS = {"PT1M": 1, "PT5M": 5, "PT15M": 15, "PT30M": 30, "PT1H": 60}
REGION = "westeurope"
DAY = 86_400
KEPT = 93 * DAY
AGGREGATIONS = ("average", "minimum", "maximum", "total", "count")
METRICS_KINDS = {"truncated"}
_CONDITION = re.compile(r"(\w+) eq '((?:[^']|'')*)'")


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one metric by minute (seconds since the epoch, of its begin), for one value of each dimension."""

    dimensions: dict[str, str]
    values: dict[int, float]


@dataclass(slots=True)
class MetricsApi:
    """`longest` is the longest timespan, in seconds; in the last `settling` seconds a value is told as half of what it
    will be.
    """

    clock: Clock
    plans: Mapping[str, Plan]
    longest: float = 30 * DAY
    settling: float = 180.0
    resources: dict[str, dict[str, list[Series]]] = field(default_factory=dict)

    def add(
        self, resource_id: str, metric: str, values: Mapping[float, float], **dimensions: str
    ) -> dict[int, float]:
        """Adds a time series, by the times (epoch seconds) at which its minutes begin; it may be changed later."""
        minutes = {int(at // MINUTE) * MINUTE: value for at, value in values.items()}
        metrics = self.resources.setdefault(resource_id.lower(), {})
        metrics.setdefault(metric.lower(), []).append(Series(dimensions, minutes))
        return minutes

    def knows_subscription(self, subscription: str) -> bool:
        return any(
            resource.startswith(f"/subscriptions/{subscription}/".lower()) for resource in self.resources
        )

    def get_metrics(self, call: Call) -> Answer:
        begin, end = self._timespan(call.query.get("timespan", ""))
        minutes = GRAINS.get(call.query.get("interval", "PT1M"), 0)
        if not minutes:
            raise _bad_request(f"Detect invalid time grain input: the local server has {', '.join(GRAINS)}.")
        now, grain = self.clock(), minutes * MINUTE
        name, all_series = self._metric(call, begin, end)
        conditions = _conditions(call.query.get("$filter", ""), all_series)
        series_list = _grouped(all_series, conditions)
        if conditions:
            series_list = series_list[: int(call.query.get("top", "10"))]
        truncated = call.fault is not None and call.fault.kind == "truncated"
        times = range(begin - begin % grain, (begin + end) // 2 if truncated else end, grain)
        data = call.query.get("resultType", "Data").lower() == "data"
        answers = [
            {
                "metadatavalues": _metadata(series),
                **({"data": self._points(call, series, times, grain, now)} if data else {}),
            }
            for series in series_list
        ]
        date = format_datetime(datetime.fromtimestamp(now, UTC), usegmt=True)
        return Answer(200, _document(call, name, answers), {"Date": date})

    def _timespan(self, text: str) -> tuple[int, int]:
        try:
            begin, end = (int(datetime.fromisoformat(part).timestamp()) for part in text.split("/"))
        except ValueError:
            raise _bad_request(f"Invalid timespan: '{text}'; accepted is start/end in ISO 8601.") from None
        if not 0 < end - begin <= self.longest:
            raise _bad_request(
                f"Query timespan is invalid: {text} is longer than {self.longest / DAY:g} days, or empty."
            )
        return begin, end

    def _metric(self, call: Call, begin: int, end: int) -> tuple[str, list[Series]]:
        """The one metric asked for. Raises ArmError for a resource or a metric that is not known."""
        parts = call.parts
        resource = f"/subscriptions/{parts['subscription']}/resourceGroups/{parts['group']}/providers/{parts['type']}"
        resource = f"{resource}/{parts['name']}{parts.get('rest', '')}"
        metrics = dict(self.resources.get(resource.lower(), {}))
        plan = self.plans.get(resource.lower())
        if plan is not None:
            metrics.setdefault("cpupercentage", _instances(plan, begin, end))
        if not metrics:
            raise front_door_error(404, "ResourceNotFound", f"The Resource '{resource}' was not found.")
        name = call.query.get("metricnames", "")
        if name.lower() not in metrics:
            raise _bad_request(
                f"Failed to find metric configuration for provider: {parts['type']}, metric: {name}, Valid metrics: "
                + ",".join(metrics)
            )
        return name, metrics[name.lower()]

    def _points(
        self, call: Call, series: Series, times: Iterable[int], grain: int, now: float
    ) -> list[dict[str, Any]]:
        wanted = [
            aggregation
            for aggregation in call.query.get("aggregation", "average").lower().split(",")
            if aggregation in AGGREGATIONS
        ]
        points = []
        for at in times:
            point: dict[str, Any] = {"timeStamp": f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"}
            values = [
                series.values[minute] for minute in range(at, at + grain, MINUTE) if minute in series.values
            ]
            if values and now - KEPT <= at < now:
                share = 0.5 if at + grain > now - self.settling else 1.0
                point |= {name: _AGGREGATED[name](values) * share for name in wanted}
            points.append(point)
        return points


_AGGREGATED: dict[str, Callable[[list[float]], float]] = {
    "average": lambda values: sum(values) / len(values),
    "minimum": min,
    "maximum": max,
    "total": sum,
    "count": sum,
}
"""A minute has one value, whatever it is asked for as."""


def _bad_request(message: str) -> ArmError:
    return front_door_error(400, "BadRequest", message)


def _conditions(text: str, all_series: list[Series]) -> dict[str, str]:
    """Dimension -> its wanted value, or `*`. Raises ArmError for what is no filter, or no dimension of the metric."""
    if not text:
        return {}
    conditions: dict[str, str] = {}
    for part in re.split(r" and (?=\w+ eq ')", text):
        match = _CONDITION.fullmatch(part)
        if match is None:
            raise _bad_request(f"Invalid filter '{text}': found '{part}', expected <dimension> eq '<value>'.")
        value = match[2].replace("''", "'").replace("%28", "(").replace("%29", ")").replace("%25", "%")
        conditions[match[1].lower()] = value
    known = {name.lower() for series in all_series for name in series.dimensions}
    for name in conditions:
        if all_series and name not in known:
            raise _bad_request(f"Metric does not support requested dimension combination: {name}.")
    return conditions


def _grouped(all_series: list[Series], conditions: dict[str, str]) -> list[Series]:
    """One time series for each combination of the filter's dimensions; without a filter, one of all together."""
    series_list: dict[tuple[str, ...], Series] = {}
    for series in all_series:
        dimensions = {name.lower(): value for name, value in series.dimensions.items()}
        if not all(value in {"*", dimensions.get(name)} for name, value in conditions.items()):
            continue
        kept = {name: dimensions[name] for name in conditions}
        group = series_list.setdefault(tuple(kept.values()), Series(kept, {}))
        for at, value in series.values.items():
            group.values[at] = group.values.get(at, 0.0) + value
    return list(series_list.values())


def _document(call: Call, metric: str, timeseries: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "cost": 0,
        "timespan": call.query["timespan"],
        "interval": call.query.get("interval", "PT1M"),
        "namespace": call.parts["type"],
        "resourceregion": REGION,
        "value": [
            {
                "id": f"{call.path}/{metric}",
                "type": "Microsoft.Insights/metrics",
                "name": {"value": metric, "localizedValue": metric},
                "unit": "Count",
                "errorCode": "Success",
                "timeseries": timeseries,
            }
        ],
    }


def _metadata(series: Series) -> list[dict[str, Any]]:
    return [
        {"name": {"value": name, "localizedValue": name}, "value": value}
        for name, value in series.dimensions.items()
    ]


def _instances(plan: Plan, begin: int, end: int) -> list[Series]:
    """What each instance of a plan would have reported in the minutes that ended while it ran."""
    series_list: dict[int, Series] = {}
    history = plan.history
    for at in range(begin - begin % MINUTE, end, MINUTE):
        capacity = next((count for since, count in reversed(history) if since <= at + MINUTE), 0)
        for number in range(1, capacity + 1):
            series = series_list.setdefault(number, Series({"Instance": f"{plan.name}-{number}"}, {}))
            series.values[at] = 20.0
    return list(series_list.values())
