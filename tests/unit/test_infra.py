"""The templates in infra/: what a compiler would say of them, and whether app, templates and documents agree.

There is no Bicep compiler here. The templates are read by a parser of our own and by pycep, and are deployed by simulation
(tests/bicep_language) with the parameters that azd would pass, for each of the deployments in tests/support/infra/templates.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from pycep import BicepParser

from consumer.config import read_slice
from scaling.schedules import ncrontab
from scaling.service.assembly import assemble
from tests.bicep_language import Placed, Template, expand
from tests.bicep_language.evaluation import BicepEvaluationError, functions_called, names_in
from tests.bicep_language.functions import functions_in
from tests.bicep_language.nodes import Expression
from tests.bicep_language.scopes import Scope
from tests.support.infra.templates import (
    DEPLOYING,
    FILES,
    INFRA,
    PARAMETERS,
    REGISTRY,
    ROOT,
    SUBNETS,
    SUBSCRIPTION,
    TEMPLATES,
    TEXTS,
    WORLDS,
    deployed,
    documented_settings,
    many_targets,
    only,
    parameters,
    settings,
    target,
)
from tidemark.foundation.azure import connections
from tidemark.foundation.durations import parse_duration

every_file = pytest.mark.parametrize("name", sorted(TEXTS))
every_world = pytest.mark.parametrize("world", sorted(WORLDS))

# Settings a deployment does without: they have defaults, or are for other clouds and private authorities.
OPTIONAL = {
    "AzureWebJobsStorage",
    "AzureWebJobsStorage__accountName",
    "AZURE_RESOURCE_MANAGER_AUDIENCE",
    "TIDEMARK_CA_BUNDLE",
    "TIDEMARK_CONFIG",
    *("AZURE_LOGS_ENDPOINT", "AZURE_METRICS_ENDPOINT"),
    *(
        "TIDEMARK_CALL_BUDGETS",
        "TIDEMARK_CALL_SHARE",
        "TIDEMARK_SDK_LOG_LEVEL",
        "TIDEMARK_SIGN_IN",
        "TIDEMARK_TRUSTED_HOSTS",
        "WEBSITE_TIME_ZONE",
    ),
    "TIDEMARK_METRICS_EXPORTER",
}

# Of local.settings.json, what belongs to the machine: identity endpoint, certificates, the runtime's name.
LOCAL = {
    *("FUNCTIONS_WORKER_RUNTIME", "IDENTITY_ENDPOINT", "IDENTITY_HEADER", "TIDEMARK_CA_BUNDLE"),
    "SchemaRegistry__fullyQualifiedNamespace",  # for examples; in Azure a setting of one's own, as of any connection
}

# -- what a compiler would say ------------------------------------------------------------------------


def expressions(template: Template) -> Iterator[Expression]:
    for declared in (*template.resources.values(), *template.modules.values()):
        yield from (each for each in (declared.body, declared.condition) if each is not None)
    for parameter in template.parameters.values():
        yield from (each for given in parameter.decorators.values() for each in given)
        if parameter.default is not None:
            yield parameter.default
    yield from template.variables.values()
    yield from (output.value for output in template.outputs.values())


def test_the_second_grammar_reads_every_file() -> None:
    grammar = BicepParser()

    assert [name for name, text in TEXTS.items() if not grammar.parse(text=text)] == []


@every_file
def test_every_name_is_declared_and_every_parameter_and_variable_is_used(name: str) -> None:
    template = TEMPLATES[name]
    used = {found for each in expressions(template) for found in names_in(each)}

    assert set() == used - template.declared()
    assert set() == {*template.parameters, *template.variables} - used


@every_file
def test_every_function_called_is_one_of_bicep(name: str) -> None:
    called = {found for each in expressions(TEMPLATES[name]) for found in functions_called(each)}

    assert called <= set(functions_in(Scope(SUBSCRIPTION), INFRA))


@every_file
def test_every_parameter_and_output_is_described(name: str) -> None:
    template = TEMPLATES[name]
    decorators = {
        **{key: unit.decorators for key, unit in template.parameters.items()},
        **{key: unit.decorators for key, unit in template.outputs.items()},
    }

    assert set(decorators) == {key for key, given in decorators.items() if "description" in given}


def test_modules_are_files_of_this_repository_and_no_file_is_left_over() -> None:
    assert set(TEXTS) == {"main.bicep"} | {target(module) for module in TEMPLATES["main.bicep"].modules}


def test_every_resource_and_module_is_deployed_in_one_of_the_deployments_looked_at() -> None:
    placed = {(each.file, each.symbol) for world in WORLDS for each in deployed(world).resources}
    existing = {(each.file, each.symbol) for world in WORLDS for each in deployed(world).existing}
    declared = {
        (name.rpartition("/")[2], symbol)
        for name, template in TEMPLATES.items()
        for symbol in template.resources
    }

    assert declared == placed | existing


def test_the_parameter_file_gives_parameters_of_the_main_template_and_all_without_default() -> None:
    declared = TEMPLATES["main.bicep"].parameters
    required = {name for name, parameter in declared.items() if parameter.default is None}

    assert required <= set(PARAMETERS) <= set(declared)


# -- order, scopes, names -----------------------------------------------------------------------------


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from texts_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts_in(each)


@every_world
def test_what_a_resource_names_or_lies_in_is_made_before_it(world: str) -> None:
    made = {each.id.lower(): each for each in deployed(world).resources}
    known = {identifier.lower() for identifier in made}
    for each in made.values():
        named = {text.lower() for text in texts_in(each.body)} | parents(each)
        before = {identifier.lower() for identifier in each.after}

        assert (named & known) - {each.id.lower()} <= before, each.id


def parents(each: Placed) -> set[str]:
    """Ids of all that a resource lies in, or is an extension of."""
    parts = each.id.lower().split("/")
    return {"/".join(parts[:length]) for length in range(3, len(parts))}


@every_world
def test_every_id_is_made_once(world: str) -> None:
    made = [each.id.lower() for each in deployed(world).resources]

    assert sorted(set(made)) == sorted(made)


@every_world
def test_no_role_is_given_twice_to_the_same_principal_on_the_same_resource(world: str) -> None:
    given = [
        (
            each.id.lower().partition("/providers/microsoft.authorization")[0],
            each.properties["principalId"],
            each.properties["roleDefinitionId"].rpartition("/")[2],
        )
        for each in deployed(world).of_type("Microsoft.Authorization/roleAssignments")
    ]

    assert sorted(set(given)) == sorted(given)


@every_world
def test_a_module_that_is_left_out_is_scoped_to_a_group_that_is_there_by_then(world: str) -> None:
    """Resource Manager looks for the group of a module even where the condition of the module is false."""
    groups = [each.id for each in deployed(world).of_type("Microsoft.Resources/resourceGroups")]
    for skipped in deployed(world).skipped:
        assert skipped.scope == Scope(SUBSCRIPTION) or {skipped.scope.id} <= set(groups) & skipped.after


# https://learn.microsoft.com/azure/azure-resource-manager/management/resource-name-rules
NAMES = {
    "Microsoft.App/containerApps": r"[a-z](?!.*--)[a-z0-9-]{0,30}[a-z0-9]",
    "Microsoft.App/managedEnvironments": r"[a-z](?!.*--)[a-z0-9-]{0,58}[a-z0-9]",
    "Microsoft.Authorization/roleAssignments": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "Microsoft.Authorization/roleDefinitions": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "Microsoft.Insights/components": r"[^%&\\?/]{0,259}[^%&\\?/. ]",
    "Microsoft.ManagedIdentity/userAssignedIdentities": r"[A-Za-z0-9][A-Za-z0-9_-]{2,127}",
    "Microsoft.Network/privateDnsZones": r"[a-z0-9_.-]{1,63}",
    "Microsoft.Network/privateEndpoints": r"[A-Za-z0-9][\w.-]{0,62}\w",
    "Microsoft.Network/virtualNetworks": r"[A-Za-z0-9][\w.-]{0,62}\w",
    "Microsoft.OperationalInsights/workspaces": r"[A-Za-z0-9][A-Za-z0-9-]{2,61}[A-Za-z0-9]",
    "Microsoft.Resources/resourceGroups": r"[\w.()-]{0,89}[\w()-]",
    "Microsoft.Storage/storageAccounts": r"[a-z0-9]{3,24}",
    "Microsoft.Web/serverfarms": r"[A-Za-z0-9-]{1,60}",
    "Microsoft.Web/sites": r"[A-Za-z0-9][A-Za-z0-9-]{0,58}[A-Za-z0-9]",
}
LONGEST_DEPLOYMENT = 64


@every_world
def test_names_keep_the_rules_of_their_types(world: str) -> None:
    for each in deployed(world).resources:
        if each.type in NAMES:
            assert re.fullmatch(NAMES[each.type], each.name), f"{each.type}: {each.name}"
    for _scope, name, _file in deployed(world).modules:
        assert re.fullmatch(rf"[\w.()-]{{1,{LONGEST_DEPLOYMENT}}}", name), name


def test_with_many_targets_each_has_its_roles_and_its_setting() -> None:
    world = "many targets"
    numbers = range(40)
    found = settings(world)
    plans = {
        each.id.partition("/providers/Microsoft.Authorization")[0].rpartition("/")[2]
        for each in deployed(world).of_type("Microsoft.Authorization/roleAssignments")
        if each.file == "rbac-plan.bicep"
    }

    assert {f"plan-{n}" for n in numbers} == plans
    for n in numbers:
        assert found[f"PLAN_{n}"].endswith(f"/plan-{n}")
        assert found[f"CONTAINER_{n}"].endswith(f"/c-{n}")
        assert found[f"Bus{n}__fullyQualifiedNamespace"] == f"sb-{n}.servicebus.windows.net"
        assert found[f"Hub{n}__fullyQualifiedNamespace"] == f"hubs-{n}.servicebus.windows.net"
        for service in ("blob", "queue", "table"):
            endpoint = connections.storage_endpoint(found, f"Store{n}", service)
            assert endpoint.address == f"https://store{n}.{service}.core.windows.net"
        for name in ("Bus", "Hub", "Store"):
            assert found[f"{name}{n}__credential"] == "managedidentity"


def test_a_hundred_targets_of_each_kind_fit_into_one_template() -> None:
    """A template has 800 resources at most, each round of a loop and each module counted as one."""
    given = parameters({}, **many_targets(100))
    found = expand(INFRA / "main.bicep", given, subscription=SUBSCRIPTION)

    assert 600 < len(found.modules) + 1 <= 800


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"consumerImage": "c:1", "consumerRegistryId": ""}, "TIDEMARK_CONSUMER_REGISTRY_ID"),
        ({"endpointSubnetId": f"{SUBNETS}endpoints"}, "TIDEMARK_APP_SUBNET_ID"),
        (
            {
                "endpointSubnetId": f"{SUBNETS}endpoints",
                "appSubnetId": f"{SUBNETS}app",
                "consumerImage": "c:1",
                "consumerRegistryId": REGISTRY,
            },
            "TIDEMARK_CONSUMER_SUBNET_ID",
        ),
        ({"privateApp": True}, "privateApp and furtherEndpoints need privateNetwork"),
        ({"privateNetwork": True, "appSubnetId": f"{SUBNETS}app"}, "either that, or the subnets"),
        ({"consumerHosting": "slices", "consumerShutdown": 541}, "consumerShutdown may be 540 at most"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(BicepEvaluationError, match=problem):
        expand(INFRA / "main.bicep", {**WORLDS["as it comes"], **given}, subscription=SUBSCRIPTION)


def test_a_target_that_is_named_twice_gets_its_roles_once_and_both_settings() -> None:
    world = "one target named twice"
    given = [each for each in deployed(world).resources if each.file == "rbac-plan.bicep"]

    assert len(given) == 1
    assert {"A", "B"} <= set(settings(world))


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


@every_world
def test_host_app_and_queue_binding_mean_the_same_storage_account(world: str) -> None:
    found = {name for name in settings(world) if name.startswith("AzureWebJobsStorage")}
    account = only(world, "Microsoft.Storage/storageAccounts").name

    assert found == {
        f"AzureWebJobsStorage__{name}"
        for name in ("blobServiceUri", "queueServiceUri", "tableServiceUri", "credential", "clientId")
    }
    table = connections.storage_endpoint(settings(world), "AzureWebJobsStorage", "table")
    assert table.address == f"https://{account}.table.core.windows.net"


@every_world
def test_every_connection_is_by_the_user_assigned_identity(world: str) -> None:
    found = settings(world)
    client = deployed(world).outputs["TIDEMARK_CLIENT_ID"]
    named = {name.partition("__")[0] for name in found if "__" in name}

    assert {"AzureWebJobsStorage", "AzureResourceManager"} <= named
    for prefix in named:
        assert found[f"{prefix}__credential"] == "managedidentity"
        assert found[f"{prefix}__clientId"] == client


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
    found = set(settings())

    missing = {
        name
        for name in set(local) - LOCAL
        if name not in found and not any(key.startswith(f"{name}__") for key in found)
    }

    assert set() == missing


# What no code of ours reads: the platform's own settings, by the plan that has them.
PLATFORM = {
    *("FUNCTIONS_EXTENSION_VERSION", "FUNCTIONS_WORKER_RUNTIME"),
    *("WEBSITE_RUN_FROM_PACKAGE", "WEBSITE_RUN_FROM_PACKAGE_BLOB_MI_RESOURCE_ID"),
    *("ENABLE_ORYX_BUILD", "SCM_DO_BUILD_DURING_DEPLOYMENT"),
}


@every_world
def test_no_setting_is_set_that_nothing_reads(world: str) -> None:
    """Read means documented: tests/unit/test_docs.py compares the tables with what the code reads."""
    tables = ("Settings of the app", "Settings of the consumer")
    read = {name for table in tables for name in documented_settings(table)}
    given = {
        each[key]
        for parameter in (
            "plans",
            "resources",
            "metricResources",
            "cosmosContainers",
            "serviceBusNamespaces",
            "eventHubs",
            "storageAccounts",
        )
        for each in WORLDS[world][parameter]
        for key in ("setting", "connection")
        if key in each
    }

    unread = {
        name for name in settings(world) if not {name, name.partition("__")[0]} & (read | given | PLATFORM)
    }

    assert set() == unread


def test_every_setting_that_the_app_requires_is_set() -> None:
    required = documented_settings("Settings of the app") - OPTIONAL

    assert required <= set(settings("as it comes"))
    assert required <= set(settings("elastic premium"))


def test_the_parameter_file_repeats_the_defaults_and_they_are_valid() -> None:
    world = WORLDS["nothing to scale yet"]
    declared = TEMPLATES["main.bicep"].parameters
    for name, value in world.items():
        default = declared[name].default
        if name not in {"plans", "serviceBusNamespaces"} and hasattr(default, "value"):
            assert value == default.value, name

    assert ncrontab.parse(world["collectSchedule"]).smallest_interval() == 60.0
    assert ncrontab.parse(world["verifySchedule"]).smallest_interval() == 60.0
    assert ncrontab.parse(world["consumeSchedule"]).smallest_interval() >= read_slice({})
    assert parse_duration(world["scalingLogRetention"]) == 30 * 86_400.0


@every_world
def test_settings_and_publishing_policies_write_the_site_one_after_the_other(world: str) -> None:
    writers = [each for each in deployed(world).resources if each.type.startswith("Microsoft.Web/sites/")]

    order = ["noFtpPassword", "noScmPassword", "appSettings", "signIn"]

    assert [each.symbol for each in writers] in (order, order[:-1])
    for index, each in enumerate(writers):
        assert {before.id for before in writers[:index]} <= each.after


# -- safety ---------------------------------------------------------------------------------------------


def test_templates_hold_no_secret_and_ask_for_none() -> None:
    secret = re.compile(
        r"listKeys|listConnectionStrings|listCredentials|@secure|AccountKey=|SharedAccess|InstrumentationKey|password\s*[:=]",
        re.IGNORECASE,
    )
    for path in (*FILES, INFRA / "main.parameters.json", ROOT / "azure.yaml"):
        assert secret.findall(path.read_text(encoding="utf-8")) == [], path.name
    assert not any("CONNECTION_STRING" in output for output in TEMPLATES["main.bicep"].outputs)


@every_world
def test_only_https_with_tls_1_2_and_tokens_of_the_directory_lead_into_the_app(world: str) -> None:
    site = only(world, "Microsoft.Web/sites").properties
    policies = deployed(world).of_type("Microsoft.Web/sites/basicPublishingCredentialsPolicies")

    assert site["httpsOnly"] is True
    assert (site["siteConfig"]["minTlsVersion"], site["siteConfig"]["scmMinTlsVersion"]) == ("1.2", "1.2")
    assert {each.name.rpartition("/")[2]: each.properties["allow"] for each in policies} == {
        "ftp": False,
        "scm": False,
    }


@every_world
def test_storage_and_telemetry_take_no_keys(world: str) -> None:
    account = only(world, "Microsoft.Storage/storageAccounts").properties
    insights = only(world, "Microsoft.Insights/components").properties

    assert account["allowSharedKeyAccess"] is False
    assert account["allowBlobPublicAccess"] is False
    assert account["supportsHttpsTrafficOnly"] is True
    assert account["minimumTlsVersion"] == "TLS1_2"
    assert insights["DisableLocalAuth"] is True


# -- azd, package, bundle -------------------------------------------------------------------------------


def service() -> tuple[str, dict[str, str]]:
    """The one service of azure.yaml, and its keys."""
    text = re.sub(r"\s*#.*", "", (ROOT / "azure.yaml").read_text(encoding="utf-8"))
    names = re.findall(r"^  (\w+):$", text.split("services:")[1], re.MULTILINE)
    assert len(names) == 1
    return names[0], dict(re.findall(r"^    (\w+): (\S+)$", text, re.MULTILINE))


def test_azd_finds_the_app_by_its_tag_and_packages_the_folder_of_host_json() -> None:
    name, keys = service()
    site, group = (
        only("as it comes", "Microsoft.Web/sites"),
        only("as it comes", "Microsoft.Resources/resourceGroups"),
    )

    assert site.body["tags"] == {"azd-env-name": "prod", "azd-service-name": name}
    assert group.body["tags"] == {"azd-env-name": "prod"}
    assert keys == {"project": ".", "host": "function", "language": "python", "remoteBuild": "true"}
    for needed in ("host.json", "function_app.py", "requirements.txt", "tidemark.toml"):
        assert (ROOT / keys["project"] / needed).is_file()


@every_world
def test_the_outputs_that_azd_and_the_guide_need_are_there(world: str) -> None:
    outputs = deployed(world).outputs

    assert outputs["AZURE_RESOURCE_GROUP"] == "rg-prod"
    assert outputs["AZURE_FUNCTION_NAME"] == only(world, "Microsoft.Web/sites").name
    assert set(re.findall(r"azd env get-value (\w+)", DEPLOYING)) <= {
        *outputs,
        *re.findall(r"\$\{(\w+)", json.dumps(PARAMETERS)),
    }


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


def zipped() -> set[str]:
    """What the guide's command puts into a package made by hand."""
    return set(re.search(r"^zip -r tidemark\.zip (.*?) -x", DEPLOYING, re.MULTILINE)[1].split())


