"""The rule `service_level`: no message waits longer than stated, but for a share of them, with the fewest instances.

The shell around the pure parts of this folder: it reads what is seen from the view (`Observation`), learns from it
(`learn`), and says what is needed (`evaluate`). docs/service-level.md tells how it works, and how to see when it is wrong.
"""

from __future__ import annotations

from math import ceil
from typing import Literal

from msgspec import Struct

from scaling.log_entry import parse_decision_id
from scaling.model import Evidence, Reason, Verdict
from scaling.rules.service_level import instances, learning, memory, plan, told
from scaling.rules.service_level.learning import Objective, Observation
from scaling.rules.service_level.memory import Memory
from scaling.rules.service_level.told import Lateness
from scaling.rules.view import GAP, MetricsView
from scaling.window import Summary
from tidemark.foundation.durations import parse_duration
from tidemark.foundation.wording import duration_text, number_text

LEARN = "learn"

MOST = 1_000_000
"""No more instances are asked for, whatever the numbers; the policy's maximum comes after the rules."""

TOLD = "told"
"""Comparator of numbers that the rule's sentence tells: they are compared with nothing."""

RECENT = instances.LONGEST_START
"""Seconds for which an effect may belong to instances that start now."""


def _seconds(text: str) -> float:
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError(f"found '{text}'; a duration above 0 is accepted, such as '60s'")
    return seconds


