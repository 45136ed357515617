"""The report of a backtest."""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.analysis import report as reports
from tidemark.analysis.backtest import charts
from tidemark.analysis.backtest.analysis import Analysis, advice, changes_of
from tidemark.analysis.backtest.candidates.grid import BASELINE
from tidemark.analysis.backtest.candidates.recommend import (
    VERDICTS,
    Choice,
    Difference,
    Judged,
    Verdict,
    in_short,
)
from tidemark.analysis.backtest.replay.score import Score
from tidemark.analysis.backtest.work import Comparison
from tidemark.analysis.report import Report
from tidemark.foundation.wording import percent_text

BEST = 12
"""Candidates in the table of one target."""

HEADERS = (
    *("candidate", "late %", "late held out %", "cost", "cost held out"),
    *("minutes missed", "oldest, s", "changes", "flaps"),
)


def report_of(analysis: Analysis) -> Report:
    """The page: what to set, how sure that is, and what it was assumed on."""
    rules = analysis.job.settings.rules
    targets = len(analysis.choices)
    report = Report("Backtest", _subtitle(analysis))
    report.facts(_facts(analysis))
    report.text(
        f"Recommended is, on the training part, the cheapest candidate that keeps {percent_text(rules.late_budget, 1)} of the messages "
        "or fewer waiting longer than the objective; where none does, the one with the fewest late messages. The "
        f"held-out part, the last {percent_text(rules.holdout, 0)} of each history, was not looked at for that. It says what the "
        "recommendation is worth."
    )
    if analysis.everywhere is not None and analysis.judged_everywhere is not None:
        report.heading("One setting for all targets")
        _show_choice(report, analysis.everywhere, analysis.judged_everywhere, analysis, blocks="targets")
        report.figure(
            charts.pareto(analysis.everywhere, budget=rules.late_budget),
            caption="All targets together: each dot is a candidate, larger ones change the capacity more often; the dotted "
            "line is the budget of late messages.",
            name="pareto-all",
        )
    if targets > 1:
        report.heading("Each target by itself")
        report.table(
            ("target", "recommended", "late %", "running", "cost", "running ", "held out"),
            _by_target(analysis),
        )
    drawn = [c for c in analysis.comparisons.values() if c.series is not None]
    for number, comparison in enumerate(drawn):
        _show_target(report, analysis, comparison, number)
    report.heading("What this rests on")
    report.text(_assumptions(analysis))
    _next(report, analysis)
    return report


def _next(report: Report, analysis: Analysis) -> None:
    if any(judged.verdict is Verdict.BETTER for judged in analysis.judged.values()):
        report.next_step(
            "when the changes above are in tidemark.toml: what is wrong with it, and whether it flaps",
            "tidemark",
            "lint",
        )
    else:
        found_for = next(iter(analysis.choices))
        report.next_step(
            "nothing beats the running policies here; more history may tell",
            *("tidemark", "history", "pull", "--target", found_for, "--days", 93, "--out", "history.csv"),
        )


def _show_target(report: Report, analysis: Analysis, comparison: Comparison, number: int) -> None:
    """One target: its candidates, and both policies over time. `number` makes the names of its pictures unique."""
    choice = analysis.choices[comparison.target]
    report.heading(comparison.target)
    _show_choice(
        report, choice, analysis.judged[comparison.target], analysis, blocks="blocks of an hour or a day"
    )
    for note in comparison.notes:
        report.text(f"Assumed: {note}.")
    caption = "Each dot is a candidate; larger ones change the capacity more often; the dotted line is the budget of late messages."
    report.figure(
        charts.pareto(choice, budget=analysis.job.settings.rules.late_budget),
        caption=caption,
        name=f"pareto-{number}",
    )
    report.figure(
        charts.over_time(comparison, service_rate=comparison.service_rate),
        caption="Replayed with the running and with the recommended policy; the queue answers what each decides.",
        name=f"over-time-{number}",
    )
    report.table(
        HEADERS, _best(choice), caption=f"The best {BEST} on the training part, and the running policy"
    )


def _subtitle(analysis: Analysis) -> str:
    names = list(analysis.choices)
    candidates = analysis.choices[names[0]].candidates
    what = names[0] if len(names) == 1 else f"{len(names):,} targets"
    return f"{what}: {candidates:,} candidates, the running policy among them, replayed with the product's own decisions"


