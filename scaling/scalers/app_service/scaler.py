"""Sets the number of instances of an App Service Plan.

How an action is carried out:

1. read the plan; refuse plans whose instances cannot be set; stop if an Azure Monitor autoscale setting
   holds the plan, if it already is where it should be, or if somebody else moved it;
2. clamp to what the platform allows, and PUT the plan with the new `sku.capacity` (a PATCH cannot carry
   a SKU);
3. on "another operation is in progress" and on throttling wait as told, and begin again at 1; on "exceeds
   the maximum" and "not enough servers" ask once more for what can be had;
4. follow the operation to its end and read the plan back. Whatever became of the answer, the plan itself
   says what happened. Asynchronous scaling goes on by itself, perhaps for hours: then the action is accepted,
   and the checks find its effect.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated

import msgspec

from scaling.model import Capacity, Effect, EffectOutcome, ScaleAction
from scaling.scalers.app_service.plan import PlanFacts, PlanId
from scaling.scalers.app_service.plan_reader import PLANS, PlanReader, advice_of
from scaling.scalers.arm.errors import Failure, Kind, classify
from scaling.scalers.arm.shared import ArmAccess, Place, UsesArm
from scaling.scalers.carrying_out import FIRST_WAIT, Order, Wait, carry_out, reading_back
from scaling.target_facts import TargetFacts

if TYPE_CHECKING:
    from azure.mgmt.web.models import AppServicePlan

WRITER = "the 'Web Plan Contributor' role on the plan"


CHANGES_PER_HOUR = 20
"""Changes of a plan within the past hour, whoever makes them, above which App Service refuses: "You have exceeded the maximum
amount of scale changes within the past hour(XX changes and limit is 20)" (MicrosoftDocs/azure-docs#97530; not in its docs).
"""

MOST_CHANGES = 60
"""No more can be counted: as many effects are remembered."""


class _Order(Order):
    """A refusal taught `cap` in the words of `lesson`."""

    cap: int | None = None
    lesson: str = ""


class AppServicePlanScaler(UsesArm):
    """The scaler of one plan. `sleep` and `monotonic` are the time it waits by; tests bring their own."""

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """`deadline_seconds` bounds one delivery of an action. A change that takes longer is the platform's by then,
        and the checks find its effect.

        `poll_interval_seconds` counts where the platform does not say when to look again.
        `changes_per_hour` is what the platform takes of a plan in a sliding hour. `zone_redundant_minimum` is the floor of zone-redundant plans: 2, or 3 for older ones.
        """

        resource_id: str
        deadline_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 60.0
        poll_interval_seconds: Annotated[float, msgspec.Meta(gt=0, le=60)] = 5.0
        zone_redundant_minimum: Annotated[int, msgspec.Meta(ge=1)] = 2
        changes_per_hour: Annotated[int, msgspec.Meta(ge=2, le=MOST_CHANGES)] = CHANGES_PER_HOUR

        def problems(self) -> dict[str, str]:
            try:
                PlanId.parse(self.resource_id)
            except ValueError as error:
                return {"resource_id": str(error)}
            return {}

    def __init__(
        self,
        params: Params,
        settings: Mapping[str, str],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ValueError for a malformed resource id."""
        self._params = params
        self._plan = PlanId.parse(params.resource_id)
        self.deadline = params.deadline_seconds
        self.endpoint = f"Resource Manager, subscription {self._plan.subscription}"
        self._place = Place(str(self._plan), PLANS)
        self._use(ArmAccess(settings))
        self._reader = PlanReader(self._plan, lambda: self._arm, params.zone_redundant_minimum)
        self._sleep = sleep
        self._monotonic = monotonic

    @staticmethod
    def resource(params: Params, settings: Mapping[str, str]) -> str:  # the id says it all
        """What is scaled, however its id is written: two targets must not have the same. Raises ValueError."""
        plan = PlanId.parse(params.resource_id)
        return f"{plan.subscription}/{plan.resource_group}/{plan.name}".casefold()

    @staticmethod
    def facts(params: Params) -> TargetFacts:
        return TargetFacts(changes_per_hour=params.changes_per_hour)

    async def current(self, target: str, *, now: float) -> Capacity:  # one plan per scaler
        """Raises TargetRefusedError for a plan that cannot be scaled, ScalerError when it cannot be read."""
        _, facts = await self._reader.read(now, listed=True)
        return Capacity(
            current=facts.capacity,
            at=now,
            floor=facts.floor,
            ceiling=facts.ceiling,
            ready=facts.ready,
            pending=facts.pending,
            held_by=await self._reader.holder(now),
            unknown_state=facts.unknown_state,
        )

    async def apply(self, action: ScaleAction, *, now: float) -> Effect:
        """Carries out `action` within the deadline. Raises ScalerError where a later delivery may succeed."""
        order = _Order(action, now, self.deadline, self._monotonic, f"plan '{self._plan.name}'")
        return await carry_out(order, self._try, self._sleep)

    # -- carrying out -----------------------------------------------------------------------------

    async def _try(self, order: _Order) -> Effect | Wait:
        plan, facts = await self._reader.read(order.now)
        settled = await self._settle(order, facts)
        if isinstance(settled, Effect):
            return settled
        return await self._put(order, plan, facts, settled)

    async def _settle(self, order: _Order, facts: PlanFacts) -> Effect | int:
        """The capacity to ask for, or the effect of an action that needs no asking."""
        there, here, wanted = order.action.to_capacity, facts.capacity, self._clamp(order, facts)
        if here != there and facts.target in {there, wanted}:  # an earlier delivery is being carried out
            return self._accepted(order, facts)
        holder = None if here == there else await self._reader.holder(order.now, age=0.0)
        if holder is not None:
            text = f"the Azure Monitor autoscale setting '{holder}' moves this plan; disable one of the two"
            return order.effect(EffectOutcome.EXTERNAL_CHANGE, here, text)
        if (settled := order.settled(here, wanted, "instances")) is not None:
            return settled
        return wanted if wanted != here else order.effect(EffectOutcome.REFUSED, here, order.limit)

    def _clamp(self, order: _Order, facts: PlanFacts) -> int:
        wanted = order.action.to_capacity
        if facts.ceiling is not None and wanted > facts.ceiling:
            wanted, order.limit = facts.ceiling, f"the platform allows at most {facts.ceiling} instances"
        if wanted < facts.floor:
            wanted, order.limit = facts.floor, f"the platform allows no fewer than {facts.floor} instances"
        if order.cap is not None and wanted > order.cap:
            wanted, order.limit = order.cap, order.lesson
        return wanted

    async def _put(self, order: _Order, plan: AppServicePlan, facts: PlanFacts, wanted: int) -> Effect | Wait:
        assert plan.sku is not None  # the reader refuses plans without a SKU
        plan.sku.capacity = wanted
        plans = (await self._reader.web()).app_service_plans
        accepted, order.asked = False, True
        try:
            async with asyncio.timeout(order.remaining):
                # No second PUT by the SDK: if the first one's answer is lost, the plan is asked. (The
                # HTTP client still sends one, on a kept connection that breaks; it is the same order.)
                # Asynchronous scaling lasts until servers turn up: what it gave at once is our effect.
                poller = await plans.begin_create_or_update(
                    self._plan.resource_group,
                    self._plan.name,
                    plan,
                    polling=not plan.async_scaling_enabled,
                    polling_interval=self._params.poll_interval_seconds,
                    retry_total=0,
                )
                accepted = True
                await poller.result()
        except Exception as error:  # whatever it is, the order may have left: the plan is asked
            failure = classify(error)
            if not accepted:
                refused = self._refused(order, facts, wanted, failure)
                if refused is not None:
                    return refused
            return await self._read_back(order, wanted, failure, accepted=accepted)
        return await self._read_back(order, wanted, None, accepted=True)

    def _refused(
        self, order: _Order, facts: PlanFacts, wanted: int, failure: Failure
    ) -> Effect | Wait | None:
        """What to do about a PUT that was not accepted; None when it may have been."""
        match failure.kind:
            case Kind.UNKNOWN:
                return None
            case Kind.BUSY | Kind.THROTTLED:
                return Wait(max(order.back_off(failure.retry_after), 1.0), failure.story)
            case Kind.OVER_MAXIMUM | Kind.NO_SERVERS:
                less = self._obtainable(facts, wanted, failure)
                if order.cap is None and less is not None:
                    order.cap, order.lesson = less, failure.story
                    return Wait(0.0, failure.story)
                if failure.kind is Kind.OVER_MAXIMUM and not order.lesson:
                    order.lesson = failure.story  # the plan, read again, may tell a lower maximum
                    return Wait(0.0, failure.story)
            case Kind.NO_IDENTITY:
                raise order.error(advice_of(failure, WRITER))
            case _:
                pass
        return order.effect(EffectOutcome.REFUSED, facts.capacity, advice_of(failure, WRITER))

    def _obtainable(self, facts: PlanFacts, wanted: int, failure: Failure) -> int | None:
        """A capacity between the present one and `wanted` that the refusal leaves open."""
        there = facts.capacity if failure.kind is Kind.NO_SERVERS else 0
        less = there + (failure.number or 0)
        return less if min(facts.capacity, wanted) < less < max(facts.capacity, wanted) else None

    async def _read_back(
        self, order: _Order, wanted: int, failure: Failure | None, *, accepted: bool
    ) -> Effect:
        """The effect as the plan shows it, whatever went wrong on the way.

        Raises ScalerError while that cannot be told, and when a PUT that failed has changed nothing.
        """
        while True:
            _, facts = await reading_back("plan", self._reader.read(order.now))
            moved = facts.capacity != order.action.from_capacity
            changing = facts.pending or facts.unknown_state
            if moved or not changing or facts.target is not None:  # servers may turn up in hours
                break
            if self._monotonic() + self._params.poll_interval_seconds > order.until:
                text = f"the change to {wanted} is still in progress after {order.deadline:g} s"
                if not accepted:  # it may be a change of somebody else
                    raise order.error(text, FIRST_WAIT, unknown=True)
                return order.effect(EffectOutcome.ACCEPTED, facts.capacity, text)
            await self._sleep(self._params.poll_interval_seconds)
        if failure is not None and not accepted and not moved and facts.target != wanted:
            raise order.error(f"nothing was changed: {failure.story}", failure.retry_after, unknown=True)
        return self._judge(order, wanted, facts, "" if failure is None else failure.story)

    def _judge(self, order: _Order, wanted: int, facts: PlanFacts, story: str) -> Effect:
        action, reached = order.action, facts.capacity
        if reached == action.to_capacity:
            detail = f"read back after: {story}" if story else ""
            return order.effect(EffectOutcome.APPLIED, reached, detail)
        if facts.pending:
            return self._accepted(order, facts)
        if reached == action.from_capacity:
            text = story or f"the platform accepted {wanted} instances, but has {reached}"
            return order.effect(EffectOutcome.FAILED, reached, text)
        text = order.limit if reached == wanted else f"asked for {wanted}, the platform has {reached}"
        return order.effect(EffectOutcome.LIMITED, reached, text)

    def _accepted(self, order: _Order, facts: PlanFacts) -> Effect:
        """The action stays pending: the checks find its effect once the platform is done, or has given up."""
        text = f"the platform has {facts.capacity} of {order.action.to_capacity} and is still changing"
        return order.effect(EffectOutcome.ACCEPTED, facts.capacity, text)
