"""The shell around the core: load, decide, log, save, emit; collect, apply, verify. No Azure imports.

Order of the writes of an evaluation, and why a crash between any two of them is harmless:

    log row      keyed by the report, so deciding again replaces it
    state        guarded by ETags, with the action as pending: from here on it cannot be lost
    message      emitted by the function's queue binding; a second delivery of the report finds itself
                 decided and emits the same pending action again

The scaler's side mirrors it: platform (absolute, idempotent), log row, state. Of two evaluations of one
report at once only one is saved, but the other may have written the log row last; it, or the next delivery,
finds that out and writes the row again as decided.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import Struct

from scaling import codec, explain
from scaling.config import Config
from scaling.lint import Finding, Severity, lint
from scaling.lock_step import as_seen, neighbours, objection
from scaling.logic import decide
from scaling.model import (
    Capacity,
    Controls,
    Effect,
    EffectOutcome,
    LogEntry,
    LogKind,
    MetricsReport,
    Pause,
    Recommendation,
    ScaleAction,
    TargetState,
    decision_id,
)
from scaling.policy import Policy
from scaling.ports import (
    Collector,
    ConflictError,
    ControlStore,
    DecisionLog,
    PoisonQueues,
    Scaler,
    ScalerError,
    Snapshot,
    StateStore,
)
from scaling.reading import MetricSource, each, make_report, read_capacity, read_metrics, report_line
from scaling.replay import encode_inputs, inputs_of, same
from scaling.state import (
    absorb,
    advance,
    already_evaluated,
    record_effect,
    refusal,
    review,
    without_change,
)
from scaling.window import Window

ATTEMPTS = 8
"""Tries to save against concurrent writers before the message goes back to its queue."""

CLOCK_TOLERANCE = 300.0
"""Seconds a report may come from the future; a later one would outrank every true report until then."""


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
        self._findings: asyncio.Task[tuple[Finding, ...]] | None = None
        self._told = False
        self._sources: dict[str, list[MetricSource]] = defaultdict(list)
        for source in ports.sources:
            self._sources[source.target].append(source)

    async def findings(self) -> tuple[Finding, ...]:
        """What lint finds in the policies, notes left out; worked out once, in a thread."""
        if self._findings is None:
            self._findings = asyncio.create_task(asyncio.to_thread(_linted, self.config))
        return await asyncio.shield(self._findings)

    # Collecting

    async def collect(self) -> Outcome:
        """Reads every entity and every capacity once; one report per target. The first time, it also tells
        what lint found in the policies.
        """
        now = round(self.clock(), 3)  # the decision id names the report's time to the millisecond
        readings, capacities = await asyncio.gather(
            each(self.ports.collectors, lambda _, collector: read_metrics(collector, now)),
            each(self.ports.scalers, lambda target, scaler: read_capacity(scaler, target, now)),
        )
        messages: list[str] = []
        lines: list[str] = []
        warnings = [] if self._told else [f"lint: {finding.text}" for finding in await self.findings()]
        self._told = True
        for target in self.config.policies:
            report = make_report(target, now, self._sources[target], readings, capacities[target])
            lines.append(report_line(report))
            warnings.extend(f"collector {target}: {f.metric}: {f.message}" for f in report.failures)
            if report.capacity_error is not None:
                warnings.append(f"collector {target}: capacity: {report.capacity_error}")
            try:
                messages.append(codec.encode_report(report))
            except codec.MessageError as error:
                warnings.append(f"collector {target}: {error}")
        return Outcome(tuple(messages), tuple(lines), tuple(warnings))

    # Deciding

    async def evaluate(self, message: str | bytes) -> Outcome:
        """Decides upon one report. Raises MessageError for an unreadable one, ConflictError when other
        writers kept winning, StoreUnavailableError; the queue then delivers the report again.
        """
        report = codec.decode_report(message)
        policy = self.config.policies.get(report.target)
        if policy is None:
            return Outcome(warnings=(f"scaling {report.target}: not in the configuration; report dropped",))
        if not 0 <= report.at <= self.clock() + CLOCK_TOLERANCE:
            text = f"report of {report.at:.0f} is not of the present ({self.clock():.0f}); dropped"
            return Outcome(warnings=(f"scaling {report.target}: {text}",))
        for _ in range(ATTEMPTS):
            loaded = await self.ports.states.load(report.target)
            if already_evaluated(loaded.state, report.at):
                return await self._decided_before(loaded.state, report)
            decided = self._decide(policy, loaded, report)
            await self.ports.log.append([decided.entry])
            try:
                await self.ports.states.save(loaded, decided.state, decided.windows)
            except ConflictError:
                continue
            messages = (codec.encode_action(decided.action),) if decided.action is not None else ()
            return Outcome(messages, (decided.entry.line,), decided.warnings)
        raise ConflictError(f"scaling {report.target}: state changed {ATTEMPTS} times while deciding")

    async def _decided_before(self, state: TargetState, report: MetricsReport) -> Outcome:
        """A second delivery of a report: nothing is decided twice, but its action may never have been sent,
        and its log row may be of an evaluation that was not saved.
        """
        identity = decision_id(report.target, report.at)
        last = state.last
        if last is not None and last.decision_id == identity:
            row = await self.ports.log.get(report.target, report.at, "decision")
            if row is None or row.recommendation is None or not same(row.recommendation, last):
                inputs = inputs_of(last, row.inputs if row is not None else None)
                metrics = row.metrics if row is not None else {}
                await self.ports.log.append([_decision_entry(report, last, metrics, inputs)])
        line = f"scaling {report.target}: report already decided upon [{identity}]"
        pending = state.pending
        if pending is not None and pending.action_id == identity:
            return Outcome((codec.encode_action(pending),), (f"{line}; its action is sent again",))
        return Outcome(lines=(line,))

    def _decide(self, policy: Policy, loaded: Snapshot, report: MetricsReport) -> _Decided:
        now = self.clock()
        before = loaded.state
        warnings = [f"scaling {policy.target}: stored '{part}' was unreadable" for part in loaded.corrupt]
        if "state" in loaded.corrupt:
            before = TargetState(corrupt_since=now)
        controls = _controls(loaded, now)
        windows, state = absorb(policy, loaded.windows, before, report, now=now, controls=controls)
        identity = decision_id(report.target, report.at)
        recommendation = decide(policy, windows, state, now=now, controls=controls, decision_id=identity)
        after, action = advance(
            policy, state, recommendation, report_at=report.at, level=_plateau_level(policy, windows)
        )
        if action is not None:
            action = msgspec.structs.replace(action, line=explain.line(recommendation))
            after = msgspec.structs.replace(after, pending=action)
        entry = _decision_entry(
            report,
            recommendation,
            {name: window.values[-1] for name, window in windows.items() if window.values},
            encode_inputs(policy, windows, state, controls, now=now, decision_id=identity),
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
        if any(known.action_id == action.action_id for known in loaded.state.effects):
            return Outcome(lines=(f"scaler {action.target}: already carried out [{action.action_id}]",))
        effect = refusal(policy, loaded.state, _controls(loaded, now), action, now=now)
        if effect is None:
            effect = await self._out_of_step(policy, loaded, action)
        if effect is None:
            effect = await self._carry_out(scaler, action)
        await self.ports.log.append([_effect_entry(effect)])
        await self._record(effect, loaded)
        line = explain.effect_line(effect)
        as_asked = {EffectOutcome.APPLIED, EffectOutcome.ALREADY_THERE, EffectOutcome.ACCEPTED}
        return Outcome(lines=(line,)) if effect.outcome in as_asked else Outcome(warnings=(line,))

    async def _out_of_step(self, policy: Policy, loaded: Snapshot, action: ScaleAction) -> Effect | None:
        """The effect of an action that has to wait for another target. It stays pending, and is sent again.

        The other targets are looked at after the action was found to be the pending one: see `lock_step`.
        First their state, for what is under way; then the platform, for what was done and never recorded.
        """
        now, others = self.clock(), {}
        for name in {neighbour.target for neighbour in neighbours(policy).values()}:
            state = (await self.ports.states.load(name)).state
            scaler = self.ports.scalers.get(name)
            seen = "it has no scaler" if scaler is None else await read_capacity(scaler, name, now)
            others[name] = as_seen(state, seen)
        text = objection(policy, loaded.windows, action, others, now=now)
        return None if text is None else without_change(action, EffectOutcome.FAILED, now, f"waits: {text}")

    async def _carry_out(self, scaler: Scaler, action: ScaleAction) -> Effect:
        """The effect at the time it was there, which may be minutes after the order was given, but never
        after the action has expired: others rely on that it is over then.
        """
        try:
            async with asyncio.timeout(action.expires_at - self.clock()):
                effect = await scaler.apply(action, now=self.clock())
        except Exception as error:
            text = str(error) if isinstance(error, ScalerError) else f"{type(error).__name__}: {error}"
            failed = without_change(action, EffectOutcome.FAILED, self.clock(), text)
            await self.ports.log.append([_effect_entry(failed)])
            raise
        return msgspec.structs.replace(effect, at=self.clock())

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
        lines, unpurged = await self._purge(now)
        messages = tuple(m for outcome in results.values() for m in outcome.messages)
        warnings = tuple(w for outcome in results.values() for w in outcome.warnings)
        return Outcome(messages, lines, (*warnings, *unpurged))

    async def _purge(self, now: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Lines and warnings. Old rows may wait; what the checks found may not."""
        try:
            removed = await self.ports.log.purge(before=now - self.config.retention)
        except Exception as error:  # noqa: BLE001 - whatever keeps the log from being purged
            return (), (f"scaling log: not purged: {type(error).__name__}: {error}",)
        return ((f"scaling log: {removed} entries older than the retention removed",) if removed else ()), ()

    async def _verify(self, target: str, scaler: Scaler, now: float) -> Outcome:
        """One target's trouble is a warning; the others are checked all the same."""
        try:
            return await self._checked(target, scaler, now)
        except Exception as error:  # noqa: BLE001 - stores that do not answer, rows of a newer release
            return Outcome(warnings=(f"verify {target}: {type(error).__name__}: {error}",))

    async def _checked(self, target: str, scaler: Scaler, now: float) -> Outcome:
        capacity = await read_capacity(scaler, target, now)
        if not isinstance(capacity, Capacity):
            return Outcome(warnings=(f"verify {target}: capacity: {capacity}",))
        loaded = await self.ports.states.load(target)
        if "state" in loaded.corrupt:
            return Outcome(
                warnings=(f"verify {target}: stored state is unreadable; left to the next report",)
            )
        controls = _controls(loaded, now)
        found = review(self.config.policies[target], loaded.state, capacity, now=now, controls=controls)
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
        effects = [_effect_entry(found.effect)] if found.effect is not None else []
        if entries:
            await self.ports.log.append([*effects, *entries])
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
        if self._findings is not None:
            await asyncio.wait([self._findings])
        closing = [collector.aclose() for collector in ports.collectors.values()]
        closing += [scaler.aclose() for scaler in ports.scalers.values()]
        closing += [p.aclose() for p in (ports.states, ports.controls, ports.log, ports.poison)]
        for result in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result


