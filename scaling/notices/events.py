"""Which notices a saved change of a target's state gives. Pure.

They are read off the two states, before and after, and saved with the second: of writers that compete for a change one
saves it, and with it its notices. There is no notice of what did not happen, and none is left out of what did.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from msgspec import structs

from scaling.calls.usage import CallsView
from scaling.config.notify_table import Notify
from scaling.decision import explain
from scaling.drains.draining import effect_of_notice, ended
from scaling.log_entry import decision_id
from scaling.model import Reason, Recommendation, TargetState
from scaling.notice import Drain, DrainEnd, Notice, NoticeKind, Standing, Telling
from scaling.notices.outbox import replace_by_one
from scaling.ports import PoisonMessage
from scaling.rules.combine import PROBLEMS
from tidemark.foundation.sanitize import sanitize_line
from tidemark.foundation.wording import duration_text, time_text

KEPT = 20
"""Notices in a state's row. There are more only while the outbox cannot be reached; one that counts takes their place."""

_MISSING = frozenset(
    {
        Reason.STALE_METRIC,
        Reason.COLLECT_FAILED,
        Reason.INVALID_METRIC,
        Reason.CAPACITY_UNKNOWN,
        Reason.FALLBACK,
    }
)
"""Reasons of what is not read. Windows that fill, disabled entities and rules that fail are no missing metrics."""
_IN_THE_WAY = frozenset(
    {
        Reason.ACTION_PENDING,
        Reason.EXTERNAL_CHANGE,
        Reason.STATE_CORRUPT,
        Reason.REFUSED,
        Reason.INCOMPLETE_WINDOW,
        Reason.ENTITY_DISABLED,
        Reason.RULE_FAILED,
    }
)
"""Reasons for which the rules may not have been asked at all, or did not vote."""


_ENDED = {
    DrainEnd.DONE: "is done: whoever is left goes on with its work",
    DrainEnd.WITHDRAWN: "is withdrawn: all go on with their work",
    DrainEnd.UNANSWERED: "is withdrawn, for it was not acknowledged in time: all go on with their work",
}


def announced(notify: Notify, target: str, before: TargetState, after: TargetState) -> TargetState:
    """`after` with the notices that it gives, seen from `before`, besides those it has."""
    known = after.telling or Telling()
    ended, standing = _lasting(notify, target, known.standing, before.last, after.last)
    new = (
        *_moved(target, before, after),
        *_not_carried_out(target, before, after),
        *_external_changes(target, before, after),
        *_budget(target, before, after),
        *_drains(target, before, after),
        *ended,
    )
    # A rule or a scaler of the user's own may have said anything, also what no table and no message can hold.
    notices = (*known.notices, *(structs.replace(notice, text=sanitize_line(notice.text)) for notice in new))
    if len(notices) > KEPT:
        # Workers wait for the last notice of a drain, after the end of the one before; earlier ones are over.
        drains = tuple(notice for notice in notices if notice.kind is NoticeKind.DRAIN)[-2:]
        notices = (replace_by_one([notice for notice in notices if notice not in drains]), *drains)
    telling = Telling(notices, standing)
    return structs.replace(after, telling=None if telling == Telling() else telling)


def poison_notice(text: str, messages: Sequence[PoisonMessage], count: int, now: float) -> Notice:
    """Of what lies in the poison queues: another one when there are more, or others."""
    lying = "\n".join((str(count), *sorted(message.message_id for message in messages)))
    digest = hashlib.sha256(lying.encode()).hexdigest()[:32]
    return Notice(f"poison:{digest}", NoticeKind.POISON, "", now, text, counts={"poison": count})


def calls_notice(short: CallsView, now: float) -> Notice:
    """Of a budget of calls that does not suffice: another one on another day."""
    text = (
        f"the budget of calls {short.api} for {short.scope} ({short.budget_text}) does not suffice: {short.refused_minute} of "
        f"{short.last_minute + short.refused_minute} calls of the last minute were refused, and so it was for ten minutes. "
        "What they would have read is unknown, and nothing is scaled in meanwhile; `tidemark doctor` says what to do"
    )
    identity = f"calls:{short.api}:{short.scope}@{datetime.fromtimestamp(now, UTC):%Y%m%d}"
    return Notice(identity, NoticeKind.CALLS, "", now, text)


