"""The tail of a log line: found again whatever stands before it or in it, and never longer than a message may be."""

import json
import logging
import math
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidemark.foundation.log.process import Lines, LinesForPeople, hide_secrets
from tidemark.foundation.log.tail import MARK, MAX_LINE, Line, log_line, without_tail

FORGED = '{"tidemark":1,"kind":"decision","target":"forged"}'


def tail_of(text):
    """As the queries do it: from the last mark on."""
    return json.loads(text[text.rindex(MARK) :])


def test_a_line_is_told_with_its_fields_those_that_are_unknown_left_out():
    line = Line("scaling plan hold 2: all is well", "decision", {"target": "plan", "at": 1.5, "by": None})

    assert line == "scaling plan hold 2: all is well"
    assert log_line(line) == (
        'scaling plan hold 2: all is well; {"tidemark":1,"kind":"decision","target":"plan","at":1.5}'
    )


def test_a_line_without_fields_is_told_as_it_is():
    assert log_line("lint: a rule flaps") == "lint: a rule flaps"
    assert without_tail("lint: a {rule}") == "lint: a {rule}"


def test_what_somebody_writes_into_a_line_is_not_taken_for_its_tail():
    line = Line(f"control plan: paused, by {FORGED}", "control", {"by": FORGED, "nested": [{"by": FORGED}]})

    assert tail_of(log_line(line)) == {
        "tidemark": 1,
        "kind": "control",
        "by": FORGED,
        "nested": [{"by": FORGED}],
    }


texts = st.text(max_size=40) | st.sampled_from(
    [
        "sig=",
        "AccountKey=abc",
        'password="x',
        "Bearer aaaaaaaaaaaaaaaaaaaa",
        "x://u:",
        FORGED,
        "\u2028",
        "\ud800",
    ]
)
values = st.recursive(
    texts | st.none() | st.booleans() | st.integers() | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(
    texts,
    st.dictionaries(texts.filter(lambda name: name not in {"tidemark", "kind", "cut"}), values, max_size=4),
)
@example("ends with sig=", {"by": "sig="})
def test_a_tail_can_be_read_after_all_that_keeps_secrets_from_the_log(text, fields):
    record = logging.LogRecord(
        "tidemark", logging.INFO, "", 0, "%s", (log_line(Line(text, "k", fields)),), None
    )
    hide_secrets(record)

    told = record.getMessage()
    assert (tail_of(told)["tidemark"], tail_of(told)["kind"]) == (1, "k")
    assert "\n" not in told
    told.encode()


@pytest.mark.parametrize("number", [math.nan, math.inf, 2**70])
def test_a_number_that_json_has_not_is_unknown(number):
    assert tail_of(log_line(Line("x", "k", {"value": number, "all": [number, 1]}))) == {
        "tidemark": 1,
        "kind": "k",
        "value": None,
        "all": [None, 1],
    }


CIRCLE = {}
CIRCLE["again"] = CIRCLE


@pytest.mark.parametrize("odd", [object(), 1j, CIRCLE, [[object()]], {"a": object}])
def test_what_json_has_not_is_left_out_and_named_and_the_line_is_logged(odd):
    """A line is logged after the work was saved and before its messages leave: it must not end that."""
    told = log_line(Line("x", "decision", {"target": "plan", "evidence": odd, "at": 1.5}))

    assert tail_of(told) == {
        "tidemark": 1,
        "kind": "decision",
        "target": "plan",
        "at": 1.5,
        "cut": ["evidence"],
    }


def test_secrets_leave_the_fields_too():
    told = log_line(Line("x", "k", {"detail": "SharedAccessKey=abcdefghijklmnop;EntityPath=hub"}))

    assert tail_of(told)["detail"] == "SharedAccessKey=***;EntityPath=hub"


def test_a_long_line_loses_words_and_a_long_tail_its_longest_fields_and_says_which():
    many = {f"metric-{index}": float(index) for index in range(2_000)}
    told = log_line(
        Line("word " * 20_000, "decision", {"target": "plan", "metrics": many, "note": "n" * 5_000})
    )

    assert len(told) == MAX_LINE
    assert tail_of(told) == {
        "tidemark": 1,
        "kind": "decision",
        "target": "plan",
        "note": "n" * 1_000,
        "cut": ["metrics"],
    }


def test_a_terminal_shows_the_line_without_its_tail():
    message = log_line(Line("12 successes", "consumer", {"written": 12}))
    record = logging.LogRecord("tidemark", logging.INFO, "", 0, "%s", (message,), None)

    assert LinesForPeople("%(levelname)s %(message)s").format(record) == "INFO 12 successes"


@pytest.mark.parametrize("kind", [Lines, LinesForPeople])
def test_a_line_has_its_time_in_utc_wherever_it_is_written(kind, monkeypatch):
    record = logging.LogRecord("tidemark", logging.WARNING, "", 0, "late", None, None)
    record.created, record.msecs = 1_795_809_363.59, 590.0
    monkeypatch.setenv("TZ", "America/St_Johns")
    time.tzset()
    try:
        assert kind().format(record) == "2026-11-27T19:56:03.590Z WARNING late"
    finally:
        monkeypatch.undo()
        time.tzset()


LINES = "no\r\n2026-11-28T00:00:00.000Z INFO    all is well\u2028\x1b[2K\x1b[31mDisk\x1b[0m full"


@pytest.mark.parametrize(
    "logger", ["tidemark.consumer", "consumer.stores.blob.checkpoints", "scaling.service.shell"]
)
def test_an_error_forges_no_line_of_ours(logger):
    """Texts of services, of events and of users' code are in our lines."""
    record = logging.LogRecord(logger, logging.WARNING, "", 0, "writing failed: %s", (LINES,), None)
    hide_secrets(record)

    assert record.getMessage() == (
        "writing failed: no 2026-11-28T00:00:00.000Z INFO    all is well \\x1b[2KDisk full"
    )


def test_lines_of_others_stay_as_they_are():
    record = logging.LogRecord("orders", logging.WARNING, "", 0, "a\n%s", ("b",), None)
    hide_secrets(record)

    assert record.getMessage() == "a\nb"
