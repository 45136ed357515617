"""All hubs of a process, each a consumer of its own: what fails in one ends or restarts that one alone.

An error that passes by itself restarts the hub after a pause. An error that a person must act on (settings, a position, nothing
but poison) ends the hub, because each start would repeat it, and would make dead letters of what follows poison. The process
ends by itself when all of its hubs have ended. With one hub every error ends the process, so that whoever runs it decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass

from msgspec import structs

from consumer.config import ConsumerConfig
from consumer.core.statistics import PipelineStatistics, Totals
from consumer.definition.model import Definition, HubDefinition
from consumer.errors import PoisonError, PositionError, ShutdownError
from consumer.probes.health import BEAT, Pulse
from consumer.running.process import FINAL_REPORT_WITHIN, ConsumerProcess, Share, undivided
from tidemark.foundation.errors import SettingsError, TidemarkError
from tidemark.foundation.log.process import quiet_sdks
from tidemark.foundation.pacing.shared_rate import SharedRate

log = logging.getLogger("tidemark.consumer")

ENDING = (SettingsError, PositionError, PoisonError)
"""Errors that a start does not mend."""

FIRST_PAUSE = 1.0
"""Seconds before a hub that failed starts again; doubled with each failure in a row."""
LONGEST_PAUSE = 60.0
"""Seconds at most, and how long a hub must have run for its failure to be the first one again."""


_HUB: ContextVar[str] = ContextVar("hub", default="")


def _name_the_hub(record: logging.LogRecord) -> bool:
    """Puts the hub's name before a line, where a process has several: partitions of all of them are numbered from 0."""
    if hub := _HUB.get():
        record.msg, record.args = f"{hub}: {record.getMessage()}", ()
    return True


@dataclass(eq=False)
class _Running:
    hub: HubDefinition
    process: ConsumerProcess
    began: float = 0.0
    failures: int = 0
    """In a row."""
    down: str = ""
    """Why it does not run, for probes; '' while it runs."""


