"""Which Azure Monitor autoscale setting scales a resource, if one does: two controllers would undo each other's changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from azure.core.exceptions import AzureError

from scaling.scalers.arm.errors import Failure, Kind, classify

if TYPE_CHECKING:
    from scaling.scalers.arm.shared import ArmAccess

logger = logging.getLogger(__name__)

BESIDE_DEADLINE = 4.0
"""Seconds for autoscale settings, which are read beside a resource and not needed to scale it. Shorter than the shortest round
of reads: the resource is read even if they do not answer.
"""

HOLDER_AGE = 300.0
"""Seconds autoscale settings are remembered by default; they are edited by hand."""


class AutoscaleHolder:
    """Looks for the settings that target one resource. `label` names it in messages; `arm` has the settings of all."""

    def __init__(self, resource_id: str, label: str, arm: Callable[[], ArmAccess]) -> None:
        self._resource_id = resource_id.rstrip("/")
        self._label = label
        self._arm = arm
        self._known: tuple[str | None, float] = (None, -inf)  # and when it was read
        self._noted_unreadable = False

    async def holder(self, now: float, *, age: float = HOLDER_AGE) -> str | None:
        """The name of an enabled autoscale setting that targets the resource, known for at most `age` seconds.

        Without the right to read them the scaler goes on, and logs that once; after other errors the last answer counts.
        """
        name, read_at = self._known
        if read_at + age <= now:
            try:
                async with asyncio.timeout(BESIDE_DEADLINE):
                    name = await self._ask(now, age)
                self._noted_unreadable = False
            except Exception as error:  # whatever it is, the last answer holds
                self._note_unreadable(classify(error))
            self._known = name, now
        return name

    async def ask(self) -> str | None:
        """The same, asked now. Raises AzureError, also without the right to read, and ValueError naming a bad setting."""
        return await self._ask(0.0, -inf)

    async def _ask(self, now: float, age: float) -> str | None:
        """A setting may be in any resource group of the resource's subscription. Without the right to read all of them, those
        of the resource's own group count.
        """
        arm, group = self._arm(), self._resource_id.partition("/providers/")[0]
        subscription = "/".join(group.split("/")[:3])
        try:
            found = await arm.autoscaled(subscription, now, age)
        except AzureError as error:
            if classify(error).kind is not Kind.FORBIDDEN:
                raise
            found = await arm.autoscaled(group, now, age)
        return found.get(self._resource_id.casefold())

    def _note_unreadable(self, failure: Failure) -> None:
        if self._noted_unreadable:
            return
        self._noted_unreadable = True
        role = "; give the identity the 'Monitoring Reader' role on the resource group, or the subscription, to have them respected"
        logger.warning(
            "%s: Azure Monitor autoscale settings cannot be read (%s)%s",
            self._label,
            failure.story,
            role if failure.kind is Kind.FORBIDDEN else "",
        )
