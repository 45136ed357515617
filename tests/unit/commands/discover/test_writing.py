"""A first tidemark.toml: whatever was found, it is a file that lint accepts, and it changes nothing."""

import json
import tomllib

import pytest
from msgspec import structs

from scaling.analysis.lint import lint
from scaling.config.checks import Severity
from scaling.config.policy_file import load_config
from scaling.service import registry
from tidemark.commands.discover.command import not_read
from tidemark.commands.discover.found import Discovery, FoundSource, FoundTarget
from tidemark.commands.discover.writing import written

SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
GROUP = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{{}}/providers"
BUS = "sb-orders.servicebus.windows.net"


def plan(name="plan-orders", group="rg", size=2, most=30):
    return FoundTarget(
        "app_service_plan",
        f"{GROUP.format(group)}/Microsoft.Web/serverfarms/{name}",
        name,
        "plan",
        size,
        most,
    )


def queue(name, group="rg", host=BUS):
    scope = f"{GROUP.format(group)}/Microsoft.ServiceBus/namespaces/sb/queues/{name}"
    return FoundSource("service_bus_queue", scope, host, (name,))


def found(*targets, sources=(), **more):
    return Discovery(SUBSCRIPTION, targets, tuple(sources), **more)


def accepted(made, settings=None):
    """The policies of a file, which has no finding that is more than a note."""
    settings = {**(settings or {}), **made.settings}
    config = load_config(made.text, name="tidemark.toml", settings=settings, plug_ins=registry)
    told = [*config.findings, *(each for policy in config.policies.values() for each in lint(policy))]
    assert [each.text for each in told if each.severity is not Severity.NOTE] == []
    return {name: policy.spec for name, policy in config.policies.items()}


def test_each_target_gets_the_queue_with_the_nearest_name_and_stays_in_dry_run():
    plans = plan(), plan("plan-invoices"), plan("plan-billing-eu")
    queues = map(queue, ("invoices", "orders", "all-billing-of-the-shop", "plan-shipping-eu"))

    made = written(found(*plans, sources=queues), {})

    specs = accepted(made)
    assert (
        {name: spec.metrics["backlog"].options["queue"] for name, spec in specs.items()}
        == {
            "plan-orders": "orders",
            "plan-invoices": "invoices",
            "plan-billing-eu": "all-billing-of-the-shop",  # a word in common counts more than letters that are alike
        }
    )
    assert all(spec.dry_run for spec in specs.values())
    assert made.settings == {"SbOrders__fullyQualifiedNamespace": BUS}
    assert made.text.count("guess") >= 9
    assert "#   SbOrders__fullyQualifiedNamespace = sb-orders.servicebus.windows.net" in made.text


@pytest.mark.parametrize(
    ("source", "tells", "options"),
    [
        (
            queue("orders"),
            "oldest_age",
            {"count": "oldest_age", "concurrency": 16, "instances_of": "plan-orders"},
        ),
        (structs.replace(queue("orders"), partitioned=True), "oldest_age", {"count": "oldest_age"}),
        (structs.replace(queue("orders"), sessions=True), "outgoing", {"metric": "CompleteMessage"}),
        (FoundSource("service_bus_subscription", "/t", BUS, ("orders", "all"), True), "takes", None),
        (FoundSource("storage_queue", "/q", "s.queue.core.windows.net", ("work",)), "oldest_age", {}),
    ],
)
def test_the_rule_gets_the_best_that_tells_how_long_a_message_takes(source, tells, options):
    spec = accepted(written(found(plan(), sources=[source]), {}))["plan-orders"]

    (rule,) = spec.rules
    assert rule.type == "service_level"
    assert {"takes", "oldest_age", "outgoing"} & rule.options.keys() == {tells}
    if options is None:
        assert set(spec.metrics) == {"backlog"}
    else:
        metric = spec.metrics[rule.options[tells]]
        assert options.items() <= {"count": metric.count, **metric.options}.items()
        assert ("instances_of" in metric.options) == ("instances_of" in options)


def test_what_may_have_no_instance_is_scaled_to_zero():
    empty = structs.replace(plan(), size=0)

    spec = accepted(written(found(empty, sources=[queue("orders")]), {}))["plan-orders"]

    assert (spec.minimum, [rule.type for rule in spec.rules]) == (0, ["target_per_unit"])


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"Bus__fullyQualifiedNamespace": BUS.upper()}, "Bus"),
        ({"Bus": f"Endpoint=sb://{BUS}/;SharedAccessKeyName=a;SharedAccessKey=b"}, "Bus"),
    ],
)
def test_a_connection_that_is_there_is_used_by_its_name(settings, name):
    made = written(found(plan(), sources=[queue("orders")]), settings)

    assert made.settings == {}
    assert accepted(made, settings)["plan-orders"].metrics["backlog"].options["connection"] == name


def test_names_of_connections_are_not_taken_twice():
    hosts = ("orders.servicebus.windows.net", "orders.servicebus.chinacloudapi.cn")
    sources = [queue(name, host=host) for name, host in zip(("orders", "invoices"), hosts, strict=True)]

    made = written(found(plan(), plan("plan-invoices"), sources=sources), {"Orders__clientId": "x"})

    assert made.settings == {
        "Orders2__fullyQualifiedNamespace": hosts[0],
        "Orders3__fullyQualifiedNamespace": hosts[1],
    }


