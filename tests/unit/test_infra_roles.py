"""The roles that the templates give: which, on what, and whether they can be left to others."""

from __future__ import annotations

import re

import pytest

from tests.bicep_language import Placed
from tests.support.infra.templates import (
    CONTAINER,
    DEPLOYING,
    ELSEWHERE,
    HUB,
    NAMESPACE,
    OPERATOR,
    PLAN,
    REGISTRY,
    ROLES,
    SETTINGS,
    SUBSCRIPTION,
    WORLDS,
    deployed,
    only,
)

ASSIGNMENT, DEFINITION = "Microsoft.Authorization/roleAssignments", "Microsoft.Authorization/roleDefinitions"
ACCOUNT = CONTAINER.partition("/sqlDatabases")[0]
every_world = pytest.mark.parametrize("world", sorted(WORLDS))


def roles_of(world: str) -> dict[str, str]:
    """Names of roles by their GUID; those of our own without the token that they end with."""
    own = {
        each.name: each.properties["roleName"].rpartition(" ")[0]
        for each in deployed(world).of_type(DEFINITION)
    }
    return ROLES | own


def given(world: str) -> set[tuple[str, str]]:
    """Name of the role, and last segment of what it is given on, of the app's identity."""
    names = roles_of(world)
    return {
        (names[each.properties["roleDefinitionId"].rpartition("/")[2]], scope_of(each).rpartition("/")[2])
        for each in deployed(world).of_type(ASSIGNMENT)
        if each.properties["principalId"] == deployed(world).outputs["TIDEMARK_PRINCIPAL_ID"]
    }


def scope_of(each: Placed) -> str:
    return each.id.partition(f"/providers/{ASSIGNMENT}")[0]


def own_resources(world: str) -> set[tuple[str, str]]:
    account, insights, site = (
        only(world, "Microsoft.Storage/storageAccounts"),
        only(world, "Microsoft.Insights/components"),
        only(world, "Microsoft.Web/sites"),
    )
    return {
        ("Storage Blob Data Owner", account.name),
        ("Storage Queue Data Contributor", account.name),
        ("Storage Table Data Contributor", account.name),
        ("Monitoring Metrics Publisher", insights.name),
        ("Reader", site.name),
    }


def test_the_identity_has_the_roles_it_needs_and_no_other() -> None:
    assert given("everything") == own_resources("everything") | {
        ("Tidemark Plan Scaler", "plan-orders"),
        ("Tidemark Autoscale Reader", "rg-web"),
        ("Tidemark Service Bus Counter", "sb-orders"),
        ("Tidemark Throughput Scaler", "cosmos-flights"),
        ("Azure Event Hubs Data Receiver", "flights"),
        ("AcrPull", "acrimages"),
    }


def test_with_built_in_roles_none_is_made_and_each_has_its_counterpart() -> None:
    assert not deployed("built-in roles").of_type(DEFINITION)
    assert given("built-in roles") == own_resources("built-in roles") | {
        ("Web Plan Contributor", "plan-orders"),
        ("Monitoring Reader", "rg-web"),
        ("Azure Service Bus Data Owner", "sb-orders"),
        ("Cosmos DB Operator", "cosmos-flights"),
        ("Azure Event Hubs Data Receiver", "flights"),
        ("AcrPull", "acrimages"),
    }


def test_each_kind_of_resource_has_a_role_of_its_own_and_none_is_made_for_nothing() -> None:
    own, built_in = given("resources of all kinds"), given("resources of all kinds, built-in roles")

    assert {
        ("Tidemark Container App Scaler", "shop"),
        ("Tidemark Scale Set Scaler", "workers"),
        ("Tidemark Event Hubs Units Scaler", "evhns-scaled"),
        ("Tidemark Service Bus Units Scaler", "sb-scaled"),
        ("Tidemark Autoscale Reader", "rg-apps"),
        ("Tidemark Autoscale Reader", "rg-bus"),
    } <= own
    assert {
        ("Container Apps Contributor", "shop"),
        ("Virtual Machine Contributor", "workers"),
        ("Azure Event Hubs Data Owner", "evhns-scaled"),
        ("Azure Service Bus Data Owner", "sb-scaled"),
    } <= built_in
    assert not {
        name for name in roles_of("everything").values() if name.endswith(("App Scaler", "Units Scaler"))
    }


