"""What people are told, and what is remembered of it beside a target's state. Immutable data, as in `scaling.model`. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from msgspec import Struct


class NoticeKind(StrEnum):
    """What a notice is about; filters of `[notify]` name them."""

    SCALED = "scaled"
    REFUSED = "refused"
    FAILED = "failed"
    EXTERNAL_CHANGE = "external_change"
    HELD = "held"
    METRICS_MISSING = "metrics_missing"
    BUDGET = "budget"
    CALLS = "calls"
    POISON = "poison"
    SEVERAL = "several"  # stands for many that came at once; every filter lets it through
    TEST = "test"

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        """Notices that were stored before 0.2.0 call an external change a foreign hand."""
        return cls("external_change") if value == "foreign_hand" else None


class Notice(Struct, frozen=True, omit_defaults=True):
    """One thing to tell. `id` is the same whenever the same thing is told again; `at` is when it happened.

    `current` is the capacity before (scaled) or now, `desired` the one asked for or wanted, `reached` the one there
    is after a change. `since` is given for what lasts, and `ended` where it is over. `target` is empty for what is
    about the app. `counts`, by kind, and `targets`, some of their names, are those of SEVERAL.
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


class Standing(Struct, frozen=True):
    """What keeps a target from being scaled as its rules want, since when, and whether people were told."""

    kind: NoticeKind
    since: float
    told: bool = False


class Telling(Struct, frozen=True, omit_defaults=True):
    """Saved with a target's state, in the same row: `notices` that are to be handed to the outbox, or were, by a save that
    may not know it.
    """

    notices: tuple[Notice, ...] = ()
    standing: Standing | None = None


class Letter(Struct, frozen=True):
    """A notice on its way to one webhook. `tries` have begun; the next is due at `due_at`. `done`: it arrived, was given up,
    or is counted in another. It is kept for a while then, so that one that is handed in again is known.
    """

    notice: Notice
    put_at: float
    tries: int = 0
    due_at: float = 0.0
    done: bool = False
