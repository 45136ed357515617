"""The consumer inside a function that the Event Hubs trigger calls with a batch of one partition.

The host checkpoints after the invocation, whatever became of the batch. So an invocation returns only when every
event of its batch is written or a stored dead letter, and raises otherwise: the function's retry policy, without a
limit, then brings the same batch again, and the partition waits meanwhile. Rate, bulk, retries and dead letters are
the pipeline's, shared by all invocations of the process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from consumer.assembly import Parts, driver_settings
from consumer.checkpoints.memory import MemoryCheckpointStore
from consumer.config import ConsumerConfig, read_config
from consumer.driver import Driver
from consumer.errors import ConsumerError
from consumer.model import Claim, Event
from consumer.ownership import unique_owner
from consumer.ports import CheckpointStore
from consumer.position import start

CALL = 30.0
"""Seconds one request to the checkpoint store or the hub may take."""


class HostedConsumer:
    """One per process and event loop."""

    def __init__(self, config: ConsumerConfig, settings: Mapping[str, str]) -> None:
        """Raises SettingsError."""
        self._config = config
        self._owner = unique_owner()
        self._parts = Parts(config, settings)
        self._driver: Driver | None = None
        self._stored: CheckpointStore | None = None
        self._epoch = time.time_ns()  # without a store of positions: above all that went before
        self._trusted: set[str] = set()
        self._opening = asyncio.Lock()

    async def settle(self, partition: str, events: Sequence[Event], *, deadline: float) -> None:
        """Returns when every event is settled. Raises ConsumerError when that is not so by `deadline` (loop time)."""
        driver = await self._open()
        claim = await self._claim(partition)
        driver.claimed(claim)
        try:
            async with asyncio.timeout_at(deadline):
                await driver.receive(partition, claim.epoch, events)
                await driver.settled(partition, claim.epoch)
        except TimeoutError:
            raise ConsumerError(
                f"partition {partition}: not all of {len(events)} events were settled in the time of an invocation; "
                f"last cause: {driver.statistics().cause or 'none told'}. The batch comes again"
            ) from None
        except ConsumerError:
            await self._discard(driver)
            raise
        finally:
            driver.lost(partition, claim.epoch)

    async def _open(self) -> Driver:
        async with self._opening:
            if self._driver is None:
                sink = self._parts.sink()
                self._stored = self._parts.checkpoints() if sink.transactional else None
                driver = Driver(
                    driver_settings(self._config),
                    sink,
                    self._stored or MemoryCheckpointStore(),
                    self._parts.letters(),
                )
                await driver.open()
                self._driver = driver
        return self._driver

    async def _claim(self, partition: str) -> Claim:
        """The host owns the checkpoint, but for a transactional sink, which has its own."""
        if self._stored is None:
            self._epoch += 1
            return Claim(partition, self._owner, self._epoch)
        deadline = asyncio.get_running_loop().time() + CALL
        claim = await self._stored.claim(partition, self._owner, deadline=deadline)
        if partition not in self._trusted:
            receiver = self._parts.receiver()
            try:  # of a hub that was created anew, everything would pass for settled
                state = await receiver.state(partition)
                start(claim.checkpoint, state, self._config.policy, hub_created_at=receiver.created_at)
            finally:
                await receiver.close(deadline)
            self._trusted.add(partition)
        return claim

    async def _discard(self, driver: Driver) -> None:
        """A driver that gave up is of no use any more; the next invocation makes another."""
        if self._driver is driver:
            self._driver = None
            await driver.aclose()


_hosted: dict[asyncio.AbstractEventLoop, HostedConsumer] = {}


def hosted(settings: Mapping[str, str]) -> HostedConsumer:
    """The process's consumer. Raises SettingsError."""
    loop = asyncio.get_running_loop()
    if loop not in _hosted:
        _hosted[loop] = HostedConsumer(read_config(settings), settings)
    return _hosted[loop]
