"""The rule `service_level` without its words: what it learns and what it wants, and nothing that explains it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from scaling.config.policy import Policy
from scaling.log_entry import decision_id
from scaling.model import EffectRecord, TargetState
from scaling.rules.service_level import estimates, learning, memory, sizing
from scaling.rules.service_level.learning import Observation
from scaling.rules.service_level.memory import Memory
from scaling.rules.service_level.rule import MAX_INSTANCES, RECENT, ServiceLevelRule


class Learner:
    """One target while nothing is missing and nothing but its bounds is in the way: see `driving`."""

    def __init__(
        self, policy: Policy, rule: ServiceLevelRule, reads: Mapping[str, str], state: TargetState
    ) -> None:
        self.target, self.name, self.objective = policy.target, rule.name, rule.objective
        self.minimum, self.maximum = policy.minimum, policy.maximum
        self.interval = policy.windows[rule.params.backlog].interval
        params = rule.params
        self.kinds = [
            None if name is None else reads[name]
            for name in (params.backlog, params.incoming, params.outgoing)
        ]
        self.known = memory.decode(state.memories.get(rule.name))
        self.effect = state.effects[-1] if state.effects else None
        effect = self.effect
        self.more_at = effect.at if effect is not None and effect.to_capacity > effect.from_capacity else None

    def decide(self, now: float, values: Mapping[str, float], total: int, ready: int | None) -> int:
        """The capacity to have, after what was seen at `now` is learned."""
        asked = self.more_at
        if asked is not None and now - asked > RECENT:
            asked = None
        backlog, incoming, outgoing = self.kinds
        came = None if incoming is None else values[incoming]
        done = None if outgoing is None else values[outgoing]
        latest = 0.0 if backlog is None else values[backlog]
        most = max(self.maximum, total, 1)
        seen = Observation(
            at=now,
            interval=self.interval,
            backlog=latest,
            incoming=came,
            outgoing=done,
            current=total,
            ready=ready,
            most=most,
            asked_at=asked,
        )
        self.known = known = learning.learn(self.known, seen, self.objective)
        wanted = total if known.last_need == total else self._stepped(known, latest, total)
        if wanted < total and known.unchanged_reports >= learning.UNCHANGED_REPORTS:
            return total
        wanted = min(max(wanted, self.minimum), self.maximum)
        if wanted != total:
            self.effect = EffectRecord(now, total, wanted)
            self.more_at = now if wanted > total else None
        return wanted

    def _stepped(self, known: Memory, latest: float, total: int) -> int:
        exact = float(known.last_need)
        if exact > total:  # only then does more than its whole number count
            outlook = estimates.outlook(known, self.objective)
            exact = min(
                estimates.instances_needed(known, outlook, latest, total, self.objective),
                float(MAX_INSTANCES),
            )
        hold = estimates.hold_time(known, estimates.start_up_time(known, self.objective))
        needs = sizing.needs_with(known.needs, known.at, known.last_need, hold)
        return sizing.next_capacity(exact, total, needs, known.at, hold)

    def state(self, before: TargetState) -> TargetState:
        """The state with what was learned and changed since."""
        known, effect = self.known, self.effect
        memories = before.memories if known is None else {self.name: memory.encode(known)}
        effects = before.effects
        if effect is not None and (not effects or effects[-1] != effect):
            made = structs.replace(effect, action_id=decision_id(self.target, effect.at))
            effects = (*effects, made)
        return structs.replace(before, memories=memories, effects=effects)
