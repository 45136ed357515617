"""tidemark.toml becomes policies, or one error with every problem in it."""

from datetime import UTC, datetime
from typing import Literal

import msgspec
import pytest
from msgspec import structs

from scaling.collectors.number.calendar import CalendarCollector
from scaling.collectors.number.http_json import HttpJsonCollector
from scaling.config.checks import _circles
from scaling.config.policy import HPA_IN, HPA_OUT, Fallback, Pace, Plateau, Policy, RateLimit
from scaling.config.policy_file import decoded, load_config
from scaling.service.reading import seconds_to_next
from tidemark.foundation.durations import parse_duration
from tidemark.foundation.settings_reader import ConfigError, locate


class Queue:
    class Params(msgspec.Struct, forbid_unknown_fields=True):
        connection: str
        queue: str
        peek: int = 32
        tier: Literal["basic", "premium"] = "basic"

    COUNTS = ("active", "dead")
    DEFAULT_COUNT = "active"


class Lag:
    class Params(msgspec.Struct, forbid_unknown_fields=True):
        hub: str

        def problems(self):
            return {"hub": f"found '{self.hub}'; a hub has no dot"} if "." in self.hub else {}

    COUNTS = ("lag", "incoming", "oldest_age")
    DEFAULT_COUNT = "lag"
    GROWING = ("incoming",)


class Number:
    class Params(msgspec.Struct, forbid_unknown_fields=True):
        aggregation: str = ""
        empty: float | None = None
        grain: float = 60.0

    COUNTS = ("value",)
    DEFAULT_COUNT = "value"

    @staticmethod
    def timing(params):
        return params.grain, 180.0


class Plan:
    class Params(msgspec.Struct, forbid_unknown_fields=True):
        plan: str
        resource_group: str = "rg"


class PlugIns:
    def collector_class(self, kind):
        return self._of({"queue": Queue, "lag": Lag, "number": Number}, kind)

    def scaler_class(self, kind):
        return self._of({"plan": Plan}, kind)

    def _of(self, known, kind):
        if kind not in known:
            raise ValueError(f"found '{kind}'; accepted are {', '.join(known)}")
        return known[kind]


FULL = """\
version = 1

[defaults]
scaler = "plan"
resource_group = "rg-orders"

[targets.plan-orders]
plan = "orders"
minimum = 1
maximum = "%MAX%"
dry_run = true
out = { cooldown = "2m", step = 3 }

[targets.plan-orders.in]
cooldown = "15m"
stabilization = "5m"
select = "min"
rates = [ { units = 1, per = "1m" }, { percent = 10, per = "5m" } ]

[targets.plan-orders.plateau]
metric = "backlog"
fall = "10%"

[targets.plan-orders.fallback]
capacity = 4
after = "10m"

[targets.plan-orders.metrics.backlog]
collector = "queue"
connection = "ORDERS"
queue = "%QUEUE%"
window = "2m"

[targets.plan-orders.metrics.dead]
collector = "queue"
connection = "ORDERS"
queue = "orders"
count = "dead"

[[targets.plan-orders.rules]]
type = "threshold"
metric = "backlog"
scale_out_above = { 1 = 300, 4 = 1000 }
scale_in_below = 100

[[targets.plan-orders.rules]]
type = "guard"
name = "dead letters"
metric = "dead"
block_out_above = 1000

[targets.plan-hpa]
behavior = "hpa"
plan = "hpa"
maximum = 20
[targets.plan-hpa.metrics.lag]
collector = "lag"
hub = "telemetry"
[[targets.plan-hpa.rules]]
type = "target_per_unit"
metric = "lag"
target = 100
"""
SETTINGS = {"MAX": "12", "QUEUE": "orders-eu", "ORDERS": "Endpoint=sb://orders;SharedAccessKey=topsecret="}


def load(text=FULL, **settings):
    return load_config(text, name="tidemark.toml", settings={**SETTINGS, **settings}, plug_ins=PlugIns())


def problems(text, **settings):
    with pytest.raises(ConfigError) as caught:
        load(text, **settings)
    return [str(problem) for problem in caught.value.problems]


def minimal(target="", metric="", rule="", extra=""):
    return f"""\
[targets.t]
scaler = "plan"
plan = "p"
maximum = 5
{target}
[targets.t.metrics.backlog]
collector = "lag"
hub = "h"
{metric}
[[targets.t.rules]]
type = "threshold"
metric = "backlog"
scale_out_above = 10
{rule}
{extra}
"""


COUNTED = "[targets.t.metrics.done]\ncollector = 'number'\ncounter = true\n{}"


def one_problem(*args, **kwargs):
    settings = kwargs.pop("settings", {})
    found = problems(minimal(*args, **kwargs), **settings)
    assert len(found) == 1, found
    return found[0]


def test_a_realistic_file_becomes_policies():
    config = load()
    orders, hpa = (config.policies[name].spec for name in ("plan-orders", "plan-hpa"))

    assert (orders.minimum, orders.maximum, orders.dry_run) == (1, 12, True)
    assert orders.out == Pace(cooldown=120.0, step=3)
    assert orders.inward == Pace(
        cooldown=900.0,
        stabilization=300.0,
        rates=(
            RateLimit(kind="units", amount=1, period=60.0),
            RateLimit(kind="percent", amount=10, period=300.0),
        ),
        select="min",
    )
    assert orders.plateau == Plateau(metric="backlog", fall=0.1)
    assert orders.fallback == Fallback(capacity=4, after=600.0)
    assert orders.scaler_options == {"plan": "orders", "resource_group": "rg-orders"}
    assert (hpa.out, hpa.inward) == (HPA_OUT, HPA_IN)