def test_notice(now: float) -> Notice:
    """What `tidemark notify test` sends, once."""
    text = "this is a test of a webhook; nothing happened"
    return Notice(f"test:{decision_id('test', now)}", NoticeKind.TEST, "", now, text)


def _moved(target: str, before: TargetState, after: TargetState) -> Iterator[Notice]:
    known = {effect.action_id for effect in before.effects}
    for effect in after.effects:
        if effect.action_id in known or not effect.action_id:
            continue
        pending = before.pending
        asked = pending if pending is not None and pending.action_id == effect.action_id else None
        start, end = effect.from_capacity, effect.to_capacity
        way = f"{target} went {'out' if end > start else 'in'}, {start} -> {end}"
        yield Notice(
            id=f"scaled:{effect.action_id}",
            kind=NoticeKind.SCALED,
            target=target,
            at=effect.at,
            text=f"{way}: {asked.line}" if asked is not None and asked.line else way,
            reason=asked.reason if asked is not None else "",
            current=start,
            desired=asked.to_capacity if asked is not None else end,
            reached=end,
            decision_id=effect.action_id,
        )


def _not_carried_out(target: str, before: TargetState, after: TargetState) -> Iterator[Notice]:
    """An action that is gone without an effect: refused by the platform, or given up. Not one that was withdrawn because
    nobody wanted it any more, nor one that an external change was faster than, which has a notice of its own.
    """
    action, instead = before.pending, after.pending
    refused = after.refused if after.refused != before.refused else None
    if action is None or (instead is not None and instead.action_id == action.action_id):
        return
    if after.withdrawn is not None and after.withdrawn.action_id == action.action_id:
        return
    done = any(effect.action_id == action.action_id for effect in after.effects)
    overridden = after.last is not None and after.last.reason is Reason.OVERRIDDEN
    if (done or overridden or after.external_change is not None) and refused is None:
        return
    if action.to_capacity == after.expected and refused is None:  # found there already
        return
    kind = NoticeKind.FAILED if refused is None else NoticeKind.REFUSED
    way = f"{action.from_capacity} -> {action.to_capacity}"
    why = "was given up before it took effect" if refused is None else f"was refused: {refused.detail}"
    yield Notice(
        id=f"{kind}:{action.action_id}",
        kind=kind,
        target=target,
        at=refused.at
        if refused is not None
        else max(action.decided_at, after.last.at if after.last else 0.0),
        text=f"{target}: {way} {why}",
        reason=action.reason,
        current=action.from_capacity,
        desired=action.to_capacity,
        decision_id=action.action_id,
    )


def _external_changes(target: str, before: TargetState, after: TargetState) -> Iterator[Notice]:
    change = after.external_change
    if change is None or (before.external_change is not None and before.external_change.seen == change.seen):
        return
    yield Notice(
        id=f"external_change:{decision_id(target, change.at)}",
        kind=NoticeKind.EXTERNAL_CHANGE,
        target=target,
        at=change.at,
        text=f"{target}: expected {change.expected}, found {change.seen}: somebody else changed it",
        reason=Reason.EXTERNAL_CHANGE,
        current=change.expected,
        reached=change.seen,
    )


def _budget(target: str, before: TargetState, after: TargetState) -> Iterator[Notice]:
    """The warning of a day. That the budget binds is a condition that lasts."""
    spent, known = after.spent, before.spent
    if spent is None or not spent.warned or (known is not None and known.warned and known.day == spent.day):
        return
    yield Notice(
        id=f"budget:{decision_id(target, spent.day)}",
        kind=NoticeKind.BUDGET,
        target=target,
        at=spent.until,
        text=f"{target}: the budget of the day will not last to its end, as it looks now",
        reason=Reason.OVER_BUDGET,
        current=spent.capacity,
    )


