"""The views of consumers for HTTP and the command line, as typed JSON. Values in, values out.

Times are epoch seconds; an unknown number is null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import attrgetter

from msgspec import Struct

from consumer.leasing.balance import partition_order
from consumer.telemetry.rate_orders import RateOrder
from consumer.telemetry.records import PartitionRecord, shared
from tidemark.foundation.consumer_stats import ConsumerStats, InstanceFigures, totals
from tidemark.foundation.version import VERSION

STALE_AFTER = 60.0
"""Age of a row, in seconds, from which its instance counts as dead: twelve rows were missed, as for the collector."""


class InstanceView(InstanceFigures, frozen=True, kw_only=True):
    """One instance: its row without the partitions. `state` is `alive`, `paused`, `stopped`, `failed` or `stale`."""

    state: str
    age: float
    partitions: tuple[str, ...]
    rate_limit: float | None


class PartitionView(PartitionRecord, frozen=True, kw_only=True):
    """One partition as reported by its newest owner, by a live one if there is one. `live` is false if that owner is dead."""

    instance: str
    live: bool


class ConsumerView(Struct, frozen=True):
    """A consumer: sums over its live instances, all null (counts 0) while there are none.

    `rate_limit` is null unless every live instance has one. It is for `rate_hubs_count` hubs together if these share it; 0: of this one
    alone. `throttled_share` and `oldest_age_s` are the highest.
    `lag` is null while it is not known of every partition shown.
    """

    consumer: str
    live: int
    rate_limit: float | None
    written_per_s: float | None
    throttled_share: float | None
    ru_per_record: float | None
    ru_per_s: float | None
    backlog_count: int
    oldest_age_s: float | None
    dead_letters_total: int
    dropped_total: int
    parked_count: int
    rate_hubs_count: int
    lag: int | None
    order: RateOrder | None
    ru_order: RateOrder | None
    """The order for request units."""
    instances: tuple[InstanceView, ...]
    partitions: tuple[PartitionView, ...]


class ConsumersView(Struct, frozen=True):
    now: float
    version: str
    stale_after: float
    consumers: tuple[ConsumerView, ...]


_SUMS = ("rate_limit", "written_per_s", "throttled_share", "ru_per_record", "ru_per_s")


def consumers_view(
    rows: Sequence[ConsumerStats],
    orders: Mapping[str, RateOrder],
    unit_orders: Mapping[str, RateOrder] | None = None,
    *,
    now: float,
) -> ConsumersView:
    """All consumers that have rows or orders, by name. `unit_orders` are those for request units."""
    unit_orders = unit_orders or {}
    by_consumer = attrgetter("consumer")
    by_name = {name: list(group) for name, group in groupby(sorted(rows, key=by_consumer), key=by_consumer)}
    ordered = {name for given in (orders, unit_orders) for name, order in given.items() if order.holds}
    consumers = tuple(
        _consumer(name, by_name.get(name, []), (orders.get(name), unit_orders.get(name)), now)
        for name in sorted(by_name.keys() | ordered)
    )
    return ConsumersView(now, VERSION, STALE_AFTER, consumers)


def _consumer(
    name: str, rows: list[ConsumerStats], orders: tuple[RateOrder | None, RateOrder | None], now: float
) -> ConsumerView:
    rows = sorted(rows, key=lambda stats: (-stats.at, stats.instance))
    instances = tuple(_instance(stats, now) for stats in rows)
    live = [
        stats
        for stats, view in zip(rows, instances, strict=True)
        if view.state not in {"stale", "stopped", "failed"}
    ]
    sums = totals(live) if live else {}
    partitions = _partitions(rows, live)
    lags = [partition.lag for partition in partitions]
    return ConsumerView(
        consumer=name,
        live=len(live),
        **{name: sums.get(name) for name in _SUMS},
        backlog_count=sum(stats.backlog_count for stats in live),
        oldest_age_s=sums.get("oldest_age"),
        dead_letters_total=sum(stats.dead_letters_total for stats in rows),
        dropped_total=sum(stats.dropped_total for stats in rows),
        parked_count=sum(stats.parked_count for stats in live),
        rate_hubs_count=max((stats.rate_hubs_count for stats in live), default=0),
        lag=sum(lag for lag in lags if lag is not None) if lags and None not in lags else None,
        order=orders[0],
        ru_order=orders[1],
        instances=instances,
        partitions=partitions,
    )


def _instance(stats: ConsumerStats, now: float) -> InstanceView:
    return shared(
        InstanceView,
        stats,
        state=_state(stats, now),
        age=max(0.0, now - stats.at),
        partitions=tuple(partition.partition for partition in stats.lag),
        rate_limit=stats.rate_limit or None,
        ru_per_record=stats.last_ru_per_record if stats.ru_per_record is None else stats.ru_per_record,
    )


def _state(stats: ConsumerStats, now: float) -> str:
    if stats.stopping:  # its last row, or one of the seconds before that
        return "failed" if stats.problem else "stopped"
    if now - stats.at > STALE_AFTER:
        return "stale"
    return "paused" if stats.paused else "alive"


def _partitions(rows: list[ConsumerStats], live: list[ConsumerStats]) -> tuple[PartitionView, ...]:
    """The newest report on every partition. `rows` are newest first. If a partition moved and is in several rows, the newest
    live row counts.
    """
    views: dict[str, PartitionView] = {}
    for stats, alive in [(stats, True) for stats in live] + [(stats, False) for stats in rows]:
        for partition in stats.lag:
            if partition.partition not in views:
                views[partition.partition] = shared(
                    PartitionView, partition, instance=stats.instance, live=alive
                )
    return tuple(sorted(views.values(), key=lambda view: partition_order(view.partition)))
