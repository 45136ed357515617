"""The calls to a sink and its stores that the effects of a pipeline ask for. A failed call is a result: it is repeated later."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

from msgspec import structs

from consumer.core import effects
from consumer.core.parked import names_of
from consumer.core.rejected_queue import DEAD_LETTERS_AT_ONCE
from consumer.errors import FencedError
from consumer.model import Batch, Checkpoint, Claim, DeadLetter, Outcome, Routes, WriteResult
from consumer.ports import CheckpointStore, DeadLetterBox, DeadLetterStore, Sink
from tidemark.foundation.calls import PATIENCE, answered
from tidemark.foundation.gathering import gather
from tidemark.foundation.sanitize import describe_error
from tidemark.foundation.wording import count_text

log = logging.getLogger("tidemark.consumer")

_T = TypeVar("_T")


@dataclass(eq=False)
class Calls:
    """`stream` is hub and consumer group, which dead letters name; `timeout` is the seconds that a call may take. In a dry run
    nothing is called. `on_answer` is called after each write with the name of the sink and whether it was reached; `epoch` returns
    that of the present claim of a partition.
    """

    sink: Sink
    checkpoints: CheckpointStore
    dead_letters: DeadLetterBox
    stream: tuple[str, str]
    timeout: float
    dry_run: bool
    on_answer: Callable[[str, bool], object]
    epoch: Callable[[str], int | None]
    joining: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held from `guarded` until the dead letter is stored."""

    def deadline(self) -> float:
        return asyncio.get_running_loop().time() + self.timeout

    async def answered(self, what: str, call: Awaitable[_T]) -> _T:
        """The result of a call. A call that does not keep its own deadline is abandoned."""
        return await answered(what, self.deadline() + PATIENCE, call)

    async def write(self, batch: Batch) -> Sequence[WriteResult]:
        """Raises FencedError."""
        if self.dry_run:
            return [WriteResult(Outcome.WRITTEN)] * len(batch.records)
        try:
            results = await self.answered("the sink", self.sink.write(batch, deadline=self.deadline()))
            is_reached = any(result.reached for result in of_all(batch, results))
        except FencedError:
            raise
        except Exception as error:  # the outcome is unknown: written again
            log.warning(
                "writing %s failed: %s", count_text(len(batch.records), "record"), describe_error(error)
            )
            self.on_answer(batch.records[0].sink, False)
            reason = f"{type(error).__name__}: {error}"
        else:
            self.on_answer(batch.records[0].sink, is_reached)
            return results
        return again(batch, reason)

    async def bury(self, rejected: Sequence[effects.RejectedRecord]) -> bool:
        """Whether the dead letters are stored."""
        if self.dry_run:
            return True
        now = time.time()
        letters = [
            DeadLetter(
                *(*self.stream, refused.record.event, refused.rejection, refused.attempts, now),
                *names_of(refused.records),
                self.epoch(refused.record.event.partition) or 0,
            )
            for refused in rejected
        ]
        try:
            async with self.joining:
                joins = [refused.joins for refused in rejected]
                letters = await gather(
                    lambda pair: self.guarded(pair[0], joins=pair[1]),
                    zip(letters, joins, strict=True),
                    at_once=DEAD_LETTERS_AT_ONCE,
                )
                await self.answered(
                    "the dead letters", self.dead_letters.put(letters, deadline=self.deadline())
                )
        except Exception as error:  # the outcome is unknown: stored again
            log.warning(
                "storing %s failed: %s", count_text(len(letters), "dead letter"), describe_error(error)
            )
            return False
        return True

    async def guarded(self, letter: DeadLetter, *, joins: bool) -> DeadLetter:
        """The dead letter as it is stored. One that names some of an event's records has its claim's epoch, so that it cannot arrive late
        over one of a later claim, which names others; if it `joins`, those of the stored one are in it. Raises TidemarkError.
        """
        if letter.of == 1:
            return structs.replace(letter, epoch=0)
        if not letter.epoch:
            raise FencedError(f"partition {letter.event.partition}: the claim is over")
        store = cast("DeadLetterStore", self.dead_letters)
        earlier = await self.answered("the dead letters", store.get(letter.id))
        if earlier is None:
            return letter
        if earlier.epoch > letter.epoch:  # of a later claim, or without checkpoints epochs began anew
            await self.check_claims([Claim(letter.event.partition, "this one", letter.epoch)])
        letter = structs.replace(letter, epoch=max(letter.epoch, earlier.epoch))
        if not joins:
            return letter
        is_known = letter.records and earlier.records and earlier.of == letter.of
        names = {*letter.records, *earlier.records} if is_known else ()
        return structs.replace(letter, records=tuple(sorted(names)))

    async def save(self, claim: Claim, checkpoint: Checkpoint) -> bool:
        """Whether the checkpoint is saved. Raises FencedError."""
        if self.dry_run:
            return True
        stamped = structs.replace(checkpoint, saved_at=time.time())
        try:
            saving = self.checkpoints.save(claim, stamped, deadline=self.deadline())
            await self.answered("the checkpoint store", saving)
        except FencedError:
            raise
        except Exception as error:  # the outcome is unknown: saved again with the next one
            log.warning(
                "saving the checkpoint of partition %s failed: %s", claim.partition, describe_error(error)
            )
            return False
        return True

    async def check_claims(self, claims: Iterable[Claim]) -> None:
        """Raises FencedError where another instance has claimed a partition since; TidemarkError if the store does not answer."""
        loading = self.checkpoints.load_all(deadline=self.deadline())
        stored = await self.answered("the checkpoint store", loading)
        for claim in claims:
            checkpoint = stored.get(claim.partition)
            if isinstance(checkpoint, Checkpoint) and checkpoint.epoch > claim.epoch:
                raise FencedError(
                    f"partition {claim.partition} was claimed by '{checkpoint.owner}' (epoch {checkpoint.epoch}) since '{claim.owner}' claimed"
                    f" it (epoch {claim.epoch})"
                )

    async def read_routes(self) -> Routes | None:
        """None: unknown, to be asked again later."""
        try:
            return await self.answered("the sink", self.sink.routes())
        except Exception as error:
            log.warning("reading the partitions of the sink failed: %s", describe_error(error))
            return None


def of_all(batch: Batch, results: Sequence[WriteResult]) -> Sequence[WriteResult]:
    """The results, of which there is one for each record; a sink of one's own may answer anything. Raises ValueError, TypeError."""
    if len(results) != len(batch.records):
        raise ValueError(f"the sink answered {len(results)} of {count_text(len(batch.records), 'record')}")
    return results


def again(batch: Batch, reason: str) -> Sequence[WriteResult]:
    """The results of a batch whose outcome is unknown."""
    return [WriteResult(Outcome.RETRY, reason=reason)] * len(batch.records)
