"""Options of a consumer: how much it holds, how batches are cut, where a partition begins. Pure.

A field with an app setting is annotated with the name of the setting, and a whole number with its lower bound too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from math import isfinite
from typing import Annotated

from msgspec import Struct

from tidemark.foundation.durations import parse_duration
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.pacing.shared_rate import Rate


class BacklogLimits(Struct, frozen=True):
    """What a pipeline may hold. An event is held from receipt to settlement."""

    backlog_of: Annotated[int, "ALLOW_BACKLOG_OF"] = 320_000
    """More unsettled events than this end the process."""
    backlog_to: Annotated[float, "ALLOW_BACKLOG_TO"] = 600.0
    """An event whose first attempt is older than this ends the process."""
    high_count: Annotated[int, "CONSUMER_HIGH_EVENTS"] = 50_000
    """Receiving pauses at this many events, or at half of `backlog_of` if that is less, and resumes at half of that."""
    high_bytes: Annotated[int, "CONSUMER_HIGH_BYTES", 1024] = 256 * 1024 * 1024
    """Receiving pauses at this many bytes of events (body, key, properties) and documents, and resumes at half of them."""
    intake_seconds: float = 10.0
    """With a rate, events for at most this many seconds are held, because other instances could take the rest."""
    checkpoint_every: Annotated[float, "CONSUMER_CHECKPOINT_EVERY"] = 5.0
    checkpoint_after: Annotated[int, "CONSUMER_CHECKPOINT_AFTER"] = 500
    """This many settled events of a partition are saved before `checkpoint_every`, but not before a tenth of it. A killed
    process writes about that many events again: one in a hundred of `high_count`.
    """
    unsaved: int = 100_000
    """Receiving pauses when this many settled events of a partition are in no saved checkpoint (its store is down), or
    are beyond one event that is not settled. Each takes memory, and is written again after a crash."""
    poison: Annotated[int, "CONSUMER_POISON_LIMIT"] = 500
    """This many events rejected in a row, with none written in between, end the process."""


class ParkOrder(StrEnum):
    """What becomes of later events of a parked key."""

    NONE = "none"  # they are written
    KEY = "key"  # they are parked behind it


class ParkingRules(Struct, frozen=True):
    """Which rejected records are parked and tried again before they become dead letters."""

    reasons: Annotated[tuple[str, ...], "CONSUMER_PARK"] = ()
    """Words of rejections, such as `status_404`; empty: none is parked."""
    delays: Annotated[tuple[str, ...], "CONSUMER_PARK_DELAYS"] = ("1m", "10m", "1h")
    """How long after each attempt the next one follows."""
    order: Annotated[ParkOrder, "CONSUMER_PARK_ORDER"] = ParkOrder.NONE
    most: Annotated[int, "CONSUMER_PARK_MOST"] = 1_000
    """Parked events of a partition; with more, the partition waits."""

    @property
    def by_key(self) -> bool:
        return self.order is ParkOrder.KEY and bool(self.reasons)

    @property
    def seconds(self) -> tuple[float, ...]:
        """The delays. Raises ValueError."""
        return tuple(parse_duration(delay) for delay in self.delays)

    def problems(self, *, ordered: bool) -> Iterator[str]:
        """What is wrong with the settings. `ordered`: all sinks write in the order of each partition."""
        try:
            self.seconds  # noqa: B018 - raises
        except ValueError as error:
            yield f"CONSUMER_PARK_DELAYS: {error}"
        if self.reasons and ordered:
            yield (
                "CONSUMER_PARK is set, and the sink writes in the order of each partition, as all other sinks of the hub do: it skips"
                " what is at or below its mark, and so would skip a parked event that comes later. Unset CONSUMER_PARK: rejected"
                " events become dead letters, which `tidemark dead-letters replay` writes when their cause is gone"
            )


NO_PARKING = ParkingRules()


class BatchLimits(Struct, frozen=True):
    """How batches are cut."""

    operations: Annotated[int, "CONSUMER_BATCH_OPERATIONS"] = 100
    """The service takes up to 100 operations per request."""
    bytes: Annotated[int, "CONSUMER_BATCH_BYTES", 1024] = 220_201
    """The limit of the .NET, Java and JavaScript SDKs for bulk requests; a larger record is sent alone."""
    flush_after: Annotated[float, "CONSUMER_FLUSH_AFTER"] = 1.0
    concurrency: Annotated[int, "CONSUMER_BATCH_CONCURRENCY"] = 20
    """Batches in flight per lane; the limit of the JavaScript SDK (.NET: 50)."""
    coalesce: Annotated[bool, "CONSUMER_COALESCE"] = False


class ReceivingOptions(Struct, frozen=True):
    """How events are received; see ReceiverOptions."""

    shortcut: Annotated[bool, "CONSUMER_SHORTCUT"] = True
    """Whether to bypass the SDK's decoding if its version is supported; see consumer/receiving/fast_path.py."""
    prefetch: Annotated[int, "CONSUMER_PREFETCH"] = 3000
    """Events that a partition may have ahead of what is taken."""
    batch: Annotated[int, "CONSUMER_RECEIVE_EVENTS"] = 500
    """Events that are taken at once."""
    buffered_bytes: Annotated[int, "CONSUMER_PREFETCH_BYTES", 1024] = 64 * 1024 * 1024
    """Bytes that all partitions may have ahead together."""
    until: Annotated[str, "CONSUMER_UNTIL"] = ""
    """Where to stop: latest, a time, or a number of each partition; '' is nowhere."""


