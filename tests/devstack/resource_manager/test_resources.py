"""Resources of any type in the local Resource Manager: what is kept, and what each provider refuses."""

from __future__ import annotations

from typing import Any

import pytest

from devstack.resource_manager.api import ResourceManagerApi
from devstack.resource_manager.common.documents import Answer, ArmError, Call
from devstack.resource_manager.routes import find_route

SUBSCRIPTION = "/subscriptions/00000000-0000-0000-0000-000000000001"
GROUP = f"{SUBSCRIPTION}/resourceGroups/rg"
WEB = f"{GROUP}/providers/Microsoft.Web"
NETWORK = f"{GROUP}/providers/Microsoft.Network"
ROLES = "/providers/Microsoft.Authorization/roleAssignments"
DEFINITIONS = f"{SUBSCRIPTION}/providers/Microsoft.Authorization/roleDefinitions"
IDENTITY = f"{GROUP}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/id"
STORAGE = f"{GROUP}/providers/Microsoft.Storage/storageAccounts/stone"
GUIDS = [f"00000000-0000-0000-0000-00000000000{n}" for n in range(10)]
READER = "43d0d8ad-25c7-4714-9337-8ba259a9fe05"
HERE = {"location": "westeurope"}
Body = dict[str, Any]


class Manager:
    """Requests without HTTP."""

    def __init__(self) -> None:
        self.api = ResourceManagerApi(lambda: 0.0)

    def call(self, method: str, path: str, document: Any = None) -> Answer:
        route, parts = find_route(method, path)
        return route.handler(self.api, Call(method, path, parts, document))

    def put(self, path: str, document: Any) -> Answer:
        return self.call("PUT", path, document)

    def revision(self, path: str) -> int:
        return self.api.resources.resources[path.lower()].revision


@pytest.fixture
def manager() -> Manager:
    """A group with a plan of each kind, a network, an identity and a storage account."""
    made = Manager()
    made.put(GROUP, HERE)
    for name, sku in (("flex", "FC1"), ("premium", "EP1"), ("dedicated", "P0v3")):
        made.put(f"{WEB}/serverfarms/{name}", {**HERE, "sku": {"name": sku}})
    subnets = [
        {"name": "app", "properties": delegated("Microsoft.App/environments")},
        {"name": "web", "properties": delegated("Microsoft.Web/serverFarms")},
        {"name": "endpoints", "properties": {}},
    ]
    made.put(f"{NETWORK}/virtualNetworks/vnet", {**HERE, "properties": {"subnets": subnets}})
    made.put(IDENTITY, HERE)
    made.put(STORAGE, {**HERE, "kind": "StorageV2", "sku": {"name": "Standard_LRS"}})
    return made


def delegated(service: str) -> Body:
    return {"delegations": [{"name": "d", "properties": {"serviceName": service}}]}


def subnet(name: str) -> str:
    return f"{NETWORK}/virtualNetworks/vnet/subnets/{name}"


def flex_site(**changes: Any) -> Body:
    config = {
        "deployment": {
            "storage": {
                "authentication": {
                    "type": "UserAssignedIdentity",
                    "userAssignedIdentityResourceId": IDENTITY,
                }
            }
        },
        "scaleAndConcurrency": {"instanceMemoryMB": 2048, "maximumInstanceCount": 40},
    }
    scale = {**config["scaleAndConcurrency"], **changes.pop("scale", {})}
    properties = {
        "serverFarmId": f"{WEB}/serverfarms/flex",
        "siteConfig": {},
        "functionAppConfig": {**config, "scaleAndConcurrency": scale},
        **changes,
    }
    return {**HERE, "identity": {"userAssignedIdentities": {IDENTITY: {}}}, "properties": properties}


def site(plan: str, **changes: Any) -> Body:
    properties = {
        "serverFarmId": f"{WEB}/serverfarms/{plan}",
        "siteConfig": {"linuxFxVersion": "Python|3.11"},
        **changes,
    }
    return {**HERE, "properties": properties}


