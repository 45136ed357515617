"""What the rule service_level says: numbers, reasons, flips; and never less on what it does not know."""

import os
from itertools import count
from random import Random

import msgspec
import pytest

from scaling.analysis.replay import decode_inputs, encode_inputs, replay, same
from scaling.config.policy import Pace, Policy, RuleSpec
from scaling.config.rule_registry import RuleError, build_rule
from scaling.decision import explain
from scaling.decision.decide import decide
from scaling.decision.seen import view_of
from scaling.decision.transitions import absorb, advance
from scaling.flips.explained import decide_and_explain
from scaling.log_entry import decision_id
from scaling.model import (
    NO_CONTROLS,
    Capacity,
    EffectRecord,
    MetricFailure,
    MetricSample,
    MetricsReport,
    Reason,
    TargetState,
)
from scaling.rules.service_level import memory
from scaling.rules.view import MetricsView
from scaling.storage.rows import read_target, target_row
from scaling.target_facts import TargetFacts
from scaling.window import WindowSpec
from tests.support.scaling import steady_views
from tests.support.scaling.runner import THRESHOLD, metric, policy
from tests.support.scaling.service_level import NOW, STEP, learned
from tests.support.scaling.steady_views import window

COUNTS = ("backlog", "incoming", "outgoing")
SPEC = {"span": 60.0, "interval": STEP, "min_samples": 1}


def service_level(**options):
    names = {name: name for name in COUNTS} | options
    kept = {name: value for name, value in names.items() if value is not None}
    return RuleSpec(type="service_level", name="service_level", options=kept)


class Target:
    """A target that is reported on every 15 s; what is decided is there at once."""

    def __init__(self, *rules, current=10, maximum=50, **changes):
        metrics = {name: metric(**SPEC) for name in COUNTS}
        self.policy = policy(rules=rules or (service_level(),), metrics=metrics, maximum=maximum, **changes)
        self.windows, self.state, self.current = {}, TargetState(), current
        self.ticks = count()

    def tick(self, rate=80.0, *, backlog=None, failed=(), **counts):
        now = NOW + STEP * next(self.ticks)
        values = {"backlog": 1.6 * rate if backlog is None else backlog}
        values |= {"incoming": rate * STEP, "outgoing": rate * STEP} | counts
        samples = tuple(MetricSample(name, now, values[name]) for name in COUNTS if name not in failed)
        failures = tuple(MetricFailure(name, now, "no answer") for name in failed)
        report = MetricsReport("plan", now, samples, failures, Capacity(self.current, now))
        self.windows, self.state = absorb(
            self.policy, self.windows, self.state, report, now=now, controls=NO_CONTROLS
        )
        self.before = self.state
        self.made = decide(self.policy, self.windows, self.state, now=now, decision_id="d")
        self.now = now
        self.state, action = advance(self.policy, self.state, self.made, report_at=now, level=None)
        if action is not None:
            self.current = action.to_capacity
            self.state = msgspec.structs.replace(
                self.state, pending=None, delivery=None, expected=self.current
            )
        return self.made

    def explained(self):
        return decide_and_explain(self.policy, self.windows, self.before, now=self.now, decision_id="d")

    def ahead(self, backlog):
        """What the next report leads to, with this backlog and all else as it is."""
        now = self.now + STEP
        values = {name: window.values[-1] for name, window in self.windows.items()} | {"backlog": backlog}
        samples = tuple(MetricSample(name, now, value) for name, value in values.items())
        report = MetricsReport("plan", now, samples, (), Capacity(self.current, now))
        windows, state = absorb(self.policy, self.windows, self.state, report, now=now, controls=NO_CONTROLS)
        return decide(self.policy, windows, state, now=now)

    def ticks_of(self, rate, times, **changes):
        for _ in range(times):
            self.tick(rate, **changes)
        return self

    @property
    def known(self):
        return memory.decode(self.state.memories["service_level"])


def test_a_burst_is_met_at_once_and_told_in_one_sentence():
    target = Target().ticks_of(80.0, 400)
    before = target.current
    made = target.tick(300.0, backlog=2500.0, outgoing=80.0 * STEP)
    assert made.reason is Reason.SCALE_OUT
    assert made.desired > before
    text = explain.line(made)
    for words in ("messages/s expected within", "now 300", "an instance serves", "late today of 1 % allowed"):
        assert words in text
    assert "told" not in text
    assert {e.metric for e in made.evidence} == {"arrivals", "service rate", "late messages"}


