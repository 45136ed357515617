"""The rule `service_level`: no message waits longer than stated, but for a share of them, with the fewest instances.

The shell around the pure parts of this folder. It reads a report from the view (`Observation`), learns from it (`learn`),
and says what is needed (`evaluate`). The rule itself holds its options and nothing else: what it knows travels as bytes
(`memory`). docs/service-level.md derives the formulas, and shows how to see when the rule is wrong.
"""

from __future__ import annotations

from math import ceil
from typing import Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from scaling.log_entry import parse_decision_id
from scaling.model import REPORTED, Evidence, Reason, Verdict
from scaling.rules.service_level import (
    candidates,
    estimates,
    instances,
    learning,
    memory,
    report,
    service_time,
    sizing,
)
from scaling.rules.service_level.estimates import Objective
from scaling.rules.service_level.learning import Observation
from scaling.rules.service_level.memory import Memory, Spend
from scaling.rules.service_level.report import Lateness, ServiceLevelView
from scaling.rules.view import GAP, MetricsView
from scaling.window import Summary
from tidemark.foundation.durations import parse_duration
from tidemark.foundation.wording import duration_text, number_text

LEARN = "learn"

LATE_SAMPLES = 8
"""Samples of a late count that are read at each report: those that were taken in before are left out. Chosen: more than a
collector of minutes gives at once.
"""

RECENT = instances.MAX_START_UP
"""Seconds for which the last effect may be of instances that still start."""


def _seconds(text: str) -> float:
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError(f"found '{text}'; a duration above 0 is accepted, such as '60s'")
    return seconds


def _trade(value: str) -> Spend:
    name: Spend
    for name in get_args(Spend):
        if name == value:
            return name
    raise ValueError(f"found '{value}'; 'keep', 'balanced' or 'least' is accepted")


def _share(value: str | float) -> float:
    text = str(value).strip()
    try:
        number = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        number = -1.0
    if not 0 < number < 1:
        raise ValueError(f"found '{value}'; a share above 0 and below 1 is accepted, such as '1%' or 0.01")
    return number


