"""One consumer, built from its settings and run until an order to stop: for a process, a timer slice and tests."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from msgspec import structs

from consumer.config import ConsumerConfig, SinkKind
from consumer.core.statistics import PipelineStatistics
from consumer.definition.model import HubDefinition
from consumer.errors import PositionError
from consumer.leasing.ownership import unique_owner
from consumer.model import Checkpoint
from consumer.options import DriverSettings
from consumer.ports import CheckpointStore
from consumer.probes.beating import Beating
from consumer.probes.server import Board
from consumer.receiving.until import EndAt, UntilReceiver
from consumer.running.assembly import Parts, reporter
from consumer.running.driver import Driver
from consumer.running.other_positions import find_other_positions, first_start_text, untried_text
from consumer.running.runtime import Consumer, RuntimeSettings
from consumer.running.waiting import StoppedError, ended, when_available
from consumer.stores.memory import MemoryCheckpointStore, MemoryLeaseStore
from consumer.telemetry.rate_orders import Limits, Unit
from consumer.telemetry.records import shared
from tidemark.foundation.errors import TidemarkError
from tidemark.foundation.pacing.shared_rate import Share as SharedRateOfHub

log = logging.getLogger("tidemark.consumer")

FINAL_REPORT_WITHIN = 5.0
"""Seconds for the final telemetry report, after the shutdown."""

CLOSE_WITHIN = FINAL_REPORT_WITHIN
"""Seconds for sinks and stores to close; they close concurrently."""

ELSEWHERE_WITHIN = 30.0
"""Seconds for a store of other settings to answer. Chosen: as for one of these settings."""

Share = Callable[[float | None], float | None]
"""From the rate of an instance to the rate of this process; None means no limit."""


def undivided(rate: float | None) -> float | None:
    """The share of an instance that is one process: all of the rate."""
    return rate


class ConsumerProcess:
    """One consumer with its adapters. `run` may be called once."""

    _found: Mapping[str, Checkpoint | str] = MappingProxyType({})  # positions before this start
    _looking: asyncio.Task[None] | None = None
    _find_more: (
        Callable[..., Awaitable[list[tuple[str, CheckpointStore]]]] | None
    )  # positions elsewhere, once

    def __init__(
        self,
        config: ConsumerConfig,
        settings: Mapping[str, str],
        *,
        share: Share = undivided,
        clock: Callable[[], float] = time.monotonic,
        hub: HubDefinition | None = None,
        limiter: SharedRateOfHub | None = None,
    ) -> None:
        """`share` divides a rate where several processes act as one instance; `hub` is what a file says of the hub, and
        `limiter` its part of a rate of several hubs.

        Raises SettingsError.
        """
        self.config = config
        self.limiter = limiter
        self.describe_failure: Callable[[TidemarkError], str] = str
        """Makes the last row's text about a failure."""
        self._rate = share(config.rate)
        self.owner = unique_owner()
        parts = Parts(config, settings, hub)
        self._stored = parts.checkpoints()
        sink = parts.sink()
        self.driver = Driver(
            shared(
                DriverSettings,
                config,
                rate=self._rate if limiter is None else limiter,
                request_units=share(config.request_units),
            ),
            sink,
            MemoryCheckpointStore() if config.dry_run else self._stored,  # which others must not notice
            parts.dead_letters(),
            spans=parts.spans(),
            preparation=parts.preparation(sink),
            parked=None if config.sink is SinkKind.SQL else parts.parked(),
        )
        self._sinks, self._place = parts.sink_names, parts.positions_place
        self._find_more = parts.positions_in_other_containers
        self._others, self._untried = list(parts.other_positions()), list(parts.parked_untried())
        self.consumer = Consumer(
            shared(RuntimeSettings, config, owner=self.owner),
            parts.receiver(),
            self.driver,
            self.driver.checkpoints,
            MemoryLeaseStore() if config.dry_run else parts.leases(),
            on_stopping=lambda: setattr(self._reporter, "stopping", True),
        )
        self._reporter = reporter(parts, self.owner, self._statistics, self._limits(share))
        self.driver.on_checkpoint = self._reporter.on_checkpoint
        self.driver.on_claim = self._reporter.on_claim
        self.board = Board(self._reporter.identity, clock())
        """What probes answer from; see consumer/probes."""
        self._beating = self._make_beating()

    def _limits(self, share: Share) -> dict[Unit, Limits]:
        driver, consumer = self.driver, self.consumer
        set_units = consumer.set_fleet_request_units
        return {
            Unit.RECORDS: Limits(lambda rate: driver.set_rate(share(rate)), consumer.set_fleet_rate),
            Unit.REQUEST_UNITS: Limits(lambda rate: driver.set_request_units(share(rate)), set_units),
        }

    def _make_beating(self) -> Beating:
        return Beating(
            self.board,
            self._statistics,
            waits_for=lambda: self.consumer.waits_for,
            errors=lambda: self.consumer.errors,
            stopping=lambda: self._reporter.stopping,
            call_timeout=self.driver.settings.call_timeout,
        )

    def _statistics(self) -> PipelineStatistics | None:
        if not self.driver.is_open:
            return None
        hubs = 0 if self.limiter is None else self.limiter.takers
        return structs.replace(self.driver.statistics(), rate_hubs_count=hubs if hubs > 1 else 0)

    async def run(self, stop: asyncio.Event) -> PipelineStatistics:
        """Consumes until `stop` and returns the final statistics. Raises TidemarkError, which has the exit status."""
        log.info(
            "consumer %s: hub %s, group %s, sink %s%s, rate %s, instance %s",
            *(self.config.name, self.config.hub, self.config.consumer_group, self._sinks),
            " (dry run: nothing is written)" if self.config.dry_run else "",
            self._rate_text(),
            self.owner,
        )
        for doubt in self.config.doubts:
            log.warning("%s", doubt)
        beating = asyncio.create_task(self._beating.run(), name="beat")
        try:
            self._reporter.start()
            await when_available("the positions", self._check_other_positions, stop=stop)
            self._looking = asyncio.create_task(self._look_elsewhere(), name="elsewhere")
            if self.config.dry_run:
                await when_available("the checkpoints", self._copy_positions, stop=stop)
            await self._consume(stop)
        except StoppedError:
            return PipelineStatistics.of_nothing()
        except Exception as error:
            known = error if isinstance(error, TidemarkError) else TidemarkError(f"internal error: {error!r}")
            self._reporter.problem = self.describe_failure(known)
            raise
        else:
            return self.statistics
        finally:
            try:
                await self._aclose()
            finally:
                beating.cancel()
                if self._looking is not None:
                    self._looking.cancel()

    async def _consume(self, stop: asyncio.Event) -> None:
        receiver = self.consumer.receiver
        if not isinstance(receiver, UntilReceiver):
            await self.consumer.run(stop)
            return
        until = self.config.receiving.until
        ending = EndAt(until, receiver, self.consumer.checkpoints, self._statistics)
        await when_available("the position to stop at", ending.resolve, stop=stop)
        await ending.run(stop, self.consumer.run)

    @property
    def statistics(self) -> PipelineStatistics:
        """What it did so far."""
        return self._statistics() or PipelineStatistics.of_nothing()

    def _rate_text(self) -> str:
        if self.limiter is not None:
            return f"{self.limiter.rate:g}/s shared with the other hubs"
        return "unlimited" if self._rate is None else f"{self._rate:g}/s"

    async def _check_other_positions(self) -> None:
        """Raises PositionError where a first start would skip events, because with the settings of before the positions were
        elsewhere; UnavailableError.
        """
        deadline = asyncio.get_running_loop().time() + ELSEWHERE_WITHIN
        self._found = await self._stored.load_all(deadline=deadline)
        if not self._found and self.config.policy.start != "earliest":
            await self._look_into_other_containers()
            for other in await find_other_positions(
                self.config, self._found, self._others, deadline=deadline
            ):
                raise PositionError(other.text)
        if not self._found:
            log.info("%s", first_start_text(self.config, self._place))

    async def _look_into_other_containers(self) -> None:
        find, self._find_more = self._find_more, None
        if find is not None:
            self._others += await find(is_first=not self._found)

    async def _look_elsewhere(self) -> None:
        """Warns of what is left of a start with other settings, while this one consumes: positions, which are later after a change
        and back, and parked events.
        """
        deadline = asyncio.get_running_loop().time() + ELSEWHERE_WITHIN
        await self._look_into_other_containers()
        with suppress(TidemarkError):
            for other in await find_other_positions(
                self.config, self._found, self._others, deadline=deadline
            ):
                log.warning("%s", other.text)
                self._reporter.notices["positions"] = f"{other.found}. {other.outcome}"
        if text := await untried_text(self.config, self._untried, within=ELSEWHERE_WITHIN):
            log.warning("%s", text)
            self._reporter.notices["parked"] = text

    async def _copy_positions(self) -> None:
        deadline = asyncio.get_running_loop().time() + 30.0
        for stored in (await self._stored.load_all(deadline=deadline)).values():
            if isinstance(stored, Checkpoint):
                await self.driver.checkpoints.put(stored, deadline=deadline)

    async def _aclose(self) -> None:
        driver = self.driver
        parts: list[Any] = [driver.sink, driver.dead_letters, driver.checkpoints, self.consumer.leases]
        if driver.parked is not None:
            parts.append(driver.parked)
        parts += [store for _, store in (*self._others, *self._untried)]
        if self._stored is not driver.checkpoints:
            parts.append(self._stored)
        try:
            await self._reporter.aclose(asyncio.get_running_loop().time() + FINAL_REPORT_WITHIN)
        finally:
            closing = {asyncio.create_task(close_part(part)) for part in reversed(parts)}
            _, hanging = await asyncio.wait(closing, timeout=CLOSE_WITHIN)
            if hanging:
                log.warning(
                    "%d of %d stores and sinks did not close in time; abandoned", len(hanging), len(parts)
                )
                await ended([*hanging], 0.0)


async def close_part(part: Any) -> None:
    try:
        await part.aclose()
    except Exception:
        log.exception("closing %s failed", type(part).__name__)
