"""How the templates deploy the consumer: its settings, its roles, and its image, for which there is no builder here."""

from __future__ import annotations

import re

from consumer.cli.consume import GRACE
from consumer.config import Hosting, read_config, read_hosting, read_slice
from consumer.running.process import LAST_WORDS
from foundation.azure import connections
from foundation.azure.cosmos import cosmos_endpoint
from tests.bicep import path_of
from tests.infra_support import (
    APP,
    CONTAINER_APP,
    MAIN,
    PROCESS,
    ROOT,
    TEXTS,
    arguments,
    consumer_settings,
    documented_settings,
    empty,
    environment,
    not_empty,
    settings,
    timeout_of_functions,
    union_of,
)

# -- settings -------------------------------------------------------------------------------------------


def test_the_settings_of_the_consumer_are_documented_and_hold_all_it_requires() -> None:
    deployed = {name.partition("__")[0] for name in consumer_settings()}
    documented = {name.partition("__")[0] for name in documented_settings("Settings of the consumer")}
    # either spelling of a connection will do
    required = documented_settings("Settings of the consumer", required=True) - {"EVENTHUB_CONNSTRING"}

    assert deployed <= documented
    assert {"EVENTHUB_NAME", "COSMOS_CONTAINER"} <= {name.partition("__")[0] for name in required} <= deployed


def test_the_identity_finds_hub_database_and_storage_from_the_settings_of_app_and_process() -> None:
    for found in (settings(), environment()):
        config = read_config(found)
        hub = connections.event_hubs_endpoint(found, config.hub_connection)
        cosmos = cosmos_endpoint(found, config.cosmos_connection)

        assert (config.hub, config.consumer_group) == ("flights", "tidemark")
        assert (config.cosmos_database, config.cosmos_container) == ("airport", "departures")
        assert config.shutdown == 25.0
        assert hub.address == "evhns-flights.servicebus.windows.net"
        assert cosmos.url == "https://cosmos-flights.documents.azure.com:443/"
        assert not isinstance(cosmos.credential, str)
        for service in ("blob", "table"):
            endpoint = connections.storage_endpoint(found, config.storage_connection, service)
            assert endpoint.address == f"https://sttidemark.{service}.core.windows.net"


def test_hub_and_container_are_named_only_where_they_are_given_and_named_settings_win() -> None:
    parts = MAIN["variables"]["furtherSettings"]["value"]["function"]
    conditions = [part["operator"]["operands"] for part in parts["parameters"].values() if "operator" in part]

    assert parts["type"] == "union"
    assert [part for part in parts["parameters"].values() if isinstance(part, str)] == [
        "hostingSettings",
        "additionalAppSettings",
    ]
    assert list(parts["parameters"].values())[-1] == "additionalAppSettings"
    assert [(empty(part["condition"]), part["true_value"], part["false_value"]) for part in conditions] == [
        ("eventHubId", {}, "eventHubSettings"),
        ("cosmosContainerId", {}, "cosmosSettings"),
    ]
    assert arguments("functions")["furtherSettings"] == "furtherSettings"
    assert arguments("consumerApp")["settings"] == "furtherSettings"
    assert union_of(APP["resources"]["appSettings"]["config"]["properties"]) == [
        "settings",
        "furtherSettings",
    ]


def test_the_consumer_is_hosted_as_its_setting_says_and_not_unless_asked() -> None:
    hosting = MAIN["parameters"]["consumerHosting"]
    allowed = next(d["argument"] for d in hosting["decorators"] if d["type"] == "allowed")

    assert set(allowed) == {str(kind) for kind in Hosting}
    assert hosting["default"] == "off"
    assert [read_hosting({"CONSUMER_HOSTING": kind}) for kind in allowed] == [
        Hosting(kind) for kind in allowed
    ]
    assert MAIN["parameters"]["consumerImage"]["default"] == ""
    assert MAIN["modules"]["consumerApp"]["config"]["condition"] == not_empty("consumerImage")


def test_a_slice_and_its_shutdown_fit_the_timeout_of_functions() -> None:
    timeout = timeout_of_functions()

    assert read_slice({}) + read_config(settings()).shutdown < timeout


def test_the_function_of_the_event_hub_can_be_kept_warm_where_there_is_one() -> None:
    source = (ROOT / "consumer/web/functions.py").read_text(encoding="utf-8")
    warm = APP["variables"]["eventFunctions"]["value"]

    assert [entry["name"].partition(":")[2] for entry in warm] == ["consume_events"]
    assert "async def consume_events(" in source
    assert (
        "consumerHosting == 'trigger' ? union(queueFunctions, eventFunctions) : queueFunctions"
        in (TEXTS["app/functions.bicep"])
    )


# -- the consumer as processes --------------------------------------------------------------------------

DOCKERFILE = (ROOT / "infra" / "consumer" / "Dockerfile").read_text(encoding="utf-8")


def test_the_platform_waits_longer_than_processes_take_to_stop() -> None:
    added = PROCESS["variables"]["grace"]["value"]["operator"]
    longest = next(
        d["argument"]
        for d in MAIN["parameters"]["consumerShutdown"]["decorators"]
        if d["type"] == "max_value"
    )

    assert (added["type"], added["operands"]["operand_1"]) == ("add", "shutdown")
    assert arguments("consumerApp")["shutdown"] == "consumerShutdown"
    assert added["operands"]["operand_2"] > GRACE + LAST_WORDS
    assert CONTAINER_APP["properties"]["template"]["terminationGracePeriodSeconds"] == "grace"
    assert longest + added["operands"]["operand_2"] <= 600  # the most that Container Apps waits


def test_the_process_runs_the_consumer_with_its_identity_and_listens_to_nobody() -> None:
    container = CONTAINER_APP["properties"]["template"]["containers"][0]
    scale = CONTAINER_APP["properties"]["template"]["scale"]

    assert container["args"][0] == "--processes"
    assert path_of(container["args"][1]) == "string"
    assert scale == {"minReplicas": "instances", "maxReplicas": "instances"}
    assert CONTAINER_APP["identity"]["type"] == "UserAssigned"
    assert "ingress" not in CONTAINER_APP["properties"]["configuration"]
    assert CONTAINER_APP["properties"]["configuration"]["registries"] == [
        {"server": "registryServer", "identity": "identityId"}
    ]
    environment_properties = PROCESS["resources"]["containerEnvironment"]["config"]["properties"]
    assert environment_properties["appLogsConfiguration"] == {"destination": "azure-monitor"}


def test_the_image_holds_what_the_consumer_imports_and_what_its_context_lets_through() -> None:
    copied = set(re.findall(r"^COPY (\S+) ", DOCKERFILE, re.MULTILINE))
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    sources = [path.read_text(encoding="utf-8") for name in copied for path in (ROOT / name).rglob("*.py")]
    ours = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    imported = {
        name for text in sources for name in re.findall(r"^\s*(?:from|import) (\w+)", text, re.MULTILINE)
    }

    assert copied == {"requirements.txt", "foundation", "scaling", "consumer"}
    assert imported & ours <= copied
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == copied


def test_the_image_has_the_python_of_the_app_and_passes_signals_on() -> None:
    assert f"FROM python:{MAIN['parameters']['pythonVersion']['default']}-slim" in DOCKERFILE
    assert DOCKERFILE.rstrip().endswith('ENTRYPOINT ["python", "-m", "consumer"]')
    assert "\nUSER " in DOCKERFILE
