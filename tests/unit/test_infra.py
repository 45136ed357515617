"""The templates in infra/, read as a parsed tree.

There is no Bicep compiler here. The parser checks syntax; the tests below check what a compiler would say
about names, and what no compiler would: that app, templates and documents agree.
"""

from __future__ import annotations

import json
import re
import tomllib

import pytest
from packaging.specifiers import SpecifierSet

from consumer.config import read_slice
from foundation.azure import connections
from foundation.durations import parse_duration
from scaling.scalers.app_service.scaler import AppServicePlanScaler
from scaling.scalers.arm import clients as arm
from scaling.schedules import ncrontab
from scaling.service.assembly import assemble
from tests.bicep import calls, names
from tests.infra_support import (
    APP,
    DEPLOYING,
    FILES,
    INFRA,
    MAIN,
    NOT_IN_SITE_CONFIG,
    NOT_ON_FLEX,
    ROOT,
    SITE,
    TEXTS,
    TREES,
    VALUES,
    arguments,
    documented_settings,
    settings,
    settings_of_variable,
    target,
    timeout_of_functions,
)

every_file = pytest.mark.parametrize("name", sorted(TEXTS))
every_module = pytest.mark.parametrize("module", sorted(MAIN["modules"]))

# Functions of Bicep that the templates use, and `if`, which is written like one.
FUNCTIONS = {
    *("concat", "empty", "environment", "guid", "if", "items", "resourceGroup", "split", "string"),
    *("subscription", "subscriptionResourceId", "toLower", "union", "uniqueString"),
}

# Settings a deployment does without: they have defaults, or are for other clouds and private authorities.
OPTIONAL = {
    "AzureWebJobsStorage",
    "AzureWebJobsStorage__accountName",
    "AZURE_RESOURCE_MANAGER_AUDIENCE",
    "TIDEMARK_CA_BUNDLE",
    "TIDEMARK_CONFIG",
    *("TIDEMARK_SDK_LOG_LEVEL", "TIDEMARK_SIGN_IN", "WEBSITE_TIME_ZONE"),
}

# Of local.settings.json, what belongs to the machine: identity endpoint, certificates, the runtime's name.
LOCAL = {"FUNCTIONS_WORKER_RUNTIME", "IDENTITY_ENDPOINT", "IDENTITY_HEADER", "TIDEMARK_CA_BUNDLE"}

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
        assert endpoint.address == "sb-orders.servicebus.windows.net"


def test_host_app_and_queue_binding_mean_the_same_storage_account() -> None:
    found = {name for name in settings() if name.startswith("AzureWebJobsStorage")}

    assert found == {
        f"AzureWebJobsStorage__{name}"
        for name in ("blobServiceUri", "queueServiceUri", "tableServiceUri", "credential", "clientId")
    }


def test_every_connection_is_by_the_user_assigned_identity() -> None:
    found = settings()
    table = connections.storage_endpoint(found, "AzureWebJobsStorage", "table")

    assert table.address == "https://sttidemark.table.core.windows.net"
    prefixes = ("AzureWebJobsStorage", "OrdersServiceBus", "EventHubConnection", "CosmosConnection")
    for prefix in (*prefixes, arm.CONNECTION):
        assert found[f"{prefix}__credential"] == "managedidentity"
        assert VALUES["identityClientId"] == found[f"{prefix}__clientId"]
    assert f"{arm.PUBLIC_CLOUD}/.default" == arm.scope(found)


def test_settings_that_bindings_and_tidemark_toml_name_are_in_the_template() -> None:
    sources = [
        (ROOT / half / "web/functions.py").read_text(encoding="utf-8") for half in ("scaling", "consumer")
    ]
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


def test_documented_settings_and_settings_of_the_template_are_the_same() -> None:
    deployed = settings_of_variable(APP, "settings")
    own = {name for name in deployed if not name.startswith(("OrdersServiceBus", "ORDERS_"))}

    assert documented_settings("Settings of the app") - OPTIONAL == own


def test_no_setting_is_one_that_flex_consumption_refuses() -> None:
    assert set() == NOT_ON_FLEX & set(settings())


@pytest.mark.parametrize("name", sorted(NOT_IN_SITE_CONFIG))
def test_no_property_of_the_site_is_one_that_flex_consumption_refuses(name: str) -> None:
    assert name.lower() not in {given.lower() for given in SITE["properties"]["siteConfig"]}


