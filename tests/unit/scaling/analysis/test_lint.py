"""The lint proves at which counts and loads a policy must flap, and names what can never act."""

import itertools
import re
import time

import pytest
from msgspec.structs import replace

from scaling.analysis.lint import lint
from scaling.analysis.steady import step
from scaling.config.checks import Severity
from scaling.config.policy import HPA_IN, HPA_OUT, DrainSpec, Pace, QueueSpec, RateLimit, RuleSpec, ShadowSpec
from scaling.model import Reason, Verdict
from scaling.rules.view import LevelLine
from scaling.target_facts import TargetFacts
from scaling.window import WindowSpec
from tests.support.scaling.runner import metric
from tests.support.scaling.runner import policy as policy_of
from tests.support.scaling.steady_views import policy

TEN = {"out": Pace(cooldown=600), "inward": Pace(cooldown=600)}
HPA = {"out": HPA_OUT, "inward": HPA_IN}


def threshold(out=None, inward=None, **more):
    options = {"scale_out_above": out, "scale_in_below": inward, "metric": "backlog", **more}
    return {"type": "threshold", **{key: value for key, value in options.items() if value is not None}}


def kinds(subject):
    return [finding.kind for finding in lint(subject)]


def texts(subject, kind):
    return [finding.text for finding in lint(subject) if finding.kind == kind]


def test_the_classic_rule_is_clean():
    assert lint(policy(threshold(500, 300), **TEN)) == ()


def test_an_expression_without_a_metric_moves_without_any_load():
    subject = policy({"type": "composite", "desired": "minimum"}, minimum=1, maximum=5, **TEN)

    assert texts(subject, "one_way") == [
        "targets.plan-orders: no rule ever scales out, at any count and under any load"
    ]


def test_flapping_is_shown_with_its_counts_loads_and_levels():
    found = texts(policy(threshold({"1": 300, "4": 1000}, 400), **TEN), "must_flap")

    assert found == [
        (
            "targets.plan-orders: between 3 and 4 instances backlog from 301 to 399 scales out at 3 and back in "
            "at 4 (out above 300 at 3, in below 400 at 4)"
        )
    ]


def test_flapping_is_an_error_and_comes_first():
    found = lint(policy(threshold({"1": 300, "4": 1000}, 400), metrics=("backlog", "spare"), **TEN))

    assert found[0].severity is Severity.ERROR
    assert [f.severity for f in found] == sorted((f.severity for f in found), key=list(Severity).index)


def test_a_metric_shared_by_the_instances_flaps_where_one_more_halves_it():
    subject = policy(threshold(70, 50, metric="cpu"), metrics=("cpu",), per_instance=("cpu",), **TEN)

    assert texts(subject, "must_flap") == [
        (
            "targets.plan-orders: between 1 and 3 instances cpu flaps at each count from 1 to 2: above 70 and below "
            "100 at 1 scales out at 1 and back in at 2 (out above 70 at 1, in below 50 at 2); above 70 and below "
            "75 at 2 scales out at 2 and back in at 3 (out above 70 at 2, in below 50 at 3)"
        )
    ]


def test_the_same_thresholds_on_a_queue_do_not_flap():
    assert "must_flap" not in kinds(policy(threshold(70, 50), **TEN))


@pytest.mark.parametrize("mode", ["average_value", "value"])
@pytest.mark.parametrize("tolerance", [0.0, 0.1, 0.5])
def test_a_constant_target_never_flaps(mode, tolerance):
    rule = {"type": "target_per_unit", "metric": "m", "target": 70, "mode": mode, "tolerance": tolerance}
    shared = ("m",) if mode == "value" else ()

    assert lint(policy(rule, metrics=("m",), per_instance=shared, maximum=30, **HPA)) == ()


def test_a_target_that_grows_with_the_count_flaps():
    rule = {"type": "target_per_unit", "metric": "backlog", "target": {"1": 100, "4": 200}}
    found = texts(policy(rule, **HPA), "must_flap")

    assert any("from 301 to 400 scales out at 2 and back in at 4" in text for text in found)


