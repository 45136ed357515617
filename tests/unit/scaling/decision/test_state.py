"""Transitions of the stored state: reports, decisions, effects, checks."""

import msgspec
import pytest

from scaling.config.policy import EFFECTS_KEPT, Fallback, Pace
from scaling.decision.decide import decide
from scaling.decision.pending_action import may_be_ours, record_effect, without_sent
from scaling.decision.transitions import (
    REPORTS_REMEMBERED,
    absorb,
    advance,
    already_evaluated,
    reconcile_capacity,
    review,
)
from scaling.model import (
    NO_CONTROLS,
    AskedToWait,
    Capacity,
    Controls,
    Delivery,
    Effect,
    EffectOutcome,
    EffectRecord,
    ExternalChange,
    Reason,
    ScaleAction,
    TargetState,
    Withdrawn,
)
from scaling.notice import NoticeKind
from scaling.target_facts import TargetFacts
from scaling.window import Window
from tests.support.scaling.runner import MINUTE, NOW, World, at, full, metric, policy, report

ACTION = ScaleAction("plan@1", "plan", 3, 4, NOW - 60, NOW + 540, Reason.SCALE_OUT)


def effect(outcome: EffectOutcome, reached: int | None = 4, **changes) -> Effect:
    fields = {"action_id": "plan@1", "target": "plan", "from_capacity": 3, "to_capacity": 4, "at": NOW}
    return Effect(outcome=outcome, reached=reached, **(fields | changes))


def absorbed(state: TargetState, current: int | None, *, now: float = NOW, made=None, controls=NO_CONTROLS):
    return absorb(made or policy(), {}, state, report(1.0, current, now=now), now=now, controls=controls)[1]


def decided(state: TargetState, windows=None, *, now: float = NOW, made=None, **changes):
    made = made or policy(**changes)
    recommendation = decide(made, windows or {}, state, now=now, decision_id=f"plan@{now}")
    return advance(made, state, recommendation, report_at=now, level=7.0)


# Reports


def test_a_report_is_recognised_until_enough_newer_ones_came() -> None:
    seen = tuple(NOW + i for i in range(REPORTS_REMEMBERED))
    state = TargetState(evaluated=seen)

    assert already_evaluated(state, NOW + 3, now=NOW)
    assert already_evaluated(state, NOW - 1, now=NOW)
    assert not already_evaluated(state, NOW + 3.5, now=NOW)
    assert not already_evaluated(TargetState(evaluated=seen[:5]), NOW - 1, now=NOW)


def test_reports_decided_upon_while_the_clock_ran_ahead_make_none_of_the_present_old() -> None:
    state = TargetState(evaluated=tuple(NOW + 7200 + i for i in range(REPORTS_REMEMBERED)))

    assert not already_evaluated(state, NOW, now=NOW)


@pytest.mark.parametrize("ahead", [5, 2 * REPORTS_REMEMBERED])
def test_after_the_clock_was_put_right_it_is_decided_by_what_is_present(ahead: int) -> None:
    """It ran two hours ahead for so many reports, in which the last change was made."""
    made = policy(out=Pace(cooldown=60.0, stabilization=120.0), dry_run=True)
    early = NOW + 7200.0
    state = at(3, now=early, effects=(EffectRecord(early, 2, 3, None, "plan@0"),), evaluated=(NOW - MINUTE,))
    windows: dict[str, Window] = {}
    for begin, value, current, count in ((early, 300.0, 3, ahead), (NOW, 900.0, 3, 60)):
        for now in (begin + MINUTE * index for index in range(count)):
            assert not already_evaluated(state, now, now=now)
            told = report(value, current, now=now)
            windows, state = absorb(made, windows, state, told, now=now, controls=NO_CONTROLS)
            found = decide(made, windows, state, now=now, decision_id=f"plan@{now}")
            state, _ = advance(made, state, found, report_at=now, level=None)
            assert already_evaluated(state, now, now=now)

    assert windows["backlog"].times[-1] == now
    assert (found.reason, found.proposed) == (Reason.DRY_RUN, 4)


