"""The file that says what to try: candidates by named tables and by combinations of values. Pure.

Each candidate is the target's own table of tidemark.toml with some keys changed, and goes through the product's own
reader of the configuration: what it refuses there, it refuses here, in the same words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

import msgspec
from msgspec import Struct

from scaling.config import toml
from scaling.config.calendar_files import ReadFile, add_calendars
from scaling.config.policy import Policy, PolicySpec
from scaling.config.policy_file import build_config
from scaling.config.target_table import PlugIns
from tidemark.analysis.backtest.candidates import variation
from tidemark.analysis.backtest.replay.fleet import Model
from tidemark.foundation import settings_reader
from tidemark.foundation.durations import duration, parse_duration, positive_duration
from tidemark.foundation.settings_reader import ConfigError, Problem, Reader, Shared

BASELINE = "baseline"
"""The candidate that is the running policy, unchanged."""

_DECIDING = (
    variation.SETTING,
    "WEBSITE_TIME_ZONE",
)  # app settings that change policies without being named in them


class Candidate(Struct, frozen=True):
    """One policy to replay. `changes` are the keys of the target's table it sets, for people to copy."""

    name: str
    spec: PolicySpec
    changes: dict[str, Any] = {}


class Rules(Struct, frozen=True, kw_only=True):
    """What is judged how. `holdout` is the last share of each history, which recommendations never see.

    A candidate may keep `late_budget` of the messages waiting longer than the objective. `base` names the target
    whose policy all targets of the history are replayed with; `metric` the metric that is the queue. `initial` is the
    instances to begin with where the history does not tell; `idle_utilization` is for histories without arrivals.
    """

    holdout: float = 0.3
    late_budget: float = 0.01
    base: str | None = None
    metric: str | None = None
    idle_utilization: float | None = None
    initial: int | None = None


class Plan(Struct, frozen=True):
    """What a grid file asks for; `Targets.candidates` builds the candidates of a target."""

    rules: Rules
    model: Model
    estimate_rate: bool
    variants: tuple[Variant, ...]
    name: str


class Variant(Struct, frozen=True):
    """One candidate before it meets a target: tables that replace the target's, then single keys."""

    name: str
    tables: dict[str, Any]
    remove: tuple[str, ...]
    settings: tuple[variation.Setting, ...]


def read_grid(text: str, *, name: str) -> Plan:
    """Parses a grid file. Raises ConfigError with every problem found."""
    shared = Shared(name, settings_reader.locate(text), {})
    try:
        tree = toml.parsed(text)
    except ValueError as error:
        raise ConfigError([Problem(name, str(error))]) from None
    root = Reader(tree, "", shared)
    rules = root.found(
        holdout=_part,
        late_budget=settings_reader.share,
        base=settings_reader.as_text,
        metric=settings_reader.as_text,
        idle_utilization=settings_reader.share,
        initial=settings_reader.whole(0),
    )
    model, estimate = _model(root)
    variants = _variants(root, tree)
    root.finish()
    if shared.problems:
        raise ConfigError(shared.problems)
    return Plan(Rules(**rules), model, estimate, variants, name)


def _part(value: Any) -> float:
    part = settings_reader.share(value)
    if not 0 < part < 1:
        raise ValueError(f"found {value!r}; accepted are shares above 0 and below 1")
    return part


def _model(root: Reader) -> tuple[Model, bool]:
    reader = root.table("model")
    if reader is None:
        root.problem("model", "is missing; give at least service_rate (messages per second of one instance)")
        return Model(service_rate=1.0), False
    rate = reader.require("service_rate", None, _rate)
    options = reader.found(
        scaling_time=duration,
        start_up=duration,
        service_time=duration,
        slo=positive_duration,
        price=_number,
        flap_window=parse_duration,
    )
    model = Model(service_rate=rate or 1.0, **options)
    reader.finish()
    return model, rate is None


def _rate(value: Any) -> float | None:
    """None for "estimate"."""
    if value == "estimate":
        return None
    rate = _number(value)
    if not rate:
        raise ValueError(f"found {value!r}; accepted are messages per second above 0, or 'estimate'")
    return rate


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < float("inf"):
        raise ValueError(f"found {value!r}; accepted are numbers of 0 or more")
    return float(value)


def _variants(root: Reader, tree: Mapping[str, Any]) -> tuple[Variant, ...]:
    """The combinations of `[vary]`, then those of each `[candidates.NAME]`."""
    variants: list[Variant] = []
    plain: Reader | None = root.table("vary")
    named = root.table("candidates")
    if plain is not None:
        variants += _combined(root, "vary", "", {}, (), tree["vary"])
    for name in named.names() if named is not None else ():
        table = tree["candidates"][name]
        where = f"candidates.{name}"
        if name == BASELINE or not isinstance(table, Mapping):
            root.problem(
                where, f"a candidate is a table, and not called '{BASELINE}': that is the running policy"
            )
            continue
        changes = {key: value for key, value in table.items() if key not in {"vary", "remove"}}
        remove = table.get("remove", [])
        if not isinstance(remove, list) or not all(isinstance(key, str) for key in remove):
            root.problem(
                f"{where}.remove", f"found {remove!r}; a list of keys of the target's table is accepted"
            )
            continue
        variants += _combined(root, f"{where}.vary", name, changes, tuple(remove), table.get("vary", {}))
    if not variants:
        root.problem("", "nothing to try: add a table [vary] with lists of values, or [candidates.NAME]")
    if len(variants) > variation.MAX_CANDIDATES:
        root.problem("vary", f"{len(variants)} candidates; at most {variation.MAX_CANDIDATES:,} are accepted")
    return tuple(variants[: variation.MAX_CANDIDATES])


