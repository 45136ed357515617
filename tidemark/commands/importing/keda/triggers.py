"""KEDA's triggers as metrics, and those of the kind cron as floors by the clock. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from scaling.config.toml import as_toml
from scaling.schedules.timetable import zone_of
from tidemark.commands.importing.common.given import Given
from tidemark.commands.importing.common.imported import Imported, span_text
from tidemark.commands.importing.common.queues import (
    BLOBS,
    BUS,
    HOSTS,
    QUEUES,
    add_identity_connection,
    add_setting,
    add_variable,
    full_id,
)
from tidemark.commands.importing.keda.crons import floors_of
from tidemark.foundation.durations import parse_duration

LONGEST = 43_200.0
"""Seconds of a window. Chosen: at one sample a minute its samples take 12 KB."""


class Trigger(Struct, frozen=True, kw_only=True):
    """A metric with its `target`, a ratio if it is a `value`; or the periods of a schedule in a time zone."""

    name: str = ""
    metric: str = ""
    target: float = 0.0
    activation: float = 0.0
    value: bool = False
    schedule: tuple[str, list[dict[str, Any]]] | None = None


class _Read(Struct, frozen=True):
    """What is made of a trigger: options of a collector, and the names of its target and its activation value."""

    options: dict[str, Any]
    target: str
    default: float
    activation: str
    base: str = "backlog"


def read_trigger(given: Given, cooldown: float, made: Imported) -> Trigger | None:
    """None for one that cannot be carried over, which is noted. Raises UnreadableError."""
    kind = given.text("type")
    meta = given.at("metadata")
    where = f"trigger {kind or '?'}" + (f" ({given.text('name')})" if given.has("name") else "")
    if kind == "cron":
        return _cron(meta, where, made)
    if kind in {"cpu", "memory"}:
        made.note(
            where,
            f"the {kind} of pods is not read; azure_monitor reads that of a plan or an app (CpuPercentage, MemoryPercentage)",
        )
        return None
    reader = _READERS.get(kind)
    if reader is None:
        made.note(
            where,
            "there is no collector for it; prometheus, http_json, log_query or a class of your own can read its number",
        )
        return None
    made.authentication = given.at("authenticationRef").text("name")
    counted = reader(meta, where, made)
    if counted is None:
        return None
    if given.has("authenticationRef"):
        made.note(
            f"TriggerAuthentication {made.authentication or '?'} of {where}",
            "it is not read: the app's identity, or the app settings that it needs, take its place",
        )
    target = meta.number(counted.target, counted.default)
    if target <= 0:
        raise meta.unreadable(counted.target, "a number above 0 is accepted")
    activation = max(meta.number(counted.activation, 0), 0)
    _note_unasked(meta, where, made)
    window = span_text(_window(cooldown, made))
    return Trigger(
        name=given.text("name"),
        metric=made.metric(given.text("name") or counted.base, {**counted.options, "window": window}),
        target=target,
        activation=activation,
        value=given.text("metricType", "AverageValue") == "Value",
    )


def _note_unasked(meta: Given, where: str, made: Imported) -> None:
    """Notes the metadata that no reader knows."""
    if left := [name for name in meta.unasked if name.casefold() not in _SAYS_NOTHING]:
        made.note(
            f"metadata of {where}",
            f"{', '.join(left[:10])} {'is' if len(left) == 1 else 'are'} not carried over: look whether it counts something else without",
        )


_SAYS_NOTHING = frozenset({"metricname", "tenantid", "activedirectoryclientid"})
"""Metadata that changes nothing here: a name for the HPA, and who signs in."""


def _window(cooldown: float, made: Imported) -> float:
    """Seconds: the rule `activation` takes the last one away when all of the window was quiet."""
    interval = parse_duration(made.table.get("interval", "1m"))
    if made.table["minimum"] > 0:
        return max(60.0, interval)
    if cooldown > LONGEST:
        made.note(
            f"cooldownPeriod {span_text(cooldown)}",
            f"a metric's window takes its place, {span_text(LONGEST)} at most",
        )
    return max(min(cooldown, LONGEST), 60.0, interval)


def _cron(meta: Given, where: str, made: Imported) -> Trigger | None:
    try:
        periods = floors_of(meta.text("start"), meta.text("end"), meta.whole("desiredReplicas", 0))
        zone = zone_of(meta.text("timezone", "UTC")).key
    except ValueError as error:
        made.note(where, f"{error}; write its times as periods of a schedule")
        return None
    return Trigger(schedule=(zone, periods))


def _connection(
    meta: Given, where: str, made: Imported, key: str = "connectionFromEnv", what: str = ""
) -> str:
    name = meta.text(key)
    what = what or "connection"
    if name:
        return add_variable(made, name, f"the {what} of {where}, as the workload has it")
    ref = made.authentication
    whole = f"the {what} of {where}{ref and f', from TriggerAuthentication {ref}'}"
    return add_setting(made, f"{made.name} {what}", whole, f"{made.source} {what} {ref}")


def _bus(meta: Given, where: str, made: Imported) -> _Read | None:
    key = "subscriptionName" if meta.has("topicName") else "queueName"
    name, combine = meta.require(key), dict[str, str]()
    if meta.flag("useRegex", default=False):
        pattern, operation = _pattern(name), meta.text("operation", "sum").casefold()
        if pattern is None or operation not in {"sum", "max"}:
            made.note(
                where,
                f"'{name}' with operation {operation} is not carried over: of patterns, `.` and `.*` are, and sum and max",
            )
            return None
        name, combine = pattern, {"combine": operation}
    connection = (
        add_identity_connection(made, BUS, meta.text("namespace"), _suffix(meta, BUS, "endpointSuffix"))
        if meta.has("namespace")
        else _connection(meta, where, made)
    )
    if meta.has("topicName"):
        options = {
            "collector": "service_bus_subscription",
            "connection": connection,
            "topic": meta.text("topicName"),
        }
        options["subscription"] = name
    else:
        options = {
            "collector": "service_bus_queue",
            "connection": connection,
            "queue": name,
        }
    return _Read({**options, **combine}, "messageCount", 5, "activationMessageCount")


_PIECES = re.compile(r"(\.\*)|(\.)|(\\[.-])|([A-Za-z0-9_/-])")


def _pattern(regex: str) -> str | None:
    """A regular expression that matches anywhere in a name, as `*` and `?`; None for one that says more."""
    body = regex.removeprefix("^").removesuffix("$")
    if "".join(match[0] for match in _PIECES.finditer(body)) != body:
        return None
    pattern = "".join("*" if m[1] else "?" if m[2] else (m[3] or m[4])[-1] for m in _PIECES.finditer(body))
    pattern = f"{'' if regex.startswith('^') else '*'}{pattern}{'' if regex.endswith('$') else '*'}"
    return re.sub(r"\*+", "*", pattern)


def _storage(meta: Given, where: str, made: Imported) -> _Read:
    identity = meta.has("accountName") and not meta.has("connectionFromEnv")
    connection = (
        add_identity_connection(
            made, QUEUES, meta.text("accountName"), _suffix(meta, QUEUES, "endpointSuffix")
        )
        if identity
        else _connection(meta, where, made)
    )
    count = "visible" if meta.text("queueLengthStrategy", "all").casefold() == "visibleonly" else "total"
    options = {
        "collector": "storage_queue",
        "connection": connection,
        "queue": meta.require("queueName"),
        "count": count,
    }
    return _Read(options, "queueLength", 5, "activationQueueLength")


LAYOUTS = {
    "azurefunction": "functions",
    "blobmetadata": "blob_metadata",
    "gosdk": "go",
    "dapr": "dapr",
    "": "legacy",
}


def _suffix(meta: Given, kind: str, key: str) -> str:
    """What a host ends with in the cloud that a trigger names; `key` has it for one of no name. Empty in the public one."""
    cloud = meta.text("cloud").casefold()
    if cloud == "private":
        return meta.text(key)
    return HOSTS[kind].replace("windows.net", domain) if (domain := _CLOUDS.get(cloud)) else ""


_CLOUDS = {"azureusgovernmentcloud": "usgovcloudapi.net", "azurechinacloud": "chinacloudapi.cn"}


def _checkpoints(meta: Given, where: str, made: Imported) -> str:
    """The connection of the storage account with the checkpoints."""
    account = meta.text("storageAccountName")
    if account and not meta.has("storageConnectionFromEnv"):
        return add_identity_connection(made, BLOBS, account, _suffix(meta, BLOBS, "storageEndpointSuffix"))
    return _connection(meta, where, made, "storageConnectionFromEnv", "storage connection")


def _hub(meta: Given, where: str, made: Imported) -> _Read:
    space = meta.text("eventHubNamespace")
    suffix = _suffix(meta, BUS, "serviceBusEndpointSuffix")
    connection = (
        add_identity_connection(made, BUS, space, suffix) if space else _connection(meta, where, made)
    )
    hub = meta.text("eventHubName")
    if not hub:
        setting = add_setting(
            made,
            f"{made.name} event hub",
            f"the name of the event hub of {where}, which its connection string had",
            f"{made.source} {connection}",
        )
        hub = f"%{setting}%"
    strategy = meta.text("checkpointStrategy").casefold()
    target = meta.number("unprocessedEventThreshold", 64)
    options: dict[str, Any] = {"collector": "event_hub_lag", "connection": connection, "event_hub": hub}
    options |= {"consumer_group": meta.text("consumerGroup", "$Default")}
    options |= {"storage": _checkpoints(meta, where, made)}
    container = meta.text("blobContainer", "" if strategy else "azure-webjobs-eventhub")
    options |= (
        {"container": container}
        if container
        else {"container": "azure-webjobs-eventhub"}
        if strategy == "azurefunction"
        else {}
    )
    layout = "functions" if not strategy and not meta.has("blobContainer") else LAYOUTS.get(strategy, "auto")
    options |= {"layout": layout, "count": "capped_lag", "target": max(int(target), 1)}
    made.note(
        where,
        "the lag is counted exactly: what retention removed, and a hub made anew, are not counted as KEDA counts them (docs/policies.md)",
    )
    return _Read(options, "unprocessedEventThreshold", 64, "activationUnprocessedEventThreshold", "lag")


def _prometheus(meta: Given, where: str, made: Imported) -> _Read:
    url = _address(meta, "serverAddress", where, made)
    options = {"collector": "prometheus", "url": url, "query": meta.require("query")}
    if meta.flag("ignoreNullValues", default=True):
        made.note(
            where,
            "there an answer without a value counts as 0, here it is no data, which never scales in; empty = 0 brings that back",
        )
    return _Read(options, "threshold", 0, "activationThreshold", "value")


_PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*|\[\d{1,6}\])*", re.ASCII)


def _api(meta: Given, where: str, made: Imported) -> _Read | None:
    if meta.text("format", "json").casefold() != "json":
        made.note(where, "only answers in JSON are read: give the number by prometheus, or in JSON")
        return None
    path = re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", meta.text("valueLocation", "value"))
    if not _PATH.fullmatch(path):
        made.note(
            where, f"of its path only names and numbers can be carried over; found {as_toml(path[:60])}"
        )
        return None
    url = _address(meta, "url", where, made)
    if meta.has("authMode") or meta.has("authModes"):
        made.note(
            f"the authentication of {where}",
            "write the name of a header, and of the app setting with its value, as `headers`",
        )
    return _Read(
        {"collector": "http_json", "url": url, "path": path},
        "targetValue",
        0,
        "activationTargetValue",
        "value",
    )


_URL = re.compile(
    r"https://(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,63}(?::[1-9]\d{0,3})?(?:/[\w./~-]*)?",
    re.ASCII | re.IGNORECASE,
)
"""An address without a user's name and a query, which may be secrets."""


