"""What is pulled, from options, tidemark.toml and settings."""

import pytest

from scaling.config.policy_file import load_config
from scaling.service import registry
from tidemark.commands.history.choosing import KINDS, Options, chosen
from tidemark.commands.history.model import PullError, Source

SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
GROUP = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/rg"
PLAN = f"{GROUP}/providers/Microsoft.Web/serverfarms/plan"
BUS = f"{GROUP}/providers/Microsoft.ServiceBus/namespaces/contoso"
ACCOUNT = f"{GROUP}/providers/Microsoft.Storage/storageAccounts/store"
SETTINGS = {
    "Orders": "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=c2VjcmV0",
    "Hubs__fullyQualifiedNamespace": "sb://hubs.servicebus.windows.net/",
    "Store": "DefaultEndpointsProtocol=https;AccountName=store;AccountKey=c2VjcmV0;EndpointSuffix=core.windows.net",
    "Other__queueServiceUri": "https://other.queue.core.windows.net",
    "Emulator": "UseDevelopmentStorage=true",
    "Azurite": "AccountName=devstoreaccount1;AccountKey=c2VjcmV0;QueueEndpoint=http://127.0.0.1:10001/devstoreaccount1",
    "Local": "Endpoint=sb://localhost:5673;SharedAccessKeyName=a;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true",
}
METRICS = {
    "queue": 'collector = "service_bus_queue"\nconnection = "Orders"\nqueue = "orders"',
    "dead": 'collector = "service_bus_queue"\nconnection = "Orders"\nqueue = "orders"\ncount = "dead_letter"',
    "topic": 'collector = "service_bus_subscription"\nconnection = "Orders"\ntopic = "sales"\nsubscription = "s"',
    "lag": 'collector = "event_hub_lag"\nconnection = "Hubs"\nevent_hub = "flights"',
    "stored": 'collector = "storage_queue"\nconnection = "Store"\nqueue = "jobs"',
    "stored_by_identity": 'collector = "storage_queue"\nconnection = "Other"\nqueue = "jobs"',
    "emulated": 'collector = "storage_queue"\nconnection = "Emulator"\nqueue = "jobs"',
    "azurite": 'collector = "storage_queue"\nconnection = "Azurite"\nqueue = "jobs"',
    "local": 'collector = "service_bus_queue"\nconnection = "Local"\nqueue = "orders"',
    "charge": 'collector = "consumer_telemetry"\nconnection = "Store"\nconsumer = "c"\ncount = "consumers"',
}


def policies(*metrics, scaler=f'scaler = "app_service_plan"\nresource_id = "{PLAN}"'):
    tables = "\n".join(f"[targets.plan.metrics.{name}]\n{METRICS[name]}" for name in metrics)
    rule = f'[[targets.plan.rules]]\ntype = "threshold"\nmetric = "{metrics[0]}"\nscale_out_above = 500\nscale_in_below = 50'
    text = f"[targets.plan]\n{scaler}\nmaximum = 5\n{tables}\n{rule}"
    config = load_config(text, name="tidemark.toml", settings=SETTINGS, plug_ins=registry)
    return {name: policy.spec for name, policy in config.policies.items()}


def choose(*metrics, target="plan", **options):
    return chosen(Options(target=target, **options), policies(*metrics) if metrics else {}, SETTINGS)


@pytest.mark.parametrize(
    ("metric", "source", "arrivals"),
    [
        ("queue", "contoso/orders", Source(BUS, "IncomingMessages", "total", "EntityName eq 'orders'")),
        ("topic", "contoso/sales", Source(BUS, "IncomingMessages", "total", "EntityName eq 'sales'")),
        (
            "lag",
            "hubs/flights",
            Source(
                f"{GROUP}/providers/Microsoft.EventHub/namespaces/hubs",
                "IncomingMessages",
                "total",
                "EntityName eq 'flights'",
            ),
        ),
        (
            "stored",
            "store/*",
            Source(
                f"{ACCOUNT}/queueServices/default",
                "Transactions",
                "total",
                "ApiName eq 'PutMessage' and ResponseType eq 'Success'",
            ),
        ),
    ],
)
def test_a_metric_names_its_entity_and_its_connection_the_namespace(metric, source, arrivals):
    wanted = choose(metric)

    assert (wanted.target, wanted.source, wanted.arrivals) == ("plan", source, arrivals)
    assert wanted.plan == Source(PLAN, "CpuPercentage", "average", "Instance eq '*'")


