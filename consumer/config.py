"""The consumer's settings: app settings and environment variables, read once. One error names all that are wrong.

Names without CONSUMER_ are older than this consumer and keep their meaning. docs/settings.md has the table.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, TypeVar, cast, get_type_hints

from msgspec import Struct, structs

from consumer.formats import DECODER, OPTIONS, REGISTRY, BodyOptions, DecoderName, JsonOptions
from consumer.formats import SETTINGS as DECODER_SETTINGS
from consumer.options import (
    NO_PARKING,
    BacklogLimits,
    BatchLimits,
    ParkingRules,
    PositionPolicy,
    Priority,
    ReceivingOptions,
    SqlConfig,
    TelemetryConfig,
    WritingTexts,
)
from tidemark.foundation.durations import parse_duration
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.sanitize import shorten
from tidemark.foundation.settings_reader import read_log_level
from tidemark.foundation.tracing.names import Mode

FILE = "CONSUMER_FILE"
"""The setting that names the consumer's file; see consumer/definition."""

_T = TypeVar("_T")
_S = TypeVar("_S", bound=Struct)


HIGHEST_PORT = 65_535
MOST_BUCKETS = 5
"""Throughput buckets of a container: learn.microsoft.com/azure/cosmos-db/throughput-buckets."""


class SinkKind(StrEnum):
    COSMOS = "cosmos"
    SQL = "sql"


class StoreKind(StrEnum):
    BLOB = "blob"
    SQL = "sql"


class DeadLettersKind(StrEnum):
    BLOB = "blob"
    COSMOS = "cosmos"
    SQL = "sql"


class Hosting(StrEnum):
    """Which functions run the consumer in this app."""

    OFF = "off"
    SLICES = "slices"
    TRIGGER = "trigger"


class ConsumerConfig(Struct, frozen=True):
    """One consumer. A connection is the name of a setting, so that no secret is copied here."""

    hub: Annotated[str, "EVENTHUB_NAME"]
    name: Annotated[str, "CONSUMER_NAME"] = "consumer"
    """Instances of one name share the partitions and a rate order. Each has its own row of statistics."""
    hub_connection: str = "EventHubConnection"
    consumer_group: Annotated[str, "EVENTHUB_CONSUMERGROUP"] = "$Default"
    rate: Annotated[float | None, "EVENTHUB_RATELIMIT"] = None
    fleet_rate: Annotated[float | None, "CONSUMER_FLEET_RATELIMIT"] = None
    request_units: Annotated[float | None, "CONSUMER_RU_PER_SECOND"] = None
    fleet_request_units: Annotated[float | None, "CONSUMER_FLEET_RU_PER_SECOND"] = None
    most_processes: int = 0
    """The most worker processes that the platform may run of a trigger, over all instances; 0 means unknown."""
    limits: BacklogLimits = BacklogLimits()
    batches: BatchLimits = BatchLimits()
    parking: ParkingRules = NO_PARKING
    policy: PositionPolicy = PositionPolicy()
    sink: SinkKind = SinkKind.COSMOS
    dry_run: bool = False
    cosmos_connection: str = "CosmosConnection"
    cosmos_database: Annotated[str, "COSMOS_DATABASE"] = ""
    cosmos_container: Annotated[str, "COSMOS_CONTAINER"] = ""
    writing: WritingTexts = WritingTexts()
    cosmos_bucket: Annotated[int, "COSMOS_THROUGHPUT_BUCKET", 0] = 0
    """The throughput bucket of its requests, 1 to 5; 0 is none."""
    cosmos_priority: Annotated[Priority, "COSMOS_PRIORITY"] = Priority.UNSET
    sql: SqlConfig = SqlConfig()
    checkpoints: Annotated[StoreKind, "CONSUMER_CHECKPOINTS"] = StoreKind.BLOB
    storage_connection: str = "AzureWebJobsStorage"
    blob_container: Annotated[str, "BLOB_CONTAINER"] = "eventhub-checkpoints"
    dead_letters: Annotated[DeadLettersKind, "CONSUMER_DEAD_LETTERS"] = DeadLettersKind.BLOB
    dead_letters_container: Annotated[str, "CONSUMER_DEAD_LETTER_CONTAINER"] = "dead-letters"
    id_from: Annotated[str, "CONSUMER_ID"] = "field:id"
    """`field:<path>`, or `position`: ids made of hub, partition and sequence number."""
    meta: Annotated[bool, "CONSUMER_META"] = False
    transform: Annotated[str, "CONSUMER_TRANSFORM"] = ""  # `module:function`
    lease_interval: Annotated[float, "CONSUMER_LEASE_INTERVAL"] = 10.0
    lease_expiry: Annotated[float, "CONSUMER_LEASE_EXPIRY"] = 30.0
    shutdown: Annotated[float, "CONSUMER_SHUTDOWN"] = 25.0
    tracing: Annotated[Mode, "TIDEMARK_TRACING"] = Mode.OFF
    give_up_after: float | None = None  # seconds; None means never
    http_port: Annotated[int, "CONSUMER_HTTP_PORT", 0] = 0
    """Where a worker process answers /live, /ready, /metrics and /state; 0 is nowhere."""
    receiving: ReceivingOptions = ReceivingOptions()
    telemetry: TelemetryConfig = TelemetryConfig()
    decoder: DecoderName = DecoderName.JSON
    decode: BodyOptions = JsonOptions()  # of the decoder
    doubts: tuple[str, ...] = ()
    """Names that look like misspelt settings, as sentences; they are logged at the start."""


