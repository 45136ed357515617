"""What Resource Manager does, without HTTP: from a method, a path and a document to an Answer.

Paths match whatever their case, as in Azure. Each route (`routes`) is also the name of a fault point
(`devstack.servers.faults`); the kinds of fault that need knowledge of a plan are handled here (those of throughput in
`cosmos`):

    arm.put_plan   stuck_operation   accepted, ends after `seconds` as Failed, or never if 0
                   failed_operation  accepted, ends as Failed when the operation is over
                   ignored_capacity  accepted, ends as Succeeded, the capacity stays
                   conflict          refused as if another operation were in progress
"""

from dataclasses import dataclass, field
from typing import Any

from devstack.resource_manager.common.documents import (
    FAILED_MESSAGE,
    Answer,
    ArmError,
    Call,
    front_door_error,
    operation_document,
    plan_document,
    provider_error,
    refused,
    skus_document,
)
from devstack.resource_manager.common.plans import (
    NEVER,
    Clock,
    Ending,
    Operation,
    OperationStyle,
    Plan,
    Refusal,
    RefusalCode,
    Status,
)
from devstack.resource_manager.common.skus import find_sku
from devstack.resource_manager.cosmos import CosmosApi
from devstack.resource_manager.metrics import MetricsApi
from devstack.resource_manager.resources.store import ResourcesApi
from devstack.servers.faults import Fault

API_VERSION = "2025-05-01"  # only written into the links to operations; any version is accepted
SKU_IS_NULL = "The parameter SKU cannot be null."