class Hubs:
    """The hubs of a definition. `run` may be called once."""

    def __init__(self, definition: Definition, *, share: Share = undivided, restarts: bool = True) -> None:
        """`share` divides a rate where several processes act as one instance. Without `restarts` a hub that failed ends.

        Raises SettingsError for any hub that cannot be built: then none has begun.
        """
        self._share = share
        self._restarts = restarts and len(definition.hubs) > 1
        self._doubts = definition.doubts
        rate = share(definition.rate)
        self._rate = None if rate is None else SharedRate(rate, asyncio.get_running_loop().time())
        self._totals = Totals()
        log.addFilter(_name_the_hub)
        self._hubs = [_Running(hub, self._make(hub)) for hub in definition.hubs]
        self.boards = [running.process.board for running in self._hubs]
        """What probes answer from; a hub that starts again has another board."""

    async def run(self, stop: asyncio.Event) -> Totals:
        """Consumes until `stop`, with one deadline for all hubs, and returns what all of them did.

        When all hubs have ended before `stop`, raises the error of the first one that has one; after it, of a hub that could
        not stop in order.
        """
        for doubt in self._doubts:
            log.warning("%s", doubt)
        tasks = [
            asyncio.create_task(self._run(running, stop), name=running.hub.name) for running in self._hubs
        ]
        watching = asyncio.create_task(self._watch(), name="hubs")
        try:
            errors = await asyncio.gather(*tasks)
        finally:
            for task in (*tasks, watching):
                task.cancel()
            await asyncio.gather(*tasks, watching, return_exceptions=True)
        failed = [error for error in errors if error is not None]
        late = [error for error in failed if isinstance(error, ShutdownError)]
        if failed and (late or len(failed) == len(errors) or not self._restarts or not stop.is_set()):
            raise (late or failed)[0]
        return self._totals

    def _make(self, hub: HubDefinition) -> ConsumerProcess:
        limiter = None if self._rate is None else self._rate.share(asyncio.get_running_loop().time())
        return ConsumerProcess(hub.config, hub.settings, share=self._share, hub=hub, limiter=limiter)

    async def _run(self, running: _Running, stop: asyncio.Event) -> TidemarkError | None:
        """Runs a hub over restarts until `stop`, or until it ends; its last error, if that is not over."""
        if len(self._hubs) > 1:
            _HUB.set(running.hub.name)
        while True:
            failure = await self._run_once(running, stop)
            if failure is None or stop.is_set():
                return failure
            pause = self._pause(running, failure)
            running.down = _describe(failure, pause)
            if pause is None:
                if len(self._hubs) > 1:
                    log.error("this hub has ended, the others go on: %s", failure)
                return failure
            running.failures = self._failures(running) + 1
            log.warning("%s", running.down)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await stop.wait()
            if stop.is_set():
                return None

    async def _run_once(self, running: _Running, stop: asyncio.Event) -> TidemarkError | None:
        """The error with which the hub failed; None if it stopped in order."""
        try:
            if running.down:
                self._replace(running)
            running.began = asyncio.get_running_loop().time()
            running.process.describe_failure = lambda error: _describe(error, self._pause(running, error))
            self._add(await running.process.run(stop))
        except TidemarkError as error:
            failure = error
        except Exception as error:
            log.exception("internal error")
            failure = TidemarkError(f"internal error: {error!r}")
        else:
            return None
        if not running.down:  # otherwise there was no new consumer
            self._add(running.process.statistics)
        return failure

    def _failures(self, running: _Running) -> int:
        """Failures in a row before the present one."""
        lasted = asyncio.get_running_loop().time() - running.began
        return 0 if lasted >= LONGEST_PAUSE else running.failures

    def _pause(self, running: _Running, error: TidemarkError) -> float | None:
        """Seconds until the next start after a failure; None: it has ended."""
        if not self._restarts or isinstance(error, ENDING):
            return None
        return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._failures(running), 10))

    def _replace(self, running: _Running) -> None:
        """Raises SettingsError for what has changed around it, such as a module of the user's own."""
        before = running.process
        running.process = self._make(running.hub)
        if self._rate is not None and before.limiter is not None:
            self._rate.end(before.limiter)
        running.down = ""
        self.boards[self._hubs.index(running)] = running.process.board

    def _add(self, statistics: PipelineStatistics) -> None:
        for name, value in structs.asdict(statistics.totals).items():
            before = getattr(self._totals, name)
            added = dict(Counter(before) + Counter(value)) if isinstance(value, dict) else before + value
            setattr(self._totals, name, added)

    async def _watch(self) -> None:
        """Gives the shares of the rate the count that waits at each hub: events that are not settled, as far as that is known. Beats for
        hubs that do not run, as the process is alive without them.
        """
        while True:
            for running in self._hubs:
                if running.down:
                    running.process.board.pulse = Pulse(asyncio.get_running_loop().time(), running.down)
                elif running.process.limiter is not None:
                    statistics = running.process.statistics
                    lags = [partition.lag or 0 for partition in statistics.partitions]
                    running.process.limiter.waiting = float(max(sum(lags), statistics.backlog_count))
            await asyncio.sleep(BEAT)


def _describe(error: TidemarkError, pause: float | None) -> str:
    return f"{error}; it has ended" if pause is None else f"{error}; it starts again in {pause:g} s"


def longest_slice(config: ConsumerConfig, seconds: float) -> float:
    """Seconds that a slice of `seconds` may take, with its shutdown and closing."""
    return seconds + config.shutdown + 2 * FINAL_REPORT_WITHIN


async def run_slice(definition: Definition, *, seconds: float) -> Totals:
    """Consumes all hubs for `seconds`, then stops in order, for a timer-triggered function. The next slice starts a hub again
    that failed.

    The shutdown and ten seconds for closing are added to that. Then the slice is cancelled, because the host would end
    the worker with all its functions. Raises TidemarkError.
    """
    first = definition.hubs[0]
    quiet_sdks(first.settings)
    stop = asyncio.Event()
    timer = asyncio.get_running_loop().call_later(seconds, stop.set)
    limit = longest_slice(first.config, seconds)
    try:
        async with asyncio.timeout(limit):
            return await Hubs(definition, restarts=False).run(stop)
    except TimeoutError:
        raise TidemarkError(
            f"the slice did not end within {limit:g} s (CONSUMER_SLICE + CONSUMER_SHUTDOWN + {2 * FINAL_REPORT_WITHIN:g} s): a"
            " service does not answer; the next slice continues from the checkpoints"
        ) from None
    finally:
        timer.cancel()
