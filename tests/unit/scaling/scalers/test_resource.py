"""Any number of a resource: what is read, what is sent, and what the configuration may say of it."""

import msgspec
import pytest

from scaling.config.policy_file import load_config
from scaling.doctor.checks import right_of
from scaling.scalers.arm.resources import ArmResources, Followed
from scaling.scalers.resource.kinds import KINDS, Kind
from scaling.scalers.resource.resource import changed, seen_of, why_refused
from scaling.scalers.resource.scaler import AzureResourceScaler
from scaling.service import registry
from scaling.target_facts import Settable, TargetFacts
from tests.conformance.test_scalers import NOW, action
from tidemark.foundation.settings_reader import ConfigError, parse_params

GROUP = "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/rg/providers"
APP = f"{GROUP}/Microsoft.App/containerApps/shop"
BUS = f"{GROUP}/Microsoft.ServiceBus/namespaces/orders"
POOL = f"{GROUP}/Microsoft.ContainerService/managedClusters/c/agentPools/p"
PREMIUM = {"sku": {"name": "Premium", "tier": "Premium", "capacity": 2}, "properties": {}}


def params(**options):
    return parse_params(AzureResourceScaler.Params, options)


# -- what is read ------------------------------------------------------------------------------------------


def test_kinds_are_sorted_and_say_what_changes_cost():
    assert list(KINDS) == sorted(KINDS)
    assert all(kind.pause and kind.why and kind.unit for kind in KINDS.values())


def test_limits_of_the_resource_narrow_those_of_the_kind():
    scale = {"minReplicas": 2, "maxReplicas": 30}
    document = {"properties": {"template": {"scale": scale}, "provisioningState": "InProgress"}}

    least = seen_of(KINDS["container_app_minimum"], document)
    most = seen_of(KINDS["container_app_maximum"], document)

    assert (least.value, least.floor, least.ceiling, least.pending) == (2, 0, 30, True)
    assert (most.value, most.floor, most.ceiling) == (30, 2, 1000)


def test_what_is_absent_is_what_the_platform_takes_for_it():
    seen = seen_of(KINDS["container_app_minimum"], {"properties": {"template": {"scale": None}}})

    assert (seen.value, seen.floor, seen.pending) == (0, 0, False)


@pytest.mark.parametrize(
    ("partitions", "allowed"), [(None, (1, 2, 4, 8, 16)), (1, (1, 2, 4, 8, 16)), (4, (4, 8, 16, 32, 64))]
)
def test_messaging_units_are_multiples_of_the_partitions(partitions, allowed):
    document = PREMIUM | {"properties": {"premiumMessagingPartitions": partitions}}

    seen = seen_of(KINDS["service_bus_messaging_units"], document)

    assert (seen.settable, seen.floor, seen.ceiling) == (Settable(1, allowed), allowed[0], allowed[-1])
    assert seen.clamped(allowed[2] + 1) == allowed[3]
    assert (seen.clamped(0), seen.clamped(500)) == (allowed[0], allowed[-1])


def test_a_number_below_the_floor_is_asked_for_as_the_floor():
    seen = seen_of(
        KINDS["container_app_maximum"], {"properties": {"template": {"scale": {"minReplicas": 4}}}}
    )

    assert (seen.clamped(2), seen.clamped(7)) == (4, 7)


@pytest.mark.parametrize("value", ["3", 3, 3.0])
def test_a_number_is_one_however_it_is_written(value):
    assert seen_of(KINDS["event_hubs_throughput_units"], {"sku": {"capacity": value}}).value == 3


@pytest.mark.parametrize("value", ["many", True, 2.5, -1, [3]])
def test_what_is_no_number_is_not_scaled(value):
    with pytest.raises(ValueError, match=r"sku\.capacity is .*; a whole number of 0 or more can be scaled"):
        seen_of(KINDS["event_hubs_throughput_units"], {"sku": {"capacity": value}})