def test_expressions_are_tried_at_their_own_numbers():
    rule = {
        "type": "composite",
        "scale_out_when": "backlog > 100 * instances",
        "scale_in_when": "backlog < 90 * instances",
    }
    found = texts(policy(rule, **TEN), "must_flap")

    assert len(found) == 1
    assert "for example" in found[0]


def test_any_out_all_in_flaps_only_where_all_rules_agree_to_go_back():
    flapping = threshold({"1": 300, "4": 1000}, 400)
    steady = threshold(1_000, 350, metric="other")
    strict = threshold(1_000, 1, metric="backlog")

    assert "must_flap" in kinds(policy(flapping, steady, metrics=("backlog", "other"), **TEN))
    assert "must_flap" not in kinds(policy(flapping, strict, **TEN))


def test_a_step_limit_can_make_a_policy_flap_no_more():
    rule = {"type": "target_per_unit", "metric": "backlog", "target": {"1": 100, "4": 200}}
    limited = policy(rule, out=Pace(step=1), inward=Pace(select="disabled"))

    assert "must_flap" not in kinds(limited)


def brute_force(subject, metric, loads):
    """Counts that come back to themselves under a constant load, found by walking."""
    flapping = set()
    for load, start in itertools.product(loads, range(subject.minimum, subject.maximum + 1)):
        path = [start]
        for _ in range(2 * subject.maximum):
            shared = subject.spec.metrics[metric].per_instance
            path.append(step(subject, path[-1], {metric: load / path[-1] if shared else load}))
        if path[-1] != path[-2]:
            flapping.update(path[-2:])
    return flapping


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("out", "inward"),
    [(300, 100), ({"1": 300, "4": 1000}, 400), ("100 * instances", "95 * instances"), (70, 50), (70, 20)],
)
def test_it_finds_flapping_exactly_where_walking_all_loads_does(out, inward, shared):
    subject = policy(threshold(out, inward), per_instance=("backlog",) if shared else (), maximum=6, **TEN)
    walked = brute_force(subject, "backlog", [load + 0.5 for load in range(0, 1_300, 3)])

    assert bool(walked) == ("must_flap" in kinds(subject))


@pytest.mark.parametrize(
    ("drain", "words"),
    [
        (
            DrainSpec(notice=10.0),
            "drain.notice is 10 s, and decisions are made every 1 min: .* and then nothing is scaled in",
        ),
        (DrainSpec(notice=59.0, unacknowledged="scale_in"), "and then they are not waited for"),
        (DrainSpec(notice=60.0), None),
        (None, None),
    ],
)
def test_a_notice_that_is_over_before_workers_see_it_is_warned_of(drain, words):
    found = texts(policy(threshold(500, 300), drain=drain, **TEN), "short_notice")

    assert [bool(re.search(words, text)) for text in found] == ([] if words is None else [True])


def scheduled(events=None, **period):
    files = {} if events is None else {"files": {"h.ics": events}}
    schedule = {"type": "schedule", "periods": [{"label": "sale", "floor": 3, **period}], **files}
    return policy({"type": "composite", "desired": "minimum"}, schedule, minimum=1, maximum=5, **TEN)


FRIDAY = {"begin": "2026-11-27", "days": 2}


@pytest.mark.parametrize(
    ("kind", "subject", "words"),
    [
        (
            "never_holds",
            scheduled(days="sun", on=["2026-11-27..2026-11-28"]),
            "the period 'sale' never holds",
        ),
        ("never_holds", scheduled(days="sat", on=["2026-11-27..2026-11-28"]), None),
        ("never_holds", scheduled(days="sat", on=["2026-11-27", "12-25"]), None),
        ("never_holds", scheduled(days="sat", on=["2026-11-27", "h.ics"], events=[FRIDAY]), None),
        ("never_holds", scheduled(days="sat"), None),
        ("calendar_ends", scheduled(on=["h.ics"], events=[]), "'h.ics' names no day"),
        ("calendar_ends", scheduled(on=["h.ics"], events=[FRIDAY]), "the last day of 'h.ics' is 2026-11-28"),
        ("calendar_ends", scheduled(on=["h.ics"], events=[FRIDAY, {**FRIDAY, "yearly": True}]), None),
    ],
)
def test_what_dates_say_of_a_schedule(kind, subject, words):
    found = texts(subject, kind)

    assert [words in text for text in found] == ([] if words is None else [True])


