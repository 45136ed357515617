"""When an announced scale-in may be carried out, and how its notice ends. Pure.

A scale-in of a target with `drain` is decided and saved as pending as any other, together with its notice, and is not
sent yet. It is sent once enough workers have acknowledged (`sendable_from`), and asked again until then at every evaluation, as
every pending action is: what is not wanted any more is withdrawn, and its notice with it. A notice is over once its
action is not the pending one any more, whatever ended that (`with_end`), and both are saved in one row.
"""

from __future__ import annotations

from math import inf

from msgspec import structs

from scaling.config.policy import Policy
from scaling.model import Controls, Direction, EffectRecord, Reason, ScaleAction, TargetState
from scaling.notice import Drain, DrainEnd
from scaling.window import CLOCK_TOLERANCE
from tidemark.foundation.wording import count_text

EVERY_WORKER = "*"
"""The name under which somebody acknowledges for all workers together."""


def announce_drain(policy: Policy, action: ScaleAction) -> tuple[ScaleAction, Drain | None]:
    """A new action with its notice, and with as much longer to live; no notice for what workers need not know in advance.

    An operator's override is sent at once. What brings a capacity to a bound or into the budget waits for `notice`, and no longer.
    """
    spec = policy.spec.drain
    if spec is None or action.direction is Direction.OUT or action.reason is Reason.OVERRIDDEN:
        return action, None
    start, end = action.from_capacity, action.to_capacity
    action = structs.replace(action, expires_at=action.expires_at + spec.notice)
    return action, Drain(
        notice=action.action_id,
        from_capacity=start,
        to_capacity=end,
        at=action.decided_at,
        deadline=action.decided_at + spec.notice,
        expires_at=action.expires_at,
        # Where the platform chooses who goes, it may be anybody.
        needed=start - end if policy.spec.facts.removes_named else start,
        goes_anyway=spec.unacknowledged == "scale_in" or action.reason is not Reason.SCALE_IN,
    )


def open_drain(state: TargetState) -> Drain | None:
    """The notice of the pending action, if it has one."""
    drain, pending = state.drain, state.pending
    mine = drain is not None and pending is not None and drain.notice == pending.action_id
    return drain if mine and drain is not None and drain.end is None else None


def workers_of(drain: Drain, controls: Controls) -> tuple[str, ...]:
    """Who has acknowledged this notice."""
    known = controls.acknowledged
    return known.workers if known is not None and known.notice == drain.notice else ()


def is_acknowledged(drain: Drain, controls: Controls) -> bool:
    workers = workers_of(drain, controls)
    return EVERY_WORKER in workers or len(workers) >= drain.needed


def sendable_from(state: TargetState, controls: Controls) -> float:
    """From when on its notice lets the pending action be sent; infinite while only an acknowledgement does."""
    drain = open_drain(state)
    if drain is None or is_acknowledged(drain, controls):
        return -inf
    return drain.deadline if drain.goes_anyway else inf


def unanswered(state: TargetState, controls: Controls, now: float) -> str | None:
    """Why the pending action has to be withdrawn at its deadline, in words; None where it has not."""
    drain = open_drain(state)
    if drain is None or now < drain.deadline or sendable_from(state, controls) < inf:
        return None
    acknowledged = len(workers_of(drain, controls))
    return f"{acknowledged} of {count_text(drain.needed, 'worker')} had acknowledged by the deadline"


def end_unanswered(state: TargetState, now: float) -> TargetState:
    """The state after its pending action was withdrawn because workers did not acknowledge in time."""
    if state.drain is None:
        return state
    return structs.replace(state, drain=structs.replace(state.drain, end=DrainEnd.UNANSWERED, ended_at=now))


def announced_again_at(policy: Policy, state: TargetState, now: float) -> float | None:
    """From when on a scale-in of the rules may be announced again; None where it may be now."""
    spec, drain = policy.spec.drain, state.drain
    if spec is None or drain is None or drain.end is not DrainEnd.UNANSWERED or drain.ended_at is None:
        return None
    until = drain.ended_at + spec.again
    return until if drain.ended_at - CLOCK_TOLERANCE <= now < until else None


def instances_to_remove(policy: Policy, state: TargetState, controls: Controls) -> tuple[str, ...]:
    """The instances that the pending action removes: as many of those acknowledged as go, the first ones; else none, and the
    platform chooses.
    """
    drain = open_drain(state)
    if drain is None or not policy.spec.facts.removes_named:
        return ()
    named = [worker for worker in workers_of(drain, controls) if worker != EVERY_WORKER]
    return tuple(named[: drain.needed]) if len(named) >= drain.needed else ()


def with_end(state: TargetState) -> TargetState:
    """The state with the end of its notice, where the action is not pending any more."""
    drain = state.drain
    if drain is None or drain.end is not None or open_drain(state) is not None:
        return state
    return structs.replace(state, drain=ended(drain, state))


def ended(drain: Drain, state: TargetState) -> Drain:
    """A notice whose action is not pending any more, with its end by the state."""
    effect = effect_of_notice(drain, state)
    gone = state.withdrawn if state.withdrawn and state.withdrawn.action_id == drain.notice else None
    at = effect.at if effect else gone.at if gone else state.last.at if state.last else drain.at
    end = DrainEnd.WITHDRAWN if effect is None else DrainEnd.DONE
    return structs.replace(drain, end=end, ended_at=max(at, drain.at))


def effect_of_notice(drain: Drain, state: TargetState) -> EffectRecord | None:
    """The effect of the scale-in that was announced, if it had one."""
    return next((ordered for ordered in state.effects if ordered.action_id == drain.notice), None)


def why_sent(state: TargetState, controls: Controls) -> str:
    """What lets the pending action be sent now, in words; empty where it waited for no workers."""
    drain = open_drain(state)
    if drain is None:
        return ""
    workers = workers_of(drain, controls)
    if EVERY_WORKER in workers:
        return "it was acknowledged for all workers"
    by_them = f"{len(workers)} of {count_text(drain.needed, 'worker')}"
    if len(workers) >= drain.needed:
        return f"{by_them} have acknowledged it"
    return f"the time of its workers is over, and {by_them} had acknowledged it"


def drain_text(state: TargetState, controls: Controls, now: float) -> str:
    """For whom the pending action waits, in words to be added to others; empty where it waits for nobody."""
    drain = open_drain(state)
    if drain is None or sendable_from(state, controls) <= now:
        return ""
    acknowledged, left = len(workers_of(drain, controls)), max(drain.deadline - now, 0.0)
    text = f"; {acknowledged} of {count_text(drain.needed, 'worker')} have acknowledged, {left:.0f} s left"
    return f"{text}, after which it is carried out" if drain.goes_anyway else text
