"""The shell around the core: load, decide, log, save, send; collect, apply, verify. No Azure imports.

An evaluation (`Autoscaler.evaluate`) loads the state, decides (`_decide`), and then writes in an order in which a crash
between any two writes is harmless:

    log row      keyed by the report, so deciding again replaces it
    state        guarded by ETags, with the action as pending: from here on it cannot be lost
    message      sent by the function's queue binding; a second delivery of the report finds itself
                 decided and sends the same pending action again

`_decide` takes the report in, asks the rules (`case_of`), decides (`decide_case`), remembers, asks the shadow, and says what is
to be written. Taking in, remembering and what is to be written are in `scaling.service.evaluation`, which needs nothing from outside.

The scaler's side mirrors the order: see `scaling.service.deliveries`. Of two evaluations of one report at once only one
is saved, but the other may have written the log row last. It, or the next delivery, finds that out and writes the row
again as decided.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from functools import partial

from scaling.analysis.lint import lint
from scaling.analysis.replay import inputs_of, same
from scaling.calls.turns import collecting
from scaling.config.checks import Finding, Severity
from scaling.config.policy import Policy
from scaling.config.policy_file import Config
from scaling.decision.decide import case_of
from scaling.decision.orders import policy_in_force
from scaling.decision.reconsider import may_be_sent
from scaling.decision.transitions import (
    already_evaluated,
    is_overtaken,
    review,
)
from scaling.flips.explained import decide_case
from scaling.log_entry import LogEntry, decision_id
from scaling.measuring.windows import as_asked
from scaling.model import Capacity, MetricsReport, TargetState
from scaling.notices.events import poison_notice
from scaling.ports import CollectError, Collector, Reading, Scaler, Snapshot
from scaling.service import evaluation, reading, shell
from scaling.service import messages as codec
from scaling.service.by_hand import checked_line, how_it_stands, target_named
from scaling.service.deliveries import Deliveries
from scaling.service.entries import (
    decision_entry,
    effects_of,
    finding_entries,
    findings_of,
)
from scaling.service.evaluation import Evaluated
from scaling.service.own_code import ShadowRunner, start_in_thread
from scaling.service.shell import ATTEMPTS, Outcome, Ports
from scaling.shadow.beside import Beside, last_said
from scaling.window import CLOCK_TOLERANCE
from tidemark.foundation.errors import ConflictError
from tidemark.foundation.gathering import NoAnswer, Rounds
from tidemark.foundation.keys import TooLargeError
from tidemark.foundation.log.tail import Line
from tidemark.foundation.sanitize import describe_error
from tidemark.foundation.wording import count_text

PURGE_DEADLINE = 30.0
"""Seconds one purge of the log may take: what the checks found waits for it."""

LINT_DEADLINE = 60.0
"""Seconds to check the rules of one target: those of the package take few, one of the user's own may never end."""


