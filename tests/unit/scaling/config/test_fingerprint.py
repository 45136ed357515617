"""What of a metric's table has a part in its fingerprint, of every collector: tests/unit/scaling/service/test_other_queue.py says what it is for."""

import pytest
from msgspec import Struct

from scaling.config.policy_file import load_config
from scaling.service import registry

BUS = "Endpoint=sb://acme.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=a2V5"
STORAGE = "DefaultEndpointsProtocol=https;AccountName=acme;AccountKey=a2V5;EndpointSuffix=core.windows.net"
STORES = {"Store": STORAGE, "Store2": STORAGE.replace("acme", "other"), "AzureWebJobsStorage": STORAGE}
SETTINGS = {
    **STORES,
    "Bus": BUS,
    "Bus2": BUS.replace("acme", "other"),
    "Hub": BUS,
    "TOKEN": "secret-1",
    "TENANT": "team-a",
    "CALENDAR": "https://calendar.example/secret.ics",
}
ACCOUNT = "/subscriptions/00000000-0000-0000-0000-000000000002/resourceGroups/g/providers/Microsoft.Storage/storageAccounts/acme"
GUID = "00000000-0000-0000-0000-000000000001"

TABLES = {
    "service_bus_queue": 'connection = "Bus"\nqueue = "orders"',
    "service_bus_subscription": 'connection = "Bus"\ntopic = "orders"\nsubscription = "eu"',
    "event_hub_lag": 'connection = "Hub"\nevent_hub = "flights"',
    "storage_queue": 'connection = "Store"\nqueue = "orders"',
    "consumer_telemetry": 'connection = "Store"\nconsumer = "flights"\ncount = "ru_per_s"',
    "azure_monitor": f'resource_id = "{ACCOUNT}"\nmetric = "UsedCapacity"\naggregation = "average"',
    "log_query": f'workspace = "{GUID}"\nquery = "T | count"',
    "prometheus": 'url = "https://metrics.example"\nquery = "sum(jobs)"\nheaders = { Authorization = "TOKEN", X-Scope-OrgID = "TENANT" }',
    "http_json": 'url = "https://metrics.example/jobs"\npath = "waiting"\nheaders = { x-api-key = "TOKEN" }',
    "calendar": 'url_setting = "CALENDAR"',
}
"""A table of each collector, without its key `collector`."""