@pytest.mark.parametrize(
    "left",
    [
        {"pending": ScaleAction("plan@0", "plan", 3, 4, NOW + 86_400.0, NOW + 87_000.0, Reason.SCALE_OUT)},
        {"external_change": ExternalChange(3, 5, NOW + 86_400.0)},
        {"corrupt_since": NOW + 86_400.0},
        {"others_changes": tuple(NOW + 86_400.0 + i for i in range(30))},
        {"sent": tuple((f"plan@{i}", NOW + 86_400.0 + i) for i in range(30))},
        {"asked_to_wait": AskedToWait(NOW + 86_400.0, NOW + 86_500.0)},
    ],
)
def test_what_was_left_by_a_clock_that_ran_a_day_ahead_holds_nothing_for_a_day(left: dict) -> None:
    made = policy(external_hold=900.0, facts=TargetFacts(changes_per_hour=20))
    state = at(3, now=NOW, **left)
    ahead = decide(made, {}, state, now=NOW + 86_400.0)
    state = msgspec.structs.replace(state, last=ahead)
    windows: dict[str, Window] = {}
    for now in (NOW + MINUTE * index for index in range(75)):
        told = report(50.0, 3, now=now)
        windows, state = absorb(made, windows, state, told, now=now, controls=NO_CONTROLS)
        found = decide(made, windows, state, now=now, decision_id=f"plan@{now}")
        state, action = advance(made, state, found, report_at=now, level=None)
        if action is not None:
            break

    assert (found.reason, found.desired, state.pending) == (Reason.SCALE_IN, 2, action)


def test_a_capacity_read_while_the_clock_ran_ahead_outranks_no_present_one() -> None:
    state = at(3, now=NOW + 7200)

    assert absorbed(state, 7).external_change == ExternalChange(7, 3, NOW)
    assert absorbed(state, None).capacity_error == "no answer"


def test_the_first_capacity_seen_is_believed_and_counts_as_recommended() -> None:
    state = absorbed(TargetState(), 5, made=policy(inward=Pace(stabilization=300.0)))

    assert (state.expected, state.recommendations) == (5, ((NOW, 5),))
    assert absorbed(TargetState(), 5).recommendations == ()


def test_a_capacity_that_cannot_be_read_is_an_error_until_it_can() -> None:
    unread = absorbed(at(3, now=NOW - MINUTE), None)

    assert unread.capacity_error == "no answer"
    assert absorbed(unread, 3, now=NOW + MINUTE).capacity_error is None


def test_an_older_reading_changes_nothing() -> None:
    state = at(3, now=NOW + MINUTE)

    assert absorbed(state, 7) == state
    assert absorbed(state, None) == state


def test_a_reading_from_before_our_own_last_effect_is_no_external_change() -> None:
    state = at(4, now=NOW - MINUTE, effects=(EffectRecord(NOW + 1, 3, 4),))

    assert absorbed(state, 3).external_change is None


@pytest.mark.parametrize(
    ("seen", "after", "external"),
    [(3, 2.0, False), (3, 61.0, False), (3, 121.0, True), (2, 50.0, False), (2, 181.0, True), (7, 2.0, True)],
)
def test_a_stale_reading_that_shows_where_our_own_last_changes_began_is_no_external_change(
    seen: int, after: float, external: bool
) -> None:
    changes = (EffectRecord(NOW - MINUTE, 2, 3), EffectRecord(NOW, 3, 4))
    state = absorbed(at(4, now=NOW - MINUTE, effects=changes), seen, now=NOW + after)

    assert state.external_change == (ExternalChange(seen, 4, NOW + after) if external else None)


@pytest.mark.parametrize("order", [1, -1])
async def test_reports_that_waited_in_the_queue_take_no_step_each_on_the_same_data(order: int) -> None:
    world = World(policy(metrics={"backlog": metric(span=120.0, min_samples=2)}), capacity=9)
    world.backlog = 10.0
    for _ in range(10):
        world.clock.now += MINUTE
        await world.tick()
    world.clock.now += 5.0
    world.metrics = world.metrics[::order]
    while world.metrics:
        world.clock.now += 2.0
        world.actions += (await world.autoscaler().evaluate(world.metrics.pop(0))).messages
        while world.actions:
            await world.deliver()

    state = await world.states.load("plan")
    assert len(world.platform.ledger) <= (2 if order > 0 else 1)
    assert len(state.windows["backlog"].times) == 2
    assert len(state.state.evaluated) == 10


