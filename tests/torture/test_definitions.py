"""Files of routes, drawn at random, over kills, lost answers and changes of the file; `make torture` draws thousands."""

import os
import random

import pytest

from tests.support.virtual_time import in_virtual_time
from tests.torture.definitions import live

SEEDS = int(os.environ.get("TORTURE_SEEDS", "200")) // 10
PER_TEST = 10


@pytest.mark.parametrize("first", range(0, max(SEEDS, PER_TEST), PER_TEST))
def test_the_sinks_of_a_file_have_what_a_plain_reading_of_it_says(first):
    for seed in range(first, first + PER_TEST):
        random.seed(seed)  # of the waits between attempts: a life is the same each time
        in_virtual_time(live)(seed)


def test_a_record_that_is_parked_in_a_stop_takes_nothing_from_those_of_its_event_that_are_parked_already():
    """A life that lost records of an event: what was parked under a draining claim took the place of what was there."""
    random.seed(200014)
    in_virtual_time(live)(14)
