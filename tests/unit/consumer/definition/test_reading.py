"""The consumer's file is read whole, or every problem is told with its place."""

import re
from pathlib import Path

import pytest

from consumer.config import read_config, read_settings
from consumer.definition.hub_settings import keys_of_settings
from consumer.definition.loading import find_hub, load_definition, only_hub
from consumer.definition.reading import read_definition
from consumer.formats import CsvOptions, DecoderName
from consumer.mapping.steps.routes import Mapper, RouteOptions
from consumer.mapping.steps.table import STEPS
from consumer.sinks.types import BUILT_IN, find_sink_type
from tidemark.foundation.app_settings import local_settings
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.settings_reader import ConfigError

ROOT = Path(__file__).parents[4]
SETTINGS = {
    "EventHubConnection": "Endpoint=sb://one.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b",
    "Other__fullyQualifiedNamespace": "two.servicebus.windows.net",
    "HASH_KEY": "k" * 16,
    "CosmosConnection__accountEndpoint": "https://x.documents.azure.com",
    "AzureWebJobsStorage": "DefaultEndpointsProtocol=https;AccountName=x;AccountKey=a2V5;EndpointSuffix=core.windows.net",
    "CONTAINER": "from-a-setting",
    "CONSUMER_FLUSH_AFTER": "3s",
    "EVENTHUB_NAME": "of-the-settings",
}
SINK = '[sinks.documents]\ntype = "cosmos"\ndatabase = "db"\ncontainer = "c"\n'
DELTA = '[sinks.rows]\ntype = "delta"\nuri = "az://lake/rows"\nconnection = "AzureWebJobsStorage"\n'
HUB = '[hubs.flights]\nhub = "flights"\n'


def read(text, settings=SETTINGS):
    return read_definition(f"version = 1\n{text}", settings, name="consumer.toml")


def problems(text, settings=SETTINGS):
    with pytest.raises(ConfigError) as error:
        read(text, settings)
    return [str(problem) for problem in error.value.problems]


def test_a_hub_has_its_own_settings_over_those_of_the_app():
    definition = read(
        f"""
        [hubs.flights]
        connection = "Other"
        hub = "flights"
        start = 2026-11-21T08:00:00Z
        checkpoint_every = "2s"
        high_events = 1_000
        coalesce = true
        rate = 2.5
        decode = {{ format = "csv", delimiter = ";" }}
        steps = [{{ hash = ["/mail"], key = "HASH_KEY" }}]
        [[hubs.flights.routes]]
        to = "other"
        [hubs.plain]
        hub = "flights"
        [[hubs.plain.routes]]
        to = "documents"
        {SINK}
        [sinks.other]
        type = "cosmos"
        database = "db"
        container = "%CONTAINER%"
        """
    )
    flights, plain = definition.hubs

    assert (flights.name, flights.config.hub, flights.config.hub_connection) == (
        "flights",
        "flights",
        "Other",
    )
    assert flights.config.policy.start == 1795248000.0
    assert (flights.config.limits.checkpoint_every, flights.config.limits.high_count) == (2.0, 1000)
    assert (flights.config.batches.flush_after, flights.config.batches.coalesce) == (3.0, True)
    assert (flights.config.rate, definition.rate) == (2.5, None)
    assert (flights.config.decoder, flights.config.decode) == (DecoderName.CSV, CsvOptions(delimiter=";"))
    assert isinstance(flights.mapper, Mapper)
    assert [(sink.name, sink.options.container) for sink in flights.sinks] == [("other", "from-a-setting")]
    assert plain.mapper is None
    assert (plain.config.limits.checkpoint_every, plain.config.hub_connection) == (5.0, "EventHubConnection")
    assert definition.doubts == ()