class ServiceLevelRule:
    """Keeps waits within an objective: see the options."""

    class Params(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """No message should wait longer than `wait`, but for the share `late` of them.

        `backlog`: messages waiting and being processed. `incoming`, `outgoing`: messages that arrived and were
        completed per collection interval, also where they come some minutes late; without them both follow from the backlog.
        `oldest_age`: seconds since the oldest message that waits came. `concurrency`: messages one
        instance processes at once. `start_up`: from asked-for to serving. `takes`: how long a message takes on average.
        `spend`: how much idle capacity late messages are worth.
        """

        backlog: str
        incoming: str | None = None
        outgoing: str | None = None
        oldest_age: str | None = None
        wait: str = "60s"
        late: str | float = "1%"
        concurrency: float | Literal["learn"] = "learn"
        start_up: str = LEARN
        takes: str = LEARN
        spend: str = "balanced"

        def problems(self) -> dict[str, str]:
            problems: dict[str, str] = {}
            for option, check in (
                ("wait", _seconds),
                ("late", _share),
                ("start_up", _seconds),
                ("takes", _seconds),
                ("spend", _trade),
            ):
                value = getattr(self, option)
                try:
                    if value != LEARN or option not in {"start_up", "takes"}:
                        check(value)
                except ValueError as error:
                    problems[option] = str(error)
            if not isinstance(self.concurrency, str) and not 0 < self.concurrency <= 1e6:
                problems["concurrency"] = (
                    f"found {self.concurrency}; above 0 to 1,000,000, or 'learn' is accepted"
                )
            return problems

    def __init__(self, params: Params, *, name: str) -> None:
        self._name = name
        self.params = params
        self.objective = Objective(
            wait=_seconds(params.wait),
            late=_share(params.late),
            concurrency=None if isinstance(params.concurrency, str) else params.concurrency,
            start_up=None if params.start_up == LEARN else _seconds(params.start_up),
            takes=None if params.takes == LEARN else _seconds(params.takes),
            spend=_trade(params.spend),
        )

    def metrics(self) -> tuple[str, ...]:
        params = self.params
        names = (params.backlog, params.incoming, params.outgoing, params.oldest_age)
        return tuple(name for name in names if name is not None)

    @property
    def name(self) -> str:
        """By which its memory is found."""
        return self._name

    def learn(self, known: bytes | None, view: MetricsView, /) -> bytes | None:
        """The memory after what the view shows; `known` itself, where the present backlog is not known."""
        seen = self.observed(view)
        if seen is None:
            return known
        before = memory.decode(known)
        after = learning.learn(before, seen, self.objective)
        if known and before is None:
            after = replace(after, restart_reason="what was remembered could not be read")
        return memory.encode(after)

    def view(self, known: bytes | None) -> ServiceLevelView | None:
        """What was learned, for people; None before the first report."""
        learned = memory.decode(known)
        return None if learned is None else report.view_of(self._name, learned, self.objective)

    def lateness(self, known: bytes | None) -> Lateness | None:
        """The late messages of today; None before the first report."""
        learned = memory.decode(known)
        return None if learned is None else report.lateness_of(self._name, learned, self.objective)

    def observed(self, view: MetricsView) -> Observation | None:
        """The report that the view shows; None where the present backlog is not known."""
        name = self.params.backlog
        window = view.windows.get(name)
        if window is None or not window.times or window.failure is not None:
            return None
        at = window.times[-1]
        return Observation(
            at=at,
            interval=view.specs[name].interval,
            backlog=window.values[-1],
            incoming=_count(view, self.params.incoming, at),
            outgoing=_count(view, self.params.outgoing, at),
            current=view.current,
            ready=view.counted_ready,
            most=max(view.maximum, view.current, 1),
            asked_at=_asked_at(view, at),
            oldest_age=_age(view, self.params.oldest_age, at),
            late_counts=_late_counts(view, self.params.incoming, self.params.outgoing, at),
            limited=view.changes_per_hour is not None,
        )

    def evaluate(self, view: MetricsView, /) -> Verdict:
        """Needs a fresh backlog. Wants fewer instances only where no sample is missing, and the backlog moves."""
        backlog = self.params.backlog
        summary = view.metric(backlog)
        if summary.problem is not None and (
            summary.problem is not Reason.INCOMPLETE_WINDOW or not summary.count
        ):
            return Verdict(desired=None, reason=summary.problem)
        known = memory.decode(view.memory(self._name))
        if known is None:
            return self._by_backlog(view, summary, "nothing is learned yet")
        if not summary.count:
            return self._by_backlog(view, summary, "the backlog is a default")
        behind = view.windows[backlog].times[-1] - known.at
        if abs(behind) > view.specs[backlog].interval:
            return self._by_backlog(view, summary, f"what is learned is {duration_text(abs(behind))} off")
        return self._by_forecast(view, summary, known)

    def _by_backlog(self, view: MetricsView, summary: Summary, why: str) -> Verdict:
        """Without a usable memory: as many instances as process the whole backlog, and never fewer than there are."""
        needed = estimates.instances_for_backlog(summary.latest, self.objective)
        desired = max(ceil(min(needed, sizing.MAX_INSTANCES)), view.current)
        messages = number_text(summary.latest)
        return Verdict(
            desired=desired,
            reason=Reason.SCALE_OUT if desired > view.current else Reason.WITHIN_TARGET,
            sentence=f"{why}; {messages} messages there need {number_text(needed)} instances",
        )

    def _by_forecast(self, view: MetricsView, summary: Summary, known: Memory) -> Verdict:
        """With a memory: what is expected, what waits, and the highest need of the hold time."""
        current, limited = view.current, view.changes_per_hour is not None
        outlook = estimates.outlook(known, self.objective, limited=limited)
        desired = estimates.next_capacity(known, outlook, summary.latest, current, self.objective)
        note, reason = "", Reason.WITHIN_TARGET
        if desired > current:
            reason = Reason.SCALE_OUT
        elif desired < current:
            reason, note = self._scale_in_or_problem(summary, known)
        return Verdict(
            desired=None if reason not in _VOTES else desired,
            reason=reason,
            evidence=self._evidence(outlook, known),
            note=note,
            sentence=self._sentence(outlook, known, desired),
        )

    def _scale_in_or_problem(self, summary: Summary, known: Memory) -> tuple[Reason, str]:
        """Why fewer instances must not be wanted, with a note; else that the target scales in."""
        if summary.problem is not None:
            return summary.problem, ""
        if summary.gap:
            return Reason.INCOMPLETE_WINDOW, GAP
        if known.unchanged_reports >= learning.UNCHANGED_REPORTS:
            name, value = self.params.backlog, number_text(summary.latest)
            reports = f"{name} stands at {value} for {known.unchanged_reports} reports"
            return Reason.STALE_METRIC, f"{reports}, though messages come and go"
        return Reason.SCALE_IN, ""

    def _evidence(self, outlook: sizing.Outlook, known: Memory) -> tuple[Evidence, ...]:
        """The numbers of the sentence, for machines: value, and what the target is ready for or allowed."""
        ready_for = outlook.rate_with_margin(estimates.safety_factor(known))
        now, service_rate = known.rates[0], outlook.service_rate
        late, allowed = report.late_today(known), 100.0 * self.objective.late
        return (
            self._reported("arrivals", "expected", outlook.expected, ready_for, span=outlook.start_up),
            self._reported("arrivals", "now", now, now),
            self._reported("service rate", "learned", service_rate, service_rate),
            self._reported("late messages", "today", late, allowed),
        )

    def _reported(
        self, metric: str, statistic: str, value: float, threshold: float, *, span: float = 0.0
    ) -> Evidence:
        return Evidence(
            rule=self._name,
            metric=metric,
            statistic=statistic,
            value=value,
            comparator=REPORTED,
            threshold=threshold,
            span=span,
        )

    def _sentence(self, outlook: sizing.Outlook, known: Memory, desired: int) -> str:
        still_learning = (
            "; still learning: no fewer instances than process the whole backlog"
            if estimates.processes_all(known, outlook)
            else ""
        )
        anew = f"; {known.restart_reason}, so everything is learned anew" if known.restart_reason else ""
        return (
            f"{self._reckoning(outlook, known, desired)}; {report.late_today(known):.1f} % late today of "
            f"{100 * self.objective.late:g} % allowed{still_learning}{anew}{self._why_unkept(known)}"
        )

    def _why_unkept(self, known: Memory) -> str:
        """Once a day, where no margin keeps the objective: what is in the way."""
        if not known.unkept or known.unkept_at != known.at:
            return ""
        late = 100 * candidates.fewest_late(known.candidates, known.scored_arrivals)
        start_up = duration_text(estimates.start_up_time(known, self.objective))
        why = {
            "maximum": "more instances than the maximum would be needed",
            "interval": f"samples come every {duration_text(known.interval)} only",
            "start_up": f"bursts come sooner than an instance starts ({start_up})",
        }
        return f"; no margin keeps that: at best {late:.2f} % are late, because {why.get(known.unkept, known.unkept)}"

    def _reckoning(self, outlook: sizing.Outlook, known: Memory, desired: int) -> str:
        """What the capacity follows from: a forecast, or the deadlines of what waits."""
        if not outlook.identified:
            held = estimates.messages_to_hold(known, outlook, known.backlog, known.serving)
            there = f"{number_text(held)} messages there" + (" on average" if held != known.backlog else "")
            return f"it is not known how long a message takes, so {desired} follow from the {there}"
        rate, wait = number_text(outlook.service_rate), duration_text(outlook.wait)
        if outlook.begin_within:
            return (
                f"{number_text(known.waiting)} messages wait, an instance serves {rate}/s, {desired} begin each within {wait} "
                f"(planned for {duration_text(outlook.begin_within)})"
            )
        expected, within = number_text(outlook.expected), duration_text(outlook.start_up)
        ready_for = outlook.rate_with_margin(estimates.safety_factor(known))
        margin = f", margin {ready_for / outlook.expected:.2f}" if outlook.expected > 0 else ""
        return (
            f"{expected} messages/s expected within {within} (now {number_text(known.rates[0])}{margin}), "
            f"an instance serves {rate}/s, {desired} keep waits under {wait}"
        )


_VOTES = frozenset({Reason.SCALE_OUT, Reason.WITHIN_TARGET, Reason.SCALE_IN})


def _count(view: MetricsView, name: str | None, at: float) -> float | None:
    """The sample of a metric taken with the one of the backlog."""
    window = view.windows.get(name) if name is not None else None
    if window is None or not window.times or window.failure is not None or window.times[-1] != at:
        return None
    return window.values[-1]


def _late_counts(
    view: MetricsView, incoming: str | None, outgoing: str | None, at: float
) -> tuple[service_time.Count, ...]:
    """The newest samples of counts that come later than the backlog: each counts one interval of its metric, up to its time."""
    counts: dict[float, list[float | None]] = {}
    seconds = 0.0
    for index, name in enumerate((incoming, outgoing)):
        window = view.windows.get(name) if name is not None else None
        if name is None or window is None or not window.times or window.times[-1] >= at:
            continue
        seconds = view.specs[name].interval
        for end, value in zip(window.times[-LATE_SAMPLES:], window.values[-LATE_SAMPLES:], strict=True):
            counts.setdefault(end, [None, None])[index] = value
    return tuple((end, seconds, came, completed) for end, (came, completed) in sorted(counts.items()))


def _age(view: MetricsView, name: str | None, at: float) -> float | None:
    """How old the oldest message that waits is at the time of the backlog, by the newest sample of its age, unless that is more than an
    interval older.
    """
    window = view.windows.get(name) if name is not None else None
    if name is None or window is None or not window.times or window.failure is not None:
        return None
    later, age = at - window.times[-1], window.values[-1]
    if later > view.specs[name].interval:
        return None
    return max(age + later, 0.0) if age > 0.0 else 0.0


def _asked_at(view: MetricsView, at: float) -> float | None:
    """When the instances of a recent change were asked for: the id of its action names the report it follows from."""
    effect = view.last_effect
    if effect is None or effect.to_capacity <= effect.from_capacity or at - effect.at > RECENT:
        return None
    try:
        return parse_decision_id(effect.action_id)[1]
    except ValueError:
        return None
