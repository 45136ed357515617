"""How every scaler reads its target and carries out an action: it tries until the action is settled.

One try has these steps, of which a scaler only has to know how its target is read, bounded and changed:

1. read the target, and stop if a change is under way, if another controller holds it, if it already is where it should be,
   or if somebody else moved it;
2. ask for the change. On a conflict and on throttling wait as the platform asks, and begin again at 1;
3. read the target back. Whatever became of the answer, the target itself shows what happened.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypedDict, TypeVar, Unpack

from azure.core.exceptions import AzureError
from msgspec import Struct

from scaling.calls.limiter import CallRefusedError
from scaling.model import Effect, EffectOutcome, ScaleAction, effect_of
from scaling.ports import ScalerError
from scaling.scalers.arm.errors import Failure, Kind, classify
from tidemark.foundation.sanitize import describe_error

PATIENCE = 20.0
"""Seconds one delivery waits in all for a platform that is busy or throttles: it takes a place in the queue's batch,
and is sent again when the platform asked for it.
"""

READ_DEADLINE = 20.0
"""Seconds for one reading of a target with its limits."""

FIRST_WAIT = 5.0
"""Seconds to the second try when the platform is busy and does not say how long; doubles each time."""


class TargetRefusedError(ScalerError):
    """The target is of a kind that cannot be set, or cannot be read before somebody changes something. The message says
    what to do.
    """


class Wait(Struct, frozen=True):
    """Try again after `seconds`."""

    seconds: float
    story: str


class Range(Struct, frozen=True):
    """The capacities that a refusal says are accepted."""

    floor: int
    ceiling: int | None = None

    def clamp(self, wanted: int) -> int:
        wanted = max(wanted, self.floor)
        return wanted if self.ceiling is None else min(wanted, self.ceiling)


class Order(Struct):
    """One call of `apply`, which has `deadline` seconds. `limit` is why less is asked than the action says; a refusal
    taught `bounds` in the words of `lesson`.

    `started` and `until` are times of the monotonic clock.
    """

    action: ScaleAction
    now: float
    deadline: float
    monotonic: Callable[[], float]
    label: str
    started: float = 0.0
    until: float = 0.0
    waited: float = 0.0
    waits: int = 0
    asked: bool = False  # the platform was asked, so a capacity found there later is ours
    accepted: bool = False  # it has accepted the newest change
    late: bool = False  # which it was still carrying out at the deadline
    limit: str = ""
    bounds: Range | None = None
    lesson: str = ""

    def __post_init__(self) -> None:
        self.started = self.monotonic()
        self.until = self.started + self.deadline

    @property
    def time(self) -> float:
        """The time now, by the clock of `now`."""
        return self.now + self.monotonic() - self.started

    @property
    def remaining(self) -> float:
        """Seconds that a request may take."""
        return max(self.until - self.monotonic(), 1.0)

    def error(self, text: str, retry_after: float | None = None, *, unknown: bool = False) -> ScalerError:
        return ScalerError(f"{self.label}: {text}", retry_after=retry_after, unknown=unknown)

    def back_off(self, retry_after: float | None) -> float:
        """Seconds to the next try: as the platform asks, or longer each time."""
        seconds = retry_after if retry_after is not None else FIRST_WAIT * 2**self.waits
        self.waits += 1
        return seconds

    def effect(self, outcome: EffectOutcome, reached: int | None, detail: str) -> Effect:
        return effect_of(self.action, outcome, self.time, detail, reached)

    def settled(self, here: int, wanted: int, unit: str) -> Effect | None:
        """The effect of an action that needs no asking; None for one that does.

        The target is there already, an earlier delivery got as far as it may, another controller moved it, or the limits turn
        an increase into less than there is (or the other way round).
        """
        action = self.action
        if here == action.to_capacity:
            return self.effect(EffectOutcome.APPLIED if self.asked else EffectOutcome.ALREADY_THERE, here, "")
        if here == action.from_capacity:
            turned = wanted == here or (wanted > here) != (action.to_capacity > here)
            return self.effect(EffectOutcome.REFUSED, here, self.limit) if turned else None
        if here == wanted:
            return self.effect(EffectOutcome.LIMITED, here, self.limit)
        text = f"found {here} {unit} where the decision saw {action.from_capacity}"
        return self.effect(EffectOutcome.EXTERNAL_CHANGE, here, text)


def advice(failure: Failure, *, refused: str, absent: str) -> str:
    """The failure in words, with what to do where somebody can do something: `refused` access, or `absent`."""
    words = {
        Kind.FORBIDDEN: f"access refused; {refused} ({failure.story})",
        Kind.NOT_FOUND: f"not found{absent} ({failure.story})",
        Kind.NO_IDENTITY: f"no token for Resource Manager: {failure.story}",
        Kind.LOCKED: (
            "a lock forbids the change; remove it, or set minimum and maximum to what is there, and nothing is scaled "
            f"({failure.story})"
        ),
    }
    return words.get(failure.kind, failure.story)


class Seen(Protocol):
    """One reading of a target; `unknown_state` may be that of a change."""

    @property
    def value(self) -> int: ...

    @property
    def pending(self) -> bool: ...

    @property
    def unknown_state(self) -> str: ...


class Clock(TypedDict, total=False):
    """The time a scaler waits by; tests bring their own."""

    sleep: Callable[[float], Awaitable[None]]
    monotonic: Callable[[], float]


_Seen = TypeVar("_Seen", bound=Seen)


class Carrier(ABC, Generic[_Seen]):
    """Reads a target, and carries out actions. Subclasses say how it is read, bounded and changed."""

    def __init__(
        self, label: str, unit: str, *, deadline: float, poll_interval: float, **clock: Unpack[Clock]
    ) -> None:
        """`label` names the target in messages, which counts in `unit`. `deadline` bounds one delivery of an action;
        `poll_interval` (seconds) counts where the platform does not say when to read again.
        """
        self.deadline = deadline
        self._label = label
        self._unit = unit
        self._poll_interval = poll_interval
        self._sleep = clock.get("sleep", asyncio.sleep)
        self._monotonic = clock.get("monotonic", time.monotonic)

    @abstractmethod
    async def _ask(self, now: float) -> _Seen:
        """Reads the target. May raise the errors of the SDKs, ValueError and TargetRefusedError."""

    @abstractmethod
    def _clamped(self, order: Order, seen: _Seen) -> int:
        """The nearest capacity that the platform accepts; if it is not that of the action, `order.limit` says why."""

    @abstractmethod
    async def _request(self, order: Order, seen: _Seen, wanted: int) -> None:
        """Asks for `wanted`, notes in `order` that it was accepted, and waits for its end. Raises what the SDKs raise."""

    @abstractmethod
    def _advice(self, failure: Failure, *, to_write: bool = True) -> str:
        """A refusal in words, with what to do; `to_write` where it is that of a change."""

    def _classified(self, error: Exception) -> Failure:
        return classify(error)

    def _under_way(self, order: Order, seen: _Seen, wanted: int) -> Effect | None:
        """The effect of an action that has to wait for a change, or of one that an earlier delivery has begun."""

    async def _held_by(self, seen: _Seen, now: float) -> str | None:
        """Which other controller moves the target, in words; None where none does."""

    async def apply(self, action: ScaleAction, *, now: float) -> Effect:
        """Carries out `action` within the deadline. Raises ScalerError where a later delivery may succeed."""
        order = Order(action, now, self.deadline, self._monotonic, self._label)
        while True:
            try:
                step = await self._try(order)
            except TargetRefusedError as error:
                return order.effect(EffectOutcome.REFUSED, None, str(error))
            if isinstance(step, Effect):
                return step
            order.waited += step.seconds
            if order.waited > PATIENCE or order.monotonic() + step.seconds > order.until:
                raise order.error(step.story, step.seconds)
            await self._sleep(step.seconds)

    async def _read(self, now: float) -> _Seen:
        return await self._bounded(self._ask(now))

    async def _bounded(self, read: Awaitable[_Seen]) -> _Seen:
        """What `read` returns. Whatever else comes of it is a ScalerError with the label: TargetRefusedError where asking
        again is of no use.
        """
        try:
            async with asyncio.timeout(READ_DEADLINE):
                return await read
        except ScalerError:
            raise
        except TimeoutError:
            raise ScalerError(f"{self._label}: no answer within {READ_DEADLINE:g} s") from None
        except AzureError as error:
            failure = self._classified(error)
            text = f"{self._label}: {self._advice(failure, to_write=False)}"
            if failure.kind in {Kind.NOT_FOUND, Kind.FORBIDDEN}:
                raise TargetRefusedError(text) from error
            raise ScalerError(text, retry_after=failure.retry_after) from error
        except CallRefusedError as error:
            raise ScalerError(f"{self._label}: {error.message}", retry_after=error.retry_after) from error
        except ValueError as error:  # a setting at fault, or an answer that lacks what is needed
            raise ScalerError(f"{self._label}: {error}") from error
        except Exception as error:  # whatever else an SDK or its transport raises
            raise ScalerError(f"{self._label}: {describe_error(error)}") from error

    async def _try(self, order: Order) -> Effect | Wait:
        seen = await self._read(order.now)
        there, wanted = order.action.to_capacity, self._clamped(order, seen)
        if (waits := self._under_way(order, seen, wanted)) is not None:
            return waits
        if seen.value != there and (holder := await self._held_by(seen, order.now)) is not None:
            text = f"{holder}; disable one of the two"
            return order.effect(EffectOutcome.EXTERNAL_CHANGE, seen.value, text)
        settled = order.settled(seen.value, wanted, self._unit)
        return await self._change(order, seen, wanted) if settled is None else settled

    async def _change(self, order: Order, seen: _Seen, wanted: int) -> Effect | Wait:
        order.asked, order.accepted, failure = True, False, None
        try:
            async with asyncio.timeout(order.remaining):
                await self._request(order, seen, wanted)
        except Exception as error:  # whatever it is, the order may have left: the target is read back
            failure = self._classified(error)
            if not order.accepted and (refused := self._refused(order, seen, wanted, failure)) is not None:
                return refused
            order.late = order.accepted and isinstance(error, TimeoutError)
        return await self._read_back(order, wanted, failure)

    def _refused(self, order: Order, seen: _Seen, wanted: int, failure: Failure) -> Effect | Wait | None:
        """What to do about a change that was not accepted; None when it may have been."""
        match failure.kind:
            case Kind.UNKNOWN:
                return None
            case Kind.BUSY | Kind.THROTTLED:
                return Wait(max(order.back_off(failure.retry_after), 1.0), failure.story)
            case Kind.NO_IDENTITY:
                raise order.error(self._advice(failure))
            case _:
                return order.effect(EffectOutcome.REFUSED, seen.value, self._advice(failure))

    async def _read_back(self, order: Order, wanted: int, failure: Failure | None) -> Effect:
        """The effect as the target shows it, whatever went wrong on the way.

        Raises ScalerError while the target cannot be read, and when a change that failed has changed nothing.
        """
        while True:
            try:
                seen = await self._read(order.now)
            except ScalerError as error:
                text = f"the outcome is unknown, for it could not be read back: {error}"
                raise ScalerError(text, retry_after=error.retry_after, unknown=True) from error
            moved = seen.value != order.action.from_capacity
            if moved or not (seen.pending or seen.unknown_state) or self._takes_hours(seen, wanted):
                break
            if self._monotonic() + self._poll_interval > order.until:
                text = f"the change to {wanted} is still in progress after {order.deadline:g} s"
                if not order.accepted:  # it may be a change of somebody else
                    raise order.error(text, FIRST_WAIT, unknown=True)
                return order.effect(EffectOutcome.ACCEPTED, seen.value, text)
            await self._sleep(self._poll_interval)
        if failure is not None and not order.accepted and not moved and not self._takes_hours(seen, wanted):
            text = f"nothing was changed: {failure.story}"
            raise order.error(text, failure.retry_after, unknown=True)
        return self._judged(order, wanted, seen, "" if failure is None else failure.story)

    def _takes_hours(self, seen: _Seen, wanted: int) -> bool:
        """Whether the platform goes on with a change by itself, which is not waited for: the checks find its effect."""
        return False

    def _judged(self, order: Order, wanted: int, seen: _Seen, story: str) -> Effect:
        action, reached = order.action, seen.value
        if reached == action.to_capacity:
            return order.effect(EffectOutcome.APPLIED, reached, f"read back after: {story}" if story else "")
        if reached == action.from_capacity:
            text = story or f"the platform accepted {wanted} {self._unit}, but has {reached}"
            # What was still going on at the deadline may have its effect yet: not every resource has a state.
            outcome = EffectOutcome.ACCEPTED if order.late else EffectOutcome.FAILED
            return order.effect(outcome, reached, text)
        if reached == wanted:
            return order.effect(EffectOutcome.LIMITED, reached, order.limit)
        text = f"asked for {wanted} {self._unit}, found {reached}: somebody else set it at the same time"
        return order.effect(EffectOutcome.EXTERNAL_CHANGE, reached, text)