@pytest.mark.parametrize(("takes", "needed"), [("1.6s", 8), ("16s", 80), ("80s", 400)])
def test_a_time_that_is_given_is_believed_whatever_the_backlog_says(takes, needed):
    """Of the backlog alone an instance was taken to serve 16 a second, so 128 messages of 80 s were processed by 2 instances."""
    options = {"incoming": None, "outgoing": None, "concurrency": 16.0, "start_up": "90s", "takes": takes}
    target = Target(service_level(**options), current=needed, maximum=1000)
    target.ticks_of(80.0, 240, backlog=16.0 * needed)
    assert f"an instance serves {80 / needed:.2g}/s" in explain.line(target.made)
    assert 0.8 * needed <= target.current <= 1.1 * needed


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("maximum", "because more instances than the maximum would be needed"),
        ("interval", "because samples come every 15 s only"),
        ("start_up", "because bursts come sooner than an instance starts (90 s)"),
        ("", ""),
    ],
)
def test_what_cannot_be_kept_is_in_the_line_of_the_report_that_shows_it(why, words):
    target = Target().ticks_of(80.0, 200)
    known = target.known
    for at, said in ((known.at, bool(why)), (known.at - STEP, False)):
        shown = msgspec.structs.replace(known, unkept=why, unkept_at=at, late_at_most=0.0)
        memories = {"service_level": memory.encode(shown)}
        state = msgspec.structs.replace(target.state, memories=memories)
        line = explain.line(decide(target.policy, target.windows, state, now=target.now))
        assert ("no margin keeps that: at best 0.00 % are late" in line) == said
        assert (words in line) == (said or not words)


def test_it_scales_in_when_the_load_is_gone_and_not_before_the_hold_time():
    target = Target().ticks_of(80.0, 400)
    made = target.tick(5.0)
    assert made.desired == made.current
    target.ticks_of(5.0, 60)
    assert target.current <= 2


@pytest.mark.parametrize(("most", "minutes"), [(None, (1.5, 5)), (20, (10, 15))])
def test_a_small_step_in_waits_for_ten_minutes_where_the_platform_limits_changes(most, minutes):
    target = Target(service_level(concurrency=16.0, start_up="90s"), facts=TargetFacts(changes_per_hour=most))
    target.ticks_of(200.0, 600)
    before = target.current

    left = next(index for index in range(100) if target.tick(180.0) and target.current < before)

    view = view_of(
        target.policy, target.windows, target.state, target.state.capacity, target.current, now=target.now
    )
    assert target.policy.flat_rules[0].observed(view).limited == (most is not None)
    assert 0.8 * before < target.current
    assert minutes[0] <= (left + 1) * STEP / 60 <= minutes[1]


def test_never_in_while_a_metric_is_missing():
    target = Target(current=30).ticks_of(80.0, 300)
    before = target.current
    for failed in (("backlog",), ("incoming",), COUNTS):
        made = target.tick(1.0, failed=failed)
        assert made.desired == before
    assert made.reason is Reason.COLLECT_FAILED


def test_never_in_on_a_backlog_that_stands_still_while_messages_come_and_go():
    target = Target().ticks_of(200.0, 300)
    target.ticks_of(200.0, 25, backlog=128.0, outgoing=190.0 * STEP)  # the count is a cached one
    before = target.current
    for _ in range(60):
        target.tick(20.0, backlog=128.0, outgoing=10.0 * STEP)
    assert target.made.reason is Reason.STALE_METRIC
    assert target.current == before
    assert "stands at 128" in explain.line(target.made)


def test_in_the_first_hour_no_fewer_than_hold_what_is_there():
    target = Target(service_level(concurrency=16.0), current=2)
    made = target.tick(10.0, backlog=800.0)
    assert made.desired == 50
    assert "still learning" in explain.line(made)


@pytest.mark.parametrize("backlog", [0.0, 3.0, 100.0])
def test_at_zero_one_instance_is_wanted_however_few_messages_wait(backlog):
    known = learned([0.0] * 200, current=0, backlog=backlog)
    rule = build_rule("service_level", {"backlog": "backlog"}, name="r")
    seen = MetricsView(
        {"backlog": window(*[backlog] * 5, end=known.at, interval=STEP)},
        {"backlog": WindowSpec(**SPEC)},
        0,
        ready=0,
        minimum=0,
        maximum=100,
        now=known.at,
        memories={"r": memory.encode(known)},
    )

    verdict = rule.evaluate(seen)

    assert (verdict.desired, verdict.reason) == (1, Reason.SCALE_OUT)
    assert {copy.total for copy in known.candidates} == {1}  # simulated as well


