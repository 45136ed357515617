"""Simulated rules beside those that decide: they see what they would see, cost what they would cost, and disturb nothing."""

from itertools import pairwise
from math import pi, sin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from scaling.config.policy import EFFECTS_KEPT, Budget, Pace, Plateau, QueueSpec, RuleSpec
from scaling.decision.orders import ORDERS
from scaling.model import (
    NO_CONTROLS,
    Capacity,
    Controls,
    EffectRecord,
    MetricSample,
    MetricsReport,
    Override,
    Pause,
    Reason,
    TargetState,
    Verdict,
)
from scaling.rules.service_level import memory as service_level
from scaling.rules.service_level.instances import FIRST_START_UP
from scaling.shadow import memory
from scaling.shadow.beside import simulate_shadow
from scaling.shadow.memory import MAX_BYTES, Shadow, decode, encode
from scaling.shadow.queue import APART, called_ready_of, simulated_windows, start_up_of, watcher
from scaling.window import Window
from tests.support.examples import examples
from tests.support.scaling.runner import NOW, THRESHOLD, changed
from tests.support.scaling.service_level import learned as learned_of
from tests.support.scaling.shadow import (
    HELD,
    QUEUE,
    SERVICE,
    SERVICE_LEVEL,
    START_UP,
    STEP,
    Target,
    fixed,
    shadowed,
)
from tidemark.foundation.errors import OrderError

HOUR, DAY = 240, 5_760  # steps


def waves(at: float) -> float:
    return 40.0 + 25.0 * sin(2 * pi * at / 7200.0)


def bursts(at: float) -> float:
    return 100.0 if at % 2400.0 < 600.0 else 25.0


def promoted(target: Target, *, on: bool = True) -> Controls:
    return ORDERS["promote"](target.controls, {"on": on}, target.policy, by="kim", now=target.now)[0]


# -- what it sees, and what it costs


def test_rules_that_decide_alike_have_the_same_queue_and_the_same_bill():
    target = Target(shadowed(THRESHOLD), rate=waves)

    for _ in range(3 * HOUR):
        target.step()
        assert (target.said.desired, target.shadow.capacity) == (target.made.desired, target.current)

    tally = target.shadow.tally
    assert tally.live_late > 0.0
    assert tally.simulated == pytest.approx(tally.live)
    assert tally.simulated_late == pytest.approx(tally.live_late)
    assert tally.agreed == tally.decisions == 3 * HOUR


def test_what_the_simulation_says_comes_true_when_the_same_rules_decide():
    beside = Target(shadowed(SERVICE_LEVEL, live=(fixed(14),)), current=14, rate=waves)
    real = Target(shadowed(fixed(14), live=(SERVICE_LEVEL,)), current=14, rate=waves)

    beside.steps(6 * HOUR)
    real.steps(6 * HOUR)

    simulated, live = beside.shadow.tally, real.shadow.tally
    assert simulated.simulated == pytest.approx(live.live, rel=0.05)
    assert simulated.simulated_late / simulated.arrived == pytest.approx(
        live.live_late / live.arrived, abs=0.01
    )
    assert simulated.simulated < 0.6 * simulated.live


def test_a_shadow_with_too_few_instances_sees_its_own_queue_grow_though_the_real_one_is_empty():
    target = Target(shadowed(fixed(2), live=(fixed(10),)), current=10, rate=40.0)

    target.steps(HOUR)

    tally = target.shadow.tally
    short = 40.0 - 2 * SERVICE
    assert target.waiting == 0.0
    assert target.shadow.waiting == pytest.approx(short * STEP * HOUR, rel=0.05)
    assert (tally.live_late, tally.live_overdue) == (0.0, 0.0)
    assert tally.simulated_late + tally.simulated_overdue > 0.8 * tally.arrived


def test_a_report_that_comes_late_changes_nothing_of_the_simulated_queue():
    target = Target(shadowed(fixed(2), live=(fixed(10),)), current=10, rate=40.0)
    target.steps(40)
    before = target.shadow
    assert before.waiting > 0.0

    samples = tuple(
        MetricSample(name, target.now - 40.0, 80.0) for name in ("backlog", "incoming", "outgoing")
    )
    target.now += 1.0
    target.decide(MetricsReport("plan", target.now - 40.0, samples, (), Capacity(10, target.now, ready=10)))

    assert (target.shadow.waiting, target.shadow.apart) == (before.waiting, before.apart)
    assert target.shadow.tally.simulated_overdue == before.tally.simulated_overdue > 0.0


