"""What waits in the outbox of a webhook: what is sent next, what stands for a flood, when it is tried again. Pure."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import structs

from scaling.notice import Letter, Notice, NoticeKind
from tidemark.foundation.wording import count_text

FLOOD = 10
"""Messages that have not been tried yet and wait at the same time; of more than so many one is made that counts."""

FOLDED_AT_ONCE = 99
"""With the one that takes their place, the rows of one transaction."""

FIRST_DELAY, MAX_DELAY = 30.0, 3_600.0

MAX_TRIES = 12
"""Over about six hours: 30 s after the first, twice as long after each, an hour at most."""

NAMED = 20
"""Targets that a notice which counts names."""


def tried(letter: Letter, now: float, retry_after: float | None = None) -> Letter:
    """As it is saved before a try, and after one whose answer asks to wait."""
    if retry_after is not None:
        return structs.replace(letter, due_at=max(letter.due_at, now + min(retry_after, MAX_DELAY)))
    delay = min(FIRST_DELAY * 2**letter.tries, MAX_DELAY)
    return structs.replace(letter, tries=letter.tries + 1, due_at=now + delay)


def folded(letters: Iterable[Letter]) -> tuple[Letter, ...]:
    """The rows to write where too many wait that were never tried: the one that counts, and those it stands for, done.

    Empty where there is no flood. Of a thousand it takes several rounds, each counting the one before. What was tried
    once may have arrived: it keeps its id, and is told by itself.
    """
    fresh = sorted((each for each in letters if not each.tries and not each.done), key=_age)
    if len(fresh) <= FLOOD:
        return ()
    taken = fresh[:FOLDED_AT_ONCE]
    whole = Letter(one_for_all([each.notice for each in taken]), max(each.put_at for each in taken))
    return (whole, *(structs.replace(each, done=True) for each in taken))


def due(letters: Iterable[Letter], now: float, limit: int) -> Sequence[Letter]:
    """Those to try now, oldest first."""
    waiting = (each for each in letters if not each.done and each.due_at <= now)
    return sorted(waiting, key=_age)[:limit]


def _age(letter: Letter) -> tuple[float, str]:
    return letter.notice.at, letter.notice.id


def one_for_all(notices: Sequence[Notice]) -> Notice:
    """The one that stands for many, and counts what stood for many before. Its id is made of theirs."""
    counts: Counter[str] = Counter()
    for notice in notices:
        counts.update(notice.counts or {notice.kind.value: 1})
    named = (name for each in notices for name in (each.targets or (each.target,)) if name)
    targets = tuple(dict.fromkeys(named))[:NAMED]
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    among = f"; among the targets: {', '.join(targets)}" if targets else ""
    digest = hashlib.sha256("\n".join(each.id for each in notices).encode()).hexdigest()[:32]
    return Notice(
        id=f"several:{digest}",
        kind=NoticeKind.SEVERAL,
        target="",
        at=max(each.at for each in notices),
        text=f"{count_text(counts.total(), 'notice')}: {kinds}{among}",
        since=min(
            each.since if each.kind is NoticeKind.SEVERAL and each.since else each.at for each in notices
        ),
        counts=dict(counts),
        targets=targets,
    )
