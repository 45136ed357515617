"""The types of sinks: those of Tidemark, and plug-ins of other packages.

A plug-in is a `SinkType` that its package names as an entry point of the group `tidemark.sinks`. A type is imported when a
configuration names it, so that a plug-in that nobody uses can break nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct, structs

from consumer.model import Operation, Stream
from consumer.ports import Sink
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.version import install_hint
from tidemark.foundation.wording import did_you_mean, why_refused

GROUP = "tidemark.sinks"
"""The group of entry points."""

BUILT_IN = {
    "cosmos": "consumer.sinks.cosmos.options:COSMOS",
    "delta": "consumer.sinks.lake.delta:DELTA",
    "event_hubs": "consumer.sinks.messaging.event_hubs:EVENT_HUBS",
    "http": "consumer.sinks.http.options:HTTP",
    "parquet": "consumer.sinks.lake.parquet:PARQUET",
    "service_bus": "consumer.sinks.messaging.service_bus:SERVICE_BUS",
    "sql": "consumer.sinks.sql.options:SQL",
}
"""By name where each type of Tidemark is, as an entry point says it."""

WRITE_VALUES = ("id", "partition_key", "ttl", "version")
"""Fields of a Write that a route may set, and that not every sink reads."""

_EXTRAS = {"delta": "delta", "parquet": "parquet", "service_bus": "publisher"}
"""The extras that bring the packages of a type; `consumer` for the others."""

_Options = TypeVar("_Options", bound=Struct)


@dataclass(frozen=True)
class SinkContext:
    """What a sink gets besides its options."""

    settings: Mapping[str, str]
    """The app settings. An option such as `connection` names one of them, so that no file has secrets."""
    hub: str
    """The name of the hub, which ids made of positions contain."""
    stream: Stream
    name: str
    """The name of the sink in the file; the name of its type without a file."""
    alone: bool = True
    """Whether the consumer has no other sink. Among others a sink keeps no checkpoint of the consumer."""
    dry_run: bool = False
    """Whether nothing may be changed: `open` creates nothing, and `write` is never called."""
    shared: dict[tuple[str, ...], Any] = field(default_factory=dict)
    """Clients that several parts of a consumer share, such as the database of a SQL sink and its checkpoints."""


@dataclass(frozen=True)
class SinkType(Generic[_Options]):
    """One type of sink.

    `build` makes a sink of the type; it does no I/O. It raises SettingsError for options that cannot work. Options are a
    msgspec Struct: the fields are the keys of the sink's table in the file. `operations` are those that it can carry out, and
    `values` those fields of a Write that its `prepare` reads; a route that sets another one is refused. `ordered`: its routes are
    `by_partition`.
    """

    name: str
    options: type[_Options]
    build: Callable[[_Options, SinkContext], Sink]
    operations: Collection[Operation] = frozenset(Operation)
    values: Collection[str] = WRITE_VALUES
    ordered: bool = False


def find_sink_type(name: str) -> SinkType[Any]:
    """The type of a name. Raises SettingsError if there is none or more than one, or if it cannot be imported."""
    plug_ins = _plug_ins(tuple(sys.path))
    candidates = [plug_in for plug_in in plug_ins if plug_in.name == name]
    if name in BUILT_IN:
        candidates.insert(0, EntryPoint(name, BUILT_IN[name], GROUP))
    if not candidates:
        known = sorted({*BUILT_IN, *(plug_in.name for plug_in in plug_ins)})
        raise SettingsError(
            f"there is no type of sink '{name}'; accepted: {', '.join(known)}. A plug-in must be installed in the environment"
            f" of the consumer, with an entry point of the group {GROUP}"
        )
    if len(candidates) > 1:
        sources = " and ".join(_source_of(candidate) for candidate in candidates)
        raise SettingsError(
            f"the type of sink '{name}' exists twice, in {sources}: uninstall one of them, or rename its entry point"
        )
    return _load(candidates[0])


@cache
def _plug_ins(_path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Of the packages that are on the path: to look through them takes 4 ms of CPU, and a file of five sinks asks 27 times."""
    return tuple(entry_points(group=GROUP))


