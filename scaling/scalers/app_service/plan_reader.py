"""Reads one App Service Plan: its capacity, its limits, and who else moves it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from math import inf
from typing import TYPE_CHECKING, Any

from scaling.scalers.app_service.plan import PlanFacts, PlanId, facts_of, sku_maximum, why_refused
from scaling.scalers.arm.errors import Failure, classify
from scaling.scalers.arm.holder import BESIDE_DEADLINE, HOLDER_AGE, AutoscaleHolder
from scaling.scalers.arm.shared import ArmAccess, Place
from scaling.scalers.carrying_out import TargetRefusedError, advice, reading

if TYPE_CHECKING:
    from azure.mgmt.web.aio import WebSiteManagementClient
    from azure.mgmt.web.models import AppServicePlan


logger = logging.getLogger(__name__)

MAXIMUM_AGE = 3600.0
"""Seconds the maximum of a SKU is remembered; it changes about never."""

PLANS = "Microsoft.Web/serverfarms"
READER = "the 'Reader' role on the plan"


class PlanReader:
    """The reading side of one plan, through what `arm` opens."""

    def __init__(self, plan: PlanId, arm: Callable[[], ArmAccess], zone_redundant_minimum: int) -> None:
        self._plan = plan
        self._zone_redundant_minimum = zone_redundant_minimum
        self._arm = arm
        self._maximum: dict[str, tuple[int | None, float]] = {}  # of a SKU, and until when it is believed
        self._last: int | None = None
        self._holder = AutoscaleHolder(str(plan), f"plan '{plan.name}'", arm)

    async def web(self) -> WebSiteManagementClient:
        """Raises ValueError naming a setting at fault."""
        return await self._arm().web(self._plan.subscription).get()

    async def read(self, now: float, *, listed: bool = False) -> tuple[AppServicePlan, PlanFacts]:
        """The plan as the SDK has it, and what it says; as it is `listed` with others, where it has not moved.

        Raises TargetRefusedError when asking again is of no use, else ScalerError.
        """
        label = f"plan '{self._plan.name}'"
        read = self._read(label, now, listed=listed)
        return await reading(label, read, classify, lambda failure: advice_of(failure, READER))

    async def _read(self, label: str, now: float, *, listed: bool) -> tuple[AppServicePlan, PlanFacts]:
        web = await self.web()
        plan = await self._listed(web, now) if listed else None
        if plan is None:
            plan = await web.app_service_plans.get(self._plan.resource_group, self._plan.name)
        refusal = why_refused(plan)
        if refusal is not None:
            raise TargetRefusedError(f"{label} cannot be scaled: {refusal}")
        maximum = await self._sku_maximum(web, plan, now)
        facts = facts_of(plan, maximum, self._zone_redundant_minimum)
        self._last = facts.capacity
        return plan, facts

    async def _listed(self, web: WebSiteManagementClient, now: float) -> AppServicePlan | None:
        """The plan in the list of its subscription; None where it is to be read by itself: a list may be behind, so what
        it says of a change is not taken for granted.
        """

        async def ask(scope: str) -> Mapping[str, AppServicePlan]:
            plans, (*_, kind, name) = web.app_service_plans, scope.split("/")
            found = (
                plans.list(detailed=True) if kind == "subscriptions" else plans.list_by_resource_group(name)
            )
            return {str(each.id).casefold(): each async for each in found}

        plan: AppServicePlan | None = await self._arm().listed(Place(str(self._plan), PLANS), ask, now)
        capacity = plan.sku.capacity if plan is not None and plan.sku is not None else None
        return plan if capacity is not None and self._last in {None, capacity} else None

    async def _sku_maximum(
        self, web: WebSiteManagementClient, read: AppServicePlan, now: float
    ) -> int | None:
        """The maximum that the SKU call tells; None where it does not, or may not be made. One call is for all plans of a
        SKU, a subscription and a region.
        """
        if read.sku is None or read.sku.name is None:
            return None
        plan, sku = self._plan, read.sku.name

        async def ask() -> Any:
            return await web.app_service_plans.get_server_farm_skus(plan.resource_group, plan.name)

        key = ("skus", plan.subscription.casefold(), str(getattr(read, "location", "")).casefold(), sku)
        maximum, until = self._maximum.get(sku, (None, -inf))
        if until <= now:
            try:
                async with asyncio.timeout(BESIDE_DEADLINE):
                    told = await self._arm().once(key, ask, now, MAXIMUM_AGE)
                maximum, until = sku_maximum(told, sku), now + MAXIMUM_AGE
            except Exception as error:  # whatever it is, the plan's own maximum has to do for a while
                logger.info("plan '%s': its SKUs could not be read: %s", plan.name, classify(error).story)
                maximum, until = None, now + HOLDER_AGE
            self._maximum[sku] = maximum, until
        return maximum

    async def holder(self, now: float, *, age: float = HOLDER_AGE) -> str | None:
        """The name of an enabled autoscale setting that targets the plan: see `AutoscaleHolder`."""
        return await self._holder.holder(now, age=age)

    async def ask_holder(self) -> str | None:
        """The same, asked now. Raises AzureError, and ValueError naming a bad setting."""
        return await self._holder.ask()


def advice_of(failure: Failure, role: str) -> str:
    absent = "; check resource_id and the identity's access"
    return advice(failure, refused=f"the identity needs {role}", absent=absent)
