"""The metrics of a consumer: names, kinds, units, meanings, and how each is read from its statistics. Pure."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

from msgspec import Struct


class Instrument(Struct, frozen=True):
    """One metric. A counter adds up a field of intervals; a gauge shows a field of a snapshot or of its partitions."""

    name: str
    kind: str
    unit: str
    description: str
    read: Callable[[Any], Any]


def _instrument(kind: str, name: str, unit: str, field: str, description: str) -> Instrument:
    return Instrument(f"consumer.{name}", kind, unit, description, attrgetter(field))


BY_PARTITION = "gauge by partition"
BY_REASON = "counter by reason"
_counter, _gauge = partial(_instrument, "counter"), partial(_instrument, "gauge")
_by_partition = partial(_instrument, BY_PARTITION)
_counter_by_reason = partial(_instrument, BY_REASON)

INSTRUMENTS: tuple[Instrument, ...] = (
    _counter(
        *("events.received", "{event}", "received"),
        "Events taken from the hub, those skipped because they were settled before included",
    ),
    _counter(
        *("events.expired", "{event}", "expired"),
        "Events that retention took before they were received: the consumer is slower than the hub forgets",
    ),
    _counter("records.written", "{record}", "written", "Records written: successes"),
    _counter("records.attempted", "{record}", "attempts", "Records sent to the sink, each retry again"),
    _counter(
        *("records.retried", "{record}", "retried"),
        "Records to be sent again: throttled, transient or unknown outcomes",
    ),
    _counter("records.throttled", "{record}", "throttled", "Those of the retried that were answered 429"),
    _counter(
        *("records.capped", "{record}", "capped"),
        "Those of the retried that the limit of a throughput bucket refused (429, sub-status 3212); they are not throttled",
    ),
    _counter(
        *("events.dead_lettered", "{event}", "dead_letters"),
        "Events rejected or unreadable whose dead letter was stored: failures",
    ),
    _counter(
        *("events.parked", "{event}", "parked"),
        "Events parked to be tried again later (CONSUMER_PARK)",
    ),
    _counter_by_reason(
        *("events.dropped", "{event}", "dropped"),
        "Events, or single documents of them, that were not to be written, or that a later event superseded, by `reason`",
    ),
    _counter("request_units", "{RU}", "request_units", "Request units charged, for refused attempts too"),
    _counter(
        *("request_units.written", "{RU}", "written_units"),
        "Request units charged for records written; divided by consumer.records.written the RU per record",
    ),
    _counter("checkpoints", "{checkpoint}", "checkpoints", "Checkpoints saved"),
    _counter(
        *("checkpoints.failed", "{checkpoint}", "checkpoints_failed"),
        "Checkpoints that could not be saved; saved again with the next ones",
    ),
    _gauge(
        *("backlog", "{event}", "backlog_count"),
        "Events received and not settled; ALLOW_BACKLOG_OF is the limit",
    ),
    _gauge("backlog.size", "By", "backlog_bytes", "Bytes of bodies and documents of the backlog"),
    _gauge(
        *("oldest_age", "s", "oldest_age"),
        "Time since the first attempt of the oldest event begun and not settled; ALLOW_BACKLOG_TO is the limit",
    ),
    _gauge(
        *("rate_limit", "{record}/s", "rate_limit"),
        "Records per second that may begin; missing without a limit",
    ),
    _gauge("batches", "{batch}", "in_flight_batches", "Batches being written"),
    Instrument(
        *("consumer.paused", "gauge", "1", "1 while receiving is paused by back-pressure, else 0"),
        lambda s: int(s.paused),  # OTLP takes no booleans
    ),
    Instrument(
        "consumer.partitions", "gauge", "{partition}", "Partitions owned", lambda s: len(s.partitions)
    ),
    _by_partition(
        *("lag", "{event}", "lag"),
        "Events of a partition not settled, up to the newest in the hub; missing while that is unknown",
    ),
    _by_partition("parked", "{event}", "parked", "Events of a partition that are parked now"),
    Instrument(
        *("consumer.parked.waiting", "gauge", "{partition}"),
        "Partitions whose parked events cannot be read or tried now, some of which receive nothing; `/state` and the status say why",
        lambda s: sum(bool(partition.problem) for partition in s.partitions),
    ),
    _by_partition("in_flight", "{event}", "unsettled", "Events of a partition received and not settled"),
)
