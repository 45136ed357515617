"""Whose fault an error is: the event's, which becomes a dead letter, the service's, which is waited for, or nobody knows
yet: then the event is tried alone, and evidence decides (consumer.sinks.evidence).

No list of SQLSTATEs is enough: databases, triggers and extensions refuse rows with any of them. So the lists here name
only what is certain. An error that is on neither list is judged by what happens to the other events.
"""

from __future__ import annotations

import errno
import re
from enum import Enum, auto

from sqlalchemy import exc
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError, StatementError

from consumer.model import Rejection
from tidemark.foundation.errors import TidemarkError
from tidemark.foundation.sql.database import message_of, sqlstate


class Blame(Enum):
    EVENT = auto()
    SERVICE = auto()
    UNCLEAR = auto()


_REASONS = {
    "P0": "constraint",  # raise_exception: a trigger refuses the row
    "27": "constraint",  # triggered_data_change_violation
    "44": "constraint",  # with_check_option_violation
    "25P02": "handler",  # in_failed_sql_transaction: a handler caught an error of the database and went on
}
"""SQLSTATEs, or their classes, that speak of the row, although drivers file them under programming or internal errors."""

_OF_VALUES = {"42804", "42846"}
"""datatype_mismatch and cannot_coerce: what the event holds, or a column whose type was changed."""

_OF_ANOTHER_ROW = {"23505", "23P01"}
"""unique_violation and exclusion_violation."""
_OF_ANOTHER_ROW_OF_AZURE_SQL = {2601, 2627}

_SERVICE = {"08", "25", "40", "53", "57", "58", "55006", "55P03", "HYT00", "HYT01"}
"""SQLSTATEs, or their classes, of connections, transactions, resources, operators, locks and timeouts. A statement
timeout (57014) may be a row whose trigger is slow; more often it is a lock that somebody else holds.
"""

_SERVICE_OF_AZURE_SQL = frozenset(
    {
        *(1204, 1205, 1222, 3960, 3961),  # locks, deadlocks, snapshots
        *(
            701,
            802,
            1101,
            1105,
            8645,
            8651,
            9002,
            40544,
            40549,
            40550,
            40551,
            40552,
            40553,
        ),  # memory and space
        *(3906, 3908),  # read-only after a failover
        *(233, 4060, 4221, 10928, 10929, 18456, 40143, 40197, 40501, 40540, 40613, 49918, 49919, 49920),
    }
)
"""Numbers of SQL Server, which has one SQLSTATE (42000) for these and for bad rows. The last line is Microsoft's list of
transient errors (SqlConfigurableRetryFactory) and a failed login.
"""
_NUMBER = re.compile(r"\((\d{2,6})\)(?: \(SQL|\s*$)")
"""How pyodbc appends the number to the server's message."""

_NULL_IN_AZURE_SQL = re.compile(r"into column '([^']+)'")

_SERVICE_OF_SQLITE = frozenset(
    {
        *("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL", "SQLITE_INTERRUPT"),
        *("SQLITE_IOERR", "SQLITE_FULL", "SQLITE_NOMEM", "SQLITE_CORRUPT", "SQLITE_NOTADB"),
        *("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM"),
    }
)

_OF_ARITHMETIC = {errno.EDOM, errno.ERANGE, errno.EOVERFLOW}
"""What OSError says of a value, not of the world: `datetime.fromtimestamp` with nanoseconds for seconds."""

_OF_VALUES_IN_PYTHON = (TypeError, ValueError, ArithmeticError, RecursionError)
"""What drivers raise for a value that they cannot send: an integer beyond 64 bits, half of a surrogate pair, an object.
decimal.InvalidOperation and OverflowError are ArithmeticErrors, UnicodeEncodeError is a ValueError.
"""

_OF_FILES = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
"""What no network raises: a handler that looks for a file named by the event."""


class HandlerError(Exception):
    """A handler of the user's own refused an event."""

    @classmethod
    def of(cls, error: Exception) -> HandlerError | None:
        """What a handler raised as its refusal; None where trying again may help: errors of the database and of the
        network.
        """
        arithmetic = isinstance(error, OSError) and error.errno in _OF_ARITHMETIC
        if isinstance(error, SQLAlchemyError | OSError | MemoryError) and not arithmetic:
            return None
        return cls(f"{type(error).__name__}: {error}")


