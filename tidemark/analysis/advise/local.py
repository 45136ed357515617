"""`tidemark advise`: one target on one machine, without Spark."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from msgspec import structs
from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table
from typer import Option

from scaling.config.policy import PolicySpec
from scaling.service import registry
from tidemark.analysis.advise.answered import (
    LIMITED,
    Answer,
    answer,
    counts,
    flat,
    headers,
    lines,
    saved,
    stopped,
)
from tidemark.analysis.advise.options import AdviceOptions
from tidemark.analysis.advise.question import Options, Question, prepare, queue_of
from tidemark.analysis.backtest.candidates.grid import Targets
from tidemark.analysis.backtest.reading import LOG_ENDINGS, Readings, merged, read_arrivals, read_log
from tidemark.analysis.backtest.replay.history import HistoryError, Reading
from tidemark.analysis.errors import InputError
from tidemark.analysis.limits import read_limits
from tidemark.analysis.options import (
    CONFIG,
    ROOT_FOLDER,
    Allow,
    Config,
    History,
    LogBeside,
    Processes,
    Root,
    TargetName,
    app_settings,
    with_groups,
)
from tidemark.analysis.processes import run_all
from tidemark.analysis.results import finish
from tidemark.analysis.simulation.answer import Row, causes, keeps, play
from tidemark.analysis.simulation.field import OFTEN, Entry, field
from tidemark.foundation.app_settings import read_beside
from tidemark.foundation.log.terminal import Console
from tidemark.foundation.sanitize import one_line
from tidemark.foundation.settings_reader import ConfigError
from tidemark.foundation.wording import did_you_mean, duration_text, file_problem

LONG = 50_000
"""Evaluations of a history from which on policies that are evaluated more often are replayed only where no other keeps the objective.
Chosen: they take two thirds as long as all others together, and the others take about a minute on two cores (November 2026).
"""

LEFT_OUT = (
    f"policies that are evaluated every {OFTEN:g} s are left out of a history of more than {LONG:,} evaluations, as they would take two "
    "thirds as long as all others together: a part of it shows them"
)

console = Console()
errors = Console(stderr=True)


def read_targets(config: Path, settings: Mapping[str, str]) -> Targets | None:
    """tidemark.toml; None where there is none, and none was asked for. Raises InputError."""
    if not config.exists() and config == CONFIG:
        return None
    try:
        return Targets(
            config.read_text(encoding="utf-8"),
            name=config.name,
            settings=settings,
            plug_ins=registry,
            read=read_beside(config),
        )
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{config}: {file_problem(error)}") from error


# -- one target -------------------------------------------------------------------------------------------


def read_history(history: Path, log: Path | None, metric: str | None) -> Readings:
    """Raises InputError."""
    readings = (
        read_log(history, metric) if history.name.lower().endswith(LOG_ENDINGS) else read_arrivals(history)
    )
    return readings if log is None else merged(readings, read_log(log, metric))


def spec_of(name: str | None, targets: Targets | None) -> PolicySpec | None:
    """Today's policy of a target; None where it is not configured. Raises InputError."""
    try:
        return targets.baseline(name) if targets is not None and name in targets.names else None
    except ConfigError as error:
        raise InputError(str(error)) from error


def metric_for(spec: PolicySpec | None, options: Options) -> str | None:
    """The metric of a scaling log that is the queue; None where that is left to the log. Raises InputError."""
    try:
        return options.metric if spec is None else queue_of(spec, options)
    except HistoryError as error:
        raise InputError(str(error)) from error


def chosen(readings: Readings, target: str | None, targets: Targets | None) -> tuple[str, list[Reading]]:
    """The target to advise on, and its readings. Raises InputError."""
    if target is None and len(readings) > 1:
        raise InputError(
            f"the history holds {len(readings)} targets: give --target ({', '.join(list(readings)[:10])}); for all of them "
            "see `tidemark spark advise`"
        )
    if target is None:
        return next(iter(readings.items()))
    if target in readings:
        return target, readings[target]
    configured = () if targets is None else targets.names
    if len(readings) == 1 and target in configured:  # a plain CSV is called as its file
        return target, next(iter(readings.values()))
    held = f"the history holds {', '.join(list(readings)[:10])}"
    raise InputError(f"--target: found '{target}'; {did_you_mean(target, [*readings, *configured], held)}")