def test_what_is_not_there_is_not_zero():
    with pytest.raises(ValueError, match=r"holds no sku\.capacity"):
        seen_of(KINDS["virtual_machine_scale_set"], {"sku": {}})


def test_a_tier_without_units_is_refused_with_the_ones_that_have_some():
    standard = {"sku": {"name": "Standard", "capacity": 1}}

    text = why_refused(KINDS["service_bus_messaging_units"], standard)

    assert text == "sku.name is 'Standard'; messaging units are set where it is Premium"
    assert why_refused(KINDS["event_hubs_throughput_units"], standard) is None


def test_auto_inflate_is_another_hand():
    inflating = {"sku": {"capacity": 2}, "properties": {"isAutoInflateEnabled": True}}

    assert seen_of(KINDS["event_hubs_throughput_units"], inflating).holder == "auto-inflate"


# -- what is sent ------------------------------------------------------------------------------------------


def test_of_a_sku_the_whole_is_sent_of_anything_else_the_number():
    bus, app = KINDS["service_bus_messaging_units"], KINDS["container_app_minimum"]

    assert changed(bus, seen_of(bus, PREMIUM), 4) == {"sku": PREMIUM["sku"] | {"capacity": 4}}
    assert changed(app, seen_of(app, {"properties": {"template": {"containers": [1]}}}), 2) == {
        "properties": {"template": {"scale": {"minReplicas": 2}}}
    }


def test_a_put_sends_what_was_read_with_the_number_in_it():
    kind = Kind(type="t", api_version="2024-01-01", path="properties.count", unit="nodes", method="put")
    document = {"etag": "e", "systemData": {}, "name": "p", "properties": {"count": 1, "mode": "User"}}

    seen = seen_of(kind, document)

    assert seen.etag == "e"
    assert changed(kind, seen, 3) == {"name": "p", "properties": {"count": 3, "mode": "User"}}
    assert document["properties"]["count"] == 1


async def test_a_platform_that_says_to_look_again_at_once_is_not_asked_without_a_pause(monkeypatch):
    """Some providers answer `Retry-After: 0`; every look counts against the limit that all targets share."""
    plain, waits = {"sku": {"capacity": 2}}, []

    class Platform:
        async def get(self, *_):
            return plain

        async def change(self, *_, **__):
            plain["sku"]["capacity"] = 3
            return Followed("https://management.azure.com/o/1", True, 0.0)

        finish = ArmResources.finish

        async def follow(self, operation):
            return operation if len(waits) < 3 else None

        async def autoscale_settings(self, _):
            for none in ():
                yield none

    async def wait(seconds):
        waits.append(seconds)

    monkeypatch.setattr("scaling.scalers.arm.shared.open_resources", lambda *_: Platform())
    made, _ = params(resource_id=POOL, api_version="2024-09-01", path="sku.capacity")
    scaler = AzureResourceScaler(made, {}, sleep=wait)

    effect = await scaler.apply(action(2, 3), now=NOW)

    assert (effect.reached, waits) == (3, [5.0, 5.0, 5.0])


# -- what the configuration may say ------------------------------------------------------------------------


def test_a_kind_tells_what_it_counts_and_how_often_a_change_is_wise():
    facts = AzureResourceScaler.facts(params(resource_id=BUS, kind="service_bus_messaging_units")[0])
    own = AzureResourceScaler.facts(
        params(resource_id=POOL, api_version="2024-09-01", path="properties.count", allowed=[4, 1, 2])[0]
    )

    assert (facts.unit, facts.pause, facts.settable) == ("messaging units", 600.0, Settable())
    assert own == TargetFacts("units", Settable(1, (1, 2, 4)))


def test_what_a_kind_knows_can_be_replaced_where_the_platform_changes():
    made = params(resource_id=BUS, kind="service_bus_messaging_units", allowed=[1, 2, 4, 8, 16, 32], most=32)[
        0
    ]

    assert (made.known.allowed, made.known.ceiling, made.known.times) == ((1, 2, 4, 8, 16, 32), 32, "")


