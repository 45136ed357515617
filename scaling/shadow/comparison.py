"""What the simulated rules would have cost, how late messages would have been, and whether to switch. Pure."""

from __future__ import annotations

from msgspec import Struct

from scaling.config.policy import Policy, QueueSpec
from scaling.decision.orders import follow_text, standing
from scaling.model import Controls, TargetState
from scaling.shadow import queue as imagined
from scaling.shadow.memory import Shadow, Tally, decode, sides
from tidemark.foundation.wording import duration_text, number_text, percent_text

DAY = 86_400.0

ENOUGH = DAY
"""Seconds to have been seen before anything is recommended: a day has its own shape."""

ENOUGH_MODELLED = 0.9
"""Share of these in which it must be known how long messages waited. Chosen: a tenth may be missing, so that one outage of two
hours a day does not end a comparison.
"""

FAILED = 0.01
"""A larger share of decisions in which its rules raised an error is none to switch to: what holds for want of a decision may
look cheap. Chosen: one in a hundred, about a quarter of an hour a day.
"""

WORTH = 0.01
"""A smaller share of the instance-hours is not worth a switch. Chosen: one per cent is below what two equal days differ by."""


class ShadowView(Struct, frozen=True):
    """The simulated rules of one target, as the HTTP API and `tidemark shadow` show them.

    `rules` is the shadow that was last simulated, which an order to promote it names. `simulated` is `shadow`, or
    `configured` while the shadow is promoted (`promoted_by`, `promoted_at`). `current` is
    the imagined capacity, `desired`, `reason` and `line` are of the last simulated decision. The comparison is since
    `since`, over `seconds` that were seen: hours of capacity units (`unit`) of the rules that decide and of the simulated ones, the
    share of messages that waited longer than `wait` (null where it is not known) beside the `allowed` one, and the share
    of decisions that wanted the same capacity. `switch` says whether to exchange them, `advice` why. With the simulated capacity so many
    messages more would be there now (`backlog_apart`; fewer where it is negative, null where no queue is simulated).
    """

    rules: str | None
    unit: str
    simulated: str
    promoted_by: str | None
    promoted_at: float | None
    current: int | None
    desired: int | None
    reason: str | None
    line: str | None
    since: float | None
    seconds: float
    live_hours: float
    simulated_hours: float
    live_late: float | None
    simulated_late: float | None
    wait: float | None
    allowed: float | None
    agreed: float | None
    switch: bool
    advice: str
    notes: tuple[str, ...]
    backlog_apart: int | None = None


def shadow_view(policy: Policy, state: TargetState, controls: Controls) -> ShadowView | None:
    """None where the target has no shadow."""
    if policy.shadow is None or policy.spec.shadow is None:
        return None
    queue, promoted = policy.spec.shadow.queue, standing(policy, controls)
    stored = decode(state.shadow) or Shadow()
    is_current = stored.rules in {"", sides(policy, promoted=promoted is not None)}
    shadow = stored if is_current else Shadow(known=stored.known)  # figures of other rules are none of these
    tally, last = shadow.tally, shadow.last
    late = _late(tally) if queue is not None else None
    unit = f"{policy.spec.facts.one}-hours"
    switch, advice = _advice(tally, queue, unit, promoted=promoted is not None)
    return ShadowView(
        rules=stored.rules.partition("-")[0] or None,
        unit=unit,
        simulated="configured" if promoted is not None else "shadow",
        promoted_by=promoted.by if promoted is not None else None,
        promoted_at=promoted.at if promoted is not None else None,
        current=shadow.capacity,
        desired=last.desired if last is not None else None,
        reason=last.reason if last is not None else None,
        line=last.line if last is not None else None,
        since=tally.since or None,
        seconds=tally.seconds,
        live_hours=tally.live / 3600.0,
        simulated_hours=tally.simulated / 3600.0,
        live_late=late[0] if late is not None else None,
        simulated_late=late[1] if late is not None else None,
        wait=queue.wait if queue is not None else None,
        allowed=queue.late if queue is not None else None,
        agreed=tally.agreed / tally.decisions if tally.decisions else None,
        switch=switch,
        advice=advice,
        notes=_notes(policy, controls, queue, shadow),
        backlog_apart=None if queue is None else shadow.apart[-1][1] if shadow.apart else 0,
    )


