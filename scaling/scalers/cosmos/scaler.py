"""Sets the throughput of a Cosmos DB container, or what the containers of a database share.

The capacity is RU/s: what is provisioned, or the maximum where autoscale is on. Beyond what any target needs:

* Wanted throughput is rounded up to whole steps. The ceiling is what takes effect at once, unless `allow_split`: a higher
  one splits partitions for hours, and both the partitions and the floor stay.
* Each update is taken from the account's budget; a refusal that names the accepted range is asked once more within it.

Two writers: the platform has no conditional update. Within Tidemark a target has one pending action at a time,
guarded by its state's ETag; another writer is recognised before asking, by `from_capacity`, and after, by
what is read back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Unpack

import msgspec

from scaling.calls.limiter import limiter_of
from scaling.model import Capacity, Effect, EffectOutcome
from scaling.scalers.arm.errors import Failure, Kind
from scaling.scalers.arm.shared import ArmAccess, Place, UsesArm
from scaling.scalers.carrying_out import Carrier, Clock, Order, Wait, advice
from scaling.scalers.cosmos.planes import (
    NO_OFFER,
    DataPlane,
    ManagementPlane,
    Plane,
    accepted_range,
    classify,
)
from scaling.scalers.cosmos.throughput import Throughput, ThroughputId
from scaling.target_facts import TargetFacts
from tidemark.foundation.azure.cosmos_account import account_key, account_name
from tidemark.foundation.errors import problems_of


class CosmosThroughputScaler(UsesArm, Carrier[Throughput]):
    """The scaler of one throughput."""

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """Either `resource_id` (by identity), or `connection` with `database` and perhaps `container` (by key).

        `deadline_seconds` bounds one delivery of an action; what takes longer is sent again.
        """

        resource_id: str = ""
        connection: str = ""
        database: str = ""
        container: str = ""
        allow_split: bool = False
        deadline_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 60.0
        poll_interval_seconds: Annotated[float, msgspec.Meta(gt=0, le=60)] = 5.0

        def problems(self) -> dict[str, str]:
            if self.resource_id:
                if self.connection or self.database or self.container:
                    return {"resource_id": "give either resource_id or connection and database, not both"}
                return problems_of(resource_id=lambda: ThroughputId.parse(self.resource_id))
            text = "is missing; give resource_id (by identity), or connection and database (by key)"
            return {name: text for name in ("connection", "database") if not getattr(self, name)}

    def __init__(self, params: Params, settings: Mapping[str, str], **clock: Unpack[Clock]) -> None:
        """Raises ValueError for a malformed resource id or connection string."""
        self._params = params
        self._plane: Plane
        poll_interval = params.poll_interval_seconds
        if params.resource_id:
            resource = ThroughputId.parse(params.resource_id)
            self._place = Place(params.resource_id, "")
            self._use(ArmAccess(settings))
            self._plane = ManagementPlane(resource, lambda: self._arm, poll_interval=poll_interval)
        else:
            self._plane = DataPlane(params.connection, params.database, params.container or None, settings)
        deadline = params.deadline_seconds
        super().__init__(self._plane.label, "RU/s", deadline=deadline, poll_interval=poll_interval, **clock)
        self.endpoint = f"Cosmos DB account {self._plane.account}"
        self._limiter = limiter_of(settings)

    @staticmethod
    def facts(params: Params) -> TargetFacts:  # steps of 100 or 1,000, as the throughput is manual or not
        return TargetFacts("RU/s", counts_workers=False)

    @staticmethod
    def resource(params: Params, settings: Mapping[str, str]) -> str:
        """What is scaled, by key or by identity: two targets must not have the same. Raises ValueError."""
        if params.resource_id:
            throughput_id = ThroughputId.parse(params.resource_id)
            names: tuple[str | None, ...] = (
                throughput_id.account,
                throughput_id.database,
                throughput_id.container,
            )
        else:
            account = account_name(account_key(settings, params.connection)[0])
            names = (account, params.database, params.container)
        return "/".join(name or "" for name in names).casefold()

    async def aclose(self) -> None:
        await self._plane.aclose()
        await super().aclose()

    async def current(self, target: str, *, now: float) -> Capacity:  # one throughput per scaler
        """Raises TargetRefusedError where there is nothing to set, ScalerError when it cannot be read."""
        seen = await self._read(now)
        return Capacity(
            current=seen.effective,
            at=now,
            floor=seen.floor,
            ceiling=seen.ceiling(allow_split=self._params.allow_split),
            pending=seen.pending,
            step=seen.step,
            unknown_state=seen.unknown_state,
        )

    async def _ask(self, now: float) -> Throughput:
        return await self._plane.read(now)

    def _classified(self, error: Exception) -> Failure:
        return classify(error)

    def _advice(self, failure: Failure, *, to_write: bool = True) -> str:
        return advice(failure, refused=f"it takes {self._plane.role}", absent=f", or {NO_OFFER}")

    def _under_way(self, order: Order, seen: Throughput, wanted: int) -> Effect | None:
        return self._pending(order, seen) if seen.pending else None

    def _clamped(self, order: Order, seen: Throughput) -> int:
        wanted = seen.stepped(order.action.to_capacity)
        order.limit = (
            f"throughput comes in steps of {seen.step} RU/s" if wanted != order.action.to_capacity else ""
        )
        if wanted < seen.floor:
            wanted, order.limit = seen.floor, f"the platform allows no less than {seen.floor} RU/s"
        ceiling = seen.ceiling(allow_split=self._params.allow_split)
        if ceiling is not None and wanted > ceiling:
            wanted = ceiling // seen.step * seen.step
            order.limit = f"more than {ceiling} RU/s is not available" + (
                "" if self._params.allow_split else " without splitting partitions (allow_split)"
            )
        if order.bounds is not None and order.bounds.clamp(wanted) != wanted:
            wanted = order.bounds.clamp(wanted)
            order.limit = f"the platform accepts {order.bounds.floor} to {order.bounds.ceiling} RU/s"
        return wanted

    async def _change(self, order: Order, seen: Throughput, wanted: int) -> Effect | Wait:
        wait, why = self._limiter.take("cosmos_updates", self._plane.account.casefold(), self._monotonic())
        if wait:
            return Wait(wait, f"{why}; next in {wait:.0f} s")
        return await super()._change(order, seen, wanted)

    async def _request(self, order: Order, seen: Throughput, wanted: int) -> None:
        await self._plane.write(wanted, seen)
        order.accepted = True

    def _refused(self, order: Order, seen: Throughput, wanted: int, failure: Failure) -> Effect | Wait | None:
        if failure.kind in {Kind.BUSY, Kind.THROTTLED}:
            return self._wait(order, seen, failure)
        bounds = accepted_range(failure.story)
        if bounds is not None and order.bounds is None and failure.kind is not Kind.UNKNOWN:
            order.bounds = bounds
            return Wait(0.0, failure.story)
        return super()._refused(order, seen, wanted, failure)

    def _wait(self, order: Order, seen: Throughput, failure: Failure) -> Effect | Wait:
        """A wait beyond the life of the action is a refusal: a scale-in may be put off for hours."""
        seconds = order.back_off(failure.retry_after)
        if order.time + seconds >= order.action.expires_at:
            text = f"{failure.story}; not before {seconds:.0f} s from now"
            return order.effect(EffectOutcome.REFUSED, seen.value, text)
        return Wait(max(seconds, 1.0), failure.story)

    def _takes_hours(self, seen: Throughput, wanted: int) -> bool:
        return seen.pending

    def _judged(self, order: Order, wanted: int, seen: Throughput, story: str) -> Effect:
        return self._pending(order, seen) if seen.pending else super()._judged(order, wanted, seen, story)

    def _pending(self, order: Order, seen: Throughput) -> Effect:
        """The action stays pending, too: the checks find its effect once the platform is done."""
        towards = f" to {seen.target} RU/s" if seen.target not in {None, seen.value} else ""
        asked = "accepted" if order.asked else "not asked"
        text = f"{asked}; a change{towards} is still being carried out, for hours where partitions are split"
        return order.effect(EffectOutcome.ACCEPTED, seen.effective, text)