@pytest.mark.parametrize(
    ("kind", "subject", "words"),
    [
        (
            "overlapping_thresholds",
            policy(threshold(300, 400), **TEN),
            "backlog begins above where scaling out begins at 1 to 10 instances",
        ),
        (
            "rule_fails",
            policy(threshold("100 / (instances - 3)", 3), **TEN),
            "a rule fails at 3 instances: ThresholdRule: ZeroDivisionError",
        ),
        ("unreachable_threshold", policy(threshold(300, 0), **TEN), "backlog below 0 can never be met"),
        ("one_way", policy(threshold(300), **TEN), "no rule ever scales in"),
        ("one_way", policy(threshold(None, 300), **TEN), "no rule ever scales out"),
        (
            "stuck_at_zero",
            policy(threshold(300, 100), minimum=0, **TEN),
            "at 0 instances backlog from 1 to 300 starts no instance",
        ),
        (
            "runaway",
            policy({"type": "target_per_unit", "metric": "backlog", "target": 9, "mode": "value"}, **TEN),
            "the count runs to a bound",
        ),
        (
            "large_step",
            policy(threshold(500, 300, step_out=10), **TEN),
            "step_out of rule 'rule-0' is 10, but from minimum 1 to maximum 10 it is 9 in all",
        ),
        (
            "large_step",
            policy({"type": "composite", "rules": [{**threshold(500, 300), "step": 20}]}, **TEN),
            "step of rule 'rule-0' is 20",
        ),
        (
            "short_cooldown",
            policy(threshold(500, 300), out=Pace(cooldown=600), inward=Pace(cooldown=30)),
            "in.cooldown of 30 s has no effect",
        ),
        (
            "short_memory",
            policy(threshold(500, 300), out=Pace(rates=(RateLimit(kind="units", amount=1, period=7_200),))),
            "only the last 64 changes are remembered",
        ),
        (
            "short_memory",
            policy(threshold(500, 300), inward=Pace(stabilization=2 * 86_400.0)),
            "only the last 2000 recommendations are remembered",
        ),
        (
            "sent_once",
            policy(threshold(500, 300), action_ttl=150.0, **TEN),
            "action_ttl is 150 s, effect_timeout 2 min, and decisions are made every 1 min",
        ),
        (
            "spent_changes",
            policy(threshold(500, 300), out=Pace(), facts=TargetFacts(changes_per_hour=20)),
            "follow the last one after 1 min, but only 20 are made within an hour: after 15 of them scale-ins wait",
        ),
        ("fixed", policy(threshold(500, 300), minimum=3, maximum=3, **TEN), "minimum and maximum are both 3"),
        (
            "unused_metric",
            policy(threshold(500, 300), metrics=("backlog", "dead"), **TEN),
            "metric dead is collected, but no rule reads it",
        ),
        (
            "old_evidence",
            policy(threshold(500, 300), out=Pace(cooldown=120)),
            "the window of backlog (10 min) is longer than out.cooldown (2 min)",
        ),
    ],
)
def test_what_can_never_act_or_hardly_be_meant_is_named(kind, subject, words):
    assert any(words in text for text in texts(subject, kind)), lint(subject)


@pytest.mark.parametrize(
    ("mode", "shared"),
    [("average_value", ()), ("value", ("backlog",))],
    ids=["average_value", "per_instance"],
)
def test_either_way_out_that_a_runaway_names_ends_it(mode, shared):
    rule = {"type": "target_per_unit", "metric": "backlog", "target": 9, "mode": mode}

    assert texts(policy(rule, per_instance=shared, **TEN), "runaway") == []


def test_a_schedules_ceiling_is_a_way_in():
    schedule = {"type": "schedule", "periods": [{"from": "20:00", "to": "06:00", "ceiling": 1}]}

    assert "one_way" not in kinds(policy(threshold(300), schedule, **TEN))