def assignment(role: str = READER, **changes: Any) -> Body:
    return {
        "properties": {
            "roleDefinitionId": f"{SUBSCRIPTION}/providers/Microsoft.Authorization/roleDefinitions/{role}",
            "principalId": GUIDS[1],
            "principalType": "ServicePrincipal",
            **changes,
        }
    }


def definition(
    name: str = "Ours", scopes: tuple[str, ...] = (SUBSCRIPTION,), action: str = "A.B/c/read"
) -> Body:
    return {
        "properties": {
            "roleName": name,
            "assignableScopes": list(scopes),
            "permissions": [{"actions": [action]}],
        }
    }


def endpoint(where: str, what: str = STORAGE) -> Body:
    connection = {"name": "x", "properties": {"privateLinkServiceId": what, "groupIds": ["blob"]}}
    return {**HERE, "properties": {"subnet": {"id": where}, "privateLinkServiceConnections": [connection]}}


def test_what_is_put_is_kept_under_its_id_whatever_the_case(manager: Manager) -> None:
    path = f"{STORAGE}/blobServices/default"
    document = {"properties": {"a": 1}}

    first, again = manager.put(path, document), manager.put(path.replace("rg", "RG"), document)
    found = manager.call("GET", path.upper().replace("/SUBSCRIPTIONS", "/subscriptions")).body

    assert (first.status, again.status) == (201, 200)
    assert found["type"] == "Microsoft.Storage/storageAccounts/blobServices"
    assert found["properties"] == {"a": 1, "provisioningState": "Succeeded"}
    assert manager.revision(path) == 1

    manager.put(path, {"properties": {"a": 2}})
    assert manager.revision(path) == 2


def test_a_plan_that_is_put_again_is_the_same_plan_with_its_new_tags(manager: Manager) -> None:
    path = f"{WEB}/serverfarms/premium"
    manager.put(path, {**HERE, "sku": {"name": "EP1"}, "tags": {"a": "b"}})
    (plan,) = [plan for plan in manager.api.plans.values() if plan.name == "premium"]

    assert (plan.tags, plan.capacity) == ({"a": "b"}, 1)


def test_subnets_come_and_go_with_their_network(manager: Manager) -> None:
    network = f"{NETWORK}/virtualNetworks/vnet"
    assert manager.call("GET", subnet("app")).status == 200

    manager.put(network, {**HERE, "properties": {"subnets": [{"name": "web", "properties": {}}]}})

    with pytest.raises(ArmError):
        manager.call("GET", subnet("app"))


@pytest.mark.parametrize(
    ("path", "document"),
    [
        (f"{WEB}/sites/app", flex_site()),
        (
            f"{WEB}/sites/app",
            flex_site(virtualNetworkSubnetId=subnet("app"), keyVaultReferenceIdentity=IDENTITY),
        ),
        (f"{WEB}/sites/app", site("premium", virtualNetworkSubnetId=subnet("web"))),
        (f"{WEB}/sites/app", site("dedicated")),
        (f"{STORAGE}{ROLES}/{GUIDS[0]}", assignment()),
        (f"{GROUP}{ROLES}/{GUIDS[0]}", assignment()),
        (f"{DEFINITIONS}/{GUIDS[0]}", definition()),
        (f"{NETWORK}/privateEndpoints/pe", endpoint(subnet("endpoints"))),
    ],
)
def test_what_is_in_order_is_accepted(manager: Manager, path: str, document: Body) -> None:
    assert manager.put(path, document).status in {200, 201}


CONTAINER = {"name": "c", "resources": {"cpu": 1, "memory": "2Gi"}, "env": [{"name": "A", "value": "b"}]}
ENVIRONMENT = f"{GROUP}/providers/Microsoft.App/managedEnvironments/env"


def container_app(grace: int = 30, identity: str = IDENTITY, **changes: Any) -> Body:
    return {
        **HERE,
        "identity": {"userAssignedIdentities": {IDENTITY: {}}},
        "properties": {
            "environmentId": ENVIRONMENT,
            "configuration": {"registries": [{"server": "x", "identity": identity}]},
            "template": {
                "terminationGracePeriodSeconds": grace,
                "containers": [{**CONTAINER, **changes}],
            },
        },
    }


