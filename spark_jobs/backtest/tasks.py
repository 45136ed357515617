"""What Spark's workers do: one target's history in, results out; scores in, the best out. Runs where the executors are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from msgspec import Struct

from scaling.config.policy import PolicySpec
from spark_jobs.per_target import readings_of, tasks_in
from spark_jobs.schemas import arrow_schema, row_schema
from tidemark.analysis.backtest.candidates.grid import Candidates, Plan, Targets
from tidemark.analysis.backtest.candidates.recommend import choose, total
from tidemark.analysis.backtest.replay.history import HistoryError, Reading
from tidemark.analysis.backtest.replay.score import Row, flat, row_of
from tidemark.analysis.backtest.work import (
    Comparing,
    Comparison,
    Prepared,
    Replayer,
    Settings,
    compare,
    decisions,
    prepare,
)
from tidemark.analysis.errors import InputError
from tidemark.foundation.settings_reader import ConfigError

SCORES = row_schema("""
    target text, candidate text, part text, messages double, late double, missed double,
    oldest double, instance_hours double, cost double, out long, inward long, flaps long,
    hours double
""")
"""As `score.Score`, by target, candidate and part ("training" or "held_out")."""

RECOMMENDATIONS = row_schema("""
    target text, recommended text, verdict text, late_share double, late_share_running double,
    cost double, cost_running double, actions long, actions_running long, changes text
""")
"""What to set for each target; scores are of the held-out part. `changes` is TOML."""

CHOSEN = row_schema("target text, recommended text, candidates long, names long")
"""The best candidate of the training part by target; `names` differs for different sets of candidates."""


class Task(Struct, frozen=True, kw_only=True):
    """`interval` is the running policy's, in seconds; `base` names the target whose candidates are meant: those with the places
    of the `span`, from the first on and before the last, or the two to compare.
    """

    settings: Settings
    metric: str
    interval: float
    base: str
    span: tuple[int, int] = (0, 0)
    comparing: Comparing | None = None


class Checked(Struct, frozen=True):
    """A history can be replayed, and with candidates that can be built."""


_task = msgspec.msgpack.Decoder(Task)
_policies: Callable[[bytes], list[tuple[str, PolicySpec]]] = msgspec.msgpack.Decoder(
    list[tuple[str, PolicySpec]]
).decode

SCORED = arrow_schema(SCORES).append(pa.field("decisions", pa.int64()))
"""SCORES, and how many decisions were made for both parts: with the row of the training part, 0 with the other."""

Source = tuple[Targets, Plan]
"""What candidates are built of."""


def checked(target: str, readings: list[Reading], task: Task, source: Source | None = None) -> Checked:
    """As `per_target.Work`. `source` where candidates are still to be checked."""
    _prepared(target, readings, task)
    if source is not None:
        Candidates(*source).check(task.base, task.metric)
    return Checked()


def compared(target: str, readings: list[Reading], task: Task) -> Comparison:
    """As `per_target.Work`."""
    assert task.comparing is not None  # the caller's contract
    return compare(Replayer(_prepared(target, readings, task)), task.comparing)


def scored(
    batches: Iterable[pa.RecordBatch], policies: Mapping[str, bytes], source: Source
) -> Iterator[pa.RecordBatch]:
    """SCORED of spans. `policies` has encoded candidates by base; those of others are built here. Raises InputError for what
    cannot be replayed.
    """
    known: dict[str, list[tuple[str, PolicySpec]]] = {}
    candidates = Candidates(*source)
    for target, _, work, days in tasks_in(batches):
        task = _task.decode(work)
        if task.base in policies and task.base not in known:
            known = {task.base: _policies(policies[task.base])}
        try:
            chosen = (
                known[task.base][slice(*task.span)]
                if task.base in known
                else [
                    (candidate.name, candidate.spec) for candidate in candidates.some(task.base, *task.span)
                ]
            )
            replayer = Replayer(_prepared(target, readings_of(days, task.metric), task))
            rows = [flat(row) for row in replayer.rows(chosen)]
        except (HistoryError, ConfigError) as error:
            raise InputError(str(error)) from error
        begin, end = replayer.history.start, replayer.history.end
        made = {name: decisions(begin, end, spec, task.metric) for name, spec in chosen}
        for row in rows:
            row["decisions"] = made[row["candidate"]] if row["part"] == "training" else 0
        yield pa.RecordBatch.from_pylist(rows, schema=SCORED)


def _prepared(target: str, readings: list[Reading], task: Task) -> Prepared:
    return prepare(target, readings, task.settings, metric=task.metric, interval=task.interval)


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
        choice_row = (
            target,
            choice.recommended,
            choice.candidates,
            int.from_bytes(digest[:8], "big", signed=True),
        )
        row = dict(zip(CHOSEN.fieldNames(), choice_row, strict=True))
        yield pa.RecordBatch.from_pylist([row], schema=arrow_schema(CHOSEN))


def totals_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row of SCORES for each candidate and part, which come together."""
    for (candidate, part), rows in groupby(score_rows(batches), key=attrgetter("candidate", "part")):
        row = Row("", candidate, part, total(scored_row.score for scored_row in rows))
        yield pa.RecordBatch.from_pylist([flat(row)], schema=arrow_schema(SCORES))
