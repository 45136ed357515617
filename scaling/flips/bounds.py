"""How far the outcome of some conditions holds beyond their borders. Pure."""

from __future__ import annotations

from msgspec import structs

from scaling.decision.decide import Case
from scaling.flip import Condition, Conditions, Flip
from scaling.flips.search import border_of
from scaling.flips.what_if import NEXT, RAISED, apply_conditions, border, exactly, is_read
from scaling.model import Recommendation
from scaling.window import MAX_VALUE

_BOUNDS = (*sorted(RAISED), "minimum", "schedule floor", "platform floor")
FAR = 1_000_000


def bound_flip(base: Case, conditions: Conditions, made: Recommendation) -> Flip | None:
    """The flip that names what was decided with these conditions, for all values beyond them: where it ends, there is a
    condition more, and where it goes further, that is said. None where it ends somewhere that has no name.
    """
    probe = _Probe(base, made)
    kept = probe.close(conditions, _furthest(conditions))
    if kept is None:
        return None
    beyond = probe.further
    for condition in conditions:
        if condition.quantity in _BOUNDS:
            far = structs.replace(condition, value=float(FAR) if condition.quantity in RAISED else 0.0)
            after = probe.decide(tuple(far if other is condition else other for other in conditions))
            beyond = beyond or (after is not None and after.desired != made.desired)
    return Flip(made.reason, kept, made.desired if made.acts else None, beyond and made.acts)


def _furthest(conditions: Conditions) -> Conditions:
    """The metrics with a border in one direction, by the border that counts; those with two are closed already."""
    read = [(c.quantity.partition(" ")[2], c) for c in conditions if is_read(c)]
    furthest: dict[str, Condition] = {}
    for name, condition in read:
        before, upward = furthest.get(name), condition.comparator.startswith(">")
        if before is None or (condition.value > before.value) == upward:
            furthest[name] = condition
    ways = {name: {c.comparator[0] for other, c in read if other == name} for name in furthest}
    return tuple(condition for name, condition in furthest.items() if len(ways[name]) == 1)


class _Probe:
    def __init__(self, base: Case, made: Recommendation) -> None:
        self.base, self.made, self.further = base, made, False

    def close(self, conditions: Conditions, borders: Conditions) -> Conditions | None:
        """The conditions, with those more that end where the outcome does, for the first metric that can be bounded so,
        all others being as far beyond as can be.
        """
        if not borders or self.has_same_outcome(
            (*conditions, *(_furthest_beyond(border) for border in borders))
        ):
            return conditions
        for condition in borders:
            others = tuple(_furthest_beyond(border) for border in borders if border is not condition)
            if not self.has_same_outcome((*conditions, *others)) or condition.quantity.startswith(NEXT):
                continue
            end = self._find_named_end(condition, (*conditions, *others)) or self._search_end(
                condition, (*conditions, *others)
            )
            return conditions if end is None else (*conditions, _opposite_of(end))
        return None

    def _find_named_end(self, condition: Condition, conditions: Conditions) -> Condition | None:
        """The end that the rules name themselves, where the outcome is the same up to it and another one there."""
        case = apply_conditions(self.base, conditions)
        for flip in () if case is None else case.verdict.flips:
            for end in flip.conditions:
                if end.quantity == condition.quantity and end.comparator[0] == condition.comparator[0]:
                    last, beyond = _value_at(_opposite_of(end)), _value_at(end)
                    middle = (condition.value + last) / 2
                    within = all(
                        self.has_same_outcome((*conditions, *exactly(end.quantity, value)))
                        for value in (middle, last)
                    )
                    if within and not self.has_same_outcome((*conditions, *exactly(end.quantity, beyond))):
                        return end
        return None

    def _search_end(self, condition: Condition, conditions: Conditions) -> Condition | None:
        return border_of(
            lambda value: not self.has_same_outcome((*conditions, *exactly(condition.quantity, value))),
            condition.value,
            condition.quantity,
            upward=condition.comparator.startswith(">"),
        )

    def has_same_outcome(self, conditions: Conditions) -> bool:
        """True where the outcome is the same; that it goes further is noted."""
        after = self.decide(conditions)
        if after is None or after.reason is not self.made.reason or after.acts is not self.made.acts:
            return False
        self.further = self.further or after.desired != self.made.desired
        return True

    def decide(self, conditions: Conditions) -> Recommendation | None:
        case = apply_conditions(self.base, conditions)
        return None if case is None else case.decide()


def _furthest_beyond(condition: Condition) -> Condition:
    upward = condition.comparator.startswith(">")
    return Condition(condition.quantity, ">=" if upward else "<=", MAX_VALUE if upward else 0.0)


def _value_at(condition: Condition) -> float:
    low, high = border(condition)
    return high if condition.comparator.startswith("<") else low


def _opposite_of(end: Condition) -> Condition:
    return structs.replace(end, comparator={">": "<=", ">=": "<", "<": ">=", "<=": ">"}[end.comparator])
