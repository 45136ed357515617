"""Waiting, on the real clock, for servers, threads and processes to come to a point."""

import asyncio
import time
from types import SimpleNamespace


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


def look_sooner(*modules):
    """Azure's SDKs look every 0.05 s how far a link is that opens, in nine steps, and once a second whether one that is
    to close has: most of the time of most tests. In these modules of theirs it is a tenth of that.
    """
    for module in modules:
        for name, library in (("asyncio", asyncio), ("time", time)):
            if hasattr(module, name):
                setattr(module, name, SimpleNamespace(**{**vars(library), "sleep": _sooner(library.sleep)}))


def _sooner(sleep):
    return lambda seconds: sleep({0.05: 0.005, 1: 0.05}.get(seconds, seconds))