def test_messages_that_were_late_in_the_simulation_stay_so_through_a_gap():
    target = Target(shadowed(fixed(2), live=(fixed(10),)), current=10, rate=40.0)
    target.steps(HOUR)
    before = target.shadow.tally

    target.now += 120.0
    target.steps(3)

    tally = target.shadow.tally
    assert (
        tally.simulated_late + tally.simulated_overdue
        >= before.simulated_late + before.simulated_overdue
        > 0.0
    )
    assert (tally.live_late, tally.live_overdue) == (0.0, 0.0)


def test_where_messages_really_wait_those_processed_simulated_follow_from_how_long_each_takes():
    target = Target(shadowed(fixed(10), live=(fixed(4),)), current=4, rate=40.0)
    target.steps(40)

    assert target.waiting > 0.0
    assert target.shadow.waiting == 0.0
    _, backlog, outgoing = target.shadow.apart[-1]
    real = target.waiting + HELD * 4
    assert real + backlog == pytest.approx(40.0 * HELD / SERVICE, abs=1)
    assert 4 * SERVICE * STEP + outgoing == pytest.approx(40.0 * STEP, abs=1)


def test_in_the_interval_in_which_the_simulation_has_caught_up_it_processed_more():
    begin = NOW + 10 * STEP
    target = Target(
        shadowed(fixed(4), live=(fixed(10),)), current=10, rate=lambda at: 40.0 if at <= begin else 20.0
    )
    target.steps(10)
    while target.shadow.waiting:
        target.step()

    assert target.waiting == 0.0
    _, backlog, outgoing = target.shadow.apart[-1]
    assert outgoing > 0
    assert backlog == round(HELD / SERVICE * 20.0 * outgoing / (20.0 * STEP))


def test_samples_differ_by_what_differed_at_their_time():
    windows = {
        "backlog": Window([10.0, 20.0, 30.0, 40.0], [100.0] * 4),
        "outgoing": Window([10.0, 40.0], [50.0, 50.0]),
    }
    shadow = Shadow(apart=[(20.0, 7, 1), (40.0, -300, -9)])

    seen = simulated_windows(windows, shadow, QUEUE)

    assert seen["backlog"].values == [100.0, 107.0, 107.0, 0.0]
    assert seen["outgoing"].values == [50.0, 41.0]


def test_a_shadow_begins_with_what_the_rules_of_its_target_have_learned():
    target = Target(changed(shadowed(fixed(3), live=(SERVICE_LEVEL,)), shadow=None), rate=waves)
    target.steps(HOUR)
    target.policy = shadowed(fixed(3), live=(SERVICE_LEVEL,))

    target.step()

    assert target.shadow.known == target.state.memories["service_level"]
    assert service_level.decode(target.shadow.known).observations >= HOUR


def test_what_is_given_of_the_instances_is_not_learned():
    given = watcher(structs.replace(QUEUE, concurrency=5.0, start_up=20.0)).objective

    assert (given.concurrency, given.start_up) == (5.0, 20.0)
    assert watcher(QueueSpec(backlog="backlog")).objective.concurrency is None


def test_a_simulated_rule_reads_the_simulated_queue():
    target = Target(shadowed(THRESHOLD, live=(fixed(10),)), current=10, rate=30.0)

    target.steps(HOUR)

    # By the real backlog it would scale in for good; by its own it keeps what the load needs.
    assert target.shadow.capacity >= 3
    assert target.said.proposed is not None


def test_what_instances_serve_is_learned_of_the_real_ones():
    backlog_only = QueueSpec(backlog="backlog")
    rule = structs.replace(SERVICE_LEVEL, options={"backlog": "backlog"})
    target = Target(shadowed(rule, live=(THRESHOLD,), queue=backlog_only), rate=waves)

    target.steps(HOUR)

    simulated = service_level.decode(target.shadow.memories["service_level"]).learned
    assert simulated.service_rate == pytest.approx(
        service_level.decode(target.shadow.known).learned.service_rate, rel=0.02
    )


def test_simulated_instances_serve_a_start_up_time_after_they_were_asked_for():
    target = Target(shadowed(fixed(9), live=(fixed(4),)), current=4, rate=20.0)

    target.step()
    assert (target.shadow.capacity, target.shadow.ready) == (9, 4)
    target.steps(3)
    assert target.shadow.ready == 4
    target.step()
    assert target.shadow.ready == 9


