"""The templates in infra/ as parsed trees, what their settings come to, and what the documents say of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pycep import BicepParser

from tests.bicep import path_of

ROOT = Path(__file__).resolve().parents[1]
INFRA = ROOT / "infra"
FILES = sorted(INFRA.rglob("*.bicep"))
TEXTS = {path.relative_to(INFRA).as_posix(): path.read_text(encoding="utf-8") for path in FILES}
TREES = {name: BicepParser().parse(text=text) for name, text in TEXTS.items()}
MAIN = TREES["main.bicep"]
APP = TREES["app/functions.bicep"]
SITE = APP["resources"]["site"]["config"]
PROCESS = TREES["app/consumer-app.bicep"]
CONTAINER_APP = PROCESS["resources"]["consumer"]["config"]
SETTINGS = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
DEPLOYING = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")

ROLES = {
    "b7e6dc6d-f1e8-4753-8033-0f276bb0955b": "Storage Blob Data Owner",
    "974c5e8b-45b9-4653-ba55-5f855dd0fb88": "Storage Queue Data Contributor",
    "0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3": "Storage Table Data Contributor",
    "76199698-9eea-4c19-bc75-cec21354c6b6": "Storage Table Data Reader",
    "19e7f393-937e-4f77-808e-94535e297925": "Storage Queue Data Reader",
    "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1": "Storage Blob Data Reader",
    "ba92f5b4-2d11-453d-a403-e96b0029c9fe": "Storage Blob Data Contributor",
    "3913510d-42f4-4e42-8a64-420c390055eb": "Monitoring Metrics Publisher",
    "2cc479cb-7b4d-49a8-b449-8c00fd0f0a4b": "Web Plan Contributor",
    "43d0d8ad-25c7-4714-9337-8ba259a9fe05": "Monitoring Reader",
    "090c5cfd-751d-490a-894a-3ce6f1109419": "Azure Service Bus Data Owner",
    "a638d3c7-ab3a-418d-83e6-5f17a39d4fde": "Azure Event Hubs Data Receiver",
    "00000000-0000-0000-0000-000000000002": "Cosmos DB Built-in Data Contributor",
    "230815da-be43-4aae-9cb4-875f7bd000aa": "Cosmos DB Operator",
    "7f951dda-4ed3-4680-a7ca-43fe172d538d": "AcrPull",
}

# Refused by Flex Consumption: https://learn.microsoft.com/azure/azure-functions/functions-app-settings
NOT_ON_FLEX = {
    *("ENABLE_ORYX_BUILD", "FUNCTIONS_EXTENSION_VERSION", "FUNCTIONS_MAX_HTTP_CONCURRENCY"),
    *("FUNCTIONS_WORKER_DYNAMIC_CONCURRENCY_ENABLED", "FUNCTIONS_WORKER_PROCESS_COUNT"),
    *("FUNCTIONS_WORKER_RUNTIME", "FUNCTIONS_WORKER_RUNTIME_VERSION"),
    *("SCM_DO_BUILD_DURING_DEPLOYMENT", "WEBSITE_CONTENTAZUREFILECONNECTIONSTRING"),
    *("WEBSITE_CONTENTOVERVNET", "WEBSITE_CONTENTSHARE", "WEBSITE_DNS_SERVER"),
    *("WEBSITE_MAX_DYNAMIC_APPLICATION_SCALE_OUT", "WEBSITE_NODE_DEFAULT_VERSION"),
    *("WEBSITE_RUN_FROM_PACKAGE", "WEBSITE_SKIP_CONTENTSHARE_VALIDATION", "WEBSITE_VNET_ROUTE_ALL"),
}

# Refused by Flex Consumption in siteConfig, with error 51021 of Resource Manager ("site configuration properties ... for
# Flex Consumption sites is invalid"), and what says the same there. In whose deployments each was named:
# azure-pipelines-tasks 21032 (1), azure-cli 31414 (2), azure-functions-host 10643 (3), and
# terraform-azurerm-avm-res-web-site 345 (4), all on GitHub.
NOT_IN_SITE_CONFIG = {
    "alwaysOn": "scaleAndConcurrency.alwaysReady",  # 4
    "ftpsState": "publishing by user name and password is off, for FTP too",  # 1, 2
    "functionAppScaleLimit": "scaleAndConcurrency.maximumInstanceCount",  # 3
    "functionsRuntimeScaleMonitoringEnabled": "the platform's own",  # 1, 2
    "linuxFxVersion": "runtime",  # 4
    "minimumElasticInstanceCount": "scaleAndConcurrency.alwaysReady",  # 4
    "netFrameworkVersion": "runtime",  # 1, 2
    "numberOfWorkers": "the platform's own",  # 4
    "preWarmedInstanceCount": "scaleAndConcurrency.alwaysReady",  # 2
    "pythonVersion": "runtime",  # as linuxFxVersion
    "use32BitWorkerProcess": "the platform's own",  # 1, 2
    "windowsFxVersion": "runtime",  # 4
}

VALUES = {
    "storage.properties.primaryEndpoints.blob": "https://sttidemark.blob.core.windows.net/",
    "storage.properties.primaryEndpoints.queue": "https://sttidemark.queue.core.windows.net/",
    "storage.properties.primaryEndpoints.table": "https://sttidemark.table.core.windows.net/",
    "applicationInsights.properties.ConnectionString": "InstrumentationKey=0;IngestionEndpoint=https://in/",
    "environment.resourceManager": "https://management.azure.com/",
    "identityClientId": "11111111-2222-3333-4444-555555555555",
    "ordersPlanId": "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/rg-web/providers/Microsoft.Web/serverfarms/plan-orders",
    "ordersServiceBusNamespaceName": "sb-orders",
    "collectSchedule": "0 * * * * *",
    "verifySchedule": "30 * * * * *",
    "scalingLogRetention": "30d",
    "identity.outputs.clientId": "11111111-2222-3333-4444-555555555555",
    "eventHub[8]": "evhns-flights",
    "eventHub[10]": "flights",
    "eventHubConsumerGroup": "tidemark",
    "cosmos[8]": "cosmos-flights",
    "cosmos[10]": "airport",
    "cosmos[12]": "departures",
    "consumerHosting": "slices",
    "consumeSchedule": "0 * * * * *",
    "consumerShutdown": "25",
    "maximumInstanceCount": "40",
}


def value_of(node: Any) -> str:
    """What an app setting's expression gives; the parser does not tell names from texts."""
    if isinstance(node, dict):
        return VALUES[path_of(node)]
    return VALUES.get(node) or re.sub(r"\$\{([^}]+)\}", lambda found: VALUES[found.group(1)], node)