def test_the_app_settings_alone_are_one_hub():
    settings = {**SETTINGS, "COSMOS_DATABASE": "db", "COSMOS_CONTAINER": "c"}
    definition = load_definition(settings)

    assert [hub.config for hub in definition.hubs] == [read_config(settings)]
    assert (definition.hubs[0].sinks, definition.hubs[0].mapper, definition.is_file) == ((), None, False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["consumer.toml sinks: is missing; a table [sinks.NAME] for each sink is accepted", "consumer.toml hubs: is missing; a table [hubs.NAME] for each hub is accepted"]),
        (f"{SINK}{HUB}strat = 'latest'", ["consumer.toml:8 hubs.flights.strat: is not a setting here; did you mean 'start'?"]),
        (f"{SINK}{HUB}checkpoint_every = 'soon'\nhigh_events = 0", ["consumer.toml:8 hubs.flights.checkpoint_every: is 'soon'; accepted: seconds above 0, or a duration such as 5s, 10m, 1h", "consumer.toml:9 hubs.flights.high_events: is '0'; accepted: a whole number from 1"]),
        (f"{SINK}{HUB}lease_expiry = 5", ["consumer.toml:8 hubs.flights.lease_expiry: is 5 s; accepted: at least twice CONSUMER_LEASE_INTERVAL, 10 s"]),
        (f"{SINK}{HUB}flush_after = [1]", ["consumer.toml:8 hubs.flights.flush_after: found [1]; a text, a number, true or false is accepted"]),
        (f"{SINK}{HUB}connection = 'Nope'", ["consumer.toml:8 hubs.flights.connection: no Event Hubs connection 'Nope': set Nope to a connection string, or, for identity, Nope__fullyQualifiedNamespace to <namespace>.servicebus.windows.net (optionally with Nope__credential=managedidentity and Nope__clientId)"]),
        (f"{SINK}[hubs.flights]", ["consumer.toml:6 hubs.flights.hub: is missing; the name of the event hub is accepted"]),
        (
            f'{SINK}[hubs.flights]\nhub = " "\npark_delays = "10m, x"',
            [
                "consumer.toml:7 hubs.flights.hub: found ' '; the name of the event hub is accepted: letters, digits, '.', '-' and '_'",
                "consumer.toml:8 hubs.flights.park_delays: found 'x'; accepted are durations such as '90s', '10m', '1h30m', '2d'",
            ],
        ),
        (f"{SINK}[hubs.flights]\nhub = 'a b'", ["consumer.toml:7 hubs.flights.hub: found 'a b'; the name of the event hub is accepted: letters, digits, '.', '-' and '_'"]),
        (f"{SINK}{HUB}steps = 5", ["consumer.toml:8 hubs.flights.steps: found 5; a list of tables is accepted"]),
        (f"{SINK}{HUB}steps = [{{ filtre = 'x' }}]", ["consumer.toml:8 hubs.flights.steps[0]: found filtre, which is no step; did you mean 'filter'?"]),
        (f"{SINK}{HUB}decode = {{ format = 'jsn' }}", ["consumer.toml:8 hubs.flights.decode.format: found 'jsn'; accepted are json, auto, avro, avro_preamble, avro_single_object, avro_file, confluent, protobuf, cloudevents, csv, text, raw"]),
        (f"{SINK}{HUB}decode = {{ format = 'csv', delimeter = ';' }}", ["consumer.toml:8 hubs.flights.decode.delimeter: is not an option here; did you mean 'delimiter'?"]),
        (f"{SINK}{HUB}[[hubs.flights.routes]]\nto = 'documnets'\noperation = 'remove'\nsteps = [{{ mask = '/a' }}]", [
            "consumer.toml:9 hubs.flights.routes[0].to: found 'documnets', which is no sink of this file; did you mean 'documents'?",
            "consumer.toml:10 hubs.flights.routes[0].operation: found 'remove'; accepted: upsert, create, replace, delete, patch",
            "consumer.toml:11 hubs.flights.routes[0].steps[0].mask: found '/a'; accepted: a list of text",
        ]),
        (f"{SINK}{HUB}steps = [{{ split = '/' }}, {{ split = '/' }}]\n[[hubs.flights.routes]]\nsteps = [{{ split = '/' }}]", ["consumer.toml:10 hubs.flights.routes[0].steps: found 3 steps 'split'; 2 are accepted, in the hub and in a route together"]),
        (f"{SINK}{HUB}transform = 'm:f'\nsteps = [{{ split = '/a' }}, {{ split = '/b' }}]", ["consumer.toml:8 hubs.flights.transform: found beside 2 steps 'split', one after the other; 1 is accepted, as the transform may make several documents too"]),
        (f"rate = -1\n{SINK}{HUB}", ["consumer.toml:2 rate: found -1; records per second from 0 (no limit) are accepted; fractions are fine"]),
        (f"rate = 5\n{SINK}{HUB}rate = 5", ["consumer.toml:9 hubs.flights.rate: found beside one rate for all hubs; one of them is accepted"]),
        (f"{SINK}{HUB}[hubs.b]\nhub = 'FLIGHTS'", ["consumer.toml:8 hubs.b.consumer_group: hubs.flights reads hub 'FLIGHTS' in group '$Default' too; a group of its own is accepted, as two consumers of one group take each other's partitions"]),
        (f"{HUB}[sinks.'a/b']\ntype = 'cosmos'\ndatabase = 'd'\ncontainer = 'c'", ["consumer.toml:4 sinks.a/b: has a slash, which separates a sink from its lanes; accepted: none"]),
        (f"{HUB}[sinks.a]\ntype = 'cosmis'", ["consumer.toml:5 sinks.a.type: there is no type of sink 'cosmis'; accepted: "]),
        (f"{HUB}[sinks.a]\ntype = 'cosmos'\ndatabase = 5\ncontaner = 'c'", ["consumer.toml:4 sinks.a: 'contaner' is no option of cosmos; did you mean 'container'?", "consumer.toml:4 sinks.a: 'database': found 5; accepted: text", "consumer.toml:4 sinks.a: 'container' is missing"]),
        (f"{SINK}connection = 'AccountEndpoint=https://x.documents.azure.com:443/;AccountKey={'k' * 86}=='\n{HUB}", ["consumer.toml:6 sinks.documents.connection: looks like"]),
        (f"{SINK}{HUB}{SINK.replace('documents', 'b')}", ["consumer.toml:6 hubs.flights.routes: is missing; it may be left out only if the file has one sink"]),
        (f"{SINK}connection = 'Nope'\n{HUB}", ["consumer.toml:6 sinks.documents.connection: no app setting is named Nope, nor Nope__accountEndpoint or the like; the name of a setting with a connection is accepted"]),
        (f"{SINK}[hubs.'']\nhub = 'b'", ["consumer.toml hubs: found a name of 0 characters; 1 to 100 are accepted, on one line"]),
        (f"{DELTA}{HUB}[[hubs.flights.routes]]\noperation = 'delete'", ["consumer.toml:9 hubs.flights.routes[0].operation: a sink of the type delta cannot delete; accepted: create, upsert"]),
        (f"{DELTA}{HUB}[[hubs.flights.routes]]\noperation_from = '/op'\noperations = {{ r = 'replace' }}\ndelete_when_empty = true", ["consumer.toml:8 hubs.flights.routes[0].operation: a sink of the type delta cannot delete, replace; accepted: create, upsert"]),
        (f"{DELTA}{HUB}[[hubs.flights.routes]]\noperation = 'delete'\nid = '/a'\npartition_key = ['/b']\nttl = 5\nversion = '/v'", [
            "consumer.toml:9 hubs.flights.routes[0].operation: a sink of the type delta cannot delete; accepted: create, upsert",
            *(f"consumer.toml:{10 + n} hubs.flights.routes[0].{key}: a sink of the type delta does not use it; accepted: none of id, partition_key, ttl, version" for n, key in enumerate(("id", "partition_key", "ttl", "version"))),
        ]),
        (f"[sinks.a]\ntype = 'delta'\nconnection = 'AzureWebJobsStorage'\nuri = 's3://x'\ncreate = true\ncommit_every = 'soon'\nsources = {{ a = 'b' }}\n{HUB}", [
            "consumer.toml:2 sinks.a: create needs columns, from which the table is made",
            "consumer.toml:2 sinks.a: the uri 's3://x' cannot be opened; accepted: az://container/folder",
            "consumer.toml:2 sinks.a: the source 'b' of column 'a' is not known; accepted: $.name",
            "consumer.toml:2 sinks.a: commit_every is 'soon'; accepted: seconds above 0, or a duration such as 30s",
        ]),
        (f"[sinks.a]\ntype = 'parquet'\nconnection = 'CONTAINER'\ncontainer = 'c'\ncolumns = {{ a = 'int', b = 'decimal(3,5)' }}\n{HUB}", ["consumer.toml:2 sinks.a: 'int' of column 'a', 'decimal(3,5)' of column 'b': no such type; accepted: string, long"]),
        (f"[sinks.a]\ntype = 'service_bus'\nconnection = 'CONTAINER'\nbody = 'raw'\nsession = 'x'\n{HUB}", [
            "consumer.toml:2 sinks.a: queue is '' and topic is ''; accepted: exactly one of them",
            "consumer.toml:2 sinks.a: body is 'raw'; accepted: document, event",
            "consumer.toml:2 sinks.a: the source 'x' of column 'session' is not known; accepted: $.name",
        ]),
        (f"[sinks.a]\ntype = 'http'\nurl = 'https://x.example/{{$.id}}'\nbatch = 2\nrequests = 0\nmethod = 'GET'\ntimeout = 0\n{HUB}", [
            "consumer.toml:2 sinks.a: requests is 0; accepted: 1 or more",
            "consumer.toml:2 sinks.a: method is 'GET'; accepted: POST, PUT, PATCH",
            "consumer.toml:2 sinks.a: batch is 2, and the url has values of a document; accepted: batch = 1, or a fixed url",
            "consumer.toml:2 sinks.a: timeout is 0; accepted: more",
        ]),
        (f"{SINK}{HUB}[[hubs.flights.routes]]\nto = 'documents'\n[sinks.unused]\ntype = 'sql'", ["consumer.toml:10 sinks.unused: CONSUMER_SQL_URL is not set: the database's address, as SQLAlchemy writes it"]),
        (f"{SINK}{HUB}[[hubs.flights.routes]]\nto = ['documents']", ["consumer.toml:9 hubs.flights.routes[0].to: found ['documents']; accepted: text"]),
        (f"sniks = 1\n{SINK}{HUB}", ["consumer.toml:2 sniks: is not a setting here; did you mean 'sinks'?"]),
    ],
    ids=range(36),
)  # fmt: skip
def test_every_problem_is_told_with_its_place_and_what_is_accepted(text, expected):
    found = problems(text)

    assert len(found) == len(expected)
    for one, wanted in zip(found, expected, strict=True):
        assert one.startswith(wanted)


