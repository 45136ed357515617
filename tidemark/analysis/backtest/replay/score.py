"""What a replay cost and whom it kept waiting. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Struct

from tidemark.analysis.backtest.replay.fleet import Model
from tidemark.analysis.backtest.replay.load import Floats, Load, Waiting, known_spans, steps_between
from tidemark.analysis.backtest.replay.simulate import Change, Trajectory

ROUNDING = 1e-9
"""Relative difference of two counts of messages that means nothing."""

HOUR = 3600.0


class Score(Struct, frozen=True):
    """One candidate over one span of one history. Gaps are left out of everything.

    `messages` reached the age of the objective within the span, `late` of them were still waiting then.
    `missed` are seconds in which the oldest message was older than the objective, `oldest` its greatest age (s).
    `instance_hours` include instances that start; `cost` is their price. `out` and `inward` count changes of capacity,
    `flaps` those that undid the one before within the model's window. `hours` is the known time.
    """

    messages: float
    late: float
    missed: float
    oldest: float
    instance_hours: float
    cost: float
    out: int
    inward: int
    flaps: int
    hours: float

    @property
    def actions(self) -> int:
        return self.out + self.inward

    @property
    def late_share(self) -> float:
        """Of the messages whose fate is known; 0 where there were none."""
        return self.late / self.messages if self.messages else 0.0


Part = Literal["training", "held_out"]


class Row(Struct, frozen=True):
    """The score of one candidate over one part of one target's history."""

    target: str
    candidate: str
    part: Part
    score: Score


def flat(row: Row) -> dict[str, Any]:
    """A row as one line of a table."""
    line = msgspec.structs.asdict(row)
    return line | msgspec.structs.asdict(line.pop("score"))


def row_of(line: Mapping[str, Any]) -> Row:
    """From what `flat` made."""
    score = Score(**{name: line[name] for name in Score.__struct_fields__})
    return Row(line["target"], line["candidate"], line["part"], score)


class Blocks(Struct, frozen=True):
    """One replay by blocks of the held-out part: late messages and cost of each."""

    late: list[float]
    cost: list[float]


def scores(
    load: Load, waiting: Waiting, run: Trajectory, model: Model, edges: Sequence[float]
) -> list[Score]:
    """The scores of the spans between neighbouring times, ascending."""
    backlog: Floats = np.array(run.backlog)[1:][waiting.mask]
    late = late_by_step(waiting, backlog, load.history.backlog)
    missed = _cleaned(backlog - waiting.recent, backlog) > 0.0
    ages = waiting.ages(backlog)
    flaps = _flaps(run.changes, model.flap_window)
    # Index of a step among the known ones.
    place = np.concatenate(([0], np.cumsum(waiting.mask)))
    parts = []
    for begin, end in pairwise(edges):
        first, last = steps_between(load, begin, end)
        part = slice(int(place[first]), int(place[last]))
        changes = [c for c in run.changes if begin <= c.decided_at < end]
        hours = _instance_hours(run.billed, known_spans(load, first, last))
        parts.append(
            Score(
                messages=float(waiting.due[part].sum()),
                late=float(late[part].sum()),
                missed=float(missed[part].sum()) * load.step,
                oldest=float(ages[part].max(initial=0.0)),
                instance_hours=hours,
                cost=hours * model.price,
                out=sum(c.to_capacity > c.from_capacity for c in changes),
                inward=sum(c.to_capacity < c.from_capacity for c in changes),
                flaps=sum(begin <= at < end for at in flaps),
                hours=(part.stop - part.start) * load.step / HOUR,
            )
        )
    return parts


def late_by_step(waiting: Waiting, backlog: Floats, at_start: float) -> Floats:
    """Messages that reach the age of the objective in each known step, and still wait then.

    Queue first in, first out: a message that came `slo` ago still waits if more wait than have come since. Within a
    step both counts are taken to change evenly.
    """
    over: Floats = _cleaned(backlog - waiting.recent, backlog)
    # At the start everything that waits has just come.
    before: Floats = np.concatenate(([min(at_start - waiting.arrived[0], 0.0)], over[:-1]))
    high, low = np.maximum(over, before), np.minimum(over, before)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(low >= 0.0, 1.0, high / (high - low))
    return waiting.due * np.where(high > 0.0, share, 0.0)


def _cleaned(difference: Floats, scale: Floats) -> Floats:
    """Zero where a difference is only rounding."""
    return np.where(np.abs(difference) <= ROUNDING * np.maximum(scale, 1.0), 0.0, difference)


def _flaps(changes: Sequence[Change], window: float) -> list[float]:
    """When changes were decided that go back on the one before, soon after its effect."""
    return [
        change.decided_at
        for before, change in pairwise(changes)
        if (change.to_capacity > change.from_capacity) != (before.to_capacity > before.from_capacity)
        and change.decided_at - before.at <= window
    ]


def _instance_hours(billed: Sequence[tuple[float, int]], spans: Sequence[tuple[float, float]]) -> float:
    total = 0.0
    for begin, end in spans:
        for index, (since, count) in enumerate(billed):
            until = billed[index + 1][0] if index + 1 < len(billed) else end
            total += max(min(until, end) - max(since, begin), 0.0) * count
    return total / HOUR
