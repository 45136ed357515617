"""The part of a backfill in the budget of request units that it shares with the consumer (consumer/telemetry/shared_budget.py).

A thread of the driver follows the budget: it reads the consumer's orders and its instances' limits, and writes the backfill's row.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Self

from consumer.config import ConsumerConfig
from consumer.telemetry.rate_orders import Rates, TableRateStore, Unit, effective
from consumer.telemetry.shared_budget import Part, Parts, amount_for
from consumer.telemetry.stats_store import TableStatsStore
from spark_jobs.backfill.budget.shares import Shares
from tidemark.foundation.app_settings import STORAGE
from tidemark.foundation.azure.connections import ConnectionSettingsError, table_service
from tidemark.foundation.consumer_stats import ConsumerStats

EVERY = 2.0
"""Seconds between two looks; less than the consumer's instances take (CONSUMER_TELEMETRY_EVERY)."""
SILENT_AFTER = 20.0
"""Seconds without a written row after which nothing more is granted: a third of what readers wait (shared_budget.EXPIRES)."""
STALE_AFTER = 60.0
"""Seconds after which an instance that reported nothing counts as dead, as everywhere (consumer/web/views.py)."""

_log = logging.getLogger(__name__)


class Membership:
    """One backfill in the budget of consumer `config.name`. Times are seconds: `clock` monotonic, `wall` since 1970."""

    def __init__(
        self,
        name: str,
        config: ConsumerConfig,
        shares: Shares,
        orders: TableRateStore,
        instances: TableStatsStore,
        wants: float,
        *,
        lock: threading.Lock | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`shares` are those of the job, which `lock` guards; `wants` is the budget that it was given."""
        self._name = name
        self._consumer = config.name
        self._configured = Rates(config.request_units, config.fleet_request_units)
        self._shares = shares
        self._wants = wants
        self._lock = lock or threading.Lock()
        self._orders = orders
        self._instances = instances
        self._clock = clock
        self._wall = wall
        self._parts = Parts()
        self._beat = 0.0
        self._written_at = -math.inf
        self._announced = 0.0
        self._informed: dict[str, tuple[float, int]] = {}  # by instance: its newest row, and how many came

    async def follow(self) -> None:
        """Looks once, and changes the job's budget. After a failure the job goes on with what it has, but not for long."""
        try:
            amount = await self._amount()
        except (
            Exception
        ) as error:  # whatever a store raises, the share is not used for longer than others wait
            _log.warning("the budget that is shared with the consumer cannot be followed: %s", error)
            if self._written_at == -math.inf and self._configured.fleet_rate is None:
                self._grant(self._wants)  # as far as is known, there is no budget to share
            elif self._clock() - self._written_at > SILENT_AFTER:
                self._grant(0.0)
        else:
            self._grant(amount)

    def _grant(self, amount: float) -> None:
        with self._lock:
            self._shares.budget = amount

    async def _amount(self) -> float:
        order = await self._orders.load(self._consumer, Unit.REQUEST_UNITS)
        budget = effective(order, self._configured).fleet_rate
        if budget is None:
            return self._wants
        rows = await self._orders.parts(self._consumer)
        others = [part for part in self._parts.note(rows, self._clock()) if part.name != self._name]
        fresh = await self._instances.load_all(self._wall() - STALE_AFTER)
        live = [row for row in fresh if row.consumer == self._consumer and row.lag and not row.stopping]
        amount = amount_for(budget, self._name, self._wants, others, sum(row.ru_limit for row in live))
        with self._lock:
            if not self._knows_of_us(live):
                amount = min(amount, self._shares.budget)
            self._shares.budget = min(self._shares.budget, amount)  # lowered before the others know
            held = self._shares.held(self._clock())
        asked_at, announced = self._clock(), self._announced
        self._beat += 1.0
        part = Part(self._name, self._wants, max(amount, held), self._beat)
        await self._orders.save_part(self._consumer, part)
        self._written_at, self._announced = asked_at, amount
        # Used only once it was announced and looked at again: another backfill may have announced as much meanwhile.
        return min(amount, announced)

    def _knows_of_us(self, live: Sequence[ConsumerStats]) -> bool:
        """Whether every live instance has read this row, so that none raises its limit without regard to it.

        An instance writes its row and then reads the table. Its second row from now on is written after it has.
        """
        if self._clock() - self._written_at > SILENT_AFTER:  # a new row, or one that others may have given up
            self._informed = {row.instance: (row.at, 0) for row in live}
            self._announced = 0.0
        for row in live:
            at, count = self._informed.get(row.instance, (row.at, 0))
            self._informed[row.instance] = (row.at, count + (row.at != at))
        return all(self._informed[row.instance][1] >= 2 for row in live)

    async def leave(self) -> None:
        """The job is over. A row that cannot be removed expires."""
        try:
            if self._written_at > -math.inf:
                await self._orders.remove_part(self._consumer, self._name)
        except Exception as error:
            _log.warning("the backfill's part of the budget expires within a minute: %s", error)
        finally:
            await self._orders.aclose()
            await self._instances.aclose()


class Following:
    """Follows the budget on a thread from `with` to its end."""

    def __init__(self, make: Callable[[], Membership]) -> None:
        """`make` is called on the thread, where its clients live."""
        self._make = make
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="budget", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=10.0)

    def _run(self) -> None:
        asyncio.run(self._follow())

    async def _follow(self) -> None:
        membership = self._make()
        try:
            while not self._stop.is_set():
                await membership.follow()
                await asyncio.to_thread(self._stop.wait, EVERY)
        finally:
            await membership.leave()


def sharing(
    name: str, config: ConsumerConfig, settings: Mapping[str, str], shares: Shares, lock: threading.Lock
) -> AbstractContextManager[object]:
    """Shares the budget of request units with the consumer from `with` to its end, where there is a storage account for that.

    Nothing is granted before the tables were read.
    """
    try:
        table_service(settings, STORAGE)
    except ConnectionSettingsError as error:
        _log.warning("the budget is not shared with the consumer: %s", error)
        return nullcontext()
    wants, shares.budget = shares.budget, 0.0

    def make() -> Membership:
        orders, instances = TableRateStore(settings, STORAGE), TableStatsStore(settings, STORAGE)
        return Membership(name, config, shares, orders, instances, wants, lock=lock)

    return Following(make)
