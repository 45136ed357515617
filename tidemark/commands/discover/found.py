"""What was found in a subscription, as plain data. Pure."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

TargetKind = Literal[
    "app_service_plan",
    "cosmos_throughput",
    "container_app_minimum",
    "event_hubs_throughput_units",
    "service_bus_messaging_units",
    "virtual_machine_scale_set",
]
SourceKind = Literal["service_bus_queue", "service_bus_subscription", "storage_queue", "event_hub_lag"]


class FoundTarget(Struct, frozen=True):
    """What can be scaled: `size` is what it has now, `least` and `most` what it may have, where they are known; `note` for
    people. `labels` name it in the metrics of what it is a part of.
    """

    kind: TargetKind
    resource_id: str
    name: str
    note: str = ""
    size: int | None = None
    most: int | None = None
    least: int | None = None
    labels: tuple[tuple[str, str], ...] = ()


class FoundSource(Struct, frozen=True):
    """What backlogs can be read of. `host` is where it is reached; `path` names it there: a queue; a topic and a subscription;
    a hub and a consumer group. `sessions`: its messages are of sessions; `partitioned`: it is spread over brokers. An age is read of
    neither as it is of others.
    """

    kind: SourceKind
    resource_id: str
    host: str
    path: tuple[str, ...]
    sessions: bool = False
    partitioned: bool = False


class Discovery(Struct, frozen=True):
    """`left_out` is what cannot be scaled, and `unread` what could not be looked at, each with the reason. `command` is the one that
    found it or was given it.
    """

    subscription: str
    targets: tuple[FoundTarget, ...] = ()
    sources: tuple[FoundSource, ...] = ()
    left_out: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    command: str = "discover"
