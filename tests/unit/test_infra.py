"""The templates in infra/, read as a parsed tree.

There is no Bicep compiler here. The parser checks syntax; the tests below check what a compiler would say
about names, and what no compiler would: that app, templates and documents agree.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from pycep import BicepParser

from consumer.config import Hosting, read_config, read_hosting, read_slice
from consumer.connections import cosmos_endpoint
from consumer.process import LAST_WORDS
from scaling import connections
from scaling.assembly import assemble
from scaling.config_reader import parse_duration
from scaling.ncrontab import NcrontabSchedule
from scaling.scalers import arm
from scaling.scalers.app_service_plan import AppServicePlanScaler
from tests.bicep import calls, names, path_of, walk

ROOT = Path(__file__).resolve().parents[2]
INFRA = ROOT / "infra"
FILES = sorted(INFRA.rglob("*.bicep"))
TEXTS = {path.relative_to(INFRA).as_posix(): path.read_text(encoding="utf-8") for path in FILES}
TREES = {name: BicepParser().parse(text=text) for name, text in TEXTS.items()}
MAIN = TREES["main.bicep"]
APP = TREES["app/functions.bicep"]
SITE = APP["resources"]["site"]["config"]
PROCESS = TREES["app/consumer-app.bicep"]
CONTAINER_APP = PROCESS["resources"]["consumer"]["config"]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
DEPLOYING = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")

every_file = pytest.mark.parametrize("name", sorted(TEXTS))
every_module = pytest.mark.parametrize("module", sorted(MAIN["modules"]))

ROLES = {
    "b7e6dc6d-f1e8-4753-8033-0f276bb0955b": "Storage Blob Data Owner",
    "974c5e8b-45b9-4653-ba55-5f855dd0fb88": "Storage Queue Data Contributor",
    "0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3": "Storage Table Data Contributor",
    "3913510d-42f4-4e42-8a64-420c390055eb": "Monitoring Metrics Publisher",
    "2cc479cb-7b4d-49a8-b449-8c00fd0f0a4b": "Web Plan Contributor",
    "43d0d8ad-25c7-4714-9337-8ba259a9fe05": "Monitoring Reader",
    "090c5cfd-751d-490a-894a-3ce6f1109419": "Azure Service Bus Data Owner",
    "a638d3c7-ab3a-418d-83e6-5f17a39d4fde": "Azure Event Hubs Data Receiver",
    "00000000-0000-0000-0000-000000000002": "Cosmos DB Built-in Data Contributor",
    "230815da-be43-4aae-9cb4-875f7bd000aa": "Cosmos DB Operator",
    "7f951dda-4ed3-4680-a7ca-43fe172d538d": "AcrPull",
}

# Functions of Bicep that the templates use, and `if`, which is written like one.
FUNCTIONS = {
    *("concat", "empty", "environment", "guid", "if", "items", "resourceGroup", "split", "string"),
    *("subscription", "subscriptionResourceId", "toLower", "union", "uniqueString"),
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

# Settings a deployment does without: they have defaults, or are for other clouds and private authorities.
OPTIONAL = {
    "AzureWebJobsStorage",
    "AzureWebJobsStorage__accountName",
    "AZURE_RESOURCE_MANAGER_AUDIENCE",
    "TIDEMARK_CA_BUNDLE",
    "TIDEMARK_CONFIG",
}

# Of local.settings.json, what belongs to the machine: identity endpoint, certificates, the runtime's name.
LOCAL = {"FUNCTIONS_WORKER_RUNTIME", "IDENTITY_ENDPOINT", "IDENTITY_HEADER", "TIDEMARK_CA_BUNDLE"}

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
}


# -- reading templates ------------------------------------------------------------------------------


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


# -- what a compiler would say ------------------------------------------------------------------------


@every_file
def test_every_name_is_declared_and_every_parameter_and_variable_is_used(name: str) -> None:
    declared, units, used = names(TEXTS[name])

    assert set() == used - declared
    assert set() == units - used


@every_file
def test_every_function_called_is_one_of_bicep(name: str) -> None:
    assert calls(TEXTS[name]) <= FUNCTIONS


def test_names_that_are_unknown_or_unused_are_found() -> None:
    text = "param a string\nvar b = 'x${c}y${d}' // e\nresource f 'g' = [for h in a: {\n  name: h.i\n}]\n"

    declared, units, used = names(text)

    assert ({"a", "b", "f", "h"}, {"a", "b"}, {"a", "c", "d", "h"}) == (declared, units, used)


@every_file
def test_every_parameter_and_output_is_described(name: str) -> None:
    tree = TREES[name]
    units = {**tree.get("parameters", {}), **tree.get("outputs", {})}

    described = {
        key for key, unit in units.items() if any(d["type"] == "description" for d in unit["decorators"])
    }

    assert set(units) == described


def test_modules_are_files_of_this_repository() -> None:
    assert {"local"} == {module["type"] for module in MAIN["modules"].values()}
    assert set(TEXTS) == {"main.bicep"} | {target(module) for module in MAIN["modules"]}


@every_module
def test_a_module_gets_the_parameters_it_declares(module: str) -> None:
    declared = TREES[target(module)]["parameters"]
    required = {name for name, parameter in declared.items() if parameter["default"] is None}

    assert required <= set(arguments(module)) <= set(declared)


def test_outputs_that_are_used_exist() -> None:
    for module, output in re.findall(r"\b(\w+)\.outputs\.(\w+)", TEXTS["main.bicep"]):
        assert output in TREES[target(module)]["outputs"], f"{module}.outputs.{output}"


def test_the_parameter_file_gives_parameters_of_the_main_template_and_all_without_default() -> None:
    given = json.loads((INFRA / "main.parameters.json").read_text(encoding="utf-8"))["parameters"]
    declared = MAIN["parameters"]
    required = {name for name, parameter in declared.items() if parameter["default"] is None}

    assert required <= set(given) <= set(declared)


# -- settings -------------------------------------------------------------------------------------------


def test_the_app_can_be_assembled_from_the_settings_of_the_template() -> None:
    autoscaler = assemble(settings(), root=ROOT)
    metrics = [
        spec for policy in autoscaler.config.policies.values() for spec in policy.spec.metrics.values()
    ]

    assert metrics
    for metric in metrics:  # collectors look at their connection when they first read
        assert metric.collector.startswith("service_bus")
        endpoint = connections.service_bus_endpoint(settings(), metric.options["connection"])
        assert endpoint.namespace == "sb-orders.servicebus.windows.net"


def test_host_app_and_queue_binding_mean_the_same_storage_account() -> None:
    found = {name for name in settings() if name.startswith("AzureWebJobsStorage")}

    assert found == {
        f"AzureWebJobsStorage__{name}"
        for name in ("blobServiceUri", "queueServiceUri", "tableServiceUri", "credential", "clientId")
    }


def test_every_connection_is_by_the_user_assigned_identity() -> None:
    found = settings()
    table = connections.storage_endpoint(found, "AzureWebJobsStorage", "table")

    assert table.url == "https://sttidemark.table.core.windows.net"
    prefixes = ("AzureWebJobsStorage", "OrdersServiceBus", "EventHubConnection", "CosmosConnection")
    for prefix in (*prefixes, arm.CONNECTION):
        assert found[f"{prefix}__credential"] == "managedidentity"
        assert VALUES["identityClientId"] == found[f"{prefix}__clientId"]
    assert f"{arm.PUBLIC_CLOUD}/.default" == arm.scope(found)


def test_settings_that_bindings_and_tidemark_toml_name_are_in_the_template() -> None:
    sources = [(ROOT / half / "functions.py").read_text(encoding="utf-8") for half in ("scaling", "consumer")]
    bound = [name for source in sources for name in re.findall(r"%(\w+)%", source)]
    configured = re.findall(r"%(\w+)%", (ROOT / "tidemark.toml").read_text(encoding="utf-8"))

    assert {
        *("COLLECT_SCHEDULE", "VERIFY_SCHEDULE", "CONSUME_SCHEDULE"),
        *("EVENTHUB_NAME", "EVENTHUB_CONSUMERGROUP"),
    } == set(bound)
    assert {*bound, *configured} - {"NAME"} <= set(settings())


def test_local_settings_have_their_counterpart_in_the_template() -> None:
    local = json.loads((ROOT / "local.settings.json").read_text(encoding="utf-8"))["Values"]
    deployed = set(settings())

    missing = {
        name
        for name in set(local) - LOCAL
        if name not in deployed and not any(key.startswith(f"{name}__") for key in deployed)
    }

    assert set() == missing


def documented_settings(heading: str, *, required: bool = False) -> set[str]:
    """Settings of a table, or those of them that have no default."""
    table = OPERATIONS.split(f"\n## {heading}\n")[1].split("\n#")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| `")]
    cells = [row[0] for row in rows if not required or row[1] in {"required", "required for `cosmos`"}]
    found: set[str] = set()
    for cell in cells:
        prefix = ""
        for name in re.findall(r"`(\w+)`", cell):
            prefix = prefix if name.startswith("__") else name.partition("__")[0]
            found.add(prefix + name if name.startswith("__") else name)
    return found


def test_documented_settings_and_settings_of_the_template_are_the_same() -> None:
    deployed = settings_of_variable(APP, "settings")
    own = {name for name in deployed if not name.startswith(("OrdersServiceBus", "ORDERS_"))}

    assert documented_settings("Settings of the app") - OPTIONAL == own


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
        assert hub.namespace == "evhns-flights.servicebus.windows.net"
        assert cosmos.url == "https://cosmos-flights.documents.azure.com:443/"
        assert not isinstance(cosmos.credential, str)
        for service in ("blob", "table"):
            endpoint = connections.storage_endpoint(found, config.storage_connection, service)
            assert endpoint.url == f"https://sttidemark.{service}.core.windows.net"


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


def test_no_setting_is_one_that_flex_consumption_refuses() -> None:
    assert set() == NOT_ON_FLEX & set(settings())
    assert {"linuxFxVersion", "alwaysOn", "pythonVersion"}.isdisjoint(SITE["properties"]["siteConfig"])


def test_schedules_and_retention_of_the_parameters_are_valid() -> None:
    given = json.loads((INFRA / "main.parameters.json").read_text(encoding="utf-8"))["parameters"]
    for name, entry in given.items():
        text = str(entry["value"])
        variable = re.fullmatch(r"\$\{\w+(?:=(.*))?\}", text)
        value = (variable.group(1) or "") if variable else text
        default = MAIN["parameters"][name]["default"]
        assert value == ("" if default in ({}, None) else str(default).lower()) or default == {}, name

    assert NcrontabSchedule.parse(given["collectSchedule"]["value"]).smallest_interval() == 60.0
    assert NcrontabSchedule.parse(given["verifySchedule"]["value"]).smallest_interval() == 60.0
    assert NcrontabSchedule.parse(given["consumeSchedule"]["value"]).smallest_interval() >= read_slice({})
    assert parse_duration(given["scalingLogRetention"]["value"]) == 30 * 86_400.0


# -- roles ----------------------------------------------------------------------------------------------

GUID = re.compile(r"'([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})'")


def test_the_identity_has_the_roles_it_needs_and_no_other() -> None:
    assigned = {
        name: {ROLES[guid] for guid in GUID.findall(text)}
        for name, text in TEXTS.items()
        if GUID.search(text)
    }

    assert {
        "app/rbac.bicep": {
            "Storage Blob Data Owner",
            "Storage Queue Data Contributor",
            "Storage Table Data Contributor",
            "Monitoring Metrics Publisher",
        },
        "app/rbac-plan.bicep": {"Web Plan Contributor", "Monitoring Reader"},
        "app/rbac-service-bus.bicep": {"Azure Service Bus Data Owner"},
        "app/rbac-event-hub.bicep": {"Azure Event Hubs Data Receiver"},
        "app/rbac-cosmos.bicep": {"Cosmos DB Built-in Data Contributor", "Cosmos DB Operator"},
        "app/rbac-registry.bicep": {"AcrPull"},
    } == assigned


def test_roles_end_at_the_resource_except_monitoring_reader_which_lists_a_group() -> None:
    scopes = {
        key: resource["config"].get("config", resource["config"]).get("scope")
        for tree in TREES.values()
        for key, resource in tree.get("resources", {}).items()
        if resource["type"] == "Microsoft.Authorization/roleAssignments"
    }

    assert scopes == {
        "onStorage": "storage",
        "onApplicationInsights": "applicationInsights",
        "onPlan": "plan",
        "onGroup": None,
        "onNamespace": "serviceBus",
        "onHub": "hub",
        "onAccount": "account",
        "onRegistry": "registry",
    }


def test_data_may_be_written_to_the_one_container_and_throughput_only_where_wished() -> None:
    resources = TREES["app/rbac-cosmos.bicep"]["resources"]
    properties = resources["onContainer"]["config"]["properties"]

    assert resources["onContainer"]["type"] == "Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments"
    assert properties["scope"] == "${account.id}/dbs/${databaseName}/colls/${containerName}"
    assert properties["roleDefinitionId"] == "${account.id}/sqlRoleDefinitions/${builtInDataContributor}"
    assert resources["onAccount"]["config"]["condition"] == "scaleThroughput"
    assert arguments("cosmosRoles")["scaleThroughput"] == "scaleCosmosThroughput"
    assert MAIN["parameters"]["scaleCosmosThroughput"]["default"] is False


# Module with roles on something that exists: the parts of its resource id, and the parameter it depends on.
TARGETS = {
    "planRoles": ("plan", None),
    "serviceBusRoles": ("serviceBus", None),
    "eventHubRoles": ("eventHub", "eventHubId"),
    "cosmosRoles": ("cosmos", "cosmosContainerId"),
    "registryRoles": ("registry", "consumerImage"),
}


@pytest.mark.parametrize("module", TARGETS)
def test_target_roles_go_to_the_groups_of_the_targets_and_can_be_left_to_others(module: str) -> None:
    parts, given = TARGETS[module]
    config = MAIN["modules"][module]["config"]
    scope = config["config"]["scope"]["function"]
    indexed = [node["operands"] for node in walk(scope) if isinstance(node, dict) and "operands" in node]
    wished = {"operand_1": "assignTargetRoles", "operand_2": not_empty(given)} if given else None

    assert config["condition"] == (
        {"operator": {"type": "and", "operands": wished}} if wished else "assignTargetRoles"
    )
    assert scope["type"] == "resource_group"
    assert [(parts, 4), (parts, 2)] == [(o["operand_1"], o["operand_2"]) for o in indexed]


def test_all_modules_that_reach_into_other_groups_give_roles_and_nothing_else() -> None:
    outside = {
        name
        for name in MAIN["modules"]
        if MAIN["modules"][name]["config"].get("config", MAIN["modules"][name]["config"])["scope"] != "group"
    }

    assert set(TARGETS) == outside
    for name in outside:
        made = [r for r in TREES[target(name)]["resources"].values() if not r.get("existing")]
        assert all("roleAssignments" in r["type"].replace("sqlRole", "role") for r in made)


def test_parts_of_ids_that_are_not_given_exist() -> None:
    nothing = MAIN["variables"]["nothing"]["value"]
    last = max(
        int(index) for index in re.findall(r"\b(?:eventHub|cosmos|registry)\[(\d+)\]", TEXTS["main.bicep"])
    )

    assert nothing.startswith("${subscription().id}/resourceGroups/${groupName}/")
    assert len(nothing.replace("${subscription().id}", "/subscriptions/id").split("/")) > last
    for parts, parameter in (
        ("eventHub", "eventHubId"),
        ("cosmos", "cosmosContainerId"),
        ("registry", "consumerRegistryId"),
    ):
        assert f"var {parts} = split(empty({parameter}) ? nothing : {parameter}, '/')" in TEXTS["main.bicep"]


def test_the_documents_name_the_roles_of_the_templates_and_commands_give_no_others() -> None:
    table = OPERATIONS.split("### Roles", 1)[1].split("\n## ", 1)[0]

    for role in ROLES.values():
        assert role in table
        assert role in DEPLOYING
    assert set(re.findall(r'^assign "([^"]+)"', DEPLOYING, re.MULTILINE)) <= set(ROLES.values())
    for guid in re.findall(r"--role-definition-id (\S+)", DEPLOYING):
        assert ROLES[guid] == "Cosmos DB Built-in Data Contributor"


# -- safety ---------------------------------------------------------------------------------------------


def test_templates_hold_no_secret_and_ask_for_none() -> None:
    secret = re.compile(
        r"listKeys|listConnectionStrings|listCredentials|@secure|AccountKey=|SharedAccess|InstrumentationKey|password\s*[:=]",
        re.IGNORECASE,
    )
    for path in (*FILES, INFRA / "main.parameters.json", ROOT / "azure.yaml"):
        assert secret.findall(path.read_text(encoding="utf-8")) == [], path.name
    assert not any("CONNECTION_STRING" in output for output in MAIN["outputs"])


def test_only_https_with_tls_1_2_and_tokens_of_the_directory_lead_into_the_app() -> None:
    policies = {
        resource["config"]["name"]: resource["config"]["properties"]["allow"]
        for resource in APP["resources"].values()
        if resource["type"] == "Microsoft.Web/sites/basicPublishingCredentialsPolicies"
    }
    site = SITE["properties"]["siteConfig"]

    assert SITE["properties"]["httpsOnly"] is True
    assert (site["minTlsVersion"], site["scmMinTlsVersion"], site["ftpsState"]) == ("1.2", "1.2", "Disabled")
    assert policies == {"ftp": False, "scm": False}


def test_storage_and_telemetry_take_no_keys() -> None:
    account = TREES["app/storage.bicep"]["resources"]["account"]["config"]["properties"]
    insights = TREES["app/monitoring.bicep"]["resources"]["applicationInsights"]["config"]["properties"]

    assert account["allowSharedKeyAccess"] is False
    assert account["allowBlobPublicAccess"] is False
    assert account["supportsHttpsTrafficOnly"] is True
    assert account["minimumTlsVersion"] == "TLS1_2"
    assert insights["DisableLocalAuth"] is True


# -- plan, runtime, package -----------------------------------------------------------------------------

# Longest functionTimeout by tier of the plan, in seconds; None where it is unbounded.
LONGEST = {"Dynamic": 600.0, "FlexConsumption": None, "ElasticPremium": None}


def timeout_of_functions() -> int:
    host = json.loads((ROOT / "host.json").read_text(encoding="utf-8"))
    hours, minutes, seconds = map(int, host["functionTimeout"].split(":"))
    return 3600 * hours + 60 * minutes + seconds


def test_function_timeout_fits_the_plan_and_leaves_the_scaler_its_deadline() -> None:
    timeout = timeout_of_functions()
    longest = LONGEST[APP["resources"]["plan"]["config"]["sku"]["tier"]]

    assert longest is None or timeout <= longest
    assert timeout > AppServicePlanScaler.Params(resource_id="").deadline_seconds


def test_the_plan_is_flex_consumption_with_a_python_that_the_project_supports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    supported = SpecifierSet(project["requires-python"])
    version = MAIN["parameters"]["pythonVersion"]
    allowed = next(d["argument"] for d in version["decorators"] if d["type"] == "allowed")
    plan = APP["resources"]["plan"]["config"]

    assert plan["sku"] == {"name": "FC1", "tier": "FlexConsumption"}
    assert plan["properties"]["reserved"] is True
    assert SITE["properties"]["functionAppConfig"]["runtime"]["name"] == "python"
    assert SITE["properties"]["functionAppConfig"]["runtime"]["version"] == "pythonVersion"
    assert version["default"] in allowed
    assert all(supported.contains(f"{python}.0") for python in allowed)


def test_the_functions_that_can_be_kept_warm_are_those_that_a_queue_starts() -> None:
    source = (ROOT / "scaling" / "functions.py").read_text(encoding="utf-8")
    queued = set(re.findall(r"queue_trigger\((?:(?!def )[\s\S])*?async def (\w+)", source))
    warm = APP["variables"]["queueFunctions"]["value"]

    assert {f"function:{name}" for name in queued} == {entry["name"] for entry in warm}


def test_the_function_of_the_event_hub_can_be_kept_warm_where_there_is_one() -> None:
    source = (ROOT / "consumer" / "functions.py").read_text(encoding="utf-8")
    warm = APP["variables"]["eventFunctions"]["value"]

    assert [entry["name"].partition(":")[2] for entry in warm] == ["consume_events"]
    assert "async def consume_events(" in source
    assert (
        "consumerHosting == 'trigger' ? union(queueFunctions, eventFunctions) : queueFunctions"
        in (TEXTS["app/functions.bicep"])
    )


def service() -> tuple[str, dict[str, str]]:
    """The one service of azure.yaml, and its keys."""
    text = re.sub(r"\s*#.*", "", (ROOT / "azure.yaml").read_text(encoding="utf-8"))
    names = re.findall(r"^  (\w+):$", text.split("services:")[1], re.MULTILINE)
    assert len(names) == 1
    return names[0], dict(re.findall(r"^    (\w+): (\S+)$", text, re.MULTILINE))


def test_azd_finds_the_app_by_its_tag_and_packages_the_folder_of_host_json() -> None:
    name, keys = service()
    tags = SITE["tags"]["function"]["parameters"]["arg_2"]

    assert {"'azd-service-name'": name} == tags
    assert keys == {"project": ".", "host": "function", "language": "python", "remoteBuild": "true"}
    for needed in ("host.json", "function_app.py", "requirements.txt", "tidemark.toml"):
        assert (ROOT / keys["project"] / needed).is_file()


def test_the_package_holds_what_runs_and_no_local_settings() -> None:
    ignored = set((ROOT / ".funcignore").read_text(encoding="utf-8").split())

    assert {"local.settings.json", "devstack", "tests", ".venv"} <= ignored
    assert ignored.isdisjoint(
        {"host.json", "function_app.py", "requirements.txt", "tidemark.toml", "scaling", "consumer"}
    )


def test_a_package_made_by_hand_holds_what_the_app_imports() -> None:
    imported = re.findall(
        r"^from (\w+)\.", (ROOT / "function_app.py").read_text(encoding="utf-8"), re.MULTILINE
    )
    zipped = re.search(r"^zip -r tidemark\.zip (.*?) -x", DEPLOYING, re.MULTILINE)

    assert zipped is not None
    assert set(zipped.group(1).split()) == {
        *("host.json", "function_app.py", "requirements.txt", "tidemark.toml"),
        *imported,
    }


# -- the consumer as processes --------------------------------------------------------------------------

DOCKERFILE = (ROOT / "infra" / "consumer" / "Dockerfile").read_text(encoding="utf-8")


def test_the_platform_waits_longer_than_processes_take_to_stop() -> None:
    added = PROCESS["variables"]["grace"]["value"]["operator"]
    command = (ROOT / "consumer" / "command.py").read_text(encoding="utf-8")
    parent = re.search(r"grace=config\.shutdown \+ ([\d.]+)", command)
    longest = next(
        d["argument"]
        for d in MAIN["parameters"]["consumerShutdown"]["decorators"]
        if d["type"] == "max_value"
    )

    assert parent is not None
    assert (added["type"], added["operands"]["operand_1"]) == ("add", "shutdown")
    assert arguments("consumerApp")["shutdown"] == "consumerShutdown"
    assert added["operands"]["operand_2"] > float(parent.group(1)) + LAST_WORDS
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

    assert copied == {"requirements.txt", "scaling", "consumer"}
    assert imported & ours <= copied
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == copied


def test_the_image_has_the_python_of_the_app_and_passes_signals_on() -> None:
    assert f"FROM python:{MAIN['parameters']['pythonVersion']['default']}-slim" in DOCKERFILE
    assert DOCKERFILE.rstrip().endswith('ENTRYPOINT ["python", "-m", "consumer"]')
    assert "\nUSER " in DOCKERFILE


# -- the guide ------------------------------------------------------------------------------------------


def test_the_parameters_are_documented_with_their_variables_and_defaults() -> None:
    given = json.loads((INFRA / "main.parameters.json").read_text(encoding="utf-8"))["parameters"]
    table = DEPLOYING.split("\n### Parameters\n")[1].split("\n#")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if "`" in line
    ]
    documented = {
        name: (row[1].strip("`"), row[2]) for row in rows for name in re.findall(r"`(\w+)`", row[0])
    }

    assert set(documented) == set(given) == set(MAIN["parameters"])
    for name, (variable, default) in documented.items():
        found = re.fullmatch(r"\$\{(\w+)(?:=.*)?\}", str(given[name]["value"]))
        assert variable == (found.group(1) if found else ""), name
        declared = MAIN["parameters"][name]["default"]
        if default.startswith("`") and declared not in ({}, ""):
            assert default.strip("`") == str(declared).lower(), name


def test_every_setting_and_variable_the_guide_names_exists() -> None:
    named = set(re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b", DEPLOYING))
    parameters = (INFRA / "main.parameters.json").read_text(encoding="utf-8")
    known = {
        *documented_settings("Settings of the app"),
        *documented_settings("Settings of the consumer"),
        *re.findall(r"\$\{(\w+)", parameters),
        *MAIN["outputs"],
        *settings(),
        *NOT_ON_FLEX,
        *("INVOICES_PLAN_ID", "FLIGHTS_CONTAINER_ID"),  # examples of further settings
    }

    assert set() == named - known


def test_the_extras_of_the_package_are_in_the_guide() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"]) - {"dev", "devstack"}
    table = DEPLOYING.split("\n### Extras\n")[1].split("\n#")[0]

    assert extras == set(re.findall(r"^\| `([\w-]+)`", table, re.MULTILINE))
    assert set(re.findall(r"--extra ([\w-]+)", DEPLOYING)) <= extras


# -- logging --------------------------------------------------------------------------------------------


def test_decisions_are_not_sampled_away() -> None:
    logging = json.loads((ROOT / "host.json").read_text(encoding="utf-8"))["logging"]

    assert "Trace" in logging["applicationInsights"]["samplingSettings"]["excludedTypes"].split(";")
