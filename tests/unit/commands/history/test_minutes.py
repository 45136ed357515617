"""Which minutes are asked for, and what answers say of them."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.commands.history.journal import Piece
from tidemark.commands.history.model import (
    DAY,
    KEPT_DAYS,
    SETTLING,
    Minute,
    Span,
    answered,
    counts,
    missing,
    pieces,
    totals,
    window,
)
from tidemark.commands.history.sources import quoted

minutes = st.integers(0, 400)
spans = st.tuples(minutes, minutes).map(lambda pair: Span(min(pair), max(pair)))


def every(found):
    return [minute for span in found for minute in range(span.begin, span.end)]


@given(spans, st.sets(minutes), st.integers(1, 50))
def test_the_pieces_are_the_missing_minutes_each_once_and_in_order(span, known, size):
    found = list(pieces(missing(span, known), size))

    assert every(found) == [minute for minute in range(span.begin, span.end) if minute not in known]
    assert all(1 <= len(each) <= size for each in found)


def test_neighbouring_minutes_are_asked_for_together():
    assert missing(Span(0, 10), {3, 4, 9}) == [Span(0, 3), Span(5, 9)]
    assert missing(Span(0, 3), {0, 1, 2}) == []


@pytest.mark.parametrize(
    ("days", "length"),
    [(1, DAY), (30, 30 * DAY), (KEPT_DAYS, KEPT_DAYS * DAY - 2 * SETTLING)],
)
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati"])
def test_the_window_ends_before_the_newest_minutes_and_begins_where_minutes_are_kept(
    monkeypatch, days, length, zone
):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    now = 1_800_000_059.0

    span = window(now, days)

    monkeypatch.undo()
    time.tzset()
    assert span.end == 30_000_000 - SETTLING
    assert len(span) == length


@pytest.mark.parametrize(
    ("newest", "begins"),
    [(-5, -DAY), (-3 * DAY, -3 * DAY + 1), (-500 * DAY, -KEPT_DAYS * DAY + 2 * SETTLING), (99, -DAY)],
)
def test_the_window_reaches_back_to_what_is_known_so_that_no_hole_is_left(newest, begins):
    end = 30_000_000 - SETTLING

    assert window(1_800_000_000.0, 1, {end + newest, end - 600 * DAY}) == Span(end + begins, end)


values = st.one_of(st.none(), st.floats(), st.integers(0, 9).map(float))
answers = st.lists(st.lists(st.tuples(st.floats(-60, 30_000), values)))


@given(answers, spans)
def test_whatever_an_answer_holds_there_is_a_value_or_a_gap_for_each_minute(series, span):
    came, ran = totals(series, span), counts(series, span)

    assert len(came) == len(ran) == len(span)
    assert all(value is None or value >= 0 for value in came)
    assert all(value is None or 1 <= value <= len(series) for value in ran)
    assert [value is None for value in came] == [value is None for value in ran]
    assert answered(series, span) <= set(range(span.begin, span.end))


def test_a_point_without_a_value_is_a_gap_and_zero_is_a_number():
    series = [[(60.0, 0.0), (120.0, None), (180.0, 4.0)], [(180.0, 2.0), (240.0, math.nan), (300.0, 9.0)]]
    span = Span(0, 5)

    assert totals(series, span) == [None, 0.0, None, 6.0, None]
    assert counts(series, span) == [None, 1, None, 2, None]
    assert answered(series, span) == {1, 2, 3, 4}


def test_minutes_without_a_plan_have_no_instances():
    assert Piece(7, [1.0, None]).minutes() == {7: Minute(1.0), 8: Minute()}
    assert Piece(7, [None], [3]).minutes() == {7: Minute(None, 3)}


def test_values_are_quoted_as_the_api_wants_them():
    assert quoted("o'clock (a/b) 5%") == "o''clock %28a/b%29 5%25"