SAME = [
    ("service_bus_queue", "", 'every = "5m"', {}),
    ("service_bus_queue", "", "", {"Bus": BUS.replace("a2V5", "bmV3")}),
    ("service_bus_queue", "", "", {"Bus": "", "Bus__fullyQualifiedNamespace": "acme.servicebus.windows.net"}),
    ("service_bus_queue", "", 'window = "20m"\nunit = "orders"\nmin_samples = 3\nfailures_allowed = 2', {}),
    ("service_bus_subscription", "", 'count = "active"', {}),
    ("event_hub_lag", "", 'consumer_group = "$Default"\nno_checkpoint = "zero"', {}),
    ("event_hub_lag", "", 'storage = "Store"', {}),
    ("storage_queue", "", 'processed_within = "2h"', {}),
    (
        "storage_queue",
        "",
        "",
        {"Store": "", "Store__queueServiceUri": "https://acme.queue.core.windows.net/"},
    ),
    ("consumer_telemetry", "", 'stale_after = "90s"', {}),
    ("azure_monitor", "", 'grain = "60s"\ndelay = "5m"\nregion = "westeurope"\ngrains = 3', {}),
    ("azure_monitor", f'resource_id = "{ACCOUNT}"', f'resource_id = "{ACCOUNT.upper()}/"', {}),
    ("log_query", "", 'timespan = "1h"\ndelay = "2m"\nempty = 0', {}),
    ("prometheus", "", "empty = 0", {"TOKEN": "secret-2"}),
    ("http_json", "", "empty = 0", {"TOKEN": "secret-2"}),
]
OTHER = [
    ("service_bus_queue", "orders", "bills", {}),
    ("service_bus_queue", "Bus", "Bus2", {}),
    ("service_bus_queue", "", "", {"Bus": BUS.replace("acme", "other")}),
    ("service_bus_queue", "", 'count = "scheduled"', {}),
    ("service_bus_queue", "orders", "orders*", {}),
    ("service_bus_subscription", "eu", "us", {}),
    ("service_bus_subscription", '"orders"', '"bills"', {}),
    ("event_hub_lag", "flights", "bookings", {}),
    ("event_hub_lag", "", 'consumer_group = "other"', {}),
    ("event_hub_lag", "", 'storage = "Store2"', {}),
    ("event_hub_lag", "", 'container = "other"', {}),
    ("event_hub_lag", "", "", {"AzureWebJobsStorage": SETTINGS["Store2"]}),
    ("storage_queue", "orders", "bills", {}),
    ("storage_queue", "Store", "Store2", {}),
    ("consumer_telemetry", "flights", "bookings", {}),
    ("azure_monitor", "UsedCapacity", "Transactions", {}),
    ("azure_monitor", "acme", "other", {}),
    ("azure_monitor", "", 'grain = "5m"', {}),
    ("azure_monitor", "", 'dimensions = { ApiName = "PutBlob" }', {}),
    ("log_query", "T | count", "U | count", {}),
    ("prometheus", "jobs", "orders", {}),
    ("prometheus", "", "", {"TENANT": "team-b"}),
    ("http_json", "/jobs", "/orders", {}),
    ("http_json", "waiting", "running", {}),
    ("http_json", "", "counter = true", {}),
    ("calendar", "", "", {"CALENDAR": "https://calendar.example/other.ics"}),
]


def fingerprint(kind: str, was: str = "", becomes: str = "", **settings: str) -> str:
    table = TABLES[kind].replace(was, becomes) if was else f"{TABLES[kind]}\n{becomes}"
    text = f"""
[targets.plan]
scaler = "advice"
maximum = 10
rules = [{{ type = "threshold", metric = "m", scale_out_above = 500, scale_in_below = 100 }}]
[targets.plan.metrics.m]
collector = "{kind}"
{table}
"""
    config = load_config(text, name="tidemark.toml", settings=SETTINGS | settings, plug_ins=registry)
    return config.policies["plan"].spec.metrics["m"].fingerprint


@pytest.mark.parametrize(("kind", "was", "becomes", "settings"), SAME)
def test_how_a_metric_is_read_has_no_part_in_its_fingerprint(kind, was, becomes, settings):
    assert fingerprint(kind, was, becomes, **settings) == fingerprint(kind)


@pytest.mark.parametrize(("kind", "was", "becomes", "settings"), OTHER)
def test_what_a_metric_reads_decides_its_fingerprint(kind, was, becomes, settings):
    assert fingerprint(kind, was, becomes, **settings) != fingerprint(kind)


def test_every_collector_gives_another_fingerprint():
    assert set(TABLES) == set(registry.COLLECTORS) - {
        "target_capacity"
    }  # which has one option, what it reads
    assert len({fingerprint(kind) for kind in TABLES}) == len(TABLES)


def test_a_collector_of_ones_own_counts_as_it_is_written():
    name = f"{__name__}:Own"
    TABLES[name] = 'place = "here"'
    try:
        assert fingerprint(name) != fingerprint(name, "here", "there")
        assert len(fingerprint(name)) == 12
    finally:
        del TABLES[name]


class Own:
    """A collector of a user's, one of whose optional methods raises."""

    COUNTS = ("value",)
    DEFAULT_COUNT = "value"

    class Params(Struct, frozen=True):
        place: str

    @staticmethod
    def measured(params, settings):
        raise OSError("no answer")

    @staticmethod
    def entity(params):
        return params.place

    async def collect(self, *, now):
        raise NotImplementedError

    async def aclose(self):
        raise NotImplementedError
