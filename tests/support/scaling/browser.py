"""What the browser tests need: the system's Chromium, and a server with the dashboard and a scripted API.

The API's answers are the product's own views over a simulated past: reports go through `absorb`, `decide` and
`advance` as they do in the app, so the page is tested with what it will really be served.
"""

import asyncio
import math
import shutil
from contextlib import AsyncExitStack
from types import SimpleNamespace

import msgspec
import pytest
from aiohttp import web

from consumer.web import api as consumer_api
from devstack.servers.http import served
from devstack.setup.environment import BROWSERS
from scaling.analysis.replay import encode_inputs
from scaling.config.policy import MetricSpec, Pace, Policy, PolicySpec, QueueSpec, RuleSpec, ShadowSpec
from scaling.config.policy_file import Config
from scaling.decision import explain
from scaling.decision.decide import decide
from scaling.decision.orders import ORDERS, policy_in_force
from scaling.decision.pending_action import record_effect
from scaling.decision.transitions import absorb, advance
from scaling.flips.explained import decide_and_explain
from scaling.log_entry import LogEntry, LogKind, decision_id
from scaling.model import (
    Capacity,
    Controls,
    Effect,
    EffectOutcome,
    MetricFailure,
    MetricSample,
    MetricsReport,
    TargetState,
)
from scaling.ports import LogPage, Snapshot
from scaling.service.entries import effect_entry
from scaling.shadow.beside import exchange_memories, simulate_shadow
from scaling.web import past
from scaling.web.dashboard import page
from scaling.web.views import log_view, status_view, target_view
from scaling.window import WindowSpec
from tests.support.consumer.telemetry import MemoryRateStore, MemoryStatsStore
from tests.support.scaling.fakes import MemoryDecisionLog
from tidemark.foundation.consumer_stats import ConsumerStats, PartitionStats
from tidemark.foundation.errors import OrderError

NOW = 1_800_000_000.0
"""The server's time: 2027-01-15 08:00 UTC. The load of `waves` is another one at each time of day."""
INTERVAL = 60.0
EXPLAINED = 180
"""Intervals, the latest ones, whose entries hold their flips: three hours."""
KEY = "order-key-of-the-test"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

PHONE = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}

