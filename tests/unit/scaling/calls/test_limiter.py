"""The call limiter: waiting, being refused, and services that ask everybody to wait. Time is made up."""

import asyncio

import pytest

from scaling.calls.budgets import Budget, call_of
from scaling.calls.call_budgets import CallBudgets
from scaling.calls.limiter import CallLimiter, CallRefusedError, urgent
from tests.support.virtual_time import Clock

ORDERS, OTHERS = "https://orders.servicebus.windows.net/queue", "https://others.servicebus.windows.net/queue"


class World:
    def __init__(self, calls: int = 10, seconds: float = 5.0) -> None:
        self.clock = Clock(1000.0)
        self.budgets = CallBudgets({"service_bus": Budget(calls, seconds)})
        self.limiter = CallLimiter(self.budgets, clock=self.clock, sleep=self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.clock.now += seconds

    async def enter(self, url: str = ORDERS):
        return await self.limiter.enter("GET", url, "service_bus")

    def heard(self, call, status: int, retry_after: float | None, text: str = "") -> None:
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        self.limiter.note_answer(call, status, headers, text)

    def used(self, scope: str = "orders.servicebus.windows.net"):
        return {each.scope: each for each in self.limiter.usage(0.0)}[scope]


async def test_a_call_waits_a_moment_for_its_turn():
    world = World()
    for _ in range(8):
        await world.enter()

    await world.enter()

    assert world.clock.now == 1005.0


async def test_who_gives_up_waiting_holds_up_nobody():
    world = World()
    for _ in range(8):
        await world.enter()
    world.limiter._sleep = lambda _: asyncio.Event().wait()
    waiting = [asyncio.create_task(world.enter(f"{ORDERS}{n}")) for n in range(8)]
    await asyncio.sleep(0)
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    world.clock.now += 5.0

    await world.enter()  # which would wait for ever


async def test_a_call_that_would_have_to_wait_long_is_refused_at_once_with_the_time_to_wait():
    world = World(seconds=60.0)
    for _ in range(8):
        await world.enter()
    world.clock.now += 20.0

    with pytest.raises(CallRefusedError) as raised:
        await world.enter()

    assert str(raised.value) == (
        "not asked: the budget of service_bus for orders.servicebus.windows.net (10 calls in 60 s) is used up; again in 40 s"
    )
    assert (raised.value.retry_after, world.clock.now) == (40.0, 1020.0)


async def test_a_part_of_each_budget_is_for_urgent_calls_alone():
    world = World(seconds=60.0)
    for _ in range(8):
        await world.enter()
    with pytest.raises(CallRefusedError):
        await world.enter()

    with urgent():
        await world.enter()
        await world.enter()
        with pytest.raises(CallRefusedError):
            await world.enter()
    with pytest.raises(CallRefusedError):
        await world.enter()


async def test_a_service_that_asks_to_wait_quiets_all_its_callers_and_nobody_else():
    world = World()
    world.heard(await world.enter(), 429, 30.0)

    for path in ("queue", "topic/subscriptions/a", "$Resources/queues"):
        with pytest.raises(CallRefusedError, match=r"orders\.\S+ asked to wait; again in 30 s"):
            await world.enter(f"https://orders.servicebus.windows.net/{path}")
    with urgent(), pytest.raises(CallRefusedError):
        await world.enter()
    await world.enter(OTHERS)
    world.clock.now += 26.0
    await world.enter()
    assert world.clock.now == 1030.0


async def test_a_shorter_wait_does_not_end_a_longer_one_and_other_answers_ask_nothing():
    world = World()
    call = await world.enter()
    world.heard(call, 429, 30.0)
    world.heard(call, 429, 1.0)
    world.heard(call_of("GET", OTHERS, "service_bus"), 409, 30.0)
    world.heard(call_of("GET", OTHERS, "service_bus"), 500, None)

    await world.enter(OTHERS)
    with pytest.raises(CallRefusedError, match="again in 30 s"):
        await world.enter()


async def test_an_answer_429_that_does_not_say_how_long_asks_to_wait_ten_seconds_and_one_503_of_an_entity_nobody_else():
    world = World()
    world.heard(await world.enter(), 503, 30.0, "the entity moves")
    await world.enter(f"{ORDERS}2")
    assert world.clock.now == 1000.0
    world.heard(await world.enter(f"{ORDERS}2"), 429, None)

    await world.enter(f"{ORDERS}3")

    assert world.clock.now == 1010.0


async def test_nobody_can_be_asked_to_wait_for_ever():
    world = World()
    world.heard(await world.enter(), 429, 1e12)

    world.clock.now += 3600.0
    await world.enter()


async def test_a_call_that_counts_for_two_budgets_takes_of_both_or_of_neither():
    budgets = CallBudgets({"management_reads": Budget(5, 60.0), "metric_reads": Budget(1, 60.0)})
    metrics = (
        "https://m/subscriptions/s/resourceGroups/g/providers/a/b/c/providers/microsoft.insights/metrics"
    )

    assert budgets.ask(call_of("GET", metrics), 0.0) is None
    refusal = budgets.ask(call_of("GET", metrics), 1.0)
    assert refusal is not None
    assert (refusal.seconds, refusal.why) == (
        59.0,
        "the budget of metric_reads for m/s (1 call in 60 s) is used up",
    )
    assert {each.api: (each.last_minute, each.refused_minute) for each in budgets.usage(1.0, 0.0)} == {
        "management_reads": (1, 0),
        "metric_reads": (1, 1),
    }


async def test_usage_tells_what_was_called_refused_and_throttled_within_a_minute_and_an_hour():
    world = World(seconds=60.0)
    for _ in range(8):
        await world.enter()
    with pytest.raises(CallRefusedError):
        await world.enter()
    world.clock.now += 120.0
    world.heard(await world.enter(), 429, 45.0)

    used = world.used()
    assert (used.last_minute, used.last_hour, used.refused_minute, used.refused_hour) == (1, 9, 0, 1)
    assert (used.throttled_hour, used.waits_until, used.budget, used.seconds) == (1, 45.0, 10, 60.0)
    world.clock.now += 2 * 3600.0
    assert world.limiter.usage(0.0) == []


async def test_what_has_no_budget_is_counted_and_heeded():
    world = World()
    query = "https://prometheus.example/api/v1/query"
    call = await world.limiter.enter("GET", f"{query}?query=a")
    world.heard(call, 429, 20.0)

    with pytest.raises(
        CallRefusedError, match=r"not asked: prometheus\.example asked to wait; again in 20 s"
    ):
        await world.limiter.enter("GET", f"{query}?query=a")
    await world.limiter.enter("GET", f"{query}?query=b")  # one query may be refused for what it alone is
    assert (world.used("prometheus.example").budget, world.used("prometheus.example").last_hour) == (None, 2)


async def test_hosts_that_are_called_no_more_take_no_memory():
    world = World()
    for number in range(100):
        await world.limiter.enter("GET", f"https://h{number}.example/")
    world.clock.now += 3700.0

    assert world.limiter.usage(0.0) == []
    assert world.budgets._accounts == {}


async def test_behind_one_host_of_peoples_own_one_endpoint_asks_nobody_to_wait_for_the_others():
    """A gateway has many services behind one name."""
    world = World()
    world.heard(await world.limiter.enter("GET", "https://api.example/tickets"), 503, 3600.0)

    await world.limiter.enter("GET", "https://api.example/orders")


def test_one_call_can_be_taken_by_the_clock_of_whoever_takes_it():
    limiter = CallLimiter(CallBudgets({"cosmos_updates": Budget(25, 300.0)}), clock=lambda: 0.0)

    assert [limiter.take("cosmos_updates", "acc", float(second))[0] for second in range(25)] == [0.0] * 25
    assert limiter.take("cosmos_updates", "acc", 100.0)[0] == 200.0
    assert limiter.take("cosmos_updates", "other", 100.0)[0] == 0.0
    assert limiter.take("cosmos_updates", "acc", 300.0)[0] == 0.0
    assert limiter.take("cosmos_updates", "acc", 300.0)[0] == 1.0