def test_the_time_to_serve_is_with_the_warm_up_and_the_time_to_be_called_ready_without_it():
    learned = service_level.LearnedInstance(start_up=30.0, start_up_count=5, warm_up=60.0, warm_up_count=3)
    known = service_level.encode(structs.replace(learned_of([20.0] * 3), learned=learned))
    told = structs.replace(QUEUE, start_up=None)

    assert (start_up_of(told, known), called_ready_of(told, known)) == (90.0, 30.0)
    assert (start_up_of(QUEUE, known), called_ready_of(QUEUE, known)) == (START_UP, START_UP)
    assert start_up_of(told, b"") == FIRST_START_UP


def test_rules_that_decide_alike_are_as_late_where_instances_called_ready_have_yet_to_warm_up():
    made = shadowed(THRESHOLD, queue=structs.replace(QUEUE, start_up=None))
    target = Target(made, rate=bursts, start_up=90.0, called=15.0)
    target.steps(2 * HOUR)  # by then it is known how long they take
    begun = target.shadow.tally

    target.steps(4 * HOUR)

    tally = target.shadow.tally
    live, simulated = tally.live_late - begun.live_late, tally.simulated_late - begun.simulated_late
    assert live > 0.0
    assert simulated == pytest.approx(live, rel=0.05)


def test_a_simulated_rule_that_learns_counts_on_instances_from_when_they_serve_there():
    made = shadowed(SERVICE_LEVEL, live=(SERVICE_LEVEL,), queue=structs.replace(QUEUE, start_up=None))
    target = Target(made, rate=bursts, start_up=90.0, called=15.0)
    target.steps(2 * HOUR)

    starting = 0
    for _ in range(2 * HOUR):
        target.step()
        shadow = target.shadow
        starting += shadow.ready < shadow.capacity
        assert service_level.decode(shadow.memories["service_level"]).serving == shadow.ready
    assert starting > 20


def test_the_bounds_paces_and_cooldowns_simulated_are_the_shadows_own():
    target = Target(
        shadowed(fixed(15), live=(fixed(4),), maximum=12, out=Pace(step=3, cooldown=60.0)), current=4
    )

    seen = []
    for _ in range(12):
        target.step()
        seen.append(target.said.desired)

    assert seen[0] == 7
    assert [count for before, count in pairwise(seen) if count != before] == [10, 12]
    assert seen[1:4] == [7, 7, 7]
    assert target.current == 4


def test_pauses_and_overrides_hold_simulated_and_dry_run_does_not():
    target = Target(shadowed(fixed(9), live=(fixed(9),)), current=4)
    target.order(Controls(pauses=(Pause("kim", NOW),), dry_run=True))
    target.step()
    assert target.said.reason == Reason.PAUSED

    target.order(Controls(override=Override(6, "kim", NOW, NOW + 1e6), dry_run=True))
    target.step()
    assert (target.said.reason, target.shadow.capacity, target.current) == (Reason.OVERRIDDEN, 6, 4)

    target.order(Controls(dry_run=True))
    target.step()
    assert (target.made.reason, target.said.reason, target.shadow.capacity) == (
        Reason.DRY_RUN,
        Reason.SCALE_OUT,
        9,
    )


def test_a_shadow_has_the_budget_of_its_target_and_spends_it_simulated():
    budget = Budget(amount=48.0)
    target = Target(changed(shadowed(fixed(20), live=(fixed(1),)), budget=budget), current=1)
    target.step()
    begun = target.state.spent.hours
    target.steps(2 * HOUR - 1)

    simulated, real = target.shadow, target.state.spent
    assert real.hours - begun == pytest.approx((2 * HOUR - 1) * STEP / 3600.0)
    assert simulated.tally.simulated == pytest.approx((simulated.spent.hours - begun) * 3600.0, rel=0.05)
    assert simulated.spent.hours - begun > 1.5 * (real.hours - begun)
    assert target.said.reason == Reason.OVER_BUDGET
    assert 1 < simulated.capacity < 20


def test_what_the_target_has_spent_of_the_day_before_a_shadow_was_tried_is_spent_for_both():
    made = changed(shadowed(fixed(3), live=(fixed(3),)), budget=Budget(amount=48.0))
    target = Target(changed(made, shadow=None), current=3)
    target.step()
    target.state = structs.replace(target.state, spent=structs.replace(target.state.spent, hours=47.0))
    target.policy = made

    target.step()

    assert target.shadow.spent.hours == target.state.spent.hours > 47.0


