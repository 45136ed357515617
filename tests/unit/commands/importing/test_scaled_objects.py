"""ScaledObjects of KEDA: bounds, triggers, the behavior of the HPA, and what is told of the rest."""

import re
import sys
from datetime import UTC, datetime, timedelta

import pytest

from scaling.schedules import ncrontab
from tests.support.scaling.imports import GROUP, PLAN, made_of, scaled_object, trigger
from tests.support.scaling.steady_views import rule, view
from tidemark.commands.importing.common.given import UnreadableError
from tidemark.commands.importing.documents import objects_of
from tidemark.commands.importing.keda.crons import floors_of


def notes(made):
    return " | ".join(note for each in made.notes.values() for note in each)


def spec_of(*triggers, resource_id="", **spec):
    return made_of(scaled_object(*triggers, **spec), resource_id=resource_id)[1]["worker"].spec


def metadata(kind, **values):
    return trigger(kind, metadata=values)


@pytest.mark.parametrize(
    ("given", "collector", "options"),
    [
        (metadata("azure-servicebus", queueName="q", connectionFromEnv="BUS"), "service_bus_queue", {"connection": "BUS", "queue": "q"}),
        (metadata("azure-servicebus", queueName="^orders-.*", namespace="sb", useRegex="true", operation="max"), "service_bus_queue",
         {"queue": "orders-*", "combine": "max"}),
        (metadata("azure-servicebus", topicName="t", subscriptionName=r"a\.b.c$", namespace="sb", useRegex="true"), "service_bus_subscription",
         {"subscription": "*a.b?c", "combine": "sum"}),
        (metadata("azure-servicebus", topicName="t", subscriptionName="s", namespace="sb"), "service_bus_subscription",
         {"connection": "Sb", "topic": "t", "subscription": "s"}),
        (metadata("azure-queue", queueName="work", accountName="shop"), "storage_queue", {"connection": "Shop", "queue": "work"}),
        (metadata("azure-eventhub", eventHubName="h", eventHubNamespace="ns", consumerGroup="g", storageConnectionFromEnv="STORE",
                  checkpointStrategy="blobMetadata", blobContainer="c", unprocessedEventThreshold="100"), "event_hub_lag",
         {"connection": "Ns", "event_hub": "h", "consumer_group": "g", "storage": "STORE", "container": "c", "layout": "blob_metadata", "target": 100}),
        (metadata("azure-eventhub", eventHubName="h", connectionFromEnv="HUB", storageConnectionFromEnv="STORE"), "event_hub_lag",
         {"container": "azure-webjobs-eventhub", "layout": "functions"}),
        (metadata("prometheus", serverAddress="https://p.test", query="sum(x)", threshold="5"), "prometheus", {"url": "https://p.test", "query": "sum(x)"}),
        (metadata("metrics-api", url="https://a.test/x", valueLocation="tasks.0.count", targetValue="5"), "http_json",
         {"url": "https://a.test/x", "path": "tasks[0].count"}),
        (metadata("azure-monitor", resourceURI="Microsoft.Cache/redis/r", subscriptionId="11111111-2222-3333-4444-555555555555",
                  resourceGroupName="rg", metricName="hits", metricFilter="Shard eq '1'", metricAggregationType="Total",
                  metricAggregationInterval="0:1:0", targetValue="5"), "azure_monitor",
         {"resource_id": f"{GROUP}/Microsoft.Cache/redis/r", "metric": "hits", "aggregation": "total", "grain": "1m", "dimensions": {"Shard": "1"}}),
        (metadata("azure-monitor", resourceURI="Microsoft.Cache/redis/r", subscriptionId="11111111-2222-3333-4444-555555555555",
                  resourceGroupName="rg", metricName="hits", metricNamespace="Own/Custom", metricAggregationInterval="0:2:0", targetValue="5"),
         "azure_monitor", {"namespace": "Own/Custom", "grain": "1m", "aggregation": "average"}),
    ],
)  # fmt: skip
def test_each_trigger_becomes_a_metric_and_its_target(given, collector, options):
    spec = spec_of(given, minReplicaCount=1)

    (metric,) = spec.metrics.values()
    assert metric.collector == collector
    assert options.items() <= metric.options.items()
    assert [each.type for each in spec.rules] == ["target_per_unit"]


