"""Whatever a document holds, it becomes a file that loads, or is refused in words."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from scaling.config.toml import parsed
from tests.support.scaling.imports import QUEUE, made_of, profile, rule, scaled_object, setting, trigger
from tidemark.commands.importing.common.given import UnreadableError
from tidemark.commands.importing.documents import objects_of

EXAMPLES = 40

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-5, 10**14)
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(
        [
            *(
                "PT5M",
                "0:05:00",
                "Increase",
                "GreaterThan",
                "LessThan",
                "Monday",
                "ExactCount",
                "PercentChangeCount",
            ),
            *(
                "Total",
                "Count",
                "0 8 * * 1-5",
                "0 0 24 12 *",
                "2026-12-24T18:00:00Z",
                "W. Europe Standard Time",
            ),
            *(
                "[parameters('x')]",
                "a ?? 2",
                "\ud800",
                "a\x7fb",
                "100",
                "0",
                "1.5",
                "cron",
                "azure-queue",
                "Value",
            ),
        ]
    )
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def places(value, path=()):
    """The paths to all values within one."""
    yield path
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, inner in entries:
        yield from places(inner, (*path, key))


WEEKLY = {
    "frequency": "Week",
    "schedule": {"timeZone": "UTC", "days": ["Monday"], "hours": [8], "minutes": [0]},
}
FIXED = {"timeZone": "UTC", "start": "2026-12-24T18:00:00", "end": "2026-12-26T06:00:00"}
WHOLE = [
    setting(
        profile(), profile("week", "2", "5", recurrence=WEEKLY), profile("fixed", "3", "4", fixedDate=FIXED),
        notifications=[{"email": {"customEmails": ["a@b.test"]}, "webhooks": [{"serviceUri": "https://a.test/t0ken"}]}],
    ),
    setting(
        profile(rules=[rule(dimensions=[{"DimensionName": "a", "Operator": "Equals", "Values": ["b"]}]), rule("Increase", 90, action={"value": "2"}),
                       rule("Decrease", 30), rule("Decrease", 9, metricName="MessageCount", metricResourceUri=QUEUE)])
    ),
    scaled_object(
        trigger(name="a"), trigger("cron", metadata={"start": "0 8 * * 1-5", "end": "0 18 * * 1-5", "desiredReplicas": "3"}),
        trigger("prometheus", metadata={"serverAddress": "https://p.test", "query": "up", "threshold": "2"}),
        fallback={"failureThreshold": 3, "replicas": 6}, minReplicaCount=1, cooldownPeriod=300, pollingInterval=60,
        advanced={"horizontalPodAutoscalerConfig": {"behavior": {"scaleDown": {"policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}]}}}},
    ),
    scaled_object(trigger(name="a"), cooldownPeriod=300, pollingInterval=60, advanced={"scalingModifiers": {"formula": "a * 2", "target": "4"}}),
    scaled_object(
        trigger("azure-eventhub", metadata={"eventHubName": "h", "eventHubNamespace": "ns", "consumerGroup": "g", "blobContainer": "c",
                                            "checkpointStrategy": "blobMetadata", "storageAccountName": "s", "cloud": "Private",
                                            "serviceBusEndpointSuffix": "bus.test", "storageEndpointSuffix": "blob.test", "other": "x"}),
        trigger("azure-monitor", metadata={"resourceURI": "Microsoft.Cache/redis/r", "subscriptionId": "11111111-2222-3333-4444-555555555555",
                                           "resourceGroupName": "rg", "metricName": "hits", "metricNamespace": "a/b", "metricFilter": "Shard eq '1'",
                                           "metricAggregationType": "Total", "metricAggregationInterval": "0:1:0", "targetValue": "5"}),
        trigger("metrics-api", metadata={"url": "https://a.test/x", "valueLocation": "a.0.b", "targetValue": "5"}),
        trigger("azure-queue", metadata={"queueName": "q", "accountName": "shop", "queueLength": "5", "activationQueueLength": "2"}),
        trigger(metadata={"queueName": "^a-.*", "useRegex": "true", "operation": "max", "connectionFromEnv": "BUS"}),
    ),
]  # fmt: skip


@st.composite
def changed(draw):
    """A good document of which one to three values are something else."""
    document = json.loads(json.dumps(draw(st.sampled_from(WHOLE))))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(sorted(places(document), key=str)[1:] or [()]))
        holder = document
        for key in path[:-1]:
            holder = holder[key]
        if path:
            holder[path[-1]] = draw(VALUES)
    return document


@settings(max_examples=EXAMPLES, deadline=None)
@given(changed() | VALUES, st.sampled_from(["", "https://x.test", WHOLE[0]["targetResourceUri"]]))
def test_whatever_a_document_holds_it_becomes_a_file_that_loads_or_is_refused_in_words(document, resource_id):
    try:
        made, policies, _ = made_of(document, resource_id=resource_id, linted=False)
    except UnreadableError as error:
        told = str(error)
    else:
        told = "a file"
        made.text.encode()
        assert set(parsed(made.text)["targets"]) == set(policies)
    assert told.isprintable()


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.binary(max_size=80)
    | st.text(st.sampled_from("{}[]:-&*a1 \n\"'!|>%@`,?\t"), max_size=60).map(str.encode)
)
def test_bytes_of_any_kind_are_objects_or_refused_in_words(data):
    try:
        told = f"{len(objects_of(data, 'x'))} objects"
    except UnreadableError as error:
        told = str(error)
    assert told.isprintable()
