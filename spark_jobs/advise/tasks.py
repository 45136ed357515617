"""What Spark's workers do: one target's history in, some of its policies replayed. Runs where the executors are; no Spark here."""

from __future__ import annotations

from msgspec import Struct, structs

from scaling.config.policy import PolicySpec
from tidemark.analysis.advise.question import Options, Question, prepare
from tidemark.analysis.backtest.replay.history import Reading
from tidemark.analysis.simulation.answer import Row, play
from tidemark.analysis.simulation.field import field
from tidemark.analysis.simulation.waits import NO_SERIES


class Task(Struct, frozen=True):
    """Every `of`-th policy of the field, from number `block` on. `spec` is today's policy, `metric` the queue's in a log.
    Lines over time are kept for targets that are `drawn`: those of thousands would not fit where the page is made.
    """

    options: Options
    spec: PolicySpec | None
    metric: str | None
    block: int
    of: int
    drawn: bool


class Done(Struct, frozen=True):
    """`rows` by their number in the field."""

    question: Question
    rows: dict[int, Row]


def work(target: str, readings: list[Reading], task: Task) -> Done:
    """As `per_target.Work`."""
    question = prepare(target, readings, task.options, task.spec)
    load = question.recorded.load(target)
    rows = {
        number: play(question.target, question.recorded, load, entry)
        for number, entry in enumerate(field(question.target))
        if number % task.of == task.block
    }
    if not task.drawn:
        rows = {number: structs.replace(row, series=NO_SERIES) for number, row in rows.items()}
        question = structs.replace(question, recorded=structs.replace(question.recorded, bins=[]))
    return Done(question, rows)
