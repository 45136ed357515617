"""Decisions with what would have changed them. Pure.

Each flip is found by deciding again. What holds a change back says what would lift it (`Case.lifts`), and rules say at
which values they change their minds; then the case is decided once more with that, and what holds it back next is added,
until something else comes out. That is the outcome the flip names. Where a rule does not name its borders (an
expression, a class of the user's, a rule that learns), they are searched for by asking it.

A rule that learns takes every sample into what it knows, so that of such a policy the flips name the next report (`next
backlog`), and nothing beyond that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

from msgspec import structs

from scaling.config.policy import Policy
from scaling.decision.decide import Case, case_of, unknown_capacity
from scaling.flip import Condition, Conditions, Flip, Lifts, all_lifted
from scaling.flips.bounds import bound_flip
from scaling.flips.search import COARSE, FINE, border_of
from scaling.flips.what_if import (
    NEXT,
    WHOLE,
    AskedEnoughError,
    apply_conditions,
    exactly,
    is_read,
    metrics_in,
)
from scaling.model import NO_CONTROLS, Controls, Direction, Reason, Recommendation, TargetState, Verdict
from scaling.rules.combine import PROBLEMS, metrics_of
from scaling.rules.composite import CompositeRule
from scaling.window import Window

STEPS = 8
"""So often something else may hold a change back before it is given up to name them all."""

MOST = 6
"""Flips that are named at most: somebody reads them."""

_OF = {Direction.OUT: Reason.SCALE_OUT, Direction.IN: Reason.SCALE_IN}
_UNREADABLE = (Condition("failures", "==", 0.0), Condition("capacity", "==", 0.0))


def decide_and_explain(
    policy: Policy,
    windows: Mapping[str, Window],
    state: TargetState,
    *,
    now: float,
    controls: Controls = NO_CONTROLS,
    decision_id: str = "",
) -> Recommendation:
    """`decide`, with flips. Never raises for any windows, state or controls."""
    case = case_of(policy, windows, state, now=now, controls=controls, decision_id=decision_id)
    return decide_case(case, policy, state, now=now, decision_id=decision_id)


def decide_case(
    case: Case | None, policy: Policy, state: TargetState, *, now: float, decision_id: str
) -> Recommendation:
    """The decision on a case, with flips. Without a case (the capacity is not known) one flip: that the capacity is read."""
    if case is None:
        made = unknown_capacity(policy, state, now=now, decision_id=decision_id)
        return structs.replace(made, flips=(Flip(None, (Condition("capacity", "==", 0.0),)),))
    made = case.decide()
    flips: dict[Flip, None] = {}
    with suppress(AskedEnoughError):
        for flip in _Explaining(case, made).flips():
            flips[flip] = None
    return structs.replace(made, flips=tuple(flips)[:MOST])


class _Explaining:
    def __init__(self, case: Case, made: Recommendation) -> None:
        self.case, self.made, self.lifts = case, made, case.lifts
        self.rules = case.policy.flat_rules
        self.desired: dict[Conditions, int | None] = {}
        """What the rules want, by the conditions under which they were asked: both directions ask for the same values."""

    def flips(self) -> Iterator[Flip]:
        made = self.made
        if self.lifts:
            once = made.acts
            yield from (f for lift in self.lifts if (f := self._follow(lift, once=once)) is not None)
        elif made.acts:
            candidates = [self._follow(lift, once=True) for lift in self._conditions_to_stop()]
            flips = [flip for flip in candidates if flip is not None]
            yield from flips or ([] if self.case.policy.learns else [Flip(Reason.WITHIN_TARGET)])
        elif made.reason in _IMPOSSIBLE:
            return
        else:
            ways = [way for way in Direction if way is Direction.OUT or self.case.view.current]
            starts = {way: self._conditions_to_start(way) for way in ways}
            if not any(starts.values()):
                yield Flip(Reason.WITHIN_TARGET)
            for way, lift in starts.items():
                yield from (f for start in lift if (f := self._follow(start, way=way)) is not None)

    # What rules would have to see

    def _conditions_to_start(self, way: Direction) -> Lifts:
        known_lifts = [
            self._lifts_named(verdict, lambda outcome: outcome is _OF[way]) for verdict in self.case.verdicts
        ]
        opaque = self._opaque_quantities()
        if way is Direction.OUT:
            starts = [start for lifts in known_lifts for start in lifts]
            return (*dict.fromkeys(starts), *self._search(opaque, way, ()))
        voters = [
            lifts
            for verdict, lifts in zip(self.case.verdicts, known_lifts, strict=True)
            if verdict.desired is not None and verdict.desired >= self.case.view.current
        ]
        known = [lifts for lifts in voters if lifts]
        starts_in = all_lifted(known) if known else ((),)
        if not opaque:
            return starts_in if len(known) == len(voters) and known else ()
        return tuple(conditions for start in starts_in for conditions in self._search(opaque, way, start))

    def _conditions_to_stop(self) -> Lifts:
        out = (self.made.desired or 0) > self.case.view.current
        stopped = _OF[Direction.OUT if out else Direction.IN]
        voters = [v for v in self.case.verdicts if v.reason is stopped]
        known_lifts = [
            self._lifts_named(verdict, lambda outcome: outcome is not stopped) for verdict in voters
        ]
        opaque = [name for name in self._opaque_quantities() if not self.case.policy.learns]
        if out:
            known = [lifts for lifts in known_lifts if lifts]
            starts = all_lifted(known) if known else ((),)
            if len(known) == len(known_lifts):
                return starts
            return tuple(conditions for start in starts for conditions in self._search(opaque, None, start))
        return (*(start for lifts in known_lifts for start in lifts), *self._search(opaque, None, ()))

    def _lifts_named(self, verdict: Verdict, wanted: Callable[[Reason | None], bool]) -> Lifts:
        """What a rule says leads to such an outcome; a user's rule may name metrics that are not there."""
        known = self.case.policy.windows.keys()
        flips = (flip for flip in verdict.flips if wanted(flip.outcome))
        return tuple(f.conditions for f in flips if all(known >= set(metrics_in(c)) for c in f.conditions))

    def _opaque_quantities(self) -> list[str]:
        """Quantities of the metrics of rules that vote and do not name where they would change their minds."""
        quantities: dict[str, str] = {}
        for rule, verdict in zip(self.rules, self.case.verdicts, strict=False):
            if verdict.desired is None or verdict.flips:
                continue
            if hasattr(rule, "learn"):
                quantities |= {name: f"{NEXT} {name}" for name in metrics_of(rule)[:1]}
                continue
            texts = rule.names if isinstance(rule, CompositeRule) else ()
            named = {name.partition(".")[0]: name.partition(".")[2] or "latest" for name in texts}
            quantities |= {name: f"{named.get(name, 'latest')} {name}" for name in metrics_of(rule)}
        return list(quantities.values())

    def _search(self, quantities: list[str], way: Direction | None, start: Conditions) -> Lifts:
        """Values of one metric that make the rules want the direction, or no change; else of all of them together."""
        lifts: list[Conditions] = []
        for quantity in quantities:
            for upward in (True, False):
                border = self._border(quantity, way, start, upward=upward)
                if border is not None:
                    lifts.append((*start, border))
        return tuple(lifts) or self._search_together(quantities, way, start)

    def _border(
        self, quantity: str, way: Direction | None, start: Conditions, *, upward: bool
    ) -> Condition | None:
        summary = self.case.view.metric(quantity.partition(" ")[2])
        if summary.problem is not None:
            return None
        width = COARSE if quantity.startswith(NEXT) else FINE
        return border_of(
            lambda value: self._wants(way, (*start, *exactly(quantity, value))),
            summary.latest,
            quantity,
            upward=upward,
            width=width,
        )

    def _search_together(self, quantities: list[str], way: Direction | None, start: Conditions) -> Lifts:
        """Where no single value does: all of them as low, or as high, as they can be, and then each as near to what it
        is as it may come.
        """
        if len(quantities) < 2 or any(quantity.startswith(NEXT) for quantity in quantities):
            return ()
        for far in (0.0, 1e15):
            pinned = {quantity: exactly(quantity, far) for quantity in quantities}
            if not self._wants(way, (*start, *_flatten(pinned.values()))):
                continue
            for quantity in quantities:
                others = _flatten(c for q, c in pinned.items() if q != quantity)
                if self._wants(way, (*start, *others)):
                    del pinned[quantity]
                    continue
                border = self._border(quantity, way, (*start, *others), upward=far > 0.0)
                if border is not None:
                    pinned[quantity] = (border,)
            return ((*start, *_flatten(pinned.values())),)
        return ()

    def _wants(self, way: Direction | None, conditions: Conditions) -> bool:
        """True where the rules then want that direction; with None, where they want another one than now."""
        if conditions not in self.desired:
            case = apply_conditions(self.case, conditions)
            self.desired[conditions] = None if case is None else case.verdict.desired
        desired, current = self.desired[conditions], self.case.view.current
        if desired is None:
            return False
        if way is None:
            return desired <= current if (self.made.desired or 0) > current else desired >= current
        return desired > current if way is Direction.OUT else desired < current

    # What else holds it back

    def _follow(self, start: Conditions, *, way: Direction | None = None, once: bool = False) -> Flip | None:
        """What comes of it, with everything added that would hold it back."""
        conditions = merge_conditions(start)
        for _ in range(STEPS):
            if self._is_unknowable(conditions):
                return Flip(None, conditions) if way is None else None
            case = apply_conditions(self.case, conditions)
            if case is None:
                return Flip(None if way is None else _OF[way], conditions, possible=False)
            made = case.decide()
            if (
                made.reason is Reason.BETWEEN_STEPS
                and (further := self._go_on_to_step(conditions, way)) is not None
            ):
                conditions = further
                continue
            if once or made.acts or not case.lifts:
                break
            more = merge_conditions((*conditions, *case.lifts[0]))
            if more == conditions:
                break
            conditions = more
        else:
            return None
        if way is not None and not (
            made.acts and ((made.desired or 0) > (made.current or 0)) == (way is Direction.OUT)
        ):
            return None
        if (made.reason, made.desired) == (self.made.reason, self.made.desired):
            return None
        return bound_flip(self.case, conditions, made)

    def _go_on_to_step(self, conditions: Conditions, way: Direction | None) -> Conditions | None:
        """The one value named goes so far that it is worth a step of the platform."""
        read = [condition for condition in conditions if is_read(condition)]
        if way is None or len(read) != 1 or "(" in read[0].quantity or read[0].quantity.startswith(NEXT):
            return None
        (known,), others = read, tuple(c for c in conditions if not is_read(c))

        def steps(value: float) -> bool:
            case = apply_conditions(self.case, (*others, *exactly(known.quantity, value)))
            if case is None or case.decide().reason is Reason.BETWEEN_STEPS:
                return False
            desired, current = case.verdict.desired, case.view.current
            return desired is not None and (desired > current if way is Direction.OUT else desired < current)

        border = border_of(steps, known.value, known.quantity, upward=known.comparator.startswith(">"))
        return None if border is None or border == known else (border, *others)

    def _is_unknowable(self, conditions: Conditions) -> bool:
        """True where nobody knows what the rules would say then."""
        case, now = self.case, self.case.now
        if any(condition in _UNREADABLE for condition in conditions):
            return True
        names = {c.quantity.partition(" ")[2] for c in conditions if c.quantity.partition(" ")[0] in WHOLE}
        if any(not case.view.metric(name).count for name in names if name):
            return True
        later = any(c.quantity == "time" and c.value > now for c in conditions)
        return case.policy.learns and (later or bool(names))


_IMPOSSIBLE = frozenset({Reason.AT_MINIMUM, Reason.AT_MAXIMUM, *PROBLEMS})
"""Holds that nothing ends where they do not say what would."""


def _flatten(groups: Iterable[Conditions]) -> Conditions:
    return tuple(condition for conditions in groups for condition in conditions)


def merge_conditions(conditions: Iterable[Condition]) -> Conditions:
    """Each once; of several times the last one, and of several borders of one quantity the furthest."""
    borders: dict[tuple[str, str], Condition] = {}
    for condition in conditions:
        key = (condition.quantity, condition.comparator[:1])
        before = borders.get(key)
        if before is None:
            borders[key] = condition
        elif key[1] == ">":
            borders[key] = max(before, condition, key=lambda c: (c.value, c.comparator == ">"))
        else:
            borders[key] = min(before, condition, key=lambda c: (c.value, c.comparator == "<="))
    return tuple(borders.values())
