"""What Spark's workers do: one target's history in, results out; scores in, the best out. Runs where the executors are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import attrgetter, itemgetter
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from msgspec import Struct

from scaling.config.policy import PolicySpec
from spark_jobs.backtest.schemas import CHOSEN, READINGS, SCORES
from spark_jobs.errors import InputError
from spark_jobs.schemas import arrow_schema
from tidemark.analysis.backtest.candidates.grid import Candidates, Plan, Targets
from tidemark.analysis.backtest.candidates.recommend import choose, total
from tidemark.analysis.backtest.candidates.variation import GridError
from tidemark.analysis.backtest.reading import arrivals_in, of_metrics, rows_as_arrivals
from tidemark.analysis.backtest.replay.history import HistoryError, Reading
from tidemark.analysis.backtest.replay.score import Row, flat, row_of
from tidemark.analysis.backtest.work import (
    Comparing,
    Comparison,
    Prepared,
    Replayer,
    Settings,
    compare,
    prepare,
)
from tidemark.foundation.settings_reader import ConfigError


class Span(Struct, frozen=True, tag="span"):
    """Some of the candidates of a target, by their places: those from `first` on and before `last`."""

    first: int
    last: int


class Preparing(Struct, frozen=True, tag="preparing"):
    """Only look whether the history can be replayed, and with candidates that nobody has built yet."""


class Task(Struct, frozen=True):
    """`interval` is the running policy's, in seconds; `base` names the target whose candidates are meant."""

    settings: Settings
    metric: str
    interval: float
    base: str
    work: Span | Comparing | Preparing


encoded = msgspec.msgpack.Encoder().encode
_task = msgspec.msgpack.Decoder(Task)
comparison_of: Callable[[bytes], Comparison] = msgspec.msgpack.Decoder(Comparison).decode
_policies: Callable[[bytes], list[tuple[str, PolicySpec]]] = msgspec.msgpack.Decoder(
    list[tuple[str, PolicySpec]]
).decode

OUTCOMES = pa.schema([("target", pa.string()), ("result", pa.binary()), ("problem", pa.string())])
"""What a task gave, or why it could not be done."""

SCORED = arrow_schema(SCORES).append(pa.field("decisions", pa.int64()))
"""SCORES, and how many decisions were made for both parts: with the row of the training part, 0 with the other."""

Batches = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""For mapInArrow: TASKS in, a task's days one after the other."""

Source = tuple[Targets, Plan]
"""What candidates are built of."""

Days = list[Sequence[Mapping[str, Any]]]
"""Recorded rows of a target, by day."""


def works(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, bytes, Days]]:
    """Each target and work with the days of its history; one history is held at a time."""
    rows = (row for batch in batches for row in batch.to_pylist())
    for (target, work, _), days in groupby(rows, key=itemgetter("target", "work", "block")):
        yield target, work, [day["readings"] for day in days]


def outcomes(batches: Iterable[pa.RecordBatch], source: Source | None = None) -> Iterator[pa.RecordBatch]:
    """OUTCOMES of preparing and comparing. What is wrong with a history, or a candidate, becomes a problem, not a failed
    task. `source` where candidates are still to be checked.
    """
    for target, work, days in works(batches):
        task, result, problem = _task.decode(work), None, None
        try:
            found = _prepared(target, task, days)
            if isinstance(task.work, Comparing):
                result = encoded(compare(Replayer(found), task.work))
            elif source is not None:
                Candidates(*source).check(task.base, task.metric)
        except (HistoryError, ConfigError, GridError) as error:
            problem = str(error)
        row = {"target": target, "result": result, "problem": problem}
        yield pa.RecordBatch.from_pylist([row], schema=OUTCOMES)


