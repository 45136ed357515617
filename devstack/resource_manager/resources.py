"""Resource groups, and resources of any type, kept as they were put: what a deployment makes besides its plan.

As in Azure a resource needs its group, a nested one its parent, an extension what it extends; nearly all need a location,
which never changes. What providers check beyond that is in `provider_rules`. Long operations end at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from devstack.resource_manager.documents import Answer, ArmError, Call, ResourcePath, front_door_error
from devstack.resource_manager.provider_rules import RULES

# Types without a location of their own, by lower-case name; nested ones and extensions have none anyway.
_WITHOUT_LOCATION = {"microsoft.authorization/roledefinitions", "microsoft.authorization/roleassignments"}
_LOCATION_OF_CHILDREN = {"microsoft.network/privatednszones/virtualnetworklinks"}

# Providers whose clients take 200 alone for what is new; the others answer 201.
_NEW_IS_200 = {"microsoft.web", "microsoft.documentdb", "microsoft.insights"}


@dataclass(slots=True)
class Resource:
    """`document` as it was last put; `revision` counts the puts that changed it, from 1."""

    id: str
    document: dict[str, Any]
    revision: int = 1


Find = Callable[[str], Mapping[str, Any] | None]


class ResourcesApi:
    """`elsewhere` finds what other parts of the local Resource Manager hold, by lower-case id."""

    def __init__(self, elsewhere: Find) -> None:
        self._elsewhere = elsewhere
        self.subscriptions: set[str] = set()
        self.resources: dict[str, Resource] = {}

    def knows_subscription(self, subscription: str) -> bool:
        return subscription.lower() in self.subscriptions

    def knows_group(self, parts: Mapping[str, str]) -> bool:
        path = f"/subscriptions/{parts['subscription']}/resourceGroups/{parts['group']}"
        return path.lower() in self.resources

    def find(self, resource_id: str) -> Mapping[str, Any] | None:
        """The document of a resource, whatever the case of its id; None where there is none."""
        found = self.resources.get(resource_id.lower())
        return self._elsewhere(resource_id.lower()) if found is None else found.document

    def under(self, prefix: str) -> list[Resource]:
        return [each for key, each in self.resources.items() if key.startswith(prefix.lower())]

    # -- requests ---------------------------------------------------------------------------------

    def put_group(self, call: Call) -> Answer:
        document = call.document or {}
        if not document.get("location"):
            raise front_door_error(400, "LocationRequired", "The location property is required.")
        return self._keep(call.path, document, kind="Microsoft.Resources/resourceGroups", new=201)

    def put(self, call: Call) -> Answer:
        path = ResourcePath.of(call.path)
        if not isinstance(call.document, dict):
            raise front_door_error(400, "MissingRequestBody", "The request body is required.")
        self._check_place(path)
        self._check_location(path, call.document)
        check = RULES.get(path.type.lower())
        if check is not None:
            check(self, path, call.document)
        new = 200 if path.provider.lower() in _NEW_IS_200 else 201
        answer = self._keep(call.path, call.document, kind=path.type, new=new)
        self._keep_subnets(path, call.document)
        return answer

    def get(self, call: Call) -> Answer:
        found = self.resources.get(call.path.lower())
        if found is None:
            raise missing(call.path)
        return Answer(200, _shown(found, _kind(found.id)))

    # -- checks -----------------------------------------------------------------------------------

    def _check_place(self, path: ResourcePath) -> None:
        group = path.group
        if (
            group is not None
            and group.lower() not in self.resources
            and self._elsewhere(group.lower()) is None
        ):
            name = group.rpartition("/")[2]
            raise front_door_error(
                404, "ResourceGroupNotFound", f"Resource group '{name}' could not be found."
            )
        if path.parent is not None and self.find(path.parent) is None:
            raise front_door_error(
                404,
                "ParentResourceNotFound",
                "Failed to perform 'write' on resource(s) of type "
                f"'{path.type}', because the parent resource '{path.parent}' could not be found.",
            )
        if path.extends is not None and self.find(path.extends) is None:
            raise missing(path.extends)

    def _check_location(self, path: ResourcePath, document: Mapping[str, Any]) -> None:
        location = document.get("location")
        wanted = (path.parent is None and path.extends is None) or path.type.lower() in _LOCATION_OF_CHILDREN
        if wanted and not location and path.type.lower() not in _WITHOUT_LOCATION:
            raise front_door_error(
                400, "LocationRequired", f"The location property is required for '{path.type}'."
            )
        before = self.resources.get(path.id.lower())
        if before is not None and before.document.get("location") != location:
            raise front_door_error(
                409,
                "InvalidResourceLocation",
                f"The resource '{path.name}' already exists in location '{before.document.get('location')}'. A "
                f"resource with the same name cannot be created in location '{location}'.",
            )

    # -- keeping ----------------------------------------------------------------------------------

    def _keep(self, resource_id: str, document: dict[str, Any], *, kind: str, new: int) -> Answer:
        before = self.resources.get(resource_id.lower())
        if before is None:
            before = self.resources[resource_id.lower()] = Resource(resource_id, document)
            return Answer(new, _shown(before, kind))
        if before.document != document:
            before.document, before.revision = document, before.revision + 1
        return Answer(200, _shown(before, kind))

    def _keep_subnets(self, path: ResourcePath, document: Mapping[str, Any]) -> None:
        """Subnets come with their network; those that a later put leaves out are gone."""
        if path.type.lower() != "microsoft.network/virtualnetworks":
            return
        subnets = {
            f"{path.id}/subnets/{each['name']}": each
            for each in document.get("properties", {}).get("subnets", [])
        }
        for left_out in self.under(f"{path.id}/subnets/"):
            if left_out.id.lower() not in {each.lower() for each in subnets}:
                del self.resources[left_out.id.lower()]
        for subnet_id, subnet in subnets.items():
            self._keep(subnet_id, subnet, kind="Microsoft.Network/virtualNetworks/subnets", new=200)


def missing(resource_id: str) -> ArmError:
    return front_door_error(
        404,
        "ResourceNotFound",
        f"The Resource '{resource_id}' was not found. For more details please go to "
        "https://aka.ms/ARMResourceNotFoundFix",
    )


def _kind(resource_id: str) -> str:
    if "/providers/" in resource_id.lower():
        return ResourcePath.of(resource_id).type
    return "Microsoft.Resources/resourceGroups"


def _shown(resource: Resource, kind: str) -> dict[str, Any]:
    properties = {**resource.document.get("properties", {}), "provisioningState": "Succeeded"}
    return {
        **resource.document,
        "id": resource.id,
        "name": resource.id.rpartition("/")[2],
        "type": kind,
        "properties": properties,
    }
