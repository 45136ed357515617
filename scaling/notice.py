"""Notices to people and to workers, and what of them is saved with a target's state. Immutable data, as in `scaling.model`. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from msgspec import Struct


class NoticeKind(StrEnum):
    """What a notice is about; the filters of `[notify]` use these names."""

    SCALED = "scaled"
    REFUSED = "refused"
    FAILED = "failed"
    EXTERNAL_CHANGE = "external_change"
    HELD = "held"
    METRICS_MISSING = "metrics_missing"
    BUDGET = "budget"
    CALLS = "calls"
    POISON = "poison"
    DRAIN = "drain"
    SEVERAL = "several"  # replaces many notices that came at once; passes every filter
    TEST = "test"

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        """Notices that were stored before 0.2.0 call an external change a foreign hand."""
        return cls("external_change") if value == "foreign_hand" else None


class Notice(Struct, frozen=True, omit_defaults=True):
    """One notice. The same event always gives the same `id`; `at` is when it happened (seconds since the epoch).

    `current` is the capacity before the change (SCALED) or now, `desired` the one that was asked for, `reached` the one
    after the change. A condition has the time it began, `since`, and `ended` when it is over. A drain notice has a
    `deadline`. `target` is empty for
    notices about the app. A notice of kind SEVERAL has `counts` by kind, and some names in `targets`.
    """

    id: str
    kind: NoticeKind
    target: str
    at: float
    text: str
    reason: str = ""
    current: int | None = None
    desired: int | None = None
    reached: int | None = None
    decision_id: str = ""
    since: float | None = None
    ended: bool = False
    counts: dict[str, int] = {}
    targets: tuple[str, ...] = ()
    deadline: float | None = None


class DrainEnd(StrEnum):
    """How a drain notice ended: the scale-in was carried out, was not wanted any more, or was not acknowledged in time."""

    DONE = "done"
    WITHDRAWN = "withdrawn"
    UNANSWERED = "unanswered"


class Drain(Struct, frozen=True):
    """The last drain notice of a target: a scale-in was announced to its workers at `at`, who have until `deadline`.

    `notice` is the id of its action, with which workers acknowledge; `needed` of them suffice. Without them, the scale-in is carried
    out at the deadline if `goes_anyway`, and else withdrawn. Whatever becomes of the app, it is over at `expires_at`.
    """

    notice: str
    from_capacity: int
    to_capacity: int
    at: float
    deadline: float
    expires_at: float
    needed: int
    goes_anyway: bool = False
    end: DrainEnd | None = None
    ended_at: float | None = None


class Acknowledged(Struct, frozen=True):
    """Which workers have acknowledged a drain notice, in the order they did."""

    notice: str
    workers: tuple[str, ...] = ()


class Standing(Struct, frozen=True):
    """The condition that keeps a target from being scaled as its rules want, its begin, and whether a notice was made."""

    kind: NoticeKind
    since: float
    told: bool = False


class Telling(Struct, frozen=True, omit_defaults=True):
    """Saved in the row of a target's state: the `notices` that go to the outbox after the save. Those of an earlier save
    may be in the outbox already.
    """

    notices: tuple[Notice, ...] = ()
    standing: Standing | None = None


class QueuedNotice(Struct, frozen=True):
    """A notice in the outbox of one webhook. `tries` were begun; the next is due at `due_at`. `done` means delivered, given
    up, or counted in another notice. A done notice is kept for a while, so that a duplicate is recognised.
    """

    notice: Notice
    put_at: float
    tries: int = 0
    due_at: float = 0.0
    done: bool = False
