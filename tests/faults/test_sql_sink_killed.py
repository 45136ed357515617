"""A consumer process that writes to SQL is killed with SIGKILL again and again: every event is there exactly once."""

import asyncio
import contextlib
import random
import sys
from pathlib import Path

import pytest

from tests.support.consumer.sql import FLIGHTS, World, event, flight, is_retry
from tests.support.servers.postgres import new_database

EVENTS = 2_000
TABLE = (
    "CREATE TABLE flights (carrier VARCHAR(3) NOT NULL, number INTEGER CHECK (number < 1000000), seq BIGINT)"
)


def log():
    """Every 50th event is no JSON, every 70th violates a constraint."""
    return [
        event(n, b"{") if n % 50 == 49 else flight(n, number=2_000_000 if n % 70 == 69 else n)
        for n in range(EVENTS)
    ]


async def consume(url):
    """What the killed process runs: it says a line after every batch."""
    events = log()
    async with World(url, FLIGHTS) as world:
        claim = await world.claim()
        done = claim.checkpoint.sequence_number + 1 if claim.checkpoint else 0
        while done < EVENTS:
            if not is_retry(await world.write(*events[done : done + 20])):
                done += 20
            print(done, flush=True)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.wire)])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tidemark.db"
    return new_database(request.getfixturevalue("postgres"))


async def run_and_kill(url, batches):
    """Kills the consumer while it is about its next batch, after so many."""
    program = "import asyncio, sys; from tests.faults.test_sql_sink_killed import consume; "
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program + "asyncio.run(consume(sys.argv[1]))",
        url,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    async with asyncio.timeout(60):
        for _ in range(batches):
            if not await process.stdout.readline():
                break
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.communicate()


async def test_a_consumer_that_is_killed_again_and_again_loses_and_doubles_nothing(url):
    rng = random.Random(7)
    async with World(url, FLIGHTS, table=TABLE) as world:
        for _ in range(4):
            await run_and_kill(url, rng.randint(1, 25))
            await world.claim("inspector")  # waits for what the server still carries out, and fences it
            position = -1 if (stored := await world.position()) is None else stored
            present = sorted(await world.written() + [number for number, _ in await world.dead()])
            assert present == list(range(position + 1))

        assert await world.position() > 0
        await consume(url)

        poison = [n for n in range(EVENTS) if n % 50 == 49 or n % 70 == 69]
        assert [number for number, _ in await world.dead()] == poison
        assert await world.written() == [n for n in range(EVENTS) if n not in set(poison)]
