"""A whole autoscaler over fakes: policies, windows, a queue that delivers at least once, a scripted load."""

from collections.abc import Callable

import msgspec

from scaling.config.policy import MetricSpec, Pace, Policy, PolicySpec, RuleSpec
from scaling.config.policy_file import Config
from scaling.model import Capacity, Controls, Effect, MetricSample, MetricsReport, ScaleAction, TargetState
from scaling.notices.announcer import Announcer
from scaling.ports import Reading
from scaling.service.autoscaler import Autoscaler
from scaling.service.reading import MetricSource
from scaling.service.shell import Outcome, Ports
from scaling.window import Window, WindowSpec
from tests.support.scaling.fakes import Hooked, MemoryDecisionLog, MemoryPoisonQueues, MemoryStateStore
from tests.support.scaling.fakes_azure import FakePlatform, FakeScaler
from tests.support.virtual_time import Clock

NOW = 1_800_000_000.0
MINUTE = 60.0
THRESHOLD = RuleSpec(
    type="threshold",
    name="backlog",
    options={"metric": "backlog", "scale_out_above": 500.0, "scale_in_below": 100.0},
)


def metric(**changes) -> MetricSpec:
    """A metric sampled every minute, over a window of five, complete with five samples."""
    fields = {"span": 300.0, "interval": 60.0, "min_samples": 5} | changes
    return MetricSpec(collector="fake", options={}, count="active", window=WindowSpec(**fields))


def policy(**changes) -> Policy:
    """Bounds 1..10, one backlog, out above 500, in below 100, no cooldown, no stabilization."""
    fields = {
        "target": "plan",
        "scaler": "fake",
        "scaler_options": {},
        "minimum": 1,
        "maximum": 10,
        "metrics": {"backlog": metric()},
        "rules": (THRESHOLD,),
        "out": Pace(),
        "inward": Pace(),
    }
    return Policy(PolicySpec(**(fields | changes)))


def changed(before: Policy, **changes) -> Policy:
    return Policy(msgspec.structs.replace(before.spec, **changes))


def full(value: float, *, now: float = NOW, count: int = 5, interval: float = MINUTE) -> Window:
    """`count` samples of one value, the newest at `now`."""
    return Window(times=[now - interval * i for i in reversed(range(count))], values=[value] * count)


def at(current: int, *, now: float = NOW, **changes) -> TargetState:
    """A target known to stand at `current`."""
    fields = {"expected": current, "capacity": Capacity(current, now)} | changes
    return TargetState(**fields)


def report(
    value: float | None, current: int | None, *, now: float = NOW, target: str = "plan"
) -> MetricsReport:
    return MetricsReport(
        target,
        now,
        () if value is None else (MetricSample("backlog", now, value),),
        (),
        None if current is None else Capacity(current, now),
        "no answer" if current is None else None,
    )


class Crash(BaseException):
    """The process is gone: nothing may catch this and go on."""


class HookedCollector(Hooked):
    """Reads the world's backlog."""

    def __init__(self, read: Callable[[], float]) -> None:
        super().__init__()
        self.read = read

    async def collect(self, *, now: float) -> Reading:
        with self.call("collector.collect"):
            return Reading(now, {"active": self.read()})


class HookedScaler(Hooked):
    """A FakeScaler whose calls can be crashed before and after."""

    def __init__(self, platform: FakePlatform) -> None:
        super().__init__()
        self.inner = FakeScaler(platform)

    async def current(self, target: str, *, now: float) -> Capacity:
        with self.call("scaler.current"):
            return await self.inner.current(target, now=now)

    async def apply(self, action: ScaleAction, *, now: float) -> Effect:
        with self.call("scaler.apply"):
            return await self.inner.apply(action, now=now)


class World:
    """Stores, platform, clock and two queues that outlive every process; `autoscaler()` starts a process."""

    def __init__(
        self, made: Policy | None = None, *, capacity: int = 2, announcer: Announcer | None = None
    ) -> None:
        self.policy = made or policy()
        self.clock = Clock(NOW)
        self.backlog = 300.0
        self.platform = FakePlatform(capacity=capacity)
        self.scaler = HookedScaler(self.platform)
        self.collector = HookedCollector(lambda: self.backlog)
        self.states = MemoryStateStore()
        self.log = MemoryDecisionLog()
        self.poison = MemoryPoisonQueues()
        self.announcer = announcer
        self.metrics: list[str] = []
        self.actions: list[str] = []

    @property
    def ports_hooked(self) -> tuple[Hooked, ...]:
        return (self.scaler, self.collector, self.states, self.log)

    def hook(self, before: Callable[[str], None] | None, after: Callable[[str], None] | None) -> None:
        for port in self.ports_hooked:
            port.before, port.after = before, after

    def autoscaler(self) -> Autoscaler:
        ports = Ports(
            collectors={"queue": self.collector},
            sources=[
                MetricSource("plan", name, "queue", "active", fingerprint=spec.fingerprint)
                for name, spec in self.policy.spec.metrics.items()
            ],
            scalers={"plan": self.scaler},
            states=self.states,
            log=self.log,
            poison=self.poison,
            announcer=self.announcer,
        )
        config = Config({"plan": self.policy}, MINUTE, 30 * 86_400.0)
        return Autoscaler(config, ports, clock=self.clock)

    async def tick(self) -> None:
        self.metrics += (await self.autoscaler().collect()).messages

    async def later(self) -> Outcome:
        """What is decided a minute later."""
        self.clock.now += MINUTE
        await self.tick()
        return await self.decide()

    async def decide(self) -> Outcome:
        return await self.autoscaler().evaluate(self.metrics.pop())

    async def deliver(self) -> Outcome:
        """Carries out the action that was queued last."""
        return await self.autoscaler().apply(self.actions.pop())

    async def minute(self) -> None:
        """A minute passes; what is decided is carried out."""
        self.clock.now += MINUTE
        await self.tick()
        await self.drain()

    async def pass_minutes(self, count: int) -> None:
        """What is decided at the beginning of each is carried out."""
        for _ in range(count):
            await self.tick()
            await self.drain()
            self.clock.now += MINUTE

    async def order(self, controls: Controls) -> None:
        """An operator's orders, in place of those there are."""
        await self.states.save_controls(await self.states.load("plan"), controls)

    async def drain(self) -> None:
        """Delivers what is queued; a message leaves its queue only after its function ended well."""
        while self.metrics:
            outcome = await self.autoscaler().evaluate(self.metrics[0])
            self.actions += outcome.messages
            self.metrics.pop(0)
        while self.actions:
            await self.autoscaler().apply(self.actions[0])
            self.actions.pop(0)

    async def verify(self) -> None:
        self.actions += (await self.autoscaler().verify()).messages

    async def state(self) -> TargetState:
        return (await self.states.load("plan")).state

    async def entries(self, kind: str | None = None):
        page = await self.log.read("plan", limit=1000)
        return [entry for entry in reversed(page.entries) if kind is None or entry.kind == kind]
