"""An answer for one target, in the rows that terminal, page and tables show. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from tidemark.analysis.advise.question import Options, Question
from tidemark.analysis.advise.snippet import as_text, recommended
from tidemark.analysis.simulation.answer import Choice, Row, choose
from tidemark.analysis.simulation.field import TODAY, field
from tidemark.foundation import wording
from tidemark.foundation.wording import duration_text


class Answer(Struct, frozen=True):
    """`rows` in the order of the field. `toml` is the table to paste; empty where today's policy is to stay, or no rule of ours keeps
    the objective.
    """

    question: Question
    options: Options
    rows: tuple[Row, ...]
    choice: Choice
    toml: str

    def row(self, policy: str) -> Row:
        return next(row for row in self.rows if row.policy == policy)

    @property
    def shown(self) -> Row:
        """The policy to take, or where none keeps the objective, the one that is late least."""
        return self.row(self.choice.taken or self.choice.shown)

    @property
    def today(self) -> Row | None:
        return next((row for row in self.rows if row.policy == TODAY), None)

    def money(self, hours: float) -> str:
        """The price of so many instance-hours; empty without one."""
        price = self.options.price
        return "" if price is None else f"{hours * price:,.2f} {self.options.currency}".rstrip()


def answer(
    question: Question, options: Options, rows: Sequence[Row], table: Mapping[str, Any] | None
) -> Answer:
    """`table` is the target's in tidemark.toml, if it has one."""
    target, choice = question.target, choose(question.target, rows)
    taken = next((entry for entry in field(target) if entry.name == choice.taken), None)
    toml = ""
    if taken is not None and taken.ours and taken.spec is not None:
        toml = as_text(target.name, recommended(target, taken.spec, table))
    return Answer(question, options, tuple(rows), choice, toml)


def headers(advice: Answer) -> tuple[str, ...]:
    money = () if advice.options.price is None else (advice.options.currency or "money",)
    wait = duration_text(advice.question.target.wait)
    return (
        "policy",
        "inst. hours",
        *money,
        f"later than {wait}",
        "99 % within",
        "longest wait",
        "changes per h",
    )


def lines(advice: Answer) -> list[tuple[str, ...]]:
    """One line per policy, in words, with a mark at the one to take."""
    shown, price = [], advice.options.price
    for row in advice.rows:
        money = () if price is None else (f"{row.instance_hours * price:,.2f}",)
        mark = " *" if row.policy == advice.choice.taken else ""
        cells = (percent_text(row.late), _wait(row.slow), _wait(row.longest), f"{row.actions_per_hour:.1f}")
        shown.append((f"{row.policy}{mark}", f"{row.instance_hours:,.1f}", *money, *cells))
    return shown


def _wait(seconds: float | None) -> str:
    """A wait that has no end: the replay ended before."""
    if seconds is None:
        return "not served"
    unit, size = next(((unit, size) for unit, size in UNITS if seconds >= 3 * size), ("s", 1.0))
    return f"{seconds / size:.{1 if size > 1.0 and seconds < 10 * size else 0}f} {unit}"


UNITS = (("d", 86_400.0), ("h", 3600.0), ("min", 60.0))


def percent_text(share: float) -> str:
    """Two decimals below ten per cent, for it is small shares that are asked for."""
    return wording.percent_text(share, 2 if share < 0.1 else 1)


def saved(advice: Answer) -> str:
    """What the policy to take, or the one that is late least, costs a day, and what it saves of today's."""
    taken, today = advice.shown, advice.today
    days = advice.question.hours / 24.0
    hours_text = f"{taken.instance_hours / days:,.1f} instance-hours a day"
    money = advice.money(taken.instance_hours / days)
    costs = f"{hours_text} ({money})" if money else hours_text
    if today is None or taken is today:
        return costs
    less = today.instance_hours - taken.instance_hours
    share = abs(less) / today.instance_hours
    return f"{costs}, {100 * share:.0f} % {'less' if less >= 0 else 'more'} than {TODAY}"


FEW_STOPPED = 0.005
"""Chosen: of fewer messages nothing is said. It is what `service_level` stops at most where a message takes a few seconds."""


def stopped(advice: Answer) -> str:
    """What the scale-ins of the policy to take, or of the one that is late least, stop; empty where that is little."""
    share = advice.shown.stopped
    if share <= FEW_STOPPED:
        return ""
    return (
        f"without drain notices its scale-ins stop about {percent_text(share)} of the messages while they are processed; "
        "these have to be begun again"
    )


LIMITED = {"unknown": "bins", "quarantined": "bins", "better": "targets", "late": "targets"}
"""What --allow knows, and what its shares are of. `unknown` are bins of the histories without a count; `better` are targets for
which something else than today's policy is to be taken, `late` those whose policy of today breaks the objective.
"""


def counts(answers: Sequence[Answer]) -> dict[str, float | None]:
    """The counts that --allow may limit, but for `quarantined`. Where a target has no policy of today, nobody knows how good it is."""
    questions = [single_answer.question for single_answer in answers]
    bins = [round(question.whole * 3600 / question.recorded.width) for question in questions]
    known = [round(question.hours * 3600 / question.recorded.width) for question in questions]
    late = [
        single_answer.today.late > single_answer.question.target.late
        if single_answer.today is not None
        else None
        for single_answer in answers
    ]
    better = [single_answer.choice.taken not in {TODAY, None} for single_answer in answers]
    whole = None not in late
    return {
        "targets": len(answers),
        "bins": sum(bins),
        "unknown": sum(bins) - sum(known),
        "better": sum(better) if whole else None,
        "late": sum(map(bool, late)) if whole else None,
    }


FLAT = ("policy", "instance_hours", "late", "longest", "slow", "actions_per_hour", "flaps_per_hour", "score")


def flat(advice: Answer) -> list[dict[str, Any]]:
    """Rows of a table: one per policy; `recommended` and `best_trade_off` mark theirs. Waits in seconds, null where not served."""
    price = advice.options.price
    return [
        {
            "target": advice.question.target.name,
            **{name: getattr(row, name) for name in FLAT},
            "money": None if price is None else row.instance_hours * price,
            "best_trade_off": row.policy == advice.choice.best_trade_off,
            "recommended": row.policy == advice.choice.taken,
        }
        for row in advice.rows
    ]
