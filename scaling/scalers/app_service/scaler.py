"""Sets the number of instances of an App Service Plan.

Beyond what any resource needs: plans whose instances cannot be set are refused; on "exceeds the maximum" and "not enough
servers" the scaler asks once more for what can be had; and asynchronous scaling goes on by itself, perhaps for hours: then
the action is accepted, and the checks find its effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Unpack

import msgspec

from scaling.model import Effect, EffectOutcome
from scaling.scalers.app_service.plan import PLAN, plan_id, plan_seen, why_refused
from scaling.scalers.arm.errors import Failure, Kind
from scaling.scalers.arm.states import may_be_on
from scaling.scalers.carrying_out import Clock, Order, Range, Wait, advice
from scaling.scalers.resource.resource import Seen, at, changed
from scaling.scalers.resource.scaler import ResourceScaler
from scaling.target_facts import TargetFacts
from tidemark.foundation.errors import problems_of

CHANGES_PER_HOUR = 20
"""Changes of a plan within the past hour, whoever makes them, above which App Service refuses: "You have exceeded the maximum
amount of scale changes within the past hour(XX changes and limit is 20)" (MicrosoftDocs/azure-docs#97530; not in its docs).
"""


class AppServicePlanScaler(ResourceScaler):
    """The scaler of one plan."""

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """`deadline_seconds` bounds one delivery of an action. The platform goes on with a change that takes longer,
        and the checks find its effect.

        `poll_interval_seconds` counts where the platform does not say when to ask again.
        `zone_redundant_minimum` is the floor of zone-redundant plans: 2, or 3 for older ones.
        """

        resource_id: str
        deadline_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 60.0
        poll_interval_seconds: Annotated[float, msgspec.Meta(gt=0, le=60)] = 5.0
        zone_redundant_minimum: Annotated[int, msgspec.Meta(ge=1)] = 2

        def problems(self) -> dict[str, str]:
            return problems_of(resource_id=lambda: plan_id(self.resource_id))

    def __init__(self, params: Params, settings: Mapping[str, str], **clock: Unpack[Clock]) -> None:
        """Raises ValueError for a malformed resource id."""
        self._zone_redundant_minimum = params.zone_redundant_minimum
        plan = plan_id(params.resource_id)
        super().__init__(
            plan,
            PLAN,
            settings,
            label=f"plan '{plan.name}'",
            deadline=params.deadline_seconds,
            poll_interval=params.poll_interval_seconds,
            **clock,
        )

    @staticmethod
    def resource(params: Params, settings: Mapping[str, str]) -> str:  # the id says it all
        """What is scaled, however its id is written: two targets must not have the same. Raises ValueError."""
        return str(plan_id(params.resource_id)).casefold()

    @staticmethod
    def facts(params: Params) -> TargetFacts:
        return TargetFacts(changes_per_hour=CHANGES_PER_HOUR)

    async def _ask(self, now: float) -> Seen:
        plans = (await self._arm.web(self._id.subscription).get()).app_service_plans
        return self._seen(await plans.get(self._id.group, self._id.name))

    async def _request(self, order: Order, seen: Seen, wanted: int) -> None:
        plans = (await self._arm.web(self._id.subscription).get()).app_service_plans
        document: Any = changed(
            PLAN, seen, wanted
        )  # a mapping in the names of the REST API, as the SDK's models are
        # The SDK sends no second PUT: if the answer of the first one is lost, the plan is read. Asynchronous scaling
        # lasts until servers turn up, so it is not polled: what it gave at once is our effect.
        poller = await plans.begin_create_or_update(
            self._id.group,
            self._id.name,
            document,
            polling=not may_be_on(at(seen.document, "properties.asyncScalingEnabled")),
            polling_interval=self._poll_interval,
            retry_total=0,
        )
        order.accepted = True
        await poller.result()

    def _why_refused(self, document: Mapping[str, Any]) -> str | None:
        return why_refused(document)

    def _seen_of(self, document: Mapping[str, Any]) -> Seen:
        return plan_seen(document, self._zone_redundant_minimum)

    def _advice(self, failure: Failure, *, to_write: bool = True) -> str:
        role = "the 'Web Plan Contributor' role" if to_write else "the 'Reader' role"
        absent = "; check resource_id and the identity's access"
        return advice(failure, refused=f"the identity needs {role} on the plan", absent=absent)

    def _clamped(self, order: Order, seen: Seen) -> int:
        wanted = order.action.to_capacity
        if seen.ceiling is not None and wanted > seen.ceiling:
            wanted, order.limit = seen.ceiling, f"the platform allows at most {seen.ceiling} instances"
        if wanted < seen.floor:
            wanted, order.limit = seen.floor, f"the platform allows no fewer than {seen.floor} instances"
        if order.bounds is not None and wanted != order.bounds.clamp(wanted):
            wanted, order.limit = order.bounds.clamp(wanted), order.lesson
        return wanted

    def _under_way(self, order: Order, seen: Seen, wanted: int) -> Effect | None:
        there = order.action.to_capacity
        begun = seen.value != there and seen.target in {there, wanted}
        return self._accepted(order, seen) if begun else None  # by an earlier delivery

    def _takes_hours(self, seen: Seen, wanted: int) -> bool:
        return seen.target == wanted  # servers may turn up in hours

    def _refused(self, order: Order, seen: Seen, wanted: int, failure: Failure) -> Effect | Wait | None:
        if failure.kind in {Kind.OVER_MAXIMUM, Kind.NO_SERVERS}:
            # A capacity between the present one and `wanted` that the refusal leaves open.
            less = (seen.value if failure.kind is Kind.NO_SERVERS else 0) + (failure.number or 0)
            if order.bounds is None and min(seen.value, wanted) < less < max(seen.value, wanted):
                order.bounds, order.lesson = Range(0, less), failure.story
                return Wait(0.0, failure.story)
            if failure.kind is Kind.OVER_MAXIMUM and not order.lesson:
                order.lesson = failure.story  # the plan, read again, may have a lower maximum
                return Wait(0.0, failure.story)
        return super()._refused(order, seen, wanted, failure)

    def _judged(self, order: Order, wanted: int, seen: Seen, story: str) -> Effect:
        reached = seen.value
        if seen.pending and reached != order.action.to_capacity:
            return self._accepted(order, seen)
        if reached in {order.action.to_capacity, order.action.from_capacity, wanted}:
            return super()._judged(order, wanted, seen, story)
        text = f"asked for {wanted}, the platform has {reached}"
        return order.effect(EffectOutcome.LIMITED, reached, text)

    def _accepted(self, order: Order, seen: Seen) -> Effect:
        """The action stays pending: the checks find its effect once the platform is done, or has given up."""
        text = f"the platform has {seen.value} of {order.action.to_capacity} and is still changing"
        return order.effect(EffectOutcome.ACCEPTED, seen.value, text)