def test_every_collector_of_a_queue_has_its_metric():
    of_anything = {
        "azure_monitor",
        "calendar",
        "http_json",
        "log_query",
        "prometheus",
        "consumer_telemetry",
        "target_capacity",
    }

    assert set(KINDS) == set(registry.COLLECTORS) - of_anything


def test_what_the_numbers_are_not_is_noted():
    (account,) = choose("stored").notes
    (topic,) = choose("topic").notes

    assert "not of one queue" in account
    assert "those of the topic 'sales'" in topic
    assert choose("queue").notes == ()


def test_a_storage_account_is_known_by_identity_too():
    assert choose("stored_by_identity").source == "other/*"


def test_two_metrics_of_one_queue_need_no_choice_and_two_queues_do():
    assert choose("queue", "dead", "charge").source == "contoso/orders"
    assert choose("queue", "lag", metric="lag").source == "hubs/flights"
    with pytest.raises(
        PullError,
        match=r"watches 2 entities; give --metric: queue \(queue orders\), lag \(event hub flights\)",
    ):
        choose("queue", "lag")


def test_options_win_over_the_configuration():
    other = BUS.replace("rg", "elsewhere").replace("contoso", "fabrikam")

    wanted = choose("queue", resource_id=other, entity="invoices", plan_id=PLAN.upper())

    assert wanted.source == "fabrikam/invoices"
    assert wanted.plan.resource_id.endswith("/PLAN")
    assert choose("queue", instances=False).plan is None


def test_without_a_configuration_options_say_all():
    wanted = choose(target="anything", resource_id=BUS, entity="orders")

    assert (wanted.target, wanted.source, wanted.plan) == ("anything", "contoso/orders", None)


@pytest.mark.parametrize(
    ("metrics", "options", "told"),
    [
        ((), {}, r"--target: found 'plan', and there is no tidemark.toml .* give --resource-id"),
        (("queue",), {"target": "plam"}, "did you mean 'plan'"),
        (("queue",), {"metric": "no"}, "--metric: found 'no', accepted are the metrics of plan: queue"),
        (("queue", "charge"), {"metric": "charge"}, "--metric: found 'charge', read by consumer_telemetry"),
        (("charge",), {}, "has no metric of a queue, topic or event hub; give --resource-id"),
        (("emulated",), {}, "--resource-id is missing: .* of the connection Emulator"),
        (("azurite",), {}, "--resource-id is missing: .* of the connection Azurite"),
        (("local",), {}, "--resource-id is missing: .* of the connection Local"),
        ((), {"resource_id": BUS}, "--entity is missing"),
        ((), {"resource_id": BUS, "entity": "orders-*"}, r"--entity is missing: 'orders-\*' is a pattern"),
        ((), {"resource_id": "contoso"}, "--resource-id: found 'contoso'; accepted is the full resource id"),
        ((), {"resource_id": PLAN}, "--resource-id: found a resource of type Microsoft.Web/serverfarms"),
        (("lag",), {"resource_id": BUS}, "read by event_hub_lag; accepted is Microsoft.EventHub/namespaces"),
        (("queue",), {"plan_id": BUS}, "--plan-id: found a resource of type Microsoft.ServiceBus/namespaces"),
    ],
)  # fmt: skip
def test_what_cannot_be_pulled_names_the_option(metrics, options, told):
    with pytest.raises(PullError, match=told):
        choose(*metrics, **options)


def test_a_connection_without_settings_is_named_and_no_secret_is_told():
    spec = policies("queue")

    with pytest.raises(PullError, match=r"no Service Bus connection 'Orders'.*or give --resource-id"):
        chosen(Options(target="plan"), spec, {})
    with pytest.raises(PullError) as told:
        chosen(Options(target="plan"), spec, {"Orders": "SharedAccessKey=c2VjcmV0"})
    assert "c2VjcmV0" not in str(told.value)


def test_an_account_needs_no_entity_and_what_is_below_a_resource_is_none_of_them():
    assert choose(target="any", resource_id=ACCOUNT).source == "store/*"
    assert choose(target="any", resource_id=f"{ACCOUNT}/queueServices/default").source == "store/*"
    for below in (f"{ACCOUNT}/queueServices/default/queues/jobs", f"{BUS}/queues/orders"):
        with pytest.raises(PullError, match=r"accepted are Microsoft\.ServiceBus/namespaces"):
            choose(target="any", resource_id=below, entity="orders")
    with pytest.raises(PullError, match="--entity is missing"):
        choose(target="any", resource_id=BUS)
