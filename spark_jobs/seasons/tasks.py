"""What Spark's workers do: one target's history in, its profile out. Runs where the executors are; no Spark here."""

from __future__ import annotations

from msgspec import Struct

from scaling.config.policy import PolicySpec
from tidemark.analysis.advise.question import Options, prepare
from tidemark.analysis.backtest.replay.history import Reading
from tidemark.analysis.seasons.profile import Profile, profile


class Task(Struct, frozen=True):
    """`spec` is today's policy, `metric` the queue's in a log."""

    options: Options
    spec: PolicySpec | None
    metric: str | None
    zone: str
    share: float


def work(target: str, readings: list[Reading], task: Task) -> Profile:
    """As `per_target.Work`."""
    question = prepare(target, readings, task.options, task.spec)
    return profile(question, zone=task.zone, share=task.share)