def test_the_data_owner_of_service_bus_can_be_had_beside_our_own_roles() -> None:
    found = given("data owner all the same")

    assert ("Azure Service Bus Data Owner", "sb-orders") in found
    assert ("Tidemark Plan Scaler", "plan-orders") in found


def test_metrics_are_read_by_a_role_on_the_groups_of_their_resources() -> None:
    own = {("Tidemark Metrics Reader", "rg-bus"), ("Tidemark Metrics Reader", "rg-web")}
    assert {each for each in given("metrics of anything") if "Metrics Reader" in each[0]} == own

    built_in = [
        role for role in given("metrics of anything, built-in roles") if role[0] == "Monitoring Reader"
    ]
    assert sorted(built_in) == [("Monitoring Reader", "rg-bus"), ("Monitoring Reader", "rg-web")]


def test_roles_can_be_left_to_others_those_on_the_apps_own_resources_excepted() -> None:
    world = "roles given by somebody else"

    assert given(world) == own_resources(world)
    assert not deployed(world).of_type(DEFINITION)
    assert not deployed(world).of_type("Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments")


OF_ITS_OWN = "Microsoft.Authorization/permissions/read"  # the doctor asks what it may

# What each role of our own may do; a test of the reasons stands in docs/deploying/roles.md.
ACTIONS = {
    "Tidemark Plan Scaler": {"read", "write", "operationresults/read", OF_ITS_OWN},
    "Tidemark Autoscale Reader": {"read"},
    "Tidemark Container App Scaler": {"read", "write", OF_ITS_OWN},
    "Tidemark Event Hubs Units Scaler": {"read", "write", OF_ITS_OWN},
    "Tidemark Scale Set Scaler": {"read", "write", OF_ITS_OWN},
    "Tidemark Service Bus Units Scaler": {"read", "write", OF_ITS_OWN},
    "Tidemark Metrics Reader": {"read"},
    "Tidemark Service Bus Counter": {"read", "queues/read", "topics/read", "topics/subscriptions/read"},
    "Tidemark Throughput Scaler": {OF_ITS_OWN}
    | {
        f"sqlDatabases/{place}throughputSettings/{verb}"
        for place in ("", "containers/")
        for verb in ("read", "write", "operationResults/read")
    },
}


@every_world
def test_roles_of_our_own_name_each_action_and_open_no_data(world: str) -> None:
    for each in deployed(world).of_type(DEFINITION):
        (permissions,) = each.properties["permissions"]
        name = each.properties["roleName"].rpartition(" ")[0]
        actions = {
            re.sub(r"^Microsoft\.(?!Authorization)\w+/\w+/", "", action) for action in permissions["actions"]
        }

        assert actions == ACTIONS[name]
        assert not any("*" in action or "delete" in action for action in actions)
        assert permissions["dataActions"] == []
        assert each.properties["type"] == "CustomRole"


@every_world
def test_a_role_of_our_own_can_be_given_where_it_is_given_and_is_made_before(world: str) -> None:
    made = {each.name: each for each in deployed(world).of_type(DEFINITION)}
    for each in deployed(world).of_type(ASSIGNMENT):
        role = made.get(each.properties["roleDefinitionId"].rpartition("/")[2])
        if role is not None:
            subscription = "/".join(each.id.split("/")[:3])
            assert subscription in role.properties["assignableScopes"]
            assert role.id in each.after


def test_the_subscriptions_of_all_targets_are_those_that_our_roles_can_be_given_in() -> None:
    scopes = {f"/subscriptions/{each}" for each in (SUBSCRIPTION, ELSEWHERE)}

    for each in deployed("many targets").of_type(DEFINITION):
        assert set(each.properties["assignableScopes"]) == scopes
    for each in deployed("as it comes").of_type(DEFINITION):
        assert each.properties["assignableScopes"] == [f"/subscriptions/{SUBSCRIPTION}"]


@every_world
def test_roles_end_at_the_resource_except_those_that_list_a_group(world: str) -> None:
    for each in deployed(world).of_type(ASSIGNMENT):
        on_group = re.fullmatch(r"/subscriptions/[^/]+/resourceGroups/[^/]+", scope_of(each)) is not None

        assert on_group == (
            (each.file, each.symbol) in {("rbac-group.bicep", "onGroup"), ("rbac-operator.bicep", "ofReader")}
        )


@every_world
def test_every_assignment_says_what_of_and_what_for(world: str) -> None:
    for each in deployed(world).of_type(ASSIGNMENT):
        person = each.properties["principalId"] == OPERATOR

        assert each.properties["principalType"] == ("User" if person else "ServicePrincipal")
        assert each.properties["description"]


