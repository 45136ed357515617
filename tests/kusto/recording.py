"""An hour of this app as Application Insights would have it: lines written by the log shells of the functions and of the
consumer, over fakes, by a clock of the test's own.

    orders    its backlog grows at minute 20: scaled out, at the end at its maximum
    locked    the platform refuses
    stuck     the platform is busy whenever it is asked
    mail      an objective: service_level
    blind     its queue cannot be read from minute 30 on
    lost      no more decisions from minute 40 on: its messages stay in the queue
    poison    lies there from minute 50 on
    flights   a consumer of two instances: throttled, dead letters at minute 30, ever further behind
    old       a consumer that was killed at minute 40
"""

import asyncio
import logging
from contextlib import contextmanager
from datetime import UTC, datetime

from msgspec import structs

from consumer.core.statistics import PartitionStatistics, PipelineStatistics, Totals
from consumer.telemetry.records import Identity
from consumer.telemetry.reporter import Reporter
from scaling.config.policy_file import Config
from scaling.model import ScaleAction
from scaling.ports import CollectError, Reading
from scaling.service.autoscaler import Autoscaler
from scaling.service.messages import decode
from scaling.service.reading import MetricSource
from scaling.service.shell import Outcome, Ports
from scaling.web import functions
from tests.support.scaling.fakes import MemoryDecisionLog, MemoryPoisonQueues, MemoryStateStore
from tests.support.scaling.fakes_azure import FakePlatform, FakeScaler
from tests.support.scaling.runner import MINUTE, NOW, metric, policy
from tests.support.scaling.shadow import SERVICE_LEVEL
from tests.support.virtual_time import Clock, virtual_time
from tidemark.foundation.log.tail import Line

MINUTES = 60
TARGETS = ("orders", "locked", "stuck", "mail", "blind", "lost")


