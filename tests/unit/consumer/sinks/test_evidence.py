"""Whose fault an error is: the lists of what is certain, and the evidence where no list decides."""

import errno
import sqlite3
from decimal import InvalidOperation

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import exc

from consumer.sinks.evidence import Evidence
from consumer.sinks.sql.failures import (
    Blame,
    HandlerError,
    blame_of,
    code_of,
    column_without_value,
    may_be_of_table,
    refusal_of,
)

EVENT, SERVICE, UNCLEAR = Blame.EVENT, Blame.SERVICE, Blame.UNCLEAR


class PsycopgError(Exception):
    def __init__(self, sqlstate):
        super().__init__("words")
        self.sqlstate = sqlstate


def sqlite(name):
    error = sqlite3.Error("words")
    error.sqlite_errorname = name
    return error


def azure(state, words):
    """As pyodbc has it: SQLSTATE, then the message with the server's number."""
    return Exception(
        state, f"[{state}] [Microsoft][ODBC Driver 18 for SQL Server][SQL Server]{words} (SQLExecDirectW)"
    )


def wrapped(kind, cause, *, lost=False):
    return kind("INSERT", {}, cause, connection_invalidated=lost)


@pytest.mark.parametrize(
    ("kind", "state", "blame"),
    [
        (exc.IntegrityError, "23505", EVENT),
        (exc.DataError, "22003", EVENT),
        (exc.DataError, None, EVENT),  # NUL in a text, found by the driver
        (exc.InternalError, "P0001", EVENT),
        (exc.ProgrammingError, "44000", EVENT),  # WITH CHECK OPTION
        (exc.InternalError, "27000", EVENT),
        (exc.InternalError, "25P02", EVENT),
        *((exc.ProgrammingError, state, UNCLEAR) for state in ("42804", "42846", "42501", "428C9", "42P01", "42703")),
        *((exc.ProgrammingError, state, UNCLEAR) for state in ("3F000", "21000", "0A000", "39000", "38000", None)),
        *((exc.OperationalError, state, UNCLEAR) for state in ("54000", "54001", None)),
        *((exc.DatabaseError, state, UNCLEAR) for state in ("45000", "XX000", "HV000", "55000", "ZZ999")),
        *((exc.OperationalError, state, SERVICE) for state in ("08006", "40001", "40P01", "53100", "53200", "53300")),
        *((exc.OperationalError, state, SERVICE) for state in ("55P03", "57014", "57P01", "58030")),
        (exc.InternalError, "25006", SERVICE),
    ],
)  # fmt: skip
def test_what_a_sqlstate_of_postgresql_says_by_itself(kind, state, blame):
    assert blame_of(wrapped(kind, PsycopgError(state))) is blame
    assert blame_of(wrapped(kind, PsycopgError(state), lost=True)) is SERVICE


@pytest.mark.parametrize(
    ("kind", "state", "words", "blame"),
    [
        (exc.IntegrityError, "23000", "Violation of PRIMARY KEY constraint. (2627)", EVENT),
        (exc.DataError, "22001", "String or binary data would be truncated. (2628)", EVENT),
        (exc.ProgrammingError, "42000", "Error converting data type nvarchar to bigint. (8114)", UNCLEAR),
        (exc.ProgrammingError, "42000", "The seat is taken. (50001)", UNCLEAR),
        (exc.ProgrammingError, "42S02", "Invalid object name 'flights'. (208)", UNCLEAR),
        (exc.ProgrammingError, "42000", "The INSERT permission was denied. (229)", UNCLEAR),
        (exc.DBAPIError, "HY000", "Something new. (99999)", UNCLEAR),
        (exc.DBAPIError, "HY104", "Invalid precision value (0)", UNCLEAR),
        (exc.ProgrammingError, "42000", "Lock request time out period exceeded. (1222)", SERVICE),
        (exc.DBAPIError, "40001", "Transaction was deadlocked. (1205)", SERVICE),
        (exc.ProgrammingError, "42000", "The service is currently busy. (40501)", SERVICE),
        (exc.ProgrammingError, "42000", "Database is read-only. (3906)", SERVICE),
        (exc.OperationalError, "HYT00", "Query timeout expired (0)", SERVICE),
        (exc.OperationalError, "08S01", "Communication link failure (0)", SERVICE),
    ],
)
def test_what_an_error_of_azure_sql_says_by_itself(kind, state, words, blame):
    assert blame_of(wrapped(kind, azure(state, words))) is blame


