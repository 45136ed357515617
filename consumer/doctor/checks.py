"""The doctor's checks for the consumer that an app's settings describe."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from consumer.config import (
    FILE,
    ConsumerConfig,
    DeadLettersKind,
    Hosting,
    SinkKind,
    StoreKind,
    read_hosting,
    read_slice,
)
from consumer.decoding.registries import AzureRegistry, ConfluentRegistry
from consumer.definition.loading import load_definition
from consumer.definition.model import Definition, HubDefinition, SinkDefinition
from consumer.doctor.positions import foreign_positions
from consumer.doctor.trials import LISTENING, CosmosTrial, Received, parked_count, received
from consumer.errors import UnreadableError
from consumer.formats import DecoderName, registry_of
from consumer.leasing.start_position import changed_routes, rerouted_text
from consumer.options import WritingTexts
from consumer.running.assembly import Parts
from consumer.running.hubs import longest_slice
from consumer.running.other_positions import TO_GO_ON, find_other_positions, stored_text
from consumer.sinks.cosmos.client import ContainerDefinition
from consumer.telemetry.rate_orders import TableRateStore
from consumer.telemetry.stats_store import TableStatsStore
from tidemark.foundation.app_settings import STORAGE
from tidemark.foundation.azure.connections import Settings
from tidemark.foundation.azure.trials import blobs_absent, table_absent
from tidemark.foundation.checkup import Check, Finding, Needs, failed, ok, storage, unknown, warning
from tidemark.foundation.errors import SettingsError, TidemarkError, UnavailableError
from tidemark.foundation.wording import count_text, duration_text

if TYPE_CHECKING:  # SQLAlchemy is not among the functions' packages
    from consumer.sinks.sql.options import SqlOptions

_SETTINGS = "consumer's settings"
_TARGETS = ("COSMOS_DATABASE", "COSMOS_CONTAINER", "CONSUMER_SINK", "CONSUMER_SQL_URL")

LOOK_WITHIN = 20.0
"""Seconds to read all positions; a check has 25."""

_DOCUMENTS = "the role 'Cosmos DB Built-in Data Contributor' (of Cosmos DB's own), or a key that may write,"
_BLOBS = "the 'Storage Blob Data Contributor' role, or the right key,"
_TABLES = "the 'Storage Table Data Contributor' role, or the right key,"
_RECEIVER = "the 'Azure Event Hubs Data Receiver' role, or a policy with the right Listen,"
_SCHEMAS = "the 'Schema Registry Reader' role, or the right user name and password,"
_ROWS = "the rights SELECT, INSERT, UPDATE and DELETE (on a table of your own only what is written)"


def checks_of(settings: Settings, root: Path) -> list[Check]:
    """The checks of the consumer in the app's folder `root`. None without a consumer: a hub alone may be there for its lag."""
    hub, *targets = (settings.get(name, "").strip() for name in ("EVENTHUB_NAME", *_TARGETS))
    is_elsewhere = settings.get(FILE) or (hub and any(targets))  # a process with the same settings
    if not is_elsewhere and read_hosting(settings) is Hosting.OFF:
        return []
    try:
        read_slice(settings)
        definition = load_definition(settings)
        for consumer in definition.hubs:
            Parts(consumer.config, consumer.settings, consumer).decoder()
    except SettingsError as error:
        return [_configuration(str(error))]
    of_hubs = (check for consumer in definition.hubs for check in _of_consumer(consumer))
    checks = [_configuration("", definition), *_once(of_hubs)]
    if read_hosting(settings) is Hosting.SLICES:
        checks.append(_slice(settings, definition.hubs[0].config, root))
    return checks


def _once(checks: Iterable[Check]) -> Iterator[Check]:
    """Hubs of one file share stores and sinks."""
    return iter({(check.name, check.subject): check for check in checks}.values())


def _configuration(problems: str, definition: Definition | None = None) -> Check:
    async def call() -> list[Finding]:
        if definition is None:
            return [failed("configuration", _SETTINGS, problems, "correct the app settings that are named")]
        findings = [
            ok(
                "configuration",
                _SETTINGS,
                f"hub '{hub.config.hub}', group '{hub.config.consumer_group}', sink"
                f" {', '.join(sink.name for sink in hub.sinks) or hub.config.sink}",
            )
            for hub in definition.hubs
        ]
        remedy = "correct its name or remove it: as it is, it does nothing"
        return findings + [warning("configuration", _SETTINGS, doubt, remedy) for doubt in definition.doubts]

    return Check("configuration", _SETTINGS, Needs("nothing", "the app settings"), call)