def _address(meta: Given, key: str, where: str, made: Imported) -> str:
    """An address that may be called as it stands; else the app setting that is to hold another one."""
    url = meta.text(key)
    if len(url) <= 200 and _URL.fullmatch(url):
        return url
    setting = add_setting(
        made,
        f"{made.name} {key}",
        f"the address of {where}: https, or a host that TIDEMARK_TRUSTED_HOSTS names",
        url or f"{made.source} {where}",
    )
    made.note(
        f"{key} of {where}",
        f"addresses are asked over TLS, and hold no secret in the file: the app setting {setting} is to hold it",
    )
    return f"%{setting}%"


def _monitor(meta: Given, where: str, made: Imported) -> _Read | None:
    dimensions: dict[str, str] = {}
    for part in filter(None, re.split(r"\s+and\s+", meta.text("metricFilter"), flags=re.IGNORECASE)):
        match = re.fullmatch(r"\(?\s*(\w+)\s+eq\s+'([^']*)'\s*\)?", part, re.IGNORECASE)
        if match is None:
            made.note(
                where, f"of its filter only NAME eq 'VALUE' can be carried over; found {as_toml(part[:60])}"
            )
            return None
        dimensions[match[1]] = match[2]
    resource = "/".join((
        f"/subscriptions/{meta.text('subscriptionId')}/resourceGroups/{meta.text('resourceGroupName')}/providers",
        meta.text("resourceURI").strip("/"),
    ))  # fmt: skip
    if not full_id(resource):
        what = f"the full id of {meta.text('resourceURI', 'the resource')}"
        setting = add_setting(made, f"{made.name} resource id", what, resource)
        resource = f"%{setting}%"
    aggregation = meta.text("metricAggregationType", "Average").casefold()
    if aggregation not in _AGGREGATIONS:
        raise meta.unreadable("metricAggregationType", f"accepted are {', '.join(sorted(_AGGREGATIONS))}")
    options: dict[str, Any] = {
        "collector": "azure_monitor",
        "resource_id": resource,
        "metric": meta.require("metricName"),
    }
    options |= {"namespace": meta.text("metricNamespace")} if meta.has("metricNamespace") else {}
    options |= {"aggregation": aggregation, "grain": _grain(meta, where, made)}
    options |= {"dimensions": dimensions} if dimensions else {}
    made.note(
        where,
        "KEDA reads grains that are not complete yet; complete ones are higher, so look at the target again",
    )
    return _Read(options, "targetValue", 0, "activationTargetValue", "value")


def _grain(meta: Given, where: str, made: Imported) -> str:
    wanted = meta.seconds("metricAggregationInterval", 300.0)
    grain_read = max((grain for grain in _GRAINS if grain <= wanted), default=min(_GRAINS))
    if grain_read != wanted:
        made.note(
            f"metricAggregationInterval of {where}",
            f"{span_text(wanted)} is read as {span_text(grain_read)}, a grain of Azure Monitor",
        )
    return span_text(grain_read)


_AGGREGATIONS = frozenset({"average", "minimum", "maximum", "total", "count"})
_GRAINS = frozenset({60.0, 300.0, 900.0, 1800.0, 3600.0, 21_600.0, 43_200.0, 86_400.0})

_READERS: dict[str, Callable[[Given, str, Imported], _Read | None]] = {
    "azure-eventhub": _hub,
    "azure-monitor": _monitor,
    "azure-queue": _storage,
    "azure-servicebus": _bus,
    "metrics-api": _api,
    "prometheus": _prometheus,
}