def _combined(
    root: Reader, where: str, name: str, tables: dict[str, Any], remove: tuple[str, ...], vary: Any
) -> list[Variant]:
    try:
        if not isinstance(vary, Mapping):
            raise variation.GridError(f"found {vary!r}; a table of lists is accepted")
        axes: list[variation.Axis] = variation.read_axes(vary)
        if variation.count(axes) > variation.MAX_CANDIDATES:
            raise variation.GridError(
                f"{variation.count(axes):,} combinations; at most {variation.MAX_CANDIDATES:,} are accepted"
            )
    except variation.GridError as error:
        root.problem(where, str(error))
        return []
    if not axes and not name:
        return []
    return [
        Variant(": ".join(filter(None, (name, variation.label(settings, axes)))), tables, remove, settings)
        for settings in variation.combinations(axes)
    ]


class Targets:
    """tidemark.toml as a source of candidates. App settings that are not set stand for themselves: options of
    collectors and scalers decide nothing, and are not checked here.
    """

    def __init__(
        self,
        text: str,
        *,
        name: str,
        settings: Mapping[str, str],
        plug_ins: PlugIns,
        read: ReadFile | None = None,
    ) -> None:
        """`read` gets the files that the text names. Raises ConfigError where the text is no TOML, or a file not accepted."""
        self._name = name
        # Workers are sent this: no more of the settings, some of which are secrets, than decide something.
        used = {key: value for key, value in settings.items() if key in _DECIDING or f"%{key}%" in text}
        self._settings = _Lenient(used)
        self._plug_ins = _AnyOptions(plug_ins)
        self._running: Mapping[str, Policy] | None = None
        try:
            self._tree = toml.parsed(text)
        except ValueError as error:
            raise ConfigError([Problem(name, str(error))]) from None
        self._lines = settings_reader.locate(text)
        shared = Shared(name, self._lines, {})
        add_calendars(self._tree, shared, read)
        if shared.problems:
            raise ConfigError(shared.problems)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tree.get("targets", {}))

    def table(self, target: str) -> Mapping[str, Any]:
        """The target's table as it is written, without the defaults of all targets."""
        table: Mapping[str, Any] = self._tree["targets"][target]
        return table

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_running": None}  # a thousand compiled policies are soon made again

    def baseline(self, target: str) -> PolicySpec:
        """The running policy. Raises ConfigError with the problems of all targets."""
        if self._running is None:
            shared = Shared(self._name, self._lines, self._settings)
            self._running = build_config(self._tree, shared, plug_ins=self._plug_ins).policies
        return _bare(self._running[target].spec)

    def candidates(self, target: str, plan: Plan, first: int = 0, last: int | None = None) -> list[Candidate]:
        """The baseline and every variant for one target, or those from one place to before another.

        Raises ConfigError with the problems of all of them.
        """
        candidates: list[Candidate] = []
        if not first:
            only = {**self._tree, "targets": self._followed(target) | {target: self._tree["targets"][target]}}
            shared = Shared(self._name, self._lines, self._settings)
            candidates.append(Candidate(BASELINE, self._built(target, only, shared)))
        problems: dict[str, Problem] = {}
        for variant in plan.variants[max(first - 1, 0) : None if last is None else max(last - 1, 0)]:
            where = f"{plan.name}, candidate '{variant.name}'"
            try:
                candidates.append(self._candidate(target, variant, where))
            except variation.GridError as error:
                problems.setdefault(str(error), Problem(where, str(error)))
            except ConfigError as error:
                for problem in error.problems:
                    problems.setdefault(str(problem).removeprefix(where), problem)
        if problems:
            raise ConfigError(list(problems.values()))
        return candidates

    def _candidate(self, target: str, variant: Variant, where: str) -> Candidate:
        defaults, targets = self._tree.get("defaults", {}), self._tree["targets"]
        table = settings_reader.merged(defaults, targets[target])
        table = {key: value for key, value in table.items() if key not in variant.remove}
        table |= {key: value for key, value in variant.tables.items() if key != "metrics"}
        metrics = {**table.get("metrics", {})}
        for name, metric in variant.tables.get("metrics", {}).items():
            metrics[name] = {**metrics.get(name, {}), **metric}
        table["metrics"] = metrics
        rule_settings = [s for s in variant.settings if s.path != (variation.SETTING,)]
        schedule = {s.path[0]: str(s.value) for s in variant.settings if s.path == (variation.SETTING,)}
        shared = Shared(where, {}, _Lenient({**self._settings, **schedule}))
        tables = self._followed(target) | {target: variation.applied(table, rule_settings)}
        spec = self._built(target, {"version": 1, "targets": tables}, shared)
        changes = {**variant.tables, **{".".join(s.path): s.value for s in variant.settings}}
        return Candidate(variant.name, spec, changes)

    def _followed(self, target: str) -> dict[str, Any]:
        """The tables, defaults included, of targets that this one follows, directly or by another."""
        defaults = self._tree.get("defaults", {})
        targets, followed, left = self._tree["targets"], dict[str, Any](), [target]
        while left:
            metrics = targets[left.pop()].get("metrics", {})
            for metric in metrics.values() if isinstance(metrics, dict) else ():
                other = metric.get("target") if isinstance(metric, dict) else None
                if isinstance(other, str) and other in targets and other not in followed:
                    followed[other] = settings_reader.merged(defaults, targets[other])
                    left.append(other)
        return followed

    def _built(self, target: str, tree: Mapping[str, Any], shared: Shared) -> PolicySpec:
        return _bare(build_config(tree, shared, plug_ins=self._plug_ins).policies[target].spec)


