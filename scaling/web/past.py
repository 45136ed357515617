"""The past of one target over HTTP: as much of the log as a chart can show, and rules tried on it.

To try rules takes the operator's role, though nothing is changed by it: it reads a day with all inputs, and works for seconds on
the processor that decides. Whoever would set the rules may ask for that; and, as with an order, no other site's page can.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from msgspec import Struct

from scaling.log_entry import LogEntry, LogKind
from scaling.ports import LogPage
from scaling.service.autoscaler import Autoscaler
from scaling.shadow.trial import simulate_past
from scaling.web import api, views
from tidemark.foundation.gathering import gather
from tidemark.foundation.http.answers import Response, error_response, json_fields, json_response
from tidemark.foundation.settings_reader import ConfigError

MAX_PARTS = 480
"""Decisions shown of a time range that is longer than a day, one of each part: a chart is not much wider. Each costs a small read."""

ALL_OF_A_DAY = 3_000
"""Entries of up to a day, which is shown whole: half a minute between decisions."""

AT_ONCE = 32
MAX_CHANGES = 1_000
MAX_SPAN = 90 * 86_400.0
DAY = 86_400.0

TRIED_AT_MOST = 3_000
"""Decisions: a day at intervals of half a minute. A thousand take about two seconds of a processor."""

MAX_POLICY = 4_000
"""Characters of rules to try: as many as a person writes, and a parser takes no time for."""

_trying = asyncio.Lock()


class HistoryView(Struct, frozen=True):
    """Entries of one target, newest first: of every `every` seconds one decision (all of them where it is 0), and
    everything that is no decision, unless `complete` is false.
    """

    target: str
    since: float
    until: float
    every: float
    complete: bool
    entries: tuple[views.EntryView, ...]


async def history(autoscaler: Autoscaler, target: str, parameters: Mapping[str, str]) -> Response:
    """`since` and `until`: epoch seconds, or durations back from now; a day without them."""
    try:
        await _check(autoscaler, target, parameters, ("since", "until"))
        since, until = _span(autoscaler, parameters)
    except ValueError as error:
        return error_response(400, str(error))
    log, seconds = autoscaler.ports.log, until - since
    if seconds <= 1.1 * DAY:
        entries, complete = await _all(autoscaler, target, since, until, limit=ALL_OF_A_DAY)
        chosen, every = tuple(entries), 0.0
    else:
        every = seconds / MAX_PARTS
        page = await log.read(target, since=since, until=until, limit=MAX_CHANGES, changes=True)
        complete = page.continuation is None

        async def newest(index: int) -> tuple[LogEntry, ...]:
            start = since + index * every
            return (await log.read(target, since=start, until=start + every, limit=1)).entries

        samples = await gather(newest, range(MAX_PARTS), at_once=AT_ONCE)
        known = {
            (entry.at, entry.key): entry for entry in (*page.entries, *(e for some in samples for e in some))
        }
        chosen = tuple(sorted(known.values(), key=lambda entry: (-entry.at, entry.key)))
    shown = views.log_view(LogPage(chosen)).entries
    return json_response(HistoryView(target, since, until, every, complete, shown))


async def trial(autoscaler: Autoscaler, target: str, body: bytes) -> Response:
    """`policy` of the JSON object in `body`: the keys of a target's table `shadow`, as TOML; what they would have done in the
    day up to `until`.
    """
    from scaling.service import assembly  # noqa: PLC0415 - reads the file anew, for one question of a person's

    try:
        parameters = {name: str(value) for name, value in json_fields(body).items() if value is not None}
        await _check(autoscaler, target, parameters, ("policy", "since", "until"))
        since, until = _span(autoscaler, parameters)
        text = parameters.get("policy", "")
        if len(text) > MAX_POLICY:
            raise ValueError(f"policy: found {len(text)} characters; at most {MAX_POLICY} are accepted")
        policy = await asyncio.to_thread(assembly.with_shadow, os.environ, target, text)
    except (ValueError, ConfigError) as error:
        return error_response(400, str(error))
    if _trying.locked():
        return error_response(429, "rules are being tried already; ask again in some seconds")
    async with _trying:
        since = max(since, until - DAY)
        entries, _ = await _all(autoscaler, target, since, until, limit=TRIED_AT_MOST, inputs=True)
        decisions = [entry for entry in reversed(entries) if entry.kind is LogKind.DECISION]
        return json_response(await asyncio.to_thread(simulate_past, policy, decisions))


async def _all(
    autoscaler: Autoscaler, target: str, since: float, until: float, *, limit: int, inputs: bool = False
) -> tuple[list[LogEntry], bool]:
    """Entries, newest first, and whether these are all of them."""
    entries: list[LogEntry] = []
    continuation = None
    while len(entries) < limit:
        page = await autoscaler.ports.log.read(
            target,
            since=since,
            until=until,
            limit=api.MAX_LIMIT,
            continuation=continuation,
            inputs=inputs,
        )
        entries += page.entries
        continuation = page.continuation
        if continuation is None:
            return entries, True
    return entries, False


async def _check(
    autoscaler: Autoscaler, target: str, parameters: Mapping[str, str], accepted: tuple[str, ...]
) -> None:
    unknown = [name for name in parameters if name not in {*accepted, "code"}]
    if unknown:
        raise ValueError(f"{unknown[0]}: accepted are {', '.join(accepted)}")
    if not await api.known(autoscaler, target):
        raise ValueError(api.unknown_target(autoscaler, target))


def _span(autoscaler: Autoscaler, parameters: Mapping[str, str]) -> tuple[float, float]:
    now = autoscaler.clock()
    until = api.moment("until", parameters.get("until"), now)
    until = now if until is None else min(until, now)
    since = api.moment("since", parameters.get("since"), now)
    since = until - DAY if since is None else since
    if not 0.0 < until - since <= MAX_SPAN:
        raise ValueError("since: is not before until, or by more than 90 days")
    return since, until