@pytest.mark.parametrize(("backlog", "needed"), [(600.0, 50), (960.0, 80), (120.0, 10)])
def test_while_a_time_is_only_bounded_as_many_are_needed_as_hold_what_is_there(backlog, needed):
    """By the bound alone fewer were: messages of 16 s on recorded loads 1.2 % late, 0.3 % with KEDA at 0.75."""
    options = {"incoming": None, "outgoing": None, "concurrency": 16.0, "start_up": "90s"}
    target = Target(service_level(**options), current=needed, maximum=100)
    for index in range(200):
        target.tick(0.0, backlog=backlog - index % 2)
    assert "not known how long a message takes" in explain.line(target.made)
    assert (target.current, target.made.desired) == (needed, needed)


def test_while_a_time_is_only_bounded_what_is_there_by_chance_takes_no_instances():
    options = {"incoming": None, "outgoing": None, "concurrency": 16.0, "start_up": "90s"}
    target = Target(service_level(**options), current=10, maximum=100)
    for index in range(300):
        target.tick(0.0, backlog=(150.0, 90.0, 110.0, 130.0)[index % 4])
    assert target.current in (10, 11)  # 120 messages at 75 % of 16 each; 150 would take 13
    assert "messages there on average;" in explain.line(target.made)


def test_of_a_long_wait_the_line_says_what_is_planned_from_the_first_report_on():
    options = {"incoming": None, "outgoing": None, "concurrency": 16.0, "start_up": "90s", "takes": "16s"}
    target = Target(service_level(wait="20m", **options), current=1, maximum=100)
    target.ticks_of(0.0, 3)
    line = explain.line(target.tick(0.0, backlog=12_000.0))
    assert "out 1 -> 14: 11984 messages wait, an instance serves 1/s, 14 begin each within 20 min" in line
    assert "(planned for 16 min); 0.0 % late today of 1 % allowed" in line
    assert "still learning" not in line


def test_without_a_memory_it_goes_by_the_backlog_and_never_in():
    target = Target().ticks_of(80.0, 300)
    for backlog in (10.0, 320.0):
        target.tick(80.0, backlog=backlog)
        state = msgspec.structs.replace(target.before, memories={})
        found = decide(target.policy, target.windows, state, now=target.now)
        assert found.desired == max(found.current, backlog / 16)
        assert "nothing is learned yet" in explain.line(found)


@pytest.mark.parametrize("damage", [b"", b"\xc1", b"\x93\x01\x02", b"x" * 20_000])
def test_a_memory_that_cannot_be_read_is_a_fresh_one_that_says_so(damage):
    target = Target().ticks_of(80.0, 300)
    target.state = msgspec.structs.replace(target.state, memories={"service_level": damage})
    made = target.tick(80.0)
    assert target.known.observations == 0
    assert bool(damage) == ("could not be read" in explain.line(made))


def test_a_restart_loses_nothing():
    target, other = Target().ticks_of(80.0, 300), Target().ticks_of(80.0, 300)
    row = target_row("plan", target.state, target.windows)
    target.state, target.windows, corrupt = read_target({**row, "PartitionKey": "p", "RowKey": "r"})
    assert corrupt == ()
    for rate in (80.0, 120.0, 500.0, 20.0):
        assert target.tick(rate) == other.tick(rate)
    assert target.state.memories == other.state.memories


def test_the_rule_holds_its_options_and_nothing_else():
    """What it knows is in the memory alone: a rule that was just built says the same, and reading changes nothing."""
    target = Target()
    for rate in (80.0, 90.0, 300.0):
        target.tick(rate)
    used, fresh = target.policy.flat_rules[0], Target().policy.flat_rules[0]
    known = target.state.memories["service_level"]
    view = view_of(
        target.policy, target.windows, target.state, target.state.capacity, target.current, now=target.now
    )
    shared = memory.decode(known)

    verdicts = [rule.evaluate(view) for rule in (used, fresh, used)]

    assert verdicts[0] == verdicts[1] == verdicts[2]
    assert used.learn(known, view) == fresh.learn(known, view)
    assert vars(used).keys() == {"_name", "params", "objective"}
    assert memory.encode(shared) == known