class Lines(logging.Handler):
    """Rows of AppTraces."""

    def __init__(self, clock):
        super().__init__()
        self.clock, self.rows = clock, []

    def emit(self, record):
        row = {"TimeGenerated": moment(self.clock()), "Message": record.getMessage()}
        self.rows.append(row | {"SeverityLevel": record.levelno // 10 - 1, "OperationName": "x"})


def moment(seconds):
    return datetime.fromtimestamp(seconds, UTC)


@contextmanager
def heard(clock, name):
    """What a logger says, and its level as in the worker."""
    logger, handler = logging.getLogger(name), Lines(clock)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield handler.rows
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class Hub:
    """Backlogs, and what cannot be read."""

    def __init__(self, target, clock):
        self.target, self.clock = target, clock

    async def collect(self, *, now):
        minute = (now - NOW) / MINUTE
        if self.target == "blind" and minute >= 30:
            raise CollectError("401: the role is missing")
        busy = self.target in {"locked", "stuck"} or (self.target == "orders" and minute >= 20)
        backlog = 900.0 if busy else 300.0
        return Reading(now, {"active": backlog})

    async def aclose(self): ...


class App:
    """The autoscaler and the queues between its functions."""

    def __init__(self):
        self.clock = Clock(NOW)
        self.platforms = {name: FakePlatform(capacity=2) for name in TARGETS}
        self.platforms["locked"].refusal = "ScopeLocked: the plan is locked"
        self.platforms["stuck"].conflicts = 10_000
        self.poison = MemoryPoisonQueues(queues=["metrics", "actions"])
        self.policies = {name: policy(target=name, maximum=4) for name in TARGETS}
        flows = {name: metric() for name in ("backlog", "incoming", "outgoing")}
        flows["age"] = structs.replace(metric(), unit="s")
        self.policies["mail"] = policy(target="mail", metrics=flows, rules=(SERVICE_LEVEL,))
        ports = Ports(
            collectors={name: Hub(name, self.clock) for name in TARGETS},
            sources=[
                MetricSource(name, metric, name, "active")
                for name in TARGETS
                for metric in self.policies[name].spec.metrics
            ],
            scalers={name: FakeScaler(platform) for name, platform in self.platforms.items()},
            states=MemoryStateStore(),
            log=MemoryDecisionLog(),
            poison=self.poison,
        )
        config = Config(self.policies, MINUTE, 30 * 86_400.0)
        self.autoscaler = Autoscaler(config, ports, clock=self.clock)
        self.autoscaler._lint_reported = True  # lint runs in threads, whose time is the world's

    async def shell(self, work):
        """What the host calls, with its queue output."""
        put = []

        class Output:
            set = put.extend

        functions._finish(await work(self.autoscaler), Output)
        return put

    async def minute(self, index):
        if index == 50:
            self.poison.messages = {"metrics": [(self.clock(), "body")]}
        reports = await self.shell(lambda scaler: scaler.collect())
        lost = '"target":"lost"'
        actions = []
        for message in reports:
            if not (index >= 40 and lost in message):
                actions += await self.shell(lambda scaler, message=message: scaler.evaluate(message))
        actions += await self.shell(lambda scaler: scaler.verify())
        for message in actions:
            decode(ScaleAction, message)
            await self.shell(lambda scaler, message=message: scaler.apply(message))
        self.clock.now += MINUTE


def scaling_lines(monkeypatch):
    """What the autoscaler logged, and its decision log."""
    app = App()
    monkeypatch.setattr(functions, "autoscaler", lambda: app.autoscaler)

    async def run():
        for index in range(MINUTES):
            await app.minute(index)
        forged = '{"tidemark":1,"kind":"poison","count":99,"at":1}'
        await app.shell(_say(f"scaling orders: words of somebody, {forged} and more"))
        own = {"target": "orders", "at": app.clock(), "reason": "promote", "by": forged}
        await app.shell(_say(Line(f"verify orders: {forged}", "verify", own)))
        pages = [await app.autoscaler.ports.log.read(target, limit=1_000) for target in TARGETS]
        return [entry for page in pages for entry in page.entries]

    with heard(app.clock, "tidemark.scaling") as rows:
        entries = asyncio.run(run())
    return rows, entries


def _say(line):
    async def work(_):
        return Outcome(lines=(line,))

    return work


def picture(minute, consumer):
    """A consumer's statistics: 100 records a second, one attempt in ten answered 429, 50 events further behind a minute."""
    done = int(6_000 * minute)
    letters = 3 if minute >= 30 and consumer == "flights" else 0
    totals = Totals(
        received=done,
        attempts=done + done // 9,
        written=done,
        throttled=done // 9,
        retried=done // 9,
        dead_letters=letters,
        request_units=6.0 * done,
        written_units=5.0 * done,
    )
    behind = 1_000 + int(500 * minute)
    partition = PartitionStatistics("0", 1, done + behind, done, done, 0, draining=False)
    return PipelineStatistics(
        totals=totals,
        backlog_count=60,
        backlog_bytes=61_440,
        oldest_age=0.5,
        in_flight_batches=2,
        rate_limit=None,
        paused=False,
        cause="",
        concurrency={"all": 2},
        partitions=(partition,),
    )


def consumer_lines():
    """What two consumers logged."""

    async def run():
        loop = asyncio.get_running_loop()
        begun = loop.time()
        reporters = []
        for consumer, instance in (("flights", "vm-1"), ("flights", "vm-2"), ("old", "vm-3")):
            source = lambda consumer=consumer: picture((loop.time() - begun) / MINUTE, consumer)
            identity = Identity(consumer, instance, "hub", "$Default")
            clock = lambda: NOW + loop.time() - begun
            reporters.append(Reporter(identity, source, every=30.0, clock=clock))
        with heard(lambda: NOW + loop.time() - begun, "tidemark.consumer") as rows:
            for reporter in reporters:
                reporter.start()
            await asyncio.sleep(40 * MINUTE)
            reporters[2]._loop_task.cancel()  # killed: it says nothing more
            await asyncio.sleep(20 * MINUTE)
            for reporter in reporters[:2]:
                reporter._loop_task.cancel()
        return rows

    with virtual_time() as run_in:
        return run_in(run())