def scored(
    batches: Iterable[pa.RecordBatch], policies: Mapping[str, bytes], source: Source
) -> Iterator[pa.RecordBatch]:
    """SCORED of spans. `policies` has encoded candidates by base; those of others are built here. Raises InputError for what
    cannot be replayed.
    """
    known: dict[str, list[tuple[str, PolicySpec]]] = {}
    candidates = Candidates(*source)
    for target, work, days in works(batches):
        task = _task.decode(work)
        assert isinstance(task.work, Span)  # noqa: S101 - the caller's contract
        if task.base in policies and task.base not in known:
            known = {task.base: _policies(policies[task.base])}
        span = task.work.first, task.work.last
        try:
            chosen = (
                known[task.base][slice(*span)]
                if task.base in known
                else [(each.name, each.spec) for each in candidates.some(task.base, *span)]
            )
            replayer = Replayer(_prepared(target, task, days))
            rows = [flat(row) for row in replayer.rows(chosen)]
        except (HistoryError, ConfigError) as error:
            raise InputError(str(error)) from error
        made = {name: replayer.decisions(spec, task.metric) for name, spec in chosen}
        for row in rows:
            row["decisions"] = made[row["candidate"]] if row["part"] == "training" else 0
        yield pa.RecordBatch.from_pylist(rows, schema=SCORED)


def _prepared(target: str, task: Task, days: Days) -> Prepared:
    readings = readings_of(days, task.metric)
    return prepare(target, readings, task.settings, metric=task.metric, interval=task.interval)


# -- arrivals

_READINGS = arrow_schema(READINGS)
_AT_ONCE = 10_000  # rows of READINGS in a batch


def arrivals_in_file(name: str, data: memoryview) -> Iterator[pa.RecordBatch]:
    """READINGS of a file. Raises InputError."""
    return _as_readings(arrivals_in(name, data))


def arrivals_in_rows(batches: Iterable[pa.RecordBatch], target: str) -> Iterator[pa.RecordBatch]:
    """For mapInArrow: rows of a table in, READINGS out. `target` is that of rows without such a column. Raises InputError."""
    rows = (row for batch in batches for row in batch.to_pylist())
    return _as_readings(rows_as_arrivals(rows, target, "--arrivals"))


def _as_readings(found: Iterable[tuple[str, Reading]]) -> Iterator[pa.RecordBatch]:
    rest = iter(found)
    while some := list(islice(rest, _AT_ONCE)):
        rows = [
            {
                "target": target,
                "at": each.at,
                "arrivals": each.arrivals,
                "instances": each.instances,
                "metrics": None if each.backlog is None else [("backlog", each.backlog)],
            }
            for target, each in some
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=_READINGS)


# -- ranking


def score_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """From SCORES."""
    for batch in batches:
        for row in batch.to_pylist():
            yield row_of(row)


def choices_of(batches: Iterable[pa.RecordBatch], late_budget: float) -> Iterator[pa.RecordBatch]:
    """CHOSEN of SCORES in the order of targets."""
    for target, rows in groupby(score_rows(batches), key=attrgetter("target")):
        choice = choose(rows, late_budget=late_budget)[target]
        digest = hashlib.sha256(repr(sorted(choice.training)).encode()).digest()
        told = (target, choice.recommended, choice.candidates, int.from_bytes(digest[:8], "big", signed=True))
        row = dict(zip(CHOSEN.fieldNames(), told, strict=True))
        yield pa.RecordBatch.from_pylist([row], schema=arrow_schema(CHOSEN))


def totals_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row of SCORES for each candidate and part, which come together."""
    for (candidate, part), rows in groupby(score_rows(batches), key=attrgetter("candidate", "part")):
        row = Row("", candidate, part, total(each.score for each in rows))
        yield pa.RecordBatch.from_pylist([flat(row)], schema=arrow_schema(SCORES))


def readings_of(days: Days, metric: str | None) -> list[Reading]:
    """READINGS of one target in their order in time, from those of its days in their order. Of several entries of one
    decision the last one counts, by its content: rows come in no order.
    """
    parts = [_of_day(day, metric) for day in days]
    once = [reading for found, _ in parts for reading in found]
    return [*once, *(reading for _, twice in parts for reading in twice)]


def _of_day(recorded: Sequence[Mapping[str, Any]], metric: str | None) -> tuple[list[Reading], list[Reading]]:
    """The readings, and those that were given before."""
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
    return [*found.values()], twice


def _order(row: Mapping[str, Any]) -> tuple[float, float, int, str]:
    arrivals = -1.0 if row["arrivals"] is None else row["arrivals"]
    instances = -1 if row["instances"] is None else row["instances"]
    return row["at"], arrivals, instances, str(sorted(dict(row["metrics"] or ()).items()))