@dataclass(slots=True)
class ResourceManagerApi:
    """The plans and autoscale settings, by lower-case id, and the answers about them."""

    clock: Clock
    plans: dict[str, Plan] = field(default_factory=dict)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    permissions: list[dict[str, Any]] = field(default_factory=lambda: [{"actions": ["*"], "notActions": []}])
    cosmos: CosmosApi = field(init=False)
    metrics: MetricsApi = field(init=False)
    resources: ResourcesApi = field(init=False)

    def __post_init__(self) -> None:
        self.cosmos = CosmosApi(self.clock)
        self.metrics = MetricsApi(self.clock, self.plans)
        self.resources = ResourcesApi(self._find, self.clock)

    def knows_subscription(self, subscription: str) -> bool:
        plans = any(plan.subscription.lower() == subscription.lower() for plan in self.plans.values())
        others = (self.cosmos, self.metrics, self.resources)
        return plans or any(other.knows_subscription(subscription) for other in others)

    # -- plans ------------------------------------------------------------------------------------

    def find_plan(self, parts: dict[str, str]) -> Plan | None:
        path = f"/subscriptions/{parts['subscription']}/resourceGroups/{parts['group']}"
        self._check_group(parts)
        return self.plans.get(f"{path}/providers/Microsoft.Web/serverfarms/{parts['name']}".lower())

    def get_plan(self, call: Call) -> Answer:
        return Answer(200, plan_document(self._plan(call)))

    def get_skus(self, call: Call) -> Answer:
        return Answer(200, skus_document(self._plan(call).sku))

    def list_plans(self, call: Call) -> Answer:
        plans = [plan_document(plan) for plan in self._plans_under(call.parts)]
        return Answer(200, {"value": plans, "nextLink": None})

    def list_plan_sites(self, call: Call) -> Answer:
        """The apps that run on the plan."""
        plan = plan_document(self._plan(call))
        sites = [
            site
            for site in self.resources.documents_of("microsoft.web/sites")
            if str((site.get("properties") or {}).get("serverFarmId", "")).lower() == str(plan["id"]).lower()
        ]
        return Answer(200, {"value": sites, "nextLink": None})

    def patch_plan(self, call: Call) -> Answer:
        """Changes what is said and keeps the rest: without a SKU, which the SDK's typed document has no place for, the
        number of workers among it.
        """
        plan = self._plan(call)
        document = call.document or {}
        tags = document.get("tags")
        if tags is not None:
            plan.tags = dict(tags)
        if document.get("sku") is None:
            _set_scaling(plan, document)
            return Answer(200, plan_document(plan))
        sku = _requested_sku({"sku": {"name": plan.sku.name, **document["sku"]}})
        return self._resize(call, plan, sku)

    def put_plan(self, call: Call) -> Answer:
        plan = self.find_plan(call.parts)
        sku = _requested_sku(call.document)
        return self._create(call, sku) if plan is None else self._resize(call, plan, sku)

    def _resize(self, call: Call, plan: Plan, sku: dict[str, Any]) -> Answer:
        if sku["name"].lower() != plan.sku.name.lower():
            raise provider_error(
                400,
                "The local Resource Manager changes the number of workers only: "
                f"sku.name is {sku['name']!r}, the plan has {plan.sku.name!r}.",
            )
        _set_scaling(plan, call.document)
        if call.method == "PUT":
            plan.tags = dict(call.document.get("tags") or {})
        try:
            operation = _request(plan, sku.get("capacity"), call.fault)
        except Refusal as refusal:
            raise refused(refusal, plan) from None
        return self._accepted(call, plan, operation)

    def _create(self, call: Call, sku: dict[str, Any]) -> Answer:
        self._check_group(call.parts)
        if not call.document.get("location"):
            raise front_door_error(400, "LocationRequired", "The location property is required.")
        try:
            plan = Plan(
                subscription=call.parts["subscription"],
                resource_group=call.parts["group"],
                name=call.parts["name"],
                location=call.document["location"],
                sku=find_sku(sku["name"]),
                initial_capacity=sku.get("capacity") or 1,
                tags=dict(call.document.get("tags") or {}),
                clock=self.clock,
            )
        except ValueError as error:
            raise provider_error(400, str(error)) from None
        self.plans[plan.id.lower()] = plan
        return Answer(200, plan_document(plan))

    def _accepted(self, call: Call, plan: Plan, operation: Operation) -> Answer:
        status = operation.status(self.clock())
        if status is Status.SUCCEEDED or plan.operation_style is OperationStyle.BODY:
            return Answer(200, plan_document(plan))
        return Answer(202, plan_document(plan), _links(call.base_url, plan, operation))

    # -- operations -------------------------------------------------------------------------------

    def get_operation(self, call: Call) -> Answer:
        plan, operation = self._operation(call)
        now = self.clock()
        running = operation.status(now) is Status.IN_PROGRESS
        headers = {"Retry-After": str(plan.poll_after)} if running else {}
        return Answer(200, operation_document(call.path, operation, now), headers)

    def get_operation_result(self, call: Call) -> Answer:
        plan, operation = self._operation(call)
        status = operation.status(self.clock())
        if status is Status.IN_PROGRESS:
            return Answer(202, None, _links(call.base_url, plan, operation))
        if status is Status.FAILED:
            raise provider_error(409, FAILED_MESSAGE)
        return Answer(200, plan_document(plan))

    # -- autoscale settings -----------------------------------------------------------------------

    def list_settings(self, call: Call) -> Answer:
        self._check_group(call.parts)
        return Answer(200, {"value": self._settings_under(call.parts), "nextLink": None})

    def get_setting(self, call: Call) -> Answer:
        self._check_group(call.parts)
        for setting in self._settings_under(call.parts):
            if setting["name"].lower() == call.parts["name"].lower():
                return Answer(200, setting)
        raise _not_found(call.parts, "microsoft.insights/autoscalesettings")

    # -- permissions ------------------------------------------------------------------------------

    def get_permissions(self, call: Call) -> Answer:
        """What the caller may do with a resource: the same for all of them."""
        self._check_resource(call.parts["scope"])
        return Answer(200, {"value": self.permissions})

    def _check_resource(self, scope: str) -> None:
        there = [*self.plans, *self.cosmos.accounts, *self.resources.changing]
        if not any(f"{scope.lower()}/".startswith(f"{known}/") for known in there):
            raise front_door_error(404, "ResourceNotFound", f"The Resource '{scope}' was not found.")

    # -- metrics ----------------------------------------------------------------------------------

    def get_metrics(self, call: Call) -> Answer:
        return self.metrics.get_metrics(call)

    # -- helpers ----------------------------------------------------------------------------------

    def _find(self, resource_id: str) -> dict[str, Any] | None:
        """What is no resource of `resources`: a plan, a Cosmos DB account, a group that has plans."""
        if resource_id in self.plans:
            return plan_document(self.plans[resource_id])
        known = (*self.plans, *self.cosmos.accounts)
        return (
            {}
            if any(known_id == resource_id or known_id.startswith(f"{resource_id}/") for known_id in known)
            else None
        )

    def _plan(self, call: Call) -> Plan:
        plan = self.find_plan(call.parts)
        if plan is None:
            raise _not_found(call.parts, "Microsoft.Web/serverfarms")
        return plan

    def _operation(self, call: Call) -> tuple[Plan, Operation]:
        name, _, operation_id = call.parts["id"].partition("~")
        for plan in self._plans_under(call.parts):
            operation = plan.operation(operation_id)
            if plan.name.lower() == name.lower() and operation is not None:
                return plan, operation
        raise front_door_error(404, "NotFound", f"Operation '{call.parts['id']}' was not found.")

    def _check_group(self, parts: dict[str, str]) -> None:
        known = "group" not in parts or self._plans_under(parts) or self.resources.knows_group(parts)
        if not known:
            raise front_door_error(
                404, "ResourceGroupNotFound", f"Resource group '{parts['group']}' could not be found."
            )

    def _plans_under(self, parts: dict[str, str]) -> list[Plan]:
        scope = _scope(parts)
        return [plan for plan_id, plan in self.plans.items() if plan_id.startswith(scope)]

    def _settings_under(self, parts: dict[str, str]) -> list[dict[str, Any]]:
        scope = _scope(parts)
        return [setting for setting_id, setting in self.settings.items() if setting_id.startswith(scope)]


