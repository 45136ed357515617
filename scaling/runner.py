"""The shell around the core: load, decide, log, save, emit; collect, apply, verify. No Azure imports.

Order of the writes of an evaluation, and why a crash between any two of them is harmless:

    log row      keyed by the report, so deciding again replaces it
    state        guarded by ETags, with the action as pending: from here on it cannot be lost
    message      emitted by the function's queue binding; a second delivery of the report finds itself
                 decided and emits the same pending action again

The scaler's side mirrors it: platform (absolute, idempotent), log row, state.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from scaling import codec, explain
from scaling.config import Config
from scaling.controls import active_pause
from scaling.logic import decide
from scaling.model import (
    Capacity,
    Direction,
    Effect,
    EffectOutcome,
    LogEntry,
    LogKind,
    MetricFailure,
    MetricSample,
    MetricsReport,
    ScaleAction,
    TargetState,
    decision_id,
)
from scaling.policy import Policy
from scaling.ports import (
    CollectError,
    Collector,
    ConflictError,
    ControlStore,
    DecisionLog,
    PoisonQueues,
    Reading,
    Scaler,
    ScalerError,
    Snapshot,
    StateStore,
)
from scaling.replay import encode_inputs
from scaling.state import absorb, advance, already_evaluated, record_effect, review
from scaling.window import Window

ATTEMPTS = 8
"""Tries to save against concurrent writers before the message goes back to its queue."""

READ_DEADLINE = 30.0
"""Seconds one read of a metric or a capacity may take before it counts as failed."""

CONCURRENT_READS = 32

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class MetricSource(Struct, frozen=True):
    """Where one metric of one target comes from: which collector, and which count of its reading."""

    target: str
    metric: str
    entity: str
    count: str


class Ports(Struct, frozen=True):
    """The outside world, as adapters. `collectors` by entity, `scalers` by target."""

    collectors: Mapping[str, Collector]
    sources: Sequence[MetricSource]
    scalers: Mapping[str, Scaler]
    states: StateStore
    controls: ControlStore
    log: DecisionLog
    poison: PoisonQueues


class Outcome(Struct, frozen=True):
    """What a function has to do at its end: messages to put out, lines to log."""

    messages: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class Autoscaler:
    """One instance per process; every method may run concurrently with every other, here and elsewhere."""

    def __init__(self, config: Config, ports: Ports, *, clock: Callable[[], float]) -> None:
        self.config = config
        self.ports = ports
        self.clock = clock
        self._sources: dict[str, list[MetricSource]] = defaultdict(list)
        for source in ports.sources:
            self._sources[source.target].append(source)

    # Collecting

    async def collect(self) -> Outcome:
        """Reads every entity and every capacity once; one report per target."""
        now = round(self.clock(), 3)  # the decision id names the report's time to the millisecond
        readings, capacities = await asyncio.gather(
            each(self.ports.collectors, lambda _, collector: _reading(collector, now)),
            each(self.ports.scalers, lambda target, scaler: _capacity(scaler, target, now)),
        )
        messages: list[str] = []
        lines: list[str] = []
        warnings: list[str] = []
        for target in self.config.policies:
            report = self._report(target, now, readings, capacities[target])
            messages.append(codec.encode_report(report))
            lines.append(_report_line(report))
            warnings.extend(f"collector {target}: {f.metric}: {f.message}" for f in report.failures)
            if report.capacity_error is not None:
                warnings.append(f"collector {target}: capacity: {report.capacity_error}")
        return Outcome(tuple(messages), tuple(lines), tuple(warnings))

    def _report(
        self,
        target: str,
        now: float,
        readings: Mapping[str, Reading | CollectError],
        capacity: Capacity | str,
    ) -> MetricsReport:
        samples: list[MetricSample] = []
        failures: list[MetricFailure] = []
        for source in self._sources[target]:
            reading = readings[source.entity]
            if isinstance(reading, CollectError):
                failures.append(MetricFailure(source.metric, now, str(reading), reading.reason))
            elif source.count not in reading.values:
                text = f"the reading has no '{source.count}'; it has {', '.join(reading.values)}"
                failures.append(MetricFailure(source.metric, now, text))
            else:
                samples.append(MetricSample(source.metric, reading.at, reading.values[source.count]))
        known, error = (capacity, None) if isinstance(capacity, Capacity) else (None, capacity)
        return MetricsReport(target, now, tuple(samples), tuple(failures), known, error)

    # Deciding

    async def evaluate(self, message: str | bytes) -> Outcome:
        """Decides upon one report. Raises MessageError for an unreadable one, ConflictError when other
        writers kept winning, StoreUnavailableError; the queue then delivers the report again.
        """
        report = codec.decode_report(message)
        policy = self.config.policies.get(report.target)
        if policy is None:
            return Outcome(warnings=(f"scaling {report.target}: not in the configuration; report dropped",))
        for _ in range(ATTEMPTS):
            loaded = await self.ports.states.load(report.target)
            if already_evaluated(loaded.state, report.at):
                return _emitted_again(loaded.state, report)
            decided = self._decide(policy, loaded, report)
            await self.ports.log.append([decided.entry])
            try:
                await self.ports.states.save(loaded, decided.state, decided.windows)
            except ConflictError:
                continue
            messages = (codec.encode_action(decided.action),) if decided.action is not None else ()
            return Outcome(messages, (decided.entry.line,), decided.warnings)
        raise ConflictError(f"scaling {report.target}: state changed {ATTEMPTS} times while deciding")

    def _decide(self, policy: Policy, loaded: Snapshot, report: MetricsReport) -> _Decided:
        now = self.clock()
        before = loaded.state
        warnings = [f"scaling {policy.target}: stored row '{row}' was unreadable" for row in loaded.corrupt]
        if "state" in loaded.corrupt:
            before = TargetState(corrupt_since=now)
        controls = loaded.controls
        windows, state = absorb(policy, loaded.windows, before, report, now=now, controls=controls)
        identity = decision_id(report.target, report.at)
        recommendation = decide(policy, windows, state, now=now, controls=controls, decision_id=identity)
        after, action = advance(
            policy, state, recommendation, report_at=report.at, level=_plateau_level(policy, windows)
        )
        line = explain.line(recommendation)
        if action is not None:
            action = msgspec.structs.replace(action, line=line)
            after = msgspec.structs.replace(after, pending=action)
        entry = LogEntry(
            target=policy.target,
            at=report.at,
            kind=LogKind.DECISION,
            key="decision",
            line=line,
            reason=recommendation.reason,
            current=recommendation.current,
            desired=recommendation.desired,
            recommendation=recommendation,
            metrics={name: window.values[-1] for name, window in windows.items() if window.values},
            inputs=encode_inputs(policy, windows, state, controls, now=now, decision_id=identity),
        )
        return _Decided(after, windows, action, entry, tuple(warnings))

    # Applying

    async def apply(self, message: str | bytes) -> Outcome:
        """Carries out one action. Raises ScalerError where a later delivery may succeed, MessageError for an
        unreadable message.
        """
        action = codec.decode_action(message)
        policy, scaler = self.config.policies.get(action.target), self.ports.scalers.get(action.target)
        if policy is None or scaler is None:
            return Outcome(warnings=(f"scaler {action.target}: not in the configuration; action dropped",))
        loaded = await self.ports.states.load(action.target)
        now = self.clock()
        effect = _refusal(policy, loaded, action, now)
        if effect is None:
            try:
                effect = await scaler.apply(action, now=now)
            except ScalerError as error:
                failed = _effect(action, EffectOutcome.FAILED, now, str(error))
                await self.ports.log.append([_effect_entry(failed)])
                raise
        await self.ports.log.append([_effect_entry(effect)])
        await self._record(effect, loaded)
        line = explain.effect_line(effect)
        done = effect.outcome in {EffectOutcome.APPLIED, EffectOutcome.ALREADY_THERE}
        return Outcome(lines=(line,)) if done else Outcome(warnings=(line,))

    async def _record(self, effect: Effect, loaded: Snapshot) -> None:
        for _ in range(ATTEMPTS):
            state = record_effect(loaded.state, effect)
            if state == loaded.state:
                return
            try:
                await self.ports.states.save(loaded, state)
            except ConflictError:
                loaded = await self.ports.states.load(effect.target)
                continue
            return
        raise ConflictError(
            f"scaler {effect.target}: state changed {ATTEMPTS} times while recording an effect"
        )

    # Verifying

    async def verify(self) -> Outcome:
        """Compares requested with reached for every target; emits lost actions again; prunes the log."""
        now = self.clock()
        results = await each(self.ports.scalers, lambda target, scaler: self._verify(target, scaler, now))
        removed = await self.ports.log.purge(before=now - self.config.retention)
        lines = [f"scaling log: {removed} entries older than the retention removed"] if removed else []
        messages = tuple(m for outcome in results.values() for m in outcome.messages)
        warnings = tuple(w for outcome in results.values() for w in outcome.warnings)
        return Outcome(messages, tuple(lines), warnings)

    async def _verify(self, target: str, scaler: Scaler, now: float) -> Outcome:
        capacity = await _capacity(scaler, target, now)
        if not isinstance(capacity, Capacity):
            return Outcome(warnings=(f"verify {target}: capacity: {capacity}",))
        loaded = await self.ports.states.load(target)
        if "state" in loaded.corrupt:
            return Outcome(
                warnings=(f"verify {target}: stored state is unreadable; left to the next report",)
            )
        found = review(
            self.config.policies[target], loaded.state, capacity, now=now, controls=loaded.controls
        )
        entries = [
            LogEntry(
                target=target,
                at=now,
                kind=LogKind.VERIFY,
                key=f"verify-{index}",
                line=f"verify {target}: {text}",
                reason=reason,
                current=capacity.current,
            )
            for index, (reason, text) in enumerate(found.findings)
        ]
        if entries:
            await self.ports.log.append(entries)
        if found.state != loaded.state and found.findings:
            try:
                await self.ports.states.save(loaded, found.state)
            except ConflictError:
                return Outcome()  # an evaluation was faster and knows more; the next check looks again
        messages = (codec.encode_action(found.emit),) if found.emit is not None else ()
        return Outcome(messages, (), tuple(entry.line for entry in entries))

    async def aclose(self) -> None:
        """Closes every adapter; the first error is raised after all were tried."""
        ports = self.ports
        closing = [collector.aclose() for collector in ports.collectors.values()]
        closing += [scaler.aclose() for scaler in ports.scalers.values()]
        closing += [p.aclose() for p in (ports.states, ports.controls, ports.log, ports.poison)]
        for result in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result


class _Decided(Struct, frozen=True):
    state: TargetState
    windows: dict[str, Window]
    action: ScaleAction | None
    entry: LogEntry
    warnings: tuple[str, ...]


async def each(
    items: Mapping[str, _Item], work: Callable[[str, _Item], Awaitable[_Result]]
) -> dict[str, _Result]:
    """`work` on every item, at most CONCURRENT_READS at a time. The first error cancels the rest."""
    gate = asyncio.Semaphore(CONCURRENT_READS)

    async def one(key: str, item: _Item) -> _Result:
        async with gate:
            return await work(key, item)

    async with asyncio.TaskGroup() as group:
        tasks = {key: group.create_task(one(key, item)) for key, item in items.items()}
    return {key: task.result() for key, task in tasks.items()}


async def _reading(collector: Collector, now: float) -> Reading | CollectError:
    """A reading, or why there is none. A collector's own bug is a failed read, not the end of the tick."""
    try:
        async with asyncio.timeout(READ_DEADLINE):
            return await collector.collect(now=now)
    except CollectError as error:
        return error
    except TimeoutError:
        return CollectError(f"no answer within {READ_DEADLINE:.0f} s")
    except Exception as error:  # noqa: BLE001 - user-written collectors may raise anything
        return CollectError(f"{type(error).__name__}: {error}")


