"""What the providers of resources check when one is put, as far as deployments have met it.

Each rule takes what is there, the path and the document, and raises ArmError in the words of the provider where these are
known.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from devstack.resource_manager.common.documents import (
    ArmError,
    ResourcePath,
    front_door_error,
    provider_error,
)

GUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)

# Roles that every directory has, as far as deployments here give them.
BUILT_IN_ROLES = {
    "090c5cfd-751d-490a-894a-3ce6f1109419": "Azure Service Bus Data Owner",
    "0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3": "Storage Table Data Contributor",
    "19e7f393-937e-4f77-808e-94535e297925": "Storage Queue Data Reader",
    "230815da-be43-4aae-9cb4-875f7bd000aa": "Cosmos DB Operator",
    "358470bc-b998-42bd-ab17-a7e34c199c0f": "Container Apps Contributor",
    "9980e02c-c2be-4d73-94e8-173b1dc7cf3c": "Virtual Machine Contributor",
    "f526a384-b230-433a-b45c-95f59c4a2dec": "Azure Event Hubs Data Owner",
    "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1": "Storage Blob Data Reader",
    "2cc479cb-7b4d-49a8-b449-8c00fd0f0a4b": "Web Plan Contributor",
    "3913510d-42f4-4e42-8a64-420c390055eb": "Monitoring Metrics Publisher",
    "43d0d8ad-25c7-4714-9337-8ba259a9fe05": "Monitoring Reader",
    "76199698-9eea-4c19-bc75-cec21354c6b6": "Storage Table Data Reader",
    "7f951dda-4ed3-4680-a7ca-43fe172d538d": "AcrPull",
    "974c5e8b-45b9-4653-ba55-5f855dd0fb88": "Storage Queue Data Contributor",
    "a638d3c7-ab3a-418d-83e6-5f17a39d4fde": "Azure Event Hubs Data Receiver",
    "acdd72a7-3385-48ef-bd42-f606fba81ae7": "Reader",
    "b7e6dc6d-f1e8-4753-8033-0f276bb0955b": "Storage Blob Data Owner",
    "ba92f5b4-2d11-453d-a403-e96b0029c9fe": "Storage Blob Data Contributor",
}
_ASSIGNMENTS = "/providers/microsoft.authorization/roleassignments/"
_DEFINITIONS = "/providers/microsoft.authorization/roledefinitions/"


class There(Protocol):
    """What is there already."""

    def find(self, resource_id: str) -> Mapping[str, Any] | None: ...

    def under(self, prefix: str) -> list[Any]: ...


Rule = Callable[[There, ResourcePath, Mapping[str, Any]], None]

# -- roles --------------------------------------------------------------------------------------------


def check_role_definition(there: There, path: ResourcePath, document: Mapping[str, Any]) -> None:
    properties = document.get("properties", {})
    scope = path.id.lower().partition(_DEFINITIONS)[0]
    scopes = [assignable.lower() for assignable in properties.get("assignableScopes", [])]
    if not GUID.fullmatch(path.name):
        raise front_door_error(
            400, "InvalidRoleDefinitionId", f"The role definition ID '{path.name}' is not valid."
        )
    if scope not in scopes:
        raise front_door_error(
            400,
            "InvalidAssignableScopes",
            f"The scope '{scope}' is not among the assignable scopes {scopes}.",
        )
    for action in (
        action for permission in properties.get("permissions", []) for action in permission.get("actions", [])
    ):
        if not re.fullmatch(r"[\w.]+(/[\w.*-]+)+", action):
            raise front_door_error(400, "InvalidActionOrNotAction", f"'{action}' is not a valid action.")
    for other in _all_with(there, _DEFINITIONS):
        same_name = other.document["properties"]["roleName"].lower() == properties.get("roleName", "").lower()
        if same_name and other.id.lower() != path.id.lower():
            raise front_door_error(
                409,
                "RoleDefinitionWithSameNameExists",
                f"A custom role with the same name '{properties.get('roleName')}' already exists in this directory.",
            )


def check_role_assignment(there: There, path: ResourcePath, document: Mapping[str, Any]) -> None:
    properties = document.get("properties", {})
    if not GUID.fullmatch(path.name):
        raise front_door_error(
            400, "InvalidRoleAssignmentId", f"The role assignment ID '{path.name}' is not valid."
        )
    if not properties.get("principalType"):
        raise front_door_error(
            400,
            "PrincipalNotFound",
            f"Principal {properties.get('principalId')} does not exist in the directory. Check that you have the "
            "correct principal ID. If you are creating this principal and then immediately assigning a role, this "
            "error might be related to a replication delay. In this case, set the role assignment principalType.",
        )
    _check_role(there, path, properties)
    given = _grant(path.id, properties)
    for other in _all_with(there, _ASSIGNMENTS):
        if _grant(other.id, other.document["properties"]) == given and other.id.lower() != path.id.lower():
            raise front_door_error(409, "RoleAssignmentExists", "The role assignment already exists.")
        if other.id.lower() == path.id.lower() and _grant(other.id, other.document["properties"]) != given:
            raise front_door_error(
                400,
                "RoleAssignmentUpdateNotPermitted",
                "Tenant ID, application ID, principal ID, and scope are not allowed to be updated.",
            )


def _check_role(there: There, path: ResourcePath, properties: Mapping[str, Any]) -> None:
    """The role is built in, or one of ours that may be given here."""
    role = str(properties.get("roleDefinitionId", "")).rpartition("/")[2].lower()
    if role in BUILT_IN_ROLES:
        return
    scopes = [
        scope.lower()
        for definition in _all_with(there, _DEFINITIONS)
        if definition.id.lower().endswith(f"/{role}")
        for scope in definition.document["properties"]["assignableScopes"]
    ]
    if not any(path.id.lower().startswith(f"{scope}/") for scope in scopes):
        raise front_door_error(
            400,
            "RoleDefinitionDoesNotExist",
            f"The specified role definition with ID '{role}' does not exist.",
        )


def _grant(resource_id: str, properties: Mapping[str, Any]) -> tuple[str, str, str]:
    """Who has what on what."""
    return (
        resource_id.lower().partition(_ASSIGNMENTS)[0],
        str(properties.get("principalId")).lower(),
        str(properties.get("roleDefinitionId")).rpartition("/")[2].lower(),
    )


def _all_with(there: There, part: str) -> list[Any]:
    return [resource for resource in there.under("/") if part in resource.id.lower()]


# -- storage, network ---------------------------------------------------------------------------------


def check_storage_account(_there: There, path: ResourcePath, document: Mapping[str, Any]) -> None:
    if not re.fullmatch(r"[a-z0-9]{3,24}", path.name):
        raise front_door_error(
            400,
            "AccountNameInvalid",
            f"{path.name} is not a valid storage account name. Storage account name must be between 3 and 24 characters "
            "in length and use numbers and lower-case letters only.",
        )
    if not document.get("sku", {}).get("name") or not document.get("kind"):
        raise front_door_error(
            400, "InvalidRequestPropertyValue", "A storage account needs sku.name and kind."
        )


def check_private_endpoint(there: There, _path: ResourcePath, document: Mapping[str, Any]) -> None:
    properties = document.get("properties", {})
    delegated = _delegations(there, properties.get("subnet", {}).get("id", ""))
    if delegated:
        raise front_door_error(
            400,
            "PrivateEndpointCannotBeCreatedInSubnetThatIsDelegated",
            f"The subnet is delegated to {delegated}.",
        )
    for connection in properties.get("privateLinkServiceConnections", []):
        _needed(there, connection["properties"]["privateLinkServiceId"])


def check_zone_group(there: There, _path: ResourcePath, document: Mapping[str, Any]) -> None:
    for zone in document.get("properties", {}).get("privateDnsZoneConfigs", []):
        _needed(there, zone["properties"]["privateDnsZoneId"])


def check_zone_link(there: There, _path: ResourcePath, document: Mapping[str, Any]) -> None:
    _needed(there, document.get("properties", {}).get("virtualNetwork", {}).get("id", ""))


def _delegations(there: There, subnet_id: str) -> list[str]:
    subnet = _needed(there, subnet_id)
    return [
        delegation["properties"]["serviceName"]
        for delegation in subnet.get("properties", {}).get("delegations", [])
    ]


def _needed(there: There, resource_id: str) -> Mapping[str, Any]:
    resource = there.find(resource_id)
    if resource is None:
        raise front_door_error(
            400,
            "InvalidResourceReference",
            f"Resource {resource_id} referenced by this resource was not found.",
        )
    return resource


def _check_delegated(there: There, subnet_id: str, service: str) -> None:
    delegated = _delegations(there, subnet_id)
    if [delegated_service.lower() for delegated_service in delegated] != [service.lower()]:
        raise provider_error(
            400,
            f"The subnet {subnet_id} is delegated to {delegated or 'nobody'}, and has to be to {service}.",
        )


# -- function apps ------------------------------------------------------------------------------------

FLEX = "FlexConsumption"

REFUSED_SETTINGS = {
    *("ENABLE_ORYX_BUILD", "FUNCTIONS_EXTENSION_VERSION", "FUNCTIONS_MAX_HTTP_CONCURRENCY"),
    *("FUNCTIONS_WORKER_DYNAMIC_CONCURRENCY_ENABLED", "FUNCTIONS_WORKER_PROCESS_COUNT"),
    *("FUNCTIONS_WORKER_RUNTIME", "FUNCTIONS_WORKER_RUNTIME_VERSION"),
    *("SCM_DO_BUILD_DURING_DEPLOYMENT", "WEBSITE_CONTENTAZUREFILECONNECTIONSTRING"),
    *("WEBSITE_CONTENTOVERVNET", "WEBSITE_CONTENTSHARE", "WEBSITE_DNS_SERVER"),
    *("WEBSITE_MAX_DYNAMIC_APPLICATION_SCALE_OUT", "WEBSITE_NODE_DEFAULT_VERSION"),
    *("WEBSITE_RUN_FROM_PACKAGE", "WEBSITE_SKIP_CONTENTSHARE_VALIDATION", "WEBSITE_VNET_ROUTE_ALL"),
}
"""App settings that Flex Consumption refuses: https://learn.microsoft.com/azure/azure-functions/functions-app-settings"""