def test_bounds_pace_and_fallback_are_those_of_the_object():
    behavior = {
        "scaleUp": {"stabilizationWindowSeconds": 30, "selectPolicy": "Min", "policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}]},
        "scaleDown": {"selectPolicy": "Disabled", "tolerance": 0.05},
    }  # fmt: skip
    spec = spec_of(
        minReplicaCount=2,
        maxReplicaCount=30,
        pollingInterval=120,
        advanced={"horizontalPodAutoscalerConfig": {"behavior": behavior}},
        fallback={"failureThreshold": 3, "replicas": 6, "behavior": "currentReplicasIfHigher"},
    )

    assert (spec.minimum, spec.maximum, spec.interval) == (2, 30, 120)
    assert (spec.out.stabilization, spec.out.select, spec.inward.select) == (30, "min", "disabled")
    assert [(each.kind, each.amount, each.period) for each in spec.out.rates] == [("units", 2, 60)]
    assert (spec.inward.stabilization, spec.fallback.capacity, spec.fallback.after) == (300, 6, 360)
    assert spec.rules[0].options["tolerance"] == 0.05


def test_zero_is_left_at_the_activation_value_and_entered_after_the_cooldown():
    metadata = {"queueName": "q", "namespace": "sb", "messageCount": "5", "activationMessageCount": "3"}
    spec = spec_of(trigger(metadata=metadata), cooldownPeriod=600)

    assert spec.minimum == 0
    assert [each.type for each in spec.rules] == ["target_per_unit", "activation"]
    assert spec.rules[1].options == {"metric": "backlog", "above": 3}
    assert spec.metrics["backlog"].window.span == 600


def test_a_resource_takes_the_place_of_the_deployment():
    spec = spec_of(resource_id=PLAN)

    assert (spec.scaler, spec.minimum) == ("app_service_plan", 1)
    assert spec_of().scaler == "advice"


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("queue + hub * 2", "ceil((queue + hub * 2) / 10)"),
        ("max([queue, hub])", None),
        ("queue ?? hub ?? 3", None),
        ("(queue ?? 3) + hub", "ceil(((default(queue, 3)) + hub) / 10)"),
        ("queue > 5 ? 1 : 2", None),
        ("other + 1", None),
    ],
)
def test_a_formula_becomes_an_expression_or_is_refused(formula, expected):
    triggers = [trigger(name="queue"), trigger("azure-queue", name="hub", metadata={"queueName": "hub", "accountName": "a"})]  # fmt: skip
    given = scaled_object(*triggers, minReplicaCount=1, advanced={"scalingModifiers": {"formula": formula, "target": "10"}})  # fmt: skip
    if expected is None:
        with pytest.raises(UnreadableError, match="formula"):
            made_of(given)
    else:
        assert made_of(given)[1]["worker"].spec.rules[0].options == {"desired": expected}


CRON = {"timezone": "Europe/Amsterdam", "start": "0 8 * * 1-5", "end": "0 18 * * 1-5", "desiredReplicas": "4"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (scaled_object(), "what is scaled: Deployment worker is no resource of Azure"),
        (scaled_object(), "set COLLECT_SCHEDULE to '*/15 * * * * *'"),
        (scaled_object(initialCooldownPeriod=60), "initialCooldownPeriod: a new target is not treated differently"),
        (scaled_object(pollingInterval=90), "an interval is a multiple of a minute"),
        (scaled_object(minReplicaCount=2, idleReplicaCount=0), "idleReplicaCount 0 with minReplicaCount 2"),
        (scaled_object(trigger(authenticationRef={"name": "auth"})), "TriggerAuthentication auth of trigger azure-servicebus"),
        (scaled_object(trigger(), trigger("cpu")), "trigger cpu: the cpu of pods is not read"),
        (scaled_object(trigger(), trigger("kafka")), "trigger kafka: there is no collector for it"),
        (scaled_object(trigger(), trigger(metadata={"queueName": "a|b", "useRegex": "true"})), "'a|b' with operation sum is not carried over"),
        (scaled_object(trigger(), trigger(metadata={"queueName": "a", "useRegex": "true", "operation": "avg"})), "operation avg is not carried over"),
        (scaled_object(metadata("prometheus", serverAddress="https://p.test", query="x", threshold="1", customHeaders="X-Scope-OrgID=a", unsafeSsl="true")),
         "metadata of trigger prometheus: customHeaders, unsafeSsl are not carried over"),
        (scaled_object(metadata("azure-queue", queueName="work", accountName="shop", identityId="x")), "trigger azure-queue: identityId is not carried over"),
        (scaled_object(metadata("azure-monitor", resourceURI="Microsoft.Cache/redis/r", metricName="hits", metricAggregationInterval="0:2:0", targetValue="5")),
         "metricAggregationInterval of trigger azure-monitor: 2m is read as 1m"),
        (scaled_object(cooldownPeriod=100_000), "cooldownPeriod 100000s: a metric's window takes its place, 12h at most"),
        (scaled_object(trigger(), metadata("metrics-api", format="xml")), "only answers in JSON are read"),
        (scaled_object(metadata("metrics-api", url="http://in.cluster/x?key=t0ken", targetValue="1")), "addresses are asked over TLS"),
        (scaled_object(metadata("prometheus", serverAddress="https://p.test", query="x", threshold="1")), "empty = 0 brings that back"),
        (scaled_object(fallback={"replicas": 200}), "fallback behavior static"),
        (scaled_object(fallback={"replicas": 200}), "fallback replicas 200: a fallback is within the bounds, 0 to 10"),
        (scaled_object(trigger(), metadata("cron", **{**CRON, "desiredReplicas": "0"})), "found desiredReplicas 0"),
        (scaled_object(trigger(), metadata("cron", **{**CRON, "timezone": "Mars"})), "found time zone 'Mars'"),
        ({**scaled_object(), "metadata": {"name": "worker", "annotations": {"autoscaling.keda.sh/paused-replicas": "3"}}},
         "paused-replicas: 3: an order is no policy: give it by `tidemark order override worker 3`"),
        ({**scaled_object(), "metadata": {"name": "worker", "annotations": {"autoscaling.keda.sh/paused": "true"}}}, "give it by `tidemark order pause worker`"),
        ({**scaled_object(), "metadata": {"name": "worker", "annotations": {"autoscaling.keda.sh/paused-scale-in": "true"}}},
         'select = "disabled" in [targets.worker.in] does the same'),
        (scaled_object(minReplicaCount=20), "maxReplicaCount 10 with minReplicaCount 20: KEDA accepts no maximum below the minimum; 20 is written for both"),
    ],
)  # fmt: skip
def test_what_is_not_the_same_is_told_and_the_file_loads(given, said):
    made, _, _ = made_of(given)

    assert said in notes(made)
    assert "t0ken" not in made.text


