"""The statistics of a consumer's instances, and their form as rows of the table `ConsumerStats`. Pure.

An instance replaces its row every few seconds. The collector `consumer_telemetry` and the dashboard read all rows of a consumer.
Each instance has one row, with partition key `key_of(consumer)` and row key `key_of(instance)`. Every number is a double, except
those of the partitions, so that totals may exceed 32 bits and filters such as `at ge 1763712000.0` work. Values that are None are
omitted. The partitions are JSON, split over `Lag00`, `Lag01`, ..., because a text property has at most 32 Ki characters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from tidemark.foundation.keys import STRING_CHARS, in_columns, key_of, of_columns

TABLE = "ConsumerStats"
SCHEMA = 1
"""The version of a row. One of another version is refused, for its fields may mean something else."""

_Amount = Annotated[float, msgspec.Meta(ge=0)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class ConsumerStatsError(ValueError):
    """A row is not of this table, or was written by a newer release."""


class PartitionStats(Struct, frozen=True, array_like=True):
    """An Event Hubs partition as its owner sees it, in sequence numbers; None for what is not known yet.

    `received` is the newest received event, `low_water` the newest with all events before it settled, `lag` the number of events
    up to `last_enqueued` that are not settled, and `in_flight` the number of received events that are not settled.
    """

    partition: str
    last_enqueued: int | None = None
    received: int | None = None
    low_water: int | None = None
    lag: _Count | None = None
    in_flight: _Count = 0


class InstanceFigures(Struct, frozen=True, kw_only=True):
    """One instance at the time `at`. Rates are for the time since the last row, totals since the start.

    `throttled_share` is the share of attempts answered 429. `ru_per_record` is the average charge of a record written.
    `oldest_age_s` is the time since the first attempt of the oldest event begun and not settled.
    """

    instance: str
    at: _Amount
    hub: str = ""
    consumer_group: str = ""
    received_per_s: _Amount = 0.0
    written_per_s: _Amount = 0.0
    retried_per_s: _Amount = 0.0
    throttled_share: _Share = 0.0
    ru_per_record: _Amount | None = None
    ru_per_s: _Amount = 0.0
    backlog_count: _Count = 0
    backlog_bytes: _Count = 0
    oldest_age_s: _Amount = 0.0
    dead_letters_total: _Count = 0
    dropped_total: _Count = 0
    parked_count: _Count = 0
    rate_hubs_count: _Count = 0
    """How many hubs of the process share the limit of records; 0: it is of this one alone."""
    written_total: _Count = 0
    retried_total: _Count = 0
    throttled_total: _Count = 0
    problem: str = ""
    """Why the instance has failed, and when its hub starts again; '' for one that runs or stopped in order."""
    notice: str = ""
    """What changed between the last start and this one that an operator should know; '' for nothing."""


class ConsumerStats(InstanceFigures, frozen=True, kw_only=True):
    """A row: the figures of an instance, and its partitions.

    A `rate_limit` or `ru_limit` (request units per second) of 0 means none. `ru_per_record` is for the time since the last row, None if nothing was written, and
    `last_ru_per_record` is the last known one. `failed_total` is the number of events that failed permanently, which are exactly
    the dead letters.
    """

    consumer: str
    rate_limit: _Amount = 0.0
    ru_limit: _Amount = 0.0
    last_ru_per_record: _Amount | None = None
    failed_total: _Count = 0
    lag: tuple[PartitionStats, ...] = ()
    paused: bool = False
    stopping: bool = False


_FIELDS = tuple(name for name in ConsumerStats.__struct_fields__ if name != "lag")
_WHOLE = frozenset(name for name in _FIELDS if name.endswith(("_count", "_bytes", "_total")))


def to_row(stats: ConsumerStats) -> dict[str, Any]:
    """The row with its keys, for an upsert that replaces the earlier row."""
    row: dict[str, Any] = {
        "PartitionKey": key_of(stats.consumer),
        "RowKey": key_of(stats.instance),
        "Schema": SCHEMA,
    }
    for name in _FIELDS:
        value = getattr(stats, name)
        if value is not None:
            row[name] = value if isinstance(value, str | bool) else float(value)
    return row | in_columns(msgspec.json.encode(stats.lag).decode(), "Lag")


def from_row(row: Mapping[str, Any]) -> ConsumerStats:
    """The statistics of a row. Columns that a newer writer of the same schema added are ignored.

    Raises ConsumerStatsError, which names the instance and the problem of its row.
    """
    where = f"the row of instance '{row.get('instance', row.get('RowKey', '?'))}'"
    schema = row.get("Schema")
    if schema != SCHEMA:
        raise ConsumerStatsError(f"{where} has schema {schema!r}; this release reads {SCHEMA}")
    values = {name: row[name] for name in _FIELDS if name in row}
    for name, value in values.items():
        if isinstance(value, float) and not isfinite(value):
            raise ConsumerStatsError(f"{where} has {name} {value}; a finite number is accepted")
        if name in _WHOLE and isinstance(value, float) and value.is_integer():
            values[name] = int(value)
    try:
        pieces = [str(piece) for piece in of_columns(row, "Lag")]
        # Only the last piece is shorter. Pieces after it are of an earlier, longer value.
        end = next((n for n, piece in enumerate(pieces, 1) if len(piece) < STRING_CHARS), None)
        lag = msgspec.json.decode("".join(pieces[:end]) or "[]", type=tuple[PartitionStats, ...])
        return msgspec.convert({**values, "lag": lag}, ConsumerStats)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConsumerStatsError(f"{where} cannot be read: {error}") from error


def fresh_filter(consumer: str, since: float) -> str:
    """The query for the rows of `consumer` written at `since` or later."""
    return f"PartitionKey eq '{key_of(consumer)}' and at ge {since:.3f}"


def totals(live: Sequence[ConsumerStats]) -> dict[str, float]:
    """The figures of all instances together, at least one. Figures that an instance lacks are omitted.

    With an instance without a rate limit, there is no `rate_limit` (the sum) and no `rate_per_consumer` (the highest). A limit that
    several hubs of a process share is that of each, for one alone may use all of it.
    `ru_per_record` is weighted by the records written; while nothing is written, it is the highest last known one.
    """
    sums = {
        "throttled_share": max(one.throttled_share for one in live),
        "ru_per_s": sum(one.ru_per_s for one in live),
        "written_per_s": sum(one.written_per_s for one in live),
        "consumers": float(len(live)),
        "backlog": float(sum(one.backlog_count for one in live)),
        "oldest_age": max(one.oldest_age_s for one in live),
        "dead_letters": float(sum(one.dead_letters_total for one in live)),
    }
    limits = [one.rate_limit for one in live]
    if all(limits):
        sums |= {"rate_limit": sum(limits), "rate_per_consumer": max(limits)}
    charge = _charge(live)
    return sums if charge is None else {**sums, "ru_per_record": charge}


def _charge(live: Sequence[ConsumerStats]) -> float | None:
    measured = [(one.written_per_s, one.ru_per_record) for one in live if one.ru_per_record is not None]
    written = sum(rate for rate, _ in measured)
    if written > 0:
        return sum(rate * charge for rate, charge in measured) / written
    return max((one.last_ru_per_record for one in live if one.last_ru_per_record is not None), default=None)
