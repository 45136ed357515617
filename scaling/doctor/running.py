"""Runs each check in a thread and an event loop of its own, so that none can delay another.

A check without an answer by its deadline is reported as unknown and left behind, because a thread cannot be stopped. That
is also why checks share no client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from scaling.doctor.trouble import story_of, trouble_of
from scaling.doctor.verdicts import troubled
from scaling.service.own_code import start_in_thread
from tidemark.foundation.checkup import Check, Checkup, Finding, Trouble, failed, unknown
from tidemark.foundation.wording import number_text

CHECK_DEADLINE = 25.0
"""Seconds one check may take: more than a collector's or a scaler's own deadline, whose words then reach the person."""

BUDGET = 150.0
"""Seconds all of them may take: the platform cuts an HTTP answer after 230."""

LINGERING = 5.0
"""Seconds after its deadline in which a check that nobody waits for any more may close what it opened."""

AT_ONCE = 16
"""Checks at a time. Each has an SDK to load and a connection to open, which is work for one core."""

Begin = Callable[[Callable[[], Sequence[Finding]], str], Awaitable[Sequence[Finding]]]


def in_a_thread(call: Callable[[], Sequence[Finding]], name: str) -> Awaitable[Sequence[Finding]]:
    return start_in_thread(call, name)[1]


async def run(
    checks: Sequence[Check],
    *,
    deadline: float = CHECK_DEADLINE,
    budget: float = BUDGET,
    at_once: int = AT_ONCE,
    begin: Begin = in_a_thread,
) -> Checkup:
    """The findings of all checks, in their order, after `budget` seconds at the latest (loop time)."""
    gate = asyncio.Semaphore(at_once)
    loop = asyncio.get_running_loop()
    until = loop.time() + budget

    async def one(check: Check) -> tuple[Sequence[Finding], bool]:
        async with gate:
            seconds = min(deadline, until - loop.time())
            if seconds <= 0:
                return [_not_tried(check, budget)], False
            answer = asyncio.ensure_future(
                begin(partial(_carried_out, check, seconds), f"doctor {check.name}")
            )
            done, _ = await asyncio.wait([answer], timeout=seconds)
            if not done:
                answer.cancel()
                text = f"no answer within {number_text(seconds)} s"
                return [troubled(check.name, check.subject, Trouble.SILENT, text, check.needs)], True
            return _told(check, answer), False

    found = await asyncio.gather(*map(one, checks))
    findings = tuple(finding for each, _ in found for finding in each)
    return Checkup(findings, sum(left for _, left in found))


def _carried_out(check: Check, seconds: float) -> Sequence[Finding]:
    async def call() -> Sequence[Finding]:
        # Or a connection that hangs would keep the thread for minutes.
        async with asyncio.timeout(seconds + LINGERING):
            return await check.call()

    try:
        return asyncio.run(call())
    except Exception as error:  # whatever a service, an SDK or a class of the user's own raises
        return [troubled(check.name, check.subject, trouble_of(error), story_of(error), check.needs)]


def _told(check: Check, answer: asyncio.Future[Sequence[Finding]]) -> Sequence[Finding]:
    error = asyncio.CancelledError() if answer.cancelled() else answer.exception()
    if error is None:
        return answer.result()
    remedy = "this is a bug of the class that was asked: read the app's log"
    return [failed(check.name, check.subject, f"the check broke: {error!r}", remedy)]


def _not_tried(check: Check, budget: float) -> Finding:
    found = f"not tried: the checks before it took all of the {number_text(budget)} s"
    return unknown(check.name, check.subject, found, "run it on a few targets: tidemark doctor --target NAME")