def _late(tally: Tally) -> tuple[float, float] | None:
    """Shares of late messages: those begun late, and those that wait too long already."""
    if tally.arrived <= 0.0 or tally.modelled < ENOUGH_MODELLED * tally.seconds:
        return None
    live, simulated = tally.live_late + tally.live_overdue, tally.simulated_late + tally.simulated_overdue
    return min(live / tally.arrived, 1.0), min(simulated / tally.arrived, 1.0)


def _advice(tally: Tally, queue: QueueSpec | None, unit: str, *, promoted: bool) -> tuple[bool, str]:
    keep, change = ("stay with the promoted shadow", "withdraw it") if promoted else ("stay", "switch")
    if tally.seconds < ENOUGH:
        return False, f"too little seen: {duration_text(tally.seconds)} of at least {duration_text(ENOUGH)}"
    if tally.failed > FAILED * tally.decisions:
        failed = percent_text(tally.failed / tally.decisions)
        return False, f"{keep}: the other rules failed in {failed} of their decisions"
    days = tally.seconds / DAY
    saved = (tally.live - tally.simulated) / 3600.0 / days
    cost = f"{'saves' if saved >= 0 else 'costs'} {number_text(abs(saved))} {unit} a day"
    late = _late(tally)
    if queue is None or late is None:
        return (
            False,
            f"{keep}: the other {cost}{'' if saved >= 0 else ' more'}, but not known is how many messages would be late",
        )
    live, simulated = late
    lateness = (
        f"{percent_text(simulated)} late of {percent_text(queue.late)} allowed (now {percent_text(live)})"
    )
    worth = abs(tally.live - tally.simulated) >= WORTH * max(tally.live, 1.0)
    if simulated <= queue.late and worth and saved > 0:
        return True, f"{change}: {cost} at {lateness}"
    if simulated <= queue.late < live:
        more = "" if saved >= 0 else " more"
        return True, f"{change}: {lateness}; it {cost}{more}"
    if simulated > queue.late and simulated <= live and worth and saved > 0:
        return True, f"{change}: {cost} at no more late messages: {lateness}"
    if simulated > queue.late:
        return False, f"{keep}: {lateness}; the other {cost}{'' if saved >= 0 else ' more'}"
    if not worth:
        return False, f"{keep}: no difference worth a switch; {lateness}"
    return False, f"{keep}: the other {cost} more; {lateness}"


def _notes(policy: Policy, controls: Controls, queue: QueueSpec | None, shadow: Shadow) -> tuple[str, ...]:
    notes = []
    promoted = standing(policy, controls)
    if promoted is not None:
        notes.append(f"promoted by {promoted.by}; tidemark.toml should follow: {follow_text(policy.target)}")
    elif controls.promoted is not None:
        notes.append(
            f"a promotion by {controls.promoted.by} was of other rules than this shadow has now, and counts no more"
        )
    if queue is None:
        table = f"[targets.{policy.target}.shadow]"
        notes.append(
            f"not known is how many messages would be late: name the metric of the backlog in {table}"
        )
    else:
        notes.append(imagined.describe_instances(queue, shadow.known))
    return tuple(notes)


def promotion_warning(policy: Policy, controls: Controls) -> str | None:
    """What lint has to say while a promotion stands, or has lost what it was of."""
    promoted, target = controls.promoted, f"targets.{policy.target}"
    if promoted is None or policy.spec.shadow is None:  # the file has followed
        return None
    if standing(policy, controls) is None:
        return (
            f"{target}: the shadow that {promoted.by} promoted has other rules now: the configured ones decide until it is "
            "promoted again"
        )
    return (
        f"{target}: its shadow decides, promoted by {promoted.by}, and tidemark.toml says otherwise: "
        f"{follow_text(policy.target)}"
    )


def promotion_news(policy: Policy, state: TargetState, controls: Controls) -> str | None:
    """What tidemark.toml has made of a promotion since the last decision (`state` is of then); None where it is as it was,
    or where an order changed it, which is in the log.
    """
    promoted, shadow, last = controls.promoted, decode(state.shadow), state.last
    if promoted is None or last is None or promoted.at > last.at:
        return None
    before, now = shadow is not None and shadow.promoted, standing(policy, controls) is not None
    if before and not now:
        lost = "has other rules now" if policy.spec.shadow is not None else "is not in tidemark.toml any more"
        return f"the shadow that {promoted.by} promoted {lost}: the configured rules decide"
    if now and not before:
        return f"tidemark.toml has the shadow again that {promoted.by} promoted: its rules decide"
    return None