@pytest.mark.parametrize(
    ("options", "option", "text"),
    [
        ({"resource_id": "orders"}, "resource_id", "accepted is the full resource id"),
        ({"resource_id": f"{APP}?x=1"}, "resource_id", "accepted is the full resource id"),
        ({"resource_id": APP.replace("1", "x")}, "resource_id", "accepted is a GUID"),
        ({"resource_id": APP, "kind": "shop"}, "kind", "accepted are container_app_maximum"),
        (
            {"resource_id": APP, "kind": "service_bus_messaging_units"},
            "resource_id",
            "of type Microsoft.App/containerApps",
        ),
        (
            {"resource_id": BUS, "kind": "service_bus_messaging_units", "path": "sku.capacity"},
            "path",
            "is known of the kind",
        ),
        (
            {"resource_id": APP, "kind": "container_app_minimum", "remove_acknowledged": True},
            "remove_acknowledged",
            "the platform chooses which of the replicas go",
        ),
        ({"resource_id": APP, "remove_acknowledged": True}, "path", "give kind, or api_version and path"),
        ({"resource_id": APP, "path": "a..b", "api_version": "2024-01-01"}, "path", "found 'a..b'"),
        ({"resource_id": APP, "path": "a", "api_version": "latest"}, "api_version", "found 'latest'"),
        (
            {"resource_id": APP, "path": "a", "api_version": "2024-01-01", "step": 2, "allowed": [1]},
            "step",
            "either",
        ),
    ],
)
def test_wrong_options_are_named(options, option, text):
    made, problems = params(**options)

    assert made is None or problems
    assert text in problems[option]


CONFIG = """\
[targets.t]
scaler = "azure_resource"
kind = "service_bus_messaging_units"
resource_id = "{bus}"
maximum = {maximum}
{more}
[targets.t.metrics.backlog]
collector = "service_bus_queue"
connection = "AzureWebJobsStorage"
queue = "q"
[[targets.t.rules]]
type = "target_per_unit"
metric = "backlog"
target = 10
"""


def load(maximum=16, more=""):
    text = CONFIG.format(bus=BUS, maximum=maximum, more=more)
    return load_config(text, name="tidemark.toml", settings={}, plug_ins=registry).policies["t"]


def test_a_target_of_such_a_kind_is_read_with_its_unit():
    assert load().spec.facts.unit == "messaging units"


def test_a_budget_counts_in_hours_of_its_unit():
    assert load(more="[targets.t.budget]\nunit_hours_per_day = 48").spec.budget.unit == "unit_hours"
    with pytest.raises(
        ConfigError, match="counts messaging units; accepted are unit_hours_per_day and money_per_day"
    ):
        load(more="[targets.t.budget]\ninstance_hours_per_day = 48")


def test_bounds_between_which_nothing_can_be_set_are_a_problem():
    with pytest.raises(
        ConfigError, match="between minimum 5 and 7 lies no value that can be set: allowed are 4, 8"
    ):
        load(maximum=7, more="minimum = 5\nallowed = [4, 8]")


def test_facts_travel_with_the_policy_into_the_log():
    spec = load().spec

    assert msgspec.json.decode(msgspec.json.encode(spec), type=type(spec)) == spec


@pytest.mark.parametrize("removes", [False, True])
def test_only_who_removes_named_instances_needs_the_right_to(removes):
    machines = APP.replace("Microsoft.App/containerApps", "Microsoft.Compute/virtualMachineScaleSets")
    options = {"kind": "virtual_machine_scale_set", "remove_acknowledged": removes}
    params = AzureResourceScaler.Params(resource_id=machines, **options)

    asked = right_of(params).actions
    assert [each.removeprefix("Microsoft.Compute/virtualMachineScaleSets/") for each in asked] == [
        "write",
        *(["delete/action"] if removes else []),
    ]
    assert AzureResourceScaler.facts(params).removes_named is removes