def test_roles_on_storage_that_is_watched_are_those_for_what_is_read() -> None:
    reads = {each["id"].lower(): set(each["reads"]) for each in WORLDS["many targets"]["storageAccounts"]}
    readers = {
        "queues": "Storage Queue Data Reader",
        "blobs": "Storage Blob Data Reader",
        "tables": "Storage Table Data Reader",
    }
    found: dict[str, set[str]] = {}
    for each in deployed("many targets").of_type(ASSIGNMENT):
        if each.file == "rbac-storage-account.bicep":
            role = ROLES[each.properties["roleDefinitionId"].rpartition("/")[2]]
            found.setdefault(scope_of(each).lower(), set()).add(role)

    assert found == {identifier: {readers[what] for what in whats} for identifier, whats in reads.items()}


def test_data_may_be_written_to_the_one_container_and_only_metadata_read_of_its_account() -> None:
    kind = "Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments"
    assignments = {each.symbol: each for each in deployed("everything").of_type(kind)}
    (reading,) = deployed("everything").of_type("Microsoft.DocumentDB/databaseAccounts/sqlRoleDefinitions")
    writing = assignments["onContainer"].properties

    assert writing["scope"].lower() == f"{ACCOUNT}/dbs/airport/colls/Departures".lower()
    assert writing["scope"].endswith("/dbs/airport/colls/Departures")  # names of containers keep their case
    assert ROLES[writing["roleDefinitionId"].rpartition("/")[2]] == "Cosmos DB Built-in Data Contributor"
    assert reading.properties["permissions"] == [
        {"dataActions": ["Microsoft.DocumentDB/databaseAccounts/readMetadata"]}
    ]
    assert assignments["metadataOfAccount"].properties["roleDefinitionId"] == reading.id
    assert assignments["metadataOfAccount"].id in assignments["onContainer"].after  # one at a time


def test_throughput_is_set_only_where_wished() -> None:
    roles = {role for role, _ in given("with the consumer in slices")}

    assert "Tidemark Throughput Scaler" not in roles
    assert ("Tidemark Throughput Scaler", "cosmos-flights") in given("everything")


def test_a_person_reads_without_being_able_to_order_unless_that_is_wished() -> None:
    def of_person(world: str) -> set[str]:
        return {
            ROLES[each.properties["roleDefinitionId"].rpartition("/")[2]]
            for each in deployed(world).of_type(ASSIGNMENT)
            if each.properties["principalId"] == OPERATOR
        }

    services = ("Table", "Queue", "Blob")
    assert of_person("as it comes") == set()
    assert of_person("everything") == {
        "Monitoring Reader",
        *(f"Storage {each} Data Reader" for each in services),
    }
    assert of_person("an operator who orders") == {
        "Monitoring Reader",
        *(f"Storage {each} Data Contributor" for each in services),
    }


@every_world
def test_all_that_is_made_outside_the_apps_group_are_roles(world: str) -> None:
    group = only(world, "Microsoft.Resources/resourceGroups").id
    outside = {each.type for each in deployed(world).resources if not each.id.startswith(group)}

    assert outside <= {
        ASSIGNMENT,
        DEFINITION,
        "Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments",
        "Microsoft.DocumentDB/databaseAccounts/sqlRoleDefinitions",
    }


def test_what_exists_is_looked_for_where_the_parameters_say() -> None:
    found = {each.id.lower() for each in deployed("everything").existing}

    assert {each.lower() for each in (PLAN, NAMESPACE, HUB, ACCOUNT, REGISTRY)} <= found


def test_the_documents_name_the_roles_of_the_templates_and_commands_give_no_others() -> None:
    table = SETTINGS.split("## Roles", 1)[1].split("\n## ", 1)[0]
    own = {
        each.properties["roleName"].rpartition(" ")[0] for each in deployed("everything").of_type(DEFINITION)
    }

    for role in {*ROLES.values(), *own}:
        assert role in table
        assert role in DEPLOYING
    assert set(re.findall(r'^assign "([^"]+)"', DEPLOYING, re.MULTILINE)) <= set(ROLES.values()) | own
    for guid in re.findall(r"--role-definition-id (\S+)", DEPLOYING):
        assert ROLES[guid] == "Cosmos DB Built-in Data Contributor"