def advised(question: Question, options: Options, targets: Targets | None, *, processes: int) -> Answer:
    """The answer for one target. Raises InputError."""
    entries = list(field(question.target))
    usual = [entry for entry in entries if not entry.oftener]
    is_long = question.hours * 3600 / question.target.interval > LONG
    rows = _played(question, usual if is_long else entries, processes)
    if is_long and len(usual) < len(entries):
        if any(keeps(row, question.target) for row in rows):
            entries = usual
            question = structs.replace(question, notes=(*question.notes, LEFT_OUT))
        else:  # one of these may
            rows += _played(question, entries[len(usual) :], processes)
    advice = answer(question, options, rows, table_of(question.target.name, targets))
    if advice.choice.taken is not None:
        return advice
    shown = next(entry for entry in entries if entry.name == advice.choice.shown)
    cause = causes(question.target, question.recorded, shown)
    why = f"{advice.choice.why}. {cause[0].upper()}{cause[1:]}"
    return structs.replace(advice, choice=structs.replace(advice.choice, why=why))


def _played(question: Question, entries: Sequence[Entry], processes: int) -> list[Row]:
    text = f"{len(entries)} policies over {duration_text(question.hours * 3600)}"
    return run_all(partial(_play, question), entries, processes, text, cost=_cost)


def _cost(entry: Entry) -> float:
    """How long a replay takes beside others, roughly: as measured in November 2026, in hundredths of a second for ten thousand evaluations."""
    learns = entry.spec is not None and any(rule.type == "service_level" for rule in entry.spec.rules)
    return (240.0 if learns else 80.0) * (4.0 if entry.oftener else 1.0)


def _play(question: Question, entry: Entry) -> Row:
    target, recorded = question.target, question.recorded
    return play(target, recorded, recorded.load(target.name), entry)


def table_of(name: str, targets: Targets | None) -> Mapping[str, Any] | None:
    """The target's table in tidemark.toml."""
    return targets.table(name) if targets is not None and name in targets.names else None


def show(advice: Answer) -> None:
    """The answer on the terminal; that the maximum is too low comes first."""
    if saturated := advice.question.saturated:
        console.print(f"[bold yellow]{escape(one_line(saturated))}[/]", soft_wrap=True)
    for note in advice.question.notes:
        console.print(f"[dim]{escape(one_line(note))}[/]", soft_wrap=True)
    table = Table(box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    shown = lines(advice)
    first, *others = headers(advice)
    table.add_column(first)  # on a narrow terminal a name is wrapped, never a number
    for header, column in zip(others, list(zip(*shown, strict=True))[1:], strict=True):
        width = max(map(len, column))
        table.add_column(escape(header), justify="right", min_width=width, max_width=max(width, 8))
    for row, cells in zip(advice.rows, shown, strict=True):
        style = "bold green" if row.policy == advice.choice.taken else ""
        table.add_row(*map(escape, cells), style=style)
    console.print(table)
    console.print(f"[bold]{escape(one_line(advice.choice.why))}[/]", soft_wrap=True)
    if advice.choice.taken is not None:
        for sentence in filter(None, (saved(advice), stopped(advice))):
            console.print(escape(sentence), soft_wrap=True)
    if advice.toml:
        where = "in place of that table" if advice.question.target.policy is not None else "to fill in"
        console.print(f"\n[dim]for tidemark.toml, {where}:[/]\n")
        console.print(advice.toml, markup=False, highlight=False, soft_wrap=True)


def read_question(
    history: Path, log: Path | None, target: str | None, options: Options, targets: Targets | None
) -> Question:
    """The question of the target that is asked for, or of the only one. Raises InputError."""
    queue = metric_for(spec_of(target, targets), options)
    name, readings = chosen(read_history(history, log, queue), target, targets)
    try:
        return prepare(name, readings, options, spec_of(name, targets))
    except HistoryError as error:
        raise InputError(str(error)) from error


@with_groups
def command(
    *,
    history: History,
    target: TargetName = None,
    log: LogBeside = None,
    load: AdviceOptions,
    output: Annotated[
        Path, Option("--output", file_okay=False, writable=True, help="Folder of page and rows.")
    ] = Path("advise-output"),
    processes: Processes = None,
    config: Config = CONFIG,
    root: Root = ROOT_FOLDER,
    allow: Allow = None,
) -> None:
    """What today's policy, Azure Monitor autoscale, KEDA and service_level would have made of recorded load.

    Instance-hours, money, late messages, and the policy to take, as TOML to paste. Writes one page with plots.
    """
    limits = read_limits(allow or (), LIMITED.keys() - {"quarantined"})
    options, targets = load.read(), read_targets(config, app_settings(root))
    question = read_question(history, log, target, options, targets)
    name = question.target.name
    if targets is not None and name not in targets.names:
        known = ", ".join(targets.names[:10])
        note = f"'{name}' is no target of {config}; to compare with today's policy, give --target: {known}"
        errors.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True)
    advice = advised(question, options, targets, processes=processes or os.cpu_count() or 1)
    show(advice)
    finish(
        [advice],
        output,
        {"advice": (flat(advice), None)},
        "tidemark.analysis.advise.page",
        counts=counts([advice]),
        limited=LIMITED,
        allow=limits,
    )