@pytest.mark.parametrize(
    ("error", "blame"),
    [
        (wrapped(exc.OperationalError, sqlite("SQLITE_BUSY")), SERVICE),
        (wrapped(exc.OperationalError, sqlite("SQLITE_BUSY_SNAPSHOT")), SERVICE),
        (wrapped(exc.OperationalError, sqlite("SQLITE_IOERR_WRITE")), SERVICE),
        (wrapped(exc.OperationalError, sqlite("SQLITE_FULL")), SERVICE),
        (wrapped(exc.OperationalError, sqlite("SQLITE_ERROR")), UNCLEAR),
        (wrapped(exc.ProgrammingError, sqlite3.ProgrammingError("type 'dict' is not supported")), UNCLEAR),
        (wrapped(exc.IntegrityError, sqlite("SQLITE_CONSTRAINT_TRIGGER")), EVENT),
        (exc.StatementError("no date", "INSERT", {}, TypeError("no date")), EVENT),
        *((kind("x"), EVENT) for kind in (TypeError, ValueError, OverflowError, RecursionError, InvalidOperation)),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"), EVENT),
        (OSError(errno.EOVERFLOW, "Value too large"), SERVICE),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "an answer"), UNCLEAR),
        (KeyError("x"), UNCLEAR),
        (exc.NoResultFound("a handler looked for a row"), UNCLEAR),
        (FileNotFoundError("a handler looked for a file"), UNCLEAR),
        (HandlerError("refused"), EVENT),
        *((kind("x"), SERVICE) for kind in (ConnectionResetError, TimeoutError, MemoryError, exc.TimeoutError)),
    ],
)  # fmt: skip
def test_what_other_errors_say_by_themselves(error, blame):
    assert blame_of(error) is blame


def test_the_code_of_an_error_is_the_same_whatever_its_words_are():
    first = wrapped(exc.ProgrammingError, azure("42000", "No 5 at 10:00. (50001)"))
    again = wrapped(exc.ProgrammingError, azure("42000", "No 6 at 10:01. (50001)"))
    other = wrapped(exc.ProgrammingError, azure("42000", "No 5 at 10:00. (50002)"))

    assert code_of(first) == code_of(again) != code_of(other)
    assert refusal_of(wrapped(exc.ProgrammingError, PsycopgError("42846"))).reason == "value"
    assert refusal_of(first).reason == "refused"


def fails(evidence, record, error="42501"):
    evidence.begin()
    return evidence.failed(record, error)


def passes(evidence):
    evidence.passed(evidence.begin())


def test_a_record_is_blamed_when_it_fails_again_after_another_one_passed():
    evidence = Evidence()

    assert not fails(evidence, "a")
    assert not evidence.is_decidable("a")
    passes(evidence)
    assert evidence.is_decidable("a")
    assert fails(evidence, "a")


def test_a_pass_that_was_begun_before_the_first_failure_says_nothing():
    evidence = Evidence()
    begun = evidence.begin()

    fails(evidence, "a")
    evidence.passed(begun)
    assert not fails(evidence, "a")


def test_another_error_is_no_repetition_and_a_settled_record_starts_anew():
    evidence = Evidence()
    fails(evidence, "a")
    passes(evidence)

    assert not fails(evidence, "a", "42P01")
    passes(evidence)
    evidence.settled("a")
    assert not fails(evidence, "a", "42P01")


@pytest.mark.parametrize(
    ("error", "column", "may_be"),
    [
        (wrapped(exc.IntegrityError, azure("23000", "Cannot insert the value NULL into column 'gate', table 'f'. (515)")), "gate", True),
        (wrapped(exc.IntegrityError, azure("23000", "The INSERT statement conflicted. (547)")), "", True),
        (wrapped(exc.IntegrityError, azure("23000", "Violation of PRIMARY KEY constraint. (2627)")), "", False),
        (wrapped(exc.IntegrityError, PsycopgError("23505")), "", False),
        (wrapped(exc.IntegrityError, PsycopgError("23503")), "", True),
        (wrapped(exc.IntegrityError, sqlite("SQLITE_CONSTRAINT_PRIMARYKEY")), "", False),
        (wrapped(exc.DataError, PsycopgError("22001")), "", True),
        (exc.StatementError("no date", "INSERT", {}, TypeError("no date")), "", False),
        (HandlerError("refused"), "", False),
    ],
)  # fmt: skip
def test_what_speaks_of_a_row_may_come_of_a_changed_table(error, column, may_be):
    assert (column_without_value(error), may_be_of_table(error)) == (column, may_be)


@pytest.mark.parametrize(("errors", "attempts"), [("ab", 3), ("abc", 4), ("abcdefghij", 6)])
def test_a_record_whose_errors_differ_is_blamed_when_one_comes_back_or_it_failed_often(errors, attempts):
    evidence = Evidence()
    blamed = []
    for error in (errors * 2)[:attempts]:
        blamed.append(fails(evidence, "a", error))
        passes(evidence)

    assert blamed == [*[False] * (attempts - 1), True]


def test_an_error_that_another_record_was_believed_with_is_no_proof_until_something_passes():
    evidence = Evidence()
    evidence.believe("a", "23514")

    assert not evidence.is_repeated("a", "23514")
    assert not evidence.is_repeated("b", "23502")
    assert evidence.is_repeated("b", "23514")
    passes(evidence)
    assert not evidence.is_repeated("b", "23514")


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("xy"))))
def test_while_nothing_passes_no_record_is_blamed(failures):
    evidence = Evidence()
    passes(evidence)

    assert not any(fails(evidence, record, error) for record, error in failures)


def test_suspects_that_are_never_settled_are_forgotten_in_time(monkeypatch):
    monkeypatch.setattr("consumer.sinks.evidence._MOST_SUSPECTS", 3)
    evidence = Evidence()
    for record in range(5):
        fails(evidence, record)
    passes(evidence)

    assert [record for record in range(5) if evidence.is_decidable(record)] == [2, 3, 4]
