"""The page of an advice."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.analysis.advise import charts
from tidemark.analysis.advise.answered import Answer, headers, lines, percent_text, saved, stopped
from tidemark.analysis.report import Report
from tidemark.analysis.simulation.answer import WEIGHT, Row
from tidemark.analysis.simulation.field import TODAY
from tidemark.foundation.wording import duration_text, number_text

DRAWN = 5
"""Targets with pictures of their own: those that would run the most instances."""


def report_of(answers: Sequence[Answer]) -> Report:
    """One page; with several targets, first what to set for each."""
    names = [advice.question.target.name for advice in answers]
    what = names[0] if len(names) == 1 else f"{len(names):,} targets"
    report = Report("Advice", f"{what}: what other policies would have made of the recorded load")
    if len(answers) > 1:
        report.heading("All targets")
        report.table(
            ("target", "take", "instance-hours", "late", "today's", "late "),
            [_short(advice) for advice in answers],
        )
    for number, advice in enumerate(drawn(answers)):
        _show(report, advice, number)
    report.heading("The model")
    report.text(MODEL)
    if any(advice.toml for advice in answers):
        report.next_step(
            "when a table above is in tidemark.toml: what is wrong with it, and whether it flaps",
            "tidemark",
            "lint",
        )
    return report


def drawn(answers: Sequence[Answer]) -> list[Answer]:
    """The targets with pictures, by name."""
    most = sorted(answers, key=lambda advice: -advice.shown.instance_hours)[:DRAWN]
    return sorted(most, key=lambda advice: advice.question.target.name)


def _short(advice: Answer) -> tuple[object, ...]:
    shown, today = advice.shown, advice.today
    was = (None, None) if today is None else (today.instance_hours, percent_text(today.late))
    take = advice.choice.taken or f"none keeps the objective; late least: {shown.policy}"
    return (advice.question.target.name, take, shown.instance_hours, percent_text(shown.late), *was)


def _show(report: Report, advice: Answer, number: int) -> None:
    target = advice.question.target
    taken, winner = advice.shown, advice.choice.taken is not None
    prefix = "" if winner else "late least: "
    report.heading(target.name)
    if advice.question.saturated:
        report.text(_sentence(advice.question.saturated))
    facts = {
        "known load": duration_text(advice.question.hours * 3600),
        f"{prefix}instance-hours": _hours(taken),
        f"{prefix}later than {duration_text(target.wait)}": percent_text(taken.late),
    }
    if (today := advice.today) is not None and today is not taken:
        facts |= {
            "today: instance-hours": _hours(today),
            "today: late": percent_text(today.late),
        }
    if advice.options.price is not None:
        facts["money"] = advice.money(taken.instance_hours)
    report.facts(facts)
    report.text(
        f"{_sentence(advice.choice.why)} {taken.policy[0].upper()}{taken.policy[1:]} takes {saved(advice)}."
        + (f" {_sentence(stops)}" if (stops := stopped(advice)) else "")
    )
    report.figure(
        charts.curve(advice),
        caption="Each dot is a policy on the whole load: cheaper to the left, fewer late messages below. Green are "
        "objectives of service_level, with the wait and the share they ask for.",
        name=f"curve-{number}",
    )
    report.table(headers(advice), lines(advice), caption="* is the one to take" if winner else "")
    if advice.toml:
        what = f"in place of [targets.{target.name}]" if advice.question.target.policy else "to fill in"
        report.code(advice.toml, language="toml", caption=f"For tidemark.toml, {what}")
    report.figure(
        charts.over_time(advice),
        caption=f"{_over_time(advice)}, over time.",
        name=f"over-time-{number}",
    )
    report.text("What this rests on:")
    report.text("\n\n".join(_sentence(note) for note in advice.question.notes))


def _hours(row: Row) -> str:
    """Instance-hours: as in the table, and of little more exactly."""
    return f"{row.instance_hours:,.1f}" if row.instance_hours >= 100 else number_text(row.instance_hours)


def _over_time(advice: Answer) -> str:
    """Whose lines are in the second picture."""
    shown = advice.choice.shown
    return shown if advice.today is None or shown == TODAY else f"{TODAY} and {shown}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


MODEL = (
    "A queue is replayed first in, first out, second by second. An instance processes so many messages at once, and each takes "
    "its time. A new instance is billed when it is asked for, and serves after the start-up time; a scale-in takes effect "
    "at once. Tidemark's policies are decided by the code that ships. Azure Monitor autoscale and KEDA with the HPA are "
    "transcribed from their documentation and source. Every policy sees the true counts of the moment; real ones are a little "
    "older. After the load it goes on until it is known of each message whether it was late; what waits when the load ends is billed by the work that "
    "it takes.\n\n"
    f"The best trade-off is the policy with the lowest score, in which {WEIGHT}. Only policies that keep the objective compete; of "
    "several within two per cent of the lowest, it is the one nearest to the objective.\n\n"
    "The model knows one time for all messages, no poison messages, no database that slows down under more instances, and "
    "no limits or failures of the platform."
)
