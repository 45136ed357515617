"""What the commands want of a running autoscaler, wherever they reach it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from scaling.calls.usage import CallsSeen
from scaling.log_entry import LogEntry, LogKind
from scaling.notices.trial import Answers
from scaling.shadow.comparison import ShadowView
from scaling.web.views import EntryView, StatusView

Entry = LogEntry | EntryView
"""A row of the log, as stored or as the API shows it."""


class Page(Protocol):
    """A page of the log, newest first; a continuation of None is the end."""

    @property
    def entries(self) -> Sequence[Entry]: ...

    @property
    def continuation(self) -> str | None: ...


class Access(Protocol):
    """An autoscaler as a person sees it. Everything may raise the errors of its kind, as `TidemarkError` or
    `StoreUnavailableError`; what was asked wrongly is a ValueError.
    """

    async def status(self) -> StatusView:
        """Every target, and the poison messages."""
        ...

    async def calls(self) -> CallsSeen:
        """What the app's processes have called."""
        ...

    async def page(self, target: str | None, since: float, limit: int, continuation: str | None) -> Page:
        """Entries of one target or all, not older than `since` seconds ago. Raises ValueError for an unknown target."""
        ...

    async def shadows(self, target: str | None) -> dict[str, ShadowView]:
        """The shadow of one target or of all that have one. Raises ValueError for an unknown target."""
        ...

    async def order(self, target: str, name: str, fields: Mapping[str, Any], *, by: str) -> str:
        """Gives an order; returns what stands now, in words. `by` is a name where nobody is signed in."""
        ...

    async def test_webhooks(self, webhook: str | None) -> Answers:
        """Sends a notice of kind `test` to one webhook or all. Raises OrderError for an unknown one."""
        ...

    async def aclose(self) -> None: ...


async def newest(
    access: Access, target: str | None, since: float, limit: int, *, changes: bool = False
) -> list[Entry]:
    """At most `limit` entries, newest first; with `changes` without the decisions to hold."""
    entries: list[Entry] = []
    continuation: str | None = None
    while len(entries) < limit:
        page = await access.page(target, since, min(limit, 500), continuation)
        entries += [
            e for e in page.entries if not changes or e.kind != LogKind.DECISION or e.current != e.desired
        ]
        if page.continuation in {None, continuation}:  # the end, or an answer that would go on without one
            break
        continuation = page.continuation
    return entries[:limit]
