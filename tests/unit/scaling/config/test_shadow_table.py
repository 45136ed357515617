"""[targets.NAME.shadow] is read as the target would be with its keys in place; what is wrong there is no problem of the target."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.config.policy import HPA_IN, HPA_OUT, Pace, QueueSpec
from scaling.config.policy_file import load_config
from scaling.decision.orders import policy_in_force
from scaling.model import Controls, Promotion
from scaling.service import registry
from tidemark.foundation.settings_reader import ConfigError

TARGET = """
[targets.plan]
scaler = "app_service_plan"
resource_id = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/g/providers/Microsoft.Web/serverfarms/p"
minimum = 2
maximum = 10
out = { cooldown = "3m", step = 2 }

[targets.plan.metrics.backlog]
collector = "storage_queue"
connection = "STORAGE"
queue = "orders"

[targets.plan.metrics.load]
collector = "storage_queue"
connection = "STORAGE"
queue = "work"

[[targets.plan.rules]]
type = "threshold"
metric = "backlog"
scale_out_above = 500
scale_in_below = 100

[[targets.plan.rules]]
type = "guard"
metric = "load"
block_out_above = 7
"""
RULES = """
[[targets.plan.shadow.rules]]
type = "service_level"
backlog = "backlog"
wait = "2m"
late = "2%"
concurrency = 8
"""
SETTINGS = {"STORAGE": "UseDevelopmentStorage=true"}


def read(shadow="[targets.plan.shadow]", rules=RULES, *, target=TARGET):
    config = load_config(target + shadow + rules, name="t.toml", settings=SETTINGS, plug_ins=registry)
    return config.policies["plan"], [finding.text for finding in config.findings]


def test_a_shadow_has_its_own_rules_and_otherwise_what_its_target_has():
    policy, findings = read()

    tried = policy.spec.shadow
    assert findings == []
    assert [rule.type for rule in tried.rules] == ["service_level", "guard"]
    assert (tried.minimum, tried.maximum) == (2, 10)
    assert tried.out == Pace(cooldown=180.0, step=2)
    assert tried.inward == Pace()
    assert policy.shadow.spec.metrics == policy.spec.metrics


def test_its_own_bounds_and_limits_stand_in_place_of_the_targets_key_by_key():
    policy, _ = read('[targets.plan.shadow]\nminimum = 3\nout = { cooldown = "1m" }\nin = { step = 1 }')

    tried = policy.spec.shadow
    assert (tried.minimum, tried.maximum) == (3, 10)
    assert (tried.out, tried.inward) == (Pace(cooldown=60.0, step=2), Pace(step=1))


def test_a_preset_of_behaviour_is_its_own():
    policy, _ = read('[targets.plan.shadow]\nbehavior = "hpa"', target=TARGET.replace("out = {", "# out = {"))

    assert (policy.spec.shadow.out, policy.spec.shadow.inward) == (HPA_OUT, HPA_IN)
    assert policy.spec.out == Pace(cooldown=600.0)


def test_a_guard_of_its_own_takes_the_place_of_the_targets():
    own = RULES + '[[targets.plan.shadow.rules]]\ntype = "guard"\nmetric = "load"\nblock_out_above = 9\n'

    policy, _ = read(rules=own)

    assert [rule.options.get("block_out_above") for rule in policy.spec.shadow.rules] == [None, 9]


def test_the_queue_is_that_of_the_service_level_rule_unless_the_table_says_otherwise():
    policy, _ = read()
    assert policy.spec.shadow.queue == QueueSpec(backlog="backlog", wait=120.0, late=0.02, concurrency=8.0)

    policy, _ = read(
        '[targets.plan.shadow]\nbacklog = "load"\nservice_rate = 4.5\nlate = "0.5%"\nstart_up = "2m"'
    )
    assert policy.spec.shadow.queue == QueueSpec(
        backlog="load", wait=120.0, late=0.005, concurrency=8.0, service_rate=4.5, start_up=120.0
    )


def test_the_queue_of_a_service_level_rule_of_the_target_counts_for_any_shadow():
    service_level = RULES.replace(".shadow", "")
    threshold = '[[targets.plan.shadow.rules]]\ntype = "threshold"\nmetric = "backlog"\nscale_out_above = 9\n'

    policy, findings = read("", service_level + threshold)

    assert findings == []
    assert policy.spec.shadow.queue.wait == 120.0
    assert read("", threshold)[0].spec.shadow.queue is None


@pytest.mark.parametrize(
    ("shadow", "rules", "text"),
    [
        ("[targets.plan.shadow]\nminimun = 1", RULES, "targets.plan.shadow.minimun: is not a setting here; did you mean"),
        ("[targets.plan.shadow]\nminimum = 11", RULES, "minimum: found 11, above the maximum 10"),
        ("[targets.plan.shadow]\nmaximum = 'many'", RULES, "maximum: found 'many'; accepted are whole numbers"),
        ("[targets.plan.shadow]", "", "shadow.rules: no rule is configured"),
        ("[targets.plan.shadow]", RULES.replace("2m", "soon"), "rules[0].wait: found 'soon'; accepted are durations"),
        ("[targets.plan.shadow]", RULES.replace('"backlog"', '"bucklog"'), "names metric 'bucklog'"),
        ("[targets.plan.shadow]\nwait = '0s'", RULES, "wait: found '0s'; the duration must be above 0"),
        ("[targets.plan.shadow]\nlate = 1", RULES, "late: found 1; a share above 0 and below 1"),
        ("[targets.plan.shadow]\nservice_rate = 0", RULES, "service_rate: found 0; accepted are numbers above 0"),
        ("[targets.plan.shadow]\nbacklog = 'x'", RULES, "backlog: found 'x'; the target has backlog, load"),
        ("[targets.plan.shadow]\nminimum = '%NOWHERE%'", RULES, "app setting 'NOWHERE' (written %NOWHERE%) is not set"),
        ("[targets.plan]\nshadow = 3", "", ""),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_shadow_is_a_finding_and_its_target_is_decided(shadow, rules, text):
    if not text:
        policy, findings = read("", "", target=TARGET.replace("minimum = 2", "minimum = 2\nshadow = 3"))
        text = "targets.plan.shadow: found 3; a table is accepted"
    else:
        policy, findings = read(shadow, rules)

    assert policy.shadow is None
    assert [rule.type for rule in policy.spec.rules] == ["threshold", "guard"]
    assert any(text in finding for finding in findings), findings
    assert findings[0].startswith("t.toml:")
    assert findings[0].endswith("this shadow is not decided, its target is")


def test_a_queue_without_a_backlog_is_told():
    threshold = '[[targets.plan.shadow.rules]]\ntype = "threshold"\nmetric = "backlog"\nscale_out_above = 9\n'

    _, (finding,) = read("[targets.plan.shadow]\nwait = '1m'\n", threshold)

    assert "shadow.backlog: is missing: the metric whose waits are judged" in finding


def test_bounds_beyond_those_of_the_target_are_tried_and_told():
    policy, (finding,) = read("[targets.plan.shadow]\nminimum = 1\nmaximum = 30")

    assert "tried with 1..30; promoted, the 2..10 of its target hold" in finding
    assert (policy.shadow.minimum, policy.shadow.maximum) == (1, 30)
    promoted = policy_in_force(policy, Controls(promoted=Promotion("kim", 0.0, policy.shadow_id)))
    assert (promoted.minimum, promoted.maximum) == (2, 10)


def test_a_problem_of_the_target_is_one_as_ever_and_told_once():
    with pytest.raises(ConfigError) as caught:
        read(target=TARGET.replace("maximum = 10", "maximum = 'x'"))

    assert len(caught.value.problems) == 1


@given(st.integers(0, 30), st.integers(1, 30), st.integers(0, 30), st.integers(1, 30))
def test_a_promoted_shadow_never_leaves_the_bounds_of_its_target(low, high, own_low, own_high):
    low, own_low = min(low, high), min(own_low, own_high)
    target = TARGET.replace("minimum = 2\nmaximum = 10", f"minimum = {low}\nmaximum = {high}")

    policy, _ = read(f"[targets.plan.shadow]\nminimum = {own_low}\nmaximum = {own_high}", target=target)

    assert low <= policy.promoted.minimum <= policy.promoted.maximum <= high