async def _capacity(scaler: Scaler, target: str, now: float) -> Capacity | str:
    """The capacity, or why it could not be read."""
    try:
        async with asyncio.timeout(READ_DEADLINE):
            return await scaler.current(target, now=now)
    except ScalerError as error:
        return str(error)
    except TimeoutError:
        return f"no answer within {READ_DEADLINE:.0f} s"
    except Exception as error:  # noqa: BLE001 - user-written scalers may raise anything
        return f"{type(error).__name__}: {error}"


def _report_line(report: MetricsReport) -> str:
    values = [f"{s.metric} {explain.number_text(s.value)}" for s in report.samples]
    values += [f"{f.metric} unknown" for f in report.failures]
    values.append(f"capacity {report.capacity.current if report.capacity else 'unknown'}")
    return f"collector {report.target}: {', '.join(values)}"


def _plateau_level(policy: Policy, windows: Mapping[str, Window]) -> float | None:
    plateau = policy.spec.plateau
    window = windows.get(plateau.metric) if plateau is not None else None
    return window.values[-1] if window is not None and window.values else None


def _emitted_again(state: TargetState, report: MetricsReport) -> Outcome:
    """A second delivery of a report: nothing is decided twice, but its action may never have been sent."""
    identity = decision_id(report.target, report.at)
    line = f"scaling {report.target}: report already decided upon [{identity}]"
    pending = state.pending
    if pending is not None and pending.action_id == identity:
        return Outcome((codec.encode_action(pending),), (f"{line}; its action is sent again",))
    return Outcome(lines=(line,))


