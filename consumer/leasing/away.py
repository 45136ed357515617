"""Gives the partitions of an instance up while it reaches nothing, and takes it back when hub and sink answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from consumer.leasing.ownership import Ownership
from consumer.leasing.reach import Reach
from tidemark.foundation.calls import answered

WITHIN = 30.0
"""Seconds for hub, sink and store to answer an instance that is away: twice the receiver's own limit."""

_log = logging.getLogger("tidemark.consumer")

Questions = Callable[[float], Sequence[tuple[str, Awaitable[object]]]]
"""From a deadline (loop time) to calls, each with the name of who answers."""


async def watch_reach(
    reach: Reach, ownership: Ownership, questions: Questions, waiting: Callable[[], int], *, every: float
) -> None:
    """Looks every `every` seconds until it is cancelled. `waiting` counts the records that are to be written."""
    while True:
        await asyncio.sleep(every)
        try:
            if not waiting():
                reach.forget_sinks()
            await _look(reach, ownership, questions)
        except Exception:  # an instance that nobody watches would stay away for ever
            _log.exception("whether hub and sink are reached is looked at again")


async def _look(reach: Reach, ownership: Ownership, questions: Questions) -> None:
    now = asyncio.get_running_loop().time()
    if reach.gives_up(now, ownership.others):
        _log.warning("giving all partitions up, which other instances take: %s", reach.reason)
        await ownership.leave()
    elif reach.may_ask(now) and not ownership.holds_any and await _all_answer(questions):
        _log.info("hub and sink answer again: taking part")
        reach.came_back()
        ownership.come_back()


async def _all_answer(questions: Questions) -> bool:
    deadline = asyncio.get_running_loop().time() + WITHIN
    asking = [answered(what, deadline, call) for what, call in questions(deadline)]
    answers = await asyncio.gather(*asking, return_exceptions=True)
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    if errors:
        _log.debug("still away: %s", errors[0])
    return not errors