class Autoscaler:
    """One instance per process; every method may run concurrently with every other, here and elsewhere."""

    def __init__(self, config: Config, ports: Ports, *, clock: Callable[[], float]) -> None:
        self.config = config
        self.ports = ports
        self.clock = clock
        self._findings: asyncio.Task[tuple[Finding, ...]] | None = None
        self._lint_reported = False
        self._shadows = ShadowRunner()
        self._due_targets = shell.DueTargets()
        seconds = min(reading.LONGEST_ROUND, max(reading.SHORTEST_ROUND, config.interval / 2))
        self._readings: Rounds[Collector, Reading | CollectError] = Rounds(seconds, reading.endpoint_of)
        self._capacities: Rounds[Scaler, Capacity | str] = Rounds(seconds, reading.endpoint_of)
        self._checks: Rounds[Scaler, Outcome] = Rounds(seconds, reading.endpoint_of)
        self._sources: dict[str, list[reading.MetricSource]] = defaultdict(list)
        for source in ports.sources:
            self._sources[source.target].append(source)

    async def findings(self) -> tuple[Finding, ...]:
        """What lint finds in the policies, notes left out; worked out once, in threads."""
        return await asyncio.shield(self._linting())

    def _linting(self) -> asyncio.Task[tuple[Finding, ...]]:
        known = self._findings
        if known is None or (known.done() and (known.cancelled() or known.exception() is not None)):
            known = self._findings = asyncio.create_task(_linted(self.config))
        return known

    def _lint_warnings(self) -> list[str]:
        """What lint found, once, as soon as it is known: begun after the first reports, which never wait for it."""
        if self._lint_reported or not (linting := self._linting()).done():
            return []
        self._lint_reported = True
        return [f"lint: {finding.text}" for finding in linting.result()]

    # Collecting

    async def collect(self) -> Outcome:
        """Reads every entity and every capacity once, of targets that are due; one report per target, with what answered
        in time. What lint found in the policies is logged once, when it is known.
        """
        now = round(self.clock(), 3)  # the decision id names the report's time to the millisecond
        due, collectors, scalers = await self._due_targets.due(self.config, self.ports, now)
        with collecting():
            readings, capacities = await asyncio.gather(
                self._readings.ask(collectors, lambda _, collector: reading.read_metrics(collector, now)),
                self._capacities.ask(
                    scalers, lambda target, scaler: reading.read_capacity(scaler, target, now)
                ),
            )
        messages: list[str] = []
        lines: list[str] = []
        warnings = self._lint_warnings()
        for target in due:
            try:
                report = reading.make_report(target, now, self._sources[target], readings, capacities[target])
                messages.append(codec.encode(report))
            except Exception as error:  # whatever is odd about one target, the others are reported
                warnings.append(f"collector {target}: no report: {describe_error(error)}")
                continue
            lines.append(reading.report_line(report, reading.seconds_to_next(self.config, target, now)))
            warnings.extend(f"collector {target}: {f.metric}: {f.message}" for f in report.failures)
            if report.capacity_error is not None:
                warnings.append(f"collector {target}: capacity: {report.capacity_error}")
        outcome = Outcome(tuple(messages), tuple(lines), tuple(warnings))
        return await shell.with_call_usage(self.ports, self.clock(), outcome)

    # Deciding

    async def evaluate(self, message: str | bytes) -> Outcome:
        """Decides upon one report. Raises MessageError for an unreadable one, ConflictError when other
        writers kept winning, StoreUnavailableError; the queue then delivers the report again.

        By hand, the name of a target does in place of a report: see `scaling.service.by_hand`.
        """
        if (asked := target_named(self.config, message, "a report")) is not None:
            return await self._consider(asked)
        report = codec.decode(MetricsReport, message)
        policy = self.config.policies.get(report.target)
        if policy is None:
            return Outcome(warnings=(f"scaling {report.target}: not in the configuration; report dropped",))
        if not 0 <= report.at <= self.clock() + CLOCK_TOLERANCE:
            text = f"report of {report.at:.0f} is not of the present ({self.clock():.0f}); dropped"
            return Outcome(warnings=(f"scaling {report.target}: {text}",))
        overtaken: list[LogEntry] = []
        for _ in range(ATTEMPTS):
            loaded = await shell.load(self.ports, report.target)
            if already_evaluated(loaded.state, report.at, now=self.clock()):
                return await self._decided_before(loaded.state, report)
            if is_overtaken(policy, loaded.state, report.at, now=self.clock()):
                decided = evaluation.fill_windows(policy, loaded, report, now=self.clock())
            else:
                decided = await self._decide(policy, loaded, report)
            await shell.append(self.ports, decided.entries)
            try:
                left_out = await self._save(loaded, decided)
            except ConflictError:
                overtaken += decided.entries
                continue
            await shell.correct(self.ports, overtaken, decided.entries)
            messages = (codec.encode(decided.action),) if decided.action is not None else ()
            return Outcome(messages, decided.lines, (*decided.warnings, *left_out))
        raise ConflictError(f"scaling {report.target}: state changed {ATTEMPTS} times while deciding")

    async def _consider(self, target: str) -> Outcome:
        """What would be decided now: everything is read anew, and nothing is written or sent."""
        now, sources = round(self.clock(), 3), self._sources[target]
        entities = list(dict.fromkeys(source.entity for source in sources))
        capacity, readings = await asyncio.gather(
            reading.read_capacity(self.ports.scalers[target], target, now),
            asyncio.gather(
                *(reading.read_metrics(self.ports.collectors[entity], now) for entity in entities)
            ),
        )
        report = reading.make_report(
            target, now, sources, dict(zip(entities, readings, strict=True)), capacity
        )
        loaded = await shell.load(self.ports, target)
        decided = await self._decide(self.config.policies[target], loaded, report)
        failures = [f"{failure.metric}: {failure.message}" for failure in report.failures]
        failures += [] if report.capacity_error is None else [f"capacity: {report.capacity_error}"]
        lines = [str(reading.report_line(report)), *(f"asked {target}: {text}" for text in failures)]
        lines.append(f"asked {target}: now it would be: {decided.entries[-1].line}; nothing was changed")
        return Outcome(lines=tuple(lines))

    async def _save(self, loaded: Snapshot, decided: Evaluated) -> tuple[str, ...]:
        """Saves a decision; where the row has no room for all of it, without what can be spared first. Returns what there is
        to say of that. Raises TooLargeError where nothing that can be spared makes room.
        """
        try:
            await shell.save(self.ports, loaded, decided.state, decided.windows)
        except TooLargeError as error:
            return (await shell.save_lighter(self.ports, loaded, decided.state, decided.windows, error),)
        return ()

    async def _decided_before(self, state: TargetState, report: MetricsReport) -> Outcome:
        """A second delivery of a report: nothing is decided twice, but its action may never have been sent,
        and its log row may be of an evaluation that was not saved.
        """
        identity = decision_id(report.target, report.at)
        last = state.last
        if last is not None and last.decision_id == identity:
            row = await shell.within(
                shell.STORE_DEADLINE, self.ports.log.get(report.target, report.at, "decision"), "the log"
            )
            if row is None or row.recommendation is None or not same(row.recommendation, last):
                inputs = inputs_of(last, row.inputs if row is not None else None)
                metrics = row.metrics if row is not None else {}
                said = last_said(state)
                await shell.append(self.ports, [decision_entry(report, last, metrics, inputs, said)])
        line = f"scaling {report.target}: report already decided upon [{identity}]"
        pending = state.pending
        if pending is not None and pending.action_id == identity and may_be_sent(state, self.clock()):
            return Outcome((codec.encode(pending),), (f"{line}; its action is sent again",))
        return Outcome(lines=(line,))

    async def _decide(self, policy: Policy, loaded: Snapshot, report: MetricsReport) -> Evaluated:
        """Takes the report in, asks the rules, decides, and says what is to be written. Saves and sends nothing."""
        now = self.clock()
        basis = evaluation.take_in(policy, loaded, report, now=now)
        rules, windows, state, controls = basis.known
        identity = decision_id(report.target, report.at)
        case = case_of(rules, windows, state, now=now, controls=controls, decision_id=identity)
        made = decide_case(case, rules, state, now=now, decision_id=identity)
        after, action = evaluation.remember(basis, made, report.at, now=now)
        shadow = Beside(state.shadow)
        if basis.orders_known:
            shadow = await self._shadows.decide(policy, windows, state, made, controls=controls)
        return evaluation.to_write(basis, report, made, after, action, shadow, now=now)

    # Applying

    async def apply(self, message: str | bytes) -> Outcome:
        """Carries out one action: see `scaling.service.deliveries`; by hand, says how the target named stands."""
        if (asked := target_named(self.config, message, "an action")) is not None:
            outcome = await how_it_stands(self.ports, asked, self.ports.scalers[asked], self.clock())
        else:
            outcome = await Deliveries(self.config, self.ports, self.clock).apply(message)
        return await shell.with_call_usage(self.ports, self.clock(), outcome)

    # Verifying

    async def verify(self) -> Outcome:
        """Compares requested with reached for every target; emits lost actions again; prunes the log; reports poison messages."""
        now = self.clock()
        checks = self._checks.ask(
            self.ports.scalers, lambda target, scaler: self._checked(target, scaler, now)
        )
        outcomes, (lines, unpurged), poison = await asyncio.gather(
            checks, self._purge(now), self._poison(now)
        )
        results = [
            Outcome(warnings=(f"verify {target}: {outcome.why}",))
            if isinstance(outcome, NoAnswer)
            else outcome
            for target, outcome in outcomes.items()
        ]
        messages = tuple(m for outcome in results for m in outcome.messages)
        warnings = tuple(w for outcome in results for w in outcome.warnings)
        effects = tuple(line for outcome in results for line in outcome.lines)
        checked = checked_line(len(outcomes), len(effects) + len(warnings), now)
        outcome = Outcome(messages, (*effects, *lines, checked), (*warnings, *unpurged, *poison))
        return await shell.with_call_usage(self.ports, self.clock(), outcome)

    async def send_notices(self) -> Outcome:
        """Sends what waits for the webhooks, if there are any."""
        return await shell.send_notices(self.ports, self.clock())

    async def _poison(self, now: float) -> tuple[str, ...]:
        """A line for as long as there is something in the poison queues, so that an alert ends when they are empty."""
        try:
            count, messages = await shell.within(
                shell.STORE_DEADLINE, self.ports.poison.peek(), "the poison queues"
            )
        except Exception as error:  # whatever keeps them from being read
            return (f"poison queues: not read: {describe_error(error)}",)
        if not count:
            return ()
        queues = sorted({message.queue for message in messages})
        text = f"poison queues: {count_text(count, 'message')} in {', '.join(queues) or 'them'}"
        await shell.announce(self.ports, poison_notice(text, messages, count, now))
        fields = {"at": now, "count": count, "queues": queues}
        return (Line(f"{text}, which the host gave up on", "poison", fields),)

    async def _purge(self, now: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Lines and warnings. Old rows may wait; what the checks found may not."""
        try:
            before = now - self.config.retention
            removed = await shell.within(
                PURGE_DEADLINE, self.ports.log.purge(before=before), "the log's purge"
            )
        except Exception as error:  # whatever keeps the log from being purged
            return (), (f"scaling log: not purged: {describe_error(error)}",)
        return ((f"scaling log: {removed} entries older than the retention removed",) if removed else ()), ()

    async def _checked(self, target: str, scaler: Scaler, now: float) -> Outcome:
        capacity = await reading.read_capacity(scaler, target, now)
        if not isinstance(capacity, Capacity):
            return Outcome(warnings=(f"verify {target}: capacity: {capacity}",))
        loaded = await shell.load(self.ports, target)
        if "state" in loaded.corrupt:
            return Outcome(
                warnings=(f"verify {target}: stored state is unreadable; left to the next report",)
            )
        controls = evaluation.controls_of(loaded, now)
        rules = policy_in_force(self.config.policies[target], controls)
        windows = as_asked(rules, loaded.windows)
        reviewed = review(rules, loaded.state, capacity, now=now, controls=controls, windows=windows)
        entries = finding_entries("verify", target, now, reviewed, capacity.current)
        if entries:
            await shell.append(self.ports, entries)
        if reviewed.state != loaded.state and reviewed.findings:
            try:
                await shell.save(self.ports, loaded, reviewed.state)
            except ConflictError:  # an evaluation was faster and knows more; the next check compares again
                await shell.correct(self.ports, entries)
                return Outcome()
        messages = (codec.encode(reviewed.emit),) if reviewed.emit is not None else ()
        return Outcome(messages, effects_of(entries), findings_of(entries))

    async def aclose(self) -> None:
        """Closes every adapter; the first error is raised after all were tried."""
        ports = self.ports
        if self._findings is not None:
            self._findings.cancel()
            await asyncio.wait([self._findings])
        closing = [collector.aclose() for collector in ports.collectors.values()]
        closing += [scaler.aclose() for scaler in ports.scalers.values()]
        others = (ports.states, ports.log, ports.poison, ports.announcer, ports.calls)
        closing += [port.aclose() for port in others if port]
        for result in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result


async def _linted(config: Config) -> tuple[Finding, ...]:
    """A policy at a time: a thread that computes holds up the others of its process."""
    findings = list(config.findings)
    for policy in config.policies.values():
        try:
            async with asyncio.timeout(LINT_DEADLINE):
                findings += await start_in_thread(partial(lint, policy), f"lint {policy.target}")[1]
        except TimeoutError:
            text = f"targets.{policy.target}: cannot be checked: no answer of its rules within {LINT_DEADLINE:g} s"
            findings.append(Finding(Severity.ERROR, "rule_breaks_lint", policy.target, text))
        except Exception as error:  # a rule that tried to end the process
            text = f"targets.{policy.target}: cannot be checked: {describe_error(error)}"
            findings.append(Finding(Severity.ERROR, "rule_breaks_lint", policy.target, text))
    return tuple(finding for finding in findings if finding.severity is not Severity.NOTE)
