"""Whose fault an error is: the event's, which becomes a dead letter, or anything else's, which is tried again."""

from __future__ import annotations

import errno

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError, StatementError

from consumer.model import Rejection
from foundation.sql.database import message_of, sqlstate

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
