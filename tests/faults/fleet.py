"""A fleet of targets in virtual time: the host's timers and queues, and ports that hang or fail on demand."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable
from random import Random

from scaling.config.policy_file import Config
from scaling.model import Capacity, Effect, MetricsReport, ScaleAction
from scaling.ports import Reading
from scaling.service.autoscaler import Autoscaler
from scaling.service.messages import decode
from scaling.service.reading import MetricSource
from scaling.service.shell import Ports
from tests.support.scaling.fakes import MemoryDecisionLog, MemoryPoisonQueues, MemoryStateStore
from tests.support.scaling.fakes_azure import FakePlatform, FakeScaler
from tests.support.scaling.runner import MINUTE, NOW, metric, policy
from tidemark.foundation.app_settings import ROOT

QUEUES = json.loads((ROOT / "host.json").read_text(encoding="utf-8"))["extensions"]["queues"]
SLOTS = QUEUES["batchSize"] + QUEUES["newBatchThreshold"]
VISIBILITY = 30.0
DEQUEUES = 5
HANG = object()


class Moods:
    """What a port does for a target, or for all (`None`): it hangs for ever, or raises; else it takes its time."""

    def __init__(self) -> None:
        self.of: dict[tuple[str, str | None], object] = {}

    async def meet(self, port: str, target: str, seconds: float) -> None:
        mood = self.of.get((port, target), self.of.get((port, None)))
        if mood is HANG:
            await asyncio.Event().wait()
        if isinstance(mood, BaseException):
            raise mood
        await asyncio.sleep(seconds)


class Chance(Moods):
    """Each call of a port hangs for ever by one chance, and by another raises one of the port's errors."""

    def __init__(self, seed: int, errors: dict[str, list[Exception]], *, hangs: float, fails: float) -> None:
        super().__init__()
        self.rng, self.errors, self.hangs, self.fails = Random(seed), errors, hangs, fails
        self.met: dict[str, list[float]] = defaultdict(list)
        """By target: when one of its calls went wrong, on the loop's clock."""

    async def meet(self, port: str, target: str, seconds: float) -> None:
        drawn = self.rng.random()
        if drawn < self.hangs + self.fails:
            self.met[target].append(asyncio.get_running_loop().time())
            if drawn < self.hangs:
                await asyncio.Event().wait()
            raise self.rng.choice(self.errors[port])
        await asyncio.sleep(seconds)


class MoodyCollector:
    def __init__(self, fleet: "Fleet", target: str) -> None:
        self.fleet, self.target = fleet, target
        self.endpoint = fleet.endpoints.get(target, target)

    async def collect(self, *, now: float) -> Reading:
        await self.fleet.moods.meet("collector", self.target, 0.5)
        return Reading(now, {"active": self.fleet.backlogs.get(self.target, self.fleet.backlog)})

    async def aclose(self) -> None: ...


class MoodyScaler:
    def __init__(self, fleet: "Fleet", target: str) -> None:
        self.fleet, self.target = fleet, target
        self.platform = FakePlatform(capacity=2)
        self.inner = FakeScaler(self.platform)

    async def current(self, target: str, *, now: float) -> Capacity:
        await self.fleet.moods.meet("current", target, 0.5)
        return await self.inner.current(target, now=now)

    async def apply(self, action: ScaleAction, *, now: float) -> Effect:
        self.fleet.orders.append((self.fleet.clock(), action.target))
        await self.fleet.moods.meet("apply", action.target, 1.0)
        return await self.inner.apply(action, now=self.fleet.clock())

    async def aclose(self) -> None: ...


class MoodyStates(MemoryStateStore):
    moods: Moods

    async def load(self, target):
        await self.moods.meet("load", target, 0.01)
        return await super().load(target)

    async def save(self, loaded, state, windows=None):
        await self.moods.meet("save", loaded.target, 0.01)
        await super().save(loaded, state, windows)


class MoodyLog(MemoryDecisionLog):
    moods: Moods

    async def append(self, entries):
        await self.moods.meet("append", entries[0].target, 0.01)
        await super().append(entries)

    async def purge(self, **options):
        await self.moods.meet("purge", "", 0.01)
        return await super().purge(**options)


