"""The demo's first scene: its policy, its clock, what the application counts, and how both sides are told."""

import asyncio
import io
import re
from collections import deque
from types import SimpleNamespace

import aiohttp
import pytest
from matplotlib import image
from msgspec import structs
from rich.console import Console

from devstack.demo.common.report import changes, panels
from devstack.demo.common.run import Run
from devstack.demo.orders import report
from devstack.demo.orders.counters import Counters, CountersCollector, Totals
from devstack.demo.orders.report import Compared, Outcome, Side
from devstack.demo.orders.run import SPEED
from devstack.demo.orders.traffic import Fleet, Ledger
from devstack.demo.scenes import FLIGHTS_SETTINGS, ORDERS_SETTINGS
from devstack.function_host.clock import TRUE, HostClock
from devstack.stack.supervisor import PLAN, ROOT, SUBSCRIPTION
from scaling.config.policy_file import load_config
from scaling.ports import CollectError
from scaling.rules.service_level.rule import ServiceLevelRule
from scaling.rules.threshold import ThresholdRule
from scaling.service import registry
from scaling.shadow.comparison import ShadowView
from tests.support.virtual_time import virtual_time

NAMED = {
    "ORDERS_PLAN_ID": f"/subscriptions/{SUBSCRIPTION}/resourceGroups/g/providers/Microsoft.Web/serverfarms/plan-orders",
    "ORDERS_COUNTERS_URL": "http://127.0.0.1:1/",
    "OrdersServiceBus": "Endpoint=sb://localhost;SharedAccessKeyName=n;SharedAccessKey=k",
    "AzureWebJobsStorage": "UseDevelopmentStorage=true",
    "CosmosConnection": "AccountEndpoint=http://localhost:8081/;AccountKey=a2V5;",
}
COMPARED = Compared(
    Side("service_level", 4.0, 0.004, 14), Side("fixed thresholds", 5.0, 0.11, 7), 4500.0, 180.0, 0.01, "stay"
)
OUTCOME = Outcome(
    sent=1000, done=1000, left=0, duplicates=0, peak_backlog=9, decisions=75,
    changes=((1.0, 1, 2, "scaling p out 1 -> 2: busy [p@1]"), (2.0, 2, 1, "scaling p in 2 -> 1: idle [p@2]")),
    compared=COMPARED,
)  # fmt: skip
VIEW = ShadowView(
    rules="abc", unit="instance-hours", simulated="shadow", promoted_by=None, promoted_at=None, current=3, desired=3, reason=None, line=None, since=1.0,
    seconds=4500.0, live_hours=4.0, simulated_hours=5.0, live_late=0.0, simulated_late=0.1, wait=180.0, allowed=0.01,
    agreed=0.5, switch=False, advice="too little seen", notes=(),
)  # fmt: skip


@pytest.mark.parametrize("settings", [ORDERS_SETTINGS, FLIGHTS_SETTINGS])
def test_what_a_scene_is_scaled_by_has_nothing_wrong_with_it(settings):
    text = (ROOT / settings["TIDEMARK_CONFIG"]).read_text(encoding="utf-8")

    config = load_config(text, name="demo", settings={**NAMED, **settings}, plug_ins=registry)

    assert config.findings == ()


def test_the_first_scene_tries_fixed_thresholds_beside_service_level_on_the_same_queue():
    text = (ROOT / ORDERS_SETTINGS["TIDEMARK_CONFIG"]).read_text(encoding="utf-8")

    policy = load_config(
        text, name="demo", settings={**NAMED, **ORDERS_SETTINGS}, plug_ins=registry
    ).policies[PLAN]

    assert [type(rule) for rule in policy.flat_rules] == [ServiceLevelRule]
    assert [type(rule) for rule in policy.shadow.flat_rules] == [ThresholdRule]
    queue = policy.spec.shadow.queue
    assert (queue.backlog, queue.incoming, queue.outgoing) == ("backlog", "incoming", "outgoing")
    assert policy.windows["backlog"].interval == SPEED  # a look every minute, which is one of our seconds


def test_a_fast_clock_passes_its_seconds_sooner_and_knows_the_true_time():
    now = [1000.0]
    clock = HostClock(60.0, began=1000.0, true=lambda: now[0])

    now[0] += 2.5

    assert clock() == 1150.0
    assert clock.now().timestamp() == 1150.0
    assert clock.true_time(1150.0) == 1002.5
    assert clock.true_seconds(90.0) == 1.5


def test_the_true_clock_is_that_of_the_machine():
    clock = structs.replace(TRUE, true=lambda: 1234.5)

    assert (clock(), clock.true_time(99.0), clock.true_seconds(7.0)) == (1234.5, 99.0, 7.0)


