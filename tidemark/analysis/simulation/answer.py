"""What a replay of each policy costs and how late it is, which policy to take, and the best trade-off. Pure.

One number orders policies that cost and are late: the score by which `service_level` chooses its own safety factor,

    log(instance-hours) + PRICE * spent + OVER * (spent - RESERVE, if above)        spent = late share / allowed share

So a whole budget of late messages weighs as much as a fourteenth of the bill, and what is beyond three quarters of it
twice that. The best trade-off is the objective with the lowest score: cheaper objectives save money by lateness that weighs
more, dearer ones hardly save any late message. Only objectives that ask for no less than the target's own compete; of
several whose scores are within two per cent of the lowest, it is the one nearest to the target's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, log
from zlib import crc32

import numpy as np
from msgspec import Struct

from scaling.rules.service_level.candidates import score
from scaling.rules.service_level.memory import Candidate
from tidemark.analysis.simulation.field import OFTENER, TODAY, Entry, Target
from tidemark.analysis.simulation.load import Load, by_second
from tidemark.analysis.simulation.waits import Series, series_of, waits_of
from tidemark.analysis.simulation.world import Run

WORTH = 0.02
"""A score that is better by less is no reason to change anything: two per cent of the bill."""


class Recorded(Struct, frozen=True):
    """The load of a target: messages in bins of `width` seconds from `begin` on (seconds since the epoch; NaN: not known),
    and `first` instances at its begin.
    """

    begin: float
    width: int
    bins: list[float]
    first: int

    def load(self, name: str) -> Load:
        """By the second; the noise within a bin is the same for the same name."""
        return by_second(np.array(self.bins), self.width, np.random.default_rng(crc32(name.encode())))


class Row(Struct, frozen=True):
    """One policy on the load. `late` is the share of messages that waited longer than the objective's wait; `longest` and
    `slow` are seconds that the slowest message waited, and the slowest but for one in a hundred: None where that is longer
    than the replay. `objective` is (wait, late) of a point of the curve.
    """

    policy: str
    instance_hours: float
    late: float
    longest: float | None
    slow: float | None
    actions_per_hour: float
    flaps_per_hour: float
    score: float
    objective: tuple[float, float] | None
    series: Series


def play(target: Target, recorded: Recorded, load: Load, entry: Entry) -> Row:
    """Replays the load under one policy."""
    policy = entry.policy(target, recorded.begin)
    run = Run(load.arrivals, policy, target.model, recorded.first, load.parts).replay()
    outcome, waits = run.outcome(), waits_of(run)
    messages = float(run.arrived[run.length])
    candidate = Candidate(cost=3600.0 * outcome.instance_hours, late=outcome.late * messages)
    return Row(
        entry.name,
        outcome.instance_hours,
        outcome.late,
        waits.longest if isfinite(waits.longest) else None,
        waits.slow if isfinite(waits.slow) else None,
        outcome.actions_per_hour,
        outcome.flaps_per_hour,
        score(candidate, messages, target.late),
        entry.objective,
        series_of(run),
    )


class Choice(Struct, frozen=True):
    """What to take: `taken` is the best trade-off, or today's policy where that is as good. `why` in a sentence."""

    best_trade_off: str
    taken: str
    why: str


def choose(target: Target, rows: Sequence[Row]) -> Choice:
    curve = [row for row in rows if row.objective is not None]
    asked = [row for row in curve if (row.objective or (0.0, 0.0))[1] <= target.late * (1.0 + 1e-9)]
    lowest = min(row.score for row in asked)
    best = min((row for row in asked if row.score <= lowest + WORTH), key=lambda row: _distance(row, target))
    today = next((row for row in rows if row.policy == TODAY), None)
    if today is not None and today.score <= best.score + WORTH:
        better = "as good as" if today.score >= best.score - WORTH else "better than"
        why = f"{TODAY} is {better} {best.policy} on this load: stay with it"
        return Choice(best.policy, TODAY, why + _hint(rows, today))
    why = f"the best trade-off is {best.policy}"
    if today is not None:
        why += f", better than {TODAY}: {_difference(best, today)}"
    if best.late > target.late:
        why += (
            f". It is late with {100 * best.late:.2g} % of {100 * target.late:.3g} % allowed: "
            "bursts within the start-up time are met by a minimum or a schedule only, a load beyond the maximum by a higher one"
        )
    return Choice(best.policy, best.policy, why + _hint(rows, best))


def _hint(rows: Sequence[Row], taken: Row) -> str:
    """That more frequent evaluation would be better than what is taken; empty where it would not."""
    oftener = next((row for row in rows if row.policy == OFTENER), None)
    if oftener is None or oftener.score >= taken.score - WORTH:
        return ""
    return f". {oftener.policy} (the setting COLLECT_SCHEDULE) would be better still: {_difference(oftener, taken)}"


def _distance(row: Row, target: Target) -> tuple[float, float]:
    """How far a point's objective is from the one that is asked for; of two that are as far, the cheaper one."""
    wait, late = row.objective or (target.wait, target.late)
    return round(abs(log(wait / target.wait)) + abs(log(late / target.late)), 6), row.instance_hours


def _difference(row: Row, today: Row) -> str:
    saved = 100.0 * (1.0 - row.instance_hours / today.instance_hours)
    cost = f"{abs(saved):.3g} % {'fewer' if saved >= 0 else 'more'} instance-hours"
    return f"{cost}, {100 * row.late:.2f} % late instead of {100 * today.late:.2f} %"


def frontier(rows: Sequence[Row]) -> list[Row]:
    """Those that none other beats in both, the cheapest first."""
    found: list[Row] = []
    for row in sorted(rows, key=lambda row: (row.instance_hours, row.late)):
        if not found or row.late < found[-1].late:
            found.append(row)
    return found