def test_a_direction_disabled_on_purpose_is_no_finding():
    assert "one_way" not in kinds(
        policy(threshold(300), out=Pace(cooldown=600), inward=Pace(select="disabled"))
    )


def test_a_guard_does_not_stop_the_proof():
    guard = {"type": "guard", "metric": "ru", "block_out_above": 80}
    subject = policy(threshold({"1": 300, "4": 1000}, 400), guard, metrics=("backlog", "ru"), **TEN)

    assert kinds(subject).count("must_flap") == 1


def test_a_rule_of_the_users_own_is_tried_on_a_grid():
    subject = policy(threshold(500, 300), **TEN)

    class Own:
        def evaluate(self, view, /):
            odd = view.current % 2
            return Verdict(view.current + (1 if odd else -1), Reason.SCALE_OUT)

        def metrics(self):
            return ("backlog",)

    subject.rules = (Own(),)

    assert "must_flap" in kinds(subject)


class Unfinished:
    """A rule whose author forgot a value: its level is None where a number belongs."""

    def evaluate(self, _view, /):
        return Verdict(None, Reason.WITHIN_TARGET)

    def metrics(self):
        return ("backlog",)

    def levels(self, _current):
        return (LevelLine("backlog", "average", "out", None),)


def test_a_rule_that_breaks_the_checks_is_a_finding_that_names_it_and_the_others_are_checked():
    subject = policy(threshold("200 * instances", "150 * instances", name="orders"), **TEN)
    flapping = texts(subject, "must_flap")
    subject.rules = (*subject.rules, Unfinished())
    subject.spec = replace(
        subject.spec,
        rules=(*subject.spec.rules, RuleSpec(type="own:Unfinished", name="unfinished", options={})),
    )

    (broken,) = texts(subject, "rule_breaks_lint")
    assert broken.startswith(f"targets.{subject.target}: rule 'unfinished' cannot be checked: TypeError: ")
    assert texts(subject, "must_flap") == flapping != []


def test_a_single_rule_that_breaks_the_checks_leaves_no_finding_about_the_rules_that_are_not_there():
    subject = policy(threshold(500, 300), **TEN)
    subject.rules = (Unfinished(),)

    assert kinds(subject) == ["rule_breaks_lint"]


def test_thirty_counts_take_milliseconds():
    """1,000 targets of up to 30 instances within seconds: see benchmarks; here only no explosion."""
    subject = policy(threshold("250 * instances + 100", "200 * instances - 150"), maximum=30, **TEN)
    begin = time.process_time()
    lint(subject)

    assert time.process_time() - begin < 0.5


def test_a_window_spec_of_seconds_is_no_obstacle():
    fast = WindowSpec(span=10.0, interval=1.0, min_samples=5)

    assert lint(policy(threshold(500, 300), window_spec=fast, **TEN)) == ()


def test_a_cap_that_is_not_the_load_hides_no_flapping_of_the_rule_it_bounds():
    """Below a target that rises with the count, the answer swings; a cap read as 0 would pin it down."""
    swinging = {"type": "target_per_unit", "metric": "backlog", "target": {"1": 50, "3": 300}}
    bounded = {**swinging, "cap_metric": "partitions"}

    alone = texts(policy(swinging, **TEN), "must_flap")
    capped = texts(policy(bounded, metrics=("backlog", "partitions"), **TEN), "must_flap")

    assert alone
    assert capped == alone


def test_request_units_are_not_tried_one_by_one():
    sizing = {"type": "request_units_for_rate", "consumers": 4, "rate": 1000, "ru_per_record": 6}
    small = policy(sizing, metrics=(), minimum=400, maximum=1000)
    wide = policy(
        {"type": "composite", "desired": "backlog * 6"},
        minimum=400,
        maximum=1_000_000,
        out=Pace(step=2_000_000),
    )

    assert [finding.kind for finding in lint(small)] == ["not_tried"]
    assert [finding.kind for finding in lint(wide)] == ["large_step", "not_tried"]


