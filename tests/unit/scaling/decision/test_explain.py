"""Decisions in words a person can read without a manual."""

import math

import msgspec
import pytest

from scaling.config.policy import RuleSpec
from scaling.decision.explain import effect_line, evidence_text, flip_text, limit_text, line
from scaling.flip import Condition, Flip
from scaling.flips.explained import decide_and_explain as decide
from scaling.model import (
    Effect,
    EffectOutcome,
    Evidence,
    Limit,
    MetricFailure,
    Reason,
    Recommendation,
)
from scaling.window import Window
from tests.support.scaling.runner import NOW, THRESHOLD, at, full, metric, policy
from tidemark.foundation.wording import duration_text, number_text

ID = "plan-orders@20261121T045000.000Z"
NUMBERS = Evidence("r", "backlog", "average", 812.0, ">", 500.0, 600.0, 10)


def decision(reason, desired, *, current=3, **more):
    return Recommendation(ID, "plan-orders", 0.0, current, desired, desired, 1, 10, reason, **more)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (812, "812"),
        (0.25, "0.25"),
        (12_000.4, "12000"),
        (0, "0"),
        (0.0041, "0.0041"),
        (3.999, "4"),
        (2.5, "2.5"),
        (-0.5, "-0.5"),
        (math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_numbers_show_what_says_something(value, text):
    assert number_text(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (45, "45 s"),
        (60, "1 min"),
        (90, "90 s"),
        (600, "10 min"),
        (3_599, "1 h"),
        (7_199, "2 h"),
        (5_400, "1 h 30 min"),
        (172_800, "2 d"),
        (93_600, "1 d 2 h"),
    ],
)
def test_durations_are_rounded_without_sixty_minutes(seconds, text):
    assert duration_text(seconds) == text


def test_evidence_shows_both_numbers_the_window_and_the_samples():
    assert evidence_text(NUMBERS) == "average backlog 812 > 500 over 10 min (10 samples)"
    assert evidence_text(Evidence("r", "a", "latest", 5.0, "in", 0.0)) == "latest a 5"
    assert evidence_text(Evidence("r", "rate", "maximum", 700.0, "~", 700.0)) == "maximum rate 700"
    assert evidence_text(Evidence("r", "rate", "maximum", 690.0, "~", 700.0)) == "maximum rate 690 ~ 700"


def test_evidence_never_shows_two_equal_numbers_that_are_not():
    assert evidence_text(Evidence("r", "a", "average", 500.4, ">", 500.0)) == "average a 500.4 > 500.0"


OVER = Condition("average backlog", ">", 500.0)


