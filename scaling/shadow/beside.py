"""decide(), once more, for the simulated rules: the same report, an imagined capacity, and nothing is carried out. Pure.

The simulated rules see what the others see, but for what depends on the capacity: their own imagined one, its instances
ready a start-up time after they were asked for, and the queue that would be there (`scaling.shadow.queue`), where it is
known which one that is. Their changes are made at once, so cooldowns begin with the decision. Pauses and overrides hold
for them as for the target; dry-run does not, and nobody else moves them.

Total: whatever goes wrong here is a warning, and the decision for the target has long been made.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy

from msgspec import Struct, structs

from scaling.config.policy import Policy, QueueSpec
from scaling.decision import explain
from scaling.decision.decide import decide
from scaling.decision.orders import policy_in_force, standing
from scaling.decision.pending_action import record_effect
from scaling.decision.seen import plateau_level, view_of
from scaling.decision.transitions import (
    advance,
    correct_future_times,
    count_spending,
    learn_from_report,
    recommend_over_gap,
)
from scaling.log_entry import ShadowSaid
from scaling.model import (
    Capacity,
    Controls,
    EffectOutcome,
    Reason,
    Recommendation,
    TargetState,
    effect_of,
)
from scaling.rules.service_level.sizing import serving_instances, starting_after_change, still_starting
from scaling.shadow import queue as imagined
from scaling.shadow.memory import MAX_BYTES, Shadow, Tally, decode, encode, sides
from scaling.window import Window
from tidemark.foundation.sanitize import describe_error

GAP = 3.5
"""Intervals between two reports in which it is known what there was; longer ones are left out of the comparison. As
`service_level.learning.GAP`, whose queue is simulated.
"""

INTERVAL = 60.0
"""Seconds between reports of a target without metrics: the default of `COLLECT_SCHEDULE`."""


class Beside(Struct, frozen=True):
    """What was simulated (None where nothing was), the bytes to keep, and warnings."""

    shadow: bytes = b""
    said: ShadowSaid | None = None
    warnings: tuple[str, ...] = ()


def exchange_memories(policy: Policy, state: TargetState, controls: Controls) -> TargetState:
    """The state before a report is absorbed: after a promotion, or its end, what the rules remember changes places.

    Of the target as it is the simulated queue has learned all along (`Shadow.known`); a `service_level` rule that decides
    from now on goes on from that, for what it learned itself is of an imagined capacity.
    """
    shadow, promoted = decode(state.shadow), standing(policy, controls) is not None
    if shadow is None:
        return structs.replace(state, shadow=b"") if state.shadow else state
    if (
        policy.shadow is None
    ):  # tidemark.toml has followed, or has let go: whatever its rules are called, they go on
        return structs.replace(state, memories={**shadow.memories, **state.memories}, shadow=b"")
    if shadow.promoted == promoted:
        return state
    memories = dict(shadow.memories)
    name = imagined.learner(policy_in_force(policy, controls), _queue(policy))
    if name is not None and shadow.known:
        memories[name] = shadow.known
    begun = Shadow(promoted=promoted, memories=state.memories, known=shadow.known)
    return structs.replace(state, memories=memories, learned_from={}, shadow=encode(begun))


def _queue(policy: Policy) -> QueueSpec | None:
    return None if policy.spec.shadow is None else policy.spec.shadow.queue


def last_said(state: TargetState) -> ShadowSaid | None:
    """What the simulated rules said beside the last decision, if they said anything."""
    shadow, last = decode(state.shadow), state.last
    beside = shadow is not None and last is not None and shadow.at == last.at
    return shadow.last if shadow is not None and beside else None


def simulate_shadow(
    policy: Policy,
    windows: Mapping[str, Window],
    state: TargetState,
    made: Recommendation,
    *,
    controls: Controls,
) -> Beside:
    """What the simulated rules decide beside `made`. `state` and `windows` are those `made` was decided from."""
    if policy.shadow is None:
        return Beside()
    try:
        shadow = _begun(policy, state, standing(policy, controls) is not None)
        if made.reason is Reason.CAPACITY_UNKNOWN or state.capacity is None or state.expected is None:
            return Beside(encode(shadow), None)
        return _Simulation(policy, shadow, windows, state, made, controls).decide()
    except Exception as error:  # a rule of the user's own, or a fault of ours: the target goes on
        return Beside(b"", None, (f"shadow {policy.target}: {describe_error(error)}; it begins anew",))


def _begun(policy: Policy, state: TargetState, promoted: bool) -> Shadow:  # noqa: FBT001 - one of two roles
    """What is remembered; anew where the rules on either side are other ones than before."""
    rules = sides(policy, promoted=promoted)
    shadow = decode(state.shadow)
    if shadow is None or (shadow.rules and shadow.rules != rules):
        shadow = Shadow(promoted=promoted)
    if not shadow.rules:
        shadow.rules = rules
    return shadow


class _Simulation:
    """One simulated decision in the making. Changes `shadow`."""

    def __init__(
        self,
        policy: Policy,
        shadow: Shadow,
        windows: Mapping[str, Window],
        state: TargetState,
        made: Recommendation,
        controls: Controls,
    ) -> None:
        assert (
            policy.shadow is not None and state.capacity is not None and state.expected is not None
        )  # asked before
        self.target, self.shadow, self.made = policy, shadow, made
        self.queue = _queue(policy)
        self.policy = _without_other_plateau(policy if shadow.promoted else policy.shadow, self.queue)
        # Lists of their own: what a simulated rule writes into them must not be decided by, nor saved.
        self.windows = {
            name: structs.replace(window, times=[*window.times], values=[*window.values])
            for name, window in windows.items()
        }
        self.state = state
        self.seen = self.windows
        """The windows as they would be."""
        self.capacity, self.expected = state.capacity, state.expected
        self.controls = structs.replace(controls, dry_run=False)
        self.now = made.at

    def decide(self) -> Beside:
        """Counts the time since the last decision, decides, and makes the change at once."""
        first = self.shadow.capacity is None
        if first:
            self._begin()
        else:
            self._count_time()
        self._follow_queue()
        state = self._imagined()
        made = decide(
            self.policy,
            self.seen,
            state,
            now=self.now,
            controls=self.controls,
            decision_id=self.made.decision_id,
        )
        said = self._said(made)
        failed = made.reason is Reason.RULE_FAILED and (
            self.shadow.last is None or self.shadow.last.reason != Reason.RULE_FAILED
        )
        new = state.unlearned.items() - self.shadow.unlearned.items()
        self._keep(state, made)
        self.shadow.last, self.shadow.unlearned = said, state.unlearned
        warnings = [f"{said.line}; the target is decided for without it"] if failed else []
        warnings += [f"shadow {self.target.target}: rule '{rule}': {why}" for rule, why in sorted(new)]
        return self._bounded(said, tuple(warnings))

    def _begin(self) -> None:
        shadow = self.shadow
        shadow.capacity = self.expected
        starting = 0 if self.capacity.ready is None else max(self.expected - self.capacity.ready, 0)
        shadow.starts = [(self.now, starting)] if starting else []
        shadow.tally = Tally(since=self.now)
        shadow.spent = self.state.spent
        name = imagined.learner(self.target, self.queue)
        imagined.begin(shadow, shadow.known or self.state.memories.get(name or "", b""))
        if self.policy.memory > 0:
            shadow.recommendations = ((self.now, self.expected),)

    def _count_time(self) -> None:
        shadow, tally = self.shadow, self.shadow.tally
        seconds = self.now - shadow.at
        interval = self.policy.interval or INTERVAL
        if 0.0 < seconds <= GAP * interval:
            tally.seconds += seconds
            tally.live += seconds * shadow.live
            # Of the target it is known what it had, not what was ordered then: the same counts of both.
            tally.simulated += seconds * (shadow.last.current if shadow.last is not None else 0)

    def _follow_queue(self) -> None:
        if self.queue is None:
            return
        view = view_of(self.target, self.windows, self.state, self.capacity, self.expected, now=self.now)
        passed, tally = imagined.observe(self.shadow, self.queue, view), self.shadow.tally
        self.seen = imagined.simulated_windows(self.windows, self.shadow, self.queue)
        if passed is None:
            return
        tally.modelled += passed.seconds
        tally.arrived += passed.arrived
        tally.live_late += passed.live_late
        tally.simulated_late += passed.simulated_late
        tally.live_overdue, tally.simulated_overdue = passed.live_overdue, passed.simulated_overdue

    def _imagined(self) -> TargetState:
        """The state the simulated rules are in, with what they learn of this report."""
        shadow = self.shadow
        total = shadow.capacity or 0
        start_up = imagined.start_up_of(self.queue, shadow.known)
        shadow.starts = still_starting(shadow.starts, self.now, start_up)
        shadow.ready = serving_instances(shadow.starts, total, self.now, start_up)
        called_after = imagined.called_ready_of(self.queue, shadow.known)
        called = serving_instances(shadow.starts, total, self.now, called_after)
        capacity = Capacity(
            total,
            self.now,
            floor=self.capacity.floor,
            ceiling=self.capacity.ceiling,
            ready=None if self.capacity.ready is None else called,
            step=self.capacity.step,
            allowed=self.capacity.allowed,
        )
        state = TargetState(
            expected=total,
            capacity=capacity,
            effects=shadow.effects,
            recommendations=shadow.recommendations,
            missing_since=shadow.missing_since,
            memories=imagined.of_real_instances(
                shadow.memories, imagined.learner(self.policy, self.queue), shadow.known
            ),
        )
        state = correct_future_times(structs.replace(state, spent=shadow.spent), self.now)
        before = () if shadow.at in {0.0, self.now} else (shadow.at,)
        state = recommend_over_gap(self.policy, state, before, self.now, now=self.now)
        return count_spending(
            self.policy, learn_from_report(self.policy, self.seen, state, now=self.now), now=self.now
        )

    def _said(self, made: Recommendation) -> ShadowSaid:
        promoted = self.shadow.promoted
        head = "configured" if promoted else "shadow"
        line = explain.line(made).removeprefix("scaling")
        return ShadowSaid(
            self.shadow.capacity or 0, made.desired, made.proposed, made.reason, f"{head}{line}", promoted
        )

    def _keep(self, state: TargetState, made: Recommendation) -> None:
        """What must be remembered of the decision; its change is there at once."""
        shadow, tally = self.shadow, self.shadow.tally
        level = plateau_level(self.policy, self.seen, now=self.now)
        after, action = advance(self.policy, state, made, report_at=self.now, level=level, announces=False)
        if action is not None:
            to = action.to_capacity
            after = record_effect(after, effect_of(action, EffectOutcome.APPLIED, self.now, "", to))
            shadow.starts = starting_after_change(shadow.starts, action.from_capacity, to, self.now)
            shadow.capacity = to
        tally.decisions += 1
        silent = made.proposed is None  # who does not vote agrees with nobody who does
        tally.agreed += made.desired == self.made.desired and silent is (self.made.proposed is None)
        tally.failed += made.reason is Reason.RULE_FAILED
        shadow.at, shadow.live = self.now, self.capacity.current
        shadow.effects, shadow.recommendations = after.effects, after.recommendations
        shadow.missing_since, shadow.memories, shadow.spent = after.missing_since, after.memories, after.spent
        longest = max((spec.span for spec in self.policy.windows.values()), default=0.0)
        imagined.forget(shadow, self.now - longest - INTERVAL)

    def _bounded(self, said: ShadowSaid, warnings: tuple[str, ...]) -> Beside:
        data = encode(self.shadow)
        if len(data) > MAX_BYTES:
            text = f"shadow {self.target.target}: it remembers {len(data)} bytes, of which {MAX_BYTES} are kept at most"
            self.shadow.memories, self.shadow.recommendations = {}, ()
            data = encode(self.shadow)
            warnings = (*warnings, f"{text}; its rules learn anew")
        return Beside(data if len(data) <= MAX_BYTES else b"", said, warnings)


def _without_other_plateau(policy: Policy, queue: QueueSpec | None) -> Policy:
    """Only the simulated queue can answer a simulated scale-out: a plateau of any other metric is left out."""
    plateau = policy.spec.plateau
    if plateau is None or (queue is not None and plateau.metric == queue.backlog):
        return policy
    without = copy(policy)
    without.spec = structs.replace(policy.spec, plateau=None)
    return without
