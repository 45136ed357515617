"""The consumer's settings: app settings and environment variables, read once, all problems told together.

Names without CONSUMER_ are the ones of the seed and mean what they meant there. docs/settings.md has the table.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TypeVar

from msgspec import Struct, structs

from consumer.options import BacklogLimits, BatchLimits, OnDistrust, OnGap, PositionPolicy
from foundation.durations import parse_duration
from foundation.errors import SettingsError
from foundation.settings_reader import read_log_level

_T = TypeVar("_T")


class SinkKind(StrEnum):
    COSMOS = "cosmos"
    SQL = "sql"


class StoreKind(StrEnum):
    BLOB = "blob"
    SQL = "sql"


class LettersKind(StrEnum):
    BLOB = "blob"
    COSMOS = "cosmos"
    SQL = "sql"


class MetricsExporter(StrEnum):
    NONE = "none"
    AZURE_MONITOR = "azure_monitor"


class Hosting(StrEnum):
    """Which functions this app has for the consumer."""

    OFF = "off"
    SLICES = "slices"
    TRIGGER = "trigger"


class SqlConfig(Struct, frozen=True):
    """The database of a SQL sink, and where in it events go."""

    url: str = ""
    table: str = ""
    """A table of the user's own; '' is the one that keeps whole bodies."""
    columns: Mapping[str, str] = {}
    key: tuple[str, ...] = ()
    """Columns of a unique key of the user's table: rows are then upserted."""
    handler: str = ""
    """`module:function(connection, event)` of the user's own code, instead of a table."""
    create_tables: bool | None = None


class TelemetryConfig(Struct, frozen=True):
    """How often an instance tells of itself, in seconds, and where to."""

    every: float = 5.0
    folder: str = ""
    land: float = 10.0
    """Between two files of records: what a killed process has not told, besides the interval that it was in. A file is
    a write and later a read: at 10 s, 8,640 a day of an instance, some 6 cents' worth in a data lake.
    """
    exporter: MetricsExporter = MetricsExporter.NONE


class ConsumerConfig(Struct, frozen=True):
    """One consumer. Connections are names of settings; secrets stay where they are."""

    hub: str
    name: str = "consumer"
    """Instances of one name share partitions, a row of statistics each, and a rate order."""
    hub_connection: str = "EventHubConnection"
    consumer_group: str = "$Default"
    rate: float | None = None
    fleet_rate: float | None = None
    most_processes: int = 0
    """Worker processes the platform may run of a trigger, in all instances together; 0 is unknown."""
    limits: BacklogLimits = BacklogLimits()
    batches: BatchLimits = BatchLimits()
    policy: PositionPolicy = PositionPolicy()
    sink: SinkKind = SinkKind.COSMOS
    dry_run: bool = False
    cosmos_connection: str = "CosmosConnection"
    cosmos_database: str = ""
    cosmos_container: str = ""
    sql: SqlConfig = SqlConfig()
    checkpoints: StoreKind = StoreKind.BLOB
    storage_connection: str = "AzureWebJobsStorage"
    blob_container: str = "eventhub-checkpoints"
    letters: LettersKind = LettersKind.BLOB
    letters_container: str = "dead-letters"
    id_from: str = "field:id"
    """`field:<path>`, or `position`: ids made of hub, partition and sequence number."""
    meta: bool = False
    transform: str = ""
    """`module:function` of the user's own code."""
    lease_interval: float = 10.0
    lease_expiry: float = 30.0
    shutdown: float = 25.0
    shortcut: bool = True
    """Receive past the SDK's own decoding where its version is known; see consumer/receiving/fast_path.py."""
    telemetry: TelemetryConfig = TelemetryConfig()
    doubts: tuple[str, ...] = ()
    """What is no setting and was perhaps meant to be one; whoever runs the consumer tells it."""