@pytest.mark.parametrize(
    ("flip", "text"),
    [
        (Flip(Reason.SCALE_OUT, (OVER,), 4), "scale out to 4 if average backlog > 500"),
        (Flip(Reason.SCALE_OUT, (OVER,), 4, beyond=True), "scale out to 4 or more if average backlog > 500"),
        (
            Flip(
                Reason.SCALE_IN, (Condition("maximum backlog", "<", 100.0), Condition("time", ">=", 59.4)), 2
            ),
            "scale in to 2 if maximum backlog < 100 and not before 1970-01-01 00:01:00Z",
        ),
        (
            Flip(
                Reason.WITHIN_TARGET,
                (Condition("average b", "<=", 500.0), Condition("average b", ">=", 100.0)),
            ),
            "hold (within target) if 100 <= average b <= 500",
        ),
        (
            Flip(
                Reason.WITHIN_TARGET,
                (Condition("average b", ">", 0.5001), Condition("average b", "<", 0.5002)),
            ),
            "hold (within target) if 0.5001 < average b < 0.5002",
        ),
        (
            Flip(Reason.SCALE_IN, (Condition("failures backlog", "==", 0.0),), 2),
            "scale in to 2 if backlog can be read again, and is as it was",
        ),
        (
            Flip.at("age backlog", "<=", 180.0, Reason.WITHIN_TARGET),
            "hold (within target) if the newest sample of backlog is at most 3 min old, and as the one before",
        ),
        (
            Flip.at("span backlog", ">=", 570.0, Reason.WITHIN_TARGET),
            "hold (within target) if the samples of backlog cover 570 s, and are like those there are",
        ),
        (
            Flip(Reason.BELOW_MINIMUM, (Condition("samples backlog", ">=", 5.0),), 4),
            "go to 4 (below minimum) if backlog has 5 samples, all like those there are",
        ),
        (Flip.at("capacity", "==", 0.0, None), "decide anew if the capacity can be read"),
        (
            Flip(Reason.SCALE_OUT, (Condition("pause out", "==", 0.0),), 4),
            "scale out to 4 if scaling out is not paused",
        ),
        (
            Flip(Reason.SCALE_IN, (Condition("maximum backlog", "<", 0.0),), possible=False),
            "no scale in is possible: it takes maximum backlog < 0",
        ),
        (Flip(Reason.WITHIN_TARGET), "no single value changes this"),
        # Digits are left out so that what is said of the values beyond stays true.
        (Flip(Reason.SCALE_OUT, (Condition("next b", ">=", 2185.2),), 4), "scale out to 4 if next b >= 2186"),
        (Flip(Reason.SCALE_IN, (Condition("next b", "<=", 2185.8),), 2), "scale in to 2 if next b <= 2185"),
        (
            Flip(Reason.SCALE_IN, (Condition("latest b", "<", 0.004123),), 2),
            "scale in to 2 if latest b < 0.0041",
        ),
    ],
)
def test_a_flip_says_what_would_have_changed_the_outcome(flip, text):
    assert flip_text(flip) == text


def test_a_limit_says_what_was_wanted_allowed_and_why():
    assert (
        limit_text(Limit(Reason.RATE_LIMITED, 12, 5, "step 2"))
        == "rate limited (step 2): 12 wanted, 5 allowed"
    )


def test_a_scale_out_is_one_line_with_its_numbers():
    assert (
        line(decision(Reason.SCALE_OUT, 4, evidence=(NUMBERS,)))
        == f"scaling plan-orders out 3 -> 4: average backlog 812 > 500 over 10 min (10 samples) [{ID}]"
    )


def test_a_hold_says_why_and_what_would_change_it():
    text = line(
        decision(
            Reason.COOLING_DOWN,
            3,
            evidence=(NUMBERS,),
            limits=(Limit(Reason.COOLING_DOWN, 4, 3, "60 s left"),),
            flips=(Flip(Reason.SCALE_OUT, (Condition("time", ">=", 60.0),), 4),),
        )
    )

    assert text.startswith(
        "scaling plan-orders hold 3: cooling down (60 s left): 4 wanted, 3 allowed; average"
    )
    assert "scale out to 4 if not before 1970-01-01 00:01:00Z" in text


def test_a_dry_run_says_what_it_would_do():
    assert "dry-run, would go in 3 -> 2" in line(decision(Reason.DRY_RUN, 2))


@pytest.mark.parametrize("reason", list(Reason))
@pytest.mark.parametrize("current", [None, 3])
def test_every_reason_has_words_and_makes_one_line(reason, current):
    assert reason.words
    text = line(decision(reason, current, current=current))

    assert text.startswith("scaling plan-orders ")
    assert text.endswith(f"[{ID}]")
    assert "\n" not in text
    assert "_" not in text.partition(": ")[2]


@pytest.mark.parametrize("outcome", list(EffectOutcome))
def test_every_outcome_of_an_action_makes_one_line(outcome):
    text = effect_line(Effect(ID, "plan-orders", outcome, 3, 4, None, 0.0, "because"))

    assert text.startswith("scaler plan-orders ")
    assert text.endswith(f"3 -> 4: because [{ID}]")