LEARNS = {"type": "service_level", "backlog": "backlog", "wait": "10m", "concurrency": 16.0, "takes": "2s"}


def test_of_a_rule_that_learns_it_is_not_known_what_it_never_does():
    assert lint(policy(LEARNS, out=Pace(), inward=Pace())) == ()


@pytest.mark.parametrize(
    ("given", "lacks"),
    [
        ({}, "unknown_concurrency"),
        ({"takes": "2s"}, "unknown_concurrency"),  # how many wait is not known all the same
        ({"concurrency": 16.0}, "unknown_time"),
        ({"concurrency": 16.0, "takes": "30s"}, None),
        ({"concurrency": 16.0, "oldest_age": "backlog"}, None),
        ({"oldest_age": "backlog"}, None),
        ({"incoming": "backlog", "outgoing": "backlog"}, "unknown_concurrency"),  # slow messages come late
        ({"incoming": "backlog", "takes": "30s"}, "unknown_concurrency"),
        ({"outgoing": "backlog", "concurrency": 16.0}, None),
        ({"incoming": "backlog", "oldest_age": "backlog"}, None),
    ],
)
def test_what_a_rule_that_learns_cannot_know_is_said(given, lacks):
    subject = policy({"type": "service_level", "backlog": "backlog", **given}, metrics=("backlog",))

    found = [finding for finding in lint(subject) if finding.kind in {"unknown_concurrency", "unknown_time"}]

    assert [finding.kind for finding in found] == [lacks] * (lacks is not None)
    assert all("or give it oldest_age" in finding.text for finding in found)


@pytest.mark.parametrize(
    ("wait", "late", "spend", "expected"),
    [
        ("60s", "1%", "balanced", "2.6 %"),
        ("60s", "5%", "balanced", None),
        ("60s", "1%", "keep", None),
        ("60s", "0.5%", "keep", "0.8 %"),
        ("4m", "1%", "balanced", None),
        ("2m", "1%", "balanced", "1.5 %"),
        ("2m", "1%", "keep", None),
        ("1h", "0.1%", "balanced", None),
    ],
)
def test_the_share_that_was_late_where_reports_come_as_rarely_is_told(wait, late, spend, expected):
    rule = {**LEARNS, "wait": wait, "late": late, "spend": spend}
    found = texts(policy(rule, out=Pace(), inward=Pace()), "wait_unmet")

    assert len(found) == (expected is not None)
    assert all(f"on recorded loads {expected} were late" in text for text in found)
    assert all(('state spend = "keep" (0.8 % late' in text) == (expected == "2.6 %") for text in found)


def test_what_keeps_a_stated_wait_from_being_met_is_a_warning():
    (cooled,) = texts(policy(LEARNS, **TEN), "wait_unmet")
    blind = texts(policy({**LEARNS, "wait": "20s"}, out=Pace(), inward=Pace()), "wait_unmet")

    assert "hold scale-outs of rule 'rule-0' back for up to 10 min" in cooled
    assert "allows a wait of 20 s, but decisions are made every 1 min" in blind[0]


def test_the_rules_of_a_shadow_are_checked_and_are_warnings_of_their_own_table():
    options = {"metric": "backlog", "scale_out_above": "200 * instances", "scale_in_below": "150 * instances"}
    flapping = RuleSpec(type="threshold", name="threshold", options=options)
    tried = ShadowSpec(rules=(flapping,), minimum=1, maximum=5, **TEN)

    found = lint(policy_of(shadow=tried, **TEN))

    assert [(each.severity, each.kind) for each in found] == [(Severity.WARNING, "must_flap")]
    assert found[0].text.startswith("targets.plan.shadow: ")
    assert lint(policy_of(**TEN)) == ()


def test_a_metric_that_only_a_shadow_reads_is_used():
    metrics = {"backlog": metric(), "incoming": metric(), "spare": metric()}
    queue = QueueSpec(backlog="backlog", incoming="incoming")
    made = policy_of(metrics=metrics, **TEN)
    tried = ShadowSpec(rules=made.spec.rules, minimum=1, maximum=10, queue=queue, **TEN)

    assert [each.text.partition("metric ")[2].split()[0] for each in lint(made)] == ["incoming", "spare"]
    (found,) = lint(policy_of(metrics=metrics, shadow=tried, **TEN))
    assert "metric spare is collected" in found.text