def _slice(settings: Settings, config: ConsumerConfig, root: Path) -> Check:
    """A function that exceeds the host's timeout ends its worker, with all other functions in it."""
    subject = "a slice"

    async def call() -> list[Finding]:
        longest, limit = longest_slice(config, read_slice(settings)), function_timeout(root / "host.json")
        text = f"lasts {duration_text(longest)} at the most"
        if limit is None or longest < limit:
            return [ok("schedule", subject, text)]
        remedy = "make CONSUMER_SLICE or CONSUMER_SHUTDOWN shorter, or functionTimeout in host.json longer"
        problem = f"{text}, and the host ends the worker with all its functions after {duration_text(limit)}"
        return [failed("schedule", subject, problem, remedy)]

    return Check("schedule", subject, Needs("nothing", "host.json"), call)


def function_timeout(path: Path) -> float | None:
    """`functionTimeout` of host.json in seconds; None without a file or a value, or if it is unbounded.

    Raises ValueError for anything but `hh:mm:ss` or `-1`.
    """
    text = json.loads(path.read_text(encoding="utf-8")).get("functionTimeout") if path.is_file() else None
    if text is None or text == "-1":
        return None
    hours, minutes, seconds = str(text).split(":")
    return 3600 * int(hours) + 60 * int(minutes) + float(seconds)


def _of_consumer(hub: HubDefinition) -> Iterator[Check]:
    settings, config = hub.settings, hub.config
    yield _receives(settings, config)
    yield from _registry(settings, config)
    for target in _containers(hub):
        yield _cosmos(settings, target, "write", target.cosmos_container)
    yield from _targets(hub)
    # With the trigger the host keeps the positions; the consumer only notes which hub they belong to.
    hosted = read_hosting(settings) is Hosting.TRIGGER
    if not hosted:
        yield _positions(hub)
    if config.checkpoints is StoreKind.BLOB:
        yield _container(settings, config, "known hub" if hosted else "checkpoints", config.blob_container)
    if config.dead_letters is DeadLettersKind.BLOB:
        yield _container(settings, config, "dead letters", config.dead_letters_container)
    if config.dead_letters is DeadLettersKind.COSMOS:
        yield _cosmos(settings, config, "dead letters", config.dead_letters_container)
    yield _parked(hub, is_hosted=hosted)
    for table in (TableStatsStore.TABLE, TableRateStore.TABLE):
        yield _table(settings, table)


def _targets(hub: HubDefinition) -> Iterator[Check]:
    """What is written to besides containers of Cosmos DB."""
    config = hub.config
    for sink in hub.sinks:
        if sink.type == SinkKind.SQL:
            yield _sql(hub, f"sink {sink.name} (sql)", sink.options)
        elif sink.type != SinkKind.COSMOS:
            yield _opened(hub, sink)
    kinds = {str(kind) for kind in (config.sink, config.checkpoints, config.dead_letters)}
    is_tried = hub.sinks and config.sink is SinkKind.SQL  # with the sink, whose database it is
    if SinkKind.SQL in kinds and not is_tried:
        yield _sql(hub, "database of CONSUMER_SQL_URL")


def _containers(hub: HubDefinition) -> Iterator[ConsumerConfig]:
    """The configuration with each container of Cosmos DB that the hub writes to."""
    if not hub.sinks and hub.config.sink is SinkKind.COSMOS:
        yield hub.config
    for sink in hub.sinks:
        if sink.type == SinkKind.COSMOS:
            where = {name: getattr(sink.options, name) for name in ("connection", "database", "container")}
            named = {f"cosmos_{name}": value for name, value in where.items()}
            yield structs.replace(hub.config, writing=sink.options, **named)


def _group_text(config: ConsumerConfig) -> str:
    """The consumer group that is examined. Two namespaces may have a hub of one name."""
    is_usual = config.hub_connection == ConsumerConfig("").hub_connection
    return f"hub {config.hub}, group {config.consumer_group}" + (
        "" if is_usual else f" ({config.hub_connection})"
    )