def _source_of(plug_in: EntryPoint) -> str:
    package = plug_in.dist.name if plug_in.dist else "Tidemark"
    return f"{package} ({plug_in.value})"


def _load(plug_in: EntryPoint) -> SinkType[Any]:
    where = f"the type of sink '{plug_in.name}' of {_source_of(plug_in)}"
    try:
        module = import_module(plug_in.module)
        kind: object = getattr(module, plug_in.attr)
    except Exception as error:  # the code of a plug-in may raise anything
        if plug_in.dist is None and isinstance(error, ModuleNotFoundError):
            hint = install_hint(_EXTRAS.get(plug_in.name, "consumer"))
            raise SettingsError(f"the sink {plug_in.name} needs the package {error.name}: {hint}") from error
        if plug_in.dist is None:
            raise
        raise SettingsError(f"{where} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(kind, SinkType):
        raise SettingsError(
            f"{where} is a {type(kind).__name__}; expected a SinkType of consumer.sinks.types"
        )
    if not (isinstance(kind.options, type) and issubclass(kind.options, Struct)):
        raise SettingsError(f"{where} has no msgspec Struct as its options")
    return kind


def read_options(kind: SinkType[_Options], table: Mapping[str, Any], where: str) -> _Options:
    """The options of a sink as its table in the file gives them, without the key `type`.

    Raises SettingsError, which names all problems, a line each. `where` is the table, such as `sinks.documents`.
    """
    refused = dict(_problems(kind, table))
    if not refused:
        try:
            return msgspec.convert(table, kind.options)
        except (msgspec.ValidationError, SettingsError) as error:  # of several fields together
            problems = str(error).splitlines()
    else:
        problems = [*refused.values(), *_of_the_others(kind, table, refused.keys())]
    raise SettingsError("\n".join(f"{where}: {problem}" for problem in problems))


def _of_the_others(kind: SinkType[Any], table: Mapping[str, Any], refused: Collection[str]) -> list[str]:
    """What the options say of the values whose types are right, but for what may follow from those that are `refused`."""
    missing = {
        option.encode_name: value
        for option in structs.fields(kind.options)
        if option.required and option.encode_name in refused
        for value in _STAND_INS
        if _is_of(option.type, value)
    }
    given = {name: value for name, value in table.items() if name not in refused}
    of_stand_ins = _lines_of(kind, missing)
    return [
        line
        for line in _lines_of(kind, {**missing, **given})
        if line not in of_stand_ins and not set(_WORD.findall(line)) & set(refused)
    ]


_STAND_INS: tuple[Any, ...] = ("x", 1, {}, [])
_WORD = re.compile(r"\w+")


def _is_of(type_: Any, value: Any) -> bool:
    try:
        msgspec.convert(value, type_)
    except msgspec.ValidationError:
        return False
    return True


def _lines_of(kind: SinkType[Any], table: Mapping[str, Any]) -> list[str]:
    try:
        msgspec.convert(table, kind.options)
    except SettingsError as error:
        return str(error).splitlines()
    except msgspec.ValidationError:  # a required option has no stand-in
        return []
    return []


def _problems(kind: SinkType[Any], table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong in each field, by its name; `convert` would stop at the first."""
    known = {option.encode_name: option for option in structs.fields(kind.options)}
    for name in sorted(table.keys() - known.keys()):
        hint = did_you_mean(name, known, f"accepted: {', '.join(known)}")
        yield name, f"'{name}' is no option of {kind.name}; {hint}"
    for name, option in known.items():
        if name not in table:
            if option.required:
                yield name, f"'{name}' is missing"
            continue
        try:
            msgspec.convert(table[name], option.type)
        except msgspec.ValidationError as error:
            yield name, f"'{name}': {why_refused(table[name], error, option.type)}"


def refuse(problems: Iterable[str], *checks: Callable[[], object]) -> None:
    """For `__post_init__` of options. Raises SettingsError with all problems, and those that the checks raise, a line each."""
    lines = list(problems)
    for check in checks:
        try:
            check()
        except (SettingsError, ValueError) as error:
            lines.append(str(error))
    if lines:
        raise SettingsError("\n".join(lines))