def _drains(target: str, before: TargetState, after: TargetState) -> Iterator[Notice]:
    """The begin of a drain notice, and its end, also of one that another took the place of."""
    earlier, drain = before.drain, after.drain
    if earlier is not None and earlier.end is None and (drain is None or drain.notice != earlier.notice):
        yield _of_drain(target, ended(earlier, after), after)
    known = (
        earlier.end if earlier is not None and drain is not None and earlier.notice == drain.notice else None
    )
    begun = earlier is not None and drain is not None and earlier.notice == drain.notice
    if drain is not None and (not begun or drain.end is not known):
        yield _of_drain(target, drain, after)


def _of_drain(target: str, drain: Drain, after: TargetState) -> Notice:
    way = f"{target}: {drain.from_capacity} -> {drain.to_capacity}"
    effect = effect_of_notice(drain, after) if drain.end is DrainEnd.DONE else None
    reached = None if effect is None else effect.to_capacity
    if drain.end is None:
        request = f"acknowledge it by {time_text(drain.deadline)}, once there is nothing left to lose"
        text = f"{way} is announced to workers: {request}"
    elif reached not in {None, drain.to_capacity}:
        text = f"{way} has ended at {reached}: whoever is left goes on with its work"
    else:
        text = f"{way} {_ENDED[drain.end]}"
    return Notice(
        id=f"drain:{drain.notice}" if drain.end is None else f"drain:{drain.notice}:ended",
        kind=NoticeKind.DRAIN,
        target=target,
        at=drain.at if drain.ended_at is None else drain.ended_at,
        text=text,
        reason=drain.end or "",
        current=drain.from_capacity,
        desired=drain.to_capacity,
        reached=reached,
        decision_id=drain.notice,
        since=drain.at,
        ended=drain.end is not None,
        deadline=drain.deadline,
    )


def _lasting(
    notify: Notify,
    target: str,
    known: Standing | None,
    before: Recommendation | None,
    made: Recommendation | None,
) -> tuple[tuple[Notice, ...], Standing | None]:
    """Notices of what began to last too long, or is over, and what stands now."""
    if made is None or (before is not None and before.decision_id == made.decision_id):
        return (), known
    kind = _kind_of(made)
    notices: list[Notice] = []
    if known is not None and known.kind is not kind:
        if known.told:
            notices.append(_of_standing(known, target, made, ended=True))
        known = None
    elif (
        kind is NoticeKind.HELD
        and known is not None
        and not known.told
        and _votes(before) is not _votes(made)
    ):
        known = None  # until now there was no vote, or now there is none: that is another wait
    if kind is None:
        return tuple(notices), None
    standing = known or Standing(kind, made.at)
    if not standing.told and made.at - standing.since >= notify.lasting(kind):
        notices.append(_of_standing(standing, target, made, ended=False))
        standing = structs.replace(standing, told=True)
    return tuple(notices), standing


def _kind_of(made: Recommendation) -> NoticeKind | None:
    """What keeps this decision from being what the rules want; None where nothing does."""
    if made.reason in _MISSING or (made.unread and made.reason not in _IN_THE_WAY - PROBLEMS):
        return NoticeKind.METRICS_MISSING
    if made.reason is Reason.OVER_BUDGET:
        return NoticeKind.BUDGET
    if made.acts or made.reason is Reason.DRY_RUN:
        return None
    wants_more = made.proposed is not None and made.current is not None and made.proposed > made.current
    return NoticeKind.HELD if wants_more or made.reason in _IN_THE_WAY else None


def _votes(made: Recommendation | None) -> bool:
    return made is not None and made.reason not in PROBLEMS


def _of_standing(standing: Standing, target: str, made: Recommendation, *, ended: bool) -> Notice:
    identity = f"{standing.kind}:{decision_id(target, standing.since)}"
    lasted = duration_text(max(made.at - standing.since, 0.0))
    return Notice(
        id=f"{identity}:ended" if ended else identity,
        kind=standing.kind,
        target=target,
        at=made.at,
        text=f"{target}: over after {lasted}" if ended else f"for {lasted}: {explain.line(made)}",
        reason=made.reason,
        current=made.current,
        desired=made.desired if ended else made.proposed,
        decision_id=made.decision_id,
        since=standing.since,
        ended=ended,
    )