WINDOW = metric(min_samples=5)
PER_UNIT = RuleSpec(type="target_per_unit", name="unit", options={"metric": "backlog", "target": 100.0})
FORMULA = RuleSpec(
    type="composite", name="both", options={"scale_out_when": "backlog.average > 250 and instances < 9"}
)
SUM = RuleSpec(
    type="threshold",
    name="sum",
    options={"metrics": ["backlog", "other"], "combine": "sum", "scale_out_above": 250, "scale_in_below": 10},
)
OTHER = RuleSpec(type="threshold", name="other", options={"metric": "other", "scale_out_above": 400})


def young(value, *rules, samples=4, failure=None, stale=0.0, windows=None):
    """The line of a decision with fewer samples than it needs."""
    made = policy(metrics={"backlog": WINDOW, "other": WINDOW}, rules=rules or (THRESHOLD,))
    backlog = full(value, now=NOW - stale, count=samples) if samples else Window()
    backlog = msgspec.structs.replace(backlog, failure=failure)
    read = {"backlog": backlog, "other": full(100.0)} | (windows or {})
    return line(decide(made, read, at(3), now=NOW, decision_id=ID))


NEEDED = "if backlog has 5 samples, all like those there are"
BOTH = f"{NEEDED} and other has 5 samples, all like those there are"
COUNTED = "over 5 min (4 samples)"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            young(888.0),
            f"collecting backlog, 4 of 5 min; average backlog 888 > 500 {COUNTED}; scale out to 4 {NEEDED}",
        ),
        (young(20.0), f"maximum backlog 20 < 100 {COUNTED}; scale in to 2 {NEEDED}"),
        (young(300.0), f"average backlog 300 <= 500 {COUNTED}; hold (within target) {NEEDED}"),
        (
            young(0.0, samples=0),
            f"collecting backlog, 0 of 5 min; decide anew {NEEDED}",
        ),
        (young(888.0, samples=1), f"888 > 500 over 5 min (1 sample); scale out to 4 {NEEDED}"),
        (young(888.0, PER_UNIT), f"latest backlog 888 > 300 {COUNTED}; scale out to 9 {NEEDED}"),
        (young(888.0, FORMULA), f"scale out to 4 {NEEDED}"),
        (young(200.0, SUM), f"average sum(backlog, other) 300 > 250 {COUNTED}; scale out to 4 {NEEDED}"),
        (
            young(20.0, THRESHOLD, OTHER, windows={"other": Window()}),
            f"; decide anew {BOTH}",
        ),
        (
            young(888.0, THRESHOLD, OTHER, windows={"other": Window()}),
            f"average backlog 888 > 500 {COUNTED}; decide anew {BOTH}",
        ),
        (
            young(888.0, stale=400.0, samples=5),
            "888 > 500 over 5 min (5 samples); scale out to 4 if the newest sample of backlog is at most",
        ),
        (
            young(888.0, samples=5, failure=MetricFailure("backlog", NOW, "403")),
            "888 > 500 over 5 min (5 samples); scale out to 4 if backlog can be read again",
        ),
    ],
)
def test_a_hold_for_missing_samples_says_what_there_is_what_it_points_to_and_what_is_needed(text, words):
    assert words in text, text
    assert "within target possible" not in text


@pytest.mark.parametrize(("current", "told"), [(1, False), (3, True)])
def test_at_its_minimum_a_target_does_not_say_that_it_cannot_scale_in(current, told):
    impossible = Flip(Reason.SCALE_IN, (Condition("maximum backlog", "<", 0.0),), possible=False)
    decided = decide(policy(minimum=1), {"backlog": full(300.0)}, at(current), now=NOW)
    text = line(msgspec.structs.replace(decided, flips=(impossible,)))

    assert ("no scale in is possible" in text) is told


def test_what_few_samples_point_to_changes_nothing():
    made = policy(metrics={"backlog": WINDOW}, rules=(THRESHOLD,))
    decided = decide(made, {"backlog": full(888.0, count=4)}, at(3), now=NOW)

    assert (decided.reason, decided.desired, decided.proposed) == (Reason.INCOMPLETE_WINDOW, 3, None)
