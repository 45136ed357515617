"""Which candidate to take, and whether it is really better than what runs now. Pure; chance comes as `rng`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import numpy as np
from msgspec import Struct

from tidemark.analysis.backtest.candidates.grid import BASELINE
from tidemark.analysis.backtest.replay.score import Blocks, Row, Score

RESAMPLES = 2000
"""Bootstrap samples: the ends of a 95 % interval are then known to about a hundredth of its width."""

CONFIDENCE = 0.95

FEWEST_BLOCKS = 8
"""Blocks below which nothing is said: resampling fewer understates chance badly."""


class Verdict(StrEnum):
    """How a recommendation does on the held-out part. `VERDICTS` puts each in words."""

    BETTER = "better"
    TRADE_OFF = "trade_off"
    NO_DIFFERENCE = "no_difference"
    WORSE = "worse"
    SAME = "same"
    TOO_SHORT = "too_short"


VERDICTS: dict[Verdict, str] = {
    Verdict.BETTER: "better: fewer late messages, a lower cost or both, and neither is proven worse",
    Verdict.TRADE_OFF: "a trade-off: one of late messages and cost got better, the other worse",
    Verdict.NO_DIFFERENCE: "it does not beat the running policy: the differences may be chance",
    Verdict.WORSE: "worse than the running policy: more late messages, a higher cost or both, and neither is proven better; keep the running policy",
    Verdict.SAME: "the running policy is the best of the grid",
    Verdict.TOO_SHORT: "the held-out part is too short to tell; record more history",
}


def in_short(verdict: Verdict) -> str:
    return VERDICTS[verdict].partition(":")[0].partition(";")[0]


class Difference(Struct, frozen=True):
    """A mean difference per block with its confidence interval; negative is less than the baseline."""

    mean: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """-1 or 1 where the interval leaves out zero, else 0."""
        return -1 if self.high < 0 else 1 if self.low > 0 else 0


class Judged(Struct, frozen=True):
    """The verdict on a recommendation, with what it rests on (None where the part was too short)."""

    verdict: Verdict
    late: Difference | None = None
    cost: Difference | None = None


class Choice(Struct, frozen=True):
    """One target (or all of them together): every candidate's scores, best first on the training part.

    `front` names the candidates of which no other is at least as good in late messages, cost and actions.
    """

    target: str
    ranking: tuple[str, ...]
    front: frozenset[str]
    training: Mapping[str, Score]
    held_out: Mapping[str, Score]
    candidates: int
    """All that were ranked. Where there are too many targets to hold all their scores, the mappings have only some."""

    @property
    def recommended(self) -> str:
        return self.ranking[0]


def choose(rows: Iterable[Row], *, late_budget: float) -> dict[str, Choice]:
    """The choice for every target, by name. Only the training part decides."""
    scores: dict[str, dict[str, dict[str, Score]]] = {}
    for row in rows:
        scores.setdefault(row.target, {"training": {}, "held_out": {}})[row.part][row.candidate] = row.score
    return {
        target: _choice(target, parts["training"], parts["held_out"], late_budget)
        for target, parts in sorted(scores.items())
    }


def choose_for_all(choices: Mapping[str, Choice], *, name: str, late_budget: float) -> Choice:
    """One candidate for all targets: the scores are added up."""
    first = next(iter(choices.values()))
    training = {c: total(choice.training[c] for choice in choices.values()) for c in first.training}
    held_out = {c: total(choice.held_out[c] for choice in choices.values()) for c in first.held_out}
    return _choice(name, training, held_out, late_budget)


def _choice(
    target: str, training: Mapping[str, Score], held_out: Mapping[str, Score], late_budget: float
) -> Choice:
    order = sorted(
        training, key=lambda name: (*rank_key(training[name], late_budget), name != BASELINE, name)
    )
    return Choice(target, tuple(order), pareto_front(training), training, held_out, len(order))


def rank_key(score: Score, late_budget: float) -> tuple[float, ...]:
    """Smaller is better. Within the budget of late messages the cheapest, beyond it the least late; then the calmest."""
    if score.late_share <= late_budget:
        return (0.0, score.cost, score.late, float(score.actions))
    return (1.0, score.late, score.cost, float(score.actions))


def pareto_front(scores: Mapping[str, Score]) -> frozenset[str]:
    """The candidates of which no other is at least as good in all of late messages, cost and actions, and better in one."""
    points = sorted(((s.late, s.cost, float(s.actions)), name) for name, s in scores.items())
    front: list[tuple[tuple[float, float, float], str]] = []
    for point, name in points:  # sorted, so whoever dominates a point has come before it
        if not any(_dominates(other, point) for other, _ in front):
            front.append((point, name))
    return frozenset(name for _, name in front)


def _dominates(a: tuple[float, float, float], b: tuple[float, float, float]) -> bool:
    return a != b and all(x <= y for x, y in zip(a, b, strict=True))


def total(scores: Iterable[Score]) -> Score:
    """Several scores as one; the greatest age is the greatest of all."""
    listed = list(scores)
    sums = {name: sum(getattr(score, name) for score in listed) for name in Score.__struct_fields__}
    return Score(**{**sums, "oldest": max(score.oldest for score in listed)})


def judge(recommended: str, ours: Blocks, theirs: Blocks, rng: np.random.Generator) -> Judged:
    """Compares the recommended candidate (`ours`) with the baseline (`theirs`) block by block.

    A moving-block bootstrap of the paired differences: neighbouring blocks resemble each other, so runs of them are
    drawn, as long as the cube root of their number (Hall, Horowitz and Jing 1995).
    """
    if recommended == BASELINE:
        return Judged(Verdict.SAME)
    # With different collection intervals, the last block may be whole for one of them only.
    count = min(len(ours.late), len(theirs.late))
    if count < FEWEST_BLOCKS:
        return Judged(Verdict.TOO_SHORT)
    run = round(count ** (1 / 3))
    late = bootstrap(np.subtract(ours.late[:count], theirs.late[:count]), rng, run=run)
    cost = bootstrap(np.subtract(ours.cost[:count], theirs.cost[:count]), rng, run=run)
    return Judged(verdict_of(late.sign, cost.sign), late, cost)


def judge_all(recommended: str, choices: Sequence[Choice], rng: np.random.Generator) -> Judged:
    """Compares one candidate for all targets with the baseline, target by target of the held-out parts."""
    if recommended == BASELINE:
        return Judged(Verdict.SAME)
    if len(choices) < FEWEST_BLOCKS:
        return Judged(Verdict.TOO_SHORT)
    pairs = [(c.held_out[recommended], c.held_out[BASELINE]) for c in choices]
    late = bootstrap(np.array([ours.late - theirs.late for ours, theirs in pairs]), rng, run=1)
    cost = bootstrap(np.array([ours.cost - theirs.cost for ours, theirs in pairs]), rng, run=1)
    return Judged(verdict_of(late.sign, cost.sign), late, cost)


def verdict_of(late: int, cost: int) -> Verdict:
    """By the signs of the two differences."""
    if late == cost == 0:
        return Verdict.NO_DIFFERENCE
    if late <= 0 and cost <= 0:
        return Verdict.BETTER
    return Verdict.WORSE if late >= 0 and cost >= 0 else Verdict.TRADE_OFF


def bootstrap(
    differences: np.typing.NDArray[np.float64], rng: np.random.Generator, *, run: int
) -> Difference:
    """The mean and its percentile interval, from circular runs of `run` neighbours."""
    count = len(differences)
    pieces = -(-count // run)
    starts = rng.integers(0, count, size=(RESAMPLES, pieces))
    index = (starts[:, :, None] + np.arange(run)) % count
    means = differences[index.reshape(RESAMPLES, -1)[:, :count]].mean(axis=1)
    tail = (1.0 - CONFIDENCE) / 2
    low, high = np.quantile(means, (tail, 1.0 - tail))
    return Difference(float(differences.mean()), float(low), float(high))
