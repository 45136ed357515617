"""One record at a time, each in a savepoint, until it is known which of them cannot be written.

Needed where a batch failed and not the service is to blame. An error that speaks of its record rejects it, unless the
table may have changed: where nothing passes, and the same error came before. Any other error is evidence
(consumer.sinks.evidence), and the records are tried again in a new transaction while that can tell more. Where no other
record is there to compare with, one that was written before is tried again and rolled back.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from sqlalchemy import Connection, NestedTransaction, text
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from consumer.model import Record, Rejection
from consumer.sinks.evidence import Evidence
from consumer.sinks.sql.failures import (
    Blame,
    blame_of,
    code_of,
    column_without_value,
    may_be_of_table,
    refusal_of,
    rejection_of,
)
from consumer.sinks.sql.targets import Target
from tidemark.foundation.errors import UnavailableError
from tidemark.foundation.sql.database import message_of

_TRIALS = 3
"""Transactions after which errors that change from trial to trial are waited for."""


_MOST_ALIKE = 10
"""Records that are rejected for one error in a row while none passes, but one of before still would: a run of bad events
holds up no trigger, whose host brings nothing else, and what is new in all events (a day without a partition) costs these.
"""


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
        known_good: Record | None = None,
    ) -> None:
        """`passing` is an error that nobody foresaw and that may have passed: where no record fails alone, it is raised.
        `known_good` was written before, and may be tried again.
        """
        self._target = target
        self._dialect = dialect
        self._evidence = evidence
        self._rejections = rejections
        self._passing = passing
        self._known_good = known_good
        self._of_known_good: str | None = None
        self._collided: set[int] = set()
        self._unclear: dict[int, tuple[Record, Exception]] = {}
        self._doubted: dict[int, tuple[Record, Exception]] = {}
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
        if self._doubted:
            self._judge_doubted(connection)
        if self._unclear:
            self._try_again_or_wait(connection, len(records))
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
                self._left_out.update(
                    self._unclear, self._doubted
                )  # what is behind it can only be tried without it
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
        rejection = rejection_of(error)
        self._passing = None
        if found or (rejection is not None and not may_be_of_table(error)):
            self._rejections[_number(record)] = rejection or refusal_of(error)
        else:
            kept = self._unclear if rejection is None else self._doubted
            kept[_number(record)] = (record, error)

    def _judge_doubted(self, connection: Connection) -> None:
        """Rejects what the database says of records, unless the table may have changed for all of them."""
        if not self._some_passed and self._may_be_the_table(connection):
            self._unclear.update(self._doubted)
        else:
            for record, error in self._doubted.values():
                self._reject(record, error)
        self._doubted.clear()

    def _may_be_the_table(self, connection: Connection) -> bool:
        if not all(self._target.writes(column_without_value(error)) for _, error in self._doubted.values()):
            return True
        alike: dict[str, set[Hashable]] = {}
        for record, error in self._doubted.values():
            alike.setdefault(code_of(error), set()).add(_id(record))
        known_good = self._error_of_known_good(connection)
        most = _MOST_ALIKE if known_good == "" else 1
        return known_good in alike or any(
            len(records) + self._evidence.believed_besides(records, code) > most
            for code, records in alike.items()
        )

    def _is_repeated(self, refused: tuple[Record, Exception]) -> bool:
        return self._evidence.is_repeated(_id(refused[0]), code_of(refused[1]))

    def _reject(self, record: Record, error: Exception) -> None:
        if not self._some_passed:
            self._evidence.believe(_id(record), code_of(error))
        self._rejections[_number(record)] = rejection_of(error) or refusal_of(error)

    def _error_of_known_good(self, connection: Connection) -> str | None:
        """What a record that was written before fails with by now: '' where it passes, None where that is not known. It is
        rolled back, and tried once. It proves nothing of what is new in later events, such as a day without a partition.
        """
        record, self._known_good = self._known_good, None
        if record is None:
            return self._of_known_good
        savepoint = connection.begin_nested()
        self._of_known_good = ""
        try:
            self._target.write(connection, [record])
        except Exception as error:
            if blame_of(error) is Blame.SERVICE:
                raise
            self._of_known_good = code_of(error)
        if not _roll_back(savepoint):
            raise TryAgainError
        return self._of_known_good

    def _try_again_or_wait(self, connection: Connection, tried: int) -> None:
        unclear = list(self._unclear.values())
        self._unclear.clear()
        self._left_out.clear()
        self._trials_left -= 1
        decidable = self._some_passed or any(
            self._evidence.is_decidable(_id(record)) for record, _ in unclear
        )
        record, error = unclear[0]
        if not decidable and len(unclear) == 1 and not self._is_repeated(unclear[0]):
            decidable = self._error_of_known_good(connection) == ""
            if decidable and self._trials_left < _TRIALS - 1 and rejection_of(error) is None:
                self._reject(record, error)
                return
        if self._trials_left and decidable:
            raise TryAgainError
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
