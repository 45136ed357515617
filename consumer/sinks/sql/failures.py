"""Decides whose fault an error is: the event's, which becomes a dead letter; the service's, which is waited for; or unclear:
then the event is tried alone, and evidence decides (consumer.sinks.evidence).

No list of SQLSTATEs is enough, because databases, triggers and extensions refuse rows with any of them. The lists here
name only what is certain.
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
    "25P02": "handler",  # in_failed_sql_transaction: a handler caught an error of the database and continued
}
"""SQLSTATEs, or their classes, that blame the row, although drivers report them as programming or internal errors."""

_OF_VALUES = {"42804", "42846"}
"""datatype_mismatch and cannot_coerce: the event's value, or a column whose type was changed."""

_OF_ANOTHER_ROW = {"23505", "23P01"}
"""unique_violation and exclusion_violation."""
_OF_ANOTHER_ROW_OF_AZURE_SQL = {2601, 2627}

_SERVICE = {"08", "25", "40", "53", "57", "58", "55006", "55P03", "HYT00", "HYT01"}
"""SQLSTATEs, or their classes, of connections, transactions, resources, operators, locks and timeouts. A statement
timeout (57014) may be a row with a slow trigger; more often another session holds a lock.
"""

_SERVICE_OF_AZURE_SQL = frozenset(
    {
        *(1204, 1205, 1222, 3960, 3961),  # locks, deadlocks, snapshots
        *(701, 802, 1101, 1105, 8645, 8651, 9002, 40544),  # memory and space
        *(40549, 40550, 40551, 40552, 40553),  # a session that used too much of them
        *(3906, 3908),  # read-only after a failover
        *(233, 4060, 4221, 10928, 10929, 18456, 40143, 40197, 40501, 40540, 40613, 49918, 49919, 49920),
    }
)
"""Error numbers of SQL Server, which has one SQLSTATE (42000) for these and for bad rows. The last line is Microsoft's list
of transient errors (SqlConfigurableRetryFactory) and a failed login.
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
"""An OSError with one of these is about a value: `datetime.fromtimestamp` with nanoseconds for seconds."""

_OF_VALUES_IN_PYTHON = (TypeError, ValueError, ArithmeticError, RecursionError)
"""Drivers raise these for a value that they cannot send: an integer beyond 64 bits, half of a surrogate pair, an object.
decimal.InvalidOperation and OverflowError are ArithmeticErrors, UnicodeEncodeError is a ValueError.
"""

_OF_FILES = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Errors that no network raises: a handler may look for a file that the event names."""


class HandlerError(Exception):
    """A handler of the user refused an event."""

    @classmethod
    def of(cls, error: Exception) -> HandlerError | None:
        """The refusal for a handler's error; None if trying again may help: errors of the database and of the network."""
        arithmetic = isinstance(error, OSError) and error.errno in _OF_ARITHMETIC
        if isinstance(error, SQLAlchemyError | OSError | MemoryError) and not arithmetic:
            return None
        return cls(f"{type(error).__name__}: {error}")


def rejection_of(error: BaseException) -> Rejection | None:
    """Why the event can certainly never be written as it is, if it was tried alone; None if that is not certain.

    A missing table or column, or a revoked right, is not the fault of any event.
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
    if isinstance(error, UnicodeDecodeError):  # about bytes that were received
        return None
    if isinstance(error, _OF_VALUES_IN_PYTHON):
        return Rejection("value", f"{type(error).__name__}: {message_of(error)}")
    return Rejection("handler", str(error)) if isinstance(error, HandlerError) else None


def may_be_of_table(error: BaseException) -> bool:
    """Whether an error about a row may be caused by a change of the table, for example a new NOT NULL column: then every row
    is refused alike. A duplicate key is caused by another row.
    """
    if not isinstance(error, DBAPIError):
        return False
    cause = _cause(error)
    name = str(getattr(cause, "sqlite_errorname", None) or "")
    of_another_row = sqlstate(error) in _OF_ANOTHER_ROW or _number(cause) in _OF_ANOTHER_ROW_OF_AZURE_SQL
    return not of_another_row and not name.endswith(("_UNIQUE", "_PRIMARYKEY", "_ROWID"))


def column_without_value(error: BaseException) -> str:
    """The NOT NULL column that got no value, if the error names one; else ''."""
    cause = _cause(error)
    if sqlstate(error) == "23502":
        return str(getattr(getattr(cause, "diag", None), "column_name", None) or "")
    if getattr(cause, "sqlite_errorname", None) == "SQLITE_CONSTRAINT_NOTNULL":
        return str(cause).rpartition(".")[2]
    match = _NULL_IN_AZURE_SQL.search(str(cause)) if _number(cause) == 515 else None
    return match[1] if match else ""


def blame_of(error: BaseException) -> Blame:
    """Whose fault an error is by itself. EVENT is certain only if the event was tried alone."""
    if _is_service(error):
        return Blame.SERVICE
    return Blame.UNCLEAR if rejection_of(error) is None else Blame.EVENT


def is_answer(error: BaseException) -> bool:
    """Whether the database or the handler answered a statement: the error has a code, or certainly blames an event."""
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
    """Equal for errors of one cause: type and codes without the message, which may contain times and values."""
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
    """The error number of SQL Server; pyodbc's arguments are (SQLSTATE, message)."""
    match cause.args:
        case (str(state), str(message)) if len(state) == 5 and (numbers := _NUMBER.findall(message)):
            return int(numbers[-1])
    return None