@pytest.mark.parametrize(
    ("path", "document", "code"),
    [
        (GROUP, {}, "LocationRequired"),
        (f"{GROUP}2/providers/A.B/c/d", HERE, "ResourceGroupNotFound"),
        (f"{GROUP}/providers/A.B/c/d", {}, "LocationRequired"),
        (f"{GROUP}/providers/A.B/c/d", None, "MissingRequestBody"),
        (f"{GROUP}/providers/A.B/c/d/e/f", {}, "ParentResourceNotFound"),
        (STORAGE, {"location": "northeurope"}, "InvalidResourceLocation"),
        (f"{STORAGE}-X", HERE, "AccountNameInvalid"),
        (f"{GROUP}/providers/Microsoft.Storage/storageAccounts/sttwo", HERE, "InvalidRequestPropertyValue"),
        (f"{GROUP}/providers/A.B/c/d{ROLES}/{GUIDS[0]}", assignment(), "ResourceNotFound"),
        (f"{GROUP}{ROLES}/name", assignment(), "InvalidRoleAssignmentId"),
        (f"{GROUP}{ROLES}/{GUIDS[0]}", assignment(GUIDS[9]), "RoleDefinitionDoesNotExist"),
        (f"{GROUP}{ROLES}/{GUIDS[0]}", assignment(principalType=""), "PrincipalNotFound"),
        (f"{DEFINITIONS}/name", definition(), "InvalidRoleDefinitionId"),
        (f"{DEFINITIONS}/{GUIDS[0]}", definition(scopes=(GROUP,)), "InvalidAssignableScopes"),
        (f"{DEFINITIONS}/{GUIDS[0]}", definition(action="read"), "InvalidActionOrNotAction"),
        (
            f"{NETWORK}/privateEndpoints/pe",
            endpoint(subnet("app")),
            "PrivateEndpointCannotBeCreatedInSubnetThatIsDelegated",
        ),
        (f"{NETWORK}/privateEndpoints/pe", endpoint(subnet("none")), "InvalidResourceReference"),
        (
            f"{NETWORK}/privateEndpoints/pe",
            endpoint(subnet("endpoints"), f"{WEB}/sites/none"),
            "InvalidResourceReference",
        ),
        (f"{GROUP}/providers/Microsoft.App/containerApps/ca", container_app(), "InvalidResourceReference"),
    ],
)
def test_what_resource_manager_refuses_is_refused_by_its_code(
    manager: Manager, path: str, document: Any, code: str
) -> None:
    with pytest.raises(ArmError) as caught:
        manager.put(path, document)

    assert caught.value.answer.body["error"]["code"] == code


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (flex_site(siteConfig={"FtpsState": "Disabled"}), "ftpsstate for Flex Consumption"),
        (flex_site(scale={"instanceMemoryMB": 1024}), "instanceMemoryMB is 1024"),
        (flex_site(scale={"maximumInstanceCount": 39}), "maximumInstanceCount is 39"),
        (flex_site(functionAppConfig=None), "functionAppConfig is for Flex"),
        (flex_site(serverFarmId=f"{WEB}/serverfarms/premium"), "functionAppConfig is for Flex"),
        (flex_site(serverFarmId=f"{WEB}/serverfarms/none"), "Cannot find the plan"),
        (flex_site(virtualNetworkSubnetId=subnet("web")), "has to be to Microsoft.App/environments"),
        (flex_site(keyVaultReferenceIdentity=f"{IDENTITY}2"), "is not one of this resource"),
        ({**flex_site(), "identity": {}}, "is not one of this resource"),
        (site("dedicated", siteConfig={}), "LinuxFxVersion is None"),
        (site("premium", virtualNetworkSubnetId=subnet("app")), "has to be to Microsoft.Web/serverFarms"),
        (site("premium", virtualNetworkSubnetId=subnet("endpoints")), "delegated to nobody"),
    ],
)
def test_what_app_service_refuses_is_refused_in_its_words(
    manager: Manager, document: Body, message: str
) -> None:
    with pytest.raises(ArmError) as caught:
        manager.put(f"{WEB}/sites/app", document)

    assert message in caught.value.answer.body["Message"]