def published() -> set[str]:
    """What .funcignore leaves of the folders that hold code, as the Core Tools publish them."""
    ignored = (ROOT / ".funcignore").read_text(encoding="utf-8").split()
    below = {f"tidemark/{path.name}" for path in (ROOT / "tidemark").iterdir()}
    return {"function_app.py", "scaling", "consumer", *below} - {*ignored, "tidemark/__pycache__"}


def in_the_image_of_the_local_stack() -> set[str]:
    """What the context of devstack/Dockerfile lets through."""
    rules = (ROOT / "devstack" / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    return {rule[1:] for rule in rules if rule.startswith("!")}


@pytest.mark.parametrize("holds", [zipped, published, in_the_image_of_the_local_stack])
def test_a_package_holds_what_the_app_imports(holds, tmp_path) -> None:
    for name in holds():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(ROOT / name)
    code = (
        "import sys, function_app; print(*{m.__file__ for n, m in sys.modules.items()"
        " if n.partition('.')[0] in ('scaling', 'consumer', 'tidemark')})"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert len(answer.stdout.split()) > 100
    assert all(name.startswith(str(tmp_path)) for name in answer.stdout.split())


def test_every_python_of_the_app_is_one_that_the_project_supports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    supported = SpecifierSet(project["requires-python"])
    allowed = re.findall(
        r"'(3\.\d+)'", TEXTS["main.bicep"].split("param pythonVersion")[0].rpartition("@allowed")[2]
    )

    assert WORLDS["as it comes"]["pythonVersion"] in allowed
    assert all(supported.contains(f"{python}.0") for python in allowed)


# -- logging --------------------------------------------------------------------------------------------


def test_decisions_are_not_sampled_away() -> None:
    logging = json.loads((ROOT / "host.json").read_text(encoding="utf-8"))["logging"]

    assert "Trace" in logging["applicationInsights"]["samplingSettings"]["excludedTypes"].split(";")