def _share(value: str | float) -> float:
    """Raises ValueError."""
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
        completed per collection interval; without them both follow from the backlog. `concurrency`: messages one
        instance holds at once. `start_up`: from asked-for to serving.
        """

        backlog: str
        incoming: str | None = None
        outgoing: str | None = None
        wait: str = "60s"
        late: str | float = "1%"
        concurrency: float | Literal["learn"] = "learn"
        start_up: str = LEARN

        def problems(self) -> dict[str, str]:
            found: dict[str, str] = {}
            for option, check in (("wait", _seconds), ("late", _share), ("start_up", _seconds)):
                value = getattr(self, option)
                try:
                    if value != LEARN or option != "start_up":
                        check(value)
                except ValueError as error:
                    found[option] = str(error)
            if not isinstance(self.concurrency, str) and not 0 < self.concurrency <= 1e6:
                found["concurrency"] = (
                    f"found {self.concurrency}; above 0 to 1,000,000, or 'learn' is accepted"
                )
            return found

    def __init__(self, params: Params, *, name: str) -> None:
        self._name = name
        self.params = params
        start_up = None if params.start_up == LEARN else _seconds(params.start_up)
        held = None if isinstance(params.concurrency, str) else params.concurrency
        self.objective = Objective(_seconds(params.wait), _share(params.late), held, start_up)
        self._read: tuple[bytes | None, Memory | None] = (None, None)

    def metrics(self) -> tuple[str, ...]:
        params = self.params
        return tuple(name for name in (params.backlog, params.incoming, params.outgoing) if name is not None)

    @property
    def name(self) -> str:
        """By which its memory is found."""
        return self._name

    def learn(self, known: bytes | None, view: MetricsView, /) -> bytes | None:
        """The memory after what the view shows; as it was, where the backlog of now is not known."""
        seen = self.observed(view)
        if seen is None:
            return known
        before = self._decoded(known)
        self._read = (None, None)  # what was read is changed now
        after = learning.learn(before, seen, self.objective)
        if known and before is None:
            after.started_anew = "what was remembered could not be read"
        data = memory.encode(after)
        self._read = (data, after)
        return data

    def _decoded(self, data: bytes | None) -> Memory | None:
        """The memory in the bytes. Those read or written last are not read again: that takes longer than to learn."""
        read, found = self._read
        if data is None or data is not read:
            found = memory.decode(data)
            self._read = (data, found)
        return found

    def told(self, known: bytes | None) -> told.ServiceLevelView | None:
        """What was learned, for people; None before the first report."""
        found = self._decoded(known)
        return None if found is None else told.view_of(self._name, found, self.objective)

    def lateness(self, known: bytes | None) -> Lateness | None:
        """The late messages of today; None before the first report."""
        found = self._decoded(known)
        return None if found is None else told.lateness_of(self._name, found, self.objective)

    def observed(self, view: MetricsView) -> Observation | None:
        """What the view shows; None where the backlog of now is not known."""
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
            ready=view.told_ready,
            most=max(view.maximum, view.current, 1),
            asked_at=_asked_at(view, at),
        )

    def evaluate(self, view: MetricsView, /) -> Verdict:
        """Needs a backlog that is fresh; less is wanted only where no sample is missing, and the backlog moves."""
        summary = view.metric(self.params.backlog)
        if summary.problem is not None and (
            summary.problem is not Reason.INCOMPLETE_WINDOW or not summary.count
        ):
            return Verdict(None, summary.problem)
        known = self._decoded(view.memory(self._name))
        if known is None:
            return self._by_backlog(view, summary, "nothing is learned yet")
        if not summary.count:
            return self._by_backlog(view, summary, "the backlog is a default")
        behind = view.windows[self.params.backlog].times[-1] - known.at
        if abs(behind) > view.specs[self.params.backlog].interval:
            return self._by_backlog(view, summary, f"what is learned is {duration_text(abs(behind))} off")
        return _Case(self._name, self.params.backlog, self.objective, view, summary, known).verdict()

    def _by_backlog(self, view: MetricsView, summary: Summary, why: str) -> Verdict:
        """Nothing remembered is of use: as many instances as hold what is there, and never fewer than there are."""
        needed = learning.by_backlog(summary.latest, self.objective)
        desired = max(ceil(min(needed, MOST)), view.current)
        told = f"{why}; {number_text(summary.latest)} messages there need {number_text(needed)} instances"
        reason = Reason.SCALE_OUT if desired > view.current else Reason.WITHIN_TARGET
        return Verdict(desired, reason, sentence=told)


def _count(view: MetricsView, name: str | None, at: float) -> float | None:
    """The sample of a metric taken with the one of the backlog."""
    window = view.windows.get(name) if name is not None else None
    if window is None or not window.times or window.failure is not None or window.times[-1] != at:
        return None
    return window.values[-1]


def _asked_at(view: MetricsView, at: float) -> float | None:
    """When the instances of a recent change were asked for: its action is named by the report it follows from."""
    effect = view.last_effect
    if effect is None or effect.to_capacity <= effect.from_capacity or at - effect.at > RECENT:
        return None
    try:
        return parse_decision_id(effect.action_id)[1]
    except ValueError:
        return None


class _Case:
    """One evaluation."""

    def __init__(
        self,
        name: str,
        backlog: str,
        objective: Objective,
        view: MetricsView,
        summary: Summary,
        known: Memory,
    ) -> None:
        self.name, self.backlog, self.objective = name, backlog, objective
        self.view, self.summary, self.known = view, summary, known
        self.outlook = learning.outlook(known, objective)
        self.carefulness = learning.carefulness(known)
        self.busy_hold = learning.held_of(known, objective) * known.serving
        _, seconds = plan.serving(
            learning.starts_of(known, objective, self.outlook.start_up),
            view.current,
            known.at,
            self.outlook.start_up,
        )
        self.capacity = seconds * self.outlook.service
        self.hold = learning.hold(known, self.outlook.start_up)
        self.exact = learning.needed(known, self.outlook, summary.latest, view.current, objective)

    def verdict(self) -> Verdict:
        known, current = self.known, self.view.current
        exact = min(self.exact, float(MOST))
        needs = plan.remembered(known.needs, known.at, plan.lasting(exact, self.outlook), self.hold)
        desired = plan.step(exact, current, needs, known.at, self.hold)
        evidence = self._evidence()
        sentence = self._sentence(desired)
        if desired > current:
            return Verdict(desired, Reason.SCALE_OUT, evidence, sentence=sentence)
        if desired == current:
            return Verdict(current, Reason.WITHIN_TARGET, evidence, sentence=sentence)
        missing = self._not_for_less()
        if missing is not None:
            reason, note = missing
            return Verdict(None, reason, evidence, note=note, sentence=sentence)
        return Verdict(desired, Reason.SCALE_IN, evidence, sentence=sentence)

    def _not_for_less(self) -> tuple[Reason, str] | None:
        """Why less must not be wanted."""
        if self.summary.problem is not None:
            return self.summary.problem, ""
        if self.summary.gap:
            return Reason.INCOMPLETE_WINDOW, GAP
        if self.known.still >= learning.STANDS_STILL:
            stands = (
                f"{self.backlog} stands at {number_text(self.summary.latest)} for {self.known.still} reports"
            )
            return Reason.STALE_METRIC, f"{stands}, though messages come and go"
        return None

    def _evidence(self) -> tuple[Evidence, ...]:
        """Numbers of the sentence, for machines: what is expected and what the target is ready for; late messages."""
        outlook, known = self.outlook, self.known
        ready_for = outlook.careful(self.carefulness)
        late, allowed = told.late_today(known), 100.0 * self.objective.late
        return (
            Evidence(self.name, "arrivals", "expected", outlook.expected, TOLD, ready_for, outlook.start_up),
            Evidence(self.name, "arrivals", "now", known.rates[0], TOLD, known.rates[0]),
            Evidence(self.name, "service rate", "learned", outlook.service, TOLD, outlook.service),
            Evidence(self.name, "late messages", "today", late, TOLD, allowed),
        )

    def _sentence(self, desired: int) -> str:
        outlook, known = self.outlook, self.known
        expected, within = number_text(outlook.expected), duration_text(outlook.start_up)
        ready_for = outlook.careful(self.carefulness)
        margin = f", margin {ready_for / outlook.expected:.2f}" if outlook.expected > 0 else ""
        late = told.late_today(known)
        learns = (
            "; still learning: no fewer instances than hold what is there" if learning.learning(known) else ""
        )
        anew = f"; {known.started_anew}, so everything is learned anew" if known.started_anew else ""
        return (
            f"{expected} messages/s expected within {within} (now {number_text(known.rates[0])}{margin}), "
            f"an instance serves {number_text(outlook.service)}/s, {desired} keep waits under "
            f"{duration_text(outlook.wait)}; {late:.1f} % late today of {100 * self.objective.late:g} % allowed"
            f"{learns}{anew}"
        )