class _Reader:
    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self.problems: list[str] = []
        self.known: set[str] = set()

    def text(self, *names: str, default: str = "") -> str:
        """The first of the names that is set."""
        self.known.update(names)
        return next((value for name in names if (value := self._settings.get(name, "").strip())), default)

    def check(self, check: Callable[[Mapping[str, str]], object]) -> None:
        """Tells what a check of its own words has to say, too."""
        try:
            check(self._settings)
        except ValueError as error:
            self.problems.append(str(error))

    def value(self, name: str, default: _T, read: Callable[[str], _T], accepted: str) -> _T:
        self.known.add(name)
        text = self._settings.get(name, "").strip()
        if not text:
            return default
        try:
            return read(text)
        except ValueError:
            self.problems.append(f"{name} is '{text[:60]}'; accepted: {accepted}")
            return default

    def choice(self, name: str, default: _T, kind: Callable[[str], _T], accepted: str) -> _T:
        return self.value(name, default, lambda text: kind(text.lower()), accepted)

    def count(self, name: str, default: int, least: int = 1) -> int:
        def read(text: str) -> int:
            number = int(text.replace("_", ""))
            if number < least:
                raise ValueError(text)
            return number

        return self.value(name, default, read, f"a whole number from {least}")

    def seconds(self, name: str, default: float) -> float:
        def read(text: str) -> float:
            seconds = float(text) if text.replace(".", "", 1).isdigit() else parse_duration(text)
            if seconds <= 0:
                raise ValueError(text)
            return seconds

        return self.value(name, default, read, "seconds above 0, or a duration such as 5s, 10m, 1h")

    def rate(self, name: str) -> float | None:
        def read(text: str) -> float | None:
            rate = float(text)
            if not 0 <= rate < float("inf"):
                raise ValueError(text)
            return rate or None

        return self.value(name, None, read, "records per second from 0 (no limit); fractions are fine")

    def flag(self, name: str, *, default: bool) -> bool:
        return self.value(name, default, _flag, "true or false")


_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _flag(text: str) -> bool:
    if text.lower() not in _FLAGS:
        raise ValueError(text)
    return _FLAGS[text.lower()]


def read_config(settings: Mapping[str, str]) -> ConsumerConfig:
    """The consumer that the settings describe. Raises SettingsError naming every setting at fault."""
    read = _Reader(settings)
    read.check(read_log_level)
    config = _config(read)
    problems = read.problems + list(_missing(config))
    if problems:
        raise SettingsError(_a_line_each(problems))
    return structs.replace(config, doubts=tuple(_misspelt(settings, read.known)))


def _config(read: _Reader) -> ConsumerConfig:
    sink = read.choice("CONSUMER_SINK", SinkKind.COSMOS, SinkKind, "cosmos, sql")
    kept = "sql" if sink is SinkKind.SQL else "blob"
    return ConsumerConfig(
        hub=read.text("EVENTHUB_NAME"),
        name=read.text("CONSUMER_NAME", default="consumer"),
        hub_connection="EVENTHUB_CONNSTRING" if read.text("EVENTHUB_CONNSTRING") else "EventHubConnection",
        consumer_group=read.text("EVENTHUB_CONSUMERGROUP", default="$Default"),
        rate=read.rate("EVENTHUB_RATELIMIT"),
        fleet_rate=read.rate("CONSUMER_FLEET_RATELIMIT"),
        most_processes=read.count("CONSUMER_MAXIMUM_INSTANCES", 0)
        * read.count("FUNCTIONS_WORKER_PROCESS_COUNT", 1),
        limits=_limits(read),
        batches=_batches(read),
        policy=_policy(read),
        sink=sink,
        dry_run=not read.flag("COSMOS_WRITE", default=True),
        cosmos_connection="COSMOS_CONNSTRING" if read.text("COSMOS_CONNSTRING") else "CosmosConnection",
        cosmos_database=read.text("COSMOS_DATABASE"),
        cosmos_container=read.text("COSMOS_CONTAINER"),
        sql=_sql(read),
        checkpoints=read.choice("CONSUMER_CHECKPOINTS", StoreKind(kept), StoreKind, "blob, sql"),
        storage_connection="BLOB_CONNSTRING" if read.text("BLOB_CONNSTRING") else "AzureWebJobsStorage",
        blob_container=read.text("BLOB_CONTAINER", default="eventhub-checkpoints"),
        letters=read.choice("CONSUMER_DEAD_LETTERS", LettersKind(kept), LettersKind, "blob, cosmos, sql"),
        letters_container=read.text("CONSUMER_DEAD_LETTER_CONTAINER", default="dead-letters"),
        id_from=read.text("CONSUMER_ID", default="field:id"),
        meta=read.flag("CONSUMER_META", default=False),
        transform=read.text("CONSUMER_TRANSFORM"),
        lease_interval=read.seconds("CONSUMER_LEASE_INTERVAL", 10.0),
        lease_expiry=read.seconds("CONSUMER_LEASE_EXPIRY", 30.0),
        shutdown=read.seconds("CONSUMER_SHUTDOWN", 25.0),
        shortcut=read.flag("CONSUMER_SHORTCUT", default=True),
        telemetry=_telemetry(read),
    )