# Run in the page: how many texts were looked at, and those whose contrast with their ground is below 4.5.
CONTRASTS = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const [r, g, b, a = 1] = parse(getComputedStyle(e).backgroundColor);
      if (a > 0.99) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.textContent.trim() || ["SCRIPT", "STYLE"].includes(element.tagName)) continue;
    if (!element.checkVisibility({ visibilityProperty: true })) continue;
    const style = getComputedStyle(element);
    const colour = parse(element instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [luminance(colour), luminance(ground(element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    seen += 1;
    if (ratio < 4.5) poor.push([node.textContent.trim().slice(0, 40), element.className, ratio.toFixed(2)]);
  }
  return [seen, poor];
}"""


def chromium_path():
    """Where Chromium is; skips the test, saying what to install, where there is none."""
    found = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if found is None:
        pytest.skip(f"no browser: install one of {', '.join(BROWSERS)} to run the dashboard's tests")
    return found


def threshold_policy(target, *, maximum=8, **changes):
    """Out above 400 (1,200 from 4 instances on) on average, in below 60 at most, within 10 minutes."""
    window = WindowSpec(span=600, interval=INTERVAL, min_samples=10)
    metrics = {"backlog": MetricSpec(collector="service_bus", options={}, count="active", window=window)}
    options = {"metric": "backlog", "scale_out_above": {"1": 400, "4": 1200}, "scale_in_below": 60}
    spec = PolicySpec(
        target=target,
        scaler="app_service_plan",
        scaler_options={},
        minimum=1,
        maximum=maximum,
        metrics=metrics,
        rules=(RuleSpec(type="threshold", name="backlog", options=options),),
        out=Pace(cooldown=300),
        inward=Pace(cooldown=600),
    )
    return Policy(msgspec.structs.replace(spec, **changes))


def service_level_policy(target):
    """Nothing waits longer than two minutes, but for one in a hundred; only the backlog is known."""
    options = {"backlog": "backlog", "wait": "2m", "concurrency": 30.0, "start_up": "60s"}
    rule = RuleSpec(type="service_level", name="waits", options=options)
    return threshold_policy(target, rules=(rule,), out=Pace(), inward=Pace())


def shadowed_policy(target):
    """Thresholds, and a simulated rule of a service level that wants less of the same."""
    options = {"backlog": "backlog", "wait": "5m", "concurrency": 30.0, "start_up": "60s"}
    rule = RuleSpec(type="service_level", name="waits", options=options)
    queue = QueueSpec(backlog="backlog", wait=300.0, concurrency=30.0, start_up=60.0)
    return threshold_policy(target, shadow=ShadowSpec(rules=(rule,), minimum=1, maximum=8, queue=queue))


class SimulatedTarget:
    """One target fed with reports; keeps state, windows, orders and log as the app would."""

    def __init__(self, policy, backlog, *, current=2, capacity=120.0):
        self.policy = policy
        self.backlog = backlog  # arrivals per tick at a time, or None for a failed read
        self.waiting = 0.0
        self.capacity_per_unit = capacity
        self.current = current
        self.state, self.windows, self.controls = TargetState(), {}, Controls()
        self.entries = []
        self.corrupt = ()
        self.keeps_inputs = False

    def tick(self, now, *, decide=decide_and_explain):
        """One report, its decision, and at once its effect."""
        arriving = self.backlog(now)
        if arriving is not None:
            self.waiting = max(0.0, self.waiting + arriving - self.current * self.capacity_per_unit)
        report = MetricsReport(
            self.policy.target,
            now,
            () if arriving is None else (MetricSample("backlog", now, float(round(self.waiting))),),
            (MetricFailure("backlog", now, "the namespace answered 401: token expired"),)
            if arriving is None
            else (),
            Capacity(self.current, now, ready=self.current),
        )
        rules = policy_in_force(self.policy, self.controls)
        before = exchange_memories(self.policy, self.state, self.controls)
        self.windows, state = absorb(rules, self.windows, before, report, now=now, controls=self.controls)
        decided = decide(
            rules,
            self.windows,
            state,
            now=now,
            controls=self.controls,
            decision_id=decision_id(self.policy.target, now),
        )
        after, action = advance(rules, state, decided, report_at=now, level=None)
        beside = simulate_shadow(self.policy, self.windows, state, decided, controls=self.controls)
        self.state = msgspec.structs.replace(after, shadow=beside.shadow)
        self.log(
            LogKind.DECISION,
            now,
            explain.line(decided),
            decided.reason,
            current=decided.current,
            desired=decided.desired,
            recommendation=decided,
            inputs=self.inputs_of(rules, state, now, decided) if self.keeps_inputs else None,
            metrics={} if arriving is None else {"backlog": float(round(self.waiting))},
            shadow=beside.said,
        )
        if action is not None:
            self._carry_out(action, now + 4)

    def inputs_of(self, rules, state, now, decided):
        return encode_inputs(
            rules, self.windows, state, self.controls, now=now, decision_id=decided.decision_id
        )

    def _carry_out(self, action, now):
        self.current = action.to_capacity
        effect = Effect(
            action.action_id,
            action.target,
            EffectOutcome.APPLIED,
            action.from_capacity,
            action.to_capacity,
            self.current,
            now,
        )
        self.state = record_effect(self.state, effect)
        self.entries.append(effect_entry(effect))

    def log(self, kind, at, line, reason, **fields):
        key = f"{kind}-{len(self.entries)}"
        self.entries.append(LogEntry(self.policy.target, at, kind, key, line, str(reason), **fields))

    def snapshot(self):
        return Snapshot(self.policy.target, self.state, self.windows, self.controls, corrupt=self.corrupt)

    def view(self, now):
        return target_view(self.policy, self.snapshot(), now=now)


def steady(level):
    return lambda _: level


def waves(*, period=5400.0, low=60.0, high=760.0, phase=0.0):
    """Arrivals per minute that come and go, with a little unevenness."""

    def arrivals(now):
        swing = 0.5 + 0.5 * math.sin(2 * math.pi * (now / period + phase))
        return low + (high - low) * swing**3 + 25 * math.sin(now / 97.0)

    return arrivals


class FakeApi:
    """The dashboard and its API on a free port of the loopback address.

    `requests` are (method, path, query, body) as they came; `key` is wanted for orders when set, `read_key`
    for reads. `failing` answers every read with that HTTP status. `signed_in` and `may_order` are told to the page. `clock`
    is the server's; the page goes by it.
    """

    def __init__(self, targets, *, key=None, read_key=None, clock=lambda: NOW):
        self.clock = clock
        self.targets = {target.policy.target: target for target in targets}
        self.signed_in = self.may_order = None
        self.key, self.read_key, self.failing = key, read_key, None
        self.forbidden = None  # why the app itself refuses orders
        self.poison, self.poison_count, self.problems = [], 0, []
        self.requests = []
        self.extra = []  # log entries beside those of the targets
        self.consumers = consumer_api.ConsumerTables(
            MemoryStatsStore(), MemoryRateStore(), MemoryDecisionLog(), clock
        )
        self.consumers_failing = None
        self._serving = AsyncExitStack()

    async def start(self):
        app = web.Application()
        app.router.add_get("/api/dashboard", self._page)
        app.router.add_get("/api/scaling/status", self._status)
        app.router.add_get("/api/scaling/log", self._log)
        app.router.add_post("/api/scaling/{target}/{order}", self._order)
        app.router.add_get("/api/scaling/{target}/history", self._past(past.history))
        app.router.add_post("/api/scaling/{target}/rules/trial", self._past(past.trial))
        app.router.add_get("/api/consumer/status", self._consumers)
        app.router.add_post("/api/consumer/{name}/rate", self._rate)
        port = await self._serving.enter_async_context(served(app))
        return f"http://127.0.0.1:{port}/api/dashboard"

    async def stop(self):
        await self._serving.aclose()

    def simulate(self, seconds, *, only=None):
        """Lets every target (or `only` one) live through the past, up to now."""
        end = self.clock() - 8
        for target in self.targets.values() if only is None else [self.targets[only]]:
            for tick in range(int(seconds // INTERVAL), -1, -1):
                # Nobody opens an entry that is older, and finding its flips takes most of the time.
                how = decide_and_explain if tick <= EXPLAINED else decide
                target.tick(end - tick * INTERVAL, decide=how)

    async def _page(self, _request):
        return web.Response(text=page(), content_type="text/html")

    def _refused(self, request):
        self.requests.append((request.method, request.path, dict(request.query), None))
        if self.failing:
            return web.json_response({"error": "the state store did not answer"}, status=self.failing)
        given = request.query.get("code") or request.headers.get("x-functions-key")
        if self.read_key and given != self.read_key:
            return web.Response(status=401)
        return None

    async def _status(self, request):
        refused = self._refused(request)
        if refused is not None:
            return refused
        config = Config({name: target.policy for name, target in self.targets.items()}, INTERVAL, 0.0)
        snapshots = {name: target.snapshot() for name, target in self.targets.items()}
        poison = (self.poison_count, self.poison)
        seen = status_view(config, snapshots, poison, now=self.clock(), problems=self.problems)
        return self._json(msgspec.structs.replace(seen, signed_in=self.signed_in, may_order=self.may_order))

    async def _log(self, request):
        refused = self._refused(request)
        if refused is not None:
            return refused
        query = request.query
        wanted, since = query.get("target"), float(query.get("since", 0))
        rows = [entry for target in self.targets.values() for entry in target.entries] + self.extra
        rows = [e for e in rows if (wanted is None or e.target == wanted) and e.at >= since]
        rows.sort(key=lambda entry: (entry.at, entry.key), reverse=True)
        after = query.get("continuation")
        if after is not None:  # as the log table does it: a position among the rows, not a count of them
            at, key = after.split("|")
            rows = [e for e in rows if (e.at, e.key) < (float(at), key)]
        limit = int(query.get("limit", 100))
        part = rows[:limit]
        more = f"{part[-1].at!r}|{part[-1].key}" if len(rows) > limit else None
        return self._json(log_view(LogPage(tuple(part), more)))

    def _past(self, answer):
        """The product's own answer, of a log with what was simulated."""

        async def handle(request):
            refused = self._refused(request)
            if refused is not None:
                return refused
            log, name = MemoryDecisionLog(), request.match_info["target"]
            await log.append(self.targets[name].entries if name in self.targets else [])
            config = Config({each: target.policy for each, target in self.targets.items()}, INTERVAL, 0.0)
            app = SimpleNamespace(config=config, ports=SimpleNamespace(log=log), clock=self.clock)
            asked = await request.read() if request.method == "POST" else request.query
            return self._translated(await answer(app, name, asked))

        return handle

    async def _order(self, request):
        body = await request.json()
        self.requests.append((request.method, request.path, dict(request.query), body))
        if self.key and request.headers.get("x-functions-key") != self.key:
            return web.Response(status=401)
        if self.forbidden:
            return web.json_response({"error": self.forbidden}, status=403)
        target, now = self.targets[request.match_info["target"]], self.clock()
        name, by = request.match_info["order"], body["by"]
        try:
            target.controls, text = ORDERS[name](target.controls, body, target.policy, by=by, now=now)
        except OrderError as error:
            return web.json_response({"error": str(error)}, status=400)
        line = f"control {target.policy.target}: {text}, by {by}"
        target.log(LogKind.CONTROL, now, line, name, by=by)
        return self._json(target.view(now))

    async def _consumers(self, request):
        refused = self._refused(request)
        if refused is not None:
            return refused
        if self.consumers_failing:
            return web.json_response({"error": "the table did not answer"}, status=self.consumers_failing)
        return self._translated(await consumer_api.status(self.consumers))

    async def _rate(self, request):
        body = await request.read()
        self.requests.append((request.method, request.path, dict(request.query), msgspec.json.decode(body)))
        if self.key and request.headers.get("x-functions-key") != self.key:
            return web.Response(status=401)
        name = request.match_info["name"]
        return self._translated(await consumer_api.set_rate(self.consumers, name, body))

    @staticmethod
    def _translated(answer):
        return web.Response(body=answer.body, status=answer.status, content_type=answer.media_type)

    @staticmethod
    def _json(value):
        return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def consumer_row(instance, partitions, *, consumer="flights", at=None, **changes):
    """A row of an instance that is a little behind in the partitions it owns, more so in the higher ones."""
    lag = tuple(
        PartitionStats(
            str(number),
            last_enqueued=52_000 + 40 * number,
            received=51_200,
            low_water=51_000,
            lag=950 + 40 * number,
            in_flight=150,
        )
        for number in partitions
    )
    fields = {
        "hub": "flights-hub",
        "consumer_group": "$Default",
        "rate_limit": 1000.0,
        "received_per_s": 870.0,
        "written_per_s": 860.5,
        "throttled_share": 0.042,
        "ru_per_record": 5.71,
        "last_ru_per_record": 5.71,
        "ru_per_s": 4913.0,
        "backlog_count": 150 * len(lag),
        "oldest_age_s": 2.0,
        "dead_letters_total": 3,
        "written_total": 120_000,
        "lag": lag,
        **changes,
    }
    return ConsumerStats(consumer=consumer, instance=instance, at=NOW - 2 if at is None else at, **fields)


async def eventually(condition, *, within=10.0):
    """Waits until the (async) condition holds; its last value is told when it never does."""
    deadline = asyncio.get_running_loop().time() + within
    while True:
        value = await condition()
        if value:
            return value
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"still {value!r} after {within} s")
        await asyncio.sleep(0.05)
