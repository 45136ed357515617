"""What Resource Manager and its providers are called with, and the JSON that they answer with."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from devstack.resource_manager.common.plans import Operation, Plan, Refusal, RefusalCode, Status
from devstack.resource_manager.common.skus import Sku, selectable
from devstack.servers.faults import Fault


@dataclass(frozen=True, slots=True)
class Call:
    """One request that found its route; `parts` holds subscription, group, name and id of the path."""

    method: str
    path: str
    parts: dict[str, str]
    document: Any = None
    base_url: str = ""
    fault: Fault | None = None
    query: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResourcePath:
    """The id of a resource taken apart: `extends` is what an extension is of, a resource, a group or a subscription."""

    id: str
    provider: str
    type: str
    name: str
    group: str | None
    parent: str | None
    extends: str | None

    @classmethod
    def of(cls, resource_id: str) -> Self:
        """`resource_id` has a provider and pairs of types and names, which the routes see to."""
        scope, _, tail = _rpartition(resource_id, "/providers/")
        provider, *segments = tail.split("/")
        kinds, names = segments[::2], segments[1::2]
        match = re.match(r"/subscriptions/[^/]+/resourceGroups/[^/]+", resource_id, re.IGNORECASE)
        return cls(
            id=resource_id,
            provider=provider,
            type="/".join([provider, *kinds]),
            name=names[-1],
            group=match.group() if match else None,
            parent=resource_id.rsplit("/", 2)[0] if len(names) > 1 else None,
            extends=scope if "/providers/" in scope.lower() else None,
        )


def _rpartition(text: str, mark: str) -> tuple[str, str, str]:
    """`str.rpartition` whatever the case."""
    at = text.lower().rfind(mark)
    return text[:at], text[at : at + len(mark)], text[at + len(mark) :]


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer without the HTTP: `body` None sends no body."""

    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


