"""The rule `service_level` without its words: what it learns and what it wants, and nothing that explains it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from scaling.config.policy import Policy
from scaling.log_entry import decision_id
from scaling.model import EffectRecord, TargetState
from scaling.rules.service_level import learning, memory, plan
from scaling.rules.service_level.learning import Observation
from scaling.rules.service_level.memory import Memory
from scaling.rules.service_level.rule import MOST, RECENT, ServiceLevelRule


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
        seen = Observation(now, self.interval, latest, came, done, total, ready, most, asked)
        self.known = known = learning.learn(self.known, seen, self.objective)
        wanted = total if known.wanted == total else self._stepped(known, latest, total)
        if wanted < total and known.still >= learning.STANDS_STILL:
            return total
        wanted = min(max(wanted, self.minimum), self.maximum)
        if wanted != total:
            self.effect = EffectRecord(now, total, wanted)
            self.more_at = now if wanted > total else None
        return wanted

    def _stepped(self, known: Memory, latest: float, total: int) -> int:
        exact = float(known.wanted)
        if exact > total:  # only then does more than its whole number count
            outlook = learning.outlook(known, self.objective)
            exact = min(learning.needed(known, outlook, latest, total, self.objective), float(MOST))
        hold = learning.hold(known, learning.start_up_of(known, self.objective))
        needs = plan.remembered(known.needs, known.at, known.wanted, hold)
        return plan.step(exact, total, needs, known.at, hold)

    def state(self, before: TargetState) -> TargetState:
        """The state with what was learned and changed since."""
        known, effect = self.known, self.effect
        memories = before.memories if known is None else {self.name: memory.encode(known)}
        effects = before.effects
        if effect is not None and (not effects or effects[-1] != effect):
            made = structs.replace(effect, action_id=decision_id(self.target, effect.at))
            effects = (*effects, made)
        return structs.replace(before, memories=memories, effects=effects)