class SettingsReader:
    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self.problems: list[str] = []
        self.known: set[str] = set()

    def text(self, name: str) -> str:
        self.known.add(name)
        return self._settings.get(name, "").strip()

    def value(self, name: str, default: _T, read: Callable[[str], _T], accepted: str) -> _T:
        text = self.text(name)
        if not text:
            return default
        try:
            return read(text)
        except (ValueError, KeyError):
            self.problems.append(f"{name} is '{shorten(text, 60)}'; accepted: {accepted}")
            return default

    def of(self, name: str, default: _T, least: int = 1) -> _T:
        """A setting, read by the type of its default; `least` is the lower bound of a whole number."""
        value: Any
        match default:
            case bool():
                value = self.value(name, bool(default), _flag, "true or false")
            case int():
                value = self.count(name, default, least)
            case float():
                value = self.seconds(name, default)
            case None:
                value = self.rate(name)
            case StrEnum():
                kind: Any = type(default)
                value = self.value(
                    name, default, lambda text: kind(text.lower()), ", ".join(filter(None, kind))
                )
            case tuple():
                value = tuple(part.strip() for part in self.text(name).split(",") if part.strip()) or default
            case _:
                value = self.text(name) or default
        return cast("_T", value)

    def fill(self, standard: _S) -> _S:
        """The struct with every field that names a setting read from it, in nested structs too."""
        values = {}
        for field, hint in get_type_hints(type(standard), include_extras=True).items():
            if isinstance(getattr(standard, field), Struct):
                values[field] = self.fill(getattr(standard, field))
            elif metadata := getattr(hint, "__metadata__", ()):
                values[field] = self.of(metadata[0], getattr(standard, field), *metadata[1:])
        return structs.replace(standard, **values)

    def connection(self, legacy: str, default: str) -> str:
        """The name of the setting that holds the connection string: the legacy name if it is set."""
        return legacy if self.text(legacy) else default

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

        unit = "request units" if "_RU_" in name else "records"
        return self.value(name, None, read, f"{unit} per second from 0 (no limit); fractions are fine")


_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _flag(text: str) -> bool:
    return _FLAGS[text.lower()]


def read_config(settings: Mapping[str, str]) -> ConsumerConfig:
    """The consumer that the settings describe. Raises SettingsError naming every setting at fault."""
    reading = read_settings(settings)
    problems = [*reading.problems, *_missing(reading.config)]
    if problems:
        raise SettingsError(join_problems(problems))
    return reading.config


class Found(Struct, frozen=True):
    """What settings say, for somebody who has further settings elsewhere."""

    config: ConsumerConfig
    problems: tuple[str, ...]
    """Each begins with the name of the setting at fault."""
    known: frozenset[str]
    """The names of all settings that were looked for."""


