"""One record at a time, each in a savepoint, until it is known which of them cannot be written.

Needed where a batch failed and not the service is to blame. An error that certainly speaks of its record rejects it at
once; any other is evidence (consumer.sinks.evidence), and the records are tried again in a new transaction while that
can tell more.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from sqlalchemy import Connection, NestedTransaction, text
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from consumer.model import Record, Rejection
from consumer.sinks.evidence import Evidence
from consumer.sinks.sql.failures import Blame, blame_of, code_of, refusal_of, rejection_of
from consumer.sinks.sql.targets import Target
from foundation.errors import UnavailableError
from foundation.sql.database import message_of

_TRIALS = 3
"""Transactions after which errors that change from trial to trial are waited for."""


class TryAgainError(Exception):
    """The transaction is to be rolled back and begun anew: more is known, or will be."""


class Isolation:
    """The records of one write. `rejections` is added to, by sequence number."""

    def __init__(
        self,
        target: Target,
        dialect: str,
        evidence: Evidence,
        rejections: dict[int, Rejection],
        passing: Exception | None = None,
    ) -> None:
        """`passing` is an error that nobody foresaw and that may have passed: where no record fails alone, it is raised."""
        self._target = target
        self._dialect = dialect
        self._evidence = evidence
        self._rejections = rejections
        self._passing = passing
        self._collided: set[int] = set()
        self._unclear: dict[int, tuple[Record, Exception]] = {}
        self._left_out: set[int] = set()
        self._trials_left = _TRIALS
        self._some_passed = False

    def write(self, connection: Connection, records: Sequence[Record]) -> None:
        """Within the caller's transaction, to be committed if this returns.

        Raises TryAgainError, UnavailableError where no record can be blamed yet, and errors of the service.
        """
        if self._dialect == "postgresql":
            # Else a deferred constraint speaks up at the commit, when nobody can tell which event it means.
            connection.execute(text("SET CONSTRAINTS ALL IMMEDIATE"))
        for record in records:
            if _number(record) not in self._left_out:
                self._write_one(connection, record)
        if self._unclear:
            self._try_again_or_wait(len(records))
        if self._passing is not None:
            raise self._passing

    def _write_one(self, connection: Connection, record: Record) -> None:
        savepoint = connection.begin_nested()
        trial = self._evidence.begin()
        try:
            self._target.write(connection, [record])
            savepoint.commit()
        except Exception as error:
            if blame_of(error) is Blame.SERVICE:
                raise
            rolled_back = _roll_back(savepoint)
            again = self._is_first_collision(record, error)
            if not again:
                self._note(record, error)
            if not rolled_back:
                self._left_out.update(self._unclear)  # what is behind it can only be tried without it
                raise TryAgainError from error
            if again:
                self._write_one(connection, record)
        else:
            self._evidence.passed(trial)
            self._some_passed = True

    def _is_first_collision(self, record: Record, error: Exception) -> bool:
        """Where a row is updated or else inserted, another partition may insert its key in between. The second try
        finds that row; a constraint that is really violated is violated again.
        """
        first = isinstance(error, IntegrityError) and _number(record) not in self._collided
        if first:
            self._collided.add(_number(record))
        return first

    def _note(self, record: Record, error: Exception) -> None:
        found = self._evidence.failed(_id(record), code_of(error))
        rejection = rejection_of(error) or (refusal_of(error) if found else None)
        self._passing = None
        if rejection is None:
            self._unclear[_number(record)] = (record, error)
        else:
            self._rejections[_number(record)] = rejection

    def _try_again_or_wait(self, tried: int) -> None:
        unclear = list(self._unclear.values())
        self._unclear.clear()
        self._left_out.clear()
        self._trials_left -= 1
        decidable = self._some_passed or any(
            self._evidence.is_decidable(_id(record)) for record, _ in unclear
        )
        if self._trials_left and decidable:
            raise TryAgainError
        error = unclear[0][1]
        raise UnavailableError(
            f"{message_of(error)}: {len(unclear)} of {tried} events are refused and no other was accepted since, so that "
            "the table or a right may be at fault; an event is only blamed once others pass"
        ) from error


def _number(record: Record) -> int:
    return record.event.sequence_number


def _id(record: Record) -> Hashable:
    return record.event.partition, record.event.sequence_number


def _roll_back(savepoint: NestedTransaction) -> bool:
    """False where that is no longer possible: the whole transaction is over."""
    if not savepoint.is_active:
        return False  # a handler tried to end the transaction itself
    try:
        savepoint.rollback()
    except SQLAlchemyError:
        return False  # SQL Server gives up the whole transaction after some errors
    return True
