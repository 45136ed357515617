"""What Spark's workers do: one target's history in, some of its policies replayed. Runs where the executors are; no Spark here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from msgspec import Struct, structs

from scaling.config.policy import PolicySpec
from spark_jobs.backtest.tasks import OUTCOMES, Days, readings_of, works
from tidemark.analysis.advise.question import Options, Question, prepare
from tidemark.analysis.backtest.replay.history import HistoryError
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


encoded = msgspec.msgpack.Encoder().encode
_task = msgspec.msgpack.Decoder(Task)
done_of: Callable[[bytes], Done] = msgspec.msgpack.Decoder(Done).decode


def outcomes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For mapInArrow: TASKS in, OUTCOMES out. What is wrong with a history becomes a problem, not a failed task."""
    for target, work, days in works(batches):
        yield pa.RecordBatch.from_pylist([_outcome(target, _task.decode(work), days)], schema=OUTCOMES)


def _outcome(target: str, task: Task, days: Days) -> dict[str, Any]:
    try:
        question = prepare(target, readings_of(days, task.metric), task.options, task.spec)
    except HistoryError as error:
        return {"target": target, "result": None, "problem": str(error)}
    load = question.recorded.load(target)
    rows = {
        number: play(question.target, question.recorded, load, entry)
        for number, entry in enumerate(field(question.target))
        if number % task.of == task.block
    }
    if not task.drawn:
        rows = {number: structs.replace(row, series=NO_SERIES) for number, row in rows.items()}
        question = structs.replace(question, recorded=structs.replace(question.recorded, bins=[]))
    return {"target": target, "result": encoded(Done(question, rows)), "problem": None}