def _linted(config: Config) -> tuple[Finding, ...]:
    found = (finding for policy in config.policies.values() for finding in lint(policy))
    return tuple(finding for finding in found if finding.severity is not Severity.NOTE)


class _Decided(Struct, frozen=True):
    state: TargetState
    windows: dict[str, Window]
    action: ScaleAction | None
    entry: LogEntry
    warnings: tuple[str, ...]


def _plateau_level(policy: Policy, windows: Mapping[str, Window]) -> float | None:
    plateau = policy.spec.plateau
    window = windows.get(plateau.metric) if plateau is not None else None
    return window.values[-1] if window is not None and window.values else None


def _controls(loaded: Snapshot, now: float) -> Controls:
    """Operators' orders; where they cannot be read there may be a pause among them, so all is paused."""
    if "controls" in loaded.corrupt:
        return Controls(pauses=(Pause("unreadable orders; give one to replace them", now),))
    return loaded.controls


def _decision_entry(
    report: MetricsReport, made: Recommendation, metrics: dict[str, float], inputs: bytes | None
) -> LogEntry:
    return LogEntry(
        target=report.target,
        at=report.at,
        kind=LogKind.DECISION,
        key="decision",
        line=explain.line(made),
        reason=made.reason,
        current=made.current,
        desired=made.desired,
        recommendation=made,
        metrics=metrics,
        inputs=inputs,
    )


def _effect_entry(effect: Effect) -> LogEntry:
    return LogEntry(
        target=effect.target,
        at=effect.at,
        kind=LogKind.EFFECT,
        key=f"effect-{effect.outcome}-{effect.action_id.rpartition('@')[2]}",
        line=explain.effect_line(effect),
        reason=effect.outcome,
        current=effect.reached if effect.reached is not None else effect.from_capacity,
        desired=effect.to_capacity,
        effect=effect,
    )