def _bare(spec: PolicySpec) -> PolicySpec:
    metrics = {name: msgspec.structs.replace(metric, options={}) for name, metric in spec.metrics.items()}
    return msgspec.structs.replace(spec, scaler_options={}, metrics=metrics)


class Candidates:
    """The candidates of each base, in their order. `kept` ones are built once; others when they are asked for, since those of
    a thousand bases are millions.
    """

    def __init__(self, targets: Targets, plan: Plan, kept: Iterable[str] = ()) -> None:
        """Raises ConfigError."""
        self.source = targets, plan
        self.names = (BASELINE, *(variant.name for variant in plan.variants))
        self._kept = {base: targets.candidates(base, plan) for base in kept}

    def some(self, base: str, first: int = 0, last: int | None = None) -> list[Candidate]:
        """Those from one place to before another. Raises ConfigError."""
        if base in self._kept:
            return self._kept[base][first:last]
        targets, plan = self.source
        return targets.candidates(base, plan, first, last)

    def named(self, base: str, name: str) -> Candidate:
        """Raises ConfigError, and ValueError for what is no candidate's name."""
        place = self.names.index(name)
        return self.some(base, place, place + 1)[0]

    def check(self, base: str, metric: str) -> None:
        """Raises ConfigError for candidates that cannot be, GridError for one without the metric."""
        for candidate in self.some(base):
            if metric not in candidate.spec.metrics:
                raise variation.GridError(
                    f"candidate '{candidate.name}' of {base}: has no metric '{metric}', the queue"
                )


class _Lenient(dict[str, str]):
    """App settings of which none is missing: what is not set reads as it is written."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> str:
        return f"%{name}%"


class _AnyOptions:
    """Plug-ins that must exist; of their options only the names are checked."""

    def __init__(self, real: PlugIns) -> None:
        self._real = real

    def collector_class(self, kind: str) -> type[Any]:
        real: Any = self._real.collector_class(kind)
        unchecked: type[Any] = _unchecked(real)
        return unchecked

    def scaler_class(self, kind: str) -> type[Any]:
        real: Any = self._real.scaler_class(kind)
        unchecked: type[Any] = _unchecked(real)
        return unchecked


@lru_cache(maxsize=64)
def _unchecked(cls: Any) -> Any:
    names = [field.encode_name for field in msgspec.structs.fields(cls.Params)]
    params = msgspec.defstruct("Params", [(name, Any, None) for name in names], kw_only=True)
    kept = {name: getattr(cls, name) for name in ("COUNTS", "DEFAULT_COUNT", "GROWING") if hasattr(cls, name)}
    if hasattr(cls, "timing"):  # decides what a window is, so it is read as far as it can be
        kept["timing"] = partial(_timing, cls)
    return type(cls.__name__, (), {"Params": params, **kept})


def _timing(cls: Any, given: Any) -> tuple[float, float]:
    known = {name: value for name, value in msgspec.structs.asdict(given).items() if value is not None}
    with suppress(msgspec.ValidationError, TypeError, ValueError):
        return cls.timing(msgspec.convert(known, cls.Params))  # type: ignore[no-any-return]
    return 0.0, 0.0


def metric_of(spec: PolicySpec, chosen: str | None) -> str:
    """The metric that is the queue: the chosen one, the only one, or the one called `backlog`. Raises GridError."""
    names: Sequence[str] = tuple(spec.metrics)
    if chosen is not None and chosen in names:
        return chosen
    if chosen is None and len(names) == 1:
        return names[0]
    if chosen is None and "backlog" in names:
        return "backlog"
    choice = f"'{chosen}'" if chosen is not None else "no single metric"
    raise variation.GridError(
        f"{spec.target}: {choice}; set `metric` to the one that counts waiting messages: {', '.join(names)}"
    )