def test_time_that_was_not_seen_is_left_out_of_the_comparison():
    target = Target(shadowed(fixed(8), live=(fixed(4),)), current=4)
    target.steps(5)
    before = target.shadow.tally

    target.now += 3600.0
    target.step()

    after = target.shadow.tally
    assert after.seconds == before.seconds == 4 * STEP
    assert after.live == before.live
    target.step()
    assert target.shadow.tally.seconds == 5 * STEP


def test_a_missing_metric_holds_the_shadow_as_it_holds_the_target():
    target = Target(shadowed(SERVICE_LEVEL, live=(THRESHOLD,)), current=4)
    target.steps(20)
    capacity = target.shadow.capacity

    target.lost = ("backlog",)
    target.step()

    assert target.said.desired == capacity
    assert target.said.reason == Reason.COLLECT_FAILED


def test_an_unknown_capacity_decides_nothing_simulated_and_forgets_nothing():
    target = Target(shadowed(fixed(8)), current=4)
    target.steps(5)
    before = target.shadow

    target.now += STEP
    target.decide(MetricsReport("plan", target.now, (), (), None, "no answer"))

    assert target.beside.said is None
    assert target.shadow == before


def test_a_plateau_of_a_metric_that_the_simulation_cannot_answer_is_not_looked_at():
    made = shadowed(fixed(20), live=(fixed(4),), queue=None, out=Pace(step=1))
    target = Target(changed(made, plateau=Plateau(metric="backlog", effects=2)), current=4)

    target.steps(12)

    assert target.shadow.capacity == 16


# -- it disturbs nothing


class Evil:
    """A rule that raises, or says or remembers what it should not."""

    def __init__(self, *, how="raise"):
        self.how = how

    name = "evil"

    def learn(self, memory, view):
        if self.how == "hoard":
            return (memory or b"") + bytes(10_000)
        if self.how == "die":
            raise ValueError("cannot learn")
        return memory

    def evaluate(self, view):
        if self.how == "raise":
            raise ValueError("password=hunter2hunter2")
        if self.how == "write":
            for window in view.windows.values():
                window.values[:] = [0.0] * len(window.values)
        return Verdict(view.current, Reason.WITHIN_TARGET)


def evil(how: str) -> RuleSpec:
    return RuleSpec(type=f"{__name__}:Evil", name="evil", options={"how": how})


@pytest.mark.parametrize("how", ["raise", "hoard", "die", "write"])
def test_whatever_a_simulated_rule_does_the_target_is_decided_as_without_it(how):
    alone = Target(changed(shadowed(THRESHOLD), shadow=None), rate=waves)
    beside = Target(shadowed(evil(how)), rate=waves)
    for _ in range(40):
        alone.step()
        beside.step()
        assert msgspec.json.encode(beside.made) == msgspec.json.encode(alone.made)
        assert structs.replace(beside.state, shadow=b"") == alone.state
        assert beside.windows == alone.windows
        assert len(beside.state.shadow) <= MAX_BYTES


def test_a_simulated_rule_that_raises_is_one_warning_and_not_one_per_report():
    target = Target(shadowed(evil("raise")))
    target.step()
    (warning,) = target.beside.warnings
    assert warning.startswith("shadow plan hold 4: rule failed, Evil: ValueError")
    assert "hunter2" not in warning

    target.step()

    assert target.beside.warnings == ()
    assert (target.shadow.tally.failed, target.shadow.tally.decisions) == (2, 2)


def test_a_simulated_rule_that_remembers_too_much_is_told_and_forgets():
    target = Target(shadowed(evil("hoard")))
    told = []
    for _ in range(8):
        target.step()
        told += target.beside.warnings

    assert len(told) == 1
    assert "of which 65536 are kept at most" in told[0]
    assert target.shadow.capacity == 4


def test_a_fault_of_the_comparison_itself_is_one_warning(monkeypatch):
    target = Target(shadowed(fixed(8)))
    target.step()

    def broken(*_, **__):
        raise ZeroDivisionError("broken")

    monkeypatch.setattr("scaling.shadow.beside.decide", broken)
    target.step()

    assert target.made is not None
    assert target.beside.warnings == ("shadow plan: ZeroDivisionError: broken; it begins anew",)
    assert target.state.shadow == b""


@examples(20)
@given(st.binary(max_size=200), st.integers(0, 3000))
def test_a_stored_shadow_that_is_damaged_begins_anew(noise, cut):
    target = Target(shadowed(SERVICE_LEVEL))
    target.steps(2)
    good = target.state.shadow
    damaged = good[:cut] + noise + good[cut + len(noise) :]
    target.state = structs.replace(target.state, shadow=damaged)

    target.step()

    assert target.made is not None
    assert len(target.state.shadow) <= MAX_BYTES