REFUSED_SITE_CONFIG = {
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
    "vnetRouteAllEnabled": "all calls go through the network anyway",  # as WEBSITE_VNET_ROUTE_ALL
    "windowsFxVersion": "runtime",  # 4
}
"""What Flex Consumption refuses in siteConfig, with error 51021 of Resource Manager ("site configuration properties ... for
Flex Consumption sites is invalid"), and what says the same there. In whose deployments each was named:
azure-pipelines-tasks 21032 (1), azure-cli 31414 (2), azure-functions-host 10643 (3), and
terraform-azurerm-avm-res-web-site 345 (4), all on GitHub.
"""

DELEGATION = {FLEX: "Microsoft.App/environments"}
"""What the subnet of an app has to be delegated to, where it is not Microsoft.Web/serverFarms."""


def check_site(there: There, _path: ResourcePath, document: Mapping[str, Any]) -> None:
    properties = document.get("properties", {})
    tier = _tier(there, properties)
    config = properties.get("siteConfig") or {}
    flex = properties.get("functionAppConfig")
    if (tier == FLEX) != (flex is not None):
        raise provider_error(
            400, f"functionAppConfig is for Flex Consumption sites; this plan is of the tier {tier}."
        )
    if flex is not None:
        _check_flex(document, flex, config)
    elif not str(config.get("linuxFxVersion", "")).partition("|")[2]:
        raise provider_error(
            400, f"LinuxFxVersion is {config.get('linuxFxVersion')!r}, such as Python|3.11 is accepted."
        )
    if properties.get("virtualNetworkSubnetId"):
        service = DELEGATION.get(tier, "Microsoft.Web/serverFarms")
        _check_delegated(there, properties["virtualNetworkSubnetId"], service)
    if properties.get("keyVaultReferenceIdentity"):
        _check_identity(document, properties["keyVaultReferenceIdentity"])


