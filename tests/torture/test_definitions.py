"""Files, fleets and faults of a consumer, drawn at random; `make torture` draws thousands of lives."""

import os
import random

import pytest

from tests.support.virtual_time import in_virtual_time
from tests.torture.definitions import live

SEEDS = int(os.environ.get("TORTURE_SEEDS", "100")) // 5
PER_TEST = 10


@pytest.mark.parametrize("first", range(0, SEEDS, PER_TEST))
def test_the_sinks_of_a_file_have_what_a_plain_reading_of_it_says(first):
    for seed in range(first, first + PER_TEST):
        random.seed(seed)  # of the waits between attempts: a life is the same each time
        in_virtual_time(live)(seed)