@pytest.mark.parametrize(
    ("kind", "given", "settings"),
    [
        ("azure-queue", {"queueName": "work", "accountName": "shop", "cloud": "AzureUSGovernmentCloud"},
         {"Shop__queueServiceUri": "https://shop.queue.core.usgovcloudapi.net/"}),
        ("azure-servicebus", {"queueName": "q", "namespace": "sb", "cloud": "AzureChinaCloud"}, {"Sb__fullyQualifiedNamespace": "sb.servicebus.chinacloudapi.cn"}),
        ("azure-servicebus", {"queueName": "q", "namespace": "sb", "cloud": "Private", "endpointSuffix": "servicebus.airgap.example"},
         {"Sb__fullyQualifiedNamespace": "sb.servicebus.airgap.example"}),
        ("azure-servicebus", {"queueName": "q", "namespace": "sb", "cloud": "AzurePublicCloud"}, {"Sb__fullyQualifiedNamespace": "sb.servicebus.windows.net"}),
        ("azure-eventhub", {"eventHubName": "h", "eventHubNamespace": "ns", "storageAccountName": "shop", "blobContainer": "c", "checkpointStrategy": "goSdk",
                            "cloud": "AzureUSGovernmentCloud"},
         {"Ns__fullyQualifiedNamespace": "ns.servicebus.usgovcloudapi.net", "Shop__blobServiceUri": "https://shop.blob.core.usgovcloudapi.net/"}),
    ],
)  # fmt: skip
def test_the_hosts_of_an_identity_are_those_of_the_cloud(kind, given, settings):
    made, _, _ = made_of(scaled_object(metadata(kind, **given)))

    assert made.settings == settings
    assert "metadata" not in notes(made)


def test_a_cron_trigger_is_a_floor_and_without_another_the_rest_of_the_time_has_the_minimum():
    spec = spec_of(metadata("cron", **CRON), minReplicaCount=1)

    assert [each.options for each in spec.rules] == [
        {"desired": "minimum"},
        {"time_zone": "Europe/Amsterdam", "periods": [{"days": "mon-fri", "from": "08:00", "to": "18:00", "floor": 4}]},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("0 8 * * 1-5", "0 18 * * 1-5"),
        ("0 22 * * *", "0 6 * * *"),
        ("0 18 * * 5", "30 6 * * 1"),
        ("0 8 * * 1", "0 18 * * *"),  # inside while the next end comes before the next start
        ("0 8,13 * * MON-FRI", "0 12,17 * * MON-FRI"),
        ("0 8 * * 7", "0 9 * * 0"),
        ("0 */6 * * 2", "30 */6 * * 2"),
        ("0 8 * * 1", "0 8,20 * * 1"),
    ],
)
def test_a_cron_trigger_of_a_week_is_inside_when_kedas_rule_says_so(start, end):
    subject = rule("schedule", periods=floors_of(start, end, 3))
    starts, ends = (ncrontab.parse(re.sub(r"\b7\b", "0", text)) for text in (start, end))
    for step in range(7 * 96):
        at = datetime(2026, 11, 23, 0, 7, tzinfo=UTC) + timedelta(minutes=15 * step)
        inside = ends.next_after(at) < starts.next_after(at)
        assert (subject.evaluate(view(now=at.timestamp())).floor == 3) == inside, at


