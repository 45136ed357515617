"""When a record is tried again."""

import pytest

from consumer.retry import delay


@pytest.mark.parametrize(
    ("retry_after", "expected"), [(None, 2.0), (0.0, 0.0), (0.25, 0.25), (30.0, 30.0), (-1.0, 0.0)]
)
def test_the_service_decides_and_else_it_is_the_seeds_two_seconds(retry_after, expected):
    assert delay(retry_after) == expected


@pytest.mark.parametrize(("chance", "expected"), [(0.0, 2.0), (0.5, 2.25)])
def test_jitter_only_ever_adds(chance, expected):
    assert delay(None, lambda: chance) == expected
