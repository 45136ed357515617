"""Resource Manager as the targets of one app use it together: one client, one credential, and lists in place of single reads.

A list of all resources of a type in a subscription costs as much of the budget as reading one of them. It may be some seconds
behind: whoever is about to change something reads the resource itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from azure.core.exceptions import AzureError
from msgspec import Struct

from scaling.calls.limiter import is_urgent, urgent
from scaling.calls.lists import LIST_DEADLINE, Lists
from scaling.scalers.arm.clients import open_resources, open_web
from scaling.scalers.arm.errors import Failure, Kind, classify
from scaling.scalers.arm.resources import ArmResources
from scaling.scalers.arm.states import may_be_on
from tidemark.foundation.azure.opening import LazyClient

if TYPE_CHECKING:
    from azure.mgmt.web.aio import WebSiteManagementClient

logger = logging.getLogger(__name__)

HOLDER_DEADLINE = 4.0
"""Seconds for autoscale settings, which are read beside a resource and not needed to scale it. Shorter than the shortest round
of reads: the resource is read even if they do not answer.
"""

HOLDER_AGE = 300.0
"""Seconds autoscale settings are remembered by default; they are edited by hand."""

Listed = Mapping[str, Any]
"""Resources by their ids, in lower case; or, of autoscale settings, names by the resource they target."""


class Place(Struct, frozen=True):
    """Where a resource is listed: by its id, with others of its type; `query` is what a list needs to be complete."""

    resource_id: str
    type: str
    query: str = ""

    @property
    def lists(self) -> tuple[tuple[str, str], ...]:
        """Scope and type, in lower case: of its subscription, and of its group."""
        group = self.resource_id.casefold().partition("/providers/")[0]
        return tuple((scope, self.type.casefold()) for scope in ("/".join(group.split("/")[:3]), group))


class ArmAccess:
    """Opens its clients when first used; the last user that leaves closes them."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self._webs: dict[str, LazyClient[WebSiteManagementClient]] = {}
        self._lists: Lists[Listed] = Lists()
        self._holders: dict[str, tuple[str | None, float]] = {}  # by resource, and when it was read
        self._unreadable: set[str] = set()
        self.resources: LazyClient[ArmResources] = LazyClient(lambda: open_resources(settings))

    def join(self, user: object, place: Place) -> None:
        """`user` reads a resource there."""
        self._lists.join(user, *place.lists)

    async def leave(self, user: object) -> None:
        if self._lists.leave(user):
            await self._lists.once.aclose()
            await asyncio.gather(self.resources.aclose(), *(web.aclose() for web in self._webs.values()))

    def web(self, subscription: str) -> LazyClient[WebSiteManagementClient]:
        """The client of App Service for all plans of a subscription."""
        opened: LazyClient[WebSiteManagementClient] = LazyClient(
            lambda: open_web(self._settings, subscription)
        )
        return self._webs.setdefault(subscription.casefold(), opened)

    async def document(self, place: Place, version: str, now: float) -> Any | None:
        """A resource as it is listed with all of its subscription or else of its group, once for all targets of a collection.

        None where it is to be read by itself: see `Lists`. For a change it always is, and so is what is not right below a
        group.
        """
        if is_urgent() or place.type.count("/") != 1:
            return None

        async def ask(scope: str) -> Listed:
            client = await self.resources.get()
            entries = client.entries(f"{scope}/providers/{place.type}", version, place.query)
            return {str(entry.get("id", "")).casefold(): entry async for entry in entries}

        for scope, type_ in place.lists:
            bound, what = partial(ask, scope), f"{type_} of {scope}"
            listed = await self._lists.of((scope, type_), bound, now=now, what=what, version=version)
            if listed and (listed_document := listed.get(place.resource_id.casefold())) is not None:
                return listed_document
        return None

    async def autoscaled(self, scope: str, now: float, age: float) -> Listed:
        """The enabled Azure Monitor autoscale settings of a subscription or a resource group, by what they target.

        Raises AzureError, ValueError, TimeoutError and CallRefusedError, for a while the same where it may not be read.
        """

        async def ask() -> Listed:
            client, holders = await self.resources.get(), {}
            with urgent():  # one call, for all
                async with asyncio.timeout(LIST_DEADLINE):
                    async for setting in client.autoscale_settings(scope):
                        properties = setting.get("properties") or {}
                        if may_be_on(properties.get("enabled")):
                            target = str(properties.get("targetResourceUri") or "").rstrip("/").casefold()
                            holders[target] = str(setting.get("name"))
            return holders

        return await self._lists.once.get(("autoscale", scope.casefold()), ask, now=now, age=age)

    async def holder(self, resource_id: str, now: float, *, age: float = HOLDER_AGE) -> str | None:
        """The name of an enabled autoscale setting that scales the resource, known for at most `age` seconds: two controllers
        would undo each other's changes.

        Without the right to read them the scaler goes on, and logs that once; after other errors the last answer counts.
        """
        name, read_at = self._holders.get(resource_id, (None, -inf))
        if read_at + age <= now:
            try:
                async with asyncio.timeout(HOLDER_DEADLINE):
                    name = await self.read_holder(resource_id, now, age)
                self._unreadable.discard(resource_id)
            except Exception as error:  # whatever it is, the last answer counts
                self._log_unreadable(resource_id, classify(error))
            self._holders[resource_id] = name, now
        return name

    async def read_holder(self, resource_id: str, now: float = 0.0, age: float = -inf) -> str | None:
        """The same, read now. Raises AzureError, also without the right to read, and ValueError naming a bad setting.

        A setting may be in any resource group of the resource's subscription. Without the right to read all of them, those
        of the resource's own group count.
        """
        group = resource_id.partition("/providers/")[0]
        try:
            holders = await self.autoscaled("/".join(group.split("/")[:3]), now, age)
        except AzureError as error:
            if classify(error).kind is not Kind.FORBIDDEN:
                raise
            holders = await self.autoscaled(group, now, age)
        return holders.get(resource_id.rstrip("/").casefold())

    def _log_unreadable(self, resource_id: str, failure: Failure) -> None:
        if resource_id in self._unreadable:
            return
        self._unreadable.add(resource_id)
        role = "; give the identity the 'Monitoring Reader' role on the resource group, or the subscription, to have them respected"
        logger.warning(
            "'%s': Azure Monitor autoscale settings cannot be read (%s)%s",
            resource_id.rpartition("/")[2],
            failure.story,
            role if failure.kind is Kind.FORBIDDEN else "",
        )


class UsesArm:
    """A scaler of a resource of Resource Manager. All of an app use it together."""

    _arm: ArmAccess
    _place: Place

    def _use(self, arm: ArmAccess) -> None:
        self._arm = arm
        arm.join(self, self._place)

    @classmethod
    def together(cls, scalers: Sequence[UsesArm]) -> None:
        """Lets them all use what the first one would; one by key uses nothing of it."""
        users = [scaler for scaler in scalers if hasattr(scaler, "_arm")]
        for scaler in users[1:]:
            scaler._use(users[0]._arm)

    async def aclose(self) -> None:
        if hasattr(self, "_arm"):
            await self._arm.leave(self)
