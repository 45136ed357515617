"""What is remembered of a metric that measures something else now, and goes. What is the target's own, such as cooldowns, stays. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from msgspec import structs

from scaling.config.policy import Policy
from scaling.model import TargetState
from scaling.rules.combine import memory_name, metrics_of
from scaling.rules.view import Rule
from scaling.window import EMPTY, Window


def with_own_levels(policy: Policy, state: TargetState, anew: tuple[str, ...]) -> TargetState:
    """Without what a plateau's metric was at the last scale-outs, where it measures something else now."""
    plateau = policy.spec.plateau
    if plateau is None or plateau.metric not in anew:
        return state
    effects = tuple(structs.replace(effect, level=None) for effect in state.effects)
    return structs.replace(state, effects=effects, pending_level=None)


def with_own_memories(policy: Policy, windows: Mapping[str, Window], state: TargetState) -> TargetState:
    """Without what rules have learned of something else than their metrics measure now. A rule that reads one more metric, or one fewer,
    goes on with what it knows.
    """
    memories, learned_from = state.memories, state.learned_from
    for rule in policy.flat_rules:
        if not hasattr(rule, "learn"):
            continue
        name, measured = memory_name(rule), _measured_by(rule, windows)
        before = learned_from.get(name)
        if before == measured or not measured or not measured[0]:
            continue
        known = tuple(filter(None, measured))
        if before and not _is_of_the_same(before, known):
            memories = {other: memory for other, memory in memories.items() if other != name}
        elif len(known) < len(measured):
            continue
        kept = {other: of for other, of in learned_from.items() if other in memories}
        learned_from = {**kept, name: known}
    if learned_from is state.learned_from:
        return state
    return structs.replace(state, memories=memories, learned_from=learned_from)


def _measured_by(rule: Rule, windows: Mapping[str, Window]) -> tuple[str, ...]:
    """The fingerprints of a rule's metrics, empty for one without samples: a misspelt queue that was never read is nothing to learn from.
    None where a rule of the user's own does not name its metrics.
    """
    with suppress(Exception):
        of = (windows.get(metric, EMPTY) for metric in metrics_of(rule))
        return tuple(window.origin.fingerprint if window.times or window.readings else "" for window in of)
    return ()


def _is_of_the_same(before: tuple[str, ...], after: tuple[str, ...]) -> bool:
    earlier, later = set(before), set(after)
    return before[0] == after[0] and (earlier <= later or later <= earlier)
