"""The roles that the templates give: which, on what, and whether they can be left to others."""

from __future__ import annotations

import re

import pytest

from tests.bicep import path_of, walk
from tests.infra_support import (
    DEPLOYING,
    MAIN,
    ROLES,
    SETTINGS,
    TEXTS,
    TREES,
    arguments,
    not_empty,
    target,
)

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
        "app/rbac-operator.bicep": {
            *("Storage Table Data Reader", "Storage Queue Data Reader", "Storage Blob Data Reader"),
            *("Storage Table Data Contributor", "Storage Queue Data Contributor"),
            *("Storage Blob Data Contributor", "Monitoring Reader"),
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
        "ofOperator": "storage",
        "ofReader": None,
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
    reading = resources["readMetadata"]["config"]["properties"]
    of_account = resources["metadataOfAccount"]["config"]["properties"]
    assert reading["type"] == "CustomRole"
    assert reading["permissions"] == [{"dataActions": ["Microsoft.DocumentDB/databaseAccounts/readMetadata"]}]
    assert [path_of(of_account[key]) for key in ("scope", "roleDefinitionId")] == [
        "account.id",
        "readMetadata.id",
    ]
    assert resources["onAccount"]["config"]["condition"] == "scaleThroughput"
    assert arguments("cosmosRoles")["scaleThroughput"] == "scaleCosmosThroughput"
    assert MAIN["parameters"]["scaleCosmosThroughput"]["default"] is False


def test_a_person_reads_without_being_able_to_order_unless_that_is_wished() -> None:
    variables = TREES["app/rbac-operator.bicep"]["variables"]
    named = {
        variable: [ROLES[role["id"]] for role in variables[variable]["value"]]
        for variable in ("readerRoles", "operatorRoles")
    }

    assert all(name.endswith("Reader") for name in named["readerRoles"])
    assert all(name.endswith("Data Contributor") for name in named["operatorRoles"])
    assert [name.split()[1] for name in named["readerRoles"]] == [
        name.split()[1] for name in named["operatorRoles"]
    ]
    assert "var roles = mayOrder ? operatorRoles : readerRoles" in TEXTS["app/rbac-operator.bicep"]
    assert MAIN["modules"]["operatorRoles"]["config"]["condition"] == not_empty("operatorPrincipalId")
    assert MAIN["parameters"]["operatorPrincipalId"]["default"] == ""
    assert MAIN["parameters"]["operatorMayOrder"]["default"] is False


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

    metadata = TREES["app/rbac-cosmos.bicep"]["resources"]["readMetadata"]  # a role, to be given

    assert set(TARGETS) == outside
    for name in outside:
        made = [r for r in TREES[target(name)]["resources"].values() if not r.get("existing")]
        assert all("/roleAssignments" in r["type"].replace("sqlRole", "role") or r is metadata for r in made)


def test_parts_of_ids_that_are_not_given_exist() -> None:
    nothing = MAIN["variables"]["nothing"]["value"]  # in a group that exists before this deployment
    last = max(
        int(index) for index in re.findall(r"\b(?:eventHub|cosmos|registry)\[(\d+)\]", TEXTS["main.bicep"])
    )

    assert nothing.startswith("/subscriptions/${plan[2]}/resourceGroups/${plan[4]}/")
    assert len(nothing.split("/")) > last
    for parts, parameter in (
        ("eventHub", "eventHubId"),
        ("cosmos", "cosmosContainerId"),
        ("registry", "consumerRegistryId"),
    ):
        assert f"var {parts} = split(empty({parameter}) ? nothing : {parameter}, '/')" in TEXTS["main.bicep"]


def test_the_documents_name_the_roles_of_the_templates_and_commands_give_no_others() -> None:
    table = SETTINGS.split("## Roles", 1)[1].split("\n## ", 1)[0]

    for role in ROLES.values():
        assert role in table
        assert role in DEPLOYING
    assert set(re.findall(r'^assign "([^"]+)"', DEPLOYING, re.MULTILINE)) <= set(ROLES.values())
    for guid in re.findall(r"--role-definition-id (\S+)", DEPLOYING):
        assert ROLES[guid] == "Cosmos DB Built-in Data Contributor"