def ages_of(**options):
    """A policy that reads the age and the sessions of queues, the age with other options."""
    names = {"connection": "Orders", "queue": "talks"}
    made = {
        count: replace(metric(), collector="service_bus_queue", options=own, count=count)
        for count, own in (("oldest_age", names | options), ("sessions", names))
    }
    return policy_of(metrics={"backlog": metric(), **made}, **TEN)


def read_every(interval, collector, options=(), count="active", **rule):
    spec = replace(metric(interval=interval), collector=collector, options=dict(options), count=count)
    rules = (RuleSpec(type="service_level", name="level", options={"backlog": "backlog", **rule}),)
    return policy_of(metrics={"backlog": metric(interval=interval), "came": spec}, rules=rules)


def replace_backlog(policy):
    """The same, with the backlog of a subscription."""
    metrics = policy.spec.metrics
    backlog = replace(metrics["backlog"], collector="service_bus_subscription")
    return policy_of(metrics={**metrics, "backlog": backlog}, rules=policy.spec.rules)


TOTAL = {"aggregation": "total", "grain": 60.0}
HUB = {"resource_id": "/subscriptions/s/resourceGroups/r/providers/Microsoft.EventHub/namespaces/n"}


@pytest.mark.parametrize(
    ("subject", "kind", "words"),
    [
        (
            read_every(300.0, "azure_monitor", TOTAL, incoming="came"),
            "counted_in_part",
            'Give grain = "5m", or',
        ),
        (
            read_every(120.0, "azure_monitor", TOTAL, incoming="came"),
            "counted_in_part",
            ". Read it every 1 min (",
        ),
        (read_every(60.0, "azure_monitor", TOTAL, incoming="came"), "counted_in_part", None),
        (
            read_every(300.0, "azure_monitor", {"aggregation": "average"}, incoming="came"),
            "counted_in_part",
            None,
        ),
        (read_every(300.0, "azure_monitor", TOTAL), "counted_in_part", None),
        (
            read_every(60.0, "azure_monitor", {**TOTAL, "metric": "OutgoingMessages"}, outgoing="came"),
            "counted_in_part",
            "event_hub_lag has `outgoing`",
        ),
        (
            read_every(60.0, "azure_monitor", {**HUB, "metric": "EHINMSGS"}),
            "other_metric",
            "IncomingMessages takes",
        ),
        (read_every(60.0, "azure_monitor", {**HUB, "metric": "IncomingMessages"}), "other_metric", None),
        (
            read_every(60.0, "azure_monitor", {"dimensions": {"EntityName": "Orders/Subscriptions/eu"}}),
            "other_metric",
            "'Orders' counts the topic with all",
        ),
        (read_every(60.0, "azure_monitor", {"dimensions": {"EntityName": "a/b"}}), "other_metric", None),
        (read_every(15.0, "service_bus_subscription"), "counted_again", "Give it every = '1m'"),
        (read_every(60.0, "service_bus_queue"), "counted_again", None),
        (read_every(15.0, "service_bus_queue", count="oldest_age"), "counted_again", None),
        (ages_of(held=4), "unpeekable_age", "oldest_age of what sessions counts the sessions of"),
        (ages_of(queue="orders"), "unpeekable_age", None),
        (
            read_every(15.0, "http_json", {"path": "to_number(a)", "empty": 0.0}),
            "unread_text",
            "fails the read",
        ),
        (read_every(15.0, "http_json", {"path": "to_number(a)"}), "unread_text", None),
        (read_every(15.0, "http_json", {"path": "a", "empty": 0.0}), "unread_text", None),
    ],
)
def test_numbers_that_are_read_to_say_something_else_are_named(subject, kind, words):
    found = texts(subject, kind)

    assert (len(found) == 1 and words in found[0]) if words else not found
