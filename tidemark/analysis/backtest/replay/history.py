"""The load of a target: arrivals by bins of time, recovered from backlogs where only these were recorded. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import isfinite, nan
from statistics import median, quantiles

from msgspec import Struct, structs

from tidemark.foundation.wording import count_text, percent_text, time_text

SATURATED_BINS = 20
"""Bins with all instances busy that an estimate of the service rate needs: below, its quartiles say nothing."""


class HistoryError(ValueError):
    """A recorded history cannot be replayed; the text says what was found and what is accepted."""


class History(Struct, frozen=True):
    """The load of one target: `arrivals` messages in each bin of `step` seconds from `start` (epoch, UTC).

    NaN is a bin of which nothing is known. `metrics` are other recorded metrics of the target, one value at the end
    of each bin (NaN: not known); they do not react to what the replay decides. `backlog` and `instances` are those
    at `start`; `instances` is None where it was not recorded. `notes` say what was assumed.
    """

    target: str
    start: float
    step: float
    arrivals: list[float]
    backlog: float = 0.0
    instances: int | None = None
    metrics: dict[str, list[float]] = {}
    notes: tuple[str, ...] = ()

    @property
    def end(self) -> float:
        return self.start + self.step * len(self.arrivals)


class Reading(Struct, frozen=True):
    """One recorded row of a target; None is not known. `arrivals` begin at `at` (seconds since the epoch); messages
    waiting and the instances there were are as of `at`.
    """

    at: float
    arrivals: float | None = None
    backlog: float | None = None
    instances: int | None = None
    metrics: Mapping[str, float] = {}


def from_arrivals(target: str, counts: Sequence[tuple[float, float]]) -> History:
    """A history of (begin of a bin, arrivals in it), in any order; bins that are not there are unknown, not zero.

    The bins' width is the smallest distance between two of them. Raises HistoryError.
    """
    for at, value in counts:
        if not (isfinite(at) and isfinite(value) and value >= 0):
            raise HistoryError(
                f"{target}: {value} arrivals at {at}; accepted are finite numbers of 0 or more"
            )
    known = dict(sorted(counts))
    if len(known) < len(counts):
        raise _given_twice(target, sorted(at for at, _ in counts))
    width = _width(target, list(known))
    first = next(iter(known))
    bins = [nan] * (round((next(reversed(known)) - first) / width) + 1)
    for at, value in known.items():
        bins[_index(target, at - first, width)] = value
    return History(target, first, width, bins)


def _given_twice(target: str, times: Sequence[float]) -> HistoryError:
    twice = [at for at, later in pairwise(times) if at == later]
    width = min((later - at for at, later in pairwise(times) if later > at), default=0.0)
    local = (
        ""
        if len(twice) * width != 3600
        else (
            ". It is an hour of them: local times have one twice where summer time ends; write them with their zone, or in UTC"
        )
    )
    return HistoryError(
        f"{target}: {count_text(len(twice), 'bin')} given twice, the first one that of {time_text(twice[0])}; one row per bin "
        f"is accepted{local}"
    )


def _width(target: str, times: Sequence[float]) -> float:
    if not times:
        raise HistoryError(f"{target}: the history is empty; at least two bins are needed")
    distances = [later - earlier for earlier, later in pairwise(times)]
    if not distances:
        raise HistoryError(
            f"{target}: one bin, at {time_text(times[0])}; at least two are needed to tell their width"
        )
    return min(distances)


def _index(target: str, offset: float, width: float) -> int:
    index = round(offset / width)
    if abs(offset / width - index) > 1e-6:
        raise HistoryError(
            f"{target}: the bin {offset:g} s after the first does not lie on the grid of {width:g} s that the others have"
        )
    return index


def from_backlog(
    target: str,
    readings: Sequence[Reading],
    *,
    step: float,
    service_rate: float,
    idle_utilization: float | None = None,
) -> History:
    """Arrivals from backlogs: what the backlog grew by, plus what the instances served meanwhile.

    While messages wait at both ends of a bin all instances are busy, and serve `service_rate` messages per second
    each. When none waited at one of the ends, they had less to do, and a backlog does not tell how much less:
    `idle_utilization` (0 to 1) is the share of their capacity assumed, and None is refused where it is needed.
    A bin with an end or a capacity not recorded is unknown. Raises HistoryError.
    """
    idle = 0

    def served(old: float, new: float, instances: int) -> float:
        nonlocal idle
        capacity = instances * service_rate * step
        if old and new:
            return capacity
        idle += 1
        return min(capacity, max(old - new, capacity * (idle_utilization or 0.0)))

    history = _recovered(target, readings, step, served)
    bins = len(history.arrivals)
    if idle and idle_utilization is None:
        raise HistoryError(
            f"{target}: nothing waited in {idle} of {bins} bins, and how busy the instances were then is not in a "
            "backlog. Give idle_utilization (0 to 1, of their capacity), or a history with arrivals"
        )
    notes = [f"arrivals are recovered from backlogs, at {service_rate:g} messages per second and instance"]
    if idle:
        notes.append(
            f"in {idle} of {bins} bins nothing waited; there {percent_text(idle_utilization or 0.0, 0)} of the capacity is assumed as load"
        )
    return structs.replace(history, notes=tuple(notes))


def from_active(
    target: str, readings: Sequence[Reading], *, step: float, service_rate: float, concurrency: float
) -> History:
    """As `from_backlog`, from backlogs that count messages waiting and being processed, as Service Bus' active count does. An
    instance that processes `concurrency` messages at once serves `service_rate` of them per second; with fewer there, it
    serves as many fewer (Little's law). Raises HistoryError.
    """

    def served(old: float, new: float, instances: int) -> float:
        return service_rate * min((old + new) / 2.0 / concurrency, instances) * step

    note = (
        f"arrivals are recovered from backlogs: what these grew by, and what the instances served, "
        f"{concurrency:g} messages at once each"
    )
    return structs.replace(_recovered(target, readings, step, served), notes=(note,))


def _recovered(
    target: str, readings: Sequence[Reading], step: float, served: Callable[[float, float, int], float]
) -> History:
    """`served` gives the messages served in a bin, from the backlogs at its ends and the instances there were."""
    slots = _slots(target, readings, step)
    if len(slots) < 2:
        raise HistoryError(f"{target}: {len(slots)} readings of the backlog; at least two are needed")
    bins: list[float] = []
    for before, after in pairwise(slots):
        if before is None or after is None or before.instances is None:
            bins.append(nan)
            continue
        old, new = before.backlog or 0.0, after.backlog or 0.0
        bins.append(max(new - old + served(old, new, before.instances), 0.0))
    first = next(slot for slot in slots if slot is not None)
    names = sorted({name for slot in slots if slot is not None for name in slot.metrics})
    others = {
        name: [nan if slot is None else slot.metrics.get(name, nan) for slot in slots[1:]] for name in names
    }
    return History(target, first.at, step, bins, first.backlog or 0.0, first.instances, others)


def _slots(target: str, readings: Sequence[Reading], step: float) -> list[Reading | None]:
    """The last reading in each slot of `step` seconds, the slots being centred on multiples from the first."""
    known = sorted((o for o in readings if o.backlog is not None), key=lambda o: o.at)
    if not known:
        raise HistoryError(f"{target}: the history has no reading of the backlog")
    for reading in known:
        if not (isfinite(reading.backlog or 0.0) and (reading.backlog or 0.0) >= 0):
            raise HistoryError(
                f"{target}: backlog {reading.backlog} at {reading.at:.0f}; accepted are 0 or more"
            )
    first = known[0].at
    slots: list[Reading | None] = [None] * (round((known[-1].at - first) / step) + 1)
    for reading in known:
        slots[round((reading.at - first) / step)] = reading
    return slots


class RateEstimate(Struct, frozen=True):
    """Messages per second of one busy instance: the median of `bins` saturated bins, with their quartiles."""

    rate: float
    low: float
    high: float
    bins: int

    def __str__(self) -> str:
        return (
            f"{self.rate:.4g} messages/s per instance (half of {self.bins} saturated bins: "
            f"{self.low:.4g} to {self.high:.4g})"
        )


def estimate_service_rate(target: str, history: History, readings: Sequence[Reading]) -> RateEstimate:
    """What one instance serves while all are busy, from arrivals and backlogs of the same time.

    A bin counts as saturated when more waits at both of its ends than was served in it: the instances were never
    without work. Raises HistoryError where fewer than SATURATED_BINS are.
    """
    slots = _slots(target, readings, history.step)
    offset = round(((slots[0].at if slots[0] else 0.0) - history.start) / history.step)
    rates: list[float] = []
    for index, (before, after) in enumerate(pairwise(slots)):
        bin_ = index + offset
        if before is None or after is None or not before.instances or not 0 <= bin_ < len(history.arrivals):
            continue
        old, new = before.backlog or 0.0, after.backlog or 0.0
        served = history.arrivals[bin_] - (new - old)
        if served > 0 and min(old, new) >= served and before.instances == after.instances:
            rates.append(served / history.step / before.instances)
    if len(rates) < SATURATED_BINS:
        raise HistoryError(
            f"{target}: the service rate cannot be estimated: all instances were busy in {len(rates)} bins, "
            f"{SATURATED_BINS} are needed. Give service_rate (messages per second of one busy instance)"
        )
    low, _, high = quantiles(rates, n=4)
    return RateEstimate(median(rates), low, high, len(rates))