class Fleet:
    """`count` targets, `t000` and so on, each with a queue and a plan of its own."""

    def __init__(
        self,
        count: int = 300,
        *,
        endpoints: dict[str, str] | None = None,
        moods: Moods | None = None,
        **changes,
    ) -> None:
        self.moods = moods or Moods()
        self.backlog = 900.0
        self.backlogs: dict[str, float] = {}
        self.endpoints = endpoints or {}
        self.orders: list[tuple[float, str]] = []
        self.effects: dict[str, float] = {}
        self.reports: dict[str, list[tuple[float, object]]] = defaultdict(list)
        self.decided: dict[str, dict[float, float]] = defaultdict(dict)  # when, by the report's time
        self.warnings: list[str] = []
        self.poison: list[str] = []
        self.names = [f"t{index:03}" for index in range(count)]
        self.states, self.log = MoodyStates(), MoodyLog()
        self.states.moods = self.log.moods = self.moods
        self.scalers = {name: MoodyScaler(self, name) for name in self.names}
        fields = {"metrics": {"backlog": metric(span=60.0, min_samples=1)}, "maximum": 3} | changes
        self.policies = {name: policy(target=name, **fields) for name in self.names}
        ports = Ports(
            collectors={name: MoodyCollector(self, name) for name in self.names},
            sources=[MetricSource(name, "backlog", name, "active") for name in self.names],
            scalers=self.scalers,
            states=self.states,
            log=self.log,
            poison=MemoryPoisonQueues(),
        )
        config = Config(self.policies, MINUTE, 30 * 86_400.0)
        self.autoscaler = Autoscaler(config, ports, clock=self.clock)
        self.autoscaler._lint_reported = (
            True  # lint is another matter, and runs in threads, whose time is the world's
        )

    def clock(self) -> float:
        return NOW + asyncio.get_running_loop().time() - 1000.0

    async def run(self, minutes: float, *, verify_every: float = MINUTE, script=()) -> None:
        """The host for so many minutes; `script` are (minute, function) to call meanwhile."""
        metrics: asyncio.Queue[str] = asyncio.Queue()
        actions: asyncio.Queue[str] = asyncio.Queue()
        running = [
            asyncio.create_task(self._timer(0.0, MINUTE, self._collect(metrics))),
            asyncio.create_task(self._timer(verify_every / 2, verify_every, self._verify(actions))),
            *(asyncio.create_task(self._slot(metrics, self._evaluate(actions))) for _ in range(SLOTS)),
            *(asyncio.create_task(self._slot(actions, self._deliver)) for _ in range(SLOTS)),
        ]
        begun, end = self.clock(), self.clock() + minutes * MINUTE
        for minute, call in script:
            await asyncio.sleep(begun + minute * MINUTE - self.clock())
            call()
        await asyncio.sleep(end - self.clock())
        for task in running:
            assert not task.done(), task  # a function of the host never ends by an error of ours
            task.cancel()
        await asyncio.wait(running)

    async def _timer(self, first: float, every: float, work: Callable) -> None:
        """As the host does it: one at a time, a firing missed meanwhile is made up for at once."""
        due = self.clock() + first
        while True:
            await asyncio.sleep(max(0.0, due - self.clock()))
            due = max(due + every, self.clock())
            await work()

    async def _slot(self, queue: asyncio.Queue[str], work: Callable) -> None:
        while True:
            item = await queue.get()
            message, dequeued = item if isinstance(item, tuple) else (item, 0)
            try:
                await work(message)
            except Exception:  # whatever it is, the host delivers again, or gives up
                if dequeued + 1 >= DEQUEUES:
                    self.poison.append(message)
                else:
                    again = (message, dequeued + 1)
                    asyncio.get_running_loop().call_later(VISIBILITY, queue.put_nowait, again)

    def _collect(self, metrics):
        async def collect() -> None:
            outcome = await self.autoscaler.collect()
            self.warnings += outcome.warnings
            for message in outcome.messages:
                report = decode(MetricsReport, message)
                self.reports[report.target].append((self.clock(), report))
                metrics.put_nowait(message)

        return collect

    def _evaluate(self, actions):
        async def evaluate(message: str) -> None:
            outcome = await self.autoscaler.evaluate(message)
            report = decode(MetricsReport, message)
            self.decided[report.target].setdefault(report.at, self.clock())
            self.warnings += outcome.warnings
            for each in outcome.messages:
                actions.put_nowait(each)

        return evaluate

    def _verify(self, actions):
        async def verify() -> None:
            outcome = await self.autoscaler.verify()
            self.warnings += outcome.warnings
            for message in outcome.messages:
                actions.put_nowait(message)

        return verify

    async def _deliver(self, message: str) -> None:
        await self._apply(message)  # looked up each time, for a test may change it meanwhile

    async def _apply(self, message: str) -> None:
        target = decode(ScaleAction, message).target
        outcome = await self.autoscaler.apply(message)
        self.warnings += outcome.warnings
        if self.scalers[target].platform.ledger:
            self.effects.setdefault(target, self.clock())