async def test_the_counters_are_read_as_what_came_and_went_since_the_last_look():
    totals = [Totals(0, 0)]
    async with Counters(lambda: totals[0]) as counters:
        collector = CountersCollector(CountersCollector.Params(url=counters.url), {})
        first = await collector.collect(now=60.0)
        totals[0] = Totals(25, 20)
        second = await collector.collect(now=120.0)

    assert (first.at, dict(first.values)) == (60.0, {})
    assert (second.at, dict(second.values)) == (120.0, {"incoming": 25.0, "outgoing": 20.0})


async def test_counters_that_do_not_answer_are_an_error_and_what_passed_meanwhile_is_no_interval():
    totals = [Totals(5, 5)]
    async with Counters(lambda: totals[0]) as counters:
        collector = CountersCollector(CountersCollector.Params(url=counters.url), {})
        await collector.collect(now=60.0)
    with pytest.raises(CollectError, match="cannot be read"):
        await collector.collect(now=120.0)
    async with Counters(lambda: totals[0]) as again:
        collector._url = again.url
        assert dict((await collector.collect(now=180.0)).values) == {}
        totals[0] = Totals(9, 6)
        assert dict((await collector.collect(now=240.0)).values) == {"incoming": 4.0, "outgoing": 1.0}


async def test_the_counters_are_json_for_everybody():
    async with (
        Counters(lambda: Totals(3, 2)) as counters,
        aiohttp.ClientSession() as session,
        session.get(counters.url) as answer,
    ):
        assert await answer.json() == {"came": 3, "done": 2}


class Queue:
    """A receiver that hands out messages 0, 1, 2, ... that come at these seconds, and notes how many are held and when each
    was completed.
    """

    def __init__(self, comes):
        self.left, self.most, self.held, self.completed = list(enumerate(comes)), 0, set(), {}

    @property
    def now(self):
        return round(asyncio.get_running_loop().time() - self.began, 3)

    async def receive_messages(self, *, max_message_count, max_wait_time):
        wait = min([max_wait_time, *(max(at - self.now, 0.0) for _, at in self.left)])
        await asyncio.sleep(wait)
        there = [number for number, at in self.left if at <= self.now][:max_message_count]
        self.left = [(number, at) for number, at in self.left if number not in there]
        self.held |= set(there)
        self.most = max(self.most, len(self.held))
        return [SimpleNamespace(message_id=number) for number in there]

    async def complete_message(self, message):
        self.held.remove(message.message_id)
        self.completed[message.message_id] = self.now


def worked(comes, seconds):
    """The queue and the ledger after a worker that holds three messages, for a second each, took some for so long."""
    queue, ledger = Queue(comes), Ledger()
    fleet = Fleet("", "t", "s", ledger, ready=list, concurrency=3, processing=1.0)

    async def work():
        queue.began, held = asyncio.get_running_loop().time(), deque()
        while held or queue.now < seconds:
            await fleet._round(queue, held, take=queue.now < seconds)

    with virtual_time() as run:
        run(work())
    return queue, ledger


def test_a_worker_holds_no_more_messages_than_it_may_and_takes_the_next_when_one_is_done():
    queue, ledger = worked([0.0] * 7, seconds=10)

    assert queue.most == 3
    assert list(queue.completed.values()) == [1.0] * 3 + [2.0] * 3 + [3.0]
    assert (ledger.done, ledger.duplicates) == (7, 0)


def test_a_worker_that_leaves_completes_what_it_holds_and_takes_nothing_more():
    queue, ledger = worked([0.0, 0.4, 0.6], seconds=0.3)

    assert sorted(queue.completed) == [0, 1]
    assert (queue.left, queue.held, ledger.done) == ([(2, 0.6)], set(), 2)


def test_a_decision_is_found_at_the_true_time_at_which_it_was_made():
    run = Run(None, SimpleNamespace(clock=HostClock(60.0, began=1000.0)))
    run.began_at = 1010.0  # the functions started ten seconds before: their clock showed 1600 then
    run.log = [
        {"kind": "decision", "at": 1600.0 + 60.0 * 5, "current": 1, "desired": 2, "line": "at second 5"},
        {"kind": "decision", "at": 1600.0 + 60.0 * 40, "current": 1, "desired": 2, "line": "at second 40"},
    ]

    made = changes(run, [(0.0, 1), (5.5, 2), (20.0, 1), (70.0, 2)])

    assert [line for *_, line in made] == ["at second 5", "no decision in the log", "no decision in the log"]


