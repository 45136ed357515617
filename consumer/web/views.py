"""What HTTP and the command line show of consumers, as typed JSON. Values in, values out.

Times are epoch seconds; a number that is not known is null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from msgspec import Struct

from consumer.telemetry.rate_orders import RateOrder
from foundation.consumer_stats import ConsumerStats, PartitionStats, totals
from foundation.version import VERSION

STALE_AFTER = 60.0
"""Age of a row, in seconds, from which its instance counts as gone: twelve rows missed, as for the collector."""


class InstanceView(Struct, frozen=True):
    """One instance: its row without the partitions. `state` is `alive`, `paused`, `stopped` or `stale`."""

    instance: str
    state: str
    at: float
    age: float
    hub: str
    consumer_group: str
    partitions: tuple[str, ...]
    rate_limit: float | None
    received_per_s: float
    written_per_s: float
    retried_per_s: float
    throttled_share: float
    ru_per_record: float | None
    ru_per_s: float
    backlog_count: int
    backlog_bytes: int
    oldest_age_s: float
    written_total: int
    retried_total: int
    throttled_total: int
    dead_letters_total: int


class PartitionView(Struct, frozen=True):
    """One partition as its newest owner tells, the live ones first. `live` is false when that one is gone."""

    partition: str
    instance: str
    live: bool
    last_enqueued: int | None
    received: int | None
    low_water: int | None
    lag: int | None
    in_flight: int


class RateOrderView(Struct, frozen=True):
    """0 is no limit; both null: lifted."""

    rate: float | None
    fleet_rate: float | None
    by: str
    at: float


class ConsumerView(Struct, frozen=True):
    """A consumer: sums over its live instances, all null (counts 0) while there are none.

    `rate_limit` is null unless every live instance has one; `throttled_share` and `oldest_age_s` are the highest.
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
    lag: int | None
    order: RateOrderView | None
    instances: tuple[InstanceView, ...]
    partitions: tuple[PartitionView, ...]


class ConsumersView(Struct, frozen=True):
    now: float
    version: str
    stale_after: float
    consumers: tuple[ConsumerView, ...]


def consumers_view(
    rows: Sequence[ConsumerStats],
    orders: Mapping[str, RateOrder],
    *,
    now: float,
    stale_after: float = STALE_AFTER,
) -> ConsumersView:
    """All consumers that have rows or orders, by name."""
    by_name = {name: list(group) for name, group in groupby(sorted(rows, key=_name), key=_name)}
    names = sorted(by_name.keys() | {name for name, order in orders.items() if _holds(order)})
    consumers = tuple(
        _consumer(name, by_name.get(name, []), orders.get(name), now, stale_after) for name in names
    )
    return ConsumersView(now, VERSION, stale_after, consumers)


def _name(stats: ConsumerStats) -> str:
    return stats.consumer


def _holds(order: RateOrder) -> bool:
    return order.rate is not None or order.fleet_rate is not None


def _consumer(
    name: str, rows: list[ConsumerStats], order: RateOrder | None, now: float, stale_after: float
) -> ConsumerView:
    rows = sorted(rows, key=lambda stats: (-stats.at, stats.instance))
    instances = tuple(_instance(stats, now, stale_after) for stats in rows)
    live = [
        stats for stats, view in zip(rows, instances, strict=True) if view.state not in {"stale", "stopped"}
    ]
    sums = totals(live) if live else {}
    partitions = _partitions(rows, live)
    lags = [each.lag for each in partitions]
    return ConsumerView(
        consumer=name,
        live=len(live),
        rate_limit=sums.get("rate_limit"),
        written_per_s=sums.get("written_per_s"),
        throttled_share=sums.get("throttled_share"),
        ru_per_record=sums.get("ru_per_record"),
        ru_per_s=sums.get("ru_per_s"),
        backlog_count=sum(stats.backlog_count for stats in live),
        oldest_age_s=sums.get("oldest_age"),
        dead_letters_total=sum(stats.dead_letters_total for stats in rows),
        lag=sum(lag for lag in lags if lag is not None) if lags and None not in lags else None,
        order=RateOrderView(order.rate, order.fleet_rate, order.by, order.at) if order else None,
        instances=instances,
        partitions=partitions,
    )


def _instance(stats: ConsumerStats, now: float, stale_after: float) -> InstanceView:
    return InstanceView(
        instance=stats.instance,
        state=_state(stats, now, stale_after),
        at=stats.at,
        age=max(0.0, now - stats.at),
        hub=stats.hub,
        consumer_group=stats.consumer_group,
        partitions=tuple(each.partition for each in stats.lag),
        rate_limit=stats.rate_limit or None,
        received_per_s=stats.received_per_s,
        written_per_s=stats.written_per_s,
        retried_per_s=stats.retried_per_s,
        throttled_share=stats.throttled_share,
        ru_per_record=stats.last_ru_per_record if stats.ru_per_record is None else stats.ru_per_record,
        ru_per_s=stats.ru_per_s,
        backlog_count=stats.backlog_count,
        backlog_bytes=stats.backlog_bytes,
        oldest_age_s=stats.oldest_age_s,
        written_total=stats.written_total,
        retried_total=stats.retried_total,
        throttled_total=stats.throttled_total,
        dead_letters_total=stats.dead_letters_total,
    )


def _state(stats: ConsumerStats, now: float, stale_after: float) -> str:
    if stats.stopping:  # its last row, or one of the seconds before that
        return "stopped"
    if now - stats.at > stale_after:
        return "stale"
    return "paused" if stats.paused else "alive"


def _partitions(rows: list[ConsumerStats], live: list[ConsumerStats]) -> tuple[PartitionView, ...]:
    """Rows are newest first. A partition that moved is in several of them: the newest live one knows best."""
    found: dict[str, PartitionView] = {}
    for stats, alive in [(stats, True) for stats in live] + [(stats, False) for stats in rows]:
        for each in stats.lag:
            if each.partition not in found:
                found[each.partition] = _partition(each, stats.instance, live=alive)
    return tuple(sorted(found.values(), key=_order))


def _order(view: PartitionView) -> tuple[int, str]:
    """Numbers as numbers."""
    return (int(view.partition) if view.partition.isdecimal() else 0, view.partition)


def _partition(each: PartitionStats, instance: str, *, live: bool) -> PartitionView:
    return PartitionView(
        partition=each.partition,
        instance=instance,
        live=live,
        last_enqueued=each.last_enqueued,
        received=each.received,
        low_water=each.low_water,
        lag=each.lag,
        in_flight=each.in_flight,
    )
