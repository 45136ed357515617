"""The templates in infra/: as trees, and deployed by simulation with the parameters that azd would pass."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

from tests.bicep_language import Deployment, Placed, expand, read
from tests.bicep_language.functions import typed

ROOT = Path(__file__).resolve().parents[3]
INFRA = ROOT / "infra"
FILES = sorted(INFRA.rglob("*.bicep"))
TEXTS = {path.relative_to(INFRA).as_posix(): path.read_text(encoding="utf-8") for path in FILES}
TEMPLATES = {name: read(text) for name, text in TEXTS.items()}
EXAMPLES = {
    path: read(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "examples").rglob("*.bicep"))
}
SETTINGS = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
DEPLOYING = "\n".join(
    page.read_text(encoding="utf-8")
    for page in (ROOT / "docs/deploying.md", *sorted((ROOT / "docs/deploying").glob("*.md")))
)
PARAMETERS: dict[str, dict[str, Any]] = json.loads(
    (INFRA / "main.parameters.json").read_text(encoding="utf-8")
)["parameters"]

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
    "358470bc-b998-42bd-ab17-a7e34c199c0f": "Container Apps Contributor",
    "9980e02c-c2be-4d73-94e8-173b1dc7cf3c": "Virtual Machine Contributor",
    "f526a384-b230-433a-b45c-95f59c4a2dec": "Azure Event Hubs Data Owner",
    "7f951dda-4ed3-4680-a7ca-43fe172d538d": "AcrPull",
    "acdd72a7-3385-48ef-bd42-f606fba81ae7": "Reader",
}

# -- deployments simulated -----------------------------------------------------------------------------

SUBSCRIPTION = "00000000-0000-0000-0000-00000000000a"
ELSEWHERE = "00000000-0000-0000-0000-00000000000b"


def resource_id(group: str, kind: str, *names: str, subscription: str = SUBSCRIPTION) -> str:
    return f"/subscriptions/{subscription}/resourceGroups/{group}/providers/{typed(kind, names)}"


RESOURCES = [
    {"id": resource_id("rg-apps", "Microsoft.App/containerApps", "shop"), "setting": "SHOP_ID"},
    {"id": resource_id("rg-apps", "Microsoft.Compute/virtualMachineScaleSets", "workers")},
    {"id": resource_id("rg-bus", "Microsoft.EventHub/namespaces", "evhns-scaled")},
    {"id": resource_id("rg-bus", "Microsoft.ServiceBus/namespaces", "sb-scaled")},
]
PLAN = resource_id("rg-web", "Microsoft.Web/serverfarms", "plan-orders")
NAMESPACE = resource_id("rg-bus", "Microsoft.ServiceBus/namespaces", "sb-orders")
HUB = resource_id("rg-data", "Microsoft.EventHub/namespaces/eventhubs", "evhns-flights", "flights")
CONTAINER = resource_id(
    "rg-data",
    "Microsoft.DocumentDB/databaseAccounts/sqlDatabases/containers",
    *("cosmos-flights", "airport", "Departures"),
)
REGISTRY = resource_id("rg-images", "Microsoft.ContainerRegistry/registries", "acrimages")
SUBNETS = resource_id("rg-net", "Microsoft.Network/virtualNetworks", "vnet") + "/subnets/"
REGISTRATION = "33333333-3333-3333-3333-333333333333"
ANOTHER_TENANT = "44444444-4444-4444-4444-444444444444"
OPERATOR = "22222222-2222-2222-2222-222222222222"

VARIABLES = {
    "AZURE_ENV_NAME": "prod",
    "AZURE_LOCATION": "westeurope",
    "ORDERS_PLAN_ID": PLAN,
    "ORDERS_SERVICE_BUS_ID": NAMESPACE,
}
CONSUMER = {"EVENT_HUB_ID": HUB, "COSMOS_CONTAINER_ID": CONTAINER}
PROCESSES = {"TIDEMARK_CONSUMER_IMAGE": "tidemark-consumer:1", "TIDEMARK_CONSUMER_REGISTRY_ID": REGISTRY}


def parameters(variables: dict[str, str], **given: Any) -> dict[str, Any]:
    """What azd makes of infra/main.parameters.json with these variables in its environment; `given` are edits of the file.

    Empty values without a default are left out, so that the template's own default holds.
    """
    known = VARIABLES | variables
    names = {name: entry["value"] for name, entry in PARAMETERS.items()} | given
    found = {name: _substituted(value, known) for name, value in names.items()}
    return {name: _typed(name, value) for name, value in found.items()}


def _substituted(value: Any, known: dict[str, str]) -> Any:
    if isinstance(value, str):
        return re.sub(r"\$\{(\w+)(?:=([^}]*))?\}", lambda found: known.get(found[1]) or found[2] or "", value)
    if isinstance(value, list):
        return [_substituted(item, known) for item in value]
    if isinstance(value, dict):
        return {key: _substituted(item, known) for key, item in value.items()}
    return value


def _typed(name: str, value: Any) -> Any:
    kind = TEMPLATES["main.bicep"].parameters[name].type.name
    return json.loads(value) if kind in {"bool", "int"} and isinstance(value, str) else value


def many_targets(number: int) -> dict[str, Any]:
    """Arrays of so many targets and sources of each kind, in groups and subscriptions by turns."""

    def place(index: int, kind: str, *names: str) -> str:
        subscription = (SUBSCRIPTION, ELSEWHERE)[index % 2]
        return resource_id(f"rg-{index % 7}", kind, *names, subscription=subscription)

    numbers = range(number)
    return {
        "plans": [
            {"setting": f"PLAN_{n}", "id": place(n, "Microsoft.Web/serverfarms", f"plan-{n}")}
            for n in numbers
        ],
        "serviceBusNamespaces": [
            {"connection": f"Bus{n}", "id": place(n, "Microsoft.ServiceBus/namespaces", f"sb-{n}")}
            for n in numbers
        ],
        "eventHubs": [
            {
                "connection": f"Hub{n}",
                "id": place(n, "Microsoft.EventHub/namespaces/eventhubs", f"hubs-{n}", f"hub-{n}"),
            }
            for n in numbers
        ],
        "storageAccounts": [
            {
                "connection": f"Store{n}",
                "id": place(n, "Microsoft.Storage/storageAccounts", f"store{n}"),
                "reads": ["queues", "blobs", "tables"][: 1 + n % 3],
            }
            for n in numbers
        ],
        "cosmosContainers": [
            {
                "setting": f"CONTAINER_{n}",
                "id": place(
                    n,
                    "Microsoft.DocumentDB/databaseAccounts/sqlDatabases/containers",
                    *(f"cosmos-{n}", "db", f"c-{n}"),
                ),
            }
            for n in numbers
        ],
    }


_EVERYTHING = {
    **CONSUMER,
    **PROCESSES,
    "TIDEMARK_OPERATOR_ID": OPERATOR,
    "TIDEMARK_SCALE_COSMOS_THROUGHPUT": "true",
    "TIDEMARK_CONSUMER_HOSTING": "trigger",
    "TIDEMARK_ALWAYS_READY": "true",
}
_PREMIUM = {"TIDEMARK_HOSTING_PLAN": "ElasticPremium"}
_DEDICATED = {"TIDEMARK_HOSTING_PLAN": "Dedicated"}
_PRIVATE = {"TIDEMARK_PRIVATE_NETWORK": "true"}
_SUBNETS = {
    "TIDEMARK_APP_SUBNET_ID": f"{SUBNETS}app",
    "TIDEMARK_CONSUMER_SUBNET_ID": f"{SUBNETS}consumer",
    "TIDEMARK_ENDPOINT_SUBNET_ID": f"{SUBNETS}endpoints",
}
_WATCHED = [
    {"setting": "BUS_ID", "id": NAMESPACE},
    {"id": NAMESPACE.replace("sb-orders", "SB-INVOICES")},
    {"id": resource_id("rg-web", "Microsoft.Cache/redis", "cache")},
]
_BUS_ENDPOINT = {"id": NAMESPACE, "group": "namespace", "zone": "privatelink.servicebus.windows.net"}

# The deployments that the tests look at: by name, with the variables of azd and the edits of the parameter file.
WORLDS: dict[str, dict[str, Any]] = {
    "as it comes": parameters({}),
    "nothing to scale yet": parameters({"ORDERS_PLAN_ID": "", "ORDERS_SERVICE_BUS_ID": ""}),
    "with the consumer in slices": parameters({**CONSUMER, "TIDEMARK_CONSUMER_HOSTING": "slices"}),
    "everything": parameters(_EVERYTHING),
    "an operator who orders": parameters(
        {"TIDEMARK_OPERATOR_ID": OPERATOR, "TIDEMARK_OPERATOR_MAY_ORDER": "true"}
    ),
    "people sign in": parameters({"TIDEMARK_SIGN_IN_CLIENT_ID": REGISTRATION}),
    "people of another tenant sign in": parameters(
        {
            "TIDEMARK_SIGN_IN_CLIENT_ID": REGISTRATION,
            "TIDEMARK_SIGN_IN_TENANT_ID": ANOTHER_TENANT,
            "TIDEMARK_HOSTING_PLAN": "Dedicated",
        },
        signInClientApplications=[],
    ),
    "roles given by somebody else": parameters({**_EVERYTHING, "TIDEMARK_ASSIGN_TARGET_ROLES": "false"}),
    "built-in roles": parameters({**_EVERYTHING, "TIDEMARK_CUSTOM_ROLES": "false"}),
    "metrics of anything": parameters({}, metricResources=_WATCHED),
    "metrics of anything, built-in roles": parameters(
        {"TIDEMARK_CUSTOM_ROLES": "false"}, metricResources=_WATCHED
    ),
    "data owner all the same": parameters({"TIDEMARK_SERVICE_BUS_DATA_OWNER": "true"}),
    "many targets": parameters({}, **many_targets(40)),
    "a dashboard of Grafana": parameters({"TIDEMARK_GRAFANA": "true"}),
    "resources of all kinds": parameters({}, resources=RESOURCES),
    "resources of all kinds, built-in roles": parameters(
        {"TIDEMARK_CUSTOM_ROLES": "false"}, resources=RESOURCES
    ),
    "one target named twice": parameters(
        {},
        plans=[
            {"setting": "A", "id": PLAN},
            {"setting": "B", "id": PLAN.upper().replace("/SUBSCRIPTIONS/", "/subscriptions/")},
        ],
    ),
    "elastic premium": parameters({**_EVERYTHING, **_PREMIUM}),
    "elastic premium, bigger": parameters(
        {**_PREMIUM, "TIDEMARK_PLAN_SKU": "EP3"}, planInstances=3, elasticInstanceLimit=20
    ),
    "dedicated": parameters({**_EVERYTHING, **_DEDICATED}),
    "dedicated, scaled by another": parameters(
        {**_DEDICATED, "TIDEMARK_PLAN_IS_SCALED": "true"}, consumerMaximumInstances=8
    ),
    "dedicated, bigger": parameters({**_DEDICATED, "TIDEMARK_PLAN_SKU": "P1v3"}, planInstances=2),
    "private network": parameters(
        {**_EVERYTHING, **_PRIVATE, "TIDEMARK_PRIVATE_APP": "true"}, furtherEndpoints=[_BUS_ENDPOINT]
    ),
    "private network, elastic premium": parameters({**_PREMIUM, **_PRIVATE}),
    "private network, dedicated": parameters({**_DEDICATED, **_PRIVATE}),
    "subnets that exist": parameters(
        {**_EVERYTHING, **_SUBNETS, "TIDEMARK_PRIVATE_DNS_ZONES": "false", "TIDEMARK_PRIVATE_APP": "true"}
    ),
}


@functools.cache
def deployed(world: str) -> Deployment:
    return expand(INFRA / "main.bicep", WORLDS[world], subscription=SUBSCRIPTION)


def only(world: str, kind: str) -> Placed:
    (placed,) = deployed(world).of_type(kind)
    return placed


def settings(world: str = "with the consumer in slices") -> dict[str, str]:
    """The app's."""
    (found,) = [
        placed
        for placed in deployed(world).of_type("Microsoft.Web/sites/config")
        if placed.name.endswith("/appsettings")
    ]
    return found.properties


def environment(world: str = "everything") -> dict[str, str]:
    """The process's."""
    (container,) = only(world, "Microsoft.App/containerApps").properties["template"]["containers"]
    return {entry["name"]: entry["value"] for entry in container["env"]}


def target(module: str) -> str:
    path = TEMPLATES["main.bicep"].modules[module].path
    assert path is not None
    return (INFRA / path).resolve().relative_to(INFRA).as_posix()


# -- documents ----------------------------------------------------------------------------------------


def documented_settings(heading: str, *, required: bool = False) -> set[str]:
    """Settings of a table, or those of them that have no default."""
    table = SETTINGS.split(f"\n## {heading}\n")[1].split("\n#")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| `")]
    needed = {"required", "required for `cosmos`"}
    cells = [row[0] for row in rows if not required or needed & {*row[1:3]}]
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
