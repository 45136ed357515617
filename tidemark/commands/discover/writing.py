"""From what was found to a first tidemark.toml: targets in dry-run, each by a queue that is a guess or by a number of its own, and
all else as comments.

Pure. What is written is accepted by `tidemark lint` once the app settings it names are there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher

from msgspec import Struct

from scaling.config.toml import as_toml, bare_key, distinct_keys
from tidemark.commands.discover.found import Discovery, FoundSource, FoundTarget
from tidemark.foundation.sanitize import one_line
from tidemark.foundation.wording import count_text


class Signal(Struct, frozen=True):
    """A number of Azure Monitor that a kind can go by: of the resource itself, or of what it is a part of. `share` is how much of
    what there is it tells, so that more units lower it. `decide` is what only its owner knows.
    """

    name: str
    metric: str
    aggregation: str
    unit: str
    target: int
    meaning: str
    decide: tuple[str, ...]
    share: bool = True
    empty: int | None = None


SIGNALS = {
    "cosmos_throughput": Signal(
        "utilization",
        "NormalizedRUConsumption",
        "maximum",
        "%",
        70,
        "percent of its request units in use, where it is used most",
        (
            "at 100 % nobody knows how much more is wanted, so it goes up in several steps; partitions that are used unevenly",
            "show the busiest; beyond 10,000 RU/s for each partition there is, an increase splits partitions for good",
        ),
    ),
    "event_hubs_throughput_units": Signal(
        "incoming",
        "IncomingBytes",
        "total",
        "bytes",
        48_000_000,
        "bytes a minute that one unit takes in",
        (
            "a unit takes in 1 MB or 1,000 events a second, whichever is reached first, and gives out 2 MB: with small events",
            "take IncomingMessages and 48000; auto-inflate has to be off, or it decides, too",
        ),
        share=False,
        empty=0,
    ),
    "service_bus_messaging_units": Signal(
        "cpu",
        "NamespaceCpuUsage",
        "maximum",
        "%",
        60,
        "percent of the processor of its units",
        (
            "Microsoft's rule of thumb is more above 70 % and less below 20 %; units are 1, 2, 4, 8 or 16 and billed by the hour;",
            "a queue that grows although it is received from may tell sooner",
        ),
    ),
}
"""By kind: what it goes by where nobody knows better."""

BACKLOGS = ("service_bus_queue", "service_bus_subscription", "storage_queue")

LEFT_OUT_TOLD = 5
"""Examples of what is left out, when nothing else was found. Chosen: they fit on one screen."""

PER_UNIT = 100
"""Messages that may wait per instance in a proposed policy. Chosen to begin with: `tidemark advise` finds the number from load."""

AT_ONCE, TAKES = 16, "10s"
"""Messages that an instance processes at once, and how long one takes, to begin with. 16 is `maxConcurrentCalls` of Functions, and
`batchSize` of their storage queues, by default. Chosen: a time that is too long for most.
"""

LISTED = 200
"""Entries of a kind that are listed as comments. Chosen: a person reads the file."""


_PATTERN = {"*", "?"}
"""In a name that stands for many queues, of which nobody knows how what is processed is spread."""


class Written(Struct, frozen=True):
    """`text` is the file, `settings` the app settings that it names and that are not there yet, with their values."""

    text: str
    settings: dict[str, str]
    targets: tuple[str, ...]


def written(resources: Discovery, settings: Mapping[str, str]) -> Written:
    """Raises ValueError where there is nothing to scale. `settings` are those there are: a connection that leads to the
    same place is used by its name.
    """
    if not resources.targets:
        left_out = "".join(f"; {name}" for name in resources.left_out[:LEFT_OUT_TOLD])
        raise ValueError(
            f"nothing was found that can be scaled in subscription {resources.subscription}{left_out}"
        )
    connections = _Connections(settings)
    backlogs = [source for source in resources.sources if source.kind in BACKLOGS]
    names = _names(resources.targets)
    blocks = [
        list(_target(target, names[target.resource_id], _guess(target, backlogs), connections))
        for target in resources.targets
    ]
    needed = dict(connections.needed)  # what is only listed needs its settings once it is used
    named = resources.command == "init"  # by whoever asks: there is nothing to choose from
    listed = [", ".join(_metric(source, connections)) for source in resources.sources if not named]
    rest = [
        *_commented("Backlogs that were found, to be put in place of a guess", listed),
        *_commented("Left out", resources.left_out),
        *_commented("Could not be read", resources.unread),
    ]
    head = _head(resources, len(backlogs), needed)
    text = "\n".join([*head, *(line for block in blocks for line in ("", *block)), *rest]) + "\n"
    return Written(text, needed, tuple(names.values()))


def _head(resources: Discovery, backlogs: int, needed: Mapping[str, str]) -> Iterator[str]:
    yield f"# A first tidemark.toml, written by `tidemark {resources.command}` for subscription {one_line(resources.subscription)}."
    if resources.command != "init":
        yield f"# It has {count_text(len(resources.targets), 'target')}, and as backlogs {count_text(backlogs, 'queue')} to choose from."
    yield "# Nothing is changed: every target is in dry-run. Look at each line that says `guess`, see in the log what would be"
    yield "# decided, and take `dry_run` away, one target at a time. Every setting is explained in docs/policies.md."
    if needed:
        yield "#"
        yield "# App settings that it needs besides those of the app; they hold no secrets, the app's identity is what opens:"
        yield from (f"#   {name} = {value}" for name, value in needed.items())
    yield "version = 1"
    yield ""
    yield "[defaults]"
    yield "dry_run = true"


def _target(
    target: FoundTarget, name: str, source: FoundSource | None, connections: _Connections
) -> Iterator[str]:
    size = 1 if target.size is None else target.size
    maximum = max(2 * size, 3)
    if target.most is not None:
        maximum = max(min(maximum, target.most), 1)
    table = f"targets.{bare_key(name)}"
    yield f"# {one_line(target.note)}{'' if target.size is None else f'; it has {size} now'}."
    yield f"[{table}]"
    if target.kind in {"app_service_plan", "cosmos_throughput"}:
        yield f'scaler = "{target.kind}"'
    else:
        yield 'scaler = "azure_resource"'
        yield f'kind = "{target.kind}"'
    yield f"resource_id = {_text(target.resource_id)}"
    yield f"minimum = {min(size, target.least or 1)} # guess: what has to be there however little there is to do"
    yield f"maximum = {maximum} # guess: what the bill may be, and what a database behind it can take"
    yield ""
    if (signal := SIGNALS.get(target.kind)) is not None:
        yield from _by_number(target, table, signal)
        return
    if source is None:
        yield "# No queue was found: a schedule to begin with."
        yield f"[[{table}.rules]]"
        yield 'type = "schedule"'
        held = min(max(size, 1), maximum)
        yield "periods = ["
        yield f'    {{ days = "mon-fri", from = "08:00", to = "18:00", floor = {held} }},'
        yield f'    {{ from = "18:00", to = "08:00", ceiling = {held} }},'
        yield "]"
        return
    yield f"[{table}.metrics.backlog] # guess: by its name, of those that were found"
    yield from _metric(source, connections)
    yield ""
    if size == 0 or target.kind != "app_service_plan":  # `service_level` keeps one, and changes at any time
        yield f"[[{table}.rules]]"
        yield 'type = "target_per_unit"'
        yield 'metric = "backlog"'
        yield f"target = {PER_UNIT} # guess: messages that one of them is meant to have waiting"
        return
    yield from _by_wait(source, name, table, connections)


def _by_wait(source: FoundSource, name: str, table: str, connections: _Connections) -> Iterator[str]:
    """The rule `service_level`, with the best source for how long a message takes."""
    takes = f'takes = "{TAKES}" # guess: how long a message takes; rather too long than too short'
    if not source.sessions:
        yield f"[{table}.metrics.waits] # for how long the oldest message waits"
        yield from _metric(source, connections)
        yield 'count = "oldest_age"'
        yield 'unit = "s"'
        if source.kind != "storage_queue" and not (source.partitioned or _PATTERN & set(source.path[-1])):
            yield f"concurrency = {AT_ONCE} # guess: as below"
            yield f"instances_of = {_text(name)}"
        yield ""
        takes = 'oldest_age = "waits"'
    elif source.kind == "service_bus_queue":
        yield f"[{table}.metrics.completed] # in each minute, some minutes late: shows how long a message takes"
        yield 'collector = "azure_monitor"'
        yield f"resource_id = {_text(source.resource_id.rpartition('/queues/')[0])}"
        yield 'metric = "CompleteMessage"'
        yield 'aggregation = "total"'
        yield f"dimensions = {{ EntityName = {_text(source.path[0])} }}"
        yield "empty = 0"
        yield ""
        takes = 'outgoing = "completed"'
    yield f"[[{table}.rules]]"
    yield 'type = "service_level"'
    yield 'backlog = "backlog"'
    yield takes
    yield 'wait = "5m" # guess: no message should wait longer ...'
    yield 'late = "1%" # ... but for this share of them'
    yield f"concurrency = {AT_ONCE} # guess: messages that one of them processes at once (maxConcurrentCalls, batchSize)"


def _by_number(target: FoundTarget, table: str, signal: Signal) -> Iterator[str]:
    account, _, _ = target.resource_id.partition("/sqlDatabases/")
    yield "# To decide: " + signal.decide[0]
    yield from (f"# {line}" for line in signal.decide[1:])
    yield f"[{table}.metrics.{signal.name}]"
    yield 'collector = "azure_monitor"'
    yield f"resource_id = {_text(account)}"
    yield f'metric = "{signal.metric}"'
    yield f'aggregation = "{signal.aggregation}"'
    if target.labels:
        yield f"dimensions = {{ {', '.join(f'{name} = {_text(value)}' for name, value in target.labels)} }}"
    yield f'unit = "{signal.unit}"'
    if signal.share:
        yield "per_instance = true"
    if signal.empty is not None:
        yield f"empty = {signal.empty} # where there is no traffic there is no number"
    yield ""
    yield f"[[{table}.rules]]"
    yield 'type = "target_per_unit"'
    yield f'metric = "{signal.name}"'
    if signal.share:
        yield 'mode = "value"'
    yield f"target = {signal.target} # guess: {signal.meaning}"


def _metric(source: FoundSource, connections: _Connections) -> Iterator[str]:
    connection = connections.of(source)
    yield f'collector = "{source.kind}"'
    yield f"connection = {_text(connection)}"
    keys = {
        "service_bus_queue": ("queue",),
        "service_bus_subscription": ("topic", "subscription"),
        "storage_queue": ("queue",),
        "event_hub_lag": ("event_hub", "consumer_group"),
    }[source.kind]
    yield from (f"{key} = {_text(value)}" for key, value in zip(keys, source.path, strict=True))


def _guess(target: FoundTarget, sources: Iterable[FoundSource]) -> FoundSource | None:
    """The queue whose name is nearest; of equal ones that of the same resource group, then the first."""

    def nearness(source: FoundSource) -> tuple[float, bool]:
        shared = len(_words(target.name) & _words(" ".join(source.path)))
        alike = SequenceMatcher(None, target.name.casefold(), source.path[0].casefold()).ratio()
        groups = {tuple(resource.resource_id.casefold().split("/")[:5]) for resource in (source, target)}
        return shared + alike, len(groups) == 1

    return max(sources, key=nearness, default=None)


def _words(text: str) -> set[str]:
    words = {word for word in re.split(r"[^a-z0-9]+", text.casefold()) if len(word) > 2}
    return words - {"plan", "queue", "app", "prod"}


def _commented(title: str, lines: Iterable[str]) -> Iterator[str]:
    kept = [one_line(line) for line in lines]
    if not kept:
        return
    yield ""
    yield f"# {title}:"
    yield from (f"#   {line}" for line in kept[:LISTED])
    if len(kept) > LISTED:
        yield f"#   and {len(kept) - LISTED} more"


def _names(targets: Iterable[FoundTarget]) -> dict[str, str]:
    """A name of its own for each, by resource id: those of other resource groups may be the same."""
    listed = tuple(targets)
    names = [re.sub(r"[^\w.-]+", "-", target.name)[:180].strip("-") or "target" for target in listed]
    return {target.resource_id: name for target, name in zip(listed, distinct_keys(names), strict=True)}


def _text(value: str) -> str:
    return as_toml(one_line(value))


class _Connections:
    """Names of connections by host: of app settings that lead there already, or made of the resource's name."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._known = dict(_hosts(settings))
        self._taken = {name.partition("__")[0].casefold() for name in settings}
        self.needed: dict[str, str] = {}

    def of(self, source: FoundSource) -> str:
        host = source.host.casefold()
        if host not in self._known:
            name = self._free(source)
            self._known[host] = name
            self._taken.add(name.casefold())
            storage = source.kind == "storage_queue"
            self.needed[f"{name}__{'queueServiceUri' if storage else 'fullyQualifiedNamespace'}"] = (
                f"https://{source.host}/" if storage else source.host
            )
        return self._known[host]

    def _free(self, source: FoundSource) -> str:
        words = re.split(r"[^A-Za-z0-9]+", source.host.partition(".")[0])
        base = "".join(word[:1].upper() + word[1:] for word in words) or "Connection"
        base = base if base[0].isalpha() else f"C{base}"
        count, name = 1, base
        while name.casefold() in self._taken:
            count += 1
            name = f"{base}{count}"
        return name


def _hosts(settings: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Where connections lead that there are already."""
    for setting, value in settings.items():
        name, _, part = setting.partition("__")
        if part == "fullyQualifiedNamespace":
            yield value.strip().casefold(), name
        elif part == "queueServiceUri":
            yield value.strip().rstrip("/").rpartition("//")[2].casefold(), name
        elif not part and (match := re.search(r"\bEndpoint=sb://([^/;]+)", value)):
            yield match[1].casefold(), name
        elif (
            not part and (match := re.search(r"\bAccountName=(\w+)", value)) and "QueueEndpoint" not in value
        ):
            yield f"{match[1]}.queue.core.windows.net".casefold(), name
