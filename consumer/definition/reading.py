"""Reads the consumer's file to a Definition, with every problem at once.

Texts may have `%NAME%` for the app setting NAME. A text that looks like a secret is refused: connections and keys are named
by their settings.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import structs

from consumer.config import ConsumerConfig, SinkKind
from consumer.decoding.table import DecoderContext, build_decoder
from consumer.definition.hub_settings import (
    CONNECTIONS,
    as_setting,
    hub_name,
    key_of,
    keys_of_settings,
    read_hub_settings,
)
from consumer.definition.model import Definition, HubDefinition, SinkDefinition, digest_of
from consumer.definition.overlaps import find_doubts, find_overlaps
from consumer.formats import OPTIONS, BodyOptions, DecoderName, JsonOptions
from consumer.mapping.steps.chain import MOST_SPLITS, Step
from consumer.mapping.steps.routes import Mapper, Route, RouteOptions, read_route
from consumer.mapping.steps.table import read_steps
from consumer.mapping.transforms import load_transform
from consumer.model import Operation, Stream
from consumer.sinks.types import WRITE_VALUES, SinkContext, SinkType, find_sink_type, read_options
from tidemark.foundation.azure.connections import event_hubs_endpoint
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.sanitize import one_line, sanitize_line
from tidemark.foundation.settings_reader import (
    ConfigError,
    Problem,
    Reader,
    Shared,
    as_text,
    locate,
    one_of,
    parse_params,
)
from tidemark.foundation.wording import did_you_mean

TryOut = Callable[[HubDefinition], None]
"""Raises SettingsError for what only building a hub finds, a line for each problem."""
VERSION = 1
LONGEST_NAME = 100
"""Characters of a hub's name, which is the consumer's in status and rate orders. Chosen."""

_HUB = ("connection", "hub", "consumer_group", "decode", "steps", "routes", "rate", "storage_connection")


def read_definition(
    text: str, settings: Mapping[str, str], *, name: str, try_out: TryOut | None = None
) -> Definition:
    """The definition in a file's text; `name` is the file's in messages. Raises ConfigError, in the order of the file's lines, also for
    what `try_out` raises of a hub, or a transform that cannot be imported.
    """
    try:
        tree = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError([Problem(name, f"is no TOML: {error}")]) from None
    shared = Shared(name, locate(text), settings)
    definition = _File(Reader(tree, "", shared), shared, settings, try_out).read()
    if shared.problems:
        raise ConfigError(shared.problems)
    return definition


class _File:
    """One reading of one file."""

    def __init__(
        self, top: Reader, shared: Shared, settings: Mapping[str, str], try_out: TryOut | None
    ) -> None:
        self._top = top
        self._shared = shared
        self._settings = settings
        self._try_out = try_out
        self._doubts: list[str] = []
        self._used, self._built = set[str](), set[str]()
        self._sinks: dict[str, SinkDefinition] = {}
        self._names: tuple[str, ...] = ()
        self._given: list[Mapping[str, Any]] = []  # steps and routes of a hub, as they stand

    def read(self) -> Definition:
        top = self._top
        top.require("version", VERSION, _version)
        rate = top.take("rate", None, _rate)
        self._read_sinks(top.table("sinks"))
        hubs = self._read_hubs(top.table("hubs"), rate)
        top.finish()
        for name in self._names:
            if name not in self._used and hubs:
                self._doubts.append(f"{self._shared.where(f'sinks.{name}')}: no route goes to this sink")
        return Definition(tuple(hubs), rate, is_file=True, doubts=tuple(self._doubts))

    # -- sinks

    def _read_sinks(self, tables: Reader | None) -> None:
        if tables is None:
            self._top.problem("sinks", "is missing; a table [sinks.NAME] for each sink is accepted")
            return
        self._names = tables.names()
        for name in self._names:
            if "/" in name:
                tables.problem(name, "has a slash, which separates a sink from its lanes; accepted: none")
            elif (table := tables.table(name)) is not None:
                self._read_sink(name, table)

    def _read_sink(self, name: str, table: Reader) -> None:
        kind_name = table.require("type", "", as_text)
        options = table.options()
        if not kind_name:
            return
        with _telling(table, "type"):
            kind = find_sink_type(kind_name)
            with _telling(table):
                read = read_options(kind, options.values, table.path)
                if not options.refused:
                    self._sinks[name] = SinkDefinition(name, kind_name, read)
                self._try_to_build(name, kind, read)
                self._built.add(name)
                self._check_connection(table, getattr(read, "connection", None))

    def _try_to_build(self, name: str, kind: SinkType[Any], options: Any) -> None:
        """Raises SettingsError for what only building a sink finds, such as a missing package."""
        try:
            kind.build(options, SinkContext(self._settings, "hub", Stream("namespace", "hub", "group"), name))
        except SettingsError:
            raise
        except Exception as error:  # the code of a plug-in may raise anything
            raise SettingsError(one_line(f"cannot be built: {type(error).__name__}: {error}")) from error

    def _check_connection(self, table: Reader, name: object) -> None:
        """Reports a connection without any setting, which would be found only when the sink is opened."""
        known = {setting.partition("__")[0].casefold() for setting in self._settings}
        if isinstance(name, str) and name and name.casefold() not in known:
            table.problem(
                "connection",
                f"no app setting is named {name}, nor {name}__accountEndpoint or the like; the name of a setting with a connection"
                " is accepted",
            )

    # -- hubs

    def _read_hubs(self, tables: Reader | None, rate: float | None) -> list[HubDefinition]:
        if tables is None or not tables.names():
            self._top.problem("hubs", "is missing; a table [hubs.NAME] for each hub is accepted")
            return []
        hubs = []
        known = keys_of_settings()
        for name in tables.names():
            table = tables.table(name)
            hub = None if table is None else self._read_hub(name, table, known, rate)
            if hub is not None:
                hubs.append(hub)
                self._doubts += find_doubts(hub)
        for where, text in find_overlaps(hubs):
            self._shared.problem(where, text)
        return hubs

    def _read_hub(
        self, name: str, table: Reader, known: Mapping[str, str], rate: float | None
    ) -> HubDefinition | None:
        before = len(self._shared.problems)
        if not 1 <= len(name.strip()) <= LONGEST_NAME or sanitize_line(name) != name:
            table.problem(
                "", f"found a name of {len(name)} characters; 1 to {LONGEST_NAME} are accepted, on one line"
            )
        connections = {
            field: table.take(key, None, as_text) for key, field in CONNECTIONS.items() if table.has(key)
        }
        name_of_format, decode = self._read_decode(table.table("decode"))
        self._given = [dict(reader.options().values) for reader in table.tables("steps")]
        steps, problems = read_steps(self._given, self._settings)
        self._tell(table, "steps", problems)
        routes = self._read_routes(table, splits=_splits(steps))
        sinks = tuple(
            self._sinks[sink] for sink in dict.fromkeys(route.sink for route in routes) if sink in self._sinks
        )
        values = self._own_settings(name, table, known, common_rate=rate is not None) | self._of_sql(sinks)
        config, settings = self._config(table, values, connections, common_rate=rate is not None)
        self._check_stores(table, config)
        splits = _splits(steps) + max((_splits(route.steps) for route in routes), default=0)
        self._check_transform(table, config.transform, splits)
        if len(self._shared.problems) > before:
            return None
        if len(sinks) <= 1:  # which has no name there
            routes = [structs.replace(route, sink="") for route in routes]
        mapper = Mapper(steps, routes)
        policy = structs.replace(config.policy, routes=digest_of(config.transform, self._given))
        is_plain = not steps and len(routes) == 1 and routes[0].is_plain
        hub = HubDefinition(
            structs.replace(config, decoder=name_of_format, decode=decode, policy=policy),
            settings,
            sinks,
            None if is_plain else mapper,
            any(route.delete_when_empty for route in routes),
        )
        if self._try_out is not None and self._built.issuperset(sink.name for sink in sinks):
            with _telling(table):
                self._try_out(hub)
        return hub

    def _read_decode(self, table: Reader | None) -> tuple[DecoderName, BodyOptions]:
        if table is None:
            return DecoderName.JSON, JsonOptions()
        name = DecoderName(table.take("format", "auto", one_of(DecoderName)))
        given = table.options()
        options, wrong = parse_params(OPTIONS[name], given.values, beside=("format",))
        for key, text in wrong.items():
            if key not in given.refused:
                table.problem(key, text)
        if options is None or wrong:
            return DecoderName.JSON, JsonOptions()
        with _telling(table):
            build_decoder(name, options, DecoderContext(self._settings))
        return name, options

    def _own_settings(
        self, name: str, table: Reader, known: Mapping[str, str], *, common_rate: bool
    ) -> dict[str, str]:
        """The settings that a hub's table has, by their names."""
        values = {"CONSUMER_NAME": name}
        if not table.has("hub"):
            table.problem("hub", "is missing; the name of the event hub is accepted")
        for key in table.names():
            if key in known:
                value = table.take(key, None, hub_name if key == "hub" else as_setting)
                if value is not None:
                    values[known[key]] = value
            else:
                accepted = [*_HUB, *known]
                hint = did_you_mean(key, accepted, f"accepted are {', '.join(accepted)}")
                table.problem(key, f"is not a setting here; {hint}")
        for rate in ("EVENTHUB_RATELIMIT", "CONSUMER_FLEET_RATELIMIT"):
            if common_rate and rate in values:
                table.problem(key_of(rate), "found beside one rate for all hubs; one of them is accepted")
        return values

    def _config(
        self,
        table: Reader,
        values: Mapping[str, str],
        connections: Mapping[str, str | None],
        *,
        common_rate: bool,
    ) -> tuple[ConsumerConfig, Mapping[str, str]]:
        reading, mine, others = read_hub_settings(values, self._settings)
        for key, text in mine:
            table.problem(key, text)
        for text in others:
            if not any(problem.text == text for problem in self._shared.problems):
                self._shared.problems.append(Problem("app settings", text))
        self._doubts += [doubt for doubt in reading.config.doubts if doubt not in self._doubts]
        config = structs.replace(
            reading.config, doubts=(), **{field: name for field, name in connections.items() if name}
        )
        if common_rate:
            config = structs.replace(config, rate=None, fleet_rate=None)
        with _telling(table, "connection"):
            event_hubs_endpoint(self._settings, config.hub_connection)
        return config, {**self._settings, **values}

    def _of_sql(self, sinks: Sequence[SinkDefinition]) -> dict[str, str]:
        """The settings of an only sink to SQL, which keeps positions, leases and dead letters in its own database."""
        if [sink.type for sink in sinks] != [SinkKind.SQL]:
            return {}
        url = self._settings.get(sinks[0].options.connection, "")
        return {"CONSUMER_SINK": SinkKind.SQL, "CONSUMER_SQL_URL": url}

    def _check_stores(self, table: Reader, config: ConsumerConfig) -> None:
        stores = {"checkpoints": str(config.checkpoints), "dead_letters": str(config.dead_letters)}
        for key, store in stores.items():
            if config.sink is SinkKind.SQL and store != "sql":
                table.problem(
                    key, f"found {store!r}; sql is accepted, as the only sink keeps them with its rows"
                )
            if store == "sql" and not config.sql.url:
                table.problem(key, "found 'sql', and the setting CONSUMER_SQL_URL is not set")
            if store == "cosmos" and not config.cosmos_database:
                table.problem(key, "found 'cosmos', and the setting COSMOS_DATABASE is not set")

    def _check_transform(self, table: Reader, transform: str | None, splits: int) -> None:
        if transform and splits == MOST_SPLITS:
            table.problem(
                "transform",
                f"found beside {splits} steps 'split', one after the other; {MOST_SPLITS - 1} is accepted, as the transform may make"
                " several documents too",
            )
        if transform and self._try_out is not None:
            with _telling(table, "transform"):
                load_transform(transform)

    # -- routes

    def _read_routes(self, table: Reader, *, splits: int) -> list[Route]:
        readers = table.tables("routes")
        if not readers and len(self._names) != 1:
            table.problem("routes", "is missing; it may be left out only if the file has one sink")
            return []
        routes: list[Route] = []
        of_sink: dict[str, int] = {}
        for position, reader in enumerate(readers or [Reader({}, f"{table.path}.routes", self._shared)]):
            route = self._read_route(reader, f"routes[{position}]", of_sink, splits)
            if route is not None:
                if not route.delete_when_empty and any(one.takes_all for one in routes):
                    where = self._shared.where(reader.path)
                    self._doubts.append(f"{where}: never reached, as a route before it takes all")
                routes.append(route)
        return routes

    def _read_route(self, reader: Reader, name: str, of_sink: dict[str, int], splits: int) -> Route | None:
        given = reader.options()
        self._given.append(given.values)
        options, wrong = parse_params(RouteOptions, given.values)
        for key, text in wrong.items():
            if key not in given.refused:
                reader.problem(key, text)
        sink = "" if "to" in wrong else self._sink_of(reader, given.values)
        if options is None:  # what else is wrong is reported at once
            good = {key: value for key, value in given.values.items() if key not in wrong}
            options = parse_params(RouteOptions, good)[0] or RouteOptions()
        self._check_sink(reader, sink, options)
        earlier = of_sink.get(sink, 0)
        of_sink[sink] = earlier + 1
        route, problems = read_route(
            options, self._settings, name=name, sink=sink, earlier=earlier, splits=splits
        )
        self._tell(reader, "", problems)
        return route

    def _sink_of(self, reader: Reader, values: Mapping[str, Any]) -> str:
        """The name of the sink of a route; '' if there is none, which is recorded as a problem but for a route that drops."""
        only = self._names[0] if len(self._names) == 1 else None
        sink = values.get("to") or ("" if values.get("drop") else only)
        if sink is None:
            reader.problem("to", f"is missing; accepted: {', '.join(self._names) or 'a sink of the file'}")
        elif sink and sink not in self._names:
            accepted = ", ".join(self._names) or "none, for there are no sinks"
            hint = did_you_mean(str(sink), self._names, f"accepted: {accepted}")
            reader.problem("to", f"found {sink!r}, which is no sink of this file; {hint}")
        self._used.add(sink or "")
        return sink or ""

    def _check_sink(self, reader: Reader, sink: str, options: RouteOptions) -> None:
        """Reports options that the type of the sink does not have. An operation that an event names is found only with the event."""
        if sink not in self._sinks:
            return
        kind = find_sink_type(self._sinks[sink].type)
        wanted = {options.operation, *options.operations.values()} - {None, *kind.operations}
        if options.delete_when_empty and Operation.DELETE not in kind.operations:
            wanted.add(Operation.DELETE)
        if wanted:
            has = ", ".join(sorted(kind.operations))
            named = ", ".join(sorted(filter(None, wanted)))
            reader.problem("operation", f"a sink of the type {kind.name} cannot {named}; accepted: {has}")
        for name in WRITE_VALUES:
            if getattr(options, name) and name not in kind.values:
                used = ", ".join(kind.values) or "none of " + ", ".join(WRITE_VALUES)
                reader.problem(name, f"a sink of the type {kind.name} does not use it; accepted: {used}")

    def _tell(self, table: Reader, key: str, problems: Sequence[tuple[str, str]]) -> None:
        for where, text in problems:
            table.problem(f"{key}{where}", text)


@contextmanager
def _telling(table: Reader, key: str = "") -> Iterator[None]:
    """Records each line of a SettingsError as a problem of its own, and goes on behind the block."""
    try:
        yield
    except SettingsError as error:
        for line in str(error).splitlines():
            table.problem(key, line.removeprefix(f"{table.path}: "))


def _splits(steps: Iterable[Step]) -> int:
    return sum(step.name.endswith(" split") for step in steps)


def _version(value: Any) -> int:
    if value != VERSION or isinstance(value, bool):
        raise ValueError(f"found {value!r}; {VERSION} is accepted, the form of this release of Tidemark")
    return VERSION


def _rate(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(
            f"found {value!r}; records per second from 0 (no limit) are accepted; fractions are fine"
        )
    return float(value) or None
