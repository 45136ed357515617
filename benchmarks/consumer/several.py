"""Several processes of our consumer that share the partitions by leases, as `consume --processes` runs them.

Each is this module as a program, on the settings in its argument. It prints how many records it has written, and its CPU since
its first record, until its standard input ends.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
from collections.abc import Awaitable, Callable

import msgspec

from benchmarks.consumer.meter import Meter
from benchmarks.consumer.ours import settings, totals_of
from benchmarks.consumer.world import World
from consumer.config import read_config
from consumer.running.process import ConsumerProcess

_LOOK = 0.02  # seconds between two looks at the totals


def processes(count: int) -> Callable[[World, Meter], Awaitable[None]]:
    """A cell of so many processes. Their CPU counts from their first records on, so that starts are left out."""

    async def cell(world: World, meter: Meter) -> None:
        order = [sys.executable, "-m", __name__, msgspec.json.encode(settings(world)).decode()]
        pipe = asyncio.subprocess.PIPE
        started = [
            await asyncio.create_subprocess_exec(*order, stdin=pipe, stdout=pipe) for _ in range(count)
        ]
        written, cpu = [0] * count, [0.0] * count
        done = asyncio.Event()

        async def follow(index: int) -> None:
            output = started[index].stdout
            while output is not None and (line := await output.readline()):
                meter.first()
                if not done.is_set():
                    written[index], cpu[index] = msgspec.json.decode(line, type=tuple[int, float])
                if sum(written) >= world.records:
                    done.set()

        following = [asyncio.create_task(follow(index)) for index in range(count)]
        await done.wait()
        meter.done(sum(written), cpu=sum(cpu))
        for process in started:
            if process.stdin is not None:
                process.stdin.close()
        await asyncio.gather(*following, *(process.wait() for process in started))

    return cell


async def _consume(names: dict[str, str]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().run_in_executor(None, _wait_for_end, asyncio.get_running_loop(), stop)
    process = ConsumerProcess(read_config(names), names)
    task = asyncio.create_task(process.run(stop))
    began = -1.0
    while not task.done() and not stop.is_set():
        await asyncio.sleep(_LOOK)
        totals = totals_of(process.driver)
        if totals.received:
            began = time.process_time() if began < 0 else began
            sys.stdout.buffer.write(
                msgspec.json.encode((totals.written, time.process_time() - began)) + b"\n"
            )
            sys.stdout.buffer.flush()
    await task


def _wait_for_end(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    sys.stdin.read()
    loop.call_soon_threadsafe(stop.set)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    gc.freeze()  # as `consume` does
    asyncio.run(_consume(msgspec.json.decode(sys.argv[1], type=dict[str, str])))
