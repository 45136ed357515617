"""A collector and a scaler without Azure, with the platform's moods as switches.

They are held to the same conformance suites as the adapters (tests/conformance).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from scaling.model import Capacity, Effect, EffectOutcome, Reason, ScaleAction
from scaling.ports import CollectError, Reading, ScalerError


async def no_wait(_seconds: float) -> None:
    """Time that passes in no time."""


class FakeCollector:
    """Reports `counts`; `fail_with` makes every read raise it, `disabled` is an entity that hands nothing out."""

    COUNTS = ("active", "dead_letter", "total")
    DEFAULT_COUNT = "active"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        queue: str

    def __init__(
        self,
        counts: dict[str, float] | None = None,
        *,
        latency: float = 0.0,
        sleep: Callable[[float], Awaitable[None]] = no_wait,
    ) -> None:
        self.counts = {"active": 0.0, "dead_letter": 0.0, "total": 0.0} if counts is None else counts
        self.latency = latency
        self.fail_with: Exception | None = None
        self.disabled = False
        self.missing = False
        self.reads: list[float] = []
        self.closed = False
        self._sleep = sleep

    @staticmethod
    def entity(params: "FakeCollector.Params") -> str:
        return f"fake:{params.queue}"

    async def collect(self, *, now: float) -> Reading:
        self.reads.append(now)
        if self.latency:
            await self._sleep(self.latency)
        if self.fail_with is not None:
            raise self.fail_with
        if self.missing:
            raise CollectError("queue 'fake': does not exist")
        if self.disabled:
            raise CollectError("queue 'fake': has the status Disabled", reason=Reason.ENTITY_DISABLED)
        return Reading(at=now, values=dict(self.counts))

    async def aclose(self) -> None:
        self.closed = True


@dataclass
class FakePlatform:
    """A target as its management API has it.

    `ledger` holds what was set by orders, `history` every capacity there was. `conflicts` refusals come
    first; `available` is how many instances can still be added (None: enough); `refusal` is a refusal for
    good; `ignores` accepts orders and does nothing; `foreign` is applied by somebody else just before the
    next order is looked at; `unreachable` fails every call.
    """

    capacity: int = 1
    floor: int = 1
    ceiling: int | None = 30
    held_by: str | None = None
    pending: bool = False
    unknown_state: str = ""
    conflicts: int = 0
    available: int | None = None
    refusal: str = ""
    ignores: bool = False
    external_change: int | None = None
    unreachable: bool = False
    latency: float = 0.0
    ledger: list[int] = field(default_factory=list)
    history: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.history.append(self.capacity)

    def move(self, capacity: int) -> None:
        """Somebody else sets the capacity."""
        self.capacity = capacity
        self.history.append(capacity)

    def order(self, capacity: int) -> None:
        self.ledger.append(capacity)
        if self.ignores:
            return
        if self.available is not None:
            self.available -= max(0, capacity - self.capacity)
        self.move(capacity)


class FakeScaler:
    """Carries out actions on a FakePlatform by the rules of the port."""

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        name: str = "fake"

    def __init__(
        self, platform: FakePlatform, *, sleep: Callable[[float], Awaitable[None]] = no_wait
    ) -> None:
        self.platform = platform
        self.closed = False
        self._sleep = sleep

    async def current(self, target: str, *, now: float) -> Capacity:
        platform = self.platform
        await self._reach()
        return Capacity(
            current=platform.capacity,
            at=now,
            floor=platform.floor,
            ceiling=platform.ceiling,
            pending=platform.pending,
            held_by=platform.held_by,
            unknown_state=platform.unknown_state,
        )

    async def apply(self, action: ScaleAction, *, now: float) -> Effect:
        platform = self.platform
        await self._reach()
        if platform.external_change is not None:
            platform.move(platform.external_change)
            platform.external_change = None
        outcome, detail = self._carry_out(action)
        return Effect(
            action_id=action.action_id,
            target=action.target,
            outcome=outcome,
            from_capacity=action.from_capacity,
            to_capacity=action.to_capacity,
            reached=platform.capacity,
            at=now,
            detail=detail,
        )

    async def aclose(self) -> None:
        self.closed = True

    async def _reach(self) -> None:
        if self.platform.latency:
            await self._sleep(self.platform.latency)
        if self.platform.unreachable:
            raise ScalerError("the platform does not answer", retry_after=5.0)

    def _carry_out(self, action: ScaleAction) -> tuple[EffectOutcome, str]:
        platform, before = self.platform, self.platform.capacity
        if before == action.to_capacity:
            return EffectOutcome.ALREADY_THERE, ""
        if platform.held_by is not None:
            return EffectOutcome.EXTERNAL_CHANGE, f"'{platform.held_by}' moves this target"
        wanted = self._within_limits(action.to_capacity)
        if before != action.from_capacity:
            if before == wanted:
                return EffectOutcome.LIMITED, "an earlier delivery got this far"
            return EffectOutcome.EXTERNAL_CHANGE, f"found {before}, expected {action.from_capacity}"
        if platform.conflicts:
            platform.conflicts -= 1
            raise ScalerError("another operation is in progress", retry_after=5.0)
        if platform.refusal or wanted == before:
            return EffectOutcome.REFUSED, platform.refusal or f"at the platform's limit of {before}"
        platform.order(wanted)
        if platform.capacity == before:
            return EffectOutcome.FAILED, f"accepted {wanted}, but still has {before}"
        if wanted != action.to_capacity:
            return EffectOutcome.LIMITED, f"the platform gives {wanted}"
        return EffectOutcome.APPLIED, ""

    def _within_limits(self, wanted: int) -> int:
        platform = self.platform
        if platform.ceiling is not None:
            wanted = min(wanted, platform.ceiling)
        if platform.available is not None and wanted > platform.capacity:
            wanted = min(wanted, platform.capacity + platform.available)
        return max(wanted, platform.floor)