@pytest.mark.parametrize(
    ("plan", "settings", "refused"),
    [
        ("flex", {"FUNCTIONS_WORKER_RUNTIME": "python"}, True),
        ("flex", {"A": 1}, True),
        ("flex", {"A": "1"}, False),
        ("premium", {"FUNCTIONS_WORKER_RUNTIME": "python"}, False),
    ],
)
def test_settings_that_flex_consumption_refuses_are_refused_there_only(
    manager: Manager, plan: str, settings: Body, refused: bool
) -> None:
    manager.put(f"{WEB}/sites/app", flex_site() if plan == "flex" else site(plan))
    path, document = f"{WEB}/sites/app/config/appsettings", {"properties": settings}

    if refused:
        with pytest.raises(ArmError):
            manager.put(path, document)
    else:
        assert manager.put(path, document).status == 200


def test_a_role_is_given_once_and_not_turned_into_another(manager: Manager) -> None:
    manager.put(f"{STORAGE}{ROLES}/{GUIDS[0]}", assignment())

    assert manager.put(f"{STORAGE}{ROLES}/{GUIDS[0]}", assignment()).status == 200
    for name, document, code in (
        (GUIDS[2], assignment(), "RoleAssignmentExists"),
        (GUIDS[0], assignment(principalId=GUIDS[3]), "RoleAssignmentUpdateNotPermitted"),
    ):
        with pytest.raises(ArmError) as caught:
            manager.put(f"{STORAGE}{ROLES}/{name}", document)
        assert caught.value.answer.body["error"]["code"] == code


def test_a_role_of_ones_own_is_given_within_its_scopes_and_has_a_name_of_its_own(manager: Manager) -> None:
    manager.put(f"{DEFINITIONS}/{GUIDS[4]}", definition())
    elsewhere = "/subscriptions/00000000-0000-0000-0000-000000000002/resourceGroups/rg"
    manager.put(elsewhere, HERE)

    assert manager.put(f"{GROUP}{ROLES}/{GUIDS[0]}", assignment(GUIDS[4])).status == 201
    with pytest.raises(ArmError) as outside:
        manager.put(f"{elsewhere}{ROLES}/{GUIDS[0]}", assignment(GUIDS[4]))
    with pytest.raises(ArmError) as twice:
        manager.put(f"{DEFINITIONS}/{GUIDS[5]}", definition("OURS"))

    assert outside.value.answer.body["error"]["code"] == "RoleDefinitionDoesNotExist"
    assert twice.value.answer.body["error"]["code"] == "RoleDefinitionWithSameNameExists"


@pytest.mark.parametrize(
    ("document", "accepted"),
    [
        (container_app(), True),
        (container_app(grace=601), False),
        (container_app(identity=f"{IDENTITY}2"), False),
        (container_app(resources={"cpu": 1, "memory": "1Gi"}), False),
        (container_app(resources={"cpu": 5, "memory": "10Gi"}), False),
        (container_app(env=[{"name": "A", "value": 1}]), False),
        (container_app(env=[{"name": "A", "value": "1"}] * 2), False),
    ],
)
def test_a_container_app_keeps_the_rules_of_its_platform(
    manager: Manager, document: Body, accepted: bool
) -> None:
    network = {"vnetConfiguration": {"infrastructureSubnetId": subnet("app")}}
    manager.put(ENVIRONMENT, {**HERE, "properties": network})
    path = f"{GROUP}/providers/Microsoft.App/containerApps/ca"

    if accepted:
        assert manager.put(path, document).status == 201
    else:
        with pytest.raises(ArmError):
            manager.put(path, document)
