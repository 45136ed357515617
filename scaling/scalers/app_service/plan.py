"""What is known about App Service Plans without asking: ids, limits, and which plans can be scaled."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from scaling.resource_id import ResourceId
from scaling.scalers.arm.states import state_of

# Instances per plan by tier, lower case: published App Service limits. Only used when neither the SKU call
# nor the plan itself tells; scale-out limits of tiers not listed are left to the platform.
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

_TYPE = "Microsoft.Web/serverfarms"
_EXAMPLE = "/subscriptions/<subscription>/resourceGroups/<group>/providers/Microsoft.Web/serverfarms/<plan>"


class PlanId(Struct, frozen=True):
    subscription: str
    resource_group: str
    name: str

    @classmethod
    def parse(cls, text: str) -> PlanId:
        """The parts of a resource id, whatever its case. Raises ValueError naming what was found and what is accepted."""
        found = ResourceId.parse(text, example=_EXAMPLE)
        found.require(_TYPE, example=_EXAMPLE)
        return cls(found.subscription, found.group, found.name)

    def __str__(self) -> str:
        return (
            f"/subscriptions/{self.subscription}/resourceGroups/{self.resource_group}"
            f"/providers/Microsoft.Web/serverfarms/{self.name}"
        )


class PlanFacts(Struct, frozen=True):
    """One reading of a plan. `floor` and `ceiling` are the platform's: the smaller maximum of the plan's own and its
    SKU's. `target` is what asynchronous scaling still works towards.
    """

    capacity: int
    floor: int
    ceiling: int | None
    ready: int | None
    pending: bool
    target: int | None = None
    unknown_state: str = ""


def why_refused(plan: Any) -> str | None:
    """Why instances of this plan, as the SDK has it, cannot be set, and what to do instead; None for a plan that can be."""
    sku = plan.sku
    if sku is None or sku.name is None:
        return "the platform does not tell its SKU"
    return refusal_of(sku.name, sku.tier or "", elastic=bool(plan.elastic_scale_enabled))


def refusal_of(sku: str, tier: str, *, elastic: bool) -> str | None:
    """The same by its SKU's name and tier. A tier that nobody knows is a new one, and can be scaled as most can."""
    tier = tier.replace(" ", "").casefold()
    if tier not in DOCUMENTED_MAXIMUM and tier not in _REFUSED_TIERS:
        family = re.sub(r"\d+$", "", sku).upper() if sku[-1:].isdigit() else ""
        tier = _TIER_OF_FAMILY.get(family, tier)
    reason = _REFUSED_TIERS.get(tier)
    if reason is None and elastic:
        reason = "App Service automatic scaling is on (elasticScaleEnabled), which ignores sku.capacity; turn it off"
    return None if reason is None else f"SKU {sku}: {reason}"


def sku_maximum(document: Any, sku_name: str) -> int | None:
    """The maximum the SKU call tells for `sku_name`; None when it does not.

    The call is untyped; lists under `value` and under `skus` have both been published.
    """
    entries = document.get("value") or document.get("skus") or [] if isinstance(document, dict) else []
    for entry in entries:
        if str((entry.get("sku") or {}).get("name", "")).casefold() == sku_name.casefold():
            maximum = (entry.get("capacity") or {}).get("maximum")
            return int(maximum) if maximum else None
    return None


def facts_of(plan: Any, told_maximum: int | None, zone_redundant_minimum: int) -> PlanFacts:
    """Reads a plan. Raises ValueError when the platform does not tell the capacity."""
    capacity = plan.sku.capacity
    if capacity is None:
        raise ValueError("the answer holds no sku.capacity")
    tier = (plan.sku.tier or "").replace(" ", "").casefold()
    told = [maximum for maximum in (told_maximum, plan.maximum_number_of_workers) if maximum]
    ceiling = min(told) if told else DOCUMENTED_MAXIMUM.get(tier)
    floor = zone_redundant_minimum if plan.zone_redundant else 1
    changing, unknown = state_of(plan.provisioning_state)
    target = plan.target_worker_count if plan.async_scaling_enabled else None
    growing = (target or 0) > capacity
    return PlanFacts(
        capacity=capacity,
        floor=floor if ceiling is None else min(floor, ceiling),
        ceiling=ceiling,
        ready=plan.number_of_workers or None,  # assigned workers; 0 means not told
        pending=changing or growing,
        target=target if growing else None,
        unknown_state="" if growing else unknown,
    )
