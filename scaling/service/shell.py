"""What collecting, deciding, applying and checking share: the ports, what a function does at its end, bounded stores."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct, structs

from scaling.calls.noting import Noting
from scaling.config.policy_file import Config
from scaling.drains.draining import with_end
from scaling.log_entry import LogEntry, LogKind
from scaling.model import Recommendation, TargetState
from scaling.notice import Notice
from scaling.notices.announcer import Announcer
from scaling.notices.events import announced, calls_notice
from scaling.ports import Collector, DecisionLog, PoisonQueues, Scaler, Snapshot, StateStore
from scaling.schedules.timetable import is_due
from scaling.service.reading import MetricSource
from scaling.window import CLOCK_TOLERANCE, Window
from tidemark.foundation.errors import StoreUnavailableError
from tidemark.foundation.keys import TooLargeError
from tidemark.foundation.sanitize import describe_error

_Result = TypeVar("_Result")

logger = logging.getLogger(__name__)

ATTEMPTS = 8
"""Tries to save against concurrent writers before the message goes back to its queue."""

STORE_DEADLINE = 15.0
"""Seconds one call of a store or of the log may take: a message whose target's rows do not answer gives its place
in the queue's batch back.
"""


class Ports(Struct, frozen=True):
    """The outside world, as adapters. `collectors` by entity, `scalers` by target."""

    collectors: Mapping[str, Collector]
    sources: Sequence[MetricSource]
    scalers: Mapping[str, Scaler]
    states: StateStore
    log: DecisionLog
    poison: PoisonQueues
    announcer: Announcer | None = None
    calls: Noting | None = None


class Outcome(Struct, frozen=True):
    """What a function has to do at its end: messages to put out, lines to log."""

    messages: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


LOST_AFTER = 300.0
"""Seconds after which a report that led to no decision counts as lost, and the target is due again: a queue delivers, and delivers
again, within minutes.
"""

DUE_DEADLINE = 5.0
"""Seconds in which the store has to say when a target was evaluated last. Chosen: all others wait for it."""


class DueTargets:
    """Which targets are due. When one with an `interval` of its own was evaluated last, all instances and restarts know by
    the reports that were decided upon; what this process knows of that saves asking the store at every tick.
    """

    def __init__(self) -> None:
        self._decided: dict[str, float] = {}
        self._asked: dict[str, float] = {}

    async def due(
        self, config: Config, ports: Ports, now: float
    ) -> tuple[list[str], dict[str, Collector], dict[str, Scaler]]:
        """The targets to read now, and what there is to ask for them: most at every collection, others less often."""
        names = list(config.policies)
        are_due = await asyncio.gather(*(self._is_due(config, ports, name, now) for name in names))
        targets = [name for name, due in zip(names, are_due, strict=True) if due]
        looked_at = set(targets)
        entities = {source.entity for source in ports.sources if source.target in looked_at}
        collectors = {
            entity: collector for entity, collector in ports.collectors.items() if entity in entities
        }
        return targets, collectors, {target: ports.scalers[target] for target in targets}

    async def _is_due(self, config: Config, ports: Ports, target: str, now: float) -> bool:
        every, interval = config.policies[target].spec.interval, config.interval
        if every <= interval:
            return True
        asked = self._asked.get(target)
        if asked is not None and not is_due(now, every, interval, asked) and 0 <= now - asked < LOST_AFTER:
            return False  # its report may be on its way
        known = _sane(max(self._decided.get(target, 0.0), asked or 0.0), now)
        if known is not None and not is_due(now, every, interval, self._decided.get(target)):
            return False
        try:
            call = ports.states.load(target)
            state = (await within(DUE_DEADLINE, call, f"the state of '{target}'")).state
        except Exception:  # whatever keeps the store from telling: what this process asked counts
            due = is_due(now, every, interval, _sane(asked, now))
        else:
            last = _sane(
                max(state.evaluated, default=None), now
            )  # after a clock was put back nothing is known
            if last is not None:
                self._decided[target] = last
            due = is_due(now, every, interval, last)
        if due:
            self._asked[target] = now
        return due


def _sane(at: float | None, now: float) -> float | None:
    """A time that a clock can have left; what is further ahead would keep a target from being read until then."""
    return at if at is not None and at <= now + CLOCK_TOLERANCE else None


# The stores, each call bounded in time: a call that hangs would keep its message's place for ever


async def load(ports: Ports, target: str) -> Snapshot:
    """With notices of the stored state handed to the outbox: whoever saved them may have died before that."""
    loaded = await within(STORE_DEADLINE, ports.states.load(target), f"the state of '{target}'")
    return structs.replace(loaded, state=await _handed_over(ports, loaded.state))


async def save(
    ports: Ports, loaded: Snapshot, state: TargetState, windows: Mapping[str, Window] | None = None
) -> None:
    """Raises ConflictError when the state changed since it was loaded. Its notices are saved with
    it, and handed to the outbox then.
    """
    state = with_end(state)
    if ports.announcer is not None:
        state = announced(ports.announcer.notify, loaded.target, loaded.state, state)
    saving = ports.states.save(loaded, state, windows)
    await within(STORE_DEADLINE, saving, f"the state of '{loaded.target}'")
    await _handed_over(ports, state)


async def save_lighter(
    ports: Ports, loaded: Snapshot, state: TargetState, windows: Mapping[str, Window], error: TooLargeError
) -> str:
    """Saves a state that no row has room for without what can be spared, least missed first; returns what was left out.

    A report that cannot be saved would be delivered until it is given up, and the next one after it: nothing would be
    decided any more. Raises the last TooLargeError.
    """
    left_out: list[str] = []
    for what, lighter in _LIGHTER:
        less = lighter(state)
        if less == state:
            continue
        state = less
        left_out.append(what)
        try:
            await save(ports, loaded, state, windows)
        except TooLargeError as again:
            error = again
            continue
        if left_out == [SHADOW]:
            return f"shadow {loaded.target}: {error}; it begins anew"
        return f"scaling {loaded.target}: {error}; left out: {', '.join(left_out)}"
    raise error


SHADOW = "what the shadow remembers, which begins anew"

_LIGHTER: tuple[tuple[str, Callable[[TargetState], TargetState]], ...] = (
    (SHADOW, lambda state: structs.replace(state, shadow=b"")),
    ("the numbers of the last decision", lambda state: structs.replace(state, last=_bare(state.last))),
    ("what the rules remember, which learn anew", lambda state: structs.replace(state, memories={})),
)


def _bare(last: Recommendation | None) -> Recommendation | None:
    """A decision without its words and numbers; its limits say what is wanted, which other targets go by."""
    if last is None:
        return None
    return structs.replace(last, evidence=(), flips=(), note="", sentence="")


async def _handed_over(ports: Ports, state: TargetState) -> TargetState:
    """`state` without its notices, once the outbox has them; else as it is, for the next to try again."""
    telling = state.telling
    if telling is None or not telling.notices:
        return state
    if ports.announcer is not None and not await _put(ports.announcer, telling.notices):
        return state
    left = structs.replace(telling, notices=())
    return structs.replace(state, telling=left if left.standing is not None else None)


async def announce(ports: Ports, notice: Notice) -> None:
    """Sends a notice of what stands, and is checked again: where the outbox cannot be reached, the next check sends it."""
    if ports.announcer is not None:
        await _put(ports.announcer, [notice])


async def _put(announcer: Announcer, notices: Sequence[Notice]) -> bool:
    """Whether the outbox has them. What keeps them from it keeps no target from being decided, and no check from its end."""
    try:
        await within(STORE_DEADLINE, announcer.put(notices), "the outbox of notices")
    except Exception as error:  # also one that nobody has thought of
        logger.warning("notices wait, as the outbox did not take them: %s", describe_error(error))
        return False
    return True


async def send_notices(ports: Ports, now: float) -> Outcome:
    """Sends what waits for the webhooks, if there are any."""
    if ports.announcer is None:
        return Outcome()
    lines, warnings = await ports.announcer.send(now)
    return Outcome(lines=lines, warnings=warnings)


async def with_call_usage(ports: Ports, now: float, outcome: Outcome) -> Outcome:
    """An outcome, with what there is to report of the calls that this process has made."""
    if ports.calls is None:
        return outcome
    noted = await ports.calls.note(now)
    for budget in noted.short:
        await announce(ports, calls_notice(budget, now))
    return Outcome(outcome.messages, (*outcome.lines, *noted.lines), (*outcome.warnings, *noted.warnings))


async def append(ports: Ports, entries: Sequence[LogEntry]) -> None:
    if entries:
        await within(STORE_DEADLINE, ports.log.append(entries), "the log")


async def correct(ports: Ports, written: Sequence[LogEntry], saved: Sequence[LogEntry] = ()) -> None:
    """Lets the rows of what was not saved say so, because another writer was faster; but for those that `saved` has replaced.

    The row of the decision is always replaced: a report has one.
    """
    replaced = {(entry.at, entry.key) for entry in saved}
    left = [
        structs.replace(
            entry,
            kind=LogKind.VERIFY,
            effect=None,
            line=f"{entry.line}: not done, for another process was faster",
        )
        for entry in written
        if entry.kind is not LogKind.DECISION and (entry.at, entry.key) not in replaced
    ]
    await append(ports, left)


async def within(seconds: float, call: Awaitable[_Result], what: str) -> _Result:
    """What `call` returns. Raises StoreUnavailableError after `seconds`: whether a write was done is unknown then."""
    try:
        async with asyncio.timeout(seconds):
            return await call
    except TimeoutError as error:
        raise StoreUnavailableError(f"{what}: no answer within {seconds:g} s") from error
