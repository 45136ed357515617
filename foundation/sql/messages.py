"""What an error of a database says, in a line."""

from __future__ import annotations

from sqlalchemy.exc import StatementError


def message_of(error: BaseException) -> str:
    """One line, without the statement and its parameters: those hold the events' data."""
    cause = error.orig if isinstance(error, StatementError) and error.orig is not None else error
    text = " ".join(str(cause).split()) or type(cause).__name__
    name = NAMES.get(sqlstate(error))
    return f"{name}: {text}" if name else text


NAMES = {
    "40001": "serialization failure",
    "40P01": "deadlock",
    "53100": "disk full",
    "55P03": "lock timeout",
    "57014": "statement timeout",
    "HYT00": "timeout of the driver",
    "HYT01": "timeout of the connection",
}


def sqlstate(error: BaseException) -> str:
    """The five characters of the database's answer; '' where there is none, as with SQLite."""
    cause = error.orig if isinstance(error, StatementError) else None
    state = getattr(cause, "sqlstate", None)
    if state is None and cause is not None and cause.args and isinstance(cause.args[0], str):
        state = cause.args[0]  # pyodbc
    return state if isinstance(state, str) and len(state) == 5 else ""
