"""Starts after starts, drawn at random: how each ended, and what changed meanwhile; `make torture` draws thousands."""

import asyncio
import os
import random

import pytest

from consumer.options import OnDistrust
from tests.support.consumer.next_starts import Story
from tests.support.virtual_time import in_virtual_time

SEEDS = int(os.environ.get("TORTURE_SEEDS", "200")) // 10
PER_TEST = 5


@pytest.mark.parametrize("first", range(0, max(SEEDS, PER_TEST), PER_TEST))
def test_nothing_is_lost_or_replaced_whatever_happens_between_starts(first):
    for seed in range(first, first + PER_TEST):
        in_virtual_time(lives)(seed)


async def lives(seed):
    """Seven starts. Events that were there before the first one, told to begin at the latest, are nobody's to write."""
    rng = random.Random(seed)
    story = Story(rng.randint(1, 3), schemas=rng.random() < 0.5)
    start = rng.choice(["earliest", "latest"])
    story.send(rng.randint(0, 20))
    left_out = story.names() if start == "latest" else set()
    consumer, kills = story.start(start=start), 0
    await consumer.claimed_all()
    for _ in range(6):
        story.sink.is_busy = rng.random() < 0.3
        if story.registry is not None:
            story.registry.down = rng.random() < 0.5
        story.send(rng.randint(0, 30))
        await asyncio.sleep(rng.uniform(0.0, 8.0))
        is_killed = rng.random() < 0.5
        kills += is_killed
        await (consumer.kill() if is_killed else consumer.stop())
        story.sink.is_busy = False
        story.send(rng.randint(0, 10))
        consumer = await next_start(story, rng, start)
        await consumer.claimed_all()
    if story.registry is not None:
        story.registry.down = False
    await consumer.idle()
    await consumer.stop()

    lost = story.names() - left_out - story.written()
    assert not lost, f"seed {seed}: lost {sorted(lost)[:5]} of {len(lost)}"
    assert max(story.sink.writes.values(), default=0) <= 1 + kills, f"seed {seed}: written too often"
    story.check_old()
    assert not story.dead_letters._dead_letters, f"seed {seed}: dead letters"


async def next_start(story, rng, start):
    """What may change between two starts, and the consumer that follows."""
    match rng.choice(["nothing", "anew", "moved", "grown", "expired", "skewed", "older", "away", "settings"]):
        case "anew":
            await story.recreate()
            story.send(rng.randint(1, 60))
            for _ in range(rng.randint(1, 2)):
                await story.start(start=start).refused()
            return story.start(start=start, on_foreign_checkpoint=OnDistrust.EARLIEST)
        case "moved":
            await story.move()
            story.send(rng.randint(1, 40))
            return story.start()
        case "grown":
            story.hub.add_partition()
            story.send(rng.randint(1, 10))
        case "expired":
            for partition in story.hub.logs:
                story.hub.expire(partition, rng.randint(0, 40))
        case "skewed":
            story.skew = rng.choice([-86_400.0, 3.2e7])
        case "older" if not story.skew:  # it compares clocks, and refuses where they differ
            story.forget_origins()
        case "away":
            story.is_away = True
            consumer = story.start(start=start)
            await asyncio.sleep(rng.uniform(0.0, 60.0))
            story.is_away = False
            return consumer
        case "settings":
            return story.start(start="earliest" if start == "latest" else "latest")
    return story.start(start=start)