def _a_line_each(problems: Sequence[str]) -> str:
    if len(problems) == 1:
        return problems[0]
    return f"{len(problems)} settings are wrong:\n" + "\n".join(f"  {problem}" for problem in problems)


OTHERS = (
    *("CONSUMER_HOSTING", "CONSUMER_SLICE", "CONSUME_SCHEDULE", "CONSUMER_LOG_LEVEL"),
    "CONSUMER_MAXIMUM_INSTANCES",
    *("EVENTHUB_CONNSTRING", "COSMOS_CONNSTRING", "BLOB_CONNSTRING"),
)
"""Settings that are read elsewhere, or only where another one is not there."""

_FAMILIES = ("EVENTHUB_", "COSMOS_", "BLOB_", "ALLOW_", "CONSUMER_", "CONSUME_")


def _misspelt(settings: Mapping[str, str], known: Collection[str]) -> Iterator[str]:
    """Settings that look like ours and are none: a limit with a typing error limits nothing, in silence."""
    known = {*known, *OTHERS}
    for name in sorted(settings):
        if not name.startswith(_FAMILIES) or name in known or "__" in name:
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.88)
        if near:
            yield f"{name} is no setting of the consumer; did you mean {near[0]}?"
        elif name.startswith("CONSUMER_"):
            yield f"{name} is no setting of the consumer"


def _limits(read: _Reader) -> BacklogLimits:
    standard = BacklogLimits()
    return BacklogLimits(
        backlog_of=read.count("ALLOW_BACKLOG_OF", standard.backlog_of),
        backlog_to=read.seconds("ALLOW_BACKLOG_TO", standard.backlog_to),
        high_count=read.count("CONSUMER_HIGH_EVENTS", standard.high_count),
        high_bytes=read.count("CONSUMER_HIGH_BYTES", standard.high_bytes, 1024),
        checkpoint_every=read.seconds("CONSUMER_CHECKPOINT_EVERY", standard.checkpoint_every),
        checkpoint_after=read.count("CONSUMER_CHECKPOINT_AFTER", standard.checkpoint_after),
        poison=read.count("CONSUMER_POISON_LIMIT", standard.poison),
    )


def _batches(read: _Reader) -> BatchLimits:
    standard = BatchLimits()
    return BatchLimits(
        operations=read.count("CONSUMER_BATCH_OPERATIONS", standard.operations),
        bytes=read.count("CONSUMER_BATCH_BYTES", standard.bytes, 1024),
        flush_after=read.seconds("CONSUMER_FLUSH_AFTER", standard.flush_after),
        concurrency=read.count("CONSUMER_BATCH_CONCURRENCY", standard.concurrency),
        coalesce=read.flag("CONSUMER_COALESCE", default=standard.coalesce),
    )


def _sql(read: _Reader) -> SqlConfig:
    return SqlConfig(
        url=read.text("CONSUMER_SQL_URL"),
        table=read.text("CONSUMER_SQL_TABLE"),
        columns=read.value("CONSUMER_SQL_COLUMNS", {}, _columns, "column=$.field, comma-separated"),
        key=tuple(name.strip() for name in read.text("CONSUMER_SQL_KEY").split(",") if name.strip()),
        handler=read.text("CONSUMER_SQL_HANDLER"),
        create_tables=read.value("CONSUMER_SQL_CREATE_TABLES", None, _flag, "true or false"),
    )


