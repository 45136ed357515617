"""Whose fault an error is: the event's, which becomes a dead letter, or anything else's, which is tried again."""

from __future__ import annotations

import errno

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError, StatementError

from consumer.model import Rejection

OF_THE_EVENT = {
    "42804": "value",  # datatype_mismatch: the value's type does not fit the column
    "P0001": "constraint",  # raise_exception: a trigger refuses the row
    "25P02": "handler",  # in_failed_sql_transaction: a handler caught an error of the database and went on
}
"""SQLSTATEs that speak of the row, although drivers file them under programming or internal errors."""

_OF_ARITHMETIC = {errno.EDOM, errno.ERANGE, errno.EOVERFLOW}
"""What OSError says of a value, not of the world: `datetime.fromtimestamp` with nanoseconds for seconds."""


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


NAMES = {
    "40001": "serialization failure",
    "40P01": "deadlock",
    "53100": "disk full",
    "55P03": "lock timeout",
    "57014": "statement timeout",
    "HYT00": "timeout of the driver",
    "HYT01": "timeout of the connection",
}


def rejection_of(error: BaseException) -> Rejection | None:
    """Why the event can never be written as it is; None when trying again may help.

    A missing table or column, or a right that was withdrawn, is no fault of any event: the hub is not drained into
    the dead letters for it. Nor is an error that nobody thought of: drivers raise all kinds.
    """
    if isinstance(error, IntegrityError):
        return Rejection("constraint", message_of(error))
    if isinstance(error, DataError):
        return Rejection("value", message_of(error))
    if isinstance(error, DBAPIError):
        reason = OF_THE_EVENT.get(sqlstate(error))
        return Rejection(reason, message_of(error)) if reason else None
    if isinstance(error, StatementError):  # a value that its column's type cannot take; nothing was sent
        return Rejection("value", message_of(error))
    return Rejection("handler", str(error)) if isinstance(error, HandlerError) else None


def message_of(error: BaseException) -> str:
    """One line, without the statement and its parameters: those hold the events' data."""
    cause = error.orig if isinstance(error, StatementError) and error.orig is not None else error
    text = " ".join(str(cause).split()) or type(cause).__name__
    name = NAMES.get(sqlstate(error))
    return f"{name}: {text}" if name else text


def sqlstate(error: BaseException) -> str:
    """The five characters of the database's answer; '' where there is none, as with SQLite."""
    cause = error.orig if isinstance(error, StatementError) else None
    state = getattr(cause, "sqlstate", None)
    if state is None and cause is not None and cause.args and isinstance(cause.args[0], str):
        state = cause.args[0]  # pyodbc
    return state if isinstance(state, str) and len(state) == 5 else ""
