"""An App Service Plan as a state machine: what it answers to a change of its capacity, and when the
instances asked for are ready.

There is no I/O here. Time comes from the injected clock, in seconds; nothing happens between
calls: every reading first settles what is due by then, at the time it was due. So a reading never
depends on how often somebody looked before.

The rules, in the order a change meets them:

1. while an operation runs, another is refused (`OPERATION_IN_PROGRESS`);
2. above the maximum of the SKU, or of the plan itself, it is refused (`TOO_MANY_WORKERS`);
3. a zone-redundant plan raises it to its minimum without a word;
4. a plan with elastic scale accepts it and leaves the capacity alone;
5. over the limit of changes in an hour it is refused (`TOO_MANY_CHANGES`);
6. when the stamp has no servers it is refused (`NOT_ENOUGH_SERVERS`), or granted in part if the plan
   scales asynchronously.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from devstack.resource_manager.common.skus import Sku

ZONE_REDUNDANT_MINIMUM = 2  # from memory of the reliability guide; older plans needed 3
SECONDS_PER_HOUR = 3600.0


class Clock(Protocol):
    def __call__(self) -> float: ...


class RefusalCode(StrEnum):
    """Why a change was refused. The value is the platform's ExtendedCode where one is known."""

    OPERATION_IN_PROGRESS = "59205"
    TOO_MANY_WORKERS = "03002"
    NOT_ENOUGH_SERVERS = "not_enough_servers"
    TOO_MANY_CHANGES = "too_many_changes"
    BAD_CAPACITY = "bad_capacity"


