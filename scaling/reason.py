"""Why a recommendation is what it is. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Reason(StrEnum):
    """Why a recommendation is what it is, one member per outcome, each with what it means in words for people."""

    words: str

    def __new__(cls, value: str, words: str = "") -> Self:
        member = str.__new__(cls, value)
        member._value_, member.words = value, words
        return member

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        """Rows that were stored before 0.2.0 call an external change a foreign hand."""
        return cls("external_change") if value == "foreign_hand" else None

    SCALE_OUT = "scale_out", "a rule asked for more capacity and nothing held it back"
    SCALE_IN = "scale_in", "every rule agreed to less capacity and nothing held it back"
    WITHIN_TARGET = "within_target", "no rule asked for a change"
    BELOW_MINIMUM = "below_minimum", "the capacity was below the minimum, or a schedule's floor: it is raised"
    ABOVE_MAXIMUM = (
        "above_maximum",
        "the capacity was above the maximum (or a schedule's ceiling) and is lowered to it",
    )
    OVERRIDDEN = "overridden", "an operator's override decides until it expires"
    FALLBACK = "fallback", "metrics were missing for long and the capacity was below the configured fallback"
    INCOMPLETE_WINDOW = (
        "incomplete_window",
        "the window does not yet cover its span, has too few samples, or lacks more samples than it may",
    )
    STALE_METRIC = "stale_metric", "the newest sample is older than allowed"
    COLLECT_FAILED = "collect_failed", "the last read of a metric failed; unknown is not zero"
    INVALID_METRIC = "invalid_metric", "a metric is no finite, non-negative number of the present"
    ENTITY_DISABLED = "entity_disabled", "the queue or subscription is disabled: more would receive nothing"
    CAPACITY_UNKNOWN = "capacity_unknown", "the current capacity could not be read"
    RULE_FAILED = "rule_failed", "a rule raised an error"
    STATE_CORRUPT = "state_corrupt", "the stored state could not be read and was started anew"
    UNANSWERED = (
        "unanswered",
        "workers did not acknowledge the last drain notice, so the next scale-in waits a while",
    )
    COOLING_DOWN = "cooling_down", "the last effect is too recent for another change in this direction"
    STABILIZING = "stabilizing", "a recent recommendation within the stabilization window holds this one back"
    RATE_LIMITED = "rate_limited", "the step limit or a rate policy allows no further change now"
    CHANGES_SPENT = (
        "changes_spent",
        "so many changes are made in an hour only, and the last ones of the hour are kept for scaling out",
    )
    AT_MAXIMUM = "at_maximum", "more was wanted, but the maximum is reached"
    AT_MINIMUM = "at_minimum", "less was wanted, but the minimum is reached"
    OVER_BUDGET = "over_budget", "the budget of the day does not allow so much capacity now"
    AT_CAP = "at_cap", "more was wanted, but the rule's cap metric says that more would find nothing to do"
    BETWEEN_STEPS = "between_steps", "the platform changes capacity in steps, and less than one was wanted"
    NOT_ACTIVE = "not_active", "no activation metric is above its threshold, so nothing is started from zero"
    STILL_ACTIVE = (
        "still_active",
        "an activation metric is above its threshold, or not known, so the last one stays",
    )
    REFUSED = "refused", "the platform refused this change a short time ago, and nothing has changed since"
    GUARDED = "guarded", "a downstream guard blocks scaling out"
    LOCK_STEP = "lock_step", "another target has to follow first: request units are raised before instances"
    PLATEAU = "plateau", "the last scale-outs did not make the backlog fall"
    PAUSED = "paused", "an operator paused this direction"
    EXTERNAL_CHANGE = "external_change", "somebody else changes the capacity of this target"
    ACTION_PENDING = "action_pending", "an earlier action has not shown its effect yet"
    DRY_RUN = "dry_run", "a change was decided, but dry-run is on"