def _receives(settings: Settings, config: ConsumerConfig) -> Check:
    subject = _group_text(config)
    exists = f"check that the consumer group '{config.consumer_group}' exists: a reader of one that does not exist gets no error"
    nothing = f"no event within {LISTENING:g} s, although there are some"
    finding = {
        Received.NOTHING: unknown("receive", subject, nothing, exists),
        Received.NOTHING_THERE: warning(
            "receive", subject, "allowed; nothing to read yet, so the group is not proven", exists
        ),
        Received.AN_EVENT: ok("receive", subject, "an event was read"),
        Received.BY_A_CONSUMER: ok("receive", subject, "a consumer receives"),
    }

    async def call() -> list[Finding]:
        return [finding[await received(settings, config)]]

    place = f"event hub '{config.hub}' with its consumer group '{config.consumer_group}' (connection {config.hub_connection})"
    return Check("receive", subject, Needs(_RECEIVER, place), call)


def _registry(settings: Settings, config: ConsumerConfig) -> Iterator[Check]:
    connection = registry_of(config.decode)
    if not connection:
        return
    kind = ConfluentRegistry if config.decoder is DecoderName.CONFLUENT else AzureRegistry
    subject = f"registry {connection}"
    place = f"the namespace of the schema registry (connection {connection})"

    async def call() -> list[Finding]:
        await kind(settings, connection).reach()
        return [ok("schemas", subject, "schemas may be read")]

    yield Check("schemas", subject, Needs(_SCHEMAS, place), call)


def _cosmos(settings: Settings, config: ConsumerConfig, name: str, container: str) -> Check:
    subject = f"container {config.cosmos_database}/{container}"
    by_key = bool(settings.get(config.cosmos_connection, "").strip())
    place = f"container '{container}' in database '{config.cosmos_database}' (connection {config.cosmos_connection})"

    async def call() -> list[Finding]:
        trial = CosmosTrial(settings, config.cosmos_connection, config.cosmos_database, container)
        absent = await trial.absent()
        if absent and (name == "write" or not by_key):
            remedy = f"create {place}, which no identity may, or correct the app settings"
            return [failed(name, subject, "is not there", remedy)]
        findings = [storage(subject, absent=absent, check=name)]
        return (
            [*findings, *_as_written(subject, trial.found, config.writing)] if name == "write" else findings
        )

    return Check(name, subject, Needs(_DOCUMENTS, place), call)


def _as_written(
    subject: str, container: ContainerDefinition | None, texts: WritingTexts
) -> Iterator[Finding]:
    """What the container's definition means for how it is written to."""
    if container is None:
        return
    if container.version == 1 and container.kind == "Hash":
        remedy = "nothing if keys are texts of up to 100 bytes; else a new container (hash version 2) takes all keys in bulk"
        problem = (
            "partition key hash version 1: 0, null, negative, large and long keys are written one by one"
        )
        yield warning("write", subject, problem, remedy)
    on = "set the container's defaultTtl to -1 (on, without a default)"
    if texts.ttl and container.default_ttl is None:
        yield failed("write", subject, f"no defaultTtl, and COSMOS_TTL is {texts.ttl}", on)
    elif texts.guard != "none" and texts.tombstone != "off" and container.default_ttl is None:
        yield warning("write", subject, "no defaultTtl: tombstones of deleted documents stay for ever", on)


def _opened(hub: HubDefinition, sink: SinkDefinition) -> Check:
    """Opens a sink of another type, which reads its target. What it would create is not created."""
    subject = f"sink {sink.name} ({sink.type})"
    creates = bool(getattr(sink.options, "create", False))
    options = structs.replace(sink.options, create=False) if creates else sink.options

    async def call() -> list[Finding]:
        try:
            opened = Parts(hub.config, hub.settings, hub).build_sink(structs.replace(sink, options=options))
            try:
                await opened.open()
            finally:
                await opened.aclose()
        except SettingsError as error:
            if creates:
                done = "the consumer creates it when it starts; if it is there already, correct what is named"
                return [warning("write", subject, str(error), done)]
            return [
                failed("write", subject, str(error), "correct what is named, in the file or at the target")
            ]
        return [ok("write", subject, "the target may be opened")]

    return Check("write", subject, Needs("the right to write", subject), call)