def test_metrics_get_windows_counts_and_resolved_settings():
    metrics = load().policies["plan-orders"].spec.metrics

    assert metrics["backlog"].options == {"connection": "ORDERS", "queue": "orders-eu"}
    assert (metrics["backlog"].count, metrics["dead"].count) == ("active", "dead")
    assert (metrics["backlog"].window.span, metrics["backlog"].window.min_samples) == (120.0, 2)
    assert (metrics["dead"].window.span, metrics["dead"].window.min_samples) == (600.0, 5)


def test_a_number_that_only_grows_is_a_counter():
    number = "[targets.t.metrics.{}]\ncollector = '{}'\n{}\n"
    extra = "".join(
        number.format(*each)
        for each in (
            ("done", "number", "counter = true"),
            ("waiting", "number", ""),
            ("came", "lag", "hub = 'h'\ncount = 'incoming'"),
        )
    )

    metrics = load(minimal(extra=extra)).policies["t"].spec.metrics

    assert [name for name, metric in metrics.items() if metric.counter] == ["done", "came"]


@pytest.mark.parametrize(("unit", "durations"), [("", {"age"}), ("unit = 'minutes'", set())])
def test_the_age_of_the_oldest_message_is_a_duration_that_any_rule_takes(unit, durations):
    rule = "[[targets.t.rules]]\ntype = 'threshold'\nname = 'old'\nmetric = 'age'\nscale_out_above = 120"
    extra = f"[targets.t.metrics.age]\ncollector = 'lag'\nhub = 'h'\ncount = 'oldest_age'\n{unit}\n{rule}"

    assert load(minimal(extra=extra)).policies["t"].durations == durations


@pytest.mark.parametrize(
    ("schedule", "keys", "found"),
    [
        ("0 * * * * *", "", (60.0, 180.0, 5, 0)),
        ("*/15 * * * * *", "", (60.0, 180.0, 5, 0)),
        ("*/15 * * * * *", "grain = 300", (300.0, 180.0, 2, 0)),
        ("*/15 * * * * *", "grain = 300\nwindow = '2h'", (300.0, 180.0, 5, 1)),
        (
            "*/15 * * * * *",
            "min_samples = 11",
            "min_samples: found 11; a window of 600 s holds 10 samples of 60 s",
        ),
        (
            "0 * * * * *",
            "grain = 3600",
            "window: found 600 s, below the 3600 s that a sample of this metric counts",
        ),
    ],
)
def test_a_window_of_a_source_that_counts_grains_has_a_sample_for_each(schedule, keys, found):
    text = minimal(extra=f"[targets.t.metrics.m]\ncollector = 'number'\n{keys}")
    if isinstance(found, str):
        assert any(found in problem for problem in problems(text, COLLECT_SCHEDULE=schedule))
        return
    policy = load(text, COLLECT_SCHEDULE=schedule).policies["t"]
    window = policy.windows["m"]

    assert (window.interval, window.delay, window.min_samples, window.missing_allowed) == found
    assert policy.interval == policy.windows["backlog"].interval
    alone = structs.replace(policy.spec, metrics={"m": policy.spec.metrics["m"]}, rules=())
    assert Policy(alone).interval == policy.interval  # the time between two reports, whatever a sample counts


def test_the_classic_rules_numbers_are_the_defaults():
    spec = load(minimal()).policies["t"].spec

    assert (spec.out, spec.inward) == (Pace(cooldown=600.0), Pace(cooldown=600.0))
    assert (spec.metrics["backlog"].window.span, spec.metrics["backlog"].window.interval) == (600.0, 60.0)


def test_rules_are_built_in_order_with_their_names():
    spec = load().policies["plan-orders"].spec

    named = [("threshold", "threshold"), ("guard", "dead letters")]
    assert [(rule.type, rule.name) for rule in spec.rules] == named


def test_the_collection_interval_comes_from_the_schedule():
    config = load(minimal(metric='window = "1m"'), COLLECT_SCHEDULE="*/15 * * * * *")

    assert config.interval == 15.0
    assert config.policies["t"].windows["backlog"].min_samples == 4


def test_every_problem_is_told_at_once_with_its_line_and_key():
    text = FULL.replace("minimum = 1", "minimum = -1").replace('"5m"\n', '"soon"\n', 1)
    text = text.replace("scale_in_below = 100", "scale_in_blow = 100").replace('"telemetry"', "5")
    text = text.replace("maximum = 20", "maximun = 20")

    found = problems(text)
    lines = text.splitlines()

    def line_of(key):
        return 1 + next(i for i, content in enumerate(lines) if content.startswith(key))

    assert len(found) == 6, found
    assert f"tidemark.toml:{line_of('minimum')} targets.plan-orders.minimum: found -1" in found[0]
    assert any(
        f":{line_of('stabilization')} targets.plan-orders.in.stabilization: found 'soon'" in p for p in found
    )
    assert any(
        f":{line_of('scale_in_blow')} targets.plan-orders.rules[0].scale_in_blow: " in p
        and "did you mean 'scale_in_below'?" in p
        for p in found
    )
    assert any(
        f":{line_of('hub = 5')} targets.plan-hpa.metrics.lag.hub: found 5; accepted: text" in p for p in found
    )
    assert any("targets.plan-hpa.maximum: is missing" in p for p in found)
    assert any(f":{line_of('maximun')} targets.plan-hpa.maximun: is not an option here" in p for p in found)


