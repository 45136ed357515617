"""A consumer on ports that a test gives it, and a port whose calls a test gets hold of."""

import asyncio
from functools import partial

from consumer.mapping.preparing import Preparation
from consumer.options import BacklogLimits, BatchLimits, DriverSettings
from consumer.running.driver import Driver
from consumer.running.runtime import Consumer, RuntimeSettings


class Around:
    """Each coroutine method of the port becomes `call(name, method, *arguments, **options)`."""

    def __init__(self, port, call):
        self.port, self.call = port, call

    def __getattr__(self, name):
        found = getattr(self.port, name)
        return partial(self.call, name, found) if asyncio.iscoroutinefunction(found) else found


def started(
    hub, sink, checkpoints, dead_letters, leases, owner, *, limits=BacklogLimits(), decoder=None, **settings
):
    """A running consumer, its task, and the event that stops it."""
    driver = Driver(
        DriverSettings("hub", "group", limits, BatchLimits(flush_after=0.1)),
        sink,
        checkpoints,
        dead_letters,
        preparation=None if decoder is None else Preparation(sink.prepare, decoder=decoder),
    )
    consumer = Consumer(RuntimeSettings(owner, **settings), hub, driver, checkpoints, leases)
    stop = asyncio.Event()
    return consumer, asyncio.create_task(consumer.run(stop)), stop
