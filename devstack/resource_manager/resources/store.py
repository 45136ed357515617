"""Resource groups, and resources of any type, kept as they were put: what a deployment makes besides its plan.

As in Azure a resource needs its group, a nested one its parent, an extension what it extends; nearly all need a location,
which never changes. What providers check beyond that is in `rules`. Operations end at once, but for resources that were
added with a time of their own (`add`, `changes`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from devstack.resource_manager.common.documents import (
    FAILED_MESSAGE,
    Answer,
    ArmError,
    Call,
    ResourcePath,
    front_door_error,
    operation_document,
    provider_error,
)
from devstack.resource_manager.common.plans import Clock, Operation, OperationStyle, Status
from devstack.resource_manager.resources.changes import Changing, merged, nested
from devstack.resource_manager.resources.rules import RULES

# Types without a location of their own, by lower-case name; nested ones and extensions have none anyway.
_WITHOUT_LOCATION = {"microsoft.authorization/roledefinitions", "microsoft.authorization/roleassignments"}
_LOCATION_OF_CHILDREN = {"microsoft.network/privatednszones/virtualnetworklinks"}

# Types that are listed also where there are none.
_LISTED = {
    *("microsoft.app/containerapps", "microsoft.compute/virtualmachinescalesets"),
    *("microsoft.documentdb/databaseaccounts", "microsoft.eventhub/namespaces"),
    *("microsoft.eventhub/namespaces/eventhubs", "microsoft.servicebus/namespaces"),
    *("microsoft.servicebus/namespaces/queues", "microsoft.servicebus/namespaces/topics"),
    *("microsoft.servicebus/namespaces/topics/subscriptions", "microsoft.storage/storageaccounts"),
    *("microsoft.storage/storageaccounts/queueservices/queues", "microsoft.web/serverfarms"),
}

# Providers whose clients take 200 alone for what is new; the others answer 201.
_NEW_IS_200 = {"microsoft.web", "microsoft.documentdb", "microsoft.insights"}


@dataclass(slots=True)
class Resource:
    """`document` as it was last put; `revision` counts the puts that changed it, from 1."""

    id: str
    document: dict[str, Any]
    revision: int = 1


Find = Callable[[str], Mapping[str, Any] | None]
Lister = Callable[[], list[dict[str, Any]]]
"""Resources of one type that somebody else keeps, each as a document with its id."""


class ResourcesApi:
    """`elsewhere` finds what other parts of the local Resource Manager hold, by lower-case id."""

    def __init__(self, elsewhere: Find, clock: Clock) -> None:
        self._elsewhere = elsewhere
        self._clock = clock
        self.changing: dict[str, Changing] = {}
        self.listers: dict[str, Lister] = {}
        self.subscriptions: set[str] = set()
        self.resources: dict[str, Resource] = {}

    def knows_subscription(self, subscription: str) -> bool:
        return subscription.lower() in self.subscriptions

    def add(self, resource_id: str, document: dict[str, Any], **options: Any) -> Changing:
        """Adds a resource of any type, whatever its provider would check; `options` are those of `Changing`. Its
        subscription is known from then on.
        """
        self.subscriptions.add(resource_id.split("/")[2].lower())
        self.resources[resource_id.lower()] = Resource(resource_id, document)
        self.changing[resource_id.lower()] = changing = Changing(document, self._clock, **options)
        return changing

    def knows_group(self, parts: Mapping[str, str]) -> bool:
        path = f"/subscriptions/{parts['subscription']}/resourceGroups/{parts['group']}"
        return any(f"{known}/".startswith(f"{path.lower()}/") for known in self.resources)

    def find(self, resource_id: str) -> Mapping[str, Any] | None:
        """The document of a resource, whatever the case of its id; None where there is none."""
        resource = self.resources.get(resource_id.lower())
        return self._elsewhere(resource_id.lower()) if resource is None else resource.document

    def under(self, prefix: str) -> list[Resource]:
        return [resource for key, resource in self.resources.items() if key.startswith(prefix.lower())]

    # -- changes ----------------------------------------------------------------------------------

    def patch(self, call: Call) -> Answer:
        changing = self._changing(call)
        return self._requested(call, changing, merged(changing.document, call.document or {}))

    def delete_instances(self, call: Call) -> Answer:
        """`{"instanceIds": [...]}` of a scale set with `instances`: they go, and its capacity with them, once that is over."""
        call = replace(call, path=call.path.rpartition("/")[0])
        changing, named = self._changing(call), (call.document or {}).get("instanceIds", [])
        unknown = [instance for instance in named if instance not in changing.instances]
        if not named or unknown:
            text = f"The provided instanceId {', '.join(unknown)} is not an active Virtual Machine Scale Set VM instanceId."
            raise front_door_error(400, "InvalidParameter", text)
        capacity = changing.value("sku.capacity") - len(named)
        answer = self._requested(call, changing, merged(changing.document, nested("sku.capacity", capacity)))
        changing.instances = [instance for instance in changing.instances if instance not in named]
        return answer

    def _changing(self, call: Call) -> Changing:
        changing = self.changing.get(call.path.lower())
        if changing is None:
            raise missing(call.path)
        return changing

    def _requested(self, call: Call, changing: Changing, document: dict[str, Any]) -> Answer:
        operation = changing.request(document, call.fault)
        self.resources[call.path.lower()].document = changing.current()
        shown = self.get(call).body
        running = operation.status(self._clock()) is not Status.SUCCEEDED
        if not running or changing.operation_style is OperationStyle.BODY:
            return Answer(200, shown)
        return Answer(202, shown, _links(call, changing, operation))

    def get_operation(self, call: Call) -> Answer:
        changing, operation = self._operation(call)
        now = self._clock()
        running = operation.status(now) is Status.IN_PROGRESS
        headers = {"Retry-After": f"{changing.poll_after:g}"} if running else {}
        return Answer(200, operation_document(call.path, operation, now), headers)

    def get_operation_result(self, call: Call) -> Answer:
        changing, operation = self._operation(call)
        status = operation.status(self._clock())
        if status is Status.IN_PROGRESS:
            return Answer(202, None, _links(call, changing, operation))
        if status is Status.FAILED:
            raise provider_error(409, FAILED_MESSAGE)
        return Answer(200, changing.current())

    def _operation(self, call: Call) -> tuple[Changing, Operation]:
        changing = self.changing.get(call.query.get("of", "").lower())
        operation = None if changing is None else changing.operations.get(call.parts["id"])
        if changing is None or operation is None:
            raise front_door_error(404, "NotFound", f"Operation '{call.parts['id']}' was not found.")
        return changing, operation

    # -- lists ------------------------------------------------------------------------------------

    def list_type(self, call: Call) -> Answer:
        """The resources of a type under a subscription, a group or another resource, on one page."""
        scope, kind = _listed(call.path)
        lister = self.listers.get(kind)
        if lister is None and kind not in _LISTED and not self._of_type(kind):
            raise front_door_error(
                404, "InvalidResourceType", f"The local Resource Manager has no lists of {kind}."
            )
        documents = (
            [self.get_document(resource) for resource in self._of_type(kind)] if lister is None else lister()
        )
        under = [document for document in documents if str(document["id"]).lower().startswith(f"{scope}/")]
        return Answer(200, {"value": under, "nextLink": None})

    def documents_of(self, kind: str) -> list[dict[str, Any]]:
        """All resources of a type, in lower case."""
        return [self.get_document(resource) for resource in self._of_type(kind)]

    def _of_type(self, kind: str) -> list[Resource]:
        typed = (resource for key, resource in self.resources.items() if "/providers/" in key)
        return [resource for resource in typed if ResourcePath.of(resource.id).type.lower() == kind]

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
        if (changing := self.changing.get(call.path.lower())) is not None:
            return self._requested(call, changing, call.document)
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
        resource = self.resources.get(call.path.lower())
        if resource is None:
            raise missing(call.path)
        return Answer(200, self.get_document(resource))

    def get_document(self, resource: Resource) -> dict[str, Any]:
        shown = _shown(resource, _kind(resource.id))
        changing = self.changing.get(resource.id.lower())
        return shown if changing is None else {**shown, **changing.current()}

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
            f"{path.id}/subnets/{kept['name']}": kept
            for kept in document.get("properties", {}).get("subnets", [])
        }
        for left_out in self.under(f"{path.id}/subnets/"):
            if left_out.id.lower() not in {kept_id.lower() for kept_id in subnets}:
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


def _listed(path: str) -> tuple[str, str]:
    """What a list is of: the id that all in it begin with, and their type, in lower case."""
    before, _, tail = path.lower().rpartition("/providers/")
    provider, *segments = tail.split("/")
    scope = before if len(segments) == 1 else path.lower().rpartition("/")[0]
    return scope, "/".join([provider, *segments[::2]])


def _links(call: Call, changing: Changing, operation: Operation) -> dict[str, str]:
    """Where the operation is followed: in the provider's location, beyond the resource, as in Azure."""
    path = ResourcePath.of(_subject(call))
    subscription = path.id.split("/")[2]
    location = changing.document.get("location", "westeurope")
    root = f"{call.base_url}/subscriptions/{subscription}/providers/{path.provider}/locations/{location}"
    asked = f"{operation.id}?api-version={call.query.get('api-version', '')}&of={quote(_subject(call))}"
    links = {"Location": f"{root}/asyncResults/{asked}", "Retry-After": f"{changing.poll_after:g}"}
    if changing.operation_style is OperationStyle.AZURE_ASYNC_OPERATION:
        links["Azure-AsyncOperation"] = f"{root}/asyncOperations/{asked}"
    return links


def _subject(call: Call) -> str:
    """The resource an operation is of: told by its link, once it is followed."""
    return call.query.get("of", call.path)


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
