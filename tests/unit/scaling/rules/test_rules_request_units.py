"""Throughput for consumers, and consumers within throughput: the sizing, and what each rule says by it."""

import re

import pytest

from scaling.config.rule_registry import RuleError
from scaling.flip import Flip
from scaling.model import Reason
from tests.support.scaling.steady_views import rule, view, window

NUMBERS = {"rate": 1000, "ru_per_record": 6, "headroom": 1}


def sizing(**options):
    return rule("request_units_for_rate", **{"consumers": "instances", **NUMBERS, **options})


def within(**options):
    return rule("within_request_units", **{"request_units": "ru", **NUMBERS, **options})


def test_four_consumers_of_1000_records_and_6_ru_need_24000():
    verdict = sizing().evaluate(view(20_000, instances=4))

    assert (verdict.desired, verdict.reason) == (24_000, Reason.SCALE_OUT)
    assert verdict.note == "4 x 1000 records/s x 6 RU = 24000 RU/s"
    assert verdict.flips == (Flip.at("latest instances", "<=", 20 / 6, Reason.WITHIN_TARGET),)


@pytest.mark.parametrize(
    ("options", "metrics", "desired"),
    [
        ({"headroom": 1.5}, {"instances": 4}, 36_000),
        ({"consumers": 3}, {}, 18_000),
        ({"consumers": ["instances", "live"]}, {"instances": 4, "live": 5}, 30_000),
        ({"rate": "limit"}, {"instances": 4, "limit": 500}, 12_000),
        ({"ru_per_record": "charge"}, {"instances": 4, "charge": 6.3}, 25_200),
        ({"ru_per_record": "charge"}, {"instances": 4, "charge": 6.31}, 25_300),
        ({"step": 1000}, {"instances": 3.1}, 19_000),
    ],
)
def test_where_the_numbers_come_from_is_free(options, metrics, desired):
    assert sizing(**options).evaluate(view(400, **metrics)).desired == desired


def test_it_raises_at_once_and_lowers_only_past_the_tolerance():
    def desired(current):
        return sizing().evaluate(view(current, instances=4)).desired

    assert [desired(current) for current in (23_900, 24_000, 26_600, 26_700)] == [
        24_000,
        24_000,
        26_600,
        24_000,
    ]


@pytest.mark.parametrize("current", [400, 23_900, 24_000, 26_600, 26_700, 60_000])
@pytest.mark.parametrize("instances", [3, 4, 5])
def test_the_flips_name_consumers_that_change_the_outcome(current, instances):
    verdict = sizing().evaluate(view(current, instances=instances))

    for flip in verdict.flips:
        (condition,) = flip.conditions
        other = condition.value + {"<=": 0, ">": 1e-6}[condition.comparator]
        assert sizing().evaluate(view(current, instances=other)).reason is flip.outcome


def test_the_first_charge_is_used_until_one_is_known():
    missing = view(400, instances=4, charge=window())

    assert sizing(ru_per_record="charge").evaluate(missing).reason is Reason.INCOMPLETE_WINDOW
    assert sizing(ru_per_record="charge", first_ru_per_record=8).evaluate(missing).desired == 32_000


def test_a_consumer_count_that_is_not_known_is_no_vote():
    verdict = sizing().evaluate(view(400, instances=window()))

    assert (verdict.desired, verdict.reason) == (None, Reason.INCOMPLETE_WINDOW)


def test_a_charge_of_nothing_is_unknown_not_free():
    verdict = sizing(ru_per_record="charge").evaluate(view(400, instances=4, charge=0))

    assert (verdict.desired, verdict.reason) == (None, Reason.INVALID_METRIC)


def test_throttled_records_raise_whatever_the_sizing_says():
    throttled = sizing(throttled_share="refused")

    verdict = throttled.evaluate(view(30_000, instances=4, refused=0.05))

    assert (verdict.desired, verdict.reason) == (36_000, Reason.SCALE_OUT)
    assert verdict.flips == (Flip.at("latest refused", "<=", 0.01, Reason.WITHIN_TARGET),)
    assert throttled.evaluate(view(30_000, instances=6, refused=0.05)).desired == 36_000
    assert throttled.evaluate(view(24_000, instances=4, refused=0.01)).desired == 24_000


def test_it_does_not_lower_while_any_sample_of_the_window_was_throttled():
    throttled = sizing(throttled_share="refused")

    assert throttled.evaluate(view(60_000, instances=4, refused=window(0.5, *[0] * 9))).desired == 60_000
    assert throttled.evaluate(view(60_000, instances=4, refused=0)).desired == 24_000


def test_it_objects_to_lowering_below_what_is_needed_still():
    seen = view(60_000, instances=4)

    assert sizing().objection(seen, 24_000) is None
    assert sizing().objection(seen, 23_900) == "4 x 1000 records/s x 6 RU = 24000 RU/s are needed still"
    assert sizing().objection(view(400, instances=4), 12_000) is None  # raising is never wrong
    assert sizing().objection(view(60_000, instances=window()), 24_000) == "instances is not known"


@pytest.mark.parametrize(
    ("there", "ceiling"),
    [(17_000, 3), (18_000, 3), (23_999, 3), (24_000, 4), (60_000, 10)],
)
def test_instances_may_come_as_far_as_the_request_units_suffice(there, ceiling):
    verdict = within().evaluate(view(3, ru=there))

    assert (verdict.desired, verdict.out_ceiling) == (None, ceiling)


def test_without_request_units_for_one_more_it_says_how_many_it_takes():
    verdict = within().evaluate(view(3, ru=18_000))

    assert verdict.flips == (Flip.at("latest ru", ">=", 24_000.0, Reason.SCALE_OUT),)


@pytest.mark.parametrize("metrics", [{"ru": window(), "charge": 6}, {"ru": 60_000, "charge": window()}])
def test_what_is_not_known_is_not_enough(metrics):
    verdict = within(ru_per_record="charge").evaluate(view(3, **metrics))

    assert (verdict.out_ceiling, verdict.reason) == (3, Reason.LOCK_STEP)
    assert "is not known" in verdict.note


def test_it_objects_to_instances_beyond_the_request_units():
    assert within().objection(view(3, ru=24_000), 4) is None
    assert within().objection(view(3, ru=24_000), 5) == (
        "5 x 1000 records/s x 6 RU = 30000 RU/s are needed, 24000 are there"
    )
    assert within().objection(view(3, ru=0), 2) is None
    assert within().objection(view(3, ru=window()), 4) == "ru is not known"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rate": 0}, "rate: found 0; a number above 0 or the name of a metric is accepted"),
        ({"ru_per_record": -1}, "ru_per_record: found -1; a number above 0 or the name"),
        ({"rate": 0, "headroom": 0.5}, "metric is accepted; headroom: found 0.5; 1 to 10 is accepted"),
        ({"first_ru_per_record": 8}, "first_ru_per_record: is of no use"),
        (
            {"ru_per_record": "charge", "first_ru_per_record": 0},
            "first_ru_per_record: found 0; a number above 0 is accepted",
        ),
        ({"consumers": 0}, "consumers: found 0; a number above 0"),
        ({"consumers": [], "headroom": 0.5}, "consumers: found nothing; a number above 0 or the name of a"),
        ({"rate": ""}, "rate: found nothing; a number above 0"),
        ({"tolerance": 1}, "tolerance: "),
    ],
)
def test_numbers_that_mean_nothing_are_refused(options, words):
    with pytest.raises(RuleError, match=re.escape(words)):
        sizing(**options)
