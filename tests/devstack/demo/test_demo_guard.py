"""The demo ends when one of its servers is gone, whatever its other tasks are at."""

import asyncio
import contextlib

import pytest

from devstack.processes.child import ProcessError
from devstack.stack.supervisor import LOOK_EVERY, guard
from tests.support.virtual_time import virtual_time


class Server:
    def __init__(self):
        self.gone = False

    def check(self):
        if self.gone:
            raise ProcessError("Azurite ended by itself")


async def deaf(stop):
    """Has load for two minutes, and swallows its cancellation, as requests of the SDKs do in one case of fifty."""
    for _ in range(120):
        if stop.is_set():
            return
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(1)


async def die_after_ten_seconds(server):
    await asyncio.sleep(10)
    server.gone = True


async def seconds_until_the_end(*others):
    """Of a run whose server dies after ten seconds."""
    server, stop, clock = Server(), asyncio.Event(), asyncio.get_running_loop().time
    began = clock()
    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.TaskGroup() as group:
            group.create_task(guard(server.check, stop))
            group.create_task(die_after_ten_seconds(server))
            for other in others:
                group.create_task(other(stop))
    assert [str(error) for error in raised.value.exceptions] == ["Azurite ended by itself"]
    return clock() - began


@pytest.mark.parametrize("others", [(), (deaf,)])
def test_a_server_that_is_gone_ends_the_run_although_a_task_swallows_its_cancellation(others):
    with virtual_time() as run:
        took = run(seconds_until_the_end(*others))

    assert took <= 10 + LOOK_EVERY


def test_a_run_that_is_over_ends_its_guard():
    async def over():
        stop = asyncio.Event()
        watching = asyncio.create_task(guard(Server().check, stop))
        await asyncio.sleep(10)
        stop.set()
        await asyncio.wait_for(watching, LOOK_EVERY)

    with virtual_time() as run:
        run(over())