def example_of_the_page():
    return (ROOT / "docs/routes.md").read_text(encoding="utf-8").partition("```toml\n")[2].partition("```")[0]


def test_the_example_of_the_page_is_an_accepted_file():
    definition = read_definition(
        example_of_the_page(),
        {**local_settings(ROOT / "local.settings.json"), "PLANE_KEY": "k" * 64},
        name="f",
    )

    assert [[sink.name for sink in hub.sinks] for hub in definition.hubs] == [["documents", "late"]]
    assert definition.doubts == ()


@pytest.mark.parametrize(("guard", "is_doubted"), [("none", True), ("number", False)])
def test_two_sinks_into_one_container_are_doubted_without_the_guard(guard, is_doubted):
    sink = f"{SINK}guard = '{guard}'\n"
    routes = "".join(f"[[hubs.flights.routes]]\nto = '{name}'\nalso = true\n" for name in ("documents", "b"))
    doubts = read(f"{sink}{sink.replace('documents', 'b')}{HUB}{routes}").doubts

    assert [doubt.startswith("hubs.flights: sinks.documents and sinks.b") for doubt in doubts] == [
        True
    ] * is_doubted


def test_the_page_lists_every_step_and_every_key_of_a_route():
    page = (ROOT / "docs/routes.md").read_text(encoding="utf-8")

    assert set(re.findall(r"^\| `\{ (\w+) = ", page, re.MULTILINE)) == set(STEPS)
    routes = page.partition("## Routes")[2].partition("## Sinks")[0]
    listed = re.findall(r"^\| (`.+?) \|", routes, re.MULTILINE)
    assert {name for cell in listed for name in re.findall(r"`(\w+)", cell)} == set(
        RouteOptions.__struct_fields__
    )


