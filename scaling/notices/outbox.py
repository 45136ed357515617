"""The outbox of a webhook: which notice is sent next, when it is tried again, and which one replaces a flood. Pure."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import structs

from scaling.notice import Notice, NoticeKind, QueuedNotice
from tidemark.foundation.wording import count_text

FLOOD = 10
"""More untried notices than this at a time become one notice that counts them. Chosen: what a person reads in a chat."""

FOLDED_AT_ONCE = 99
"""With the notice that replaces them these are 100 rows, the most that one transaction of Table Storage takes."""

FIRST_DELAY, MAX_DELAY = 30.0, 3_600.0
"""Seconds before the second try, and at most between two tries. Chosen: a webhook that restarts loses half a minute."""

MAX_TRIES = 12
"""They take about six hours: each delay is twice the one before, from FIRST_DELAY to MAX_DELAY."""

NAMED = 20
"""How many targets a notice of kind SEVERAL names."""


def with_next_try(queued: QueuedNotice, now: float, retry_after: float | None = None) -> QueuedNotice:
    """The notice as it is saved before a try, or, with `retry_after`, after an answer that asks to wait."""
    if retry_after is not None:
        return structs.replace(queued, due_at=max(queued.due_at, now + min(retry_after, MAX_DELAY)))
    delay = min(FIRST_DELAY * 2**queued.tries, MAX_DELAY)
    return structs.replace(queued, tries=queued.tries + 1, due_at=now + delay)


def fold_flood(queue: Iterable[QueuedNotice]) -> tuple[QueuedNotice, ...]:
    """The rows that replace a flood of untried notices: one that counts them, and the others marked done.

    Empty without a flood. A thousand notices take several rounds, each of which counts the one before. A notice that was
    tried may have arrived, so it stays by itself under its id.
    """
    folded_kinds = (
        queued for queued in queue if queued.notice.kind is not NoticeKind.DRAIN
    )  # a worker waits for it
    untried = sorted((queued for queued in folded_kinds if not queued.tries and not queued.done), key=_age)
    if len(untried) <= FLOOD:
        return ()
    folded = untried[:FOLDED_AT_ONCE]
    notice = replace_by_one([queued.notice for queued in folded])
    put_at = max(queued.put_at for queued in folded)
    return (QueuedNotice(notice, put_at), *(structs.replace(queued, done=True) for queued in folded))


def due(queue: Iterable[QueuedNotice], now: float, limit: int) -> Sequence[QueuedNotice]:
    """The notices to try now, oldest first."""
    waiting = (queued for queued in queue if not queued.done and queued.due_at <= now)
    return sorted(waiting, key=_age)[:limit]


def _age(queued: QueuedNotice) -> tuple[float, str]:
    return queued.notice.at, queued.notice.id


def replace_by_one(notices: Sequence[Notice]) -> Notice:
    """The notice of kind SEVERAL that replaces these, which may be of that kind themselves. Its id is a hash of theirs."""
    counts: Counter[str] = Counter()
    for notice in notices:
        counts.update(notice.counts or {notice.kind.value: 1})
    named = (name for notice in notices for name in (notice.targets or (notice.target,)) if name)
    targets = tuple(dict.fromkeys(named))[:NAMED]
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    among = f"; among the targets: {', '.join(targets)}" if targets else ""
    digest = hashlib.sha256("\n".join(notice.id for notice in notices).encode()).hexdigest()[:32]
    return Notice(
        id=f"several:{digest}",
        kind=NoticeKind.SEVERAL,
        target="",
        at=max(notice.at for notice in notices),
        text=f"{count_text(counts.total(), 'notice')}: {kinds}{among}",
        since=min(
            notice.since if notice.kind is NoticeKind.SEVERAL and notice.since else notice.at
            for notice in notices
        ),
        counts=dict(counts),
        targets=targets,
    )