def settings_of_variable(tree: dict[str, Any], variable: str) -> dict[str, str]:
    return {name: value_of(node) for name, node in tree["variables"][variable]["value"].items()}


def consumer_settings() -> dict[str, str]:
    """Those that app and process share, with a hub and a container given."""
    found: dict[str, str] = {}
    for variable in ("hostingSettings", "eventHubSettings", "cosmosSettings"):
        found |= settings_of_variable(MAIN, variable)
    return found


def settings() -> dict[str, str]:
    """The app's."""
    return settings_of_variable(APP, "settings") | consumer_settings()


def environment() -> dict[str, str]:
    """The process's."""
    parts = CONTAINER_APP["properties"]["template"]["containers"][0]["env"]["function"]["parameters"]
    assert parts["arg_1"] == "given"
    return consumer_settings() | {entry["name"]: value_of(entry["value"]) for entry in parts["arg_2"]}


def arguments(module: str) -> dict[str, Any]:
    config = MAIN["modules"][module]["config"]
    found: dict[str, Any] = config.get("config", config)["params"]
    return found


def target(module: str) -> str:
    return (INFRA / MAIN["modules"][module]["detail"]["path"]).resolve().relative_to(INFRA).as_posix()


def empty(node: Any) -> str:
    """The name in `empty(name)`."""
    name: str = node["function"]["parameters"]["item_to_test"]
    return name


def not_empty(name: str) -> dict[str, Any]:
    """The tree of `!empty(name)`."""
    test = {"function": {"type": "empty", "parameters": {"item_to_test": name}}}
    return {"operator": {"type": "not", "operands": {"bool_value": test}}}


def union_of(node: Any) -> list[Any]:
    assert node["function"]["type"] == "union"
    return list(node["function"]["parameters"].values())


def documented_settings(heading: str, *, required: bool = False) -> set[str]:
    """Settings of a table, or those of them that have no default."""
    table = SETTINGS.split(f"\n## {heading}\n")[1].split("\n#")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| `")]
    cells = [row[0] for row in rows if not required or row[1] in {"required", "required for `cosmos`"}]
    found: set[str] = set()
    for cell in cells:
        prefix = ""
        for name in re.findall(r"`(\w+)`", cell):
            prefix = prefix if name.startswith("__") else name.partition("__")[0]
            found.add(prefix + name if name.startswith("__") else name)
    return found


def timeout_of_functions() -> int:
    host = json.loads((ROOT / "host.json").read_text(encoding="utf-8"))
    hours, minutes, seconds = map(int, host["functionTimeout"].split(":"))
    return 3600 * hours + 60 * minutes + seconds
