"""Exactly once: rows, dead letters and the position are committed in one transaction.

The transaction begins with a compare-and-set of the checkpoint's row, under the claim's epoch. The row stays locked until
the end, so that of two consumers of a partition one commits and the other is fenced. If the outcome of a commit is unknown,
because the connection broke or the deadline passed, the same records are tried again, and the stored position decides.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from sqlalchemy import Connection, literal, select
from sqlalchemy.exc import IntegrityError

from consumer import model
from consumer.core.parked import name_of, names_of
from consumer.errors import FencedError
from consumer.mapping.documents import read_object
from consumer.mapping.operations import WriteOptions
from consumer.model import Claim, Event, Record, Write
from consumer.rejections import rejection_of_event
from consumer.sinks.evidence import Evidence
from consumer.sinks.partitioned import OpenWrite, PartitionWrites
from consumer.sinks.sql.failures import Blame, blame_of, is_answer, refusal_of, rejection_of
from consumer.sinks.sql.isolation import Isolation, RecordNumber, TryAgainError
from consumer.sinks.sql.targets import Target, events_target
from consumer.stores.sql import dead_letters, positions
from tidemark.foundation.errors import UnavailableError
from tidemark.foundation.sql.database import SqlDatabase, message_of

Rejections = dict[RecordNumber, model.Rejection]

_REREADS = 3
"""How often one write reads the position again; only commits of the same claim can change it."""


@dataclass(eq=False)
class SqlTransactionalSink:
    """A TransactionalSink. Checkpoints must come from the SqlCheckpointStore on the same database and scope.

    Records that became dead letters are WRITTEN, with the rejection's word as `reason`. `clock` gives epoch seconds, for the dead
    letters.
    """

    transactional = True

    database: SqlDatabase
    scope: model.Stream
    target: Target = field(default_factory=events_target)
    writing: WriteOptions = field(default_factory=WriteOptions)
    clock: Callable[[], float] = field(default=time.time, kw_only=True)

    def __post_init__(self) -> None:
        self._writes = PartitionWrites[Position](self._start, message_of)
        self._marks = self.scope
        self._evidence = Evidence()
        self._known_good: Record | None = None  # the latest record that was written, if it may be tried again
        self.database.use()

    async def open(self) -> model.Routes:
        if not self.database.read_only:
            await self.database.transact(lambda _: None)
        await self.database.call(partial(self.target.open, self.database, self.scope))
        return await self.routes()

    async def routes(self) -> model.Routes:
        return model.Routes(by_partition=True, appends=self.target.appends)

    async def ask(self) -> None:
        await self.database.transact(lambda connection: connection.execute(select(literal(1))))

    def prepare(self, write: Write) -> Record:
        event = write.event
        operation = self.writing.operation_of(write, read_object)
        prepared: bytes | model.Rejection
        if isinstance(operation, model.Rejection):
            prepared = operation
        elif operation in self.target.operations:
            prepared = self.target.prepare(write, operation)
        else:
            able = f"what this target can do: {', '.join(sorted(self.target.operations))}"
            more = "" if len(self.target.operations) > 1 else " (a table with a key: create and delete, too)"
            prepared = model.Rejection(
                "operation", f"the event asks for {operation}, which is not {able}{more}"
            )
        key = f"{event.partition}~{event.sequence_number}" + (f"~{write.index}" if write.index else "")
        if isinstance(prepared, model.Rejection):
            return Record(event, key, rejection=prepared)
        return Record(event, key, payload=prepared, operation=cast("model.Operation", operation))

    def attach(self, claim: Claim) -> None:
        """Raises SettingsError if the target would mix up the events of two hubs of one name."""
        self.target.check(claim.origin.incarnation)
        self._writes.positions[claim.partition] = Position(claim)

    def detach(self, partition: str) -> None:
        self._writes.positions.pop(partition, None)

    async def aclose(self) -> None:
        await self.database.release()

    async def write(self, batch: model.Batch, *, deadline: float) -> Sequence[model.WriteResult]:
        """Raises FencedError, also for a partition that is not attached."""
        return await self._writes.write(batch, deadline=deadline)

    def _start(
        self, position: Position, records: Sequence[Record]
    ) -> asyncio.Future[Sequence[model.WriteResult]]:
        position.attempts += 1
        return self.database.start(partial(self._write, position, records))

    async def replay(self, records: Sequence[Record], *, deadline: float) -> Sequence[model.WriteResult]:
        """Writes records of a dead letter's event and takes them out of the dead letter, exactly once, whatever the position.

        Raises UnavailableError if the outcome is unknown; repeating the call is safe.
        """
        return await self.database.call(partial(self._replay, records), deadline=deadline)

    def _replay(self, records: Sequence[Record], given: Sequence[Record] = ()) -> Sequence[model.WriteResult]:
        """Together, and in halves if the database refuses any."""
        given = given or records
        results = self._try_to_replay(records, given)
        if len(records) == 1 or results[0].outcome is not model.Outcome.REJECT:
            return results
        middle = len(records) // 2
        return [*self._replay(records[:middle], given), *self._replay(records[middle:], given)]

    def _try_to_replay(
        self, records: Sequence[Record], given: Sequence[Record]
    ) -> Sequence[model.WriteResult]:
        try:
            try:
                self._replay_once(records, given)
            except (
                IntegrityError
            ):  # another writer may have inserted the key between our update and our insert
                self._replay_once(records, given)
        except Exception as error:
            if blame_of(error) is Blame.SERVICE:
                if len(given) == len(records):
                    raise
                return [model.WriteResult(model.Outcome.RETRY, reason=message_of(error))] * len(records)
            # The dead letter stays, so that a wrong guess loses nothing.
            why = rejection_of(error) or refusal_of(error)
            reason = f"{why.reason}: {why.detail}"
            return [model.WriteResult(model.Outcome.REJECT, reason=reason, rejection=why)] * len(records)
        return [model.WriteResult(model.Outcome.WRITTEN)] * len(records)

    def _replay_once(self, records: Sequence[Record], given: Sequence[Record]) -> None:
        """`given` are all records of the event that were to be written: those that stay if the dead letter names none."""
        event = records[0].event
        key = {**self.scope.keys, "PartitionID": event.place, "SequenceNumber": event.sequence_number}
        with self.database.engine.begin() as connection:
            stored = dead_letters.lock_one(connection, self.scope, key)
            if stored is None:
                return
            is_known = stored.records and stored.of == records[0].of
            names = set(stored.records if is_known else map(name_of, given))
            todo = [record for record in records if record.rejection is None]
            fit = [record for record in _fit(todo, {}) if name_of(record) in names or not self.target.appends]
            if left := names.difference(map(name_of, todo)):
                dead_letters.name_records(connection, key, tuple(sorted(left)), records[0].of)
            else:
                dead_letters.remove_one(connection, key)
            if fit:
                self.target.write(connection, fit)

    def _write(self, position: Position, records: Sequence[Record]) -> Sequence[model.WriteResult]:
        """Runs in a thread of the database. Writes all records at once first; after an error that may be about a row, record
        by record. Raises FencedError, UnavailableError, and errors that are not the fault of an event.
        """
        rejections: Rejections = {r.number: r.rejection for r in records if r.rejection is not None}
        isolation: Isolation | None = None
        rereads = 0
        while covered := self._covered(position, records, rejections):
            todo = [record for record in covered if position.is_open(record)]
            try:
                self._transaction(position, covered[-1].event, todo, rejections, isolation)
            except _MovedError:
                rereads += 1
                self._reread(position, last_time=rereads == _REREADS)
            except TryAgainError:
                continue
            except Exception as error:
                if isolation is not None or not _may_speak_of_an_event(error, position):
                    raise
                passing = None if position.attempts > 1 or is_answer(error) else error
                isolation = Isolation(
                    self.target, self.database.dialect, self._evidence, rejections, passing, self._known_good
                )
            else:
                if self.target.is_repeatable and (fit := _fit(todo, rejections)):
                    self._known_good = fit[-1]
                position.settle(covered[-1].event.sequence_number)
                for record in covered:
                    self._evidence.settled((record.event.partition, record.number))
        return self._results(position, records, rejections)

    def _covered(
        self, position: Position, records: Sequence[Record], rejections: Rejections
    ) -> Sequence[Record]:
        """The records that the next transaction writes or keeps as dead letters; empty when there is nothing left to do."""
        return records if position.stored < records[-1].event.sequence_number else ()

    def _results(
        self, position: Position, records: Sequence[Record], rejections: Rejections
    ) -> Sequence[model.WriteResult]:
        return [_written(rejections.get(record.number)) for record in records]

    def _transaction(
        self,
        position: Position,
        last: Event,
        todo: Sequence[Record],
        rejections: Rejections,
        isolation: Isolation | None,
    ) -> None:
        """Writes all of `todo` and the position after `last`, and commits. Raises _MovedError."""
        with self.database.engine.begin() as connection:
            if not positions.advance(
                connection, self._marks, position.claim, position.stored, position.after(last)
            ):
                raise _MovedError
            fit = _fit(todo, rejections)
            if isolation is not None:
                isolation.write(connection, fit)
            elif fit:
                self._write_together(connection, position, fit)
            self._keep(connection, position, todo, rejections)

    def _keep(
        self, connection: Connection, position: Position, todo: Sequence[Record], rejections: Rejections
    ) -> None:
        """Stores a dead letter for each event with a rejected record."""
        rejected: dict[int, list[tuple[Record, model.Rejection]]] = {}
        for record in todo:
            if (why := rejections.get(record.number)) is not None:
                rejected.setdefault(record.event.sequence_number, []).append((record, why))
        names = self.scope.hub, self.scope.consumer_group
        letters = [
            model.DeadLetter(
                *names,
                refusals[0][0].event,
                rejection_of_event(refusals),
                position.attempts,
                self.clock(),
                *names_of([record for record, _ in refusals]),
            )
            for refusals in rejected.values()
        ]
        dead_letters.put(connection, self.scope, letters)

    def _write_together(self, connection: Connection, position: Position, records: Sequence[Record]) -> None:
        trial = self._evidence.begin()
        try:
            self.target.write(connection, records)
        except Exception as error:
            position.refused = error
            raise
        self._evidence.passed(trial)

    def _reread(self, position: Position, *, last_time: bool) -> None:
        """Reads the position after the compare-and-set failed: an earlier commit succeeded unseen, or we are fenced."""
        with self.database.engine.begin() as connection:
            stored = positions.stored_position(connection, self._marks, position.claim)
        if stored < position.stored:
            raise FencedError(
                f"partition {position.claim.partition} is stored at {stored}, although {position.stored} was "
                "committed: the database lost commits, in a failover or a restore. The partition must be claimed "
                "anew and read again from there"
            )
        if last_time:
            raise UnavailableError(
                f"the position of partition {position.claim.partition} does not stand still"
            )
        position.stored = stored


class Position(OpenWrite):
    """The state of one partition under one claim. One write at a time changes it, in its thread."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.stored = claim.checkpoint.sequence_number if claim.checkpoint else model.NOTHING_SETTLED
        self.attempts = 0
        self.refused: Exception | None = None
        """The target's error when all records of a write were last tried together."""
        self.is_claimed = True
        """Whether `claim` is the one that is stored beside the position; see SqlSinkBeside."""
        self._beyond = claim.checkpoint.beyond if claim.checkpoint else ()

    def forget_beyond(self) -> None:
        """Of a checkpoint elsewhere: its record of later events is not what this database has."""
        self._beyond = ()

    def is_open(self, record: Record) -> bool:
        number = record.event.sequence_number
        return number > self.stored and not any(first <= number <= last for first, last in self._beyond)

    def after(self, last: Event) -> model.Checkpoint:
        beyond = tuple(run for run in self._beyond if run[1] > last.sequence_number)
        where = last.partition, last.sequence_number, last.offset
        return model.Checkpoint(*where, beyond, origin=self.claim.origin)

    def settle(self, sequence_number: int) -> None:
        self.stored = sequence_number
        self.attempts = 0
        self.refused = None


class _MovedError(Exception):
    """The stored position or epoch is not the expected one; the transaction is rolled back."""


def _may_speak_of_an_event(error: Exception, position: Position) -> bool:
    """Whether the events are to be tried one by one. A failure at the commit, or before the first event, is blamed on the
    service the first time.
    """
    if blame_of(error) is Blame.SERVICE:
        return False
    return error is position.refused or position.attempts > 1 or rejection_of(error) is not None


def _fit(records: Sequence[Record], rejections: Rejections) -> list[Record]:
    """What is to be written of these."""
    return [record for record in records if record.number not in rejections and record.dropped is None]


def _written(rejection: model.Rejection | None) -> model.WriteResult:
    return model.WriteResult(model.Outcome.WRITTEN, reason=rejection.reason if rejection else "")