def test_a_memory_of_another_version_or_with_numbers_that_are_none_is_no_memory():
    assert decode(encode(Shadow(version=memory.VERSION + 1))) is None
    assert decode(encode(Shadow(waiting=float("nan")))) is None
    assert decode(bytes(MAX_BYTES + 1)) is None
    assert decode(b"") is None
    assert decode(encode(Shadow(rules="é")).replace("é".encode(), b"\xc3(")) is None


def test_what_is_remembered_stays_bounded():
    target = Target(shadowed(SERVICE_LEVEL, live=(fixed(14),)), current=14, rate=waves)
    target.steps(HOUR)
    sizes = []
    for _ in range(2 * HOUR):
        target.step()
        sizes.append(len(target.state.shadow))

    assert max(sizes) < 16_000


def test_four_rules_that_learn_fit_with_long_windows_and_a_long_stabilization():
    rules = [structs.replace(SERVICE_LEVEL, name=f"rule {index}") for index in range(4)]
    target = Target(shadowed(*rules, live=(fixed(14),)), current=14, rate=waves)
    target.steps(2 * HOUR)
    effect = EffectRecord(NOW, 3, 4, 123.4, "plan-orders@20270115T080000.000Z")

    busy = structs.replace(
        target.shadow,
        apart=[(NOW + index / 3, 1000 + index, -index) for index in range(APART)],
        recommendations=tuple((NOW + index / 3, index) for index in range(4 * HOUR)),
        effects=(effect,) * EFFECTS_KEPT,
    )

    assert len(busy.memories) == 4
    assert len(encode(busy)) < MAX_BYTES


def test_other_rules_begin_a_new_comparison():
    target = Target(shadowed(fixed(8), live=(fixed(4),)), current=4)
    target.steps(10)
    target.policy = shadowed(fixed(9), live=(fixed(4),))
    target.step()
    assert target.shadow.tally.decisions == 1
    target.steps(3)

    target.policy = shadowed(fixed(9), live=(fixed(5),))
    target.step()

    assert target.shadow.tally.decisions == 1


def test_a_target_without_a_shadow_keeps_nothing_of_one():
    target = Target(shadowed(fixed(8), live=(fixed(4),)), current=4)
    target.steps(3)
    target.policy = changed(target.policy, shadow=None)

    target.step()

    assert target.state.shadow == b""
    assert simulate_shadow(target.policy, {}, TargetState(), target.made, controls=NO_CONTROLS).said is None


# -- promotion


def test_a_promoted_shadow_decides_and_the_configured_rules_go_on_simulated():
    target = Target(shadowed(fixed(9), live=(fixed(4),)), current=4)
    target.steps(10)

    target.order(promoted(target))
    target.steps(5)

    assert target.current == 9
    assert (target.said.promoted, target.shadow.capacity) == (True, 4)
    assert target.said.line.startswith("configured plan ")
    assert target.shadow.tally.decisions == 5

    target.order(promoted(target, on=False))
    target.steps(5)
    assert target.current == 4
    assert target.shadow.capacity == 9


def test_the_bounds_of_the_target_hold_for_a_promoted_shadow():
    target = Target(shadowed(fixed(40), live=(fixed(4),), maximum=50), current=4)
    target.steps(3)
    assert target.shadow.capacity == 40

    target.order(promoted(target))
    target.steps(3)

    assert target.current == 20


def test_a_promoted_rule_that_learns_goes_on_from_what_the_target_really_showed():
    target = Target(shadowed(SERVICE_LEVEL, live=(fixed(14),)), current=14, rate=waves)
    target.steps(2 * HOUR)
    known = target.shadow.known

    target.order(promoted(target))
    target.step()

    learned = service_level.decode(target.state.memories["service_level"])
    before = service_level.decode(known)
    assert learned.observations == before.observations + 1
    assert learned.learned.service_rate == pytest.approx(SERVICE, rel=0.05)
    target.steps(HOUR)
    assert 4 <= target.current <= 11
    assert "still learning" not in target.made.sentence


def test_an_order_promotes_the_rules_that_were_seen_and_no_others():
    target = Target(shadowed(fixed(9), live=(fixed(4),)), current=4)
    target.steps(2)
    target.order(promoted(target))
    target.steps(2)
    assert target.current == 9

    target.policy = shadowed(fixed(12), live=(fixed(4),))
    target.steps(2)

    assert target.current == 4
    assert target.shadow.promoted is False


