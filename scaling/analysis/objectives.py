"""What keeps a rule `service_level` from its objective, by the metrics and options that it is given. Pure.

The figures are of recorded loads, with a wait of 60 s and messages of 1.6 to 80 s of which an instance holds four or more
(benchmarks/README.md, 28 November 2026).
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import convert

from scaling.analysis.steady import Subject
from scaling.rules.service_level.rule import LEARN, ServiceLevelRule
from scaling.rules.service_level.sizing import LONG_WAIT
from tidemark.foundation.wording import duration_text, number_text

ASSUMED_START_UP = 90.0
"""Seconds, where a policy gives none: that of the measurements."""

LATE_BY_INTERVAL = ((0.25, 1.0), (0.5, 1.5), (1.0, 2.6))
"""Up to an interval of this share of the wait, so many per cent were late on average (11 recorded loads, messages of 1.6 s, counted
arrivals, a wait of 60 s and a report every 15, 30 and 60 s; 28 November 2026). Messages of half a minute have nearly as many:
0.8 % every 15 s, 2.4 % every 60 s.
"""

LATE_IF_KEPT, MORE_IF_KEPT = 0.8, "a fifth"
"""Per cent with `spend = "keep"` at the last of these intervals, and how many more instance-hours that took (the same loads and day)."""


def unknown_concurrency(subject: Subject) -> Iterator[str]:
    """It is unknown what an instance holds: then it is not known which messages wait. Counts alone do not: while all instances are busy the same
    is completed by many slow messages at once as by few fast ones.
    """
    for name, options in subject.options("service_level"):
        if options.get("concurrency", LEARN) == LEARN and "oldest_age" not in options:
            yield (
                f"rule '{name}' cannot know how many messages an instance processes at once, so not which of them wait: state "
                f"concurrency (and takes, if a message takes more than a few seconds), or give it oldest_age"
            )


def unknown_times(subject: Subject) -> Iterator[str]:
    """Only a bound of the time of a message follows from the backlog, so instances are held for what is there."""
    for name, options in subject.options("service_level"):
        known = {"takes", "oldest_age", "incoming", "outgoing"} & options.keys()
        at_once = options.get("concurrency", LEARN)
        if not known and at_once != LEARN:
            yield (
                f"rule '{name}' cannot tell from the backlog alone how long a message takes. Until it has seen that messages are "
                f"fast, it keeps the instances that hold what is there, as a target of {number_text(0.75 * at_once)} messages for an "
                "instance would (on recorded loads 1.6 to 2.2 times the fewest, 0.4 to 0.7 % late). State takes, or give it "
                "oldest_age, incoming or outgoing (1.3 to 1.4 times with takes or counts, 0.6 to 0.9 % late)"
            )


def unmet_objectives(subject: Subject) -> Iterator[str]:
    """What keeps a stated wait, or share of late messages, from being met, whatever the rule learns."""
    out, interval = subject.policy.spec.out, subject.interval
    for name, options in subject.options("service_level"):
        objective = ServiceLevelRule(convert(options, ServiceLevelRule.Params), name=name).objective
        wait = objective.wait
        if wait < interval:
            yield (
                f"rule '{name}' allows a wait of {duration_text(wait)}, but decisions are made every "
                f"{duration_text(interval)}: what came in between waits unseen"
            )
        elif interval > 0 and wait < LONG_WAIT * ((objective.start_up or ASSUMED_START_UP) + interval):
            expected, keep = next(late for share, late in LATE_BY_INTERVAL if interval <= share * wait), ""
            if objective.spend == "keep":
                expected = LATE_IF_KEPT if interval > wait / 2 else 0.0
            elif interval > wait / 2:
                keep = f'state spend = "keep" ({LATE_IF_KEPT:g} % late, for {MORE_IF_KEPT} more instance-hours), '
            if 100.0 * objective.late < expected:
                yield (
                    f"rule '{name}' allows {100.0 * objective.late:g} % of messages to wait longer than {duration_text(wait)}, and "
                    f"decides every {duration_text(interval)}: on recorded loads {expected:g} % were late. Decide more often "
                    f"(COLLECT_SCHEDULE, or `interval` of the target), {keep}allow a longer wait, or more late messages"
                )
        if out.cooldown > 0 or out.stabilization > 0:
            held = max(out.cooldown, out.stabilization)
            yield f"out.cooldown and out.stabilization hold scale-outs of rule '{name}' back for up to {duration_text(held)}"
