"""What is known about App Service Plans without asking: limits, which plans can be scaled, and how one reads. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import structs

from scaling.resource_id import ResourceId
from scaling.scalers.arm.states import may_be_on
from scaling.scalers.resource.kinds import Kind
from scaling.scalers.resource.resource import Seen, at, number, seen_of

PLAN = Kind(
    type="Microsoft.Web/serverfarms",
    api_version="2025-05-01",
    path="sku.capacity",
    unit="instances",
    method="put",  # a PATCH cannot carry a SKU
    floor=1,
    list_query="detailed=true",
)

# Instances per plan by tier, lower case: published App Service limits. Used for a plan without
# maximumNumberOfWorkers; for tiers that are not listed the platform alone knows the limit.
DOCUMENTED_MAXIMUM: dict[str, int] = {
    "basic": 3,
    "standard": 10,
    "premium": 20,
    "premiumv2": 30,
    "premiumv3": 30,
    "premiummv3": 30,
    "premiumv4": 30,
    "premiummv4": 30,
    "isolated": 100,
    "isolatedv2": 100,
    "isolatedmv2": 100,
}

# Why a plan of this tier (lower case) is refused, and what to do instead.
_REFUSED_TIERS: dict[str, str] = {
    "dynamic": "the platform itself scales a Consumption plan; use a Basic, Standard or Premium plan",
    "flexconsumption": (
        "the platform itself scales a Flex Consumption plan; use a Basic, Standard or Premium plan"
    ),
    "elasticpremium": (
        "changes of sku.capacity are ignored on Elastic Premium plans; set the app's always-ready instances, "
        "or move the app to a Premium v3 plan"
    ),
    "workflowstandard": (
        "changes of sku.capacity are ignored on Workflow Standard plans, which the platform scales itself"
    ),
    "free": "a Free plan has one shared instance; move it to Basic or above",
    "shared": "a Shared plan has one shared instance; move it to Basic or above",
}
_TIER_OF_FAMILY = {
    "Y": "dynamic",
    "FC": "flexconsumption",
    "EP": "elasticpremium",
    "WS": "workflowstandard",
    "F": "free",
    "D": "shared",
}

_EXAMPLE = "/subscriptions/<subscription>/resourceGroups/<group>/providers/Microsoft.Web/serverfarms/<plan>"


def plan_id(text: str) -> ResourceId:
    """The id of a plan, whatever its case. Raises ValueError naming what was found and what is accepted."""
    resource = ResourceId.parse(text, example=_EXAMPLE)
    resource.require(PLAN.type, example=_EXAMPLE)
    return resource


def tier_of(plan: Mapping[str, Any]) -> str:
    return str(at(plan, "sku.tier") or "").replace(" ", "").casefold()


def why_refused(plan: Mapping[str, Any]) -> str | None:
    """Why the instances of a plan cannot be set, and what to do instead; None for a plan that can be scaled."""
    return refusal_of(plan) if at(plan, "sku.name") else "the platform does not tell its SKU"


def refusal_of(plan: Mapping[str, Any]) -> str | None:
    """The same by its tier and its switches. A tier that nobody knows is a new one, and can be scaled as most can."""
    sku, tier = str(at(plan, "sku.name") or ""), tier_of(plan)
    if tier not in DOCUMENTED_MAXIMUM and tier not in _REFUSED_TIERS:
        family = re.sub(r"\d+$", "", sku).upper() if sku[-1:].isdigit() else ""
        tier = _TIER_OF_FAMILY.get(family, tier)
    reason = _REFUSED_TIERS.get(tier)
    if reason is None and may_be_on(at(plan, "properties.elasticScaleEnabled")):
        reason = "App Service automatic scaling is on (elasticScaleEnabled), which ignores sku.capacity; turn it off"
    return None if reason is None else f"SKU {sku}: {reason}"


def plan_seen(plan: Mapping[str, Any], zone_redundant_minimum: int) -> Seen:
    """Reads a plan. Raises ValueError when the answer lacks the capacity."""
    seen = seen_of(PLAN, plan)
    ceiling = number(plan, "properties.maximumNumberOfWorkers", None) or DOCUMENTED_MAXIMUM.get(tier_of(plan))
    floor = zone_redundant_minimum if may_be_on(at(plan, "properties.zoneRedundant")) else 1
    scales_on = may_be_on(at(plan, "properties.asyncScalingEnabled"))
    target = number(plan, "properties.targetWorkerCount", 0) or 0
    growing = scales_on and target > seen.value
    return structs.replace(
        seen,
        floor=floor if ceiling is None else min(floor, ceiling),
        ceiling=ceiling,
        ready=number(plan, "properties.numberOfWorkers", None) or None,  # assigned workers; 0 means not known
        pending=seen.pending or growing,
        target=target if growing else None,
        unknown_state="" if growing else seen.unknown_state,
    )