METRICS_90 = "".join(f"[targets.t.metrics.m{i}]\ncollector = 'lag'\nhub = 'h'\n" for i in range(90))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"target": "minimum = 9"}, "minimum: found 9, above the maximum 5"),
        ({"target": "minimum = true"}, "found True; accepted are whole numbers of 0 or more"),
        ({"target": 'dry_run = "yes"'}, "dry_run: found 'yes'; true or false is accepted"),
        ({"target": 'behavior = "keda"'}, "behavior: found 'keda'; accepted are hpa"),
        ({"target": 'action_ttl = "0s"'}, "action_ttl: found '0s'; the duration must be above 0"),
        (
            {"target": 'effect_timeout = "11m"'},
            ":5 targets.t.effect_timeout: found 660 s, not below action_ttl (600 s): an action would be given up",
        ),
        (
            {"target": 'action_ttl = "5m"\neffect_timeout = "5m"'},
            "effect_timeout: found 300 s, not below action_ttl (300 s)",
        ),
        ({"target": "external_hold = nan"}, "external_hold: found nan; a duration is 0 or more"),
        ({"target": "out = 5"}, "out: found 5; a table is accepted"),
        (
            {"target": 'out = { coldown = "1m" }'},
            "out.coldown: is not a setting here; did you mean 'cooldown'?",
        ),
        ({"target": 'out.cooldown = "x"'}, ":5 targets.t.out.cooldown: found 'x'"),
        ({"target": 'in = { rates = [{ per = "1m" }] }'}, "in.rates[0]: give either 'units' or 'percent'"),
        ({"target": "in = { rates = [{ units = 1 }] }"}, "in.rates[0].per: is missing"),
        (
            {"target": "in = { rates = [{ units = 1, per = 0 }] }"},
            "per: found 0; the duration must be above 0",
        ),
        (
            {"target": "fallback = { capacity = 6 }"},
            "fallback.capacity: found 6; accepted are whole numbers of 1 to 5",
        ),
        ({"target": 'plateau = { metric = "x" }'}, "plateau.metric: found 'x'; the target has backlog"),
        (
            {"target": 'plateau = { metric = "backlog", fall = 2 }'},
            "plateau.fall: found 2; accepted are 0 to 1",
        ),
        ({"target": 'plateau = { metric = "backlog", fall = "a%" }'}, "found 'a%'; accepted are 0 to 1"),
        ({"metric": 'window = "30s"'}, "window: found 30 s, below the collection interval of 60 s"),
        ({"metric": 'window = "30d"'}, "a window holds at most 20000"),
        ({"metric": "min_samples = 11"}, "min_samples: found 11; a window of 600 s holds 10 samples"),
        ({"metric": 'count = "lagg"'}, "count: found 'lagg'; 'lag' has lag, incoming, oldest_age"),
        (
            {"extra": COUNTED.format("empty = 0")},
            "empty: found a number for no value, beside counter = true: it would look as if the count began anew",
        ),
        (
            {"extra": COUNTED.format("aggregation = 'total'")},
            "counter: found true with aggregation = 'total', which is the increase of each grain already",
        ),
        ({"metric": "counter = true"}, "counter: found true for the count 'lag', which also falls; accepted"),
        ({"rule": "step = 0"}, "rules[0].step: found 0; a step is 1 or more"),
        ({"rule": "scale_in_below = inf"}, "scale_in_below: found inf; accepted are finite numbers"),
        ({"extra": '[[targets.t.rules]]\nname = "x"'}, "rules[1].type: is missing"),
        ({"extra": '[[targets.t.rules]]\ntype = "x"'}, "rules[1].type: found 'x'; accepted are activation"),
        (
            {"extra": '[[targets.t.rules]]\ntype = "guard"\nmetric = "ru"\nblock_out_above = 1'},
            "rules[1]: names metric 'ru'; the target has backlog",
        ),
        ({"extra": "[targets.t.metrics.and]\ncollector = 'lag'\nhub = 'h'"}, "metric names are words"),
        ({"extra": "[targets.t.metrics.instances]\ncollector = 'lag'\nhub = 'h'"}, "metric names are words"),
        ({"extra": "[targets.t.metrics.'a-b']\ncollector = 'lag'\nhub = 'h'"}, "metric names are words"),
        (
            {"extra": "[targets.t.metrics.b]\ncollector = 'kafka'"},
            "collector: found 'kafka'; accepted are queue, lag, number",
        ),
        ({"extra": "[target.u]"}, "target: is not a setting here; did you mean 'targets'?"),
        ({"target": 'dry_run = "%ORDER%"'}, "app setting 'ORDER' (written %ORDER%) is not set"),
        ({"extra": METRICS_90}, "at most 90"),
    ],
)
def test_one_wrong_thing_is_one_problem_that_says_what_is_accepted(change, words):
    assert words in one_problem(**change)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no target is configured"),
        ("[targets", "not valid TOML"),
        (f"{'a.' * 5000}a = 1", "nested deeper than 32 levels"),
        (f"a = {'9' * 5000}", "not valid TOML"),
        ("version = 2\n" + minimal(), "version: found 2; this release accepts 1"),
        ("targets = 5", "a table is accepted"),
        ("version = 1\n[targets\n", "tidemark.toml:2: not valid TOML: Expected "),
        ("[targets.t]\nmaximum = 3", "rules: no rule is configured"),
        ("[targets.t]\nmaximum = 3", "scaler: is missing"),
    ],
)
def test_a_file_that_is_no_configuration_says_so(text, words):
    assert any(words in problem for problem in problems(text))


