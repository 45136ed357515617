"""What a run may leave out, and still call its answer good. Pure.

`--allow late=0 --allow invalid=0.1%`: a job counts what it left out. If that is more than allowed, its check failed: it ends
with exit status 3, after its tables and its page are written, so that a pipeline can stop there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct

from tidemark.analysis.errors import CheckFailedError, InputError, JobError
from tidemark.foundation.settings_reader import share


class Limit(Struct, frozen=True):
    """So many, or so great a share of all. One of them is set."""

    count: int | None = None
    share: float | None = None

    def __str__(self) -> str:
        return f"{self.count:,}" if self.share is None else f"{self.share:.4g} of all"


Limits = Mapping[str, Limit]


def read_limits(texts: Iterable[str], known: Collection[str]) -> dict[str, Limit]:
    """Of options such as late=0 and invalid=0.1%. Raises InputError naming the one at fault."""
    limits: dict[str, Limit] = {}
    for text in texts:
        name, _, value = text.partition("=")
        limit = _limit(value)
        if name not in known or limit is None:
            raise InputError(
                f"--allow is '{text}'; accepted: NAME=NUMBER or NAME=SHARE (late=0, late=0.1%), where NAME is "
                f"{', '.join(sorted(known))}"
            )
        limits[name] = limit
    return limits


def _limit(text: str) -> Limit | None:
    if text.isdecimal():
        return Limit(count=int(text))
    try:
        return Limit(share=share(text))
    except ValueError:
        return None


def exceeded_limits(
    limits: Limits, counts: Mapping[str, float | None], limited: Mapping[str, str]
) -> list[str]:
    """What was counted beyond its limit, in words. None is not known, which no limit allows; `limited` has, by name, the count
    that a share is of.
    """
    reasons = []
    for name, limit in sorted(limits.items()):
        count, total = counts[name], counts[limited[name]] or 0.0
        if count is None:
            reasons.append(f"{name} not known, allowed {limit}")
        elif limit.share is None and count > (limit.count or 0):
            reasons.append(f"{name} {count:,.0f}, allowed {limit}")
        elif limit.share is not None and count > limit.share * total:
            reasons.append(f"{name} {count:,.0f} of {total:,.0f}, allowed {limit}")
    return reasons


class RowCount(NamedTuple):
    """What became of the rows of an input, `what`: as `check_sum` takes it."""

    what: str
    read: int
    counts: Mapping[str, int]
    then: str = "nothing is published"


def check_sum(what: str, read: int, counts: Mapping[str, int], then: str = "nothing is published") -> None:
    """Each row that was read is in one of the counts. Raises JobError where that is not so; `then` is the outcome."""
    if read != sum(counts.values()):
        counted = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        raise JobError(
            f"{what}: {read:,} rows were read, and the counts are of {sum(counts.values()):,} ({counted}): {then}; a file was"
            " changed meanwhile, or is damaged, or Spark lost a worker and read its part twice: run the job again, and where"
            " it ends so again, report it"
        )


def raise_for_failures(failures: Collection[str], report: str) -> None:
    """Raises CheckFailedError if there are failures."""
    if failures:
        raise CheckFailedError(f"check failed: {'; '.join(failures)}; report: {report}")