def test_an_only_sink_to_sql_keeps_everything_in_its_database(tmp_path):
    settings = {**SETTINGS, "Orders": f"sqlite:///{tmp_path}/orders.db"}
    sql = "[sinks.rows]\ntype = 'sql'\nconnection = 'Orders'\n"
    config = read(f"{sql}{HUB}", settings).hubs[0].config

    assert (config.checkpoints, config.dead_letters, config.sql.url) == ("sql", "sql", settings["Orders"])
    assert problems(f"{sql}{HUB}checkpoints = 'blob'", settings) == [
        "consumer.toml:7 hubs.flights.checkpoints: found 'blob'; sql is accepted, as the only sink keeps them with its rows"
    ]


PARQUET = "[sinks.files]\ntype = 'parquet'\ncontainer = 'c'\nconnection = 'AzureWebJobsStorage'\ncolumns = { a = 'long' }\n"
TO = "[[hubs.flights.routes]]\nto = '{}'\nalso = true\n"


@pytest.mark.parametrize(
    ("text", "told", "doubts"),
    [
        (DELTA + HUB, ["hubs.flights.park: CONSUMER_PARK is set, and the sink writes in the order"], 0),
        (
            DELTA + PARQUET + HUB + TO.format("rows") + TO.format("files"),
            ["hubs.flights.park: CONSUMER_PARK"],
            0,
        ),
        (DELTA + SINK + HUB + TO.format("rows") + TO.format("documents"), [], 1),
        (SINK + HUB, [], 0),
    ],
    ids=["one", "all", "some", "none"],
)
def test_parking_is_refused_where_all_sinks_are_ordered_and_doubted_where_some_are(text, told, doubts):
    settings = {**SETTINGS, "CONSUMER_PARK": "status_404"}
    found = problems(text, settings) if told else [*read(text, settings).doubts]

    assert len(found) == max(len(told), doubts)
    assert all(wanted in one for wanted, one in zip(told, found, strict=False))
    assert told or all("sinks.rows of these sinks park nothing" in one for one in found)