def _sql(hub: HubDefinition, subject: str, options: SqlOptions | None = None) -> Check:
    """`options` are those of a file's sink; otherwise the settings name the table, or the database is for positions alone."""
    config = hub.config
    url = config.sql.url if options is None else hub.settings.get(options.connection, "").strip()
    scheme, _, path = url.partition(":///")
    is_there = Path(path.partition("?")[0]).exists()

    async def call() -> list[Finding]:
        if scheme.startswith("sqlite") and path and not is_there:
            # Connecting would create the file.
            return [ok("write", subject, "the file is not there yet, it is made by its first use")]
        from consumer.doctor import sql_trials  # noqa: PLC0415 - SQLAlchemy is not among the functions' packages

        absent = await sql_trials.absent(Parts(config, hub.settings), url, options)
        create = (options or config.sql).create_tables
        makes = scheme.startswith("sqlite") if create is None else create
        if absent and not makes:
            remedy = "create them (docs/consuming.md has the statements), or set CONSUMER_SQL_CREATE_TABLES to true"
            remedy = (
                remedy if options is None else remedy.replace("CONSUMER_SQL_CREATE_TABLES", "create_tables")
            )
            return [failed("write", subject, f"without the tables {', '.join(absent)}", remedy)]
        return [storage(subject, absent=bool(absent), check="write")]

    return Check("write", subject, Needs(_ROWS, subject), call)


def _positions(hub: HubDefinition) -> Check:
    """What the next start makes of the stored positions, where the settings or the file have changed since they were stored."""
    config = hub.config
    in_sql = config.checkpoints is StoreKind.SQL
    place = (
        "database of CONSUMER_SQL_URL" if in_sql else f"the storage account of {config.storage_connection}"
    )
    subject = _group_text(config)

    async def call() -> list[Finding]:
        deadline = asyncio.get_running_loop().time() + LOOK_WITHIN
        async with contextlib.AsyncExitStack() as closing:
            try:
                parts = Parts(structs.replace(config, dry_run=True), hub.settings, hub)  # it creates nothing
                store = parts.checkpoints()
                closing.push_async_callback(store.aclose)
                stored = await store.load_all(deadline=deadline)
            except (TidemarkError, ImportError):
                return []  # the check of that store says why
            more = await parts.positions_in_other_containers(is_first=not stored)
            elsewhere = [*parts.other_positions(), *more]
            for _, other in elsewhere:
                closing.push_async_callback(other.aclose)
            try:
                others = await find_other_positions(config, stored, elsewhere, deadline=deadline)
            except UnavailableError as error:
                return [unknown("positions", subject, str(error), "let it be read, or remove its setting")]
            findings = await foreign_positions(parts, stored, subject, deadline)
        findings += [
            (failed if other.is_refused else warning)(
                "positions", subject, f"{other.found}. {other.outcome}", f"to go on there, {TO_GO_ON}"
            )
            for other in others
        ]
        if rerouted := changed_routes(stored, config.policy.routes):
            remedy = "nothing, if only events from there on are meant; `tidemark checkpoints set` goes back to earlier ones"
            findings.append(warning("positions", subject, rerouted_text(rerouted), remedy))
        return findings or [ok("positions", subject, stored_text(stored, parts.positions_place))]

    return Check("positions", subject, Needs(_ROWS if in_sql else _BLOBS, place), call)


def _parked(hub: HubDefinition, *, is_hosted: bool) -> Check:
    """Whether parked events can be read, without which their partition waits."""
    subject = _group_text(hub.config)

    async def call() -> list[Finding]:
        try:
            count, is_all = await parked_count(Parts(hub.config, hub.settings, hub), LOOK_WITHIN)
        except UnreadableError as error:
            remedy = "what is named there; until then its partition waits"
            return [failed("parked", subject, str(error), remedy)]
        except (TidemarkError, ImportError):
            return []  # the check of that store says why
        found = f"{count_text(count, 'event is', 'events are')} parked{'' if is_all else ', or more'}"
        if count and is_hosted:
            remedy = "run `tidemark dead-letters replay --parked --all`"
            found += ", and behind the trigger nobody tries them again"
            return [warning("parked", subject, found, remedy)]
        return [ok("parked", subject, found)]

    place = f"the store of dead letters ({hub.config.dead_letters})"
    return Check("parked", subject, Needs("the right to read dead letters", place), call)


def _container(settings: Settings, config: ConsumerConfig, name: str, container: str) -> Check:
    needs = Needs(_BLOBS, f"the storage account of {config.storage_connection}")
    return _storage(
        name,
        f"container {container}",
        needs,
        lambda: blobs_absent(settings, config.storage_connection, container),
    )


def _table(settings: Settings, table: str) -> Check:
    needs = Needs(_TABLES, f"the storage account of {STORAGE}")
    return _storage("storage", f"table {table}", needs, lambda: table_absent(settings, STORAGE, table))


def _storage(name: str, subject: str, needs: Needs, is_absent: Callable[[], Awaitable[bool]]) -> Check:
    async def call() -> list[Finding]:
        return [storage(subject, absent=await is_absent(), check=name)]

    return Check(name, subject, needs, call)