def test_all_kinds_are_written_with_what_they_can_go_by_and_other_backlogs_are_listed():
    app = f"{GROUP.format('rg')}/Microsoft.App/containerApps/shop"
    machines = f"{GROUP.format('rg')}/Microsoft.Compute/virtualMachineScaleSets/workers"
    bus = f"{GROUP.format('rg')}/Microsoft.ServiceBus/namespaces/sb"
    hubs = f"{GROUP.format('rg')}/Microsoft.EventHub/namespaces/eh"
    account = f"{GROUP.format('rg')}/Microsoft.DocumentDB/databaseAccounts/a"
    labels = (("DatabaseName", "d"), ("CollectionName", 'the "c"'))
    hub = FoundSource(
        "event_hub_lag", f"{bus}/eventhubs/flights/consumergroups/tidemark", BUS, ("flights", "tidemark")
    )
    storage = FoundSource("storage_queue", "/s/queues/work", "store.queue.core.windows.net", ("work",))

    made = written(
        found(
            FoundTarget("container_app_minimum", app, "shop", "app", 0, 30),
            FoundTarget("virtual_machine_scale_set", machines, "workers", "set", 2, 1000),
            FoundTarget("service_bus_messaging_units", bus, "sb", "namespace", 1, 16),
            FoundTarget("event_hubs_throughput_units", hubs, "eh", "namespace", 3, 40),
            FoundTarget(
                "cosmos_throughput",
                f"{account}/sqlDatabases/d/containers/c",
                *("d-c", "container", 1000, None, 400),
                labels,
            ),
            sources=[hub, storage],
            left_out=("plan free: F1 scales by itself, or not at all",),
            unread=("/x: 403",),
        ),
        {},
    )

    specs = accepted(made)
    assert {name: (spec.minimum, spec.maximum, spec.facts.unit) for name, spec in specs.items()} == {
        "shop": (0, 3, "replicas"),
        "workers": (1, 4, "instances"),
        "sb": (1, 3, "messaging units"),
        "eh": (1, 6, "throughput units"),
        "d-c": (400, 2000, "RU/s"),
    }
    assert all(spec.dry_run for spec in specs.values())
    utilization = specs["d-c"].metrics["utilization"]
    assert (utilization.collector, utilization.per_instance) == ("azure_monitor", True)
    assert utilization.options["resource_id"] == account
    assert utilization.options["dimensions"] == dict(labels)
    assert specs["eh"].metrics["incoming"].options["resource_id"] == hubs
    assert made.text.count("# To decide: ") == 3
    assert made.settings == {"Store__queueServiceUri": "https://store.queue.core.windows.net/"}
    listed = [line for line in made.text.splitlines() if line.startswith("#   ")]
    for words in ('event_hub = "flights"', "plan free", "/x: 403"):
        assert any(words in line for line in listed), words


def test_without_a_queue_a_schedule_is_a_beginning():
    specs = accepted(written(found(plan()), {}))

    assert [rule.type for rule in specs["plan-orders"].rules] == ["schedule"]


def test_the_same_name_in_two_groups_is_two_targets():
    specs = accepted(written(found(plan(), plan(group="other"), sources=[queue("orders")]), {}))

    assert set(specs) == {"plan-orders", "plan-orders-2"}


@pytest.mark.parametrize("name", ["a\nb", 'a"]\nscaler = "x', "å.b (c)", "#", "-" * 300])
def test_no_name_breaks_out_of_its_place(name):
    odd = 'q" [x]'
    made = written(found(plan(name), sources=[queue('q"\n[x]')], left_out=(f"plan {name}",)), {})

    assert len(written(found(plan(name)), {}).targets) == 1
    (target,) = tomllib.loads(made.text)["targets"].values()
    assert {metric["queue"] for metric in target["metrics"].values()} == {odd}
    text = made.text.replace(json.dumps(odd), '"orders"')
    load_config(
        text.replace(plan(name).resource_id, plan().resource_id)
        if plan(name).resource_id in text
        else "\n".join(
            f'resource_id = "{plan().resource_id}"' if line.startswith("resource_id") else line
            for line in text.splitlines()
        ),
        name="t",
        settings=made.settings,
        plug_ins=registry,
    )


def test_many_are_told_by_their_number():
    text = written(found(plan(), sources=[queue(f"q{n}") for n in range(1000)]), {}).text

    assert "and 800 more" in text


def test_nothing_to_scale_is_said_and_no_file_is_made_up():
    with pytest.raises(ValueError, match=r"can be scaled in subscription .*; plan free: F1 scales by itself"):
        written(found(sources=[queue("orders")], left_out=["plan free: F1 scales by itself"]), {})


def test_a_reason_for_which_nothing_could_be_read_is_told_once():
    assert list(not_read(["/a: no token: x", "/b: 403", "/c: no token: x"])) == [
        "/a and 1 more: no token: x",
        "/b: 403",
    ]