def test_when_the_file_follows_what_was_learned_stays():
    target = Target(shadowed(SERVICE_LEVEL, live=(fixed(14),)), current=14, rate=waves)
    target.steps(HOUR)
    target.order(promoted(target))
    target.steps(10)
    known = service_level.decode(target.state.memories["service_level"])

    target.policy = changed(target.policy, rules=(SERVICE_LEVEL,), shadow=None)
    target.step()

    assert service_level.decode(target.state.memories["service_level"]).observations == known.observations + 1
    assert target.state.shadow == b""


def test_a_external_change_on_the_target_moves_nothing_simulated():
    target = Target(shadowed(fixed(8), live=(fixed(4),)), current=4)
    target.steps(3)

    target.now += STEP
    held = Capacity(11, target.now, ready=11, held_by="an autoscale setting")
    target.decide(MetricsReport("plan", target.now, (), (), held))

    assert target.made.reason is Reason.EXTERNAL_CHANGE
    assert target.shadow.capacity == 8
    assert target.shadow.live == 11


REPORTS = st.lists(
    st.tuples(
        st.sampled_from([STEP, STEP, STEP, STEP, 0.0, 7.0, 40.0, 400.0, 90_000.0, -STEP, -7200.0]),
        st.one_of(st.none(), st.floats(0, 1e6), st.sampled_from([0.0, 1e15])),
        st.one_of(st.none(), st.floats(0, 1e5)),
        st.one_of(st.none(), st.integers(0, 30)),
        st.sampled_from([NO_CONTROLS, Controls(pauses=(Pause("kim", NOW),)), Controls(dry_run=True), None]),
    ),
    max_size=30,
)


@examples(40)
@given(REPORTS, st.sampled_from([SERVICE_LEVEL, THRESHOLD, fixed(7)]))
def test_whatever_is_reported_in_whatever_order_the_target_is_decided_as_without_a_shadow(reports, rule):
    """`None` among the controls is a promotion, in which the target is decided by the shadow's rules."""
    alone = Target(changed(shadowed(rule), shadow=None))
    beside = Target(shadowed(rule))
    swapped = False
    for seconds, backlog, flow, capacity, controls in reports:
        for target in (alone, beside):
            target.now = max(target.now + seconds, 1.0)
            values = {"backlog": backlog, "incoming": flow, "outgoing": flow}
            samples = tuple(
                MetricSample(name, target.now, value) for name, value in values.items() if value is not None
            )
            seen = None if capacity is None else Capacity(capacity, target.now, ready=max(capacity - 1, 0))
            target.order(
                promoted(target) if controls is None and target is beside else controls or NO_CONTROLS
            )
            target.decide(MetricsReport("plan", target.now, samples, (), seen))
        swapped = swapped or controls is None
        assert beside.beside.warnings == ()
        assert len(beside.state.shadow) <= MAX_BYTES
        if not swapped:
            assert msgspec.json.encode(beside.made) == msgspec.json.encode(alone.made)


# -- what the file makes of a promotion


def test_the_order_of_options_in_the_file_makes_no_other_shadow():
    there = structs.replace(SERVICE_LEVEL, options=dict(reversed(SERVICE_LEVEL.options.items())))

    assert shadowed(there).shadow_id == shadowed(SERVICE_LEVEL).shadow_id
    assert shadowed(fixed(3), live=(there,)).rules_id == shadowed(fixed(3), live=(SERVICE_LEVEL,)).rules_id
    assert shadowed(fixed(3)).shadow_id != shadowed(fixed(4)).shadow_id


def test_only_the_shadow_that_was_seen_is_promoted():
    made = shadowed(fixed(9))
    order = {"on": True, "rules": made.shadow_id}

    assert ORDERS["promote"](NO_CONTROLS, order, made, by="kim", now=NOW)[0].promoted.rules == made.shadow_id
    with pytest.raises(OrderError, match="of another shadow than"):
        ORDERS["promote"](NO_CONTROLS, order, shadowed(fixed(8)), by="kim", now=NOW)


def test_a_simulated_rule_that_does_not_vote_agrees_with_nobody_who_does():
    target = Target(shadowed(evil("raise"), live=(fixed(4),)))
    target.steps(20)

    assert target.shadow.tally.agreed < target.shadow.tally.decisions == 20
    assert target.shadow.tally.agreed == 0