def _telemetry(read: _Reader) -> TelemetryConfig:
    standard = TelemetryConfig()
    return TelemetryConfig(
        every=read.seconds("CONSUMER_TELEMETRY_EVERY", standard.every),
        folder=read.text("CONSUMER_TELEMETRY_FOLDER"),
        land=read.seconds("CONSUMER_TELEMETRY_LAND", standard.land),
        exporter=read.choice(
            "CONSUMER_METRICS_EXPORTER", standard.exporter, MetricsExporter, "none, azure_monitor"
        ),
    )


def _policy(read: _Reader) -> PositionPolicy:
    distrust = "fail, earliest, latest"
    standard = PositionPolicy()
    return PositionPolicy(
        start=read.value(
            "CONSUMER_START",
            standard.start,
            _start,
            "earliest, latest, or a time such as 2026-11-21T08:00:00Z",
        ),
        on_retention_gap=read.choice("CONSUMER_ON_RETENTION_GAP", OnGap.CONTINUE, OnGap, "continue, fail"),
        on_foreign_checkpoint=read.choice(
            "CONSUMER_ON_FOREIGN_CHECKPOINT", OnDistrust.FAIL, OnDistrust, distrust
        ),
        on_unreadable_checkpoint=read.choice(
            "CONSUMER_ON_UNREADABLE_CHECKPOINT", OnDistrust.FAIL, OnDistrust, distrust
        ),
    )


def _missing(config: ConsumerConfig) -> list[str]:
    needed = [(config.hub, "EVENTHUB_NAME", "the event hub to consume")]
    if config.sink is SinkKind.COSMOS:
        needed += [
            (config.cosmos_database, "COSMOS_DATABASE", "the database to write to"),
            (config.cosmos_container, "COSMOS_CONTAINER", "the container to write to"),
        ]
    kinds = {str(config.sink), str(config.checkpoints), str(config.letters)}
    if "sql" in kinds:
        needed.append((config.sql.url, "CONSUMER_SQL_URL", "the database's address, as SQLAlchemy writes it"))
    problems = [f"{name} is not set: {meaning}" for value, name, meaning in needed if not value]
    if config.sink is SinkKind.SQL and kinds != {"sql"}:
        problems.append(
            "CONSUMER_SINK=sql keeps its checkpoints and dead letters in the same database: leave"
            " CONSUMER_CHECKPOINTS and CONSUMER_DEAD_LETTERS unset or sql"
        )
    if config.lease_expiry < 2 * config.lease_interval:
        problems.append(
            f"CONSUMER_LEASE_EXPIRY is {config.lease_expiry:g} s; accepted: at least twice CONSUMER_LEASE_INTERVAL,"
            f" {config.lease_interval:g} s"
        )
    return problems


def _start(text: str) -> str | float:
    if text.lower() in {"earliest", "latest"}:
        return text.lower()
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _columns(text: str) -> Mapping[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    if not all(name.strip() and path.strip() for name, _, path in pairs):
        raise ValueError(text)
    return {name.strip(): path.strip() for name, _, path in pairs}


def read_hosting(settings: Mapping[str, str]) -> Hosting:
    """CONSUMER_HOSTING; what is none of its values is told by `read_slice` when the function runs, since an error
    while the app is loaded would take the autoscaler down too.
    """
    text = settings.get("CONSUMER_HOSTING", "").strip().lower()
    if not text:
        return Hosting.OFF
    return Hosting(text) if text in set(Hosting) else Hosting.SLICES


def read_slice(settings: Mapping[str, str]) -> float:
    """CONSUMER_SLICE: seconds one invocation consumes. Raises SettingsError, also for a wrong CONSUMER_HOSTING."""
    read = _Reader(settings)
    seconds = read.seconds("CONSUMER_SLICE", 45.0)
    read.choice("CONSUMER_HOSTING", Hosting.OFF, Hosting, "off, slices, trigger")
    if read.problems:
        raise SettingsError(_a_line_each(read.problems))
    return seconds
