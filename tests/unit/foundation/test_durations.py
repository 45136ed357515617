"""Durations that are written for a file are read as the same number."""

from hypothesis import example, given
from hypothesis import strategies as st

from tidemark.foundation.durations import parse_duration, seconds_text


@example(1e-9)
@example(1_234_567.0)
@example(2_592_000.0)
@given(st.floats(0, 1e8))
def test_a_duration_that_is_written_is_read_as_it_was(seconds):
    assert parse_duration(seconds_text(seconds)) == seconds
