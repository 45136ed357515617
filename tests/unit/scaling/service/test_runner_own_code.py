"""Whatever a rule of the user's own answers, the target is decided for: nothing of it ends in the poison queue."""

import math

import pytest
from msgspec import structs

from scaling.config.policy import RuleSpec
from scaling.flips.explained import decide_and_explain
from scaling.flips.what_if import ASKED
from scaling.log_entry import LogKind
from scaling.model import Capacity, Effect, EffectOutcome, Evidence, Flip, Reason, Verdict
from scaling.rules.answers import MOST
from scaling.rules.combine import safe_evaluate
from scaling.storage.rows import size_of, target_row
from tests.support.scaling.runner import NOW, THRESHOLD, World, at, full, metric, policy
from tests.support.scaling.shadow import Target, shadowed

BIG = "x" * 400_000
ODD = "line\nbreak \ud800 \x1b[2J"


class Odd(Verdict):
    more: object = None


class NoWordsError(Exception):
    def __repr__(self):
        raise RuntimeError


class BadBool:
    def __bool__(self):
        raise RuntimeError("no truth")


def raising(error):
    raise error


def evidence(**changes):
    fields = {"rule": "r", "metric": "m", "statistic": "s", "value": 1.0, "comparator": "<", "threshold": 2.0}
    return (Evidence(**(fields | changes)),)


STAY = Reason.WITHIN_TARGET
VERDICTS = {
    "a note without end": lambda: Verdict(3, STAY, note=BIG),
    "a sentence without end": lambda: Verdict(3, STAY, sentence=BIG),
    "a note of odd characters": lambda: Verdict(3, STAY, note=ODD, sentence=ODD),
    "a note that is none": lambda: Verdict(3, STAY, note=object()),
    "evidence without end": lambda: Verdict(3, STAY, evidence() * 2_000),
    "evidence with names without end": lambda: Verdict(
        3, STAY, evidence(rule=BIG, metric=ODD, statistic=BIG)
    ),
    "evidence that is none": lambda: Verdict(3, STAY, (object(),)),
    "evidence of a text": lambda: Verdict(3, STAY, evidence(value="many")),
    "evidence that is no number": lambda: Verdict(3, STAY, evidence(span=math.nan)),
    "evidence as a number": lambda: Verdict(3, STAY, 7),
    "flips without end": lambda: Verdict(3, STAY, (), (Flip.at(BIG, ">", 1.0, STAY),) * 1_000),
    "a flip of metrics that are not there": lambda: Verdict(
        3,
        STAY,
        (),
        (
            Flip.at("latest sum(a, b)", ">", 1.0, Reason.SCALE_OUT),
            Flip.at("next c", "?", 1.0, Reason.SCALE_IN),
        ),
    ),
    "a flip of a reason that is none": lambda: Verdict(3, STAY, (), (Flip.at("q", ">", 1.0, "because"),)),
    "a number without end": lambda: Verdict(10**400, STAY),
    "bounds without end": lambda: Verdict(None, STAY, ceiling=10**400, out_ceiling=10**30),
    "a floor without end": lambda: Verdict(None, STAY, floor=10**400),
    "half an instance": lambda: Verdict(2.5, STAY),
    "a reason that is none": lambda: Verdict(3, "because"),
    "more than a verdict": lambda: Odd(3, STAY, more=object()),
    "no verdict": object,
    "an exception": lambda: raising(ValueError(BIG)),
    "an exception without words": lambda: raising(NoWordsError()),
    "recursion": lambda: [VERDICTS["recursion"]()],
}
MEMORIES = {
    "400 KB": lambda _: bytes(400_000),
    "what grows": lambda known: (known or b"") + bytes(60_000),
    "a text": lambda _: "learned",
    "an array": lambda _: bytearray(5),
    "an object": lambda _: object(),
    "an exception": lambda _: raising(ValueError(BIG)),
    "an exception without words": lambda _: raising(NoWordsError()),
}
OBJECTIONS = {
    "a text without end": lambda: BIG,
    "odd characters": lambda: ODD,
    "what has no truth": BadBool,
    "an exception": lambda: raising(NoWordsError()),
}


