"""What a rule sees, and what it must be. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal, Protocol

from msgspec import Struct, structs

from scaling.model import EffectRecord, Evidence, Reason, Verdict
from scaling.window import EMPTY, Summary, Window, WindowSpec, or_default, summarize, with_missing


@dataclass(slots=True, eq=False)
class MetricsView:
    """One target at one moment: its capacity, its bounds, and summaries of its metric windows.

    `current` is the capacity the decision starts from, `ready` the instances known to work already
    (`current` where the platform does not count them), `counted_ready` the platform's own count, or None. `minimum` and
    `maximum` are the policy's. `memories` is what rules that learn remember, `last_effect` the last change of the
    capacity that was seen. `changes_per_hour` is how many changes the platform takes; None: any number. With `wants_flips` rules name what would change their vote; a decision alone does without.
    """

    windows: Mapping[str, Window]
    specs: Mapping[str, WindowSpec]
    current: int
    _: KW_ONLY
    ready: int
    minimum: int
    maximum: int
    now: float
    counted_ready: int | None = None
    memories: Mapping[str, bytes] = field(default_factory=dict)
    last_effect: EffectRecord | None = None
    changes_per_hour: int | None = None
    wants_flips: bool = True
    _summaries: dict[str, Summary] = field(default_factory=dict, init=False)

    def metric(self, name: str) -> Summary:
        """The summary of a metric as of `now`, or its default while it is missing. Raises KeyError for a metric the target does not have."""
        summary = self._summaries.get(name)
        if summary is None:
            spec = self.specs[name]
            summary = or_default(summarize(self.windows.get(name, EMPTY), spec, now=self.now), spec)
            self._summaries[name] = summary
        return summary

    def memory(self, rule: str) -> bytes | None:
        """What a rule remembers; None before it has learned anything."""
        return self.memories.get(rule)

    def span(self, name: str) -> float:
        """Length of a metric's window in seconds."""
        return self.specs[name].span

    def evidence(self, rule: str, metric: str, statistic: str, comparator: str, threshold: float) -> Evidence:
        """What a rule compares a metric's statistic with."""
        summary = self.metric(metric)
        value = summary.statistic(statistic)
        return Evidence(
            rule, metric, statistic, value, comparator, threshold, self.span(metric), summary.count
        )

    def metrics(self) -> dict[str, Summary]:
        """Every metric of the target with its summary."""
        return {name: self.metric(name) for name in self.specs}

    def missing(self) -> dict[str, int]:
        """How many samples each metric lacks, of those that lack some and are within their tolerance."""
        summaries = self.metrics().items()
        return {n: s.missing for n, s in summaries if s.missing and not s.gap and s.problem is None}

    def assuming(self, high: Mapping[str, int]) -> MetricsView:
        """The same view with so many of the missing samples of each metric as high as the highest of its window, and the others
        as low as the lowest.
        """
        view = copy(self)
        view._summaries = {  # noqa: SLF001 - a copy of this one
            name: with_missing(summary, high[name]) if name in high else summary
            for name, summary in self.metrics().items()
        }
        return view

    def as_far_as_known(self) -> MetricsView:
        """The same view with the samples that are there taken for all: what they point to. A metric without any
        stays unknown. For words only; nothing may be decided by it.
        """
        return self._with(
            lambda summary: structs.replace(summary, problem=None, gap=False) if summary.count else summary
        )

    def once_filled(self) -> MetricsView:
        """The same view with windows that only fill, or lack a sample, taken for whole; what was not read stays unknown.

        For finding out what keeps a rule from voting; nothing may be decided by it.
        """
        return self._with(
            lambda summary: (
                structs.replace(summary, problem=None, gap=False)
                if summary.count and summary.problem in {None, Reason.INCOMPLETE_WINDOW}
                else summary
            )
        )

    def _with(self, change: Callable[[Summary], Summary]) -> MetricsView:
        return self.with_summaries({name: change(summary) for name, summary in self.metrics().items()})

    def copied(self) -> MetricsView:
        """The same view of copies: whatever code of the user's own does to it, nothing of it is stored."""
        windows = {
            name: structs.replace(window, times=[*window.times], values=[*window.values])
            for name, window in self.windows.items()
        }
        view = copy(self)
        view.windows, view.specs, view.memories = windows, dict(self.specs), dict(self.memories)
        view._summaries = dict(self._summaries)  # noqa: SLF001 - a copy of this one
        return view

    def with_summaries(self, summaries: dict[str, Summary]) -> MetricsView:
        """The same view with these summaries, whatever the windows hold."""
        view = copy(self)
        view._summaries = summaries  # noqa: SLF001 - a copy of this one
        return view


GAP = "a sample is missing in the window"
"""The note of a verdict that does not vote for less for this."""


StatisticOption = Literal["average", "maximum", "minimum", "latest"]
"""A `Statistic` as a rule's options hold it: reading by a plain text is faster, and every evaluation reads."""


class LevelLine(Struct, frozen=True):
    """A level to draw into a chart: where `statistic` of `metric` makes a rule act at one instance count.

    A rule that has levels offers `levels(current) -> tuple[LevelLine, ...]`; the method is optional. `metric`
    is named as in the rule's evidence, so a combination of several reads `sum(a, b)`.
    """

    metric: str
    statistic: str
    direction: Literal["out", "in", "guard"]
    value: float


class Rule(Protocol):
    """Turns a view into a verdict; the same view must always give the same verdict.

    A rule may be named in tidemark.toml by its registered name or as `module:Class`. It is built once with
    its options and evaluated for each report, and again, up to some hundred times, for what would have changed its
    vote: it has to be fast, and to do nothing else. What it raises becomes a hold with Reason.RULE_FAILED.

    A rule that learns offers `learn(memory, view) -> memory`, of bytes (None before the first report), and `name`: it is
    called for each report before the decision, and again for reports that are imagined, and finds what it returned in `view.memory(name)`. What is
    remembered must be bounded and the same for the same view, for a decision has to be replayable.

    A rule that keeps a target in step with another one offers `objection(view, capacity) -> str | None`; it
    is asked before an action is carried out, also where the rule is nested in a composite, with the other
    target as it is then (`scaling.decision.lock_step`).
    """

    def evaluate(self, view: MetricsView, /) -> Verdict: ...

    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics the rule reads; configuration checks that they exist."""
        ...
