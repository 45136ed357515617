"""A notice of kind `test`, sent to webhooks at once and beside the outbox: what each answers."""

from __future__ import annotations

import asyncio

from scaling.notices.announcer import Announcer, Delivered
from scaling.notices.events import test_notice
from tidemark.foundation.errors import OrderError

Answers = dict[str, Delivered]
"""By webhook."""


async def tested(announcer: Announcer | None, webhook: str | None, now: float) -> Answers:
    """Of one webhook, or of all. Raises OrderError for one that is not configured."""
    named = {} if announcer is None else announcer.notify.webhooks
    if announcer is None or (webhook is not None and webhook not in named):
        configured = ", ".join(named) or "none; add a table [notify.webhooks.NAME] to tidemark.toml"
        raise OrderError(f"webhook: found '{webhook or ''}'; configured are {configured}")
    notice = test_notice(now)
    chosen = [candidate for name, candidate in named.items() if webhook in {None, name}]
    answers = await asyncio.gather(*(announcer.deliver(sender, notice, now) for sender in chosen))
    return {sender.name: answer for sender, answer in zip(chosen, answers, strict=True)}