class Answering:
    """A user's rule that answers as the case says."""

    def __init__(self, *, kind, case, name="Answering"):
        self.kind, self.case, self.name = kind, case, name

    def metrics(self):
        return ("backlog",)

    def evaluate(self, view):
        return VERDICTS[self.case]() if self.kind == "verdict" else Verdict(view.current, STAY)

    def learn(self, known, view):
        return MEMORIES[self.case](known) if self.kind == "memory" else known

    def objection(self, view, capacity):
        return OBJECTIONS[self.case]() if self.kind == "objection" else None


def answering(kind, case, name="mine"):
    type_ = "tests.unit.scaling.service.test_runner_own_code:Answering"
    return RuleSpec(type=type_, name=name, options={"kind": kind, "case": case, "name": name})


CASES = [
    *(("verdict", case) for case in VERDICTS),
    *(("memory", case) for case in MEMORIES),
    *(("objection", case) for case in OBJECTIONS),
]


QUICK = {"metrics": {"backlog": metric(span=60.0, min_samples=1)}}


async def lived(made, minutes):
    """A world after so many minutes of a backlog that scales out."""
    world = World(made, capacity=2)
    world.backlog = 900.0
    world.process = world.autoscaler()  # one, for each would check its rules anew
    world.autoscaler = lambda: world.process
    for _ in range(minutes):
        await world.minute()
    return world


@pytest.mark.parametrize(("kind", "case"), CASES)
async def test_whatever_a_rule_answers_its_target_is_decided_for(kind, case):
    world = await lived(policy(**QUICK, rules=(THRESHOLD, answering(kind, case))), 4)

    state = await world.state()
    assert len(await world.entries(LogKind.DECISION)) == 4
    assert state.last.at == world.clock.now
    assert size_of(target_row("plan", structs.replace(state, memories={}), {})) < 60_000
    if kind != "objection":
        assert world.platform.ledger  # the other rule's votes count all the same


@pytest.mark.parametrize(("kind", "case"), CASES)
def test_whatever_a_simulated_rule_answers_the_target_is_decided_for_as_without_it(kind, case):
    target = Target(shadowed(answering(kind, case)))
    target.steps(4)

    assert target.made.reason is not Reason.RULE_FAILED
    assert size_of(target_row("plan", structs.replace(target.state, memories={}), {})) < 300_000


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("400 KB", "its learn() returned 400000 bytes, where at most 131072 are kept"),
        ("a text", "its learn() returned str, where bytes are accepted"),
        ("an exception", "its learn() failed: ValueError("),
    ],
)
async def test_what_could_not_be_learned_is_told_with_the_rule_s_name(case, words):
    world = World(policy(rules=(answering("memory", case),)))
    await world.tick()

    outcome = await world.decide()

    assert any(words in warning and "rule 'mine'" in warning for warning in outcome.warnings)


async def test_several_rules_remember_no_more_together_than_a_row_holds():
    rules = tuple(answering("memory", "what grows", f"r{index}") for index in range(3))
    world = await lived(policy(**QUICK, rules=rules), 4)

    assert sum(map(len, (await world.state()).memories.values())) <= 131_072


async def test_a_row_that_has_no_room_loses_what_can_be_spared_and_never_the_decision():
    """Old rows may hold more than is kept today: their memory goes, and the report is decided upon."""
    world = World(policy(metrics={"backlog": metric()}))
    await world.minute()
    loaded = await world.states.load("plan")
    many = {f"old{index}": bytes(30_000) for index in range(8)}
    await world.states.save(loaded, structs.replace(loaded.state, memories=many), loaded.windows)
    full = await world.states.load("plan")
    texts = {f"t{index}": "y" * 30_000 for index in range(1)}
    await world.states.save(full, structs.replace(full.state, unlearned=texts), full.windows)

    await world.minute()

    assert (await world.state()).last.at == world.clock.now


@pytest.mark.parametrize(
    ("found", "known"),
    [
        (Capacity(3, 0.0, allowed=tuple(range(100_000))), False),
        (Capacity(3, 0.0, held_by=BIG), False),
        (Capacity(10**30, 0.0), False),
        (Capacity(3, 0.0, ceiling=10**30), False),
        (Capacity(3, 0.0, held_by=object()), False),
        (Capacity(3, 0.0, allowed=(1, 2, 4)), True),
    ],
)
async def test_a_capacity_that_no_row_takes_is_not_known(found, known):
    world = World(policy(), capacity=3)

    async def current(target, *, now):
        return structs.replace(found, at=now)

    world.scaler.current = current
    await world.minute()

    assert ((await world.state()).capacity_error is None) is known