@pytest.mark.parametrize("name", ["a/b", "a@b", "x" * 201])
def test_target_names_must_do_as_table_keys_and_in_decision_ids(name):
    assert any("target names" in p for p in problems(minimal().replace("targets.t", f'targets."{name}"')))


def weeks(*windows):
    return "".join(
        f"[targets.t.metrics.m{i}]\ncollector = 'lag'\nhub = 'h'\nwindow = '{window}'\n"
        for i, window in enumerate(windows)
    )


def test_windows_that_no_row_could_hold_together_are_refused_though_each_is_small_enough():
    found = one_problem(metric='window = "7d"', extra=weeks("7d", "7d"))

    assert "targets.t.metrics" in found
    assert "30240 samples together; a target stores at most 30000" in found
    assert load(minimal(metric='window = "7d"', extra=weeks("7d", "6d"))).policies


def test_app_settings_are_checked_like_the_file():
    found = problems(minimal(), COLLECT_SCHEDULE="every minute", SCALING_LOG_RETENTION="forever")

    assert [p.partition(":")[0] for p in found] == [
        "app setting COLLECT_SCHEDULE",
        "app setting SCALING_LOG_RETENTION",
    ]


def test_a_window_of_a_counter_takes_the_room_of_two_and_a_half():
    def counters(span):
        return f"[targets.t.metrics.m]\ncollector = 'lag'\nhub = 'h'\ncount = 'incoming'\nwindow = '{span}'"

    assert load(minimal(extra=counters("8d"))).policies
    assert "a target stores at most 30000" in one_problem(extra=counters("9d"))


SECRET = "hunter2-P4ss;word 'x' \\n"