class OnGap(StrEnum):
    CONTINUE = "continue"
    FAIL = "fail"


class OnDistrust(StrEnum):
    FAIL = "fail"
    EARLIEST = "earliest"
    LATEST = "latest"


class PositionPolicy(Struct, frozen=True):
    """Where a partition begins. `start` is for one without a checkpoint: "earliest", "latest" or a time in epoch seconds.

    The default is never "latest": events sent before the first start would be lost silently.
    """

    start: str | float = "earliest"
    on_retention_gap: Annotated[OnGap, "CONSUMER_ON_RETENTION_GAP"] = OnGap.CONTINUE
    on_foreign_checkpoint: Annotated[OnDistrust, "CONSUMER_ON_FOREIGN_CHECKPOINT"] = OnDistrust.FAIL
    on_unreadable_checkpoint: Annotated[OnDistrust, "CONSUMER_ON_UNREADABLE_CHECKPOINT"] = OnDistrust.FAIL
    routes: str = ""
    """A digest of the routes, which is stored with positions; '' without a file."""

    def __post_init__(self) -> None:
        """Raises SettingsError for an invalid start."""
        is_valid = (
            self.start in {"earliest", "latest"} if isinstance(self.start, str) else isfinite(self.start)
        )
        if not is_valid:
            raise SettingsError(
                f"start is {self.start!r}; accepted: 'earliest', 'latest', or a time in epoch seconds"
            )


class WritingTexts(Struct, frozen=True):
    """The options as settings and the file give them; docs/writing.md has their meaning."""

    operation: Annotated[str, "COSMOS_OPERATION"] = "upsert"
    operation_from: Annotated[str, "COSMOS_OPERATION_FROM"] = ""
    guard: Annotated[str, "COSMOS_GUARD"] = "none"
    ttl: Annotated[str | int, "COSMOS_TTL"] = ""
    tombstone: Annotated[str, "COSMOS_TOMBSTONE"] = "7d"
    if_missing: Annotated[str, "COSMOS_IF_MISSING"] = ""
    patch: Annotated[str | tuple[str, ...], "COSMOS_PATCH"] = ""
    """Steps; in a setting with semicolons between them."""
    patch_mark: Annotated[bool, "COSMOS_PATCH_MARK"] = True
    empty: Annotated[str, "COSMOS_EMPTY"] = "reject"


class DriverSettings(Struct, frozen=True):
    """The settings of a driver. `hub` and `consumer_group` are stored in dead letters."""

    hub: str
    consumer_group: str
    limits: BacklogLimits = BacklogLimits()
    batches: BatchLimits = BatchLimits()
    parking: ParkingRules = NO_PARKING
    rate: Rate = None
    request_units: float | None = None
    call_timeout: float = 60.0
    """Seconds one call to a sink or store may take; after that its outcome is unknown and it is repeated."""
    dry_run: bool = False
    """COSMOS_WRITE=false: everything but the writes, the dead letters and the checkpoints."""


class Priority(StrEnum):
    """The priority of requests to Cosmos DB, where the account has priorities."""

    UNSET = ""
    HIGH = "high"
    LOW = "low"


class MetricsExporter(StrEnum):
    NONE = "none"
    AZURE_MONITOR = "azure_monitor"
    OTLP = "otlp"


class TelemetryConfig(Struct, frozen=True):
    """How often an instance reports, in seconds, and where to."""

    every: Annotated[float, "CONSUMER_TELEMETRY_EVERY"] = 5.0
    folder: Annotated[str, "CONSUMER_TELEMETRY_FOLDER"] = ""
    land: Annotated[float, "CONSUMER_TELEMETRY_LAND"] = 10.0
    """Seconds between two files of records. A killed process loses the records of that time, besides the interval that it
    was in. Each file is one write and later one read: at 10 s, 8,640 a day of an instance, some 6 cents in a data lake.
    """
    exporter: Annotated[MetricsExporter, "CONSUMER_METRICS_EXPORTER"] = MetricsExporter.NONE


class SqlConfig(Struct, frozen=True):
    """The database of a SQL sink, and the table or handler that gets the events."""

    url: Annotated[str, "CONSUMER_SQL_URL"] = ""
    table: Annotated[str, "CONSUMER_SQL_TABLE"] = ""
    """A table of the user's own; '' means the table `Events`, which stores the bodies."""
    columns: Mapping[str, str] = {}
    key: tuple[str, ...] = ()
    """Columns of a unique key of the user's table: rows are then upserted."""
    handler: Annotated[str, "CONSUMER_SQL_HANDLER"] = ""
    """`module:function(connection, event)` of the user's own code, instead of a table."""
    guard: Annotated[str, "CONSUMER_SQL_GUARD"] = ""
    operation: Annotated[str, "CONSUMER_SQL_OPERATION"] = "upsert"
    operation_from: Annotated[str, "CONSUMER_SQL_OPERATION_FROM"] = ""
    empty: Annotated[str, "CONSUMER_SQL_EMPTY"] = "reject"
    create_tables: bool | None = None