def _facts(analysis: Analysis) -> dict[str, str]:
    verdicts = [judged.verdict for judged in analysis.judged.values()]
    hours = sum(c.training[BASELINE].hours + c.held_out[BASELINE].hours for c in analysis.choices.values())
    return {
        "targets": f"{len(analysis.choices):,}",
        "hours of history": f"{hours:,.0f}",
        "decisions replayed": f"{analysis.evaluations:,}",
        "better than now": f"{sum(v == 'better' for v in verdicts):,}",
        "not proven better": f"{sum(v != 'better' for v in verdicts):,}",
    }


def _show_choice(report: Report, choice: Choice, judged: Judged, analysis: Analysis, *, blocks: str) -> None:
    name = choice.recommended
    old, new = choice.held_out[BASELINE], choice.held_out[name]
    report.text(f"Recommended: {name}. {_in_words(judged)}")
    report.facts(
        {
            "late, held out": percent_text(new.late_share, 2),
            "late, running": percent_text(old.late_share, 2),
            "cost, held out": f"{new.cost:,.2f}",
            "cost, running": f"{old.cost:,.2f}",
            "changes": f"{new.actions}",
            "changes, running": f"{old.actions}",
        }
    )
    if judged.late is not None and judged.cost is not None:
        report.text(
            f"Per block: {_interval(judged.late, 'late messages')}, {_interval(judged.cost, 'cost')} "
            f"(difference to the running policy, 95 % interval, resampling {blocks})."
        )
    changes = changes_of(analysis, choice)
    if changes:
        report.code(changes, language="toml", caption="What to change")


def _in_words(judged: Judged) -> str:
    text = VERDICTS[judged.verdict]
    if judged.verdict in {Verdict.BETTER, Verdict.TRADE_OFF, Verdict.WORSE}:
        return f"On the held-out part it is {text}."
    return f"{text[0].upper()}{text[1:]}."


def _interval(difference: Difference, unit: str) -> str:
    mean, low, high = (
        f"{'+' if each >= 0 else ''}{reports.number(each)}"
        for each in (difference.mean, difference.low, difference.high)
    )
    return f"{mean} {unit} ({low} to {high})"


def _by_target(analysis: Analysis) -> Iterable[tuple[object, ...]]:
    for line in advice(analysis):
        late = line.late_share * 100, line.late_share_running * 100
        verdict = in_short(Verdict(line.verdict))
        yield (line.target, line.recommended, *late, line.cost, line.cost_running, verdict)


def _best(choice: Choice) -> Iterable[tuple[object, ...]]:
    shown = list(choice.ranking[:BEST])
    if BASELINE not in shown:
        shown.append(BASELINE)
    for name in shown:
        yield _line(name, choice.training[name], choice.held_out[name])


def _line(name: str, training: Score, held_out: Score) -> tuple[object, ...]:
    return (
        name,
        training.late_share * 100,
        held_out.late_share * 100,
        training.cost,
        held_out.cost,
        (training.missed + held_out.missed) / 60,
        max(training.oldest, held_out.oldest),
        training.actions + held_out.actions,
        training.flaps + held_out.flaps,
    )


def _assumptions(analysis: Analysis) -> str:
    model = analysis.job.settings.model
    return (
        f"One instance serves {_rates(analysis)} messages a second while there are any; the model has no other limit. A change "
        f"has its effect {model.scaling_time:g} s after its decision, and new instances serve {model.start_up:g} s after "
        f"that; they are billed from the decision on. The objective is {model.slo:g} s: a message is late when it waits "
        f"longer, a minute is missed while the oldest waits longer. An instance-hour costs {model.price:g}. A flap is a "
        f"change back within {model.flap_window / 60:g} minutes.\n\n"
        "The queue is a fluid, first in, first out, with arrivals and service spread evenly within a step. The model knows no "
        "single messages, no messages of different sizes and no poison messages. In a gap of the history there is no report, as "
        "in production: the queue does not change, and the time is not counted. Policies in dry-run are replayed as if they "
        "were not."
    )


def _rates(analysis: Analysis) -> str:
    rates = sorted({comparison.service_rate for comparison in analysis.comparisons.values()})
    return f"{rates[0]:.4g}" if len(rates) == 1 else f"{rates[0]:.4g} to {rates[-1]:.4g}"
