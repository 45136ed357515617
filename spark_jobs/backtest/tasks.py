"""What Spark's workers do: one target's history in, results out as bytes. Runs where the executors are; no Spark here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from msgspec import Struct

from spark_jobs.backtest.reading import of_metrics
from spark_jobs.backtest.replay.history import HistoryError, Reading
from spark_jobs.backtest.replay.score import Row
from spark_jobs.backtest.work import Comparison, Replayer, Settings, Work, done, prepare


class Task(Struct, frozen=True):
    """`interval` is the running policy's, in seconds."""

    settings: Settings
    metric: str
    interval: float
    work: Work


encoded = msgspec.msgpack.Encoder().encode
_task = msgspec.msgpack.Decoder(Task)
rows_of: Callable[[bytes], list[Row]] = msgspec.msgpack.Decoder(list[Row]).decode
comparison_of: Callable[[bytes], Comparison] = msgspec.msgpack.Decoder(Comparison).decode

OUTCOMES = pa.schema([("target", pa.string()), ("result", pa.binary()), ("problem", pa.string())])
"""What a task gave, or why it could not be done."""


Batches = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""For mapInArrow: TASKS in, OUTCOMES out."""


def outcomes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For mapInArrow: TASKS in, OUTCOMES out. What is wrong with a history becomes a problem, not a failed task."""
    for batch in batches:
        for task in batch.to_pylist():
            yield pa.RecordBatch.from_pylist([_outcome(task)], schema=OUTCOMES)


def _outcome(row: Mapping[str, Any]) -> dict[str, Any]:
    target, task = row["target"], _task.decode(row["work"])
    readings = readings_of(row["readings"], task.metric)
    try:
        prepared = prepare(target, readings, task.settings, metric=task.metric, interval=task.interval)
        result = done(Replayer(prepared), task.work)
    except HistoryError as error:
        return {"target": target, "result": None, "problem": str(error)}
    return {"target": target, "result": encoded(result), "problem": None}


def readings_of(recorded: Sequence[Mapping[str, Any]], metric: str | None) -> list[Reading]:
    """READINGS of one target in their order in time. Of several entries of one decision the last one counts, by its
    content: rows come in no order.
    """
    found: dict[tuple[bool, float], Reading] = {}
    twice: list[Reading] = []
    for row in sorted(recorded, key=_order):
        if row["arrivals"] is not None:
            waiting = dict(row["metrics"] or ()).get("backlog")
            reading = Reading(row["at"], row["arrivals"], waiting, row["instances"])
            if (True, row["at"]) in found:
                twice.append(reading)
            found[True, row["at"]] = reading
        elif seen := of_metrics(row["at"], dict(row["metrics"] or ()), row["instances"], metric):
            found[False, row["at"]] = seen
    return [*found.values(), *twice]


def _order(row: Mapping[str, Any]) -> tuple[float, float, int, str]:
    arrivals = -1.0 if row["arrivals"] is None else row["arrivals"]
    instances = -1 if row["instances"] is None else row["instances"]
    return row["at"], arrivals, instances, str(sorted(dict(row["metrics"] or ()).items()))
