"""Runs each check in a thread and an event loop of its own, so that none can delay another.

A check without an answer by its deadline is reported as unknown and left behind, because a thread cannot be stopped. That
is also why checks share no client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError

from scaling.doctor.verdicts import troubled
from scaling.model import Reason
from scaling.ports import CollectError, ScalerError
from scaling.scalers.arm.errors import Kind, classify
from scaling.service.own_code import start_in_thread
from tidemark.foundation.azure.connections import describe_identity_error
from tidemark.foundation.checkup import Check, Checkup, Finding, TriedError, Trouble, failed, unknown
from tidemark.foundation.errors import SettingsError, StoreUnavailableError, UnavailableError
from tidemark.foundation.sanitize import describe_error, error_text
from tidemark.foundation.settings_reader import ConfigError
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


async def run(
    checks: Sequence[Check],
    *,
    deadline: float = CHECK_DEADLINE,
    budget: float = BUDGET,
    at_once: int = AT_ONCE,
    begin: Begin = lambda call, name: start_in_thread(call, name)[1],
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
            return _findings_of(check, answer), False

    results = await asyncio.gather(*map(one, checks))
    findings = tuple(finding for part, _ in results for finding in part)
    return Checkup(findings, sum(left for _, left in results))


def _carried_out(check: Check, seconds: float) -> Sequence[Finding]:
    async def call() -> Sequence[Finding]:
        # Or a connection that hangs would keep the thread for minutes.
        async with asyncio.timeout(seconds + LINGERING):
            return await check.call()

    try:
        return asyncio.run(call())
    except Exception as error:  # whatever a service, an SDK or a class of the user's own raises
        return [troubled(check.name, check.subject, trouble_of(error), story_of(error), check.needs)]


def _findings_of(check: Check, answer: asyncio.Future[Sequence[Finding]]) -> Sequence[Finding]:
    error = asyncio.CancelledError() if answer.cancelled() else answer.exception()
    if error is None:
        return answer.result()
    remedy = "this is a bug of the class that was asked: read the app's log"
    return [failed(check.name, check.subject, f"the check broke: {error!r}", remedy)]


def _not_tried(check: Check, budget: float) -> Finding:
    reason = f"not tried: the checks before it took all of the {number_text(budget)} s"
    return unknown(
        check.name, check.subject, reason, "run it on a few targets: tidemark doctor --target NAME"
    )


# -- what an error of an SDK, a store or a user's own class means for the one who has to act ----------------

_KINDS = {
    Kind.FORBIDDEN: Trouble.REFUSED,
    Kind.NO_IDENTITY: Trouble.NO_IDENTITY,
    Kind.NOT_FOUND: Trouble.ABSENT,
    Kind.THROTTLED: Trouble.BUSY,
    Kind.BUSY: Trouble.BUSY,
}
_OURS = (CollectError, ScalerError, StoreUnavailableError, UnavailableError)
_WORDS = {  # of our own collectors, for errors of SDKs that have no status
    "access refused": Trouble.REFUSED,
    "does not exist": Trouble.ABSENT,
    "throttles": Trouble.BUSY,
    "no answer": Trouble.SILENT,
}


def trouble_of(error: Exception) -> Trouble:
    """By the error that began it, else by the words that our own adapters use for it."""
    if isinstance(error, TriedError):
        return error.trouble
    if isinstance(error, CollectError) and error.reason is Reason.ENTITY_DISABLED:
        return Trouble.DISABLED
    trouble = _by_kind(_origin(error))
    if trouble is Trouble.OTHER and isinstance(error, _OURS):
        return next((kind for words, kind in _WORDS.items() if words in error_text(error)), trouble)
    return trouble


def story_of(error: Exception) -> str:
    """In words; the error of an adapter of ours is a sentence, of another one its kind belongs to it."""
    if isinstance(error, ClientAuthenticationError) and error.status_code not in {401, 403}:
        return describe_identity_error(error)
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    words = (
        error_text(error)
        if isinstance(error, (*_OURS, ConfigError, SettingsError, TriedError))
        else describe_error(error)
    )
    return words or type(error).__name__


def _origin(error: BaseException) -> BaseException:
    """What an adapter's error was raised for. One raised `from None` still has its context."""
    while isinstance(error, _OURS):
        before = error.__cause__ or error.__context__
        if before is None:
            return error
        error = before
    # The operator must change a setting, or a role that the service names.
    refused = isinstance(error, SettingsError) and isinstance(error.__cause__, AzureError)
    return error.__cause__ if refused and error.__cause__ is not None else error


def _by_kind(error: BaseException) -> Trouble:
    if isinstance(error, TimeoutError):
        return Trouble.SILENT
    if isinstance(error, AzureError):
        kind = classify(error).kind
        answered = isinstance(error, HttpResponseError) and error.response is not None
        unknown_kind = Trouble.BUSY if answered else Trouble.UNREACHABLE
        return unknown_kind if kind is Kind.UNKNOWN else _KINDS.get(kind, Trouble.OTHER)
    if isinstance(error, OSError):
        return Trouble.UNREACHABLE
    return Trouble.SETTINGS if isinstance(error, SettingsError | ConfigError | ValueError) else Trouble.OTHER