def test_our_own_change_is_no_external_change_before_its_effect_is_recorded() -> None:
    state = at(3, now=NOW - MINUTE, pending=ACTION)

    assert absorbed(state, 4).external_change is None
    assert absorbed(state, 5).external_change == ExternalChange(5, 3, NOW)


def test_our_own_change_found_in_place_after_it_expired_is_recorded() -> None:
    state = at(3, now=NOW - MINUTE, pending=ACTION)

    late = absorbed(state, 4, now=ACTION.expires_at)

    assert (late.expected, late.pending, late.external_change) == (4, None, None)
    assert late.effects[-1].action_id == ACTION.action_id


def test_a_capacity_on_its_way_is_not_judged() -> None:
    moving = Capacity(7, NOW, pending=True)

    assert reconcile_capacity(policy(), at(3), moving, now=NOW, controls=NO_CONTROLS).external_change is None


def test_an_external_capacity_is_held_on_from_its_first_sight_then_adopted() -> None:
    hold = policy().spec.external_hold
    first = absorbed(at(3, now=NOW - MINUTE), 7)
    still = absorbed(first, 7, now=NOW + MINUTE)
    adopted = absorbed(still, 7, now=NOW + hold)

    assert first.external_change == still.external_change == ExternalChange(7, 3, NOW)
    assert (adopted.expected, adopted.external_change) == (7, None)


def test_an_external_capacity_is_adopted_at_once_when_an_operator_resumes() -> None:
    first = absorbed(at(3, now=NOW - MINUTE), 7)
    resumed = absorbed(first, 7, now=NOW + 9, controls=Controls(external_cleared_at=NOW + 1))
    before = absorbed(first, 7, now=NOW + 9, controls=Controls(external_cleared_at=NOW - 1))

    assert resumed.expected == 7
    assert before.external_change is not None


def test_an_external_capacity_that_went_back_is_forgotten() -> None:
    assert (
        absorbed(at(3, now=NOW - MINUTE, external_change=ExternalChange(7, 3, NOW - 60)), 3).external_change
        is None
    )


# Decisions


def test_a_decision_leaves_its_action_pending_with_the_level_it_was_made_at() -> None:
    state, action = decided(at(3), {"backlog": full(900.0)})

    assert state.pending == action
    assert (action.from_capacity, action.to_capacity, state.pending_level) == (3, 4, 7.0)
    assert state.evaluated == (NOW,)


def test_a_dry_run_leaves_nothing_pending() -> None:
    assert decided(at(3), {"backlog": full(900.0)}, dry_run=True)[0].pending is None


def test_metrics_stay_missing_whatever_else_was_the_reason_meanwhile() -> None:
    since = NOW - 900
    for changes in (
        {"pending": ACTION},
        {"external_change": ExternalChange(7, 3, NOW - 60)},
        {"capacity_error": "403"},
        {"effects": (EffectRecord(NOW - 60, 2, 3),)},
    ):
        state = at(3, missing_since=since, **changes)
        after, _ = decided(state, fallback=Fallback(capacity=5), out=Pace(cooldown=600.0))

        assert after.missing_since == since, changes


def test_metrics_are_missing_from_the_first_decision_without_a_proposal_to_the_first_with_one() -> None:
    first, _ = decided(at(3))
    again, _ = decided(first, now=NOW + MINUTE)
    there, _ = decided(again, {"backlog": full(300.0, now=NOW + 120)}, now=NOW + 120)

    assert (first.missing_since, again.missing_since, there.missing_since) == (NOW, NOW, None)


def test_a_fallback_of_several_steps_does_not_wait_again_between_them() -> None:
    state, action = decided(at(3, missing_since=NOW - 900), fallback=Fallback(capacity=8), out=Pace(step=2))
    done = record_effect(state, effect(EffectOutcome.APPLIED, 5, action_id=action.action_id))
    _, second = decided(done, now=NOW + MINUTE, fallback=Fallback(capacity=8), out=Pace(step=2))

    assert (action.to_capacity, second.to_capacity) == (5, 7)


