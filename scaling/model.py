"""Values that flow through the autoscaler: samples, reports, verdicts, recommendations, actions, effects.

Times are seconds since the Unix epoch, UTC (`float`); durations are seconds; capacities are whole units of the target,
such as instances. All of it is immutable data, which also travels through the queues: `scaling.service.messages`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from msgspec import Struct, field

from scaling.flip import Flip
from scaling.notice import Acknowledged, Drain, Telling
from scaling.reason import Reason as Reason

REPORTED = "reported"  # a comparator: the number is compared with nothing, the rule's sentence reports it


class Direction(StrEnum):
    OUT = "out"
    IN = "in"


class Statistic(StrEnum):
    """What a rule reads from a window."""

    AVERAGE = "average"
    MAXIMUM = "maximum"
    MINIMUM = "minimum"
    LATEST = "latest"


class MetricSample(Struct, frozen=True, omit_defaults=True):
    """One reading of one metric. `value` is in the metric's own unit (messages, for a backlog).

    With a `counter` it is the reading of a number that only grows, and the window takes its increase. The number names the
    counter where the source can tell one from another (an event hub that was made anew has another); 0 where it cannot.
    """

    metric: str
    at: float
    value: float
    counter: int | None = None


class MetricFailure(Struct, frozen=True):
    """A reading that could not be had. Never replaced by a zero."""

    metric: str
    at: float
    message: str
    reason: Reason = Reason.COLLECT_FAILED


class Capacity(Struct, frozen=True):
    """What a target has now, as its management API says.

    `floor` and `ceiling` are the platform's limits (of the SKU), not the policy's. `ready` counts instances
    that already work, where the platform counts them. `held_by` names another controller (an Azure Monitor
    autoscale setting, say) that also moves this target. `pending` is true while the platform still
    carries out an earlier change; `unknown_state` is what the platform calls a state that may be one, first read at
    `unknown_since`. It may be set to multiples of `step` only, or to `allowed` values. Where `advised`,
    the platform reports no capacity: what was advised last counts as done, and `current` is for the beginning.
    """

    current: int
    at: float
    floor: int = 0
    ceiling: int | None = None
    ready: int | None = None
    pending: bool = False
    held_by: str | None = None
    step: int = 1
    allowed: tuple[int, ...] = ()
    advised: bool = False
    unknown_state: str = ""
    unknown_since: float | None = None


class MetricsReport(Struct, frozen=True):
    """All that one collector tick learned about one target; the message on the metrics queue.

    A metric is in `samples` or in `failures`; `fingerprints` say what it measures (none in reports of 0.2.0). `capacity` is None
    when it could not be read; `capacity_error` says why.
    """

    target: str
    at: float
    samples: tuple[MetricSample, ...] = ()
    failures: tuple[MetricFailure, ...] = ()
    capacity: Capacity | None = None
    capacity_error: str | None = None
    fingerprints: dict[str, str] = {}


class Evidence(Struct, frozen=True, gc=False):
    """The numbers of one rule: `<statistic> <metric> <value> <comparator> <threshold> over <span> s`."""

    rule: str
    metric: str
    statistic: str
    value: float
    comparator: str
    threshold: float
    span: float = 0.0
    samples: int = 0


class Limit(Struct, frozen=True):
    """One constraint that changed what was wanted, from `wanted` to `allowed`, and why."""

    reason: Reason
    wanted: int
    allowed: int
    detail: str = ""


class Verdict(Struct, frozen=True):
    """What one rule says.

    `desired` is a capacity, or None where the rule does not vote (`reason` is then a problem, or the rule only sets bounds).
    `floor`/`ceiling` bound the capacity now (schedules). `blocks_out` forbids scaling out whatever other rules say (guards);
    `out_ceiling` forbids scaling out any further than that, and takes nothing away that is there. `sentence` is shown in
    place of those numbers of the evidence that are compared with nothing.
    """

    desired: int | None
    reason: Reason
    evidence: tuple[Evidence, ...] = ()
    flips: tuple[Flip, ...] = ()
    floor: int | None = None
    ceiling: int | None = None
    blocks_out: bool = False
    note: str = ""
    out_ceiling: int | None = None
    sentence: str = ""


class ScaleAction(Struct, frozen=True):
    """An absolute, idempotent order; the message on the actions queue. `replaces` is where an earlier action may have led
    that this one took the place of: found there, the target was moved by us and by nobody else. `instances` are those to remove.
    """

    action_id: str
    target: str
    from_capacity: int
    to_capacity: int
    decided_at: float
    expires_at: float
    reason: Reason
    line: str = ""
    replaces: int | None = None
    instances: tuple[str, ...] = ()

    @property
    def direction(self) -> Direction:
        return Direction.OUT if self.to_capacity > self.from_capacity else Direction.IN


class Recommendation(Struct, frozen=True):
    """The outcome of one evaluation of one target, with everything needed to explain it.

    `proposed` is what the rules asked for before any constraint, `desired` what remains. `desired !=
    current` means an action is due, unless `reason` is DRY_RUN. `unread`: a metric that is not read kept the rules from
    voting, which windows that fill, disabled entities and rules that fail by themselves do, too.
    """

    decision_id: str
    target: str
    at: float
    current: int | None
    proposed: int | None
    desired: int | None
    minimum: int
    maximum: int
    reason: Reason
    evidence: tuple[Evidence, ...] = ()
    flips: tuple[Flip, ...] = ()
    limits: tuple[Limit, ...] = ()
    note: str = ""
    sentence: str = ""
    unread: bool = False

    @property
    def acts(self) -> bool:
        """True when an action must be emitted."""
        known = self.current is not None and self.desired is not None
        return known and self.desired != self.current and self.reason is not Reason.DRY_RUN


class EffectOutcome(StrEnum):
    """What became of an action."""

    APPLIED = "applied"
    ALREADY_THERE = "already_there"
    LIMITED = "limited"  # the platform gave part of what was asked
    ACCEPTED = "accepted"  # the platform carries it out, perhaps for hours; the checks find its effect
    EXTERNAL_CHANGE = "external_change"  # somebody moved the target since the decision: nothing was changed
    EXPIRED = "expired"
    SUPERSEDED = "superseded"  # the action is not (or no longer) the pending one
    WITHDRAWN = "withdrawn"  # asked again before anybody carried it out, the action was not wanted any more
    REFUSED = "refused"  # the platform or a safety check said no, for good
    FAILED = "failed"  # an error that the next delivery may not meet

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        """Rows that were stored before 0.2.0 call an external change a foreign hand."""
        return cls("external_change") if value == "foreign_hand" else None


MOVED: frozenset[EffectOutcome] = frozenset(
    {EffectOutcome.APPLIED, EffectOutcome.ALREADY_THERE, EffectOutcome.LIMITED}
)
"""Outcomes after which the target stands where the effect says; only these start a cooldown."""


class Effect(Struct, frozen=True):
    """What the scaler did with an action, read back from the platform. `reached` is None where unknown."""

    action_id: str
    target: str
    outcome: EffectOutcome
    from_capacity: int
    to_capacity: int
    reached: int | None
    at: float
    detail: str = ""


def effect_of(
    action: ScaleAction, outcome: EffectOutcome, at: float, detail: str, reached: int | None = None
) -> Effect:
    """The effect of an action; without `reached`, of one that changed nothing as far as is known."""
    start, end = action.from_capacity, action.to_capacity
    return Effect(action.action_id, action.target, outcome, start, end, reached, at, detail)


class EffectRecord(Struct, frozen=True, array_like=True):
    """A past effect as the decision needs it; `level` is the plateau metric when it was decided."""

    at: float
    from_capacity: int
    to_capacity: int
    level: float | None = None
    action_id: str = ""


class ExternalChange(Struct, frozen=True):
    """Somebody else set the capacity to `seen` where we expected `expected`; first noticed at `at`."""

    seen: int
    expected: int
    at: float


class Refused(Struct, frozen=True):
    """The platform refused such a change, in the words `detail`; `floor` and `ceiling` are the limits it named then."""

    from_capacity: int
    to_capacity: int
    at: float
    detail: str
    floor: int = 0
    ceiling: int | None = None


class Delivery(Struct, frozen=True):
    """How far the pending action is on its way. It is sent again at `due_at`, unless its effect is there first. A scaler is
    carrying it out until `carried_until`, if that is given and it does not say earlier what came of it; `tried`: one began.
    """

    due_at: float
    carried_until: float | None = None
    tried: bool = False


class AskedToWait(Struct, frozen=True):
    """The platform said at `at` that it takes no change of this target before `until`."""

    at: float
    until: float


class Withdrawn(Struct, frozen=True):
    """An action that was withdrawn at `at`, before its effect was seen. `may_lead_to` is the capacity that the platform may still come
    to; None where no scaler had begun the action.
    """

    action_id: str
    from_capacity: int
    to_capacity: int
    expires_at: float
    at: float
    may_lead_to: int | None = None


class Spent(Struct, frozen=True):
    """What a target with a budget has spent of the day that began at `day`; times are seconds since the epoch.

    `hours` are units of capacity times hours, up to `until`; since then there are `capacity` units. They are counted
    from `since` on, and assumed before it. `pace` is the mean capacity of about the last hour. Where hours are billed
    at their highest capacity, `hours` holds the whole of the hour that began at `hour`, at its highest so far, `peak`.
    `warned`: that a warning of that day says the budget will not last.
    """

    day: float
    since: float
    until: float
    hours: float
    capacity: int
    pace: float
    hour: float = 0.0
    peak: int = 0
    warned: bool = False


class TargetState(Struct, frozen=True):
    """What is remembered of one target between evaluations (one table row).

    `evaluated` are the times of the newest reports already decided upon (ascending), by which a second delivery is
    recognised. `recommendations` are (time, proposed) pairs for stabilization, `effects` the newest effects, both ascending.
    `expected` is the capacity we believe in: last effect, or last adopted reading. `pending_level` is the plateau metric at
    the time of the pending decision, `pending_accepted` since when the platform has, or may have, accepted its action,
    `delivery` where that is (None in rows of earlier releases), `withdrawn` the last one that was not wanted any more.
    `refused` is the last refusal of the platform. `memories` is what rules remember, by name, `learned_from` the
    fingerprints of what they learned it from, `unlearned` why what one learned last was not kept; `shadow` what `scaling.shadow` does; `spent` of the day's budget, `telling` of notices for people.
    `others_changes` are the times, ascending, at which somebody else's change was first seen within the last hour; `sent` are
    our own changes of that hour that a scaler began, by action id and time, unless it is known that the platform refused to look at them.
    `asked_to_wait` is what the platform said last of when it takes a change, whichever action it was asked for.
    """

    evaluated: tuple[float, ...] = ()
    expected: int | None = None
    capacity: Capacity | None = None
    capacity_error: str | None = None
    pending: ScaleAction | None = None
    pending_level: float | None = None
    effects: tuple[EffectRecord, ...] = ()
    recommendations: tuple[tuple[float, int], ...] = ()
    external_change: ExternalChange | None = field(default=None, name="foreign")  # stored rows have this name
    missing_since: float | None = None
    corrupt_since: float | None = None
    last: Recommendation | None = None
    pending_accepted: float | None = None
    refused: Refused | None = None
    delivery: Delivery | None = None
    memories: dict[str, bytes] = {}
    unlearned: dict[str, str] = {}
    others_changes: tuple[float, ...] = ()
    shadow: bytes = b""
    spent: Spent | None = None
    telling: Telling | None = None
    withdrawn: Withdrawn | None = None
    asked_to_wait: AskedToWait | None = None
    sent: tuple[tuple[str, float], ...] = ()
    drain: Drain | None = None
    learned_from: dict[str, tuple[str, ...]] = {}


class Pause(Struct, frozen=True):
    """No change in `direction` (both when None) until `until` (for good when None)."""

    by: str
    at: float
    direction: Direction | None = None
    until: float | None = None


class Override(Struct, frozen=True):
    """Hold the target at `capacity` until `until`."""

    capacity: int
    by: str
    at: float
    until: float


class Promotion(Struct, frozen=True):
    """The shadow with these `rules` (`Policy.shadow_id`) decides for the target."""

    by: str
    at: float
    rules: str


class Controls(Struct, frozen=True):
    """What operators have ordered for one target (one table row, written over HTTP)."""

    pauses: tuple[Pause, ...] = ()
    override: Override | None = None
    dry_run: bool | None = None  # None: as configured
    # resume also ends the hold of an external change
    external_cleared_at: float | None = field(default=None, name="foreign_cleared_at")
    promoted: Promotion | None = None
    acknowledged: Acknowledged | None = None


NO_CONTROLS = Controls()
