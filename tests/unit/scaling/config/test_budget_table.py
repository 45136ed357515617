"""`[targets.NAME.budget]`: three ways to say how much, each with what is accepted in its place."""

import pytest

from scaling.config.policy import Budget
from scaling.config.policy_file import load_config
from scaling.service import registry
from tidemark.foundation.settings_reader import ConfigError

ACCOUNT = "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/rg/providers"
PLAN = f'scaler = "app_service_plan"\nresource_id = "{ACCOUNT}/Microsoft.Web/serverfarms/plan"\nmaximum = 9'
THROUGHPUT = (
    f'scaler = "cosmos_throughput"\nresource_id = "{ACCOUNT}/Microsoft.DocumentDB/databaseAccounts/a/sqlDatabases/d'
    '/containers/c"\nminimum = 1000\nmaximum = 60000'
)
OWN = 'scaler = "tests.support.scaling.fakes_azure:FakeScaler"\nmaximum = 9'


def text(budget, target=PLAN):
    return f"""\
[targets.t]
{target}
[targets.t.budget]
{budget}
[targets.t.metrics.backlog]
collector = "service_bus_queue"
connection = "AzureWebJobsStorage"
queue = "q"
[[targets.t.rules]]
type = "threshold"
metric = "backlog"
scale_out_above = 10
"""


def load(budget, target=PLAN, **settings):
    config = load_config(text(budget, target), name="tidemark.toml", settings=settings, plug_ins=registry)
    return config.policies["t"].spec.budget


def problem(budget, target=PLAN, **settings):
    with pytest.raises(ConfigError) as caught:
        load(budget, target, **settings)
    [found] = caught.value.problems
    return str(found)


def test_instance_hours_of_a_plan():
    made = load('instance_hours_per_day = 192\ntime_zone = "Europe/Amsterdam"')

    assert made == Budget(amount=192.0, unit="instance_hours", time_zone="Europe/Amsterdam")
    assert made.hours == 192.0


def test_request_unit_hours_are_billed_by_the_hour():
    made = load("request_unit_hours_per_day = 240_000", THROUGHPUT)

    assert made == Budget(amount=240_000.0, unit="request_unit_hours", hourly=True)


def test_money_has_the_price_of_one_instance():
    assert load("money_per_day = 48\nprice_per_hour = 0.25").hours == 192.0


def test_money_has_the_price_of_a_hundred_request_units():
    made = load("money_per_day = 24\nprice_per_hour = 0.008", THROUGHPUT)

    assert made.hours == pytest.approx(300_000.0)
    assert made.hourly


def test_a_scaler_of_ones_own_may_count_anything():
    assert load("instance_hours_per_day = 48", OWN).hours == 48.0
    assert load("request_unit_hours_per_day = 48", OWN).hourly
    assert not load("money_per_day = 48\nprice_per_hour = 1", OWN).hourly


def test_amounts_may_come_from_app_settings():
    assert load('money_per_day = "%DAY%"\nprice_per_hour = "%PRICE%"', DAY="48", PRICE="0.25").hours == 192.0


def test_without_a_table_there_is_no_budget():
    made = load_config(
        text("").replace("[targets.t.budget]\n", ""), name="tidemark.toml", settings={}, plug_ins=registry
    )

    assert made.policies["t"].spec.budget is None


@pytest.mark.parametrize(
    ("budget", "target", "words"),
    [
        (
            "",
            PLAN,
            "targets.t.budget: the amount of a day is missing; accepted is one of instance_hours_per_day, ",
        ),
        (
            "instance_hours_per_day = 48\nmoney_per_day = 5\nprice_per_hour = 1",
            PLAN,
            "the amount of a day found instance_hours_per_day and money_per_day; accepted is one of",
        ),
        (
            "money_per_day = 48",
            PLAN,
            "targets.t.budget.price_per_hour: is missing; money_per_day needs the price of one instance for an hour",
        ),
        ("money_per_day = 48", THROUGHPUT, "needs the price of 100 RU/s for an hour"),
        ("instance_hours_per_day = 48\nprice_per_hour = 1", PLAN, "is of use with money_per_day only"),
        (
            "request_unit_hours_per_day = 48",
            PLAN,
            "the scaler 'app_service_plan' counts instances; accepted are instance_hours_per_day and money_per_day",
        ),
        (
            "instance_hours_per_day = 48",
            THROUGHPUT,
            "the scaler 'cosmos_throughput' counts RU/s; accepted are request_unit_hours_per_day and money_per_day",
        ),
        (
            "instance_hours_per_day = 47",
            PLAN + "\nminimum = 2",
            "budget.instance_hours_per_day: found 47, below the 48 instance-hours that the minimum alone takes (2 for 24 h)",
        ),
        (
            "money_per_day = 5.5\nprice_per_hour = 0.25",
            PLAN,
            "budget.money_per_day: found 5.5, below the 6 that the minimum alone takes (1 for 24 h)",
        ),
        (
            "request_unit_hours_per_day = 23_999",
            THROUGHPUT,
            "found 23999, below the 24000 request-unit-hours",
        ),
        ("instance_hours_per_day = 0", PLAN, "found 0; accepted are numbers above 0"),
        ("instance_hours_per_day = inf", PLAN, "found inf; accepted are numbers above 0"),
        ("instance_hours_per_day = true", PLAN, "found True; accepted are numbers above 0"),
        ('instance_hours_per_day = "many"', PLAN, "found 'many'; accepted are numbers above 0"),
        ("money_per_day = 48\nprice_per_hour = -1", PLAN, "found -1; accepted are numbers above 0"),
        (
            'instance_hours_per_day = 48\ntime_zone = "Mars"',
            PLAN,
            "found time zone 'Mars'; accepted are IANA names",
        ),
        (
            "instance_hours_per_day = 48\ninstance_hour_per_day = 48",
            PLAN,
            "budget.instance_hour_per_day: is not a setting here; did you mean 'instance_hours_per_day'?",
        ),
    ],
)
def test_one_wrong_thing_is_one_problem_that_says_what_is_accepted(budget, target, words):
    assert words in problem(budget, target)