def test_the_parameter_file_repeats_the_defaults_and_they_are_valid() -> None:
    given = json.loads((INFRA / "main.parameters.json").read_text(encoding="utf-8"))["parameters"]
    for name, entry in given.items():
        variable = re.fullmatch(r"\$\{\w+(?:=(?P<value>.*))?\}", str(entry["value"]))
        value = (variable["value"] or "") if variable else entry["value"]
        default = MAIN["parameters"][name]["default"]
        if default is not None:
            assert str(value).lower() == str(default).lower(), name

    assert ncrontab.parse(given["collectSchedule"]["value"]).smallest_interval() == 60.0
    assert ncrontab.parse(given["verifySchedule"]["value"]).smallest_interval() == 60.0
    assert ncrontab.parse(given["consumeSchedule"]["value"]).smallest_interval() >= read_slice({})
    assert parse_duration(given["scalingLogRetention"]["value"]) == 30 * 86_400.0


def test_instances_and_their_memory_can_be_chosen_within_what_flex_consumption_offers() -> None:
    scale = SITE["properties"]["functionAppConfig"]["scaleAndConcurrency"]
    limits = {d["type"]: d["argument"] for d in MAIN["parameters"]["maximumInstanceCount"]["decorators"]}
    sizes = {d["type"]: d["argument"] for d in MAIN["parameters"]["instanceMemoryMB"]["decorators"]}

    for name in ("instanceMemoryMB", "maximumInstanceCount"):
        assert scale[name] == name
        assert arguments("functions")[name] == name
        assert APP["parameters"][name]["default"] is None  # the one default is that of the main template
    assert (limits["min_value"], limits["max_value"]) == (40, 1000)
    assert sizes["allowed"] == [512, 2048, 4096]


def test_the_ceiling_of_the_triggers_rate_is_known_to_the_app() -> None:
    assert settings_of_variable(MAIN, "hostingSettings")["CONSUMER_MAXIMUM_INSTANCES"] == "40"
    assert MAIN["variables"]["hostingSettings"]["value"]["CONSUMER_MAXIMUM_INSTANCES"] == (
        "${maximumInstanceCount}"
    )


def test_settings_and_publishing_policies_write_the_site_one_after_the_other() -> None:
    writers = [name for name, each in APP["resources"].items() if each["config"].get("parent") == "site"]
    chain = {name: APP["resources"][name]["config"].get("dependsOn") for name in writers}

    assert chain == {
        "noFtpPassword": None,
        "noScmPassword": ["noFtpPassword"],
        "appSettings": ["noScmPassword"],
    }


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
    assert (site["minTlsVersion"], site["scmMinTlsVersion"]) == ("1.2", "1.2")
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
    source = (ROOT / "scaling/web/functions.py").read_text(encoding="utf-8")
    queued = set(re.findall(r"queue_trigger\((?:(?!def )[\s\S])*?async def (\w+)", source))
    warm = APP["variables"]["queueFunctions"]["value"]

    assert {f"function:{name}" for name in queued} == {entry["name"] for entry in warm}


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


def test_azd_is_recent_enough_for_what_azure_yaml_asks_for() -> None:
    text = (ROOT / "azure.yaml").read_text(encoding="utf-8")
    (least,) = re.findall(r'^requiredVersions:\n  azd: "(.*)"', text, re.MULTILINE)

    assert least.startswith(">= ")
    assert least.removeprefix(">= ") in DEPLOYING


def test_the_extension_bundle_is_one_whose_event_hubs_trigger_keeps_its_checkpoint_at_a_shutdown() -> None:
    bundle = json.loads((ROOT / "host.json").read_text(encoding="utf-8"))["extensionBundle"]["version"]
    least = SpecifierSet(">=4.29.0")  # the first with Microsoft.Azure.WebJobs.Extensions.EventHubs 6

    assert re.fullmatch(r"\[(4\.\d+\.\d+), 5\.0\.0\)", bundle)
    assert least.contains(bundle[1:].partition(",")[0])


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


# -- logging --------------------------------------------------------------------------------------------


def test_decisions_are_not_sampled_away() -> None:
    logging = json.loads((ROOT / "host.json").read_text(encoding="utf-8"))["logging"]

    assert "Trace" in logging["applicationInsights"]["samplingSettings"]["excludedTypes"].split(";")