@pytest.mark.parametrize(
    ("live", "simulated", "told"),
    [
        ((4.0, 0.004), (5.0, 0.11), "20 % fewer instance-hours than fixed thresholds, and 0.4 % of the messages"),
        ((6.0, 0.0), (5.0, 0.2), "20 % more instance-hours than fixed thresholds, and 0 % of the messages"),
        ((4.0, 0.03), (5.0, 0.2), "waited longer than 3 min instead of 20 %, more than the 1 % allowed"),
        ((4.0, 0.0), (5.0, 0.0), "0 % of the messages waited longer than 3 min, as with them"),
        ((4.0, None), (5.0, 0.2), "not known is how many of the messages waited longer than 3 min"),
    ],
)  # fmt: skip
def test_the_sentence_says_plainly_who_costs_more_and_who_lets_messages_wait(live, simulated, told):
    compared = structs.replace(
        COMPARED, live=Side("live", *live, 1), simulated=Side("fixed thresholds", *simulated, 1)
    )

    assert told in compared.sentence


def test_money_is_the_rate_of_the_day_kept_up_for_a_month():
    assert COMPARED.month(COMPARED.simulated) == pytest.approx(5.0 / 1.25 * 730 * report.PRICE)


def printed(outcome):
    console = Console(file=io.StringIO(), width=80)
    report.show(outcome, [], console)
    return console.file.getvalue()


def test_both_sides_stand_in_a_table_that_fits_a_terminal():
    text = printed(OUTCOME)

    assert re.search(r"service_level +│ 4\.0 +│ 0\.4 %: 4 of 1,000 +│ \$467 +│ 14 ", text), text
    assert re.search(r"fixed thresholds +│ 5\.0 +│ 11 %: 110 of 1,000 +│ \$584 +│ 7 ", text), text
    assert "passed: nothing lost, scaled out and in" in text


def test_what_is_not_known_of_a_side_is_no_zero():
    compared = structs.replace(COMPARED, simulated=Side("fixed thresholds", 5.0, None, 7))

    assert re.search(
        r"fixed thresholds +│ 5\.0 +│ \? +│", printed(structs.replace(OUTCOME, compared=compared))
    )


@pytest.mark.parametrize(
    ("changed", "failure"),
    [
        ({"sent": 0}, "no message was sent"),
        ({"left": 2}, "2 messages were not completed"),
        ({"changes": OUTCOME.changes[:1]}, "the plan was never scaled in"),
        ({"compared": None}, "the simulated rules were not compared"),
    ],
)
def test_a_scene_that_did_not_come_true_says_what_is_missing(changed, failure):
    outcome = structs.replace(OUTCOME, **changed)

    assert outcome.failures == (failure,)
    assert f"failed: {failure}" in printed(outcome)


def scene(**changed):
    """A day of 75 s: scaled out at 10 s and back in after the day; the simulated rules changed twice, once after it."""
    simulated = [(5.0, 1), (20.0, 2), (80.0, 3)]
    log = [{"kind": "decision", "at": 1000.0 + at, "shadow": {"current": size}} for at, size in simulated]
    fields = {
        "log": log,
        "seconds_of": lambda at: at - 1000.0,
        "began_at": 1000.0,
        "plan": SimpleNamespace(history=[(1000.0, 1), (1010.0, 2), (1078.0, 1)]),
        "trace": SimpleNamespace(duration=75.0),
        "ledger": SimpleNamespace(sent=10, done=10, left=0, duplicates=0),
        "samples": [],
        "compared": VIEW,
    }
    for entry in log:
        entry |= {"current": 0, "desired": 0, "line": ""}
    return SimpleNamespace(**fields | changed)


def test_hours_and_late_messages_are_those_of_the_products_own_comparison_and_changes_those_of_the_day():
    compared = report.outcome(scene()).compared

    assert compared.live == Side("service_level", 4.0, 0.0, 1)
    assert compared.simulated == Side("fixed thresholds", 5.0, 0.1, 1)
    assert (compared.seconds, compared.wait, compared.allowed) == (4500.0, 180.0, 0.01)


@pytest.mark.parametrize(
    "view", [None, structs.replace(VIEW, simulated_hours=0.0), structs.replace(VIEW, wait=None)]
)
def test_without_a_comparison_nothing_is_made_up(view):
    assert report.outcome(scene(compared=view)).compared is None


def test_the_picture_of_a_scene_has_a_ground_of_its_own(tmp_path):
    with panels(tmp_path / "scene.png", height=3, ratios=(1, 1)) as (axes, _):
        axes.plot([1, 2])

    assert image.imread(tmp_path / "scene.png")[..., 3].min() == 1.0
    assert "fill: #ffffff" in (tmp_path / "scene.svg").read_text()