@pytest.mark.parametrize(
    "change",
    [
        {"target": 'minimum = "%SECRET%"'},
        {"target": 'dry_run = "%SECRET%"'},
        {"target": 'behavior = "%SECRET%"'},
        {"target": 'action_ttl = "%SECRET%"'},
        {"target": 'plateau = { metric = "%SECRET%" }'},
        {"target": 'plateau = { metric = "backlog", fall = "%SECRET%" }'},
        {"target": 'resource_grup = "%SECRET%"'},
        {"metric": 'window = "%SECRET%"'},
        {"metric": 'count = "%SECRET%"'},
        {"rule": 'scale_in_below = "%SECRET%"'},
        {"rule": 'combine = "%SECRET%"'},
        {"rule": 'step_in = "%SECRET%"'},
        {"extra": '[[targets.t.rules]]\ntype = "%SECRET%"'},
        {"extra": '[[targets.t.rules]]\ntype = "composite"\ndesired = "%SECRET%"'},
        {"extra": '[[targets.t.rules]]\ntype = "schedule"\ntime_zone = "%SECRET%"\nperiods = [{floor = 1}]'},
        {"extra": '[targets.t.metrics.b]\ncollector = "%SECRET%"'},
        {
            "extra": '[targets.t.metrics.b]\ncollector = "queue"\nconnection = "c"\nqueue = "q"\ntier = "%SECRET%"'
        },
        {"extra": '[targets.t.metrics.b]\ncollector = "lag"\nhub = "a.%SECRET%"'},
    ],
)
def test_a_problem_never_shows_the_value_of_an_app_setting(change):
    text = minimal(**change)
    with pytest.raises(ConfigError) as caught:
        load(text, SECRET=SECRET)

    shown = f"{caught.value} {caught.value!r} {caught.value.problems!r}"
    assert "hunter2" not in shown
    assert "P4ss" not in shown


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("10m", 600),
        ("1h30m", 5_400),
        ("2d", 172_800),
        (45, 45),
        ("1.5h", 5_400),
        ("1 h 5 s", 3_605),
    ],
)
def test_durations_are_read_in_seconds(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("value", ["", "10", "m", "-5m", "5m3h", -1, True, None, float("inf"), "9e9s"])
def test_other_durations_are_refused(value):
    with pytest.raises(ValueError, match="found"):
        parse_duration(value)


def test_lines_are_found_for_tables_lists_of_tables_and_dotted_keys():
    text = 'a = 1\n[t."x y"]\nb.c = 2\n[[t.rules]] # first\nd = 3\n[[t.rules]]\nd = 4\n[[t.rules.sub]]\n'

    assert locate(text) == {
        "a": 1,
        "t.x y": 2,
        "t.x y.b.c": 3,
        "t.rules[0]": 4,
        "t.rules[0].d": 5,
        "t.rules[1]": 6,
        "t.rules[1].d": 7,
        "t.rules[1].sub[0]": 8,
    }


def test_the_hpa_preset_is_what_kubernetes_documents():
    rates = [("percent", 100, 15), ("units", 4, 15)]
    assert [(rate.kind, rate.amount, rate.period) for rate in HPA_OUT.rates] == rates
    assert (HPA_IN.stabilization, HPA_OUT.stabilization) == (300.0, 0.0)


def test_not_even_a_value_too_short_to_be_masked_is_shown():
    found = one_problem(target='minimum = "%SECRET%"', settings={"SECRET": "x9"})

    assert found.endswith("found '%SECRET%'; accepted are whole numbers of 0 or more")


@pytest.mark.parametrize(
    ("change", "settings", "shown"),
    [
        ({"target": 'minimum = "%FEWEST%"'}, {"FEWEST": "few"}, "found '%FEWEST%'; {} (%FEWEST% is 'few')"),
        ({"target": 'minimum = "%FEWEST%"'}, {"FEWEST": "-1"}, "found '%FEWEST%'; {} (%FEWEST% is '-1')"),
        ({"metric": 'window = "%LONG%"'}, {"LONG": "5 moons"}, "(%LONG% is '5 moons')"),
        (
            {"extra": '[targets.t.metrics.b]\ncollector = "lag"\nhub = "%HUB%"'},
            {"HUB": "a.b"},
            "found '%HUB%'; the value of its app setting is not accepted here (%HUB% is 'a.b')",
        ),
        ({"target": 'minimum = "%HOOK%"'}, {"HOOK": "https://example.org/hooks/T1/B2/x"}, "or more"),
        ({"target": 'minimum = "%DB_PASSWORD%"'}, {"DB_PASSWORD": "few"}, "or more"),
        ({"target": 'minimum = "%A%%B%"'}, {"A": "x" * 200, "B": "few"}, "x', %B% is 'few')"),
        ({"target": 'minimum = "%A%"'}, {"A": "Server=db;Password=few"}, "or more"),
        ({"target": 'minimum = "%A%"'}, {"A": "sa:few@db.example.org:1433"}, "or more"),
        ({"target": 'minimum = "%A%"'}, {"A": "0123456789abcdef0123456789abcdef"}, "or more"),
        ({"target": 'minimum = "%A%"'}, {"A": "sk-live-4eC39HqLyjWDarjtT1zdp7dc"}, "or more"),
        ({"target": 'minimum = "%A%"'}, {"A": "Tr0ub4dor&3"}, "or more"),
        *(
            ({"target": 'minimum = "%A%"'}, {"A": text}, f"(%A% is '{text}')")
            for text in (
                "/subscriptions/12345678-1234-1234-1234-123456789abc/resourceGroups/rg-Orders",
                "0 */5 * * * *",
                "sb-orders-westeurope-001.servicebus.windows.net",
                "1,5 %",
            )
        ),
    ],
)
def test_a_problem_shows_what_an_app_setting_holds_beside_its_name_secrets_aside(change, settings, shown):
    found = one_problem(**change, settings=settings)

    assert found.endswith(shown.format("accepted are whole numbers of 0 or more"))


KEY = "kZ0qUj3mJ8m1C5rT2vX9yB4nE7hL6pS0aDfGwQxVtYk="
CONNECTION_STRING = (
    f"Endpoint=sb://acme.servicebus.windows.net/;SharedAccessKeyName=root;SharedAccessKey={KEY}"
)
QUEUE = '[targets.t.metrics.b]\ncollector = "queue"\n'


@pytest.mark.parametrize(
    ("change", "where", "kind"),
    [
        (
            {"extra": f'{QUEUE}queue = "q"\nconnection = "{CONNECTION_STRING}"'},
            ":18 targets.t.metrics.b.connection",
            "a connection string",
        ),
        ({"extra": f'{QUEUE}connection = "ORDERS"\nqueue = "{KEY}"'}, "b.queue", "a key or token"),
        ({"target": f'resource_group = "https://x/y?sv=1&sig={KEY}"'}, "resource_group", "a shared access"),
        ({"target": f'resource_grup = "AccountKey={KEY}"'}, "resource_grup", "a connection string"),
        ({"metric": f'count = "{KEY}"'}, "backlog.count", "a key or token"),
        ({"rule": f'combine = "{KEY}"'}, "rules[0].combine", "a key or token"),
        (
            {"extra": f'[[targets.t.rules]]\ntype = "composite"\nrules = [{{ type = "{KEY}" }}]'},
            "rules[1].rules",
            "a key or token",
        ),
    ],
)
def test_a_secret_in_the_file_is_refused_by_line_and_key_and_never_shown(change, where, kind):
    with pytest.raises(ConfigError) as caught:
        load(minimal(**change))

    shown = f"{caught.value} {caught.value!r} {caught.value.problems!r}"
    assert KEY not in shown
    assert any(
        where in p.where and f"looks like {kind}" in p.text and "app setting" in p.text
        for p in caught.value.problems
    ), caught.value.problems


def test_no_message_shows_a_secret_wherever_it_stands_in_the_file():
    for text in (
        f"[targets.'AccountKey={KEY}']\nmaximum = 'AccountKey={KEY}'",
        f"AccountKey={KEY}",
        f"[defaults]\n'sig={KEY}' = 1",
        f"targets = 'AccountKey={KEY}'",
    ):
        with pytest.raises(ConfigError) as caught:
            load(text)
        assert KEY not in f"{caught.value} {caught.value.problems!r}"


def test_a_secret_from_an_app_setting_is_no_name_of_a_connection():
    found = one_problem(
        extra=f'{QUEUE}queue = "q"\nconnection = "%BUS%"', settings={"BUS": CONNECTION_STRING}
    )

    assert "targets.t.metrics.b.connection: found the value of an app setting" in found
    assert "accepted is the setting's name, without the % signs" in found
    assert KEY not in found


def test_a_connection_without_an_app_setting_is_a_finding_with_its_line_and_the_nearest_name():
    text = minimal(extra=f'{QUEUE}queue = "q"\nconnection = "ORDRES"')
    (finding,) = load(text).findings

    assert (finding.severity, finding.kind, finding.target) == ("error", "no_connection", "t")
    assert finding.text == (
        "tidemark.toml:18 targets.t.metrics.b.connection: there is no app setting 'ORDRES', nor any that begins with"
        " 'ORDRES__'; did you mean 'ORDERS'?"
    )


@pytest.mark.parametrize(("name", "found"), [("ORDERS", 0), ("ORDRES_KEY", 1)])
def test_a_header_is_named_by_an_app_setting_like_a_connection(name, found):
    metric = f'[targets.t.metrics.b]\ncollector = "http_json"\nurl = "https://x.example"\npath = "a"\nheaders = {{ X-Key = "{name}" }}'
    made = load_config(minimal(extra=metric), name="tidemark.toml", settings=SETTINGS, plug_ins=WithHttp())

    assert len(made.findings) == found
    assert all(
        "metrics.b.headers.X-Key: there is no app setting 'ORDRES_KEY'" in each.text for each in made.findings
    )


@pytest.mark.parametrize(
    ("metric", "settings", "words"),
    [
        ('collector = "http_json"\nurl = "http://x.example/a"\npath = "a"', {}, ".url: 'x.example' is not asked over TLS; accepted is https://HOST/..."),
        ('collector = "http_json"\nurl = "http://x.example/a"\npath = "a"', {"TIDEMARK_TRUSTED_HOSTS": "x.example"}, None),
        ('collector = "http_json"\nurl = "https://169.254.169.254/a"\npath = "a"', {}, ".url: 169.254.169.254 is an address of this machine or its link"),
        ('collector = "calendar"\nurl_setting = "HOLIDAYS"', {"HOLIDAYS": "http://x.example/k3y.ics"}, ".url_setting: app setting HOLIDAYS: 'x.example' is not asked"),
        ('collector = "calendar"\nurl_setting = "HOLIDAYS"', {"HOLIDAYS": "webcal://x.example/k3y.ics"}, None),
        ('collector = "calendar"\nurl_setting = "HOLIDAYS"', {"HOLIDAYS": ""}, ".url_setting: the app setting 'HOLIDAYS' is empty"),
    ],
)  # fmt: skip
def test_an_address_that_no_read_would_call_is_a_finding(metric, settings, words):
    text = minimal(extra=f"[targets.t.metrics.b]\n{metric}")
    made = load_config(text, name="tidemark.toml", settings={**SETTINGS, **settings}, plug_ins=WithHttp())

    assert [words in each.text for each in made.findings] == ([] if words is None else [True])
    assert "k3y" not in str(made.findings)


class WithHttp(PlugIns):
    def collector_class(self, kind):
        numbers = {"http_json": HttpJsonCollector, "calendar": CalendarCollector}
        return numbers.get(kind) or super().collector_class(kind)


@pytest.mark.parametrize("name", ["Bus", "Bus__fullyQualifiedNamespace", "BUS:fullyQualifiedNamespace"])
def test_a_connection_may_be_a_string_or_an_identity(name):
    text = minimal(extra=f'{QUEUE}queue = "q"\nconnection = "Bus"')

    assert load(text, **{name: "x"}).findings == ()
    assert [finding.kind for finding in load(text, **{name: " "}).findings] == ["no_connection"]


class Sized:
    """A scaler that knows what it scales, as the registered ones do."""

    class Params(msgspec.Struct, forbid_unknown_fields=True):
        plan: str

    @staticmethod
    def resource(params, settings):
        return params.plan.casefold()


class Follower:
    class Params(msgspec.Struct, forbid_unknown_fields=True):
        target: str

    COUNTS = ("current",)
    DEFAULT_COUNT = "current"


class MorePlugIns(PlugIns):
    def collector_class(self, kind):
        return self._of({"queue": Queue, "lag": Lag, "target_capacity": Follower}, kind)

    def scaler_class(self, kind):
        return self._of({"plan": Sized}, kind)


def follow(**targets):
    """Targets that follow others by a rule that votes; one that follows none has a backlog."""
    text = ""
    for name, other in targets.items():
        metric = (
            f'collector = "target_capacity"\ntarget = "{other}"' if other else 'collector = "lag"\nhub = "h"'
        )
        text += f'[targets.{name}]\nscaler = "plan"\nplan = "%PLAN_{name}%"\nmaximum = 5\n'
        text += f"[targets.{name}.metrics.m]\n{metric}\n"
        text += f'[[targets.{name}.rules]]\ntype = "threshold"\nmetric = "m"\nscale_out_above = 10\n'
    return text


def load_following(text, **plans):
    settings = {f"PLAN_{name}": name for name in "abcd"} | plans
    try:
        return load_config(text, name="t.toml", settings=settings, plug_ins=MorePlugIns()), []
    except ConfigError as error:
        return None, [str(problem) for problem in error.problems]


def test_two_targets_on_one_resource_are_refused_also_where_settings_name_it():
    text = follow(a="", b="", c="")

    _, found = load_following(text, PLAN_c="A")

    (problem,) = found
    assert problem == (
        "t.toml:23 targets.c: scales the same resource as targets.a; accepted is one target for each resource, which"
        " may have several metrics and rules"
    )
    assert load_following(text)[0] is not None


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        ({"a": "x", "b": ""}, "targets.a.metrics.m.target: found 'x'; the other targets are b"),
        ({"a": "a", "b": ""}, "targets.a.metrics.m.target: found 'a', the target itself"),
        ({"a": "b", "b": "a"}, "in a circle: a -> b -> a;"),
        ({"d": "a", "a": "b", "b": "c", "c": "a"}, "in a circle: a -> b -> c -> a;"),
    ],
)
def test_a_target_follows_another_one_that_exists_and_never_itself(targets, words):
    _, found = load_following(follow(**targets))

    assert len(found) == 1
    assert words in found[0]


