"""Parked events at work: stored, loaded at a claim, written again when they are due, and removed.

A parked event is a dead letter of the consumer group `<group>~parked`. It is stored before its event is settled, and deleted once:
when it is written, or when its last attempt failed and its dead letter is stored. It names the claim that parked it, so that an
owner of before replaces nothing. When it is due follows from the time at which it was parked.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import TypeVar

from consumer.core import effects
from consumer.core.parked import BEHIND, SUFFIX, name_of, names_of
from consumer.core.statistics import PipelineStatistics
from consumer.mapping.preparing import Preparation
from consumer.model import (
    NOTHING_SETTLED,
    Checkpoint,
    Claim,
    DeadLetter,
    Outcome,
    Record,
    Rejection,
    WriteResult,
)
from consumer.options import ParkingRules
from consumer.ports import DeadLetterStore
from consumer.rejections import rejection_of_result
from consumer.running.writing.calls import Calls
from consumer.running.writing.parked_entries import ClaimedEntries, Entry, with_problems
from consumer.running.writing.replaying import Replay, records_left
from tidemark.foundation.errors import TidemarkError
from tidemark.foundation.sanitize import describe_error
from tidemark.foundation.wording import count_text

_T = TypeVar("_T")

log = logging.getLogger("tidemark.consumer")

AGAIN = 10.0
"""Seconds until something that failed is tried again, other than a write that was rejected."""
RELOAD = 600.0
"""Seconds until the store is listed again: an owner of before may have parked an event just when its claim ended."""
CLAIMED_FOR = 5.0
"""Seconds for which claims count as present once the checkpoint store was asked. The shortest lease that is accepted lasts longer, so
an instance that was frozen until its lease had expired asks again before it parks."""
SOON = 1.0
"""Seconds until it is looked at again whether an event has been received again. Chosen."""
AT_ONCE = 20
"""Events of a partition in one attempt; each may have 1 MB."""
_RECORDS = re.compile(r" \[records ([^\]]*)\]$")
"""Where an older version had DeadLetter.records: at the end of the detail."""


class Parking:
    """The parked events of a driver. `feed` takes inputs of the pipeline."""

    def __init__(
        self,
        store: DeadLetterStore,
        rules: ParkingRules,
        calls: Calls,
        preparation: Preparation,
        replay: Replay,
        feed: Callable[[effects.Input], None],
        statistics: Callable[[], PipelineStatistics],
    ) -> None:
        self._store = store
        self._rules = rules
        self._delays = rules.seconds
        self._calls = calls
        self._preparation = preparation
        self._replay = replay
        self._feed = feed
        self._statistics = statistics
        self._claims: dict[str, ClaimedEntries] = {}
        self._changed = asyncio.Event()
        self._asked_at = -math.inf

    async def _stored(self, call: Awaitable[_T]) -> _T:
        return await self._calls.answered("the store of parked events", call)

    # -- claims

    def claimed(self, claim: Claim) -> None:
        self._claims[claim.partition] = ClaimedEntries(claim)
        self._changed.set()

    def forget(self, partition: str, epoch: int) -> None:
        """Begins no more attempts of a claim."""
        claimed = self._find(partition, epoch)
        if claimed is not None:
            claimed.end()
            del self._claims[partition]

    def _find(self, partition: str, epoch: int) -> ClaimedEntries | None:
        claimed = self._claims.get(partition)
        return claimed if claimed is not None and claimed.claim.epoch == epoch else None

    async def finish(self, partition: str, epoch: int, *, deadline: float) -> None:
        """Begins no more attempts of a claim, and waits for the present one, until `deadline`. What is parked stays known until the
        claim is forgotten: another record of such an event may still be parked beside it.
        """
        claimed = self._find(partition, epoch)
        if claimed is None:
            return
        claimed.end()
        try:
            async with asyncio.timeout_at(deadline), claimed.trying:
                pass
        except TimeoutError:
            log.warning("partition %s: a parked event is still being written", partition)

    async def ready(self, partition: str, epoch: int) -> None:
        """Waits until the parked events of a claim are known, or the claim ends: later events of their keys wait behind them."""
        claimed = self._find(partition, epoch)
        if claimed is not None:
            await claimed.loaded.wait()

    # -- parking

    async def park(self, rejected: Sequence[effects.RejectedRecord]) -> bool:
        """Whether the events are stored. Each then is tried again under the present claim of its partition."""
        try:
            async with AsyncExitStack() as trying, asyncio.timeout_at(self._calls.deadline()):
                for lock in self._tried_with(rejected):
                    await trying.enter_async_context(lock)
                claims = [(refused, self._claims.get(refused.record.event.partition)) for refused in rejected]
                # Where a claim is over, the present owner receives the event itself.
                await self._check_claims([claimed.claim for _, claimed in claims if claimed])
                await self._store_all(
                    [self._parked(refused, claimed) for refused, claimed in claims if claimed]
                )
        except Exception as error:  # the outcome is unknown: stored again
            log.warning("parking %s failed: %s", count_text(len(rejected), "event"), describe_error(error))
            return False
        self._changed.set()
        return True

    async def _check_claims(self, claims: Sequence[Claim]) -> None:
        """What an owner of before parks, the next owner could take for parked in time, and write over what is newer. Raises
        TidemarkError.
        """
        now = asyncio.get_running_loop().time()
        if claims and now >= self._asked_at + CLAIMED_FOR:
            await self._calls.check_claims(claims)
            self._asked_at = now

    def _tried_with(self, rejected: Sequence[effects.RejectedRecord]) -> list[asyncio.Lock]:
        """What must not be tried meanwhile: another record of an event is parked already, and its end would remove both."""
        locks: dict[str, asyncio.Lock] = {}
        for event in (refused.record.event for refused in rejected):
            claimed = self._claims.get(event.partition)
            if claimed is not None and claimed.number_of(event) in claimed.entries:
                locks[event.partition] = claimed.trying
        return [locks[partition] for partition in sorted(locks)]

    async def _store_all(self, parked: Sequence[tuple[DeadLetter, frozenset[str], ClaimedEntries]]) -> None:
        letters = [letter for letter, *_ in parked]
        await self._stored(self._store.put(letters, deadline=self._calls.deadline()))
        for letter, keys, claimed in parked:
            entry = self._entry(letter, claimed)
            entry.keys = keys
            claimed.entries[entry.number] = entry

    def _parked(
        self, rejected: effects.RejectedRecord, claimed: ClaimedEntries
    ) -> tuple[DeadLetter, frozenset[str], ClaimedEntries]:
        """What is stored, and the keys that it orders. Other records of the event may be parked already."""
        names, of = names_of(rejected.records)
        keys = frozenset(record.key for record in rejected.records)
        earlier = claimed.entries.get(claimed.number_of(rejected.record.event))
        if earlier is not None:
            is_known = earlier.names is not None and earlier.of in {1, of}
            names = tuple(sorted({*names, *(earlier.names or ())})) if is_known else ()
            keys |= earlier.keys
        hub, group = self._calls.stream
        letter = DeadLetter(
            *(hub, group + SUFFIX, rejected.record.event, rejected.rejection),
            *(max(1, rejected.attempts), time.time()),
            *(names, of),
            epoch=max(claimed.claim.epoch, earlier.epoch if earlier else 0),
        )
        return letter, keys, claimed

    def _entry(self, letter: DeadLetter, claimed: ClaimedEntries) -> Entry:
        """When it is due. What waited for an earlier event of its key is due as soon as that one is gone."""
        now = asyncio.get_running_loop().time()
        named = _RECORDS.search(letter.rejection.detail)
        names = frozenset(letter.records or (named[1].split(", ") if named else ())) or None
        due, tried = now, 0
        if letter.rejection.reason != BEHIND.reason:
            age = max(0.0, time.time() - letter.failed_at)
            times = list(itertools.accumulate(self._delays))
            passed = sum(delay <= age for delay in times)
            # Of the times that are past the last one is tried now: this or another process may not have run then.
            due, tried = (now, passed - 1) if passed else (now + times[0] - age, 0)
        return Entry(
            *(letter.id, claimed.number_of(letter.event), letter.rejection, due, tried),
            names=names,
            of=letter.of,
            epoch=letter.epoch,
        )

    # -- trying again

    async def run(self) -> None:
        """Loads and tries again, for ever."""
        while True:
            self._changed.clear()
            await asyncio.gather(*map(self._visit, self._present()))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
                    await self._changed.wait()

    def _present(self) -> list[ClaimedEntries]:
        return [claimed for claimed in self._claims.values() if not claimed.is_over]

    async def _visit(self, claimed: ClaimedEntries) -> None:
        is_due = asyncio.get_running_loop().time() >= claimed.load_at
        for work in (self._load, self._try) if is_due else (self._try,):
            try:
                await work(claimed)
            except Exception as error:  # tried again
                claimed.problems[work.__name__] = str(error) or repr(error)
                log.warning("partition %s: %s", claimed.partition, claimed.problem)
                return
            claimed.problems.pop(work.__name__, None)

    def with_problems(self, statistics: PipelineStatistics) -> PipelineStatistics:
        """The statistics with what holds up parked events."""
        return with_problems(statistics, self._claims)

    def _pause(self) -> float:
        now = asyncio.get_running_loop().time()
        times = [now + SOON for claimed in self._present() if claimed.is_ahead]
        times += [claimed.load_at for claimed in self._present()]
        times += [entry.due for claimed in self._present() for entry in self._first(claimed)]
        return max(0.05, min(times, default=now + RELOAD) - now)

    async def _load(self, claimed: ClaimedEntries) -> None:
        now = asyncio.get_running_loop().time()
        claimed.load_at = now + AGAIN
        claimed.given_up_at = min(claimed.given_up_at, now + RELOAD)
        known, seen = set(claimed.entries), set[int | str]()
        letters = self._store.list(partition=claimed.partition)
        # Each one may take the time of a call: a list of many may take longer, and would begin anew for ever.
        while letter := await self._stored(anext(letters, None)):
            entry = self._entry(letter, claimed)
            seen.add(entry.number)
            if entry.number not in claimed.entries and not await self._is_late(letter, claimed):
                records = await self._records(letter, entry)
                keys = {name_of(record): record.key for record in records}
                entry.keys = frozenset(keys.values())
                entry.is_ahead = self._rules.by_key
                claimed.entries[entry.number] = entry
                # At once, because the list may break off.
                self._feed(effects.ParkedLoaded(claimed.partition, claimed.claim.epoch, {entry.number: keys}))
        if claimed.is_over:
            return
        claimed.load_at = now + RELOAD
        for number in (
            claimed.entries.keys() & known - seen
        ):  # an operator replayed or removed it, which the next attempt finds
            claimed.entries[number].due = now
        if len(claimed.entries) > len(known):
            log.info(
                "partition %s has %s", claimed.partition, count_text(len(claimed.entries), "parked event")
            )
        claimed.loaded.set()

    async def _is_late(self, letter: DeadLetter, claimed: ClaimedEntries) -> bool:
        """Whether an owner of before parked the event after this claim had listed what is parked: then no checkpoint covers it, and
        this claim has received it itself. It is removed.
        """
        claim, number = claimed.claim, claimed.number_of(letter.event)
        if not claimed.loaded.is_set() or not 0 < letter.epoch < claim.epoch:
            return False
        if isinstance(number, str) or _is_settled(claim.checkpoint, number):
            return False
        log.warning(
            "partition %s: event %d was parked too late, by an owner of before", claim.partition, number
        )
        await self._stored(self._store.delete([letter.id], epoch=letter.epoch))
        return True

    async def _records(self, letter: DeadLetter, entry: Entry) -> list[Record]:
        """The records as the present settings make them. Raises TidemarkError while a schema is missing."""
        decoder = self._preparation.decoder
        if decoder is not None and (ids := decoder.missing([letter.event])):
            await self._calls.answered("the decoder", decoder.load(ids, deadline=self._calls.deadline()))
        records = records_left(self._preparation.records([letter.event]), entry.names or (), entry.of)
        return [record for record in records if record.dropped is None]

    def _first(self, claimed: ClaimedEntries) -> list[Entry]:
        return claimed.first(by_key=self._rules.by_key, mark=self._mark(claimed))

    def _mark(self, claimed: ClaimedEntries) -> float:
        """Up to where all events are settled that this claim receives."""
        for state in self._statistics().partitions if claimed.is_ahead else ():
            if state.partition == claimed.partition and state.epoch == claimed.claim.epoch:
                is_gone = not state.unsettled and asyncio.get_running_loop().time() >= claimed.given_up_at
                return math.inf if is_gone else state.low_water
        return NOTHING_SETTLED

    async def _try(self, claimed: ClaimedEntries) -> None:
        async with claimed.trying:
            await self._try_due(claimed)

    async def _try_due(self, claimed: ClaimedEntries) -> None:
        now = asyncio.get_running_loop().time()
        due = [entry for entry in self._first(claimed) if entry.due <= now][:AT_ONCE]
        if not due or claimed.is_over:
            return
        for entry in due:
            entry.due = now + AGAIN
        await self._write([entry for entry in due if not entry.is_over])
        over = [entry for entry in due if entry.is_over]
        if over:
            epoch = max(claimed.claim.epoch, *(entry.epoch for entry in over))
            await self._stored(self._store.delete([entry.id for entry in over], epoch=epoch))
            for entry in over:
                del claimed.entries[entry.number]
                outcome = (entry.number, entry.written, entry.is_dead_letter)
                self._feed(effects.ParkedEnded(claimed.partition, claimed.claim.epoch, *outcome))
            self._changed.set()

    async def _write(self, entries: Sequence[Entry]) -> None:
        letters = [await self._stored(self._store.get(entry.id)) for entry in entries]
        todo: list[tuple[Entry, DeadLetter, list[Record]]] = []
        for entry, letter in zip(entries, letters, strict=True):
            if letter is None:  # another owner has written it meanwhile
                entry.is_over = True
                continue
            try:
                todo.append((entry, letter, await self._records(letter, entry)))
            except TidemarkError as error:
                log.warning("a parked event waits for its decoder: %s", error)
        records = [record for _, _, of_entry in todo for record in of_entry]
        by_key = self._rules.by_key
        writing = self._replay.write_records(records, deadline=self._calls.deadline(), by_key=by_key)
        answers = await self._calls.answered("the sink", writing)
        self._feed(effects.ParkedTried(sum(answer.request_units for answer in answers)))
        results = iter(answers)
        for entry, letter, of_entry in todo:
            await self._note(entry, letter, [(record, next(results)) for record in of_entry])

    async def _note(
        self, entry: Entry, letter: DeadLetter, results: Sequence[tuple[Record, WriteResult]]
    ) -> None:
        left = [(record, result) for record, result in results if result.outcome is not Outcome.WRITTEN]
        entry.written += len(results) - len(left)
        entry.of = (
            results[0][0].of if results else entry.of
        )  # names are those of the present settings from here on
        entry.names = frozenset(name_of(record) for record, _ in left)
        rejected = [result for _, result in left if result.outcome is Outcome.REJECT]
        others = frozenset(name_of(record) for record, result in left if result.outcome is Outcome.RETRY)
        if not left:
            entry.is_over = True
        elif rejected:
            entry.tried += 1
            why = rejection_of_result(rejected[0])
            if entry.tried < len(self._delays) and why.reason in self._rules.reasons:
                entry.due = asyncio.get_running_loop().time() + self._delays[entry.tried]
                return
            await self._bury(entry, letter, why, entry.names - others)
            if others:  # they were behind it
                entry.is_over, entry.names, entry.due = False, others, asyncio.get_running_loop().time()

    async def _bury(self, entry: Entry, letter: DeadLetter, why: Rejection, names: frozenset[str]) -> None:
        """Stores the dead letter of these records. Another one of the event may have one already."""
        final = DeadLetter(
            *self._calls.stream,
            letter.event,
            why,
            letter.attempts + entry.tried,
            time.time(),
            tuple(sorted(names)) if entry.of > 1 else (),
            entry.of,
            self._calls.epoch(letter.event.partition) or 0,
        )
        async with self._calls.joining:
            final = await self._calls.guarded(final, joins=True)
            storing = self._calls.dead_letters.put([final], deadline=self._calls.deadline())
            await self._calls.answered("the dead letters", storing)
        entry.is_over = entry.is_dead_letter = True


def _is_settled(checkpoint: Checkpoint | None, number: int) -> bool:
    known = () if checkpoint is None else ((0, checkpoint.sequence_number), *checkpoint.beyond)
    return any(first <= number <= last for first, last in known)
