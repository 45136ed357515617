"""Waiting, on the real clock, for servers, threads and processes to come to a point."""

import asyncio


async def until(condition, *, within=45.0, what="condition"):
    """What made a condition true, plain or awaitable. `what` may be a function that tells the story."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert loop.time() < deadline, f"{what() if callable(what) else what}: not within {within:g} s"
        await asyncio.sleep(0.02)
