"""From the scores of all candidates to what is recommended: the part that Spark and one machine share. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from scaling.config.policy import PolicySpec
from tidemark.analysis.backtest.candidates.grid import BASELINE, Candidates, Plan, Targets, metric_of
from tidemark.analysis.backtest.candidates.recommend import (
    Choice,
    Judged,
    Verdict,
    choose_for_all,
    judge,
    judge_all,
)
from tidemark.analysis.backtest.candidates.variation import GridError, changes_text
from tidemark.analysis.backtest.replay.history import HistoryError
from tidemark.analysis.backtest.work import Comparing, Comparison, Settings, decisions
from tidemark.analysis.errors import InputError
from tidemark.foundation.settings_reader import ConfigError

EVERYWHERE = "all targets"
"""What one candidate for all of them is shown as the choice of."""

SEED = 20_170_705
"""Of the bootstrap's random numbers: the same scores give the same verdicts."""

PLOTTED_TARGETS = 5
"""Targets with plots of their own: those that pay most for the running policy."""


class Job(Struct, frozen=True):
    """A backtest ready to run: for every base policy its candidates, the metric that is the queue, and the seconds between two
    collections under the running policy.
    """

    settings: Settings
    candidates: Candidates
    metrics: dict[str, str]  # by base
    intervals: dict[str, float]  # by base
    base: str | None

    def base_of(self, target: str) -> str:
        return self.base or target

    def policies(self, target: str, first: int = 0, last: int | None = None) -> list[tuple[str, PolicySpec]]:
        return [(c.name, c.spec) for c in self.candidates.some(self.base_of(target), first, last)]

    def policy(self, target: str, name: str) -> PolicySpec:
        return self.candidates.named(self.base_of(target), name).spec

    def metric(self, target: str) -> str:
        return self.metrics[self.base_of(target)]

    def interval(self, target: str) -> float:
        return self.intervals[self.base_of(target)]

    def spans(self, targets: Collection[str], workers: int) -> Iterator[tuple[str, int, int]]:
        """All candidates by target and in their order, from one place to before another, cut so that there are about four
        tasks for each worker.
        """
        count = len(self.candidates.names)
        for target in sorted(targets):
            blocks = min(max(-(-4 * workers // len(targets)), 1), count)
            edges = [round(index * count / blocks) for index in range(blocks + 1)]
            yield from ((target, *span) for span in pairwise(edges))

    def scorings(
        self, targets: Collection[str], workers: int
    ) -> Iterator[tuple[str, list[tuple[str, PolicySpec]]]]:
        """The candidates of `spans`."""
        for target, first, last in self.spans(targets, workers):
            yield target, self.policies(target, first, last)

    def comparings(self, choices: Mapping[str, Choice]) -> Iterator[tuple[str, Comparing]]:
        drawn = set(plotted(choices))
        for target, choice in choices.items():
            both = self.policy(target, BASELINE), self.policy(target, choice.recommended)
            yield target, Comparing(*both, target in drawn)


def plan_job(plan: Plan, targets: Targets, recorded: Iterable[str], *, keep: bool = True) -> Job:
    """Candidates for every recorded target. Without `keep` those of many bases are neither built nor checked yet. Raises
    InputError.
    """
    try:
        return _planned(plan, targets, recorded, keep=keep)
    except (ConfigError, GridError, HistoryError) as error:
        raise InputError(str(error)) from error


def refused(problems: Iterable[str]) -> InputError:
    """Of all targets whose history cannot be replayed."""
    unique = sorted(set(problems))
    more = f"; and {len(unique) - 5} more targets" if len(unique) > 5 else ""
    return InputError("; ".join(unique[:5]) + more)


def _planned(plan: Plan, targets: Targets, recorded: Iterable[str], *, keep: bool) -> Job:
    names = sorted(recorded)
    if not names:
        raise HistoryError("the history is empty: it names no target")
    base = plan.rules.base
    bases = [base] if base is not None else names
    unknown = [name for name in bases if name not in targets.names]
    if unknown:
        raise HistoryError(
            f"{', '.join(unknown[:5])}{' and more' if len(unknown) > 5 else ''}: not in the configuration, which has "
            f"{', '.join(targets.names) or 'no targets'}. To replay every recorded target with one of these policies, "
            "set base in the grid"
        )
    running = {name: targets.baseline(name) for name in bases}
    metrics = {name: metric_of(spec, plan.rules.metric) for name, spec in running.items()}
    intervals = {name: spec.metrics[metrics[name]].window.interval for name, spec in running.items()}
    kept = bases if keep or base is not None else []
    candidates = Candidates(targets, plan, kept)
    for name in kept:
        candidates.check(name, metrics[name])
    settings = Settings(plan.rules, plan.model, plan.estimate_rate)
    return Job(settings, candidates, metrics, intervals, base)


class Analysis(Struct, frozen=True):
    """All that a report shows. `everywhere` is the one candidate for all targets, where there are several."""

    job: Job
    choices: dict[str, Choice]
    judged: dict[str, Judged]
    comparisons: dict[str, Comparison]
    everywhere: Choice | None
    judged_everywhere: Judged | None
    evaluations: int


def plotted(choices: Mapping[str, Choice], count: int = PLOTTED_TARGETS) -> list[str]:
    """The targets to draw: where the running policy and the recommended one differ, the most expensive first."""
    different = [c for c in choices.values() if c.recommended != BASELINE] or list(choices.values())
    return [c.target for c in sorted(different, key=lambda c: (-c.training[BASELINE].cost, c.target))[:count]]


def for_all(job: Job, choices: Mapping[str, Choice]) -> Choice | None:
    """The one candidate for all targets; None where there is one target, or they have other candidates."""
    same_names = len({tuple(sorted(c.training)) for c in choices.values()}) == 1
    if len(choices) < 2 or not same_names:
        return None
    return choose_for_all(choices, name=EVERYWHERE, late_budget=job.settings.rules.late_budget)


def analyse(
    job: Job,
    choices: dict[str, Choice],
    comparisons: Sequence[Comparison],
    everywhere: Choice | None,
    evaluations: int,
) -> Analysis:
    """Judges every recommendation on its held-out part. Each choice has the scores of what it recommends, of what runs, and of
    what `everywhere` recommends.
    """
    judged: dict[str, Judged] = {}
    for comparison in sorted(comparisons, key=lambda c: c.target):
        recommended = choices[comparison.target].recommended
        rng = np.random.default_rng(SEED)
        judged[comparison.target] = judge(recommended, comparison.recommended, comparison.baseline, rng)
    judged_everywhere = None
    if everywhere is not None:
        judged_everywhere = judge_all(
            everywhere.recommended, list(choices.values()), np.random.default_rng(SEED)
        )
    by_target = {c.target: c for c in comparisons}
    return Analysis(job, choices, judged, by_target, everywhere, judged_everywhere, evaluations)


def evaluations(job: Job, comparison: Comparison) -> int:
    """Ticks of all candidates of one target: what production would have evaluated."""
    metric = job.metric(comparison.target)
    return sum(
        decisions(comparison.begin, comparison.end, spec, metric)
        for _, spec in job.policies(comparison.target)
    )


LIMITED = {"unknown": "bins", "quarantined": "bins", "better": "targets", "undecided": "targets"}
"""What --allow knows, and what its shares are of. `unknown` are bins of the histories without a count; `better` are targets for
which the held-out part prefers another candidate to the running policy, `undecided` those for which it is too short to tell.
"""


def counts(analysis: Analysis) -> dict[str, float]:
    """The counts that --allow may limit, but for `quarantined`."""
    verdicts = [judged.verdict for judged in analysis.judged.values()]
    return {
        "targets": len(analysis.choices),
        "decisions": analysis.evaluations,
        "bins": sum(comparison.bins for comparison in analysis.comparisons.values()),
        "unknown": sum(comparison.unknown for comparison in analysis.comparisons.values()),
        "better": verdicts.count(Verdict.BETTER),
        "undecided": verdicts.count(Verdict.TOO_SHORT),
    }


class Advice(Struct, frozen=True):
    """One line of the table of recommendations; scores are of the held-out part."""

    target: str
    recommended: str
    verdict: str
    late_share: float
    late_share_running: float
    cost: float
    cost_running: float
    actions: int
    actions_running: int
    changes: str


def advice(analysis: Analysis) -> list[Advice]:
    """What to set for each target, and how it does on the held-out part."""
    lines = []
    for target, choice in analysis.choices.items():
        new, old = choice.held_out[choice.recommended], choice.held_out[BASELINE]
        verdict, changes = analysis.judged[target].verdict.value, changes_of(analysis, choice)
        scores = (new.late_share, old.late_share, new.cost, old.cost, new.actions, old.actions)
        lines.append(Advice(target, choice.recommended, verdict, *scores, changes))
    return lines


def changes_of(analysis: Analysis, choice: Choice) -> str:
    """The recommended changes as TOML; empty for the running policy."""
    job = analysis.job
    base = job.base_of(choice.target)
    known = base in job.metrics
    wanted = job.candidates.named(base if known else next(iter(job.metrics)), choice.recommended)
    return changes_text(base if known else "each target", wanted.changes) if wanted.changes else ""