NAMESAKES = "[hubs.a]\nhub = 'h'\n[hubs.b]\nhub = 'H'\nconnection = 'Other'\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"{SINK}{NAMESAKES}", []),
        (f"{SINK}id = 'position'\n{NAMESAKES}", ["consumer.toml:9 hubs.b: hubs.a is a hub of the same name in another namespace, and both write to sinks.documents with ids by position"]),
        (SINK + NAMESAKES.replace("[hubs.b]", "dead_letters = 'cosmos'\n[hubs.b]") + "dead_letters = 'cosmos'\n", ["consumer.toml:9 hubs.b.dead_letter_container: hubs.a is a hub of the same name in another namespace, and both keep dead letters"]),
    ],
    ids=["fields", "positions", "letters"],
)  # fmt: skip
def test_namesakes_in_two_namespaces_do_not_replace_each_others_documents(text, told):
    settings = {**SETTINGS, "COSMOS_DATABASE": "db"}
    found = problems(text, settings) if told else [*read(text, settings).doubts]

    assert [one[: len(wanted)] for one, wanted in zip(found, told, strict=True)] == told


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("checkpoints = 'sql'", "checkpoints: found 'sql', and the setting CONSUMER_SQL_URL is not set"),
        (
            "dead_letters = 'cosmos'",
            "dead_letters: found 'cosmos', and the setting COSMOS_DATABASE is not set",
        ),
    ],
)
def test_a_store_without_its_settings_is_told(key, told):
    assert problems(f"{SINK}{HUB}{key}") == [f"consumer.toml:8 hubs.flights.{told}"]


def test_what_is_no_toml_is_one_problem():
    assert problems("x = ")[0].startswith("consumer.toml: is no TOML: ")


def test_a_file_of_another_version_is_refused():
    with pytest.raises(ConfigError, match="found 2; 1 is accepted"):
        read_definition(f"version = 2\n{SINK}{HUB}", SETTINGS, name="f")


def test_a_wrong_app_setting_is_told_once_by_its_name():
    settings = {**SETTINGS, "CONSUMER_START": "yesterday"}
    found = problems(f"{SINK}{HUB}[hubs.b]\nhub = 'b'", settings)

    assert found == [
        "app settings: CONSUMER_START is 'yesterday'; accepted: earliest, latest, or a time such as 2026-11-21T08:00:00Z"
    ]


def test_a_value_of_a_setting_is_not_shown():
    secret = {**SETTINGS, "SECRET_RATE": "hunter2hunter2"}

    assert "hunter2" not in "".join(problems(f"{SINK}{HUB}checkpoint_every = '%SECRET_RATE%'", secret))