def _check_flex(document: Mapping[str, Any], flex: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    refused = {name.lower() for name in REFUSED_SITE_CONFIG} & {name.lower() for name in config}
    if refused:
        raise provider_error(
            400,
            f"Site configuration properties {', '.join(sorted(refused))} for Flex Consumption sites is invalid.",
            extended_code="51021",
        )
    scale = flex.get("scaleAndConcurrency", {})
    if scale.get("instanceMemoryMB") not in {512, 2048, 4096}:
        raise provider_error(
            400, f"instanceMemoryMB is {scale.get('instanceMemoryMB')!r}: 512, 2048 or 4096."
        )
    if not 40 <= scale.get("maximumInstanceCount", 0) <= 1000:
        raise provider_error(
            400, f"maximumInstanceCount is {scale.get('maximumInstanceCount')!r}: 40 to 1000."
        )
    authentication = flex.get("deployment", {}).get("storage", {}).get("authentication", {})
    if authentication.get("type") == "UserAssignedIdentity":
        _check_identity(document, authentication.get("userAssignedIdentityResourceId", ""))


def _check_identity(document: Mapping[str, Any], identity: str) -> None:
    known = {assigned.lower() for assigned in document.get("identity", {}).get("userAssignedIdentities", {})}
    if identity.lower() not in known:
        raise provider_error(400, f"The identity {identity!r} is not one of this resource: {sorted(known)}.")


def check_site_config(there: There, path: ResourcePath, document: Mapping[str, Any]) -> None:
    settings = document.get("properties", {})
    if path.name.lower() != "appsettings":
        return
    wrong = [name for name, value in settings.items() if not isinstance(value, str)]
    if wrong:
        raise provider_error(400, f"The values of {wrong} are no texts.")
    site = there.find(path.parent or "") or {}
    refused = sorted(REFUSED_SETTINGS & set(settings))
    if refused and _tier(there, site.get("properties", {})) == FLEX:
        raise provider_error(
            400,
            f"The app settings {', '.join(refused)} are invalid for Flex Consumption sites.",
            extended_code="51021",
        )


def _tier(there: There, properties: Mapping[str, Any]) -> str:
    plan = there.find(str(properties.get("serverFarmId", "")))
    if plan is None:
        raise provider_error(400, f"Cannot find the plan {properties.get('serverFarmId')!r}.")
    return str(plan["sku"]["tier"])


# -- container apps -----------------------------------------------------------------------------------


def check_container_app(there: There, _path: ResourcePath, document: Mapping[str, Any]) -> None:
    properties = document.get("properties", {})
    _needed(there, properties.get("environmentId", ""))
    for registry in properties.get("configuration", {}).get("registries", []):
        _check_identity(document, registry["identity"])
    for container in properties.get("template", {}).get("containers", []):
        sizes = container.get("resources", {})
        if str(sizes.get("memory")) != f"{2 * float(sizes.get('cpu', 0)):g}Gi" or float(sizes["cpu"]) > 4:
            raise _container_error(
                f"cpu {sizes.get('cpu')} and memory {sizes.get('memory')} do not go together"
            )
        names = [variable["name"] for variable in container.get("env", [])]
        if len(set(names)) != len(names) or not all(
            isinstance(variable.get("value"), str) for variable in container["env"]
        ):
            raise _container_error("an environment variable is there twice, or is no text")
    if not 0 <= properties.get("template", {}).get("terminationGracePeriodSeconds", 30) <= 600:
        raise _container_error("terminationGracePeriodSeconds is not between 0 and 600")


def _container_error(text: str) -> ArmError:
    return front_door_error(400, "ContainerAppInvalid", f"The container app is invalid: {text}.")


def check_container_environment(there: There, _path: ResourcePath, document: Mapping[str, Any]) -> None:
    network = document.get("properties", {}).get("vnetConfiguration")
    if network:
        _check_delegated(there, network["infrastructureSubnetId"], "Microsoft.App/environments")


# By lower-case type.
RULES: dict[str, Rule] = {
    "microsoft.app/containerapps": check_container_app,
    "microsoft.app/managedenvironments": check_container_environment,
    "microsoft.authorization/roleassignments": check_role_assignment,
    "microsoft.authorization/roledefinitions": check_role_definition,
    "microsoft.network/privatednszones/virtualnetworklinks": check_zone_link,
    "microsoft.network/privateendpoints": check_private_endpoint,
    "microsoft.network/privateendpoints/privatednszonegroups": check_zone_group,
    "microsoft.storage/storageaccounts": check_storage_account,
    "microsoft.web/sites": check_site,
    "microsoft.web/sites/config": check_site_config,
}
