"""What the autoscaler needs from the outside. Adapters implement these; fakes in tests do, too.

The same conformance suites (tests/conformance) run on the fakes and, over the wire, on the adapters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from scaling.log_entry import LogEntry
from scaling.model import Capacity, Controls, Effect, Reason, ScaleAction, TargetState
from scaling.notice import Notice, QueuedNotice
from scaling.window import Window
from tidemark.foundation.errors import ShownError, StoreUnavailableError


class CollectError(ShownError):
    """A metric could not be read. `reason` becomes the reason of the hold; never a made-up zero."""

    def __init__(self, message: str, *, reason: Reason = Reason.COLLECT_FAILED) -> None:
        super().__init__(message)
        self.reason = reason


class ScalerError(ShownError):
    """The management API failed in a way that the next try may not meet; `retry_after` in seconds, if it says.

    `unknown` where an order may have left: the platform may carry it out yet, all of it or a part.
    """

    def __init__(self, message: str, *, retry_after: float | None = None, unknown: bool = False) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.unknown = unknown


class NewerStateError(StoreUnavailableError):
    """A newer release wrote the stored row: it is neither read nor overwritten."""


class Reading(Struct, frozen=True):
    """One read of one entity: every count it has, by name (`active`, `scheduled`, `dead_letter`, ...).

    `counters` are those that only grow, each with a number below 2**53 that names what is counted: a reading of another one is no
    increase. `unknown` are counts that this read could not tell, each with the reason.
    """

    at: float
    values: Mapping[str, float]
    counters: Mapping[str, int] = {}
    unknown: Mapping[str, str] = {}


class Collector(Protocol):
    """Reads one entity. Metrics of any target that want counts of that entity share one read per tick."""

    async def collect(self, *, now: float) -> Reading:
        """Raises CollectError when the entity cannot be read or its state makes the counts misleading."""
        ...

    async def aclose(self) -> None: ...


class Scaler(Protocol):
    """Reads and sets the capacity of one kind of target. Safe to call twice with the same action.

    Two attributes are optional: `endpoint`, what reads of several targets go to and may wait for together, and
    `deadline`, the seconds after which `apply` comes back whatever the platform does (60 if it does not say).
    """

    async def current(self, target: str, *, now: float) -> Capacity:
        """Raises ScalerError when the capacity cannot be read."""
        ...

    async def apply(self, action: ScaleAction, *, now: float) -> Effect:
        """Carries out an absolute action and reads the result back.

        Does nothing and says so when the target already is where it should be (ALREADY_THERE) or somebody
        else moved it (EXTERNAL_CHANGE). Raises ScalerError where a later delivery may succeed: the action is sent
        again, after the error's `retry_after` if it has one, so there is no need to wait here for long.
        """
        ...

    async def aclose(self) -> None: ...


class Snapshot(Struct, frozen=True):
    """State, windows and controls of one target as loaded, with the tags that guard the write.

    `corrupt` names what could not be decoded (`state`, `windows`, `window:<metric>`, `controls`); it reads as absent.
    """

    target: str
    state: TargetState = TargetState()
    windows: Mapping[str, Window] = {}
    controls: Controls = Controls()
    etags: Mapping[str, str] = {}
    corrupt: tuple[str, ...] = ()


class StateStore(Protocol):
    """Windows, state and operators' orders per target; one atomic, guarded write per evaluation."""

    async def load(self, target: str) -> Snapshot: ...

    async def load_all(self, targets: Iterable[str]) -> Mapping[str, Snapshot]:
        """The snapshots of many targets, for people to look at; cheaper than as many loads."""
        ...

    async def save(
        self, loaded: Snapshot, state: TargetState, windows: Mapping[str, Window] | None = None
    ) -> None:
        """Writes the state and all windows at once; without `windows` those of `loaded` stay.

        Raises ConflictError, having written nothing, when either changed since `loaded`.
        """
        ...

    async def load_controls(self, target: str) -> Snapshot:
        """Operators' orders alone, whatever became of the state."""
        ...

    async def save_controls(self, loaded: Snapshot, controls: Controls) -> None:
        """Writes operators' orders alone. Raises ConflictError when they changed since `loaded`."""
        ...

    async def aclose(self) -> None: ...


class LogPage(Struct, frozen=True):
    """Newest first. `continuation` continues after the last entry; None at the end."""

    entries: tuple[LogEntry, ...]
    continuation: str | None = None


class DecisionLog(Protocol):
    """The scaling log: append-only for readers, idempotent for the writer."""

    async def append(self, entries: Sequence[LogEntry]) -> None:
        """Writes entries; one with a key already there replaces it."""
        ...

    async def read(
        self,
        target: str | None = None,
        *,
        since: float | None = None,
        until: float | None = None,
        limit: int = 100,
        continuation: str | None = None,
        changes: bool = False,
        inputs: bool = False,
    ) -> LogPage:
        """Entries of one target (or all), newest first, not older than `since` and not newer than `until`.

        With `changes` decisions are left out; without `inputs` theirs are. Raises ValueError for a continuation it did not issue.
        """
        ...

    async def get(self, target: str, at: float, key: str) -> LogEntry | None:
        """One entry, with its inputs."""
        ...

    async def purge(self, *, before: float) -> int:
        """Deletes entries older than `before`, in a bounded time; returns how many. Later calls delete the rest."""
        ...

    async def aclose(self) -> None: ...


class PoisonMessage(Struct, frozen=True):
    queue: str
    message_id: str
    inserted_at: float | None
    body: str


class PoisonQueues(Protocol):
    """Messages the host gave up on; they stay until somebody removes them."""

    async def peek(self, limit: int = 16) -> tuple[int, Sequence[PoisonMessage]]:
        """How many there are in all, and the first few, undecoded."""
        ...

    async def put(self, queue: str, body: str) -> None:
        """Adds a message to the poison queue of `queue`. Raises StoreUnavailableError."""
        ...

    async def aclose(self) -> None: ...


class Outbox(Protocol):
    """Notices on their way to webhooks, until they arrived or were given up, and for a while after that."""

    async def put(self, webhook: str, notices: Sequence[Notice], *, now: float) -> None:
        """Adds those whose id is not known there: one that was put before stays as it is, whatever became of it."""
        ...

    async def waiting(self, webhook: str) -> Sequence[QueuedNotice]:
        """Those that are not done, a bounded number."""
        ...

    async def save(self, webhook: str, queued: Sequence[QueuedNotice]) -> None:
        """Writes up to 100 queued notices, all or none."""
        ...

    async def forget(self, webhook: str, *, before: float) -> int:
        """Deletes notices that are done and were put before a time, a bounded number; returns how many."""
        ...

    async def aclose(self) -> None: ...