def test_a_decision_replays_byte_for_byte_memory_included():
    target = Target().ticks_of(80.0, 200)
    for rate in (80.0, 400.0, 900.0, 10.0, 10.0):
        target.tick(rate, backlog=rate * 3)
        made = target.explained()
        stored = encode_inputs(
            target.policy, target.windows, target.before, NO_CONTROLS, now=target.now, decision_id="d"
        )
        inputs = decode_inputs(stored)
        assert inputs.state.memories == target.before.memories
        assert same(made, replay(inputs))


@pytest.mark.parametrize("counts", [True, False], ids=["counts", "the backlog alone"])
@pytest.mark.parametrize("backlog", [0.0, 40.0, 400.0])
def test_the_border_named_of_the_next_report_is_where_it_changes(counts, backlog):
    """The rule takes a backlog into what it knows: it is asked with the next report, not with another present (B2)."""
    target = Target(service_level(**({} if counts else {"incoming": None, "outgoing": None}))).ticks_of(
        80.0, 400
    )
    made = target.tick(80.0, backlog=backlog)
    flips = [flip for flip in target.explained().flips if flip.possible and flip.conditions]
    assert {c.quantity for flip in flips for c in flip.conditions} <= {"next backlog", "minimum", "maximum"}
    for flip in flips:
        (condition, *others) = flip.conditions
        if others:
            continue
        beyond = target.ahead(condition.value)
        short = target.ahead(condition.value * (0.99 if condition.comparator == ">=" else 1.01))
        assert (beyond.reason, beyond.desired) == (flip.outcome, flip.to)
        assert short.reason is made.reason


def paced(chance: Random) -> Pace:
    return Pace(
        cooldown=chance.choice([0.0, 60.0, 300.0]),
        stabilization=chance.choice([0.0, 300.0]),
        step=chance.choice([None, 1, 3]),
    )


@pytest.mark.parametrize("seed", range(400 if os.environ.get("TORTURE") == "1" else 12))
def test_what_is_named_of_the_next_report_comes_true_under_any_limits_and_any_load(seed):
    """Flips of a random target: what the next report has to say, and what comes of it, short of the border and beyond."""
    chance = Random(seed)
    options = {} if chance.random() < 0.5 else {"incoming": None, "outgoing": None}
    others = [THRESHOLD] if chance.random() < 0.3 else []
    limits = {"out": paced(chance), "inward": paced(chance), "minimum": chance.randint(0, 5)}
    current, maximum = chance.randint(1, 20), chance.randint(5, 60)
    target = Target(service_level(**options), *others, current=current, maximum=maximum, **limits)
    usual = chance.choice([5.0, 40.0, 80.0, 200.0])
    for _ in range(chance.randint(1, 150)):
        target.tick(usual * chance.uniform(0.8, 1.2), backlog=chance.choice([None, None, None, 30.0, 900.0]))
    spec = target.policy.spec
    for flip in target.explained().flips:
        bounds = {c.quantity: int(c.value) for c in flip.conditions if c.quantity in {"maximum", "minimum"}}
        following = [c for c in flip.conditions if c.quantity == "next backlog"]
        if not flip.possible or not following or len(bounds) + len(following) < len(flip.conditions):
            continue
        target.policy = Policy(msgspec.structs.replace(spec, **bounds))
        low = max((c.value for c in following if c.comparator.startswith(">")), default=0.0)
        high = min((c.value for c in following if c.comparator.startswith("<")), default=low * 3 + 10)
        for part in (0.0, 0.5, 1.0):
            came = target.ahead(low + (high - low) * part)
            assert came.reason is flip.outcome, (flip, part)
            assert flip.to is None or came.desired == flip.to or flip.beyond, (flip, part, came.desired)


def test_two_rules_keep_two_memories():
    two = RuleSpec(type="service_level", name="other", options={**service_level().options, "wait": "600s"})
    target = Target(service_level(), two).ticks_of(80.0, 50)
    assert set(target.state.memories) == {"service_level", "other"}


def test_it_works_within_a_composite():
    nested = {"rules": [{"type": "service_level", "name": "inner", **service_level().options}]}
    target = Target(RuleSpec(type="composite", name="c", options=nested)).ticks_of(80.0, 400)
    assert target.state.memories
    assert target.tick(600.0, backlog=6000.0, outgoing=80.0 * STEP).reason is Reason.SCALE_OUT


