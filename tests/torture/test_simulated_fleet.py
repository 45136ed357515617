"""Hundreds of fleets in virtual time, each with its own faults; `make torture` runs thousands."""

import os

import pytest

from tests.torture.world import Plan, World

SEEDS = int(os.environ.get("TORTURE_SEEDS", "200"))
PER_TEST = 10


@pytest.mark.parametrize("first", range(0, SEEDS, PER_TEST))
def test_a_fleet_loses_nothing_whatever_happens(first):
    for seed in range(first, first + PER_TEST):
        world = World(Plan.of(seed))

        world.run()

        world.check_end()