def read_settings(settings: Mapping[str, str]) -> Found:
    """The consumer that the settings describe, complete or not."""
    read = SettingsReader(settings)
    try:
        read_log_level(settings)
    except ValueError as error:
        read.problems.append(str(error))
    config = structs.replace(config_of(read), doubts=tuple(_misspelt(settings, read.known)))
    return Found(config, (*read.problems, *_unfit(config)), frozenset(read.known))


def config_of(read: SettingsReader) -> ConsumerConfig:
    sink = read.of("CONSUMER_SINK", SinkKind.COSMOS)
    store = "sql" if sink is SinkKind.SQL else "blob"
    decoder = read.of(DECODER, DecoderName.AUTO if read.text(REGISTRY) else DecoderName.JSON)
    standard = ConsumerConfig(
        "",
        sink=sink,
        checkpoints=StoreKind(store),
        dead_letters=DeadLettersKind(store),
        decoder=decoder,
        decode=OPTIONS[decoder](),
    )
    config = read.fill(standard)
    accepted_start = "earliest, latest, or a time such as 2026-11-21T08:00:00Z"
    return structs.replace(
        config,
        hub_connection=read.connection("EVENTHUB_CONNSTRING", config.hub_connection),
        most_processes=read.count("CONSUMER_MAXIMUM_INSTANCES", 0)
        * read.count("FUNCTIONS_WORKER_PROCESS_COUNT", 1),
        policy=structs.replace(
            config.policy, start=read.value("CONSUMER_START", config.policy.start, _start, accepted_start)
        ),
        dry_run=not read.of("COSMOS_WRITE", default=True),
        give_up_after=read.seconds("CONSUMER_GIVE_UP_AFTER", 0.0) or None,
        cosmos_connection=read.connection("COSMOS_CONNSTRING", config.cosmos_connection),
        sql=structs.replace(
            config.sql,
            columns=read.value(
                "CONSUMER_SQL_COLUMNS", config.sql.columns, _columns, "column=$.field, comma-separated"
            ),
            key=tuple(name.strip() for name in read.text("CONSUMER_SQL_KEY").split(",") if name.strip()),
            create_tables=read.value("CONSUMER_SQL_CREATE_TABLES", None, _flag, "true or false"),
        ),
        storage_connection=read.connection("BLOB_CONNSTRING", config.storage_connection),
    )


def join_problems(problems: Sequence[str]) -> str:
    """One message of all."""
    if len(problems) == 1:
        return problems[0]
    return f"{len(problems)} settings are wrong:\n" + "\n".join(f"  {problem}" for problem in problems)


OTHER_SETTINGS = (
    *("CONSUMER_HOSTING", "CONSUMER_SLICE", "CONSUME_SCHEDULE", "CONSUMER_LOG_LEVEL"),
    *("CONSUMER_MAXIMUM_INSTANCES", FILE),
    *("EVENTHUB_CONNSTRING", "COSMOS_CONNSTRING", "BLOB_CONNSTRING"),
)
"""Settings that are read elsewhere, or only if another one is missing."""

_FAMILIES = ("EVENTHUB_", "COSMOS_", "BLOB_", "ALLOW_", "CONSUMER_", "CONSUME_")


def _misspelt(settings: Mapping[str, str], known: Collection[str]) -> Iterator[str]:
    """Names that look like misspelt settings. Without a warning, a misspelt limit would silently limit nothing."""
    known = {*known, *OTHER_SETTINGS}
    for name in sorted(settings):
        if not name.startswith(_FAMILIES) or name in known or "__" in name:
            continue
        similar = difflib.get_close_matches(name, known, n=1, cutoff=0.88)
        if name in DECODER_SETTINGS:
            yield f"{name} is no option of the decoder that {DECODER} names, and changes nothing"
        elif similar:
            yield f"{name} is no setting of the consumer; did you mean {similar[0]}?"
        elif name.startswith("CONSUMER_"):
            yield f"{name} is no setting of the consumer"


