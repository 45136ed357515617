"""Writes one record at a time, each in a savepoint, to find out which of them cannot be written.

This is done if a batch failed and the service is not to blame. An error about a record rejects it, unless the table may
have changed: nothing passes, and the same error came before. Any other error is evidence (consumer.sinks.evidence), and
the records are tried again in a new transaction while that can tell more. If there is no other record to compare with, a
record that was written before is tried again and rolled back.
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
from tidemark.foundation.wording import count_text

_TRIALS = 3
"""Transactions after which the consumer waits, if errors change from trial to trial. Chosen: two trials compare, one spare."""

_MOST_ALIKE = 10
"""Records that are rejected for one error in a row while none passes, but one written before still would. So a run of bad
events does not block a trigger, whose host delivers nothing else; and if the cause is new in all events (a day without a
partition), only these are rejected.
"""


RecordNumber = tuple[int, int]


class TryAgainError(Exception):
    """The transaction must be rolled back and begun anew, because more is known now."""


class Isolation:
    """The records of one write. Rejections are added to `rejections`, by Record.number."""

    def __init__(
        self,
        target: Target,
        dialect: str,
        evidence: Evidence,
        rejections: dict[RecordNumber, Rejection],
        passing: Exception | None = None,
        known_good: Record | None = None,
    ) -> None:
        """`passing` is an unknown error that may have passed; it is raised if no record fails alone. `known_good` was
        written before, and may be tried again.
        """
        self._target = target
        self._dialect = dialect
        self._evidence = evidence
        self._rejections = rejections
        self._passing = passing
        self._known_good = known_good
        self._of_known_good: str | None = None
        self._collided: set[RecordNumber] = set()
        self._unclear: dict[RecordNumber, tuple[Record, Exception]] = {}
        self._doubted: dict[RecordNumber, tuple[Record, Exception]] = {}
        self._left_out: set[RecordNumber] = set()
        self._trials_left = _TRIALS
        self._some_passed = False

    def write(self, connection: Connection, records: Sequence[Record]) -> None:
        """Runs in the caller's transaction, which may be committed if this returns.

        Raises TryAgainError, UnavailableError if no record can be blamed yet, and errors of the service.
        """
        if self._dialect == "postgresql":
            # Otherwise a deferred constraint fails at the commit, when nobody can tell which event violates it.
            connection.execute(text("SET CONSTRAINTS ALL IMMEDIATE"))
        for record in records:
            if record.number not in self._left_out:
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
                # What is behind this record can only be tried without it.
                self._left_out.update(self._unclear, self._doubted)
                raise TryAgainError from error
            if again:
                self._write_one(connection, record)
        else:
            self._evidence.passed(trial)
            self._some_passed = True

    def _is_first_collision(self, record: Record, error: Exception) -> bool:
        """Whether the record gets a second try. Another partition may insert its key between update and insert; then the
        second try finds that row. A constraint that is really violated is violated again.
        """
        first = isinstance(error, IntegrityError) and record.number not in self._collided
        if first:
            self._collided.add(record.number)
        return first

    def _note(self, record: Record, error: Exception) -> None:
        at_fault = self._evidence.failed(_id(record), code_of(error))
        rejection = rejection_of(error)
        self._passing = None
        if at_fault or (rejection is not None and not may_be_of_table(error)):
            self._rejections[record.number] = rejection or refusal_of(error)
        else:
            undecided = self._unclear if rejection is None else self._doubted
            undecided[record.number] = (record, error)

    def _judge_doubted(self, connection: Connection) -> None:
        """Rejects records for the database's error about them, unless the table may have changed for all of them."""
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

    def _reject(self, record: Record, error: Exception) -> None:
        if not self._some_passed:
            self._evidence.believe(_id(record), code_of(error))
        self._rejections[record.number] = rejection_of(error) or refusal_of(error)

    def _error_of_known_good(self, connection: Connection) -> str | None:
        """The error code with which a record fails now that was written before: '' if it passes, None if there is none. It
        is rolled back, and tried once. It proves nothing about later events, such as those of a day without a partition.
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
        if (
            not decidable
            and len(unclear) == 1
            and not self._evidence.is_repeated(_id(record), code_of(error))
        ):
            decidable = self._error_of_known_good(connection) == ""
            if decidable and self._trials_left < _TRIALS - 1 and rejection_of(error) is None:
                self._reject(record, error)
                return
        if self._trials_left and decidable:
            raise TryAgainError
        raise UnavailableError(
            f"{message_of(error)}: the database refuses {len(unclear)} of {count_text(tried, 'event')} and has accepted"
            " no other since, so that the table or a right may be at fault; an event is only blamed once others pass"
        ) from error


def _id(record: Record) -> Hashable:
    return record.event.partition, record.number


def _roll_back(savepoint: NestedTransaction) -> bool:
    """False if that is no longer possible, because the whole transaction has ended."""
    if not savepoint.is_active:
        return False  # a handler tried to end the transaction itself
    try:
        savepoint.rollback()
    except SQLAlchemyError:
        return False  # SQL Server gives up the whole transaction after some errors
    return True
