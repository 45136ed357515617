"""A resource whose changes take time: what it answers to a PUT or a PATCH, and when the change is there.

As with plans, what is due is settled by every reading, at the time it was due. Kinds of fault at `arm.put_resource` and
`arm.patch_resource`, besides the common ones:

    conflict           refused as if another operation were in progress
    failed_operation   accepted, ends as Failed when the operation is over, nothing is changed
    ignored_change     accepted, ends as Succeeded, nothing is changed
    refused            refused for good: a quota, in the words of the provider
    stuck_operation    accepted, never ends
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from devstack.resource_manager.common.documents import ArmError, front_door_error
from devstack.resource_manager.common.plans import NEVER, Clock, Ending, Operation, OperationStyle, Status
from devstack.servers.faults import Fault

CHANGE_KINDS = frozenset({"conflict", "failed_operation", "ignored_change", "refused", "stuck_operation"})


@dataclass(slots=True)
class Changing:
    """A document that is changed by operations of `operation_seconds`; 0 answers at once. `conflict_retry_after` and
    `poll_after` in seconds; `limits` are the least and the most that a property may have, by its path; `instances` the ids that may be deleted.
    """

    document: dict[str, Any]
    clock: Clock
    operation_seconds: float = 0.0
    operation_style: OperationStyle = OperationStyle.AZURE_ASYNC_OPERATION
    poll_after: float = 1.0
    conflict_retry_after: int = 5
    limits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    operations: dict[str, Operation] = field(default_factory=dict)
    instances: list[str] = field(default_factory=list)
    _next: dict[str, Any] | None = None
    _running: Operation | None = None

    def current(self) -> dict[str, Any]:
        """The document now, with its provisioning state."""
        self._settle()
        state = Status.SUCCEEDED if self._running is None else Status.IN_PROGRESS
        shown = "Updating" if state is Status.IN_PROGRESS else "Succeeded"
        return {
            **self.document,
            "properties": {**self.document.get("properties", {}), "provisioningState": shown},
        }

    def value(self, path: str) -> Any:
        """What stands at a dotted path now."""
        self._settle()
        return _at(self.document, path)

    def set(self, path: str, value: Any) -> None:
        """Somebody else changes it, at once."""
        self._settle()
        self.document = merged(self.document, nested(path, value))

    def request(self, document: dict[str, Any], fault: Fault | None) -> Operation:
        """Accepts a document in place of what there is. Raises ArmError."""
        self._settle()
        kind = "" if fault is None else fault.kind
        if self._running is not None or kind == "conflict":
            raise front_door_error(
                409,
                "Conflict",
                "Another operation is in progress on this resource.",
                retry_after=self.conflict_retry_after,
            )
        if kind == "refused":
            raise front_door_error(
                409,
                "OperationNotAllowed",
                "Operation could not be completed as it results in exceeding approved Total Regional Cores quota.",
            )
        for path, bounds in self.limits.items():
            _check(path, _at(document, path), bounds)
        now = self.clock()
        ending = {
            "failed_operation": Ending.FAILED,
            "ignored_change": Ending.IGNORED,
            "stuck_operation": Ending.FAILED,
        }.get(kind, Ending.APPLIED)
        lasts = NEVER if kind == "stuck_operation" else self.operation_seconds
        operation = Operation(f"op-{len(self.operations) + 1}", 0, now, now + lasts, ending)
        self.operations[operation.id] = self._running = operation
        self._next = document
        self._settle()
        return operation

    def _settle(self) -> None:
        running = self._running
        if running is None or self.clock() < running.ends_at:
            return
        if running.ending is Ending.APPLIED and self._next is not None:
            self.document = self._next
        self._running = self._next = None


def _check(path: str, value: Any, bounds: tuple[int, int]) -> None:
    low, high = bounds
    if not isinstance(value, int) or not low <= value <= high:
        raise _refused(f"The value {value!r} of '{path}' is not between {low} and {high}.")


def _refused(text: str) -> ArmError:
    return front_door_error(400, "InvalidParameter", text)


def merged(before: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON merge patch (RFC 7396)."""
    after = dict(before)
    for name, value in change.items():
        if value is None:
            after.pop(name, None)
        elif isinstance(value, Mapping):
            there = after.get(name)
            after[name] = merged(there if isinstance(there, Mapping) else {}, value)
        else:
            after[name] = value
    return after


def nested(path: str, value: Any) -> dict[str, Any]:
    """`{"sku": {"capacity": 3}}` for `sku.capacity` and 3."""
    for name in reversed(path.split(".")):
        value = {name: value}
    return dict(value)


def _at(document: Any, path: str) -> Any:
    for name in path.split("."):
        document = document.get(name) if isinstance(document, Mapping) else None
    return document