def test_unreadable_state_is_remembered_while_the_capacity_is_unknown() -> None:
    state, _ = decided(at(3, corrupt_since=NOW - 10, capacity_error="403"))

    assert state.corrupt_since == NOW - 10
    assert decided(at(3, corrupt_since=NOW - 9000))[0].corrupt_since is None


def test_an_expired_action_is_dropped_unless_the_platform_is_still_at_it() -> None:
    late = ACTION.expires_at
    moving = at(3, now=late, pending=ACTION, capacity=Capacity(3, late, pending=True))

    assert decided(at(3, pending=ACTION), now=late)[0].pending is None
    assert decided(moving, now=late)[0].pending == ACTION


def test_an_override_is_not_remembered_as_a_recommendation_of_the_rules() -> None:
    made = policy(inward=Pace(stabilization=300.0))
    state, _ = decided(at(3), {"backlog": full(900.0)}, made=made)

    assert state.recommendations == ((NOW, 4),)


# Effects


@pytest.mark.parametrize(
    ("outcome", "reached", "left"),
    [
        (EffectOutcome.APPLIED, 4, (4, 1, None)),
        (EffectOutcome.ALREADY_THERE, 4, (4, 1, None)),
        (EffectOutcome.LIMITED, 3, (3, 0, None)),
        (EffectOutcome.EXTERNAL_CHANGE, 7, (3, 0, None)),
        (EffectOutcome.EXPIRED, None, (3, 0, None)),
        (EffectOutcome.REFUSED, None, (3, 0, None)),
        (EffectOutcome.FAILED, None, (3, 0, ACTION)),
        (EffectOutcome.ACCEPTED, 3, (3, 0, ACTION)),
    ],
)
def test_only_an_effect_that_moved_the_target_counts_and_only_a_failure_stays_pending(
    outcome: EffectOutcome, reached: int | None, left: tuple
) -> None:
    after = record_effect(at(3, pending=ACTION), effect(outcome, reached))

    assert (after.expected, len(after.effects), after.pending) == left
    assert (after.external_change is not None) == (outcome is EffectOutcome.EXTERNAL_CHANGE)


@pytest.mark.parametrize("first", [EffectOutcome.APPLIED, EffectOutcome.ALREADY_THERE])
@pytest.mark.parametrize("again", [EffectOutcome.APPLIED, EffectOutcome.ALREADY_THERE, EffectOutcome.LIMITED])
def test_an_effect_told_twice_counts_once(first: EffectOutcome, again: EffectOutcome) -> None:
    once = record_effect(at(3, pending=ACTION, pending_level=9.0), effect(first))

    assert once.effects == (EffectRecord(NOW, 3, 4, 9.0, "plan@1"),)
    assert record_effect(once, effect(again, at=NOW + 5)) == once


def test_a_change_really_made_counts_even_after_its_action_was_given_up() -> None:
    newer = msgspec.structs.replace(ACTION, action_id="plan@2")
    after = record_effect(at(3, pending=newer), effect(EffectOutcome.APPLIED))

    assert (after.expected, after.pending) == (4, newer)
    assert record_effect(at(3), effect(EffectOutcome.ALREADY_THERE)) == at(3)


def test_effects_stay_in_the_order_of_their_times_and_are_bounded() -> None:
    known = tuple(EffectRecord(NOW + i, 3, 4, None, f"a{i}") for i in range(EFFECTS_KEPT))
    after = record_effect(at(3, effects=known, pending=ACTION), effect(EffectOutcome.APPLIED, at=NOW + 2.5))

    times = [record.at for record in after.effects]
    assert times == sorted(times)
    assert len(times) == EFFECTS_KEPT


# Checks


def check(state: TargetState, current: int, *, now: float = NOW, read: float | None = None, pending=False):
    capacity = Capacity(current, now if read is None else read, pending=pending)
    return review(policy(), state, capacity, now=now, controls=NO_CONTROLS)


