"""How every scaler reads, and carries out an action: tries until it is settled, waits as told, says what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from azure.core.exceptions import AzureError
from msgspec import Struct

from scaling.calls.gate import CallRefusedError
from scaling.model import Effect, EffectOutcome, ScaleAction, effect_of
from scaling.ports import ScalerError
from scaling.scalers.arm.errors import Failure, Kind
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


class Order(Struct):
    """One call of `apply`, which has `deadline` seconds. `limit` is why less is asked than the action says.

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
    limit: str = ""

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
        """The effect of an action that needs no asking: it is there, or an earlier delivery got as far as it may, or
        somebody else moved the target; else None.
        """
        action = self.action
        if here == action.to_capacity:
            return self.effect(EffectOutcome.APPLIED if self.asked else EffectOutcome.ALREADY_THERE, here, "")
        if here == action.from_capacity:
            return None
        if here == wanted:
            return self.effect(EffectOutcome.LIMITED, here, self.limit)
        text = f"found {here} {unit} where the decision saw {action.from_capacity}"
        return self.effect(EffectOutcome.EXTERNAL_CHANGE, here, text)


_Order = TypeVar("_Order", bound=Order)
_Facts = TypeVar("_Facts")


async def reading(
    label: str,
    read: Awaitable[_Facts],
    failure_of: Callable[[Exception], Failure],
    advised: Callable[[Failure], str],
) -> _Facts:
    """What `read` tells. Whatever else comes of it is a ScalerError with `label`: TargetRefusedError where asking again
    is of no use.
    """
    try:
        async with asyncio.timeout(READ_DEADLINE):
            return await read
    except ScalerError:
        raise
    except TimeoutError:
        raise ScalerError(f"{label}: no answer within {READ_DEADLINE:g} s") from None
    except AzureError as error:
        failure = failure_of(error)
        text = f"{label}: {advised(failure)}"
        if failure.kind in {Kind.NOT_FOUND, Kind.FORBIDDEN}:
            raise TargetRefusedError(text) from error
        raise ScalerError(text, retry_after=failure.retry_after) from error
    except CallRefusedError as error:
        raise ScalerError(f"{label}: {error.message}", retry_after=error.retry_after) from error
    except ValueError as error:  # a setting at fault, or an answer that does not tell what is needed
        raise ScalerError(f"{label}: {error}") from error
    except Exception as error:  # whatever else an SDK or its transport raises
        raise ScalerError(f"{label}: {describe_error(error)}") from error


async def reading_back(what: str, read: Awaitable[_Facts]) -> _Facts:
    """What `read` tells after an order. Raises ScalerError: without it, what became of the order is unknown."""
    try:
        return await read
    except ScalerError as error:
        text = f"the outcome is unknown, for the {what} could not be read back: {error}"
        raise ScalerError(text, retry_after=error.retry_after, unknown=True) from error


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


async def carry_out(
    order: _Order,
    attempt: Callable[[_Order], Awaitable[Effect | Wait]],
    sleep: Callable[[float], Awaitable[None]],
) -> Effect:
    """Attempts until there is an effect. Raises ScalerError where a later delivery may succeed."""
    while True:
        try:
            step = await attempt(order)
        except TargetRefusedError as error:
            return order.effect(EffectOutcome.REFUSED, None, str(error))
        if isinstance(step, Effect):
            return step
        order.waited += step.seconds
        if order.waited > PATIENCE or order.monotonic() + step.seconds > order.until:
            raise order.error(step.story, step.seconds)
        await sleep(step.seconds)
