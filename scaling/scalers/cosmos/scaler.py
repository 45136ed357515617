"""Sets the throughput of a Cosmos DB container, or what the containers of a database share.

The capacity is RU/s: what is provisioned, or the maximum where autoscale is on. How an action is carried out:

1. read; stop if it already is where it should be, if somebody else moved it, or if a change is pending;
2. round up to whole steps, clamp to floor and ceiling. The ceiling is what takes effect at once, unless
   `allow_split`: a higher one splits partitions for hours, and both the partitions and the floor stay;
3. take an update from the account's budget, ask for the throughput, wait as told while the platform is
   busy, throttles or counts its updates, and begin again at 1; a refusal that names the accepted
   range is asked once more within it;
4. read back. Whatever became of the answer, the throughput itself says what happened.

Two writers: the platform has no conditional update. Within Tidemark a target has one pending action at a time,
guarded by its state's ETag; another writer is recognised before asking, by `from_capacity`, and after, by
what is read back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated

import msgspec

from scaling.calls.gate import gate_of
from scaling.model import Capacity, Effect, EffectOutcome, ScaleAction
from scaling.scalers.arm.errors import Failure, Kind
from scaling.scalers.arm.shared import ArmAccess, Place, UsesArm
from scaling.scalers.carrying_out import Order, Wait, advice, carry_out, reading, reading_back
from scaling.scalers.cosmos.errors import Range, accepted_range, classify
from scaling.scalers.cosmos.planes import NO_OFFER, DataPlane, ManagementPlane, Plane
from scaling.scalers.cosmos.throughput import Throughput, ThroughputId
from scaling.target_facts import TargetFacts
from tidemark.foundation.azure.cosmos_account import account_key, account_name


class _Order(Order):
    """A refusal taught `bounds` in the words of `limit`."""

    bounds: Range | None = None


class CosmosThroughputScaler(UsesArm):
    """The scaler of one throughput. `sleep` and `monotonic` are the time it waits by; tests bring their own."""

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
                try:
                    ThroughputId.parse(self.resource_id)
                except ValueError as error:
                    return {"resource_id": str(error)}
                return {}
            text = "is missing; give resource_id (by identity), or connection and database (by key)"
            return {name: text for name in ("connection", "database") if not getattr(self, name)}

    def __init__(
        self,
        params: Params,
        settings: Mapping[str, str],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ValueError for a malformed resource id or connection string."""
        self._params = params
        self._plane: Plane
        if params.resource_id:
            resource = ThroughputId.parse(params.resource_id)
            self._place = Place(params.resource_id, "")
            self._use(ArmAccess(settings))
            self._plane = ManagementPlane(
                resource, lambda: self._arm, poll_interval=params.poll_interval_seconds
            )
        else:
            self._plane = DataPlane(params.connection, params.database, params.container or None, settings)
        self.deadline = params.deadline_seconds
        self.endpoint = f"Cosmos DB account {self._plane.account}"
        self._gate = gate_of(settings)
        self._sleep = sleep
        self._monotonic = monotonic

    @staticmethod
    def facts(params: Params) -> TargetFacts:  # steps of 100 or 1,000, as the throughput is manual or not
        return TargetFacts("RU/s")

    @staticmethod
    def resource(params: Params, settings: Mapping[str, str]) -> str:
        """What is scaled, by key or by identity: two targets must not have the same. Raises ValueError."""
        if params.resource_id:
            found = ThroughputId.parse(params.resource_id)
            names: tuple[str | None, ...] = (found.account, found.database, found.container)
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

    async def apply(self, action: ScaleAction, *, now: float) -> Effect:
        """Carries out `action` within the deadline. Raises ScalerError where a later delivery may succeed."""
        order = _Order(action, now, self.deadline, self._monotonic, self._plane.label)
        return await carry_out(order, self._try, self._sleep)

    # -- reading ----------------------------------------------------------------------------------

    async def _read(self, now: float) -> Throughput:
        plane = self._plane
        return await reading(plane.label, plane.read(now), classify, self._advice)

    def _advice(self, failure: Failure) -> str:
        return advice(failure, refused=f"it takes {self._plane.role}", absent=f", or {NO_OFFER}")

    # -- carrying out -----------------------------------------------------------------------------

    async def _try(self, order: _Order) -> Effect | Wait:
        seen = await self._read(order.now)
        settled = self._settle(order, seen)
        if isinstance(settled, Effect):
            return settled
        wait, why = self._gate.take("cosmos_updates", self._plane.account.casefold(), self._monotonic())
        if wait:
            return Wait(wait, f"{why}; next in {wait:.0f} s")
        return await self._update(order, seen, settled)

    def _settle(self, order: _Order, seen: Throughput) -> Effect | int:
        """The throughput to ask for, or the effect of an action that needs no asking."""
        action, here = order.action, seen.value
        if seen.pending:
            return self._pending(order, seen)
        wanted = self._clamp(order, seen)
        if (settled := order.settled(here, wanted, "RU/s")) is not None:
            return settled
        # Limits may turn an increase into less than there is, or the other way round: then nothing is asked.
        if wanted == here or (wanted > here) != (action.to_capacity > here):
            return order.effect(EffectOutcome.REFUSED, here, order.limit)
        return wanted

    def _clamp(self, order: _Order, seen: Throughput) -> int:
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

    async def _update(self, order: _Order, seen: Throughput, wanted: int) -> Effect | Wait:
        order.asked = True
        try:
            async with asyncio.timeout(order.remaining):
                await self._plane.write(wanted, seen)
        except Exception as error:  # whatever it is, the order may have left: it is read back
            failure = classify(error)
            refused = self._refused(order, seen, failure)
            return refused if refused is not None else await self._read_back(order, wanted, failure)
        return await self._read_back(order, wanted, None)

    def _refused(self, order: _Order, seen: Throughput, failure: Failure) -> Effect | Wait | None:
        """What to do about an update that was not accepted; None when it may have been."""
        if failure.kind is Kind.UNKNOWN:
            return None
        if failure.kind in {Kind.BUSY, Kind.THROTTLED}:
            return self._wait(order, seen, failure)
        bounds = accepted_range(failure.story)
        if bounds is not None and order.bounds is None:
            order.bounds = bounds
            return Wait(0.0, failure.story)
        if failure.kind is Kind.NO_IDENTITY:
            raise order.error(self._advice(failure))
        return order.effect(EffectOutcome.REFUSED, seen.value, self._advice(failure))

    def _wait(self, order: _Order, seen: Throughput, failure: Failure) -> Effect | Wait:
        """A wait beyond the life of the action is a refusal: a scale-in may be put off for hours."""
        seconds = order.back_off(failure.retry_after)
        if order.time + seconds >= order.action.expires_at:
            text = f"{failure.story}; not before {seconds:.0f} s from now"
            return order.effect(EffectOutcome.REFUSED, seen.value, text)
        return Wait(max(seconds, 1.0), failure.story)

    async def _read_back(self, order: _Order, wanted: int, failure: Failure | None) -> Effect:
        """The effect as the throughput shows it. Raises ScalerError while that cannot be told."""
        seen = await reading_back("throughput", self._read(order.now))
        if seen.pending:
            return self._pending(order, seen)
        action, story = order.action, "" if failure is None else failure.story
        if seen.value == action.to_capacity:
            detail = f"read back after: {story}" if story else ""
            return order.effect(EffectOutcome.APPLIED, seen.value, detail)
        if seen.value == wanted:
            return order.effect(EffectOutcome.LIMITED, seen.value, order.limit)
        if seen.value != action.from_capacity:
            text = f"asked for {wanted} RU/s, found {seen.value}: somebody else set it at the same time"
            return order.effect(EffectOutcome.EXTERNAL_CHANGE, seen.value, text)
        if failure is not None:
            raise order.error(f"nothing was changed: {story}", failure.retry_after, unknown=True)
        text = f"the platform accepted {wanted} RU/s, but has {seen.value}"
        return order.effect(EffectOutcome.FAILED, seen.value, text)

    def _pending(self, order: _Order, seen: Throughput) -> Effect:
        """The action stays pending, too: the checks find its effect once the platform is done."""
        towards = f" to {seen.target} RU/s" if seen.target not in {None, seen.value} else ""
        asked = "accepted" if order.asked else "not asked"
        text = f"{asked}; a change{towards} is still being carried out, for hours where partitions are split"
        return order.effect(EffectOutcome.ACCEPTED, seen.effective, text)