def test_a_reading_from_before_the_decision_proves_nothing() -> None:
    state = at(3, pending=ACTION)

    assert check(state, 4, read=ACTION.decided_at - 1).state == state
    assert check(state, 4).effect.outcome is EffectOutcome.ALREADY_THERE


def test_an_action_is_emitted_again_only_after_its_time_and_before_its_end() -> None:
    state = at(3, pending=ACTION)
    due = ACTION.decided_at + policy().spec.effect_timeout

    assert check(state, 3, now=due - 1).emit is None
    assert check(state, 3, now=due).emit == ACTION
    assert check(state, 3, now=due, pending=True).emit is None
    assert check(state, 3, now=ACTION.expires_at).emit is None
    assert check(state, 3, now=ACTION.expires_at).state.pending is None


def test_a_quiet_check_finds_nothing() -> None:
    assert check(at(3), 3).findings == ()


@pytest.mark.parametrize(("backlog", "sent"), [(20.0, True), (300.0, False), (900.0, False), (None, False)])
def test_a_check_sends_a_scale_in_again_only_while_it_is_wanted(backlog: float | None, sent: bool) -> None:
    action = ScaleAction("plan@1", "plan", 3, 2, NOW - 60, NOW + 540, Reason.SCALE_IN)
    due = NOW - 60 + policy().spec.effect_timeout
    windows = {} if backlog is None else {"backlog": full(backlog, now=due)}

    state = at(3, pending=action)
    found = review(policy(), state, Capacity(3, due), now=due, controls=NO_CONTROLS, windows=windows)

    assert found.emit == (action if sent else None)
    assert found.state.pending == action  # an evaluation withdraws it, by new metrics


def test_the_late_effect_of_an_action_that_was_withdrawn_is_our_own() -> None:
    action = ScaleAction("plan@1", "plan", 3, 2, NOW - 60, NOW + 540, Reason.SCALE_IN)
    tried = at(3, pending=action, delivery=Delivery(NOW - 30, None, tried=True))
    state, _ = decided(tried, {"backlog": full(300.0)})
    assert state.pending is None

    later = absorbed(state, 2, now=NOW + MINUTE)
    found = review(policy(), later, Capacity(2, NOW + MINUTE), now=NOW + MINUTE, controls=NO_CONTROLS)
    never_begun, _ = decided(at(3, pending=action), {"backlog": full(300.0)})

    assert (later.external_change, found.state.expected, found.effect.action_id) == (None, 2, "plan@1")
    assert absorbed(never_begun, 2, now=NOW + MINUTE).external_change == ExternalChange(2, 3, NOW + MINUTE)


def test_a_reading_of_the_time_of_a_withdrawal_shows_no_late_effect() -> None:
    withdrawn = Withdrawn("plan@1", 3, 2, NOW + 540, NOW, may_lead_to=2)
    state = at(3, withdrawn=withdrawn)

    taken = [may_be_ours(policy(), state, Capacity(2, NOW + after), now=NOW + 60) for after in (0.0, 1.0)]

    assert taken == [False, True]


def test_a_change_that_the_platform_may_have_begun_stays_one_of_the_hour() -> None:
    sent = at(3, pending=ACTION, sent=(("plan@1", NOW),))

    assert without_sent(sent, "plan@1").sent == ()
    begun = msgspec.structs.replace(sent, pending_accepted=NOW)
    assert without_sent(begun, "plan@1").sent == (("plan@1", NOW),)


def test_while_rules_cannot_vote_their_last_wish_for_more_is_remembered() -> None:
    made = policy(inward=Pace(stabilization=300.0))
    known = ((NOW - 120, 9), (NOW - 60, 6))

    state, _ = decided(at(4, recommendations=known), made=made)

    assert state.recommendations == (*known, (NOW, 6))


@pytest.mark.parametrize("kind", [Reason, EffectOutcome, NoticeKind])
def test_rows_that_name_an_external_change_by_its_old_word_are_read(kind) -> None:
    assert msgspec.json.decode(b'"foreign_hand"', type=kind) == "external_change"
