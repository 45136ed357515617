"""Autoscale settings of Azure Monitor: when which bounds hold, which rules there are, and what is told of the rest."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest

from scaling.rules.combine import safe_evaluate
from tests.support.scaling.imports import GROUP, PLAN, QUEUE, made_of, profile, rule, setting
from tests.support.scaling.steady_views import view
from tidemark.commands.importing.azure_monitor.windows_zones import WINDOWS, iana_of
from tidemark.commands.importing.common.given import UnreadableError, objects_in
from tidemark.commands.importing.documents import objects_of

BERLIN = "W. Europe Standard Time"
WORKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]


def weekly(days, *hours, minutes=(0,), zone=BERLIN, frequency="Week"):
    schedule = {"timeZone": zone, "days": days, "hours": list(hours), "minutes": list(minutes)}
    return {"recurrence": {"frequency": frequency, "schedule": schedule}}


def fixed(start, end, zone=BERLIN):
    return {"fixedDate": {"timeZone": zone, "start": start, "end": end}}


AFTER = '{"name":"Auto created default scale condition","for":"Office"}'


def bounds(policy, moment, zone="Europe/Berlin"):
    """The least and the most there may be at a local time."""
    now = datetime.fromisoformat(moment).replace(tzinfo=ZoneInfo(zone)).timestamp()
    low, high = policy.minimum, policy.maximum
    for each in policy.flat_rules:
        found = safe_evaluate(each, view(now=now, specs=policy.windows))
        low, high = max(low, found.floor or 0), min(high, found.ceiling or high)
    return low, high


def notes(made):
    return " | ".join(note for each in made.notes.values() for note in each)


OFFICE = setting(
    profile(AFTER, "1", "4", **weekly(WORKDAYS, 18)),
    profile("Office", "3", "9", **weekly(WORKDAYS, 8)),
    profile("Sale", "6", "20", **fixed("2026-11-27T00:00:00+00:00", "2026-11-30T23:59:30Z")),
)


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("2026-11-25T07:59", (1, 4)),  # a Wednesday
        ("2026-11-25T08:00", (3, 9)),
        ("2026-11-25T17:59", (3, 9)),
        ("2026-11-25T18:00", (1, 4)),
        ("2026-11-26T23:59", (1, 4)),
        ("2026-11-27T00:00", (6, 20)),
        ("2026-11-27T12:00", (6, 20)),
        ("2026-11-30T23:59", (6, 20)),  # a second past it counts as the next minute
        ("2026-12-01T00:00", (1, 4)),
        ("2026-12-05T12:00", (1, 4)),  # what begins on Friday evening lasts until Monday morning
        ("2026-12-07T08:00", (3, 9)),
    ],
)
def test_a_recurrence_ends_where_the_next_begins_and_a_fixed_date_beats_both(moment, expected):
    made, policies, _ = made_of(OFFICE)

    assert bounds(policies["orders"], moment) == expected
    assert "rules of profile" not in notes(made)


@pytest.mark.parametrize(
    ("profiles", "moment", "expected"),
    [
        ([profile("always", "2", "5")], "2026-11-25T12:00", (2, 5)),
        ([profile("base", "2", "5"), profile("once", "4", "9", **weekly(["Monday"], 6))], "2026-11-25T12:00", (4, 9)),
        ([profile("base", "2", "5"), profile("fixed", "7", "9", **fixed("2026-11-25T00:00:00", "2026-11-26T00:00:00"))],
         "2026-11-25T12:00", (7, 9)),
        ([profile("base", "2", "5"), profile("fixed", "7", "9", **fixed("2026-11-25T00:00:00", "2026-11-26T00:00:00"))],
         "2026-11-26T00:00", (2, 5)),
        ([profile("a", "1", "5", **weekly(["Sunday"], 22)), profile("b", "3", "5", **weekly(["Monday"], 4, minutes=[30]))],
         "2026-11-23T04:29", (1, 5)),
        ([profile("a", "1", "5", **weekly(["Sunday"], 22)), profile("b", "3", "5", **weekly(["Monday"], 4, minutes=[30]))],
         "2026-11-29T21:59", (3, 5)),
        ([profile("base", "1", "5", **weekly(WORKDAYS, 8)),
          profile("tokyo", "3", "5", **fixed("2026-11-25T20:00:00", "2026-11-25T22:00:00", "Tokyo Standard Time"))],
         "2026-11-25T12:30", (3, 5)),
    ],
)  # fmt: skip
def test_profiles_bound_by_the_clock_of_their_time_zone(profiles, moment, expected):
    assert bounds(made_of(setting(*profiles))[1]["orders"], moment) == expected


def test_every_hour_of_a_week_has_the_bounds_of_the_profile_that_began_last():
    profiles = [
        profile(AFTER, "1", "4", **weekly(WORKDAYS, 18)),
        profile("Office", "3", "9", **weekly(WORKDAYS, 8)),
    ]
    policy = made_of(setting(*profiles))[1]["orders"]
    begin = datetime(2026, 11, 22, 12)  # a Sunday
    for hour in range(24 * 7):
        at = begin + timedelta(hours=hour)
        inside = at.weekday() < 5 and 8 <= at.hour < 18
        assert bounds(policy, at.isoformat()) == ((3, 9) if inside else (1, 4)), at


PAIR = [rule(), rule("Decrease", 30)]
AT_QUEUE = {"metricName": "MessageCount", "metricResourceUri": QUEUE}


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (PAIR, {"scale_out_above": 70, "scale_in_below": 30}),
        ([rule(), rule("Decrease", 60)], {"scale_out_above": 70, "scale_in_below": "min(60, 70 * max(instances - 1, 1) / max(instances, 1))"}),
        ([rule("Increase", 10, **AT_QUEUE), rule("Decrease", 2, **AT_QUEUE)],
         {"scale_out_above": "10 * instances", "scale_in_below": "2 * instances"}),
        ([rule("Increase", 600, timeAggregation="Total"), rule("Decrease", 60, timeAggregation="Total")],
         {"scale_out_above": 60, "scale_in_below": 6, "out_statistic": "average"}),
        ([rule("Increase", 5, action={"value": "2"}), rule("Decrease", 1, timeAggregation="Maximum")],
         {"step_out": 2, "in_statistic": "maximum"}),
    ],
)  # fmt: skip
def test_two_rules_of_a_metric_become_one_threshold_that_does_not_flap(rules, expected):
    policy = made_of(setting(profile(maximum="4", rules=rules)))[1]["orders"]

    (found,) = policy.spec.rules
    assert found.type == "threshold"
    assert expected.items() <= found.options.items()


CPU = "cpu_percentage.average"


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([rule()], f"instances + 1 if {CPU} > 70 else instances"),
        ([*PAIR, rule("Increase", 90, action={"value": "3"})],
         (f"max((instances + 1 if {CPU} > 70 else 0), (instances + 3 if {CPU} > 90 else 0), instances) if {CPU} > 70 or {CPU} > 90 else "
         f"min(max(instances - 1, 1), instances) if {CPU} < 30 and {CPU} * instances <= 70 * max(instances - 1, 1) "
         f"and {CPU} * instances <= 90 * max(instances - 1, 1) else instances")),
        ([rule("Increase", 20, "LessThanOrEqual"), rule("Decrease", 60, "Equals")],
         f"instances + 1 if {CPU} <= 20 else min(max(instances - 1, 1), instances) if {CPU} == 60 else instances"),
        ([rule(action={"type": "ExactCount", "value": "7"})], f"max(7, instances) if {CPU} > 70 else instances"),
        ([rule(action={"type": "PercentChangeCount", "value": "50"})],
         f"instances + max(ceil(instances * 50 / 100), 1) if {CPU} > 70 else instances"),
        ([rule(), rule("Decrease", 30, timeWindow="PT30M")],
         (f"instances + 1 if {CPU} > 70 else min(max(instances - 1, 1), instances) if cpu_percentage_2.average < 30 "
         f"and {CPU} * instances <= 70 * max(instances - 1, 1) else instances")),
        ([rule("Increase", 10, **AT_QUEUE)], "instances + 1 if message_count.average > 10 * instances else instances"),
    ],
)  # fmt: skip
def test_other_rules_become_one_expression_that_does_not_flap_either(rules, expected):
    policy = made_of(setting(profile(maximum="4", rules=rules)))[1]["orders"]

    assert policy.spec.rules[0].options == {"desired": expected}


DIMENSION = {"DimensionName": "Instance", "Operator": "NotEquals", "Values": ["a"]}
OTHER = [rule(threshold=80), rule("Decrease", 30)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (setting(enabled=False), "enabled: the setting is switched off, so the target is in dry-run"),
        (setting(), "switch it off when you begin"),
        (setting(profile(), profile("night", rules=OTHER, **weekly(["Monday"], 4))), "the rules of profile 'night'"),
        (setting(profile(rules=[*PAIR, rule(dimensions=[DIMENSION])])), "(Instance): one value of a dimension can be read"),
        (setting(profile(rules=[*PAIR, rule("Decrease", 5, metricName="Other", dimensions=[DIMENSION])])),
         "scaling in: it takes all of its rules, and one of them is left out, so nothing scales in"),
        (setting(profile(rules=[rule(operator="GreaterThanOrEqual"), rule("Decrease", 30)])), "at exactly 70 nothing happens"),
        (setting(profile(rules=[rule(operator="Equals")])), "all rules are one expression, any out, all in: read it once"),
        (setting(profile(rules=[rule(), rule("Decrease", 30, action={"value": "2"})])), "Azure Monitor tries fewer"),
        (setting(profile(rules=[rule(timeAggregation="Count"), *PAIR])), "the time aggregation Count has no equivalent"),
        (setting(profile(rules=[rule(timeGrain="PT2M"), *PAIR])), "2m is read as 1m"),
        (setting(profile(maximum="4", rules=[rule(action={"cooldown": "PT1H"}), rule(metricName="M"), *PAIR])), "cooldowns that differ from rule to rule"),
        (setting(profile(**weekly(["Monday"], 4, zone="Mars Standard Time"))), "'Mars Standard Time' is not known here"),
        (setting(profile(), profile("monthly", **weekly(["Monday"], 4, frequency="Month"))), "only weekly recurrences"),
        (setting(predictiveAutoscalePolicy={"scaleMode": "Enabled"}), "predictive autoscale: not carried over"),
        (setting(notifications=[{"email": {"sendToSubscriptionAdministrator": True}}]), "notifications by e-mail"),
        (setting(targetResourceUri=f"{GROUP}/Microsoft.ApiManagement/service/a"), "is no resource of a type that is known here"),
        (setting(profile("none", "0", "3")), "a minimum of 0"),
        (setting(profile(rules=[])), "rules: there are none"),
    ],
)  # fmt: skip
def test_what_is_not_the_same_is_told_and_the_file_loads(given, said):
    made, _, _ = made_of(given)

    assert said in notes(made)
    assert all(f"# Not as it was: {note}\n" in made.text for each in made.notes.values() for note in each)


def test_many_rules_lose_the_prediction_before_they_lose_themselves():
    rules = [rule(threshold=60 + n, action={"value": str(n)}) for n in range(1, 8)] + [rule("Decrease", 30)]
    made, policies, _ = made_of(setting(profile(maximum="4", rules=rules)), linted=False)

    assert (
        policies["orders"]
        .spec.rules[0]
        .options["desired"]
        .endswith("cpu_percentage.average < 30 else instances")
    )
    assert "the prediction that keeps Azure Monitor from flapping: the rules are too many for it" in notes(
        made
    )


def test_rules_that_would_scale_in_alone_are_not_carried_over_without_the_others():
    rules = [rule(), rule("Decrease", 30), rule("Decrease", 5, metricName="Other", timeAggregation="Count")]
    policy = made_of(setting(profile(maximum="4", rules=rules)))[1]["orders"]

    assert policy.spec.rules[0].options["desired"].endswith("70 else instances")


def test_nothing_scales_in_where_no_rule_is_left_that_scales_out():
    rules = [rule("Increase", 5, metricName="Other", timeAggregation="Count"), rule("Decrease", 30)]
    made, policies, _ = made_of(setting(profile(rules=rules)))

    assert [each.options for each in policies["orders"].spec.rules] == [{"desired": "instances"}]
    assert "scaling in: all rules that scale out are left out, so nothing scales in: write a rule" in notes(
        made
    )
    made, policies, _ = made_of(setting(profile(rules=[rule("Decrease", 30)])))
    assert "< 30" in policies["orders"].spec.rules[0].options["desired"]  # as it was there


@pytest.mark.parametrize(
    ("name", "said"),
    [("a/main.bicep", "is Bicep: give what is deployed"), ("scale.TF", "is Terraform: give")],
)
def test_a_program_that_makes_a_setting_is_refused_with_what_to_give(name, said):
    with pytest.raises(UnreadableError, match=said):
        objects_of(b"resource x 'y' = {}", name)


def test_an_expression_in_the_place_of_the_resource_is_told_as_such():
    made, _, _ = made_of({**setting(), "targetResourceUri": "[resourceId('a', 'b')]"})

    assert "which is not resolved here, so the target gives advice only: give what is deployed" in notes(made)


def test_a_name_in_brackets_is_a_name():
    made, _, _ = made_of(
        setting(
            profile("[Prod]", "1", "4"),
            profile("[Sale]", "6", "9", **fixed("2026-11-27T00:00:00", "2026-11-28T00:00:00")),
        )
    )

    assert 'label = "[Prod]"' in made.text


def test_only_app_settings_that_the_file_names_are_asked_for():
    made, _, _ = made_of(setting(profile(rules=[rule(metricName="ActiveMessages", metricResourceUri=QUEUE)])))

    assert made.settings == {}


def test_settings_of_one_name_have_app_settings_of_their_own():
    other = setting(
        profile(rules=[rule(metricResourceUri="[variables('b')]")]),
        targetResourceUri=f"{GROUP}/Microsoft.Web/serverfarms/other",
        notifications=[{"webhooks": [{"serviceUri": "https://b.test"}]}],
    )
    given = setting(
        profile(rules=[rule(metricResourceUri="[variables('a')]")]),
        notifications=[{"webhooks": [{"serviceUri": "https://a.test"}]}],
    )
    made, _, _ = made_of(given, other)

    assert list(made.settings) == [
        "OrdersMetricResourceId", "ORDERS_WEBHOOK_URL", "OrdersMetricResourceId2", "ORDERS_WEBHOOK_URL2"
    ]  # fmt: skip
    assert 'url = "ORDERS_WEBHOOK_URL2"' in made.text
    assert 'resource_id = "%OrdersMetricResourceId2%"' in made.text


def test_the_address_of_a_webhook_is_never_written():
    hook = {"serviceUri": "https://hooks.test/t0ken", "properties": {"a": "b"}}
    made, _, _ = made_of(setting(notifications=[{"operation": "Scale", "webhooks": [hook]}]))

    assert 'url = "ORDERS_WEBHOOK_URL"' in made.text
    assert list(made.settings) == ["ORDERS_WEBHOOK_URL"]
    assert "t0ken" not in made.text + str(made)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda each: [each],
        lambda each: {"value": [each]},
        lambda each: {
            "$schema": "x",
            "resources": [{**{k: each[k] for k in ("type", "name")}, "properties": each}],
        },
        lambda each: {"PROPERTIES": each, "type": each["type"]},
        lambda each: {"languageVersion": "2.0", "resources": {"plan": {"type": "other"}, "scale": each}},  # as Bicep compiles
        lambda each: {"template": {"resources": [each]}},
        lambda each: {"resources": [{"type": "Microsoft.Resources/deployments", "properties": {"template": {"resources": [each]}}}]},
        lambda each: [{**each, "name": "[concat(parameters('a'), '-x')]", "properties": each}],
    ],
)  # fmt: skip
def test_all_forms_of_azures_tools_are_read(wrap):
    assert made_of(*objects_in(wrap(OFFICE)))[1]["orders"].spec == made_of(OFFICE)[1]["orders"].spec


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (setting(profiles=[]), "profiles: found none"),
        (setting(profile(minimum="[parameters('low')]")), "an expression of a template is not resolved here"),
        (setting(profile(rules=[rule(metricName="[parameters('metric')]")])), "metricName: found [parameters('metric')]; a value is accepted; an expression of a"),
        (setting(profile(rules="[variables('rules')]")), "rules: found [variables('rules')]; a list is accepted; an expression of a template"),
        (setting(profiles="[variables('all')]"), "profiles: found [variables('all')]; a list is accepted; an expression of a template"),
        (setting(profile(recurrence="[variables('r')]")), "recurrence: found [variables('r')]; a table is accepted; an expression of a template"),
        (setting(profile(**weekly(["[parameters('day')]"], 8))), "days: found [parameters('day')]; an expression of a template"),
        (setting(profile(minimum="9", maximum="3")), "accepted is a minimum that is not above the maximum"),
        (setting(profile(rules=[rule(timeWindow="soon")])), "timeWindow: found soon; a duration such as PT5M is accepted"),
        (setting(profile(**fixed("2026-12-24", "2026-12-24"))), "the end is not after the start"),
        (setting(profile(**fixed("Christmas", "2026-12-24"))), "start: found Christmas"),
        ({"kind": "Deployment"}, "found Deployment; accepted are autoscale settings of Azure Monitor and ScaledObjects of KEDA"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_its_place(given, said):
    with pytest.raises(UnreadableError) as caught:
        made_of(given)

    assert said in str(caught.value)


def test_every_time_zone_of_windows_has_one_of_iana():
    assert len(WINDOWS) == 141
    assert {iana_of(name) for name in WINDOWS} <= available_timezones()
    assert [iana_of(name) for name in ("", "w. europe standard time", "Europe/Paris")] == ["UTC", "Europe/Berlin", "Europe/Paris"]  # fmt: skip
    assert PLAN.startswith(GROUP)


@pytest.mark.parametrize(
    ("offset", "is_noted"),
    [("", False), ("Z", False), ("+00:00", False), ("+01:00", False), ("-05:00", True)],
)
def test_an_offset_of_a_fixed_date_that_is_not_the_zones_is_noted(offset, is_noted):
    times = fixed(f"2026-11-27T00:00:00{offset}", f"2026-11-30T23:59:00{offset}")
    made, _, _ = made_of(setting(profile("All", "1", "4"), profile("Sale", "6", "20", **times)))

    assert ("is not that of Europe/Berlin" in notes(made)) is is_noted


def test_of_two_profiles_that_begin_at_one_minute_the_second_is_noted():
    made, policies, _ = made_of(
        setting(
            profile("Office", "3", "9", **weekly(WORKDAYS, 8)),
            profile("Early", "2", "7", **weekly(["Monday"], 8)),
            profile("Night", "1", "4", **weekly(WORKDAYS, 18)),
        )
    )

    assert bounds(policies["orders"], "2026-11-23T08:00") == (3, 9)
    assert "profile 'Early': it begins at a minute at which profile 'Office' begins" in notes(made)


def test_of_two_settings_for_one_resource_the_one_that_is_switched_on_is_written_and_the_other_named():
    off = setting(profile(maximum="4"), enabled=False) | {"name": "old"}
    on = setting(profile(maximum="9"), targetResourceUri=f"{PLAN.upper()}/")
    other = setting(targetResourceUri=PLAN.replace("plan-orders", "plan-other")) | {"name": "other"}

    _, policies, refused = made_of(off, on, on, other)

    assert {name: policy.maximum for name, policy in policies.items()} == {"orders": 9, "other": 10}
    assert [text.partition(": ")[0] for text in refused] == [
        "Autoscale setting orders is for the same resource as Autoscale setting orders",
        "Autoscale setting old is for the same resource as Autoscale setting orders",
    ]


def test_settings_of_resources_that_are_not_known_are_all_written_as_advice():
    _, policies, refused = made_of(
        *(setting(targetResourceUri="") | {"name": name} for name in ("a", "b")), BusId=QUEUE
    )

    assert (set(policies), refused) == ({"a", "b"}, [])
