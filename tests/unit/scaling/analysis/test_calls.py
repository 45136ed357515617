"""Budgets of calls that cannot suffice are told before anything is called."""

import re
from functools import partial

import pytest

from scaling.analysis.calls import demand_of, short_budgets
from scaling.analysis.lint import lint
from scaling.calls.budgets import PUBLISHED, Budget
from scaling.config.policy_file import load_config
from scaling.service import registry
from tidemark.foundation.durations import parse_duration
from tidemark.foundation.settings_reader import ConfigError

SETTINGS = {
    "COLLECT_SCHEDULE": "0 * * * * *",
    "Bus": "Endpoint=sb://b.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b",
}
METRIC = '[targets.t{n}.metrics.m]\n{metric}\n[[targets.t{n}.rules]]\ntype = "target_per_unit"\nmetric = "m"\ntarget = 5\n'
ACCOUNT = "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/g/providers/Microsoft.DocumentDB/databaseAccounts/Acme"


def config(count, metric, *, of='scaler = "advice"', settings=SETTINGS, **more):
    """`{n}` in the texts is the number of the target."""
    tables = "".join(
        f"[targets.t{n}]\n{of}\nmaximum = 9000\n{more.get('lines', '')}\n{METRIC}".replace(
            "{metric}", metric
        ).replace("{n}", str(n))
        for n in range(count)
    )
    return load_config(f"version = 1\n{tables}", name="t.toml", settings=settings, plug_ins=registry)


CONTAINER = (
    f'scaler = "cosmos_throughput"\nresource_id = "{ACCOUNT}/sqlDatabases/d/containers/c{{n}}"\nminimum = 400'
)
LOG = 'collector = "log_query"\nworkspace = "11111111-2222-3333-4444-555555555555"\nquery = "q{n}"'
QUEUE = 'collector = "service_bus_queue"\nconnection = "Bus"\nqueue = "q{n}"'
FAN = 'collector = "service_bus_subscription"\nconnection = "Bus"\ntopic = "t{n}"\nsubscription = "s"'


@pytest.mark.parametrize(
    ("made", "api", "scope", "calls"),
    [
        (lambda: config(40, LOG), "log_queries", "Log Analytics", 40.0),
        (lambda: config(40, LOG.replace("{n}", "")), "log_queries", "Log Analytics", 1.0),
        (lambda: config(40, LOG, lines='interval = "4m"'), "log_queries", "Log Analytics", 10.0),
        (lambda: config(2, QUEUE), "service_bus", "Bus", 4.0),
        (lambda: config(2, f'{QUEUE}\ncount = "oldest_age"'), "service_bus", "Bus", 0.0),
        (lambda: config(1, QUEUE.replace("q{n}", "q*")), "service_bus", "Bus", 3.0),
        (lambda: config(1, f'{QUEUE}\nevery = "2m"'), "service_bus", "Bus", 1.0),
        (lambda: config(201, QUEUE), "service_bus", "Bus", 6.0),
        (lambda: config(300, FAN), "service_bus", "Bus", 900.0),
        (lambda: config(3, LOG, of=CONTAINER), "cosmos_reads", "acme", 6.0),
    ],
    ids=[
        "each its own",
        "one for all",
        "less often",
        "one by one",
        "peeked",
        "a pattern",
        "less often than the target",
        "listed",
        "topics of one each",
        "containers",
    ],
)
def test_what_no_list_spares_is_counted(made, api, scope, calls):
    assert demand_of(made())[api, scope] == pytest.approx(calls)


