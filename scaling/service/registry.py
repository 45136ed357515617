"""Names in tidemark.toml -> collector and scaler classes.

Classes are named by `module:Class` and imported when first looked up. A user's own class is used by giving
`module:Class` in place of a registered name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from scaling.config.rule_registry import load_class

# Both sorted by name; a test keeps them so.
COLLECTORS: dict[str, str] = {
    "azure_monitor": "scaling.collectors.number.azure_monitor:AzureMonitorCollector",
    "calendar": "scaling.collectors.number.calendar:CalendarCollector",
    "consumer_telemetry": "scaling.collectors.consumer_telemetry:ConsumerTelemetryCollector",
    "event_hub_lag": "scaling.collectors.event_hub.collector:EventHubLagCollector",
    "http_json": "scaling.collectors.number.http_json:HttpJsonCollector",
    "log_query": "scaling.collectors.number.log_query:LogQueryCollector",
    "prometheus": "scaling.collectors.number.prometheus:PrometheusCollector",
    "service_bus_queue": "scaling.collectors.service_bus.collector:ServiceBusQueueCollector",
    "service_bus_subscription": "scaling.collectors.service_bus.collector:ServiceBusSubscriptionCollector",
    "storage_queue": "scaling.collectors.storage_queue:StorageQueueCollector",
    "target_capacity": "scaling.collectors.target_capacity:TargetCapacityCollector",
}
SCALERS: dict[str, str] = {
    "advice": "scaling.scalers.advice:AdviceScaler",
    "app_service_plan": "scaling.scalers.app_service.scaler:AppServicePlanScaler",
    "azure_resource": "scaling.scalers.resource.scaler:AzureResourceScaler",
    "cosmos_throughput": "scaling.scalers.cosmos.scaler:CosmosThroughputScaler",
}


def collector_class(kind: str) -> type[Any]:
    """The collector called `kind` in COLLECTORS, or `module:Class`. Raises ValueError saying what is wrong with either."""
    cls = _look_up(kind, COLLECTORS, "collector")
    _require(cls, kind, "collector", ("collect", "aclose", "entity"))
    counts = getattr(cls, "COUNTS", None)
    if not isinstance(counts, tuple) or not counts:
        raise ValueError(f"'{kind}' is not a collector: COUNTS must be a tuple of the counts it reports")
    if getattr(cls, "DEFAULT_COUNT", None) not in counts:
        raise ValueError(f"'{kind}' is not a collector: DEFAULT_COUNT must be one of {', '.join(counts)}")
    return cls


def reader_class(cls: type[Any], count: str) -> type[Any]:
    """The class that reads this count of a collector: the one that its `READERS` name for the count, else itself.

    Raises ValueError for a name that leads nowhere.
    """
    name = getattr(cls, "READERS", {}).get(count)
    return cls if name is None else load_class(name)


def scaler_class(kind: str) -> type[Any]:
    """The scaler called `kind` in SCALERS, or `module:Class`. Raises ValueError saying what is wrong with either."""
    cls = _look_up(kind, SCALERS, "scaler")
    _require(cls, kind, "scaler", ("current", "apply", "aclose"))
    return cls


def _look_up(kind: str, known: Mapping[str, str], what: str) -> type[Any]:
    if ":" not in kind and kind not in known:
        raise ValueError(
            f"'{kind}' is not a known {what}; accepted are {', '.join(known)}, or module:Class of your own"
        )
    return load_class(known.get(kind, kind))


def _require(cls: type[Any], kind: str, what: str, methods: Iterable[str]) -> None:
    params = getattr(cls, "Params", None)
    if not (isinstance(params, type) and issubclass(params, msgspec.Struct)):
        raise ValueError(f"'{kind}' is not a {what}: it has no nested msgspec.Struct called Params")
    missing = [name for name in methods if not callable(getattr(cls, name, None))]
    if missing:
        raise ValueError(f"'{kind}' is not a {what}: it lacks {', '.join(missing)}()")
