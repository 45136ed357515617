"""Reads one App Service Plan: its capacity, its limits, and who else moves it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from math import inf
from typing import TYPE_CHECKING

from foundation.azure.opening import Opened
from scaling.scalers.app_service.plan import PlanFacts, PlanId, facts_of, sku_maximum, why_refused
from scaling.scalers.arm.clients import ArmClients, open_clients
from scaling.scalers.arm.errors import Failure, classify
from scaling.scalers.arm.holder import BESIDE_DEADLINE, HOLDER_AGE, AutoscaleHolder
from scaling.scalers.carrying_out import TargetRefusedError, advice, reading

if TYPE_CHECKING:
    from azure.mgmt.web.aio import WebSiteManagementClient
    from azure.mgmt.web.models import AppServicePlan

    from scaling.scalers.arm.requests import ArmRequests

logger = logging.getLogger(__name__)

MAXIMUM_AGE = 3600.0
"""Seconds the maximum of a SKU is remembered; it changes about never."""

READER = "the 'Reader' role on the plan"


class PlanReader:
    """The reading side of one plan. Opens the SDK clients when first used; `aclose` closes them."""

    def __init__(self, plan: PlanId, settings: Mapping[str, str], zone_redundant_minimum: int) -> None:
        self._plan = plan
        self._zone_redundant_minimum = zone_redundant_minimum
        self._clients = Opened(lambda: open_clients(settings, plan.subscription))
        self._maximum: dict[str, tuple[int | None, float]] = {}  # of a SKU, and until when it is believed
        self._holder = AutoscaleHolder(str(plan), f"plan '{plan.name}'", self._requests)

    async def clients(self) -> ArmClients:
        """Raises ValueError naming a setting at fault."""
        return await self._clients.get()

    async def aclose(self) -> None:
        await self._clients.aclose()

    async def read(self, now: float) -> tuple[AppServicePlan, PlanFacts]:
        """The plan as the SDK has it, and what it says.

        Raises TargetRefusedError when asking again is of no use, else ScalerError.
        """
        label = f"plan '{self._plan.name}'"
        read = self._read(label, now)
        return await reading(label, read, classify, lambda failure: advice_of(failure, READER))

    async def _read(self, label: str, now: float) -> tuple[AppServicePlan, PlanFacts]:
        web = (await self.clients()).web
        plan = await web.app_service_plans.get(self._plan.resource_group, self._plan.name)
        refusal = why_refused(plan)
        if refusal is not None:
            raise TargetRefusedError(f"{label} cannot be scaled: {refusal}")
        maximum = await self._sku_maximum(web, plan.sku.name if plan.sku else None, now)
        return plan, facts_of(plan, maximum, self._zone_redundant_minimum)

    async def _sku_maximum(self, web: WebSiteManagementClient, sku: str | None, now: float) -> int | None:
        """The maximum that the SKU call tells; None where it does not, or may not be made."""
        if sku is None:
            return None
        plan = self._plan
        maximum, until = self._maximum.get(sku, (None, -inf))
        if until <= now:
            try:
                async with asyncio.timeout(BESIDE_DEADLINE):
                    told = await web.app_service_plans.get_server_farm_skus(plan.resource_group, plan.name)
                maximum, until = sku_maximum(told, sku), now + MAXIMUM_AGE
            except Exception as error:  # noqa: BLE001 - whatever it is, the plan's own maximum has to do for a while
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

    async def _requests(self) -> ArmRequests:
        return (await self.clients()).requests


def advice_of(failure: Failure, role: str) -> str:
    absent = "; check resource_id and the identity's access"
    return advice(failure, refused=f"the identity needs {role}", absent=absent)
