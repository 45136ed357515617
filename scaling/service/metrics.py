"""The autoscaler's OpenTelemetry metrics, read off its log lines. `python -m scaling.service.metrics` prints their part of
docs/metrics.md.

What a line says in fields (docs/log-fields.md) is what is measured, so that log and metrics cannot differ. Who
decided a report measures it, and nobody else: a target's decisions go from one instance of the app to another.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

from msgspec import Struct
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter_provider

from tidemark.foundation.azure.exporting import azure_monitor_provider
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.log.tail import Line
from tidemark.foundation.sanitize import shorten

METER = "tidemark.autoscaler"
EXPORTER = "TIDEMARK_METRICS_EXPORTER"
"""`none`; `opentelemetry`: to the meter provider that the process has set up; `azure_monitor`."""

Fields: TypeAlias = Mapping[str, Any]
Measured: TypeAlias = Iterator[tuple[float, dict[str, str]]]
Attributes: TypeAlias = tuple[tuple[str, str], ...]


class Instrument(Struct, frozen=True):
    """One metric: of lines of one kind, read by `read`, with attributes besides the target."""

    name: str
    kind: str
    unit: str
    of: str
    description: str
    read: Callable[[Fields], Measured]


def _field(name: str) -> Callable[[Fields], Measured]:
    def read(fields: Fields) -> Measured:
        if (value := fields.get(name)) is not None:
            yield value, {}

    return read


def _once(attribute: str) -> Callable[[Fields], Measured]:
    def read(fields: Fields) -> Measured:
        yield 1, {attribute: str(fields.get("reason", ""))}

    return read


def _of_rules(value: str) -> Callable[[Fields], Measured]:
    def read(fields: Fields) -> Measured:
        for evidence in fields.get("evidence") or ():
            yield evidence[value], {name: evidence[name] for name in ("rule", "metric", "comparator")}

    return read


def _by_metric(field: str) -> Callable[[Fields], Measured]:
    def read(fields: Fields) -> Measured:
        for name, value in (fields.get(field) or {}).items():
            yield value, {"metric": name}

    return read


def _late(fields: Fields) -> Measured:
    for level in fields.get("service_levels") or ():
        yield level["late_today"] / 100.0, {"rule": level["rule"]}


def _unread(fields: Fields) -> Measured:
    for failure in fields.get("failures") or ():
        yield 1, {"metric": failure["metric"], "reason": str(failure["reason"])}


def _calls(name: str) -> Callable[[Fields], Measured]:
    def read(fields: Fields) -> Measured:
        for budget in fields.get("calls") or ():
            of = {"api": budget["api"], "scope": budget["scope"], "process": str(fields.get("process", ""))}
            if name != "budget":
                yield budget[name], of
            elif budget["budget"] is not None:
                yield budget["budget"] * 60.0 / budget["seconds"], of

    return read


INSTRUMENTS: tuple[Instrument, ...] = tuple(
    Instrument(f"autoscaler.{name}", kind, unit, of, description, read)
    for name, kind, unit, of, description, read in (
        (
            *("capacity.current", "gauge", "{unit}", "decision"),
            "Capacity a decision found: instances, or request units; missing while it is unknown",
            _field("current"),
        ),
        ("capacity.desired", "gauge", "{unit}", "decision", "Capacity it asked for", _field("desired")),
        (
            *("capacity.proposed", "gauge", "{unit}", "decision"),
            "What the rules asked for before any limit",
            _field("proposed"),
        ),
        ("capacity.minimum", "gauge", "{unit}", "decision", "Lower bound at that time", _field("minimum")),
        ("capacity.maximum", "gauge", "{unit}", "decision", "Upper bound at that time", _field("maximum")),
        (
            *("metric", "gauge", "1", "decision"),
            "Newest value of each metric, in its own unit (attribute `metric`)",
            _by_metric("metrics"),
        ),
        (
            *("metric.duration", "gauge", "s", "decision"),
            "Newest value of each metric in seconds, such as the age of the oldest message (attribute `metric`)",
            _by_metric("durations"),
        ),
        (
            *("rule.value", "gauge", "1", "decision"),
            "What a rule read from a window (attributes `rule`, `metric`, `comparator`)",
            _of_rules("value"),
        ),
        (
            *("rule.threshold", "gauge", "1", "decision"),
            "What it compared that with, at the present capacity (the same attributes)",
            _of_rules("threshold"),
        ),
        (
            *("late", "gauge", "1", "decision"),
            "Share of the day's messages that waited longer than a rule `service_level` allows (attribute `rule`), 0 to 1",
            _late,
        ),
        ("decisions", "counter", "{decision}", "decision", "Decisions (attribute `reason`)", _once("reason")),
        (
            *("effects", "counter", "{effect}", "effect"),
            "What became of actions, each delivery of one (attribute `outcome`)",
            _once("outcome"),
        ),
        (
            *("findings", "counter", "{finding}", "verify"),
            "What the checks found, such as an external change (attribute `reason`)",
            _once("reason"),
        ),
        (
            *("reads.failed", "counter", "{read}", "report"),
            "Metrics that could not be read (attributes `metric`, `reason`)",
            _unread,
        ),
        (
            "poison",
            "gauge",
            "{message}",
            "poison",
            "Messages in the poison queues, while there are any",
            _field("count"),
        ),
        (
            *("calls", "gauge", "{call}", "calls"),
            "Calls within a minute (attributes `api`, `scope`, `process`)",
            _calls("last_minute"),
        ),
        (
            *("calls.budget", "gauge", "{call}", "calls"),
            "What the [budget](calls.md) of a process comes to within a minute (the same attributes)",
            _calls("budget"),
        ),
        (
            *("calls.refused", "gauge", "{call}", "calls"),
            "Calls within a minute that were not made, for want of budget or because a service asked to wait (the same)",
            _calls("refused_minute"),
        ),
    )
)

_BY_KIND = {
    kind: [instrument for instrument in INSTRUMENTS if instrument.of == kind]
    for kind in {instrument.of for instrument in INSTRUMENTS}
}

SHOWN_FOR = 900.0
"""Seconds for which a gauge shows what was measured last: another instance may decide upon the target by now."""

AGE = "autoscaler.decision.age"
AGE_WORDS = (
    "Time since the report of the last decision upon a target, of those this process made: of several instances the"
    " lowest counts"
)


class AutoscalerMetrics:
    """Feeds the instruments. Without a `provider`, those of the process, if it has set one up."""

    def __init__(self, clock: Callable[[], float], provider: MeterProvider | None = None) -> None:
        self._clock = clock
        self._decided: dict[str, float] = {}
        self._shown: dict[str, dict[Attributes, tuple[float, float]]] = defaultdict(dict)
        self._counters = {}
        meter = (provider or get_meter_provider()).get_meter(METER)
        for instrument in INSTRUMENTS:
            if instrument.kind == "counter":
                self._counters[instrument.name] = meter.create_counter(
                    instrument.name, instrument.unit, instrument.description
                )
            else:
                observer = partial(self._observed, instrument.name)
                meter.create_observable_gauge(
                    instrument.name, [observer], instrument.unit, instrument.description
                )
        meter.create_observable_gauge(AGE, [self._ages], "s", AGE_WORDS)

    def record(self, lines: Iterable[str]) -> None:
        """Measures what the lines of one invocation say."""
        now = self._clock()
        for line in lines:
            if not isinstance(line, Line):
                continue
            target = {"target": line.fields["target"]} if "target" in line.fields else {}
            if line.kind == "decision" and target:
                self._decided[target["target"]] = line.fields["at"]
            for instrument in _BY_KIND.get(line.kind, ()):
                for value, more in instrument.read(line.fields):
                    attributes = target | more
                    if instrument.kind == "counter":
                        self._counters[instrument.name].add(value, attributes)
                    else:
                        self._shown[instrument.name][tuple(attributes.items())] = value, now

    def _observed(self, name: str, _: CallbackOptions) -> Iterator[Observation]:
        since, shown = self._clock() - SHOWN_FOR, self._shown[name]
        for attributes, (value, at) in list(shown.items()):
            if at >= since:
                yield Observation(value, dict(attributes))
            else:
                shown.pop(attributes, None)

    def _ages(self, _: CallbackOptions) -> Iterator[Observation]:
        now = self._clock()
        for target, at in list(self._decided.items()):
            yield Observation(max(now - at, 0.0), {"target": target})


def metrics_of(settings: Mapping[str, str], clock: Callable[[], float]) -> AutoscalerMetrics:
    """Raises SettingsError naming the setting that is wrong."""
    exporter = settings[EXPORTER].strip()
    if exporter == "opentelemetry":
        return AutoscalerMetrics(clock)
    if exporter == "azure_monitor":
        return AutoscalerMetrics(clock, azure_monitor_provider(EXPORTER, METER, settings))
    raise SettingsError(
        f"{EXPORTER} is '{shorten(exporter, 60)}'; accepted: none, opentelemetry, azure_monitor"
    )


HEAD = f"""
## The autoscaler

All instruments belong to the meter `{METER}`, are fed where a decision, an effect or a check is logged, and carry `target`, except for
`autoscaler.poison` and those of calls, which are fed every ten minutes, and every minute while calls are refused. They say what the fields of [the log lines](log-fields.md) say. `{EXPORTER}` switches them on, see
[settings](settings.md#settings-of-the-app). A gauge shows what a process measured last, for {SHOWN_FOR / 60:g} minutes: of a
target that nobody decides upon any more it is absent. Where the app has several instances, the newest is from the one whose
`{AGE}` is lowest.

| name | kind | unit | meaning |
|---|---|---|---|
"""


def document() -> str:
    """The second part of docs/metrics.md."""
    listed = [
        (instrument.name, instrument.kind, instrument.unit, instrument.description)
        for instrument in INSTRUMENTS
    ]
    lines = (
        f"| `{name}` | {kind} | `{unit}` | {words} |\n"
        for name, kind, unit, words in (*listed, (AGE, "gauge", "s", AGE_WORDS))
    )
    return HEAD + "".join(lines)


if __name__ == "__main__":
    sys.stdout.write(document())
