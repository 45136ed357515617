"""Reads one App Service Plan: its capacity, its limits, and who else moves it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, Mapping
from math import inf
from typing import TYPE_CHECKING

from azure.core.exceptions import AzureError

from foundation.azure.opening import Opened
from scaling.scalers.app_service.plan import PlanFacts, PlanId, facts_of, sku_maximum, why_refused
from scaling.scalers.arm.clients import ArmClients, open_clients
from scaling.scalers.arm.errors import Failure, Kind, classify
from scaling.scalers.carrying_out import TargetRefusedError, advice, reading

if TYPE_CHECKING:
    from azure.mgmt.web.aio import WebSiteManagementClient
    from azure.mgmt.web.models import AppServicePlan

    from scaling.scalers.arm.requests import Entry

logger = logging.getLogger(__name__)

BESIDE_DEADLINE = 4.0
"""Seconds for what is read beside the plan, and is not needed to scale it: the maximum of its SKU, and the autoscale
settings. Below the time that the shortest round of reads has: the plan is read though one of these does not answer.
"""

MAXIMUM_AGE = 3600.0
"""Seconds the maximum of a SKU is remembered; it changes about never."""

HOLDER_AGE = 300.0
"""Seconds autoscale settings are remembered by default; they are edited by hand."""

READER = "the 'Reader' role on the plan"


class PlanReader:
    """The reading side of one plan. Opens the SDK clients when first used; `aclose` closes them."""

    def __init__(self, plan: PlanId, settings: Mapping[str, str], zone_redundant_minimum: int) -> None:
        self._plan = plan
        self._zone_redundant_minimum = zone_redundant_minimum
        self._clients = Opened(lambda: open_clients(settings, plan.subscription))
        self._maximum: dict[str, tuple[int | None, float]] = {}  # of a SKU, and until when it is believed
        self._holder: tuple[str | None, float] = (None, -inf)  # and when it was read
        self._noted_unreadable = False

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
        """The name of an enabled autoscale setting that targets the plan, known for at most `age` seconds.

        Not being allowed to look is not fatal, and noted once; after other errors the last answer holds.
        """
        name, read_at = self._holder
        if read_at + age <= now:
            try:
                async with asyncio.timeout(BESIDE_DEADLINE):
                    name = await self.ask_holder()
                self._noted_unreadable = False
            except Exception as error:  # noqa: BLE001 - whatever it is, the last answer holds
                self._note_unreadable(classify(error))
            self._holder = name, now
        return name

    async def ask_holder(self) -> str | None:
        """The same, asked now. Raises AzureError, also for who may not look, and ValueError naming a bad setting.

        A setting may lie in any resource group of the plan's subscription. Who may not look through all of it
        gets those of the plan's own group.
        """
        requests, subscription = (await self.clients()).requests, f"/subscriptions/{self._plan.subscription}"
        try:
            return await self._holding(requests.autoscale_settings(subscription))
        except AzureError as error:
            if classify(error).kind is not Kind.FORBIDDEN:
                raise
        group = f"{subscription}/resourceGroups/{self._plan.resource_group}"
        return await self._holding(requests.autoscale_settings(group))

    async def _holding(self, settings: AsyncIterable[Entry]) -> str | None:
        wanted = str(self._plan).casefold()
        async for setting in settings:
            told = setting.get("properties") or {}
            target = str(told.get("targetResourceUri") or "").rstrip("/").casefold()
            if told.get("enabled") and target == wanted:
                return str(setting.get("name"))
        return None

    def _note_unreadable(self, failure: Failure) -> None:
        if self._noted_unreadable:
            return
        self._noted_unreadable = True
        role = "; give the identity the 'Monitoring Reader' role on the resource group, or the subscription, to have them respected"
        logger.warning(
            "plan '%s': Azure Monitor autoscale settings cannot be read (%s)%s",
            self._plan.name,
            failure.story,
            role if failure.kind is Kind.FORBIDDEN else "",
        )


def advice_of(failure: Failure, role: str) -> str:
    absent = "; check resource_id and the identity's access"
    return advice(failure, refused=f"the identity needs {role}", absent=absent)