def test_circles_that_share_a_target_are_all_told():
    more = """[targets.b.metrics.n]\ncollector = "target_capacity"\ntarget = "c"
    [[targets.b.rules]]\ntype = "threshold"\nmetric = "n"\nscale_out_above = 10"""

    _, found = load_following(follow(a="b", b="a", c="b") + more)

    assert [problem.partition("circle: ")[2][:11] for problem in found] == ["a -> b -> a", "b -> c -> b"]


def test_circles_are_told_however_many_there_are():
    names = [f"t{number}" for number in range(50)]

    found = list(_circles({name: [other for other in names if other != name] for name in names}))

    assert len(found) == 50 * 49 // 2
    assert all(circle[0] == circle[-1] for circle in found)


def test_targets_may_follow_each_other_in_a_row():
    config, found = load_following(follow(a="b", b="c", c="", d="c"))

    assert found == []
    assert len(config.policies) == 4


def test_defaults_reach_into_the_tables_of_a_target():
    text = """
    [defaults]
    out = { cooldown = "1m" }
    [defaults.in]
    cooldown = "20m"
    stabilization = "5m"
    rates = [{ units = 1, per = "1m" }]
    [defaults.metrics.backlog]
    collector = "lag"
    window = "2m"
    """
    config = load(text + minimal(target="in = { stabilization = '7m' }").replace('collector = "lag"\n', ""))

    spec = config.policies["t"].spec
    assert spec.inward == Pace(
        cooldown=1200.0, stabilization=420.0, rates=(RateLimit(kind="units", amount=1, period=60.0),)
    )
    assert spec.out == Pace(cooldown=60.0)
    assert spec.metrics["backlog"].window.span == 120.0