def test_a_budget_that_cannot_suffice_is_told_with_its_numbers():
    [found] = short_budgets(config(60, LOG, of=CONTAINER), PUBLISHED)

    assert found.severity == "warning"
    assert found.text == (
        "calls: 120 a minute of cosmos_reads are needed for acme, and 64 are to be had (400 calls in 300 s, less a fifth for"
        " changes): each target is read every 2 minutes or so; their checks of effects alone take 60: run these"
        " less often (VERIFY_SCHEDULE), which notices somebody else's changes as late, or spread them over subscriptions,"
        " namespaces or accounts (docs/calls.md)"
    )
    assert list(short_budgets(config(30, LOG, of=CONTAINER), PUBLISHED)) == []
    assert len(list(short_budgets(config(30, LOG), {**PUBLISHED, "log_queries": Budget(2, 30.0)}))) == 1


@pytest.mark.parametrize(
    ("count", "metric", "of"),
    [(60, LOG, CONTAINER), (100, LOG, CONTAINER), (300, FAN, 'scaler = "advice"')],
    ids=["reads", "checks alone are too many", "no checks"],
)
def test_a_budget_suffices_once_its_advice_is_followed(count, metric, of):
    settings, lines = SETTINGS, ""
    for _ in range(3):
        found = list(short_budgets(config(count, metric, of=of, settings=settings, lines=lines), PUBLISHED))
        if not found:
            return
        if "VERIFY_SCHEDULE" in found[0].text:
            settings = {**settings, "VERIFY_SCHEDULE": "0 */5 * * * *"}
        else:
            lines = f'interval = "{re.search("([0-9]+) times as long", found[0].text).group(1)}m"'
    raise AssertionError(found)


AGES = """
version = 1
[targets.t]
scaler = "advice"
maximum = 9
metrics.m = { collector = "service_bus_queue", connection = "Bus", queue = "q", EVERY }
metrics.age = { collector = "service_bus_queue", connection = "Bus", queue = "q", count = "oldest_age" }
[[targets.t.rules]]
type = "threshold"
metrics = ["m", "age"]
scale_out_above = 60
scale_in_below = 5
"""


def test_counts_that_are_read_every_minute_leave_the_pace_to_the_ages():
    settings = {**SETTINGS, "COLLECT_SCHEDULE": "*/15 * * * * *"}
    found = {}
    for every in ("", "every = '1m'"):
        made = load_config(
            AGES.replace(", EVERY", f", {every}" if every else ""),
            name="t.toml",
            settings=settings,
            plug_ins=registry,
        )
        policy = made.policies["t"]
        windows = policy.windows
        found[every] = (
            windows["m"].interval,
            windows["age"].interval,
            policy.interval,
            any(each.kind == "counted_again" for each in lint(policy)),
        )

    assert found == {"": (15.0, 15.0, 15.0, True), "every = '1m'": (60.0, 15.0, 15.0, False)}


@pytest.mark.parametrize(
    ("every", "is_accepted"), [("1m", True), ("3m", True), ("30s", True), ("70s", False)]
)
def test_reads_between_two_collections_are_refused(every, is_accepted):
    """Read at each second minute in place of 70 s, each two samples would have a gap between them, and nothing were scaled in."""
    made = partial(load_config, AGES.replace("EVERY", f"every = '{every}'"), name="t.toml", plug_ins=registry)
    if is_accepted:
        assert made(settings=SETTINGS).policies["t"].windows["m"].interval == max(parse_duration(every), 60.0)
        return
    with pytest.raises(
        ConfigError, match=r"metrics\.m\.every: found 70 s; accepted are multiples of the 60 s"
    ):
        made(settings=SETTINGS)


@pytest.mark.parametrize(("other", "is_accepted"), [("t", True), ("plan", False)])
def test_the_target_whose_instances_hold_messages_has_to_be_there(other, is_accepted):
    held = f'count = "oldest_age", concurrency = 4, instances_of = "{other}"'
    text = AGES.replace('count = "oldest_age"', held).replace(", EVERY", "")
    made = partial(load_config, text, name="t.toml", settings=SETTINGS, plug_ins=registry)
    if is_accepted:
        assert "age" in made().policies["t"].windows
        return
    with pytest.raises(ConfigError, match=r"metrics\.age\.instances_of: found 'plan'; the targets are t$"):
        made()