def rejection_of(error: BaseException) -> Rejection | None:
    """Why the event can certainly never be written as it is, when it was tried alone; None where that is not certain.

    A missing table or column, or a right that was withdrawn, is no fault of any event: the hub is not drained into
    the dead letters for it.
    """
    if _is_service(error):
        return None
    if isinstance(error, IntegrityError):
        return Rejection("constraint", message_of(error))
    if isinstance(error, DataError):
        return Rejection("value", message_of(error))
    if isinstance(error, DBAPIError):
        state = sqlstate(error)
        reason = _REASONS.get(state) or _REASONS.get(state[:2])
        return Rejection(reason, message_of(error)) if reason else None
    if isinstance(error, StatementError):  # a value that its column's type cannot take; nothing was sent
        return Rejection("value", message_of(error))
    if isinstance(error, UnicodeDecodeError):  # of something that was received
        return None
    if isinstance(error, _OF_VALUES_IN_PYTHON):
        return Rejection("value", f"{type(error).__name__}: {message_of(error)}")
    return Rejection("handler", str(error)) if isinstance(error, HandlerError) else None


def may_be_of_table(error: BaseException) -> bool:
    """Whether an error that speaks of a row may come of a change of the table, as where a column that must not be null was
    added: then every row is refused alike. That a key is there already is another row's doing.
    """
    if not isinstance(error, DBAPIError):
        return False
    cause = _cause(error)
    words = str(getattr(cause, "sqlite_errorname", None) or "")
    of_another_row = sqlstate(error) in _OF_ANOTHER_ROW or _number(cause) in _OF_ANOTHER_ROW_OF_AZURE_SQL
    return not of_another_row and not words.endswith(("_UNIQUE", "_PRIMARYKEY", "_ROWID"))


def column_without_value(error: BaseException) -> str:
    """The column that must not be null, of an error that says so; else ''."""
    cause = _cause(error)
    if sqlstate(error) == "23502":
        return str(getattr(getattr(cause, "diag", None), "column_name", None) or "")
    if getattr(cause, "sqlite_errorname", None) == "SQLITE_CONSTRAINT_NOTNULL":
        return str(cause).rpartition(".")[2]
    found = _NULL_IN_AZURE_SQL.search(str(cause)) if _number(cause) == 515 else None
    return found[1] if found else ""


def blame_of(error: BaseException) -> Blame:
    """Whose fault an error is by itself. EVENT holds for an event that was tried alone."""
    if _is_service(error):
        return Blame.SERVICE
    return Blame.UNCLEAR if rejection_of(error) is None else Blame.EVENT


def is_answer(error: BaseException) -> bool:
    """Whether the database, or the handler, said something about a statement: it has a code, or certainly speaks of an
    event.
    """
    if isinstance(error, StatementError | HandlerError) and rejection_of(error) is not None:
        return True
    return bool(sqlstate(error) or getattr(_cause(error), "sqlite_errorname", None))


def refusal_of(error: BaseException) -> Rejection:
    """The rejection of an event that evidence found at fault."""
    reason = "value" if sqlstate(error) in _OF_VALUES else "refused"
    return Rejection(
        reason, f"{message_of(error)} (refused again while other events of the same statement were accepted)"
    )


def code_of(error: BaseException) -> str:
    """Equal for errors of one cause: types and codes, without the message, which may hold times and values."""
    cause = _cause(error)
    code = sqlstate(error) or getattr(cause, "sqlite_errorname", None) or ""
    return f"{type(cause).__name__} {code} {_number(cause) or ''}".strip()


def _is_service(error: BaseException) -> bool:
    if isinstance(error, DBAPIError):
        cause, state = _cause(error), sqlstate(error)
        if error.connection_invalidated or (
            state != "25P02" and (state in _SERVICE or state[:2] in _SERVICE)
        ):
            return True
        name = "_".join(str(getattr(cause, "sqlite_errorname", None) or "").split("_")[:2])
        return name in _SERVICE_OF_SQLITE or _number(cause) in _SERVICE_OF_AZURE_SQL
    if isinstance(error, OSError):
        return not isinstance(error, _OF_FILES)
    return isinstance(error, MemoryError | TidemarkError | exc.TimeoutError) or not isinstance(
        error, Exception
    )


def _cause(error: BaseException) -> BaseException:
    return error.orig if isinstance(error, StatementError) and error.orig is not None else error


def _number(cause: BaseException) -> int | None:
    """The number of an error of SQL Server, of which pyodbc makes (SQLSTATE, message)."""
    match cause.args:
        case (str(state), str(message)) if len(state) == 5 and (found := _NUMBER.findall(message)):
            return int(found[-1])
    return None