@pytest.mark.parametrize(
    ("options", "key", "words"),
    [
        ({"wait": "soon"}, "wait", "durations such as"),
        ({"wait": "0s"}, "wait", "above 0"),
        ({"late": "0%"}, "late", "above 0 and below 1"),
        ({"late": "many"}, "late", "such as '1%'"),
        ({"late": 1}, "late", "below 1"),
        ({"concurrency": 0}, "concurrency", "above 0"),
        ({"concurrency": "all"}, "concurrency", ""),
        ({"start_up": "-3s"}, "start_up", "durations such as"),
        ({"takes": "0s"}, "takes", "above 0"),
        ({"spend": "much"}, "spend", "keep"),
        ({"takes": "long"}, "takes", "durations such as"),
        ({"waits": "60s"}, "waits", "did you mean 'wait'"),
    ],
)
def test_options_that_make_no_sense_say_what_does(options, key, words):
    with pytest.raises(RuleError) as caught:
        build_rule("service_level", {"backlog": "backlog", **options}, name="r")
    assert words in caught.value.problems[key]


def test_a_start_counts_from_the_report_it_was_decided_upon():
    target = Target().ticks_of(80.0, 300)
    asked, wanted = target.now + STEP, target.current + 6
    effect = EffectRecord(asked + 40.0, target.current, wanted, None, decision_id("plan", asked))
    target.ticks_of(80.0, 3)
    target.current = wanted
    target.state = msgspec.structs.replace(target.state, expected=wanted, effects=(effect,))
    target.tick(80.0)
    assert target.known.recently_started == target.known.warming == [(asked, 6)]


def test_a_memory_that_was_not_kept_up_is_not_relied_upon():
    target = Target().ticks_of(80.0, 300)
    known = target.state.memories
    made = target.ticks_of(20.0, 80).tick(20.0)
    assert made.desired < 10
    target.state = msgspec.structs.replace(target.state, memories=known)
    rule = target.policy.flat_rules[0]
    current = target.current
    view = view_of(
        target.policy, target.windows, target.state, target.state.capacity, current, now=target.now
    )
    verdict = rule.evaluate(view)
    assert verdict.desired == current
    assert "what is learned is 20 min off" in verdict.sentence


def test_of_rules_that_are_gone_a_few_memories_stay():
    target = Target().ticks_of(80.0, 3)
    gone = {f"old-{index}": b"x" for index in range(20)}
    target.state = msgspec.structs.replace(target.state, memories={**gone, **target.state.memories})
    target.tick(80.0)
    assert len(target.state.memories) == 8
    assert target.known.observations == 3


def test_what_is_there_after_a_gap_is_kept_for_five_minutes_whatever_comes():
    """Nobody saw whether it was needed meanwhile."""
    target = Target().ticks_of(80.0, 480)
    there = target.current
    target.ticks = count(next(target.ticks) + 40)

    target.ticks_of(5.0, 20)

    assert (target.current, there > 5) == (there, True)
    assert target.ticks_of(5.0, 20).current < there


@pytest.mark.parametrize(
    ("late", "age", "seen_age"),
    [
        (0.0, (40.0, 0.0), 40.0),
        (150.0, (40.0, 0.0), 40.0),
        (150.0, (40.0, 45.0), 85.0),  # it aged meanwhile
        (150.0, (0.0, 45.0), 0.0),  # nothing waited
        (150.0, (40.0, 61.0), None),  # nobody knows any more
        (150.0, None, None),
    ],
)
def test_counts_that_come_late_have_their_own_time_and_ages_that_of_the_backlog(late, age, seen_age):
    """`late` seconds the counts are older than the backlog; an age was taken so many seconds before it."""
    windows = {
        "backlog": window(*[9.0] * 5, end=NOW),
        "incoming": window(5.0, 7.0, end=NOW - late),
        "outgoing": window(3.0, end=NOW - late),
    }
    windows |= {} if age is None else {"age": window(age[0], end=NOW - age[1])}
    rule = build_rule("service_level", service_level(oldest_age="age").options, name="r")

    seen = rule.observed(steady_views.view(now=NOW, **windows))

    assert seen.oldest_age == seen_age
    assert (seen.incoming, seen.outgoing) == ((None, None) if late else (7.0, 3.0))
    minutes = ((NOW - late - 60.0, 60.0, 5.0, None), (NOW - late, 60.0, 7.0, 3.0))  # one count lacks a minute
    assert seen.late_counts == (minutes if late else ())