def test_an_error_in_an_expression_hides_no_other_one():
    found = problems(
        minimal(
            rule='scale_in_below = "instances +"\nstep = "many"',
            target='plateau = { metric = "nope" }',
            extra='[[targets.t.rules]]\ntype = "guard"\nmetric = "ru"\nblock_out_above = 1',
        )
    )

    for words in (
        "rules[0].scale_in_below: ",
        "rules[0].step: found 'many'",
        "rules[1]: names metric 'ru'; the target has backlog",
        "plateau.metric: found 'nope'; the target has backlog",
    ):
        assert sum(words in problem for problem in found) == 1, (words, found)
    assert len(found) == 4, found


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ('type = "composite"\nstep = 0', ("step: found 0; a step is 1 or more", "rules: give exactly one")),
        (
            'type = "threshold"\nstep_in = 0',
            (
                "step_in: found 0; a step",
                "metric: name one metric",
                "scale_out_above: give 'scale_out_above'",
            ),
        ),
    ],
)
def test_a_number_out_of_range_hides_no_problem_of_other_options(rule, words):
    found = problems(minimal(extra=f"[[targets.t.rules]]\n{rule}"))

    assert len(found) == len(words), found
    for each in words:
        assert any(f"rules[1].{each}" in problem for problem in found), (each, found)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"target": "out = { cooldown = 3 }"}, "out.cooldown"),
        ({"target": "action_ttl = 600"}, "action_ttl"),
        ({"metric": "window = 300.5"}, "window"),
    ],
)
def test_a_duration_without_a_unit_is_refused_rather_than_taken_for_seconds(change, key):
    found = one_problem(**change)

    assert f"{key}: found " in found
    assert "a number without a unit; accepted are '" in found


def test_no_duration_needs_no_unit():
    assert load(minimal(target="out = { cooldown = 0 }")).policies["t"].spec.out.cooldown == 0.0


def test_a_byte_order_mark_is_no_part_of_the_file():
    assert decoded(b"\xef\xbb\xbfversion = 1", name="t.toml") == "version = 1"


