"""The SQL of subscription rules against SQLite, which knows the same three-valued logic."""

import contextlib
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devstack.service_bus.rules.sql import SqlError, parse_action, parse_condition
from devstack.service_bus.rules.sql_values import EvaluationError

NUMBERS, TEXTS = ("n1", "n2"), ("s1", "s2")
rows = st.fixed_dictionaries(
    {
        **{name: st.none() | st.integers(-3, 3) for name in NUMBERS},
        **{name: st.none() | st.text("ab%_", max_size=3) for name in TEXTS},
    }
)

numbers = st.recursive(
    st.sampled_from([*NUMBERS, "0", "1", "-2", "NULL"]),
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*"), inner)
        | st.builds("({} {} {})".format, inner, st.sampled_from("/%"), st.sampled_from(["2", "-3"]))
    ),
    max_leaves=4,
)
literals = st.text("ab%_'", max_size=3).map(lambda text: "'" + text.replace("'", "''") + "'")
texts = st.sampled_from([*TEXTS, "NULL"]) | literals
operators = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
negation = st.sampled_from(["", "NOT "])
tests = st.one_of(
    st.builds("{} {} {}".format, numbers, operators, numbers),
    st.builds("{} {} {}".format, texts, operators, texts),
    st.builds("{} IS {}NULL".format, numbers | texts, negation),
    st.builds("{} {}IN ({}, {})".format, numbers, negation, numbers, numbers),
    st.builds("{} {}LIKE {}".format, texts, negation, texts),
    st.builds("{} {}LIKE {} ESCAPE '%'".format, texts, negation, literals.filter(lambda t: "%" not in t)),
)
conditions = st.recursive(
    tests,
    lambda inner: (
        st.builds("({}) {} ({})".format, inner, st.sampled_from(["AND", "OR"]), inner)
        | st.builds("NOT ({})".format, inner)
        | st.builds("{} and {} Or {}".format, tests, tests, inner)
    ),
    max_leaves=6,
)


class Row:
    """A message of which only the user's properties are asked for."""

    def __init__(self, values):
        self.values = values

    def system(self, name):
        raise EvaluationError(name)

    def user(self, name):
        return self.values.get(name.lower())

    def exists(self, _scope, name):
        return self.values.get(name.lower()) is not None


@pytest.fixture(scope="module")
def sqlite():
    with sqlite3.connect(":memory:") as connection:
        connection.execute("PRAGMA case_sensitive_like = ON")
        yield connection
    connection.close()


@given(conditions, rows)
def test_a_condition_is_as_true_as_sqlite_has_it(sqlite, text, row):
    columns = ", ".join(f":{name} AS {name}" for name in row)
    (expected,) = sqlite.execute(f"SELECT {text} FROM (SELECT {columns})", row).fetchone()

    assert parse_condition(text)(Row(row)) is (None if expected is None else bool(expected))


pieces = st.sampled_from(
    [
        "AND",
        "OR",
        "NOT",
        "(",
        "(",
        ")",
        ")",
        "n1",
        "s1",
        "sys.Label",
        "user.n1",
        "[a",
        "b]",
        "=",
        "<>",
        "<",
        "IS",
        "NULL",
        "IN",
        "LIKE",
        "ESCAPE",
        "EXISTS",
        ",",
        "1",
        "2.5",
        "1e400",
        "'x'",
        "@p",
        "+",
        "-",
        "*",
        "/",
        "%",
        "newid",
        "(",
        ")",
        "p",
        "TRUE",
        "SET",
        "REMOVE",
        ";",
        ".",
        "'",
        "[",
        "é",
        "\x00",
    ]
)


@given(st.lists(pieces, max_size=14).map(" ".join) | st.text(max_size=30), rows)
def test_whatever_is_written_is_refused_or_evaluated_and_nothing_else_happens(text, row):
    for parse in (parse_condition, parse_action):
        try:
            parsed = parse(text, {"p": 1})
        except SqlError:
            continue
        for evaluate in (
            [parsed] if callable(parsed) else [statement.value for statement in parsed if statement.value]
        ):
            with contextlib.suppress(EvaluationError):
                evaluate(Row(row))


@pytest.mark.parametrize(
    "text", ["(" * 500 + "1=1" + ")" * 500, "NOT " * 250 + "1=1", "n1 = " + "-" * 900 + "1"]
)
def test_what_is_nested_too_deep_is_refused(text):
    with pytest.raises(SqlError, match="levels"):
        parse_condition(text[:1024])


@pytest.mark.parametrize("text", ["n1=1" + " AND n1=1" * 110, "n1 = 1" + "+1" * 500])
def test_what_is_long_and_flat_is_evaluated(text):
    parse_condition(text)(Row({"n1": 1}))