@pytest.mark.parametrize(
    ("start", "end", "inside", "outside"),
    [
        (
            "0 0 24 12 *",
            "0 6 2 1 *",
            ["12-24 00:00", "12-31 12:00", "01-02 05:59"],
            ["12-23 23:59", "01-02 06:00"],
        ),
        ("0 18 24 12 *", "0 0 25 12 *", ["12-24 18:00", "12-24 23:59"], ["12-24 17:59", "12-25 00:00"]),
        ("0 8 1 5 *", "0 9 1 5 *", ["05-01 08:59"], ["05-01 09:00", "05-01 07:59"]),
    ],
)
def test_a_cron_trigger_of_a_time_of_the_year_is_a_range_of_dates(start, end, inside, outside):
    subject = rule("schedule", periods=floors_of(start, end, 3))

    def floor(moment):
        return subject.evaluate(view(now=datetime.fromisoformat(f"2027-{moment}+00:00").timestamp())).floor

    assert [floor(each) for each in inside] == [3] * len(inside)
    assert [floor(each) for each in outside] == [None] * len(outside)


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        ("0 8 1 * *", "0 9 1 * *", "neither times of the week nor a time of the year"),
        ("0 8 1 5 1", "0 9 1 5 1", "either of a day of the month and a day of the week"),
        ("* * * * *", "0 9 * * *", "accepted are 48"),
        ("0 8 * * *", "0 8 * * *", "never apart from its start"),
        ("0 9 1 5 *", "0 8 1 5 *", "in this order"),
        ("@daily", "0 8 * * *", "has five fields"),
        ("0 8 * * L", "0 9 * * *", "day-of-week"),
    ],
)
def test_other_times_of_cron_are_refused_in_words(start, end, said):
    with pytest.raises(ValueError, match=said):
        floors_of(start, end, 3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (scaled_object(trigger("cpu")), "none of them can be carried over: trigger cpu: the cpu of pods"),
        ({**scaled_object(), "spec": {}}, "triggers of worker: found none$"),
        (scaled_object(trigger(metadata={"queueName": "${QUEUE}", "namespace": "sb"})), "queueName: found .*QUEUE.*; a variable is not replaced here"),
        (scaled_object(trigger(metadata={"queueName": "{{ .Values.queue }}", "namespace": "sb"})), "a template of Helm is not rendered here"),
        (scaled_object(minReplicaCount="#{least}#"), "minReplicaCount: found #.least.#; a number is accepted; a variable is not replaced"),
        ({**scaled_object(), "kind": "ScaledJob"}, "worker is a ScaledJob"),
        (scaled_object(trigger(metadata={"namespace": "sb"})), "metadata.queueName is missing"),
        (scaled_object(metadata("azure-monitor", resourceURI="r", metricName="hits", metricAggregationType="p95", targetValue="5")),
         "metricAggregationType: found p95; accepted are average"),
        (scaled_object(minReplicaCount="many"), "minReplicaCount: found many; a number is accepted"),
        (scaled_object(trigger(metadata={"queueName": "q", "messageCount": "0"})), "messageCount: found 0; a number above 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_its_place(given, said):
    with pytest.raises(UnreadableError, match=said):
        made_of(given)


YAML = """
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: worker}
spec:
  minReplicaCount: 1
  fallback: ~
  triggers:
  - type: azure-servicebus
    metadata: {queueName: on, namespace: sb, messageCount: "5"}
---
kind: Deployment
"""


def test_yaml_is_read_as_texts_so_that_on_is_a_name():
    _, policies, _ = made_of(*objects_of(YAML.encode(), "a.yaml"))

    assert policies["worker"].spec.metrics["backlog"].options["queue"] == "on"


def test_braces_of_other_objects_are_no_template_of_helm():
    rendered = (
        f"{YAML}---\n# {{{{ a comment }}}}\nkind: PrometheusRule\nsummary: '{{{{ $labels.pod }}}} is down'\n"
    )

    assert len(objects_of(rendered.encode(), "a.yaml")) == 3


def named(name, namespace, *triggers):
    return {**scaled_object(*triggers), "metadata": {"name": name, "namespace": namespace, "annotations": {"autoscaling.keda.sh/paused": "true"}}}  # fmt: skip


def test_each_of_two_objects_of_one_name_is_told_its_own_targets_name():
    made, _, _ = made_of(named("worker", "a"), named("worker", "b"))

    assert "`tidemark order pause worker`" in " ".join(made.notes["worker"])
    assert "`tidemark order pause worker-2`" in " ".join(made.notes["worker-2"])


def test_an_app_setting_stands_for_one_thing():
    public, other = (
        metadata("azure-servicebus", queueName="q", namespace=host)
        for host in ("sb", "sb.servicebus.usgovcloudapi.net")
    )
    first, second = (
        metadata("prometheus", serverAddress=f"http://{host}:9090", query="x", threshold="1")
        for host in ("a", "b")
    )
    unnamed = [
        trigger(metadata={"queueName": name}, authenticationRef={"name": f"auth-{name}"})
        for name in ("q", "r")
    ]
    made, policies, _ = made_of(
        named("w", "a", public, other, first, second, *unnamed), named("w", "b", first)
    )

    assert made.settings["Sb__fullyQualifiedNamespace"] == "sb.servicebus.windows.net"
    assert made.settings["Sb2__fullyQualifiedNamespace"] == "sb.servicebus.usgovcloudapi.net"
    options = [each.options for each in policies["w"].spec.metrics.values()]
    assert [each["connection"] for each in options if "connection" in each] == [
        "Sb",
        "Sb2",
        "WConnection",
        "WConnection2",
    ]
    assert "auth-r" in made.settings["WConnection2"]
    assert [line for line in made.text.split("\n") if line.startswith("url = ")] == [
        'url = "%WServerAddress%"', 'url = "%WServerAddress2%"', 'url = "%WServerAddress%"'
    ]  # fmt: skip


def test_a_variable_that_two_workloads_have_is_told_and_the_storage_of_the_app_is_kept():
    given = [
        metadata("azure-queue", queueName="work", connectionFromEnv=name)
        for name in ("STORE", "AzureWebJobsStorage")
    ]
    made, policies, _ = made_of(named("one", "a", *given), named("two", "a", *given))

    assert [each.options["connection"] for each in policies["two"].spec.metrics.values()] == [
        "STORE",
        "TwoAzureWebJobsStorage",
    ]
    assert "AzureWebJobsStorage" not in made.settings
    assert (
        "this app keeps its own state in AzureWebJobsStorage, so the app setting OneAzureWebJobsStorage takes its place"
        in " ".join(made.notes["one"])
    )
    assert "the app setting STORE: ScaledObject a/one reads a variable of this name, too" in " ".join(
        made.notes["two"]
    )
    assert "too" not in " ".join(made.notes["one"])


def test_a_resource_is_that_of_one_object():
    with pytest.raises(
        UnreadableError,
        match=r"^--resource-id: found one resource for 2 targets \(a, b\); a resource has one target",
    ):
        made_of(named("a", "shop"), named("b", "shop"), resource_id=PLAN)


def test_a_resource_that_cannot_be_scaled_is_told_as_such():
    made, _, _ = made_of(scaled_object(), resource_id=f"{GROUP}/Microsoft.Web/sites/shop")

    assert "Microsoft.Web/sites/shop is of a type that is not known here" in notes(made)
    assert "--resource-id" not in notes(made)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "kind: {{ .Values.kind }}",
            "a.yaml:1: found 'kind: {{ .Values.kind }}', a template of Helm; render it first",
        ),
        ("a: b\n  c: [", "a.yaml:2: is no YAML"),
        ("{ not json", "a.yaml: is no JSON"),
        ("a: &a [*a, *a]", None),
        ("b'\udcff", None),
        ("!!python/object/apply:os.system [id]", None),
    ],
)
def test_what_is_no_document_is_refused_in_words(text, said):
    with pytest.raises(UnreadableError, match=None if said is None else said.replace("{", r"\{")):
        made_of(*objects_of(text.encode(errors="surrogateescape"), "a.yaml"))


def test_without_the_package_yaml_asks_for_json(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)

    with pytest.raises(UnreadableError, match=r"Give JSON .*, or for YAML (.*yaml|make setup)"):
        objects_of(b"kind: ScaledObject", "a.yaml")