@pytest.mark.parametrize(
    ("data", "where", "words"),
    [
        (b"version = 1\n# caf\xe9\n", "t.toml:2", "byte 6 of this line is 0xe9, which is not UTF-8"),
        ("version = 1".encode("utf-16"), "t.toml:1", "the file is UTF-16; save it as UTF-8"),
    ],
)
def test_bytes_that_are_no_utf_8_are_told_with_their_line(data, where, words):
    with pytest.raises(ConfigError) as caught:
        decoded(data, name="t.toml")

    (problem,) = caught.value.problems
    assert problem.where == where
    assert words in problem.text


LEARNS = '[[targets.t.rules]]\ntype = "service_level"\nbacklog = "backlog"\n'
NESTED = (
    '[[targets.t.rules]]\ntype = "composite"\nrules = [{ type = "service_level", backlog = "backlog" }]\n'
)


@pytest.mark.parametrize("rules", [LEARNS, NESTED])
def test_a_rule_that_learns_has_no_cooldown_unless_one_is_given(rules):
    spec = load(minimal(extra=rules)).policies["t"].spec
    assert (spec.out, spec.inward) == (Pace(), Pace())
    given = load(minimal(target='out = { cooldown = "2m" }', extra=rules)).policies["t"].spec
    assert (given.out.cooldown, given.inward.cooldown) == (120.0, 0.0)


class Learner:
    """A user's rule that learns and has no name, so that its memory is found by its class."""

    def metrics(self):
        return ("backlog",)

    def evaluate(self, view):
        raise NotImplementedError

    def learn(self, known, view):
        return known


OWN = "".join(
    f'[[targets.t.rules]]\ntype = "tests.unit.scaling.config.test_config:Learner"\nname = "{name}"\n'
    for name in ("first", "second")
)
TWINS = (
    '[[targets.t.rules]]\ntype = "composite"\nrules = ['
    + '{ type = "service_level", name = "twin", backlog = "backlog" }, ' * 2
    + "]\n"
)


@pytest.mark.parametrize(
    ("rules", "name"),
    [(2 * LEARNS, "service_level"), (2 * NESTED, "composite.0"), (OWN, "Learner"), (TWINS, "twin")],
)
def test_two_rules_that_learn_have_two_names(rules, name):
    assert f"another rule is called '{name}'" in one_problem(extra=rules)


def test_a_row_holds_the_memories_of_four_rules():
    rules = "".join(f'{LEARNS}name = "r{index}"\n' for index in range(5))
    assert "rules: found 5 rules that learn; at most 4" in one_problem(extra=rules)


def test_what_a_metric_may_lack_and_how_often_its_target_is_looked_at():
    tolerance = 'window = "30m"\nfailures_allowed = 3\ndefault = 12.5'
    made = load(minimal(target='interval = "5m"', metric=tolerance)).policies["t"]

    window = made.windows["backlog"]
    assert (window.failures_allowed, window.default, window.interval, window.min_samples) == (
        3,
        12.5,
        300.0,
        5,
    )
    assert (made.spec.interval, made.interval) == (300.0, 300.0)


@pytest.mark.parametrize(
    ("change", "settings", "words"),
    [
        (
            {"target": 'interval = "90s"'},
            {},
            "found 90 s; accepted are multiples of the collection interval up to a day",
        ),
        ({"target": 'interval = "2d"'}, {}, "fires every 60 s"),
        ({"target": 'interval = "30s"'}, {}, "fires every 60 s"),
        ({"target": 'interval = "1h"'}, {"COLLECT_SCHEDULE": "0 * 8-17 * * *"}, "fires at uneven times"),
        ({"target": 'interval = "5m"', "metric": 'window = "2m"'}, {}, "or the target's interval"),
        ({"metric": "failures_allowed = -1"}, {}, "0 to 60"),
        ({"metric": "default = -1"}, {}, "accepted are numbers from 0 to 1e+15"),
        ({"metric": 'default = "5"'}, {}, "found '5'"),
        ({"metric": "default = true"}, {}, "found True"),
    ],
)
def test_tolerances_and_intervals_that_cannot_be_are_refused(change, settings, words):
    found = problems(minimal(**change), **settings)

    assert any(words in problem for problem in found), found


@pytest.mark.parametrize(
    ("schedule", "time_zone", "at", "seconds"),
    [
        ("0 */10 * * * *", "UTC", "2026-11-26T12:00:05", 600.0),
        ("0 * 8-17 * * *", "UTC", "2026-11-26T12:00:00", 60.0),
        ("0 * 8-17 * * *", "UTC", "2026-11-26T17:59:00", 14 * 3600 + 60.0),
        ("0 * 8-17 * * *", "Europe/Amsterdam", "2026-11-26T16:59:00", 14 * 3600 + 60.0),
        # The night in which summer time ends has an hour more.
        ("0 * 8-17 * * *", "Europe/Amsterdam", "2026-10-24T15:59:00", 15 * 3600 + 60.0),
    ],
)
def test_a_line_tells_in_how_many_seconds_the_target_is_looked_at_again(schedule, time_zone, at, seconds):
    config = load(minimal(), COLLECT_SCHEDULE=schedule, WEBSITE_TIME_ZONE=time_zone)
    now = datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp()

    assert seconds_to_next(config, next(iter(config.policies)), now) == seconds