def _scope(parts: dict[str, str]) -> str:
    group = f"/resourceGroups/{parts['group']}" if "group" in parts else ""
    return f"/subscriptions/{parts['subscription']}{group}/".lower()


def _not_found(parts: dict[str, str], kind: str) -> ArmError:
    return front_door_error(
        404,
        "ResourceNotFound",
        f"The Resource '{kind}/{parts['name']}' under resource group '{parts['group']}' was not found. "
        "For more details please go to https://aka.ms/ARMResourceNotFoundFix",
    )


def _set_scaling(plan: Plan, document: dict[str, Any]) -> None:
    scales_async = (document.get("properties") or {}).get("asyncScalingEnabled")
    if scales_async is not None:
        plan.async_scaling_enabled = bool(scales_async)


def _requested_sku(document: Any) -> dict[str, Any]:
    sku = document.get("sku") if isinstance(document, dict) else None
    if not isinstance(sku, dict) or not isinstance(sku.get("name"), str):
        raise provider_error(400, SKU_IS_NULL)
    capacity = sku.get("capacity")
    if capacity is not None and (not isinstance(capacity, int) or isinstance(capacity, bool)):
        raise provider_error(400, f"sku.capacity is {capacity!r}; accepted is a whole number.")
    return sku


def _request(plan: Plan, capacity: int | None, fault: Fault | None) -> Operation:
    if fault is None:
        return plan.request_capacity(capacity)
    if fault.kind == "conflict":
        raise Refusal(
            RefusalCode.OPERATION_IN_PROGRESS,
            "Cannot modify this web hosting plan because another operation is in progress.",
        )
    ending, seconds = {
        "stuck_operation": (Ending.FAILED, fault.seconds or NEVER),
        "failed_operation": (Ending.FAILED, None),
        "ignored_capacity": (Ending.IGNORED, None),
    }.get(fault.kind, (Ending.APPLIED, None))
    return plan.request_capacity(capacity, ending=ending, seconds=seconds)


def _links(base_url: str, plan: Plan, operation: Operation) -> dict[str, str]:
    root = f"{base_url}/subscriptions/{plan.subscription}/providers/Microsoft.Web/locations/{plan.location}"
    identifier = f"{plan.name}~{operation.id}?api-version={API_VERSION}"
    links = {
        "Location": f"{root}/operationresults/{identifier}",
        "Retry-After": str(plan.poll_after),
    }
    if plan.operation_style is OperationStyle.AZURE_ASYNC_OPERATION:
        links["Azure-AsyncOperation"] = f"{root}/operations/{identifier}"
    return links