def _refusal(policy: Policy, loaded: Snapshot, action: ScaleAction, now: float) -> Effect | None:
    """Why an action must not reach the platform any more, as its effect; None when it may."""
    pending = loaded.state.pending
    if "state" in loaded.corrupt or pending is None or pending.action_id != action.action_id:
        return _effect(action, EffectOutcome.SUPERSEDED, now, "not the pending action of this target")
    if now >= action.expires_at:
        age = now - action.decided_at
        return _effect(action, EffectOutcome.EXPIRED, now, f"decided {age:.0f} s ago")
    if not policy.minimum <= action.to_capacity <= policy.maximum and action.direction is Direction.OUT:
        text = f"outside the configured {policy.minimum}..{policy.maximum}"
        return _effect(action, EffectOutcome.REFUSED, now, text)
    paused = active_pause(loaded.controls, action.direction, now)
    if paused is not None:
        return _effect(action, EffectOutcome.REFUSED, now, f"paused by {paused.by}")
    return None


def _effect(action: ScaleAction, outcome: EffectOutcome, now: float, detail: str) -> Effect:
    return Effect(
        action.action_id, action.target, outcome, action.from_capacity, action.to_capacity, None, now, detail
    )


def _effect_entry(effect: Effect) -> LogEntry:
    return LogEntry(
        target=effect.target,
        at=effect.at,
        kind=LogKind.EFFECT,
        key=f"effect-{effect.outcome}",
        line=explain.effect_line(effect),
        reason=effect.outcome,
        current=effect.reached if effect.reached is not None else effect.from_capacity,
        desired=effect.to_capacity,
        effect=effect,
    )