@pytest.mark.parametrize(
    "changes", [{"reached": "four"}, {"reached": 10**30}, {"detail": object()}, {"outcome": "well"}]
)
async def test_an_effect_that_cannot_be_stored_is_a_failed_delivery(changes):
    world = World(policy(**QUICK), capacity=3)
    world.backlog = 900.0

    async def apply(action, *, now):
        effect = Effect(action.action_id, "plan", EffectOutcome.APPLIED, 3, 4, 4, now)
        return structs.replace(effect, **changes)

    world.scaler.apply = apply
    await world.tick()
    (message,) = (await world.decide()).messages
    with pytest.raises((TypeError, ValueError)):
        await world.autoscaler().apply(message)

    state = await world.state()
    assert (state.expected, state.effects) == (3, ())
    assert state.pending is not None


def test_a_count_beyond_all_platforms_is_the_most_there_can_be():
    rule = Answering(kind="verdict", case="a number without end")
    view = type("V", (), {"current": 3})()

    assert safe_evaluate(rule, view).desired == MOST


class Greedy:
    """A user's rule that changes whatever it is shown."""

    def metrics(self):
        return ("backlog",)

    def evaluate(self, view):
        self.spoil(view)
        return Verdict(view.current, STAY)

    def learn(self, known, view):
        self.spoil(view)
        return b"mine"

    def objection(self, view, capacity):
        self.spoil(view)

    def spoil(self, view):
        view.metric("backlog")
        for each in view.windows.values():
            each.times.clear()
            each.values[:] = [0.0]
        view.memories["other"] = b"spoilt"
        for known in (view.windows, view.specs, view.metrics(), view._summaries):
            known.clear()


async def test_a_rule_that_changes_what_it_is_shown_changes_nothing_of_the_target():
    greedy = RuleSpec(
        type="tests.unit.scaling.service.test_runner_own_code:Greedy", name="greedy", options={}
    )
    world = await lived(policy(**QUICK, rules=(greedy, THRESHOLD, greedy)), 4)

    loaded = await world.states.load("plan")
    assert loaded.windows["backlog"].values == [900.0]
    assert loaded.state.memories == {"Greedy": b"mine"}
    assert world.platform.ledger == [3, 4, 5, 6]


class Deadline:
    """A deadline that is none."""

    def __init__(self, value):
        self.value = value

    def __get__(self, scaler, kind):
        return raising(self.value) if isinstance(self.value, Exception) else self.value


@pytest.mark.parametrize("value", [NoWordsError(), "soon", math.nan, math.inf, -5.0, None, 10**400, BIG])
async def test_a_scaler_s_deadline_that_is_none_keeps_no_action_from_its_target(value):
    world = World(policy(**QUICK), capacity=3)
    world.backlog = 900.0
    kind = type(world.scaler)
    world.scaler.__class__ = type("Odd", (kind,), {"deadline": Deadline(value)})
    await world.minute()

    assert (await world.state()).expected == 4


class Counting:
    """A user's rule of several metrics that tells no borders, and counts how often it is asked."""

    asked = 0

    def metrics(self):
        return ("a", "b", "c")

    def evaluate(self, view):
        Counting.asked += 1
        total = sum(view.metric(name).latest for name in self.metrics())
        return Verdict(view.current + (total > 5000.0) - (total < 10.0), STAY)


@pytest.mark.parametrize("value", [1.0, 300.0, 9000.0])
def test_a_rule_is_asked_a_bounded_number_of_times_for_what_would_change_its_vote(value):
    rule = RuleSpec(type="tests.unit.scaling.service.test_runner_own_code:Counting", name="mine", options={})
    made = policy(metrics={name: metric() for name in "abc"}, rules=(rule,))
    Counting.asked = 0

    found = decide_and_explain(made, {name: full(value) for name in "abc"}, at(3), now=NOW)

    assert Counting.asked <= 1 + ASKED
    assert found.flips != (Flip(Reason.WITHIN_TARGET),)  # that no value would change it was not found out
