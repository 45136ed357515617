"""What a replay of each policy costs and how late it is, which policy to take, and the best trade-off. Pure.

One number orders policies that cost and are late: the score by which `service_level` chooses its own safety factor,

    log(instance-hours) + PRICE * spent + OVER * (spent - RESERVE, if above)        spent = late share / allowed share

`WEIGHT` says it in words. Only policies that keep the objective compete; where none does, none is recommended. The best trade-off is
the one with the lowest score: cheaper ones save money by lateness that weighs more, dearer ones hardly save any late message.
Objectives that ask for less than the target's own compete only where no other keeps it, and so do policies that are evaluated more
often; of several whose scores are within two per cent of the lowest, it is the one nearest to the target's own objective.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, log
from zlib import crc32

import numpy as np
from msgspec import Struct, structs

from scaling.rules.service_level.candidates import RESERVE, TRADES, score
from scaling.rules.service_level.memory import Candidate
from tidemark.analysis.simulation.field import TODAY, Entry, Target
from tidemark.analysis.simulation.judged import JudgedRun
from tidemark.analysis.simulation.load import Load, by_second
from tidemark.analysis.simulation.peers import AllTheTime
from tidemark.analysis.simulation.waits import Series, series_of, waits_of

WORTH = 0.02
"""A score that is better by less is no reason to change anything: two per cent of the bill."""

_TRADE = TRADES["balanced"]
WEIGHT = (
    f"a whole budget of late messages weighs as much as {100 * (_TRADE.price + _TRADE.over * (1.0 - RESERVE)):g} % of the bill (its last "
    f"quarter counts about double), and each further one as much as {100 * (_TRADE.price + _TRADE.over):g} %"
)
"""How the score trades late messages for money, by the numbers of `TRADES`; the docs say the same."""


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
    than the replay. `objective` is (wait, late) of a point of the curve, `ours` and `oftener` as in `field.Entry`. `stopped` is the share
    of the messages that scale-ins stop while they are processed, if these are spread evenly over the instances.
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
    ours: bool = False
    oftener: bool = False
    stopped: float = 0.0


def play(target: Target, recorded: Recorded, load: Load, entry: Entry) -> Row:
    """Replays the load under one policy."""
    policy = entry.policy(target, recorded.begin)
    run = JudgedRun(load.arrivals, policy, target.model, recorded.first, load.parts).replay()
    outcome, waits = run.outcome(), waits_of(run)
    messages = float(run.arrived[run.length])
    # Who lets messages wait at the end would else be cheaper by work that it leaves to the time after it.
    hours = outcome.instance_hours + run.waiting_at_end / target.service_rate / 3600.0
    candidate = Candidate(cost=3600.0 * hours, late=outcome.late * messages)
    return Row(
        entry.name,
        hours,
        outcome.late,
        waits.longest if isfinite(waits.longest) else None,
        waits.slow if isfinite(waits.slow) else None,
        outcome.actions_per_hour,
        outcome.flaps_per_hour,
        score(candidate, messages, target.late, _TRADE),
        entry.objective,
        series_of(run),
        entry.ours,
        entry.oftener,
        outcome.aborted,
    )


def causes(target: Target, recorded: Recorded, entry: Entry) -> str:
    """Why a policy is late, by replays: with the maximum all the time, and with instances that serve at once."""
    load, first = recorded.load(target.name), recorded.first
    at_once = structs.replace(target, start_up=0.0).model
    policy = entry.policy(target, recorded.begin)
    late = JudgedRun(load.arrivals, policy, at_once, first, load.parts).replay().outcome().late
    most = late_at_maximum(target, load)
    all_the_time = (
        f"with the maximum, {target.maximum} instances, all the time {100 * most:.2f} % would be late"
    )
    if most > target.late:
        return f"{all_the_time}: the objective takes a higher maximum or a longer --wait"
    served = f"with instances that serve at once {entry.name} would be late with {100 * late:.2f} %"
    if late <= target.late:
        return f"{served}: what starts too late is there in time by a higher minimum, a schedule, or a shorter start-up"
    return f"{served}, and {all_the_time}: a higher minimum keeps the objective"


def late_at_maximum(target: Target, load: Load) -> float:
    """The share of late messages with the maximum all the time: no policy has fewer."""
    run = JudgedRun(load.arrivals, AllTheTime(), target.model, target.maximum, load.parts)
    return run.replay().outcome().late


class Choice(Struct, frozen=True):
    """What to take: `taken` is the best trade-off, or today's policy where that is as good. Both are None where no policy keeps the
    objective. `shown` is the policy to show beside today's: the best trade-off, or the one that is late least. `why` in a sentence.
    """

    best_trade_off: str | None
    taken: str | None
    shown: str
    why: str


def choose(target: Target, rows: Sequence[Row]) -> Choice:
    if not any(keeps(row, target) for row in rows):
        return _nonekeeps(target, rows)
    best = _best(target, _competing(target, rows))
    today = next((row for row in rows if row.policy == TODAY), None)
    if today is not None and today.score <= best.score + WORTH and keeps(today, target):
        better = "as good as" if today.score >= best.score - WORTH else "better than"
        why = f"{TODAY} is {better} {best.policy} on this load: stay with it"
        if today is best:
            why = f"{_alone(target, rows, today)}: stay with it"
        return Choice(best.policy, TODAY, best.policy, why + _hint(target, rows, today))
    why = f"the best trade-off is {best.policy}" if best.ours else _alone(target, rows, best)
    why += _how(best)
    if today is not None:
        kept = keeps(today, target)
        beats = f"better than {TODAY}" if kept else f"which keeps the objective where {TODAY} does not"
        why += f", {beats}: {_difference(best, today)}"
    return Choice(best.policy, best.policy, best.policy, why + _hint(target, rows, best))


def _alone(target: Target, rows: Sequence[Row], best: Row) -> str:
    """Of the best one, where no rule of ours that was tried keeps the objective."""
    kept = [row.policy for row in rows if keeps(row, target)]
    if kept == [TODAY]:
        return f"only {TODAY} keeps the objective"
    if len(kept) == 1:
        return f"only {best.policy} keeps the objective, and no rule of Tidemark does"
    if TODAY not in kept:
        return f"no rule of Tidemark keeps the objective; of the others that do {best.policy} is the best trade-off"
    return f"no rule of Tidemark but {TODAY} keeps the objective; of those that do {best.policy} is the best trade-off"


def _nonekeeps(target: Target, rows: Sequence[Row]) -> Choice:
    """No winner: which is late least, and how late."""
    least = min(rows, key=lambda row: (row.late, row.instance_hours))
    late = f"{100 * least.late:.3g} % late of {100 * target.late:.3g} % allowed"
    why = f"no policy of this table keeps the objective, so none is recommended. {least.policy}{_how(least)} is late least: {late}"
    return Choice(None, None, least.policy, why)


def _how(row: Row) -> str:
    """The setting that more frequent evaluation takes."""
    return " (the setting COLLECT_SCHEDULE)" if row.oftener else ""


def keeps(row: Row, target: Target) -> bool:
    """Whether a policy kept the objective."""
    return row.late <= target.late * (1.0 + 1e-9)


def _competing(target: Target, rows: Sequence[Row]) -> list[Row]:
    """Those that keep the objective: what asks for no less, else ours, else any."""
    ours = [row for row in rows if row.ours]
    usual = [
        row
        for row in ours
        if not row.oftener and (row.objective or (0.0, 0.0))[1] <= target.late * (1.0 + 1e-9)
    ]
    kept = ([row for row in each if keeps(row, target)] for each in (usual, ours, rows))
    return next(found for found in kept if found)


def _best(target: Target, rows: Sequence[Row]) -> Row:
    lowest = min(row.score for row in rows)
    return min((row for row in rows if row.score <= lowest + WORTH), key=lambda row: _distance(row, target))


def _hint(target: Target, rows: Sequence[Row], taken: Row) -> str:
    """That more frequent evaluation would be better than what is taken; empty where it would not."""
    oftener = [row for row in rows if row.oftener and keeps(row, target)]
    best = min(oftener, key=lambda row: row.score, default=None)
    if best is None or taken.oftener or best.score >= taken.score - WORTH:
        return ""
    return f". {best.policy}{_how(best)} would be better still: {_difference(best, taken)}"


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