def _unfit(config: ConsumerConfig) -> Iterator[str]:
    """Settings that do not fit each other."""
    if config.lease_expiry < 2 * config.lease_interval:
        yield (
            f"CONSUMER_LEASE_EXPIRY is {config.lease_expiry:g} s; accepted: at least twice CONSUMER_LEASE_INTERVAL,"
            f" {config.lease_interval:g} s"
        )
    elif config.lease_expiry < (least := 1.5 * (config.lease_interval + 1.5)):
        # Ownership gives a lease up a third of the expiry before its end, which is known to a second; half a second to renew it.
        yield (
            f"CONSUMER_LEASE_EXPIRY is {config.lease_expiry:g} s, and a lease would be given up before it is renewed; accepted: at"
            f" least {least:g} s with a CONSUMER_LEASE_INTERVAL of {config.lease_interval:g} s"
        )
    limits = {
        "CONSUMER_RU_PER_SECOND": config.request_units,
        "CONSUMER_FLEET_RU_PER_SECOND": config.fleet_request_units,
    }
    for name, limit in limits.items():
        if limit and config.sink is SinkKind.SQL:
            other = "EVENTHUB_RATELIMIT or CONSUMER_FLEET_RATELIMIT"
            yield f"{name} is {limit:g}, but CONSUMER_SINK=sql is charged no request units; set {other}"
    if config.cosmos_bucket > MOST_BUCKETS:
        yield f"COSMOS_THROUGHPUT_BUCKET is '{config.cosmos_bucket}'; accepted: 1 to {MOST_BUCKETS}, or 0 for none"
    yield from config.parking.problems(ordered=config.sink is SinkKind.SQL)
    if config.http_port > HIGHEST_PORT:
        yield f"CONSUMER_HTTP_PORT is '{config.http_port}'; accepted: 0 (none) to {HIGHEST_PORT}"


def _missing(config: ConsumerConfig) -> list[str]:
    needed = [(config.hub, "EVENTHUB_NAME", "the event hub to consume")]
    if config.sink is SinkKind.COSMOS:
        needed += [
            (config.cosmos_database, "COSMOS_DATABASE", "the database to write to"),
            (config.cosmos_container, "COSMOS_CONTAINER", "the container to write to"),
        ]
    kinds = {str(config.sink), str(config.checkpoints), str(config.dead_letters)}
    if "sql" in kinds:
        needed.append((config.sql.url, "CONSUMER_SQL_URL", "the database's address, as SQLAlchemy writes it"))
    problems = [f"{name} is not set: {meaning}" for value, name, meaning in needed if not value]
    if config.sink is SinkKind.SQL and kinds != {"sql"}:
        problems.append(
            "CONSUMER_SINK=sql keeps its checkpoints and dead letters in the same database: leave"
            " CONSUMER_CHECKPOINTS and CONSUMER_DEAD_LETTERS unset or sql"
        )
    return problems


def _start(text: str) -> str | float:
    if text.lower() in {"earliest", "latest"}:
        return text.lower()
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _columns(text: str) -> Mapping[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    if not all(name.strip() and path.strip() for name, _, path in pairs):
        raise ValueError(text)
    return {name.strip(): path.strip() for name, _, path in pairs}


def read_hosting(settings: Mapping[str, str]) -> Hosting:
    """The value of CONSUMER_HOSTING; an invalid one is read as `slices`.

    `read_slice` reports the invalid value when the function runs. An error here would stop the whole app from loading,
    the autoscaler too.
    """
    text = settings.get("CONSUMER_HOSTING", "").strip().lower()
    if not text:
        return Hosting.OFF
    return Hosting(text) if text in set(Hosting) else Hosting.SLICES


def read_slice(settings: Mapping[str, str], read: SettingsReader | None = None) -> float:
    """The value of CONSUMER_SLICE: for how many seconds an invocation consumes. Raises SettingsError, also for a wrong CONSUMER_HOSTING."""
    read = read or SettingsReader(settings)
    seconds = read.seconds("CONSUMER_SLICE", 45.0)
    read.of("CONSUMER_HOSTING", Hosting.OFF)
    if read.problems:
        raise SettingsError(join_problems(read.problems))
    return seconds
