"""The scaling log as a step function: what capacity a target had, when, and what its shadow would have had. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from scaling.model import MOVED

HOUR, DAY = 3600.0, 86_400.0

_MOVED = frozenset(outcome.value for outcome in MOVED)


class CapacityEntry(Struct, frozen=True):
    """What is needed of an entry of the scaling log; `at` in seconds since 1970, `shadow` the capacity simulated."""

    at: float
    kind: str
    current: int | None = None
    desired: int | None = None
    outcome: str | None = None
    reached: int | None = None
    reason: str = ""
    line: str = ""
    shadow: int | None = None
    metrics: Mapping[str, float] = {}

    @property
    def capacity(self) -> int | None:
        """The capacity that the entry has for its time."""
        if self.kind == "decision":
            return self.current
        return self.reached if self.kind == "effect" and self.outcome in _MOVED else None


class Span(Struct, frozen=True):
    """From `begin` to before `end` the target had so much; `shadow` None is not known."""

    begin: float
    end: float
    capacity: int
    shadow: int | None = None


def spans_of(seen: Iterable[CapacityEntry], hold: float) -> list[Span]:
    """A reading holds until the next one, and at most `hold` seconds: where the log is silent for longer, nothing is known.
    The last one is the end. Entries may come in any order, and twice.
    """
    readings = sorted(
        (
            (entry.at, entry.kind, entry.capacity, entry.shadow)
            for entry in seen
            if entry.capacity is not None
        ),
        key=lambda reading: (*reading[:3], -1 if reading[3] is None else reading[3]),
    )
    spans, shadow = [], None
    for (at, kind, capacity, imagined), (later, *_) in pairwise(readings):
        shadow = imagined if kind == "decision" else shadow
        if later > at and capacity is not None:
            spans.append(Span(at, min(later, at + hold), capacity, shadow))
    return spans


class Hour(Struct):
    """An hour of UTC that begins at `start`. Seconds that are known, capacity times seconds, and the highest capacity; the same
    of the shadow, and of the capacity while the shadow is known. `used` is the highest use in the log, in the unit.
    """

    start: float
    known: float = 0.0
    integral: float = 0.0
    highest: int = 0
    shadow_known: float = 0.0
    shadow_integral: float = 0.0
    shadow_highest: int = 0
    beside_integral: float = 0.0
    beside_highest: int = 0
    used: float | None = None

    def add(self, span: Span) -> None:
        seconds = span.end - span.begin
        self.known += seconds
        self.integral += span.capacity * seconds
        self.highest = max(self.highest, span.capacity)
        if span.shadow is not None:
            self.shadow_known += seconds
            self.shadow_integral += span.shadow * seconds
            self.shadow_highest = max(self.shadow_highest, span.shadow)
            self.beside_integral += span.capacity * seconds
            self.beside_highest = max(self.beside_highest, span.capacity)


def cut(span: Span) -> Iterator[Span]:
    begin = span.begin
    while begin < span.end:
        end = min(begin - begin % HOUR + HOUR, span.end)
        yield Span(begin, end, span.capacity, span.shadow)
        begin = end


def hours_of(spans: Iterable[Span], seen: Iterable[CapacityEntry], used: str | None) -> list[Hour]:
    """The hours of which something is known, in order. `used` names the metric that counts the use."""
    hours: dict[float, Hour] = {}
    for span in spans:
        for part in cut(span):
            start = part.begin - part.begin % HOUR
            hours.setdefault(start, Hour(start)).add(part)
    for entry in seen:
        hour = hours.get(entry.at - entry.at % HOUR)
        value = entry.metrics.get(used) if used is not None else None
        if hour is not None and value is not None:
            hour.used = max(hour.used or 0.0, value)
    return [hours[start] for start in sorted(hours)]


class Change(Struct, frozen=True):
    """The capacity went from `before` to `after` at `at`, and stayed for `held` known seconds until `end`. `reason` and `line` are
    of the decision that asked for it; empty where the log has none.
    """

    at: float
    end: float
    before: int
    after: int
    held: float
    reason: str
    line: str


def changes_of(spans: Sequence[Span], seen: Iterable[CapacityEntry], hold: float) -> list[Change]:
    wishes = sorted(
        (entry for entry in seen if entry.kind == "decision" and entry.desired not in (None, entry.current)),
        key=lambda entry: (entry.at, entry.line),
    )
    edges = [
        place
        for place, (one, next_) in enumerate(pairwise(spans), start=1)
        if one.capacity != next_.capacity and next_.begin - one.end <= hold
    ]
    changes, wish = [], 0
    for place, following in zip(edges, [*edges, len(spans)][1:], strict=True):
        at, capacity = spans[place].begin, spans[place].capacity
        # A capacity that changed while the log was silent is no change of the log's.
        same = next((n for n in range(place, following) if spans[n].capacity != capacity), following)
        held = spans[place:same]
        while wish < len(wishes) and wishes[wish].at <= at:
            wish += 1
        asked = wishes[wish - 1] if wish and wishes[wish - 1].desired == capacity else None
        reason_and_line = ("", "") if asked is None else (asked.reason, asked.line)
        seconds = sum(span.end - span.begin for span in held)
        changes.append(
            Change(at, held[-1].end, spans[place - 1].capacity, capacity, seconds, *reason_and_line)
        )
    return changes