class Refusal(Exception):  # noqa: N818 - an answer of the platform, not a fault of the program
    """A change of capacity that the plan did not accept."""

    def __init__(self, code: RefusalCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Ending(StrEnum):
    """How an accepted change ends."""

    APPLIED = "applied"
    IGNORED = "ignored"  # reports success and changes nothing
    FAILED = "failed"


class Status(StrEnum):
    """Provisioning states, in the platform's spelling."""

    IN_PROGRESS = "InProgress"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class OperationStyle(StrEnum):
    """How the answer to a PUT tells its caller where to follow the operation."""

    AZURE_ASYNC_OPERATION = "azure-async-operation"  # 202, Azure-AsyncOperation and Location
    LOCATION = "location"  # 202, Location only
    BODY = "body"  # 200, provisioningState of the plan itself


@dataclass(frozen=True, slots=True)
class Instance:
    """One worker of a plan; it takes work from `ready_at` on (seconds of the clock)."""

    id: str
    asked_at: float
    ready_at: float


@dataclass(frozen=True, slots=True)
class Operation:
    """An accepted change; `granted` is the capacity it leads to, at `ends_at`."""

    id: str
    granted: int
    started_at: float
    ends_at: float
    ending: Ending

    def status(self, now: float) -> Status:
        if now < self.ends_at:
            return Status.IN_PROGRESS
        return Status.FAILED if self.ending is Ending.FAILED else Status.SUCCEEDED


@dataclass(slots=True)
class Plan:
    """One plan. Set the public fields at will; `request_capacity` and `set_capacity` change its size.

    start_delay: seconds from the end of an operation until its new instances are ready.
    operation_seconds: how long a change takes; 0 answers at once without an operation to follow.
    conflict_status: 429 as users report it, or 409 as the code in the body says.
    available_workers: servers the stamp can still add to this plan; None: enough.
    changes_per_hour: limit of accepted changes in an hour (users report 20); None: none.
    own_maximum: a limit of this plan (of its subscription, say) below that of its SKU; None: none.
    """

    subscription: str
    resource_group: str
    name: str
    sku: Sku
    clock: Clock
    initial_capacity: int = 1
    location: str = "westeurope"
    start_delay: float = 0.0
    operation_seconds: float = 0.0
    operation_style: OperationStyle = OperationStyle.AZURE_ASYNC_OPERATION
    poll_after: int = 1
    conflict_status: int = 429
    conflict_retry_after: int = 5
    available_workers: int | None = None
    changes_per_hour: int | None = None
    own_maximum: int | None = None
    elastic_scale_enabled: bool = False
    async_scaling_enabled: bool = False
    zone_redundant: bool = False
    number_of_sites: int = 1
    tags: dict[str, str] = field(default_factory=dict)

    _capacity: int = field(init=False, default=0)
    _target: int | None = field(init=False, default=None)
    _instances: list[Instance] = field(init=False, default_factory=list)
    _instances_made: int = field(init=False, default=0)
    _history: list[tuple[float, int]] = field(init=False, default_factory=list)
    _changes: list[float] = field(init=False, default_factory=list)
    _operations: dict[str, Operation] = field(init=False, default_factory=dict)
    _running: Operation | None = field(init=False, default=None)
    _last_ending: Status = field(init=False, default=Status.SUCCEEDED)

    def __post_init__(self) -> None:
        if self.sku.is_elastic:
            self.elastic_scale_enabled = True
        self._check(self.initial_capacity)
        now = self.clock()
        self._resize(self.initial_capacity, asked_at=now, at=now, start_delay=0.0)

    @property
    def id(self) -> str:
        return (
            f"/subscriptions/{self.subscription}/resourceGroups/{self.resource_group}"
            f"/providers/Microsoft.Web/serverfarms/{self.name}"
        )

    @property
    def maximum(self) -> int:
        return self.sku.maximum if self.own_maximum is None else min(self.own_maximum, self.sku.maximum)

    # -- readings ---------------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """Instances assigned now, ready or not."""
        self._settle(self.clock())
        return self._capacity

    @property
    def history(self) -> list[tuple[float, int]]:
        """(time, capacity) of every change in effect by now, the oldest first; begins with creation."""
        self._settle(self.clock())
        return list(self._history)

    @property
    def target_worker_count(self) -> int:
        """What an asynchronous scaling still works towards; 0 when there is none, as the platform says."""
        self._settle(self.clock())
        return self._target or 0

    @property
    def provisioning_state(self) -> Status:
        self._settle(self.clock())
        if self._running is not None or self._target is not None:
            return Status.IN_PROGRESS
        return self._last_ending

    def instances(self, now: float | None = None) -> list[Instance]:
        """The instances assigned at `now` (default: the clock's), the oldest first.

        `now` must not lie before an earlier reading: what was settled stays settled.
        """
        self._settle(self.clock() if now is None else now)
        return list(self._instances)

    def ready_count(self, now: float | None = None) -> int:
        """How many of the instances take work at `now` (default: the clock's)."""
        now = self.clock() if now is None else now
        return sum(instance.ready_at <= now for instance in self.instances(now))

    def operation(self, operation_id: str) -> Operation | None:
        self._settle(self.clock())
        return self._operations.get(operation_id)

    # -- changes ----------------------------------------------------------------------------------

    def request_capacity(
        self, wanted: int | None, *, ending: Ending = Ending.APPLIED, seconds: float | None = None
    ) -> Operation:
        """What a PUT does: accept the change as an operation, or raise Refusal.

        `wanted` None keeps the capacity, as a PUT without sku.capacity does. `seconds` overrides how
        long the operation takes; infinity never ends. An operation of 0 seconds has ended on return.
        """
        now = self.clock()
        self._settle(now)
        if self._running is not None:
            raise self._in_progress(self._running)
        wanted = self._capacity if wanted is None else wanted
        granted = self._grant(wanted, now)
        if granted != self._capacity:
            self._changes.append(now)
        operation = Operation(
            id=f"op-{len(self._operations) + 1}",
            granted=granted,
            started_at=now,
            ends_at=now + (self.operation_seconds if seconds is None else seconds),
            ending=ending,
        )
        self._operations[operation.id] = self._running = operation
        self._settle(now)
        return operation

    def set_capacity(self, capacity: int) -> None:
        """Somebody else changes the plan, at once and without an operation.

        Raises ValueError when the SKU does not allow the number.
        """
        self._check(capacity)
        now = self.clock()
        self._settle(now)
        self._target = None
        self._resize(capacity, asked_at=now, at=now, start_delay=self.start_delay)

    def offer_workers(self, count: int) -> None:
        """The stamp got `count` more servers; an asynchronous scaling takes what it still lacks."""
        now = self.clock()
        self._settle(now)
        self.available_workers = (self.available_workers or 0) + count
        if self._target is not None and self._running is None:
            granted = min(self._target, self._capacity + self.available_workers)
            self._resize(granted, asked_at=now, at=now, start_delay=self.start_delay)
            self._clear_reached_target()

    # -- rules ------------------------------------------------------------------------------------

    def _check(self, capacity: int) -> None:
        if not 1 <= capacity <= self.maximum:
            raise ValueError(
                f"capacity of plan {self.name!r} is {capacity}, "
                f"accepted for SKU {self.sku.name}: 1 to {self.maximum}"
            )

    def _grant(self, wanted: int, now: float) -> int:
        if wanted < 1:
            raise Refusal(
                RefusalCode.BAD_CAPACITY, f"sku.capacity is {wanted}; a plan has 1 instance or more."
            )
        if wanted > self.maximum:
            raise Refusal(RefusalCode.TOO_MANY_WORKERS, "Number of Web workers exceeds the maximum.")
        if self.zone_redundant:
            wanted = max(wanted, min(ZONE_REDUNDANT_MINIMUM, self.maximum))
        if self.elastic_scale_enabled or wanted == self._capacity:
            self._target = None
            return self._capacity
        self._check_change_rate(now)
        return self._within_stamp(wanted)

    def _check_change_rate(self, now: float) -> None:
        self._changes = [at for at in self._changes if at > now - SECONDS_PER_HOUR]
        if self.changes_per_hour is not None and len(self._changes) >= self.changes_per_hour:
            raise Refusal(
                RefusalCode.TOO_MANY_CHANGES,
                "You have exceeded the maximum amount of scale changes within the past hour"
                f"({len(self._changes)} changes and limit is {self.changes_per_hour}). Please retry later.",
            )

    def _within_stamp(self, wanted: int) -> int:
        self._target = None
        extra = self.available_workers
        if extra is None or wanted - self._capacity <= extra:
            return wanted
        if not self.async_scaling_enabled:
            raise Refusal(
                RefusalCode.NOT_ENOUGH_SERVERS,
                "Not enough available reserved instance servers to satisfy this request. "
                f"Currently {extra} instances are available. If you are changing instance size you can "
                f"reserve up to {extra} instances at this moment. If you are increasing instance count "
                f"then you can add extra {extra} instances at this moment. "
                "Please get available machines and retry later.",
            )
        self._target = wanted
        return self._capacity + extra

    @staticmethod
    def _in_progress(running: Operation) -> Refusal:
        return Refusal(
            RefusalCode.OPERATION_IN_PROGRESS,
            "Cannot modify this web hosting plan because another operation is in progress. "
            f"Details: Id: {running.id}, OperationName: Update, CreatedTime: {running.started_at:.0f}, "
            f"RequestId: {running.id}, EntityType: 9",
        )

    # -- effects ----------------------------------------------------------------------------------

    def _settle(self, now: float) -> None:
        running = self._running
        if running is None or now < running.ends_at:
            return
        self._running = None
        self._last_ending = running.status(now)
        if running.ending is Ending.APPLIED:
            self._resize(
                running.granted,
                asked_at=running.started_at,
                at=running.ends_at,
                start_delay=self.start_delay,
            )
            self._clear_reached_target()
        else:
            self._target = None

    def _resize(self, capacity: int, *, asked_at: float, at: float, start_delay: float) -> None:
        grown = capacity - self._capacity
        if grown == 0:
            return
        if grown > 0:
            self._add(grown, asked_at, at + start_delay)
        else:
            self._remove(-grown, at)
        if self.available_workers is not None and self._history:
            self.available_workers = max(0, self.available_workers - grown)
        self._capacity = capacity
        self._history.append((at, capacity))

    def _add(self, count: int, asked_at: float, ready_at: float) -> None:
        for _ in range(count):
            self._instances_made += 1
            self._instances.append(Instance(f"{self.name}-{self._instances_made}", asked_at, ready_at))

    def _remove(self, count: int, at: float) -> None:
        """Starting instances go first, for nothing runs on them yet; then the newest."""
        by_age = sorted(enumerate(self._instances), key=lambda pair: (pair[1].ready_at > at, pair[0]))
        self._instances = [instance for _, instance in sorted(by_age[: len(by_age) - count])]

    def _clear_reached_target(self) -> None:
        if self._target is not None and self._capacity >= self._target:
            self._target = None


NEVER = math.inf  # the length of an operation that does not end
