"""What Spark's workers do: one target's history in, its profile out. Runs where the executors are; no Spark here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from msgspec import Struct

from scaling.config.policy import PolicySpec
from spark_jobs.backtest.tasks import OUTCOMES, Days, readings_of, works
from tidemark.analysis.advise.question import Options, prepare
from tidemark.analysis.backtest.replay.history import HistoryError
from tidemark.analysis.seasons.profile import Profile, profile


class Task(Struct, frozen=True):
    """`spec` is today's policy, `metric` the queue's in a log."""

    options: Options
    spec: PolicySpec | None
    metric: str | None
    zone: str
    share: float


encoded = msgspec.msgpack.Encoder().encode
_task = msgspec.msgpack.Decoder(Task)
profile_of: Callable[[bytes], Profile] = msgspec.msgpack.Decoder(Profile).decode


def outcomes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For mapInArrow: TASKS in, OUTCOMES out. What is wrong with a history becomes a problem, not a failed task."""
    for target, work, days in works(batches):
        yield pa.RecordBatch.from_pylist([_outcome(target, _task.decode(work), days)], schema=OUTCOMES)


def _outcome(target: str, task: Task, days: Days) -> dict[str, Any]:
    try:
        question = prepare(target, readings_of(days, task.metric), task.options, task.spec)
        found = profile(question, zone=task.zone, share=task.share)
    except HistoryError as error:
        return {"target": target, "result": None, "problem": str(error)}
    return {"target": target, "result": encoded(found), "problem": None}
