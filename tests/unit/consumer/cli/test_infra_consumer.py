"""How the templates deploy the consumer: its settings, its roles, and its image, for which there is no builder here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from consumer.cli.consume import GRACE
from consumer.config import Hosting, read_config, read_hosting
from consumer.probes.fleet import WITHIN
from consumer.probes.server import PATHS
from consumer.running.process import FINAL_REPORT_WITHIN
from tests.bicep_language import expand
from tests.support.infra.templates import (
    INFRA,
    ROOT,
    SUBSCRIPTION,
    WORLDS,
    deployed,
    documented_settings,
    environment,
    only,
    settings,
)
from tidemark.foundation.azure import connections
from tidemark.foundation.azure.cosmos import cosmos_endpoint

APP = "Microsoft.App/containerApps"

# -- settings -------------------------------------------------------------------------------------------


def test_the_settings_of_the_consumer_are_documented_and_hold_all_it_requires() -> None:
    added = set(settings()) - set(settings("as it comes"))
    documented = {name.partition("__")[0] for name in documented_settings("Settings of the consumer")}
    # either spelling of a connection will do
    required = documented_settings("Settings of the consumer", required=True) - {"EVENTHUB_CONNSTRING"}

    assert {name.partition("__")[0] for name in added} <= documented
    assert {"EVENTHUB_NAME", "COSMOS_CONTAINER"} <= {name.partition("__")[0] for name in required}
    assert {name.partition("__")[0] for name in required} <= {name.partition("__")[0] for name in settings()}


def test_the_identity_finds_hub_database_and_storage_from_the_settings_of_app_and_process() -> None:
    account = only("everything", "Microsoft.Storage/storageAccounts").name
    for found in (settings("everything"), environment("everything")):
        config = read_config(found)
        hub = connections.event_hubs_endpoint(found, config.hub_connection)
        cosmos = cosmos_endpoint(found, config.cosmos_connection)

        assert (config.hub, config.consumer_group) == ("flights", "tidemark")
        assert (config.cosmos_database, config.cosmos_container) == ("airport", "Departures")
        assert config.shutdown == 25.0
        assert hub.address == "evhns-flights.servicebus.windows.net"
        assert cosmos.url == "https://cosmos-flights.documents.azure.com:443/"
        assert not isinstance(cosmos.credential, str)
        for service in ("blob", "table"):
            endpoint = connections.storage_endpoint(found, config.storage_connection, service)
            assert endpoint.address == f"https://{account}.{service}.core.windows.net"


def test_hub_and_container_are_named_only_where_they_are_given_and_named_settings_win() -> None:
    own = {"EVENTHUB_NAME": "another", "TIDEMARK_CONFIG": "other.toml"}
    given = {**WORLDS["everything"], "additionalAppSettings": own}
    deployment = expand(INFRA / "main.bicep", given, subscription=SUBSCRIPTION)
    (app,) = [
        resource.properties for resource in deployment.resources if resource.name.endswith("/appsettings")
    ]
    (process,) = deployment.of_type(APP)
    (container,) = process.properties["template"]["containers"]

    assert not [
        name for name in settings("as it comes") if name.startswith(("EVENTHUB", "COSMOS", "EventHub"))
    ]
    assert own.items() <= app.items()
    assert own.items() <= {each["name"]: each["value"] for each in container["env"]}.items()


def test_the_process_has_no_setting_twice() -> None:
    (container,) = only("everything", APP).properties["template"]["containers"]

    assert len(container["env"]) == len({each["name"] for each in container["env"]})


def test_the_consumer_is_hosted_as_its_setting_says_and_not_unless_asked() -> None:
    for kind in Hosting:
        given = {**WORLDS["as it comes"], "consumerHosting": str(kind)}
        deployment = expand(INFRA / "main.bicep", given, subscription=SUBSCRIPTION)
        (app,) = [
            resource.properties for resource in deployment.resources if resource.name.endswith("/appsettings")
        ]
        assert read_hosting(app) == kind

    assert read_hosting(settings("as it comes")) == Hosting.OFF
    assert not deployed("as it comes").of_type(APP)


# -- the consumer as processes --------------------------------------------------------------------------

LOCAL_STACK = (ROOT / "devstack" / "Dockerfile").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "infra" / "consumer" / "Dockerfile").read_text(encoding="utf-8")


@pytest.mark.parametrize("shutdown", [1, 25, 570])
def test_the_platform_waits_longer_than_processes_take_to_stop(shutdown: int) -> None:
    given = {**WORLDS["everything"], "consumerShutdown": shutdown}
    deployment = expand(INFRA / "main.bicep", given, subscription=SUBSCRIPTION)
    (process,) = deployment.of_type(APP)
    waits = process.properties["template"]["terminationGracePeriodSeconds"]

    assert shutdown + GRACE + FINAL_REPORT_WITHIN < waits <= 600  # the most that Container Apps waits


def test_the_process_runs_the_consumer_with_its_identity_and_listens_to_its_platform_only() -> None:
    app = only("everything", APP)
    (container,) = app.properties["template"]["containers"]
    identity = only("everything", "Microsoft.ManagedIdentity/userAssignedIdentities").id

    assert container["args"] == ["--processes", "1"]
    assert container["image"] == "acrimages.azurecr.io/tidemark-consumer:1"
    assert app.properties["template"]["scale"] == {"minReplicas": 1, "maxReplicas": 1}
    assert app.body["identity"] == {"type": "UserAssigned", "userAssignedIdentities": {identity: {}}}
    assert "ingress" not in app.properties["configuration"]
    assert app.properties["configuration"]["registries"] == [
        {"server": "acrimages.azurecr.io", "identity": identity}
    ]
    environment_properties = only("everything", "Microsoft.App/managedEnvironments").properties
    assert environment_properties["appLogsConfiguration"] == {"destination": "azure-monitor"}


def kubernetes() -> dict[str, dict[str, Any]]:
    """The documents of the manifest by kind."""
    text = (ROOT / "infra" / "kubernetes" / "consumer.yaml").read_text(encoding="utf-8")
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def in_container_apps(port: str) -> tuple[dict[str, str], list[dict[str, Any]]]:
    given = {**WORLDS["everything"], "additionalAppSettings": {"CONSUMER_HTTP_PORT": port} if port else {}}
    deployment = expand(INFRA / "main.bicep", given, subscription=SUBSCRIPTION)
    (process,) = deployment.of_type(APP)
    (container,) = process.properties["template"]["containers"]
    return {each["name"]: each["value"] for each in container["env"]}, container["probes"]


def in_kubernetes() -> tuple[dict[str, str], list[dict[str, Any]]]:
    found = kubernetes()
    pod = found["Deployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(ports["probes"])
    assert pod["metadata"]["annotations"]["prometheus.io/path"] in PATHS
    probes = [
        {**container[f"{kind.lower()}Probe"], "type": kind} for kind in ("Startup", "Liveness", "Readiness")
    ]
    for probe in probes:
        probe["httpGet"] = {**probe["httpGet"], "port": ports[probe["httpGet"]["port"]]}
    return found["ConfigMap"]["data"], probes


@pytest.mark.parametrize("platform", ["Container Apps", "Container Apps, port 9090", "Kubernetes"])
def test_the_probes_ask_what_the_process_answers_where_it_answers(platform: str) -> None:
    port = platform.partition("port ")[2]
    found, probes = in_kubernetes() if platform == "Kubernetes" else in_container_apps(port)
    by_kind = {probe["type"]: probe for probe in probes}

    assert {kind: probe["httpGet"]["path"] for kind, probe in by_kind.items()} == {
        "Startup": "/live",
        "Liveness": "/live",
        "Readiness": "/ready",
    }
    config = read_config(found)
    assert config.http_port == int(port or 8080)
    for probe in probes:
        assert probe["httpGet"]["path"] in PATHS
        assert probe["httpGet"]["port"] == config.http_port
        assert probe["timeoutSeconds"] > WITHIN  # the parent waits so long for its workers
        assert 1 <= probe["failureThreshold"] <= 12
    # A start takes some seconds, and a restart is for a process that does not recover.
    startup, liveness = by_kind["Startup"], by_kind["Liveness"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 50
    assert liveness["failureThreshold"] > by_kind["Readiness"]["failureThreshold"]


def test_without_a_port_the_platform_probes_nothing() -> None:
    found, probes = in_container_apps("0")

    assert (found["CONSUMER_HTTP_PORT"], probes) == ("0", [])


def test_kubernetes_waits_longer_than_processes_take_to_stop_and_names_settings_that_there_are() -> None:
    found = kubernetes()
    data = found["ConfigMap"]["data"]
    pod = found["Deployment"]["spec"]["template"]["spec"]

    config = read_config(data)
    assert pod["terminationGracePeriodSeconds"] > config.shutdown + GRACE + FINAL_REPORT_WITHIN
    assert not config.doubts
    documented = documented_settings("Settings of the consumer") | {"AzureWebJobsStorage"}
    assert {name.partition("__")[0] for name in data} <= {name.partition("__")[0] for name in documented}
    assert pod["containers"][0]["args"] == ["--processes", "1"]
    assert pod["serviceAccountName"] == found["ServiceAccount"]["metadata"]["name"]


def test_the_process_waits_for_the_roles_that_it_cannot_start_without() -> None:
    waits = only("everything", APP).after
    files = {resource.file for resource in deployed("everything").resources if resource.id in waits}

    assert {"rbac.bicep", "rbac-event-hub.bicep", "rbac-cosmos.bicep", "rbac-registry.bicep"} <= files


def test_the_image_holds_what_the_consumer_imports_and_what_its_context_lets_through(
    tmp_path: Path,
) -> None:
    copied = set(re.findall(r"^COPY (\S+) ", DOCKERFILE, re.MULTILINE))
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    for name in copied - {"infra/consumer/requirements.txt"}:
        there = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        there(ROOT / name, tmp_path / name)
    code = (
        "import importlib, pkgutil, consumer\n"
        "for each in pkgutil.walk_packages(consumer.__path__, 'consumer.'):\n"
        "    if not each.name.endswith('__main__'): importlib.import_module(each.name)\n"
    )

    answer = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )

    assert answer.returncode == 0, answer.stderr
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == copied


def test_the_image_has_the_python_of_the_app_and_passes_signals_on() -> None:
    version = WORLDS["as it comes"]["pythonVersion"]
    assert re.search(rf"^FROM python:{version}-slim@sha256:[0-9a-f]{{64}}$", DOCKERFILE, re.MULTILINE)
    assert DOCKERFILE.rstrip().endswith('ENTRYPOINT ["python", "-m", "consumer"]')
    assert re.search(r"^FROM (.+)$", DOCKERFILE, re.MULTILINE)[0] in LOCAL_STACK
    assert "\nUSER " in DOCKERFILE


def test_the_container_of_the_local_stack_writes_to_a_folder_that_its_user_owns() -> None:
    """Docker would make a missing one as root, who the user of the image is not."""
    for text in (LOCAL_STACK, (ROOT / "devstack" / "README.md").read_text(encoding="utf-8")):
        assert re.search(
            r"mkdir -p \.devstack\n.*docker run .*--user \"\$\(id -u\):\$\(id -g\)\" --volume", text
        )