class ArmError(Exception):
    """Raised to answer with an error."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self.answer = answer


def front_door_error(
    status: int, code: str, message: str, *, retry_after: float | None = None, **headers: str
) -> ArmError:
    """An error of Resource Manager itself: {"error": {"code", "message"}}.

    Keyword names of headers are spelled with underscores.
    """
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if retry_after is not None:
        sent["Retry-After"] = f"{retry_after:g}"
    return ArmError(Answer(status, {"error": {"code": code, "message": message}}, sent))


_REFUSAL_STATUS = {
    RefusalCode.TOO_MANY_WORKERS: 409,
    RefusalCode.NOT_ENOUGH_SERVERS: 429,
    RefusalCode.TOO_MANY_CHANGES: 429,  # the status is not documented; 429 is what fits the text
    RefusalCode.BAD_CAPACITY: 400,
}


def refused(refusal: Refusal, plan: Plan) -> ArmError:
    """The refusal in the words of the App Service provider.

    Its errors are not wrapped in "error" and begin with capitals, so that the SDK finds no code in
    them: a client must read the body. (Body as reported in azure-sdk-for-java#1827.)
    """
    headers = {}
    if refusal.code is RefusalCode.OPERATION_IN_PROGRESS:
        status = plan.conflict_status
        headers["Retry-After"] = str(plan.conflict_retry_after)
    else:
        status = _REFUSAL_STATUS[refusal.code]
    return provider_error(status, refusal.message, extended_code=_extended(refusal.code), headers=headers)


def _extended(code: RefusalCode) -> str | None:
    return code.value if code.value.isdigit() else None


def provider_error(
    status: int, message: str, *, extended_code: str | None = None, headers: dict[str, str] | None = None
) -> ArmError:
    """An error as the App Service provider words it; its Code is "BadRequest" for 400, else "Conflict"."""
    code = "BadRequest" if status == 400 else "Conflict"
    entity: dict[str, Any] = {
        "ExtendedCode": extended_code,
        "MessageTemplate": message,
        "Parameters": [],
        "Code": code,
        "Message": message,
    }
    body = {
        "Code": code,
        "Message": message,
        "Target": None,
        "Details": [{"Message": message}, {"Code": code}, {"ErrorEntity": entity}],
        "Innererror": None,
    }
    return ArmError(Answer(status, body, headers or {}))


def plan_document(plan: Plan) -> dict[str, Any]:
    # The state is read before the capacity: time may pass in between, and "Succeeded" beside the old
    # capacity would be a lie.
    sku, state, capacity = plan.sku, plan.provisioning_state, plan.capacity
    return {
        "id": plan.id,
        "name": plan.name,
        "type": "Microsoft.Web/serverfarms",
        "kind": "elastic" if sku.is_elastic else "linux",
        "location": plan.location,
        "tags": dict(plan.tags),
        "properties": {
            "status": "Ready",
            "subscription": plan.subscription,
            "resourceGroup": plan.resource_group,
            "geoRegion": plan.location,
            "numberOfWorkers": capacity,
            "maximumNumberOfWorkers": plan.maximum,
            "maximumElasticWorkerCount": sku.maximum if plan.elastic_scale_enabled else 1,
            "numberOfSites": plan.number_of_sites,
            "perSiteScaling": False,
            "elasticScaleEnabled": plan.elastic_scale_enabled,
            "asyncScalingEnabled": plan.async_scaling_enabled,
            "zoneRedundant": plan.zone_redundant,
            "reserved": True,
            "targetWorkerCount": plan.target_worker_count,
            "targetWorkerSizeId": 0,
            "provisioningState": state.value,
        },
        "sku": {
            "name": sku.name,
            "tier": sku.tier,
            "size": sku.name,
            "family": sku.family,
            "capacity": capacity,
        },
    }


def skus_document(sku: Sku) -> dict[str, Any]:
    """What `get_server_farm_skus` returns untyped: a page of the SDK's SkuInfo, capacities included."""
    return {"value": [_sku_info(other) for other in selectable(sku)], "nextLink": None}


def _sku_info(sku: Sku) -> dict[str, Any]:
    scales = "None" if sku.maximum == 1 else "Elastic" if sku.is_elastic else "Manual"
    capacity: dict[str, Any] = {"minimum": 1, "maximum": sku.maximum, "default": 1, "scaleType": scales}
    if sku.is_elastic:
        capacity["elasticMaximum"] = sku.maximum
    return {
        "resourceType": "Microsoft.Web/serverfarms",
        "sku": {"name": sku.name, "tier": sku.tier, "size": sku.name, "family": sku.family},
        "capacity": capacity,
    }


def operation_document(path: str, operation: Operation, now: float) -> dict[str, Any]:
    status = operation.status(now)
    document: dict[str, Any] = {
        "id": path,
        "name": operation.id,
        "status": status.value,
        "startTime": _timestamp(operation.started_at),
    }
    if status is not Status.IN_PROGRESS:
        document["endTime"] = _timestamp(operation.ends_at)
    if status is Status.FAILED:
        document["error"] = {"code": "Conflict", "message": FAILED_MESSAGE}
    return document


FAILED_MESSAGE = "The operation to change the number of workers failed. Please retry later."


def autoscale_document(target: str, name: str, *, enabled: bool, maximum: int) -> dict[str, Any]:
    """An Azure Monitor autoscale setting of the resource with that id, in its group, with one profile and no rules.

    The target's type is spelled as portals and templates do ("serverFarms"): it equals the id only when case is ignored.
    """
    group = target.partition("/providers/")[0]
    capacity = {"minimum": "1", "maximum": str(maximum), "default": "1"}
    return {
        "id": f"{group}/providers/microsoft.insights/autoscalesettings/{name}",
        "name": name,
        "type": "Microsoft.Insights/autoscaleSettings",
        "location": "westeurope",
        "tags": {},
        "properties": {
            "name": name,
            "enabled": enabled,
            "targetResourceUri": target.replace("/serverfarms/", "/serverFarms/"),
            "targetResourceLocation": "westeurope",
            "profiles": [{"name": "default", "capacity": capacity, "rules": []}],
            "notifications": [],
        },
    }


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def parsed(body: bytes) -> Any:
    """The JSON object sent; None when there is none. Raises ArmError, with the place, for anything else."""
    if not body.strip():
        return None
    try:
        document = json.loads(body)
    except json.JSONDecodeError as error:
        raise _invalid_content(error.msg, error.lineno, error.colno) from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise _invalid_content(str(error), 1, getattr(error, "start", 0) + 1) from None
    if not isinstance(document, dict):
        raise _invalid_content("Cannot deserialize: the type requires a JSON object", 1, 1)
    return document


def _invalid_content(problem: str, line: int, position: int) -> ArmError:
    """In the words of the front door."""
    return front_door_error(
        400,
        "InvalidRequestContent",
        "The request content was invalid and could not be deserialized: "
        f"'{problem}. Path '', line {line}, position {position}.'.",
    )