@pytest.mark.parametrize(
    ("text", "doubt"),
    [
        (f"{SINK}{HUB}[[hubs.flights.routes]]\nto = 'documents'\n[[hubs.flights.routes]]\nto = 'documents'", "consumer.toml:10 hubs.flights.routes[1]: never reached, as a route before it takes all"),
        (f"{SINK}{SINK.replace('documents', 'b')}{HUB}[[hubs.flights.routes]]\nto = 'documents'", "consumer.toml:6 sinks.b: no route goes to this sink"),
    ],
)  # fmt: skip
def test_what_is_probably_a_mistake_is_a_doubt(text, doubt):
    assert read(text).doubts == (doubt,)


def test_the_keys_of_a_hub_are_the_settings_under_their_plain_names():
    keys = keys_of_settings()

    assert keys.items() >= {"start": "CONSUMER_START", "high_events": "CONSUMER_HIGH_EVENTS"}.items()
    assert keys.keys().isdisjoint({"shutdown", "sink", "sql_url", "cosmos_database", "name", "http_port"})


def test_every_setting_is_a_key_of_a_hub_or_belongs_to_a_sink_a_decoder_or_the_process():
    of_sinks = ("COSMOS_", "CONSUMER_SQL_", "CONSUMER_SINK", "CONSUMER_ID", "CONSUMER_META")
    of_decoders = ("CONSUMER_DECODER", "CONSUMER_UNPACK", "CONSUMER_JSON_ARRAYS", "CONSUMER_SCHEMA_REGISTRY")
    of_processes = (
        *(
            "CONSUMER_NAME",
            "CONSUMER_SHUTDOWN",
            "CONSUMER_HTTP_PORT",
            "CONSUMER_TELEMETRY_",
            "TIDEMARK_TRACING",
        ),
        *("CONSUMER_METRICS_EXPORTER", "CONSUMER_MAXIMUM_INSTANCES", "FUNCTIONS_WORKER_PROCESS_COUNT"),
    )
    connections = ("EVENTHUB_CONNSTRING", "BLOB_CONNSTRING")  # the keys connection and storage_connection
    others = read_settings({}).known - set(keys_of_settings().values())

    assert {
        name for name in others if not name.startswith((*of_sinks, *of_decoders, *of_processes, *connections))
    } == set()


def test_a_file_that_is_missing_is_told_with_its_setting(tmp_path):
    with pytest.raises(
        SettingsError, match=r"CONSUMER_FILE is '.*none.toml': the file cannot be read: No such file"
    ):
        load_definition({"CONSUMER_FILE": str(tmp_path / "none.toml")})


def test_a_hub_is_named_where_the_file_has_several():
    definition = read(f"rate = 5\n{SINK}{HUB}[hubs.b]\nhub = 'b'")

    assert find_hub(definition, "b").config.hub == "b"
    with pytest.raises(SettingsError, match="--hub: is missing; the file has the hubs flights, b"):
        find_hub(definition, None)
    with pytest.raises(SettingsError, match="found 'c'; accepted: flights, b"):
        find_hub(definition, "c")


def test_processes_of_one_hub_each_share_the_rate_of_all():
    definition = read(f"rate = 5\n{SINK}{HUB}[hubs.b]\nhub = 'b'")

    assert sum(only_hub(definition, name).rate for name in ("flights", "b")) == 5


@pytest.mark.parametrize(
    ("kind", "values"),
    [(name, ("id", "partition_key", "ttl", "version") if name == "cosmos" else ()) for name in BUILT_IN],
)
def test_a_type_of_sink_says_which_values_of_a_route_it_uses(kind, values):
    assert tuple(find_sink_type(kind).values) == values


@pytest.mark.parametrize(
    ("change", "is_other"),
    [
        ("", False),
        ("checkpoint_every = '1s'\n", False),
        ("transform = 'a:b'\n", True),
        ("steps = [{ drop_fields = ['/a'] }]\n", True),
        ("steps = [{ set = { '/a' = '%ODD%' } }]\n", True),
        ("[[hubs.flights.routes]]\nwhen = 'a == 1'\n", True),
        ("[[hubs.flights.routes]]\n", False),  # what holds without it
    ],
)
def test_a_digest_of_the_routes_changes_with_them(change, is_other):
    settings = {**SETTINGS, "ODD": "no UTF-8: \udcff"}
    one, other = (read(SINK + HUB + text, settings).hubs[0].config.policy.routes for text in ("", change))

    assert one
    assert (one != other) is is_other
