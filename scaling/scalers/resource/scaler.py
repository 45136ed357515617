"""Sets a whole number in a resource of Resource Manager, of a kind that is known or one described by the configuration.

How an action is carried out:

1. read the resource; refuse one that has no such number; stop if something else moves it (an Azure Monitor autoscale setting,
   or a switch of the resource itself), if it already is where it should be, or if somebody else moved it;
2. clamp to what the platform can be set to, and send it: a PATCH of the number, or a PUT of the document as it was read, which
   the resource's ETag guards where it has one;
3. on a conflict and on throttling wait as told, and begin again at 1;
4. follow the operation to its end and read the resource back. Whatever became of the answer, the resource says what
   happened. What takes longer than the deadline is accepted, and the checks find its effect.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import structs

from scaling.model import Capacity, Effect, EffectOutcome, ScaleAction
from scaling.resource_id import ResourceId
from scaling.scalers.arm.errors import Failure, classify
from scaling.scalers.arm.errors import Kind as FailureKind
from scaling.scalers.arm.holder import AutoscaleHolder
from scaling.scalers.arm.shared import ArmAccess, Place, UsesArm
from scaling.scalers.carrying_out import (
    FIRST_WAIT,
    Order,
    TargetRefusedError,
    Wait,
    advice,
    carry_out,
    reading,
    reading_back,
)
from scaling.scalers.resource.kinds import KINDS, Kind
from scaling.scalers.resource.resource import Seen, at, changed, seen_of, why_refused
from scaling.target_facts import TargetFacts

if TYPE_CHECKING:
    from scaling.scalers.arm.resources import ArmResources, Followed

Version = Annotated[str, msgspec.Meta(pattern=r"^(\d{4}-\d{2}-\d{2}(-preview)?)?$")]
Path = Annotated[str, msgspec.Meta(pattern=r"^(\w+(\.\w+)*)?$")]
Value = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class AzureResourceScaler(UsesArm):
    """The scaler of one number. `sleep` and `monotonic` are the time it waits by; tests bring their own."""

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """Either `kind`, which knows the rest, or `api_version` and `path` (`properties.count`) of any resource, which is
        set by `method`, to multiples of `step` or to `allowed` values, from `least` to `most`, and counts in `unit`.

        With a kind, `api_version`, `allowed` and `most` replace its own. `deadline_seconds` bounds one delivery of an action;
        `poll_interval_seconds` counts where the platform does not say when to look again.
        """

        resource_id: str
        kind: str = ""
        api_version: Version = ""
        path: Path = ""
        method: Literal["", "patch", "put"] = ""
        step: Annotated[int, msgspec.Meta(ge=1)] = 1
        allowed: tuple[Value, ...] = ()
        least: Value = 0
        most: Value | None = None
        unit: Annotated[str, msgspec.Meta(max_length=40)] = ""
        deadline_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 60.0
        poll_interval_seconds: Annotated[float, msgspec.Meta(gt=0, le=60)] = 5.0

        def problems(self) -> dict[str, str]:
            found: dict[str, str] = {}
            try:
                type_ = ResourceId.parse(self.resource_id).type
            except ValueError as error:
                return {"resource_id": str(error)}
            kind = KINDS.get(self.kind)
            if self.kind and kind is None:
                return {"kind": f"found '{self.kind}'; accepted are {', '.join(KINDS)}"}
            if kind is not None:
                if type_.casefold() != kind.type.casefold():
                    found["resource_id"] = (
                        f"found a resource of type {type_}; '{self.kind}' is of {kind.type}"
                    )
                given = {
                    "path": self.path,
                    "method": self.method,
                    "unit": self.unit,
                    "least": self.least,
                }
                fixed = [name for name, value in given.items() if value]
                return {**found, **dict.fromkeys(fixed, f"is known of the kind '{self.kind}'")}
            text = "is missing; give kind, or api_version and path"
            found = {name: text for name in ("api_version", "path") if not getattr(self, name)}
            if self.allowed and self.step > 1:
                found["step"] = "give either allowed values or a step"
            return found

        @property
        def known(self) -> Kind:
            """The kind, with what the configuration says of it. Raises ValueError for a bad resource id."""
            allowed = tuple(sorted(set(self.allowed)))
            if (kind := KINDS.get(self.kind)) is not None:
                own = {"api_version": self.api_version, "ceiling": self.most}
                kind = structs.replace(kind, **{name: value for name, value in own.items() if value})
                return structs.replace(kind, allowed=allowed, times="") if allowed else kind
            return Kind(
                type=ResourceId.parse(self.resource_id).type,
                api_version=self.api_version,
                path=self.path,
                unit=self.unit or "units",
                method=self.method or "patch",
                floor=self.least,
                ceiling=self.most,
                step=self.step,
                allowed=allowed,
            )

    def __init__(
        self,
        params: Params,
        settings: Mapping[str, str],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ValueError for a malformed resource id."""
        self._id = ResourceId.parse(params.resource_id)
        self._kind = params.known
        self._poll_interval = params.poll_interval_seconds
        self._label = f"{self._kind.unit} of '{self._id.name}'"
        self.deadline = params.deadline_seconds
        self.endpoint = f"Resource Manager, subscription {self._id.subscription}"
        self._place = Place(str(self._id), self._kind.type)
        self._use(ArmAccess(settings))
        self._holder = AutoscaleHolder(str(self._id), f"'{self._id.name}'", lambda: self._arm)
        self._last: int | None = None
        self._sleep = sleep
        self._monotonic = monotonic

    @staticmethod
    def facts(params: Params) -> TargetFacts:
        return params.known.facts

    @staticmethod
    def resource(params: Params, settings: Mapping[str, str]) -> str:  # the id says it all
        """What is scaled: two targets must not have the same. Raises ValueError."""
        return f"{ResourceId.parse(params.resource_id)} {params.known.path}".casefold()

    async def current(self, target: str, *, now: float) -> Capacity:  # one number per scaler
        """Raises TargetRefusedError where there is nothing to set, ScalerError when it cannot be read."""
        seen = await reading(self._label, self._listed(now), classify, self._advice)
        return Capacity(
            current=seen.value,
            at=now,
            floor=seen.floor,
            ceiling=seen.ceiling,
            pending=seen.pending,
            held_by=seen.holder or await self._holder.holder(now),
            step=seen.settable.step,
            allowed=seen.settable.allowed,
            unknown_state=seen.unknown_state,
        )

    async def apply(self, action: ScaleAction, *, now: float) -> Effect:
        """Carries out `action` within the deadline. Raises ScalerError where a later delivery may succeed."""
        order = Order(action, now, self.deadline, self._monotonic, self._label)
        return await carry_out(order, self._try, self._sleep)

    # -- reading ----------------------------------------------------------------------------------

    async def _read(self) -> Seen:
        return await reading(self._label, self._ask(), classify, self._advice)

    async def _ask(self) -> Seen:
        client = await self._arm.resources.get()
        return self._told(await client.get(str(self._id), self._kind.api_version))

    def _told(self, document: Mapping[str, Any]) -> Seen:
        refusal = why_refused(self._kind, document)
        if refusal is not None:
            raise TargetRefusedError(f"{self._label} cannot be set: {refusal}")
        seen = seen_of(self._kind, document)
        self._last = seen.value
        return seen

    async def _listed(self, now: float) -> Seen:
        """As the list of its type has it. A list may be behind, or tell less: what it says of a change is not taken for
        granted, and what it does not say is asked.
        """
        kind, known = self._kind, self._last
        document = await self._arm.document(self._place, kind.api_version, now)
        if document is not None and at(document, kind.path) is not None:
            with suppress(ValueError, TargetRefusedError):
                seen = self._told(document)
                if known in {None, seen.value}:
                    return seen
        return await self._ask()

    def _advice(self, failure: Failure) -> str:
        role = f"the identity needs a role with {self._kind.type}/read and {self._kind.type}/write on it"
        return advice(failure, refused=role, absent="; check resource_id and the identity's access")

    # -- carrying out -----------------------------------------------------------------------------

    async def _try(self, order: Order) -> Effect | Wait:
        seen = await self._read()
        settled = await self._settle(order, seen)
        return settled if isinstance(settled, Effect) else await self._change(order, seen, settled)

    async def _settle(self, order: Order, seen: Seen) -> Effect | int:
        """The number to ask for, or the effect of an action that needs no asking."""
        there, here, wanted = order.action.to_capacity, seen.value, seen.clamped(order.action.to_capacity)
        if wanted != there:
            bounds = f"{seen.floor} to {'any' if seen.ceiling is None else seen.ceiling}"
            order.limit = f"the platform takes {bounds} {self._kind.unit}, {seen.settable.words}"
        if here != there:
            holder = seen.holder or await self._holder.holder(order.now, age=0.0)
            if holder is not None:
                text = f"'{holder}' moves this resource; disable one of the two"
                return order.effect(EffectOutcome.EXTERNAL_CHANGE, here, text)
        if (settled := order.settled(here, wanted, self._kind.unit)) is not None:
            return settled
        # Limits may turn a change round; then nothing is asked.
        if wanted == here or (wanted > here) != (there > here):
            return order.effect(EffectOutcome.REFUSED, here, order.limit)
        return wanted

    async def _change(self, order: Order, seen: Seen, wanted: int) -> Effect | Wait:
        kind, accepted, order.asked = self._kind, False, True
        etag = seen.etag if kind.method == "put" else ""
        try:
            async with asyncio.timeout(order.remaining):
                client, document = await self._arm.resources.get(), changed(kind, seen, wanted)
                begun = await client.change(
                    kind.method.upper(), str(self._id), kind.api_version, document, etag=etag
                )
                accepted = True
                await self._follow(client, begun)
        except Exception as error:  # whatever it is, the order may have left: the resource is asked
            failure = classify(error)
            refused = None if accepted else self._refused(order, seen, failure)
            if refused is not None:
                return refused
            effect = await self._read_back(order, wanted, failure, accepted=accepted)
            # It was still going on, of which not every resource tells a state.
            late = accepted and isinstance(error, TimeoutError) and effect.outcome is EffectOutcome.FAILED
            return structs.replace(effect, outcome=EffectOutcome.ACCEPTED) if late else effect
        return await self._read_back(order, wanted, None, accepted=True)

    async def _follow(self, client: ArmResources, operation: Followed | None) -> None:
        """To the end of an operation, or to where it cannot be followed any more: the resource tells then."""
        while operation is not None:
            await self._sleep(operation.retry_after or self._poll_interval)  # some say 0
            operation = await client.follow(operation)

    def _refused(self, order: Order, seen: Seen, failure: Failure) -> Effect | Wait | None:
        """What to do about a change that was not accepted; None when it may have been."""
        match failure.kind:
            case FailureKind.UNKNOWN:
                return None
            case FailureKind.BUSY | FailureKind.THROTTLED:
                return Wait(max(order.back_off(failure.retry_after), 1.0), failure.story)
            case FailureKind.NO_IDENTITY:
                raise order.error(self._advice(failure))
            case _:
                return order.effect(EffectOutcome.REFUSED, seen.value, self._advice(failure))

    async def _read_back(
        self, order: Order, wanted: int, failure: Failure | None, *, accepted: bool
    ) -> Effect:
        """The effect as the resource shows it, whatever went wrong on the way.

        Raises ScalerError while that cannot be told, and when a change that failed has changed nothing.
        """
        while True:
            seen = await reading_back("resource", self._read())
            moved = seen.value != order.action.from_capacity
            if moved or not (seen.pending or seen.unknown_state):
                break
            if self._monotonic() + self._poll_interval > order.until:
                text = f"the change to {wanted} is still in progress after {order.deadline:g} s"
                if not accepted:  # it may be a change of somebody else
                    raise order.error(text, FIRST_WAIT, unknown=True)
                return order.effect(EffectOutcome.ACCEPTED, seen.value, text)
            await self._sleep(self._poll_interval)
        if failure is not None and not accepted and not moved:
            raise order.error(f"nothing was changed: {failure.story}", failure.retry_after, unknown=True)
        return self._judge(order, wanted, seen, "" if failure is None else failure.story)

    def _judge(self, order: Order, wanted: int, seen: Seen, story: str) -> Effect:
        action, reached = order.action, seen.value
        if reached == action.to_capacity:
            return order.effect(EffectOutcome.APPLIED, reached, f"read back after: {story}" if story else "")
        if reached == action.from_capacity:
            text = story or f"the platform accepted {wanted} {self._kind.unit}, but has {reached}"
            return order.effect(EffectOutcome.FAILED, reached, text)
        if reached == wanted:
            return order.effect(EffectOutcome.LIMITED, reached, order.limit)
        text = f"asked for {wanted} {self._kind.unit}, found {reached}: somebody else set it at the same time"
        return order.effect(EffectOutcome.EXTERNAL_CHANGE, reached, text)
