"""Adds up what the tasks report, for the progress bar and the page. Pure.

A task reports its counts since its attempt began, all of them each time; so a report that is lost or repeated changes nothing. Counts
of an attempt that failed stay counted: its writes were made and charged.
"""

from __future__ import annotations

from msgspec import Struct, structs


class Counts(Struct, frozen=True):
    """Of one attempt at one partition, since its beginning."""

    received: int = 0
    unsettled: int = 0
    """Of those received."""
    skipped: int = 0
    """Settled by an earlier run or attempt, or the same event once more."""
    written: int = 0
    existed: int = 0
    """Of those written: the document was there already (mode create) or of a later event (version guard), and stays as it was."""
    dead_letters: int = 0
    dropped: int = 0
    """On purpose, or for another sink of the hub."""
    left_out: int = 0
    """Patches, replacements and deletes, which mode create does not make."""
    attempts: int = 0
    throttled: int = 0
    request_units: float = 0.0
    written_units: float = 0.0
    reasons: dict[str, int] = {}
    """Dead letters by reason."""

    def __add__(self, other: Counts) -> Counts:
        return self._with(other, 1)

    def __sub__(self, earlier: Counts) -> Counts:
        return self._with(earlier, -1)

    def _with(self, other: Counts, sign: int) -> Counts:
        sums = {name: getattr(self, name) + sign * getattr(other, name) for name in NUMBERS}
        names = {**self.reasons, **other.reasons}
        reasons = {name: self.reasons.get(name, 0) + sign * other.reasons.get(name, 0) for name in names}
        return Counts(**sums, reasons=reasons)

    @property
    def settled(self) -> int:
        """Events that need nothing more, however many documents each of them became."""
        return self.received - self.unsettled

    @property
    def steps(self) -> int:
        """Grows with everything that happens: of two reports of an attempt, the later has more."""
        return self.received + self.attempts + self.settled

    @property
    def throttled_share(self) -> float:
        return self.throttled / self.attempts if self.attempts else 0.0

    @property
    def per_record(self) -> float | None:
        """Request units per record written; None when none was."""
        return self.written_units / self.written if self.written else None


NUMBERS = tuple(name for name in Counts.__struct_fields__ if name != "reasons")


class Snapshot(Struct, frozen=True):
    """The state of the whole job. `at` is seconds since it began."""

    at: float
    total: Counts
    partitions: dict[str, int]
    """Settled events of each partition, by its latest attempt."""


MOST_SNAPSHOTS = 2_000
"""Twice what a plot can show; of more, every second one is dropped, and they come half as often from then on."""


class Progress:
    """All reports, and their history: one snapshot per `every` seconds at first."""

    def __init__(self, every: float = 1.0) -> None:
        self._every = every
        self._attempts: dict[tuple[str, str], Counts] = {}
        self._latest: dict[str, str] = {}
        self.history: list[Snapshot] = [Snapshot(0.0, Counts(), {})]

    def record(self, partition: str, attempt: str, counts: Counts, at: float) -> None:
        """Records the counts of an attempt. A report that comes out of order is older, and is dropped."""
        known = self._attempts.get((partition, attempt))
        if known is not None and known.steps > counts.steps:
            return
        self._attempts[partition, attempt] = counts
        self._latest[partition] = attempt
        snapshot = self.snapshot(at)
        if len(self.history) > 1 and self.history[-1].at < self.history[-2].at + self._every:
            self.history[-1] = structs.replace(snapshot, at=max(at, self.history[-1].at))
        else:
            self.history.append(snapshot)
        if len(self.history) > MOST_SNAPSHOTS:
            self.history = self.history[::2]
            self._every *= 2

    def snapshot(self, at: float) -> Snapshot:
        total = sum(self._attempts.values(), Counts())
        settled = {
            partition: self._attempts[partition, attempt].settled
            for partition, attempt in self._latest.items()
        }
        return Snapshot(at, total, settled)
