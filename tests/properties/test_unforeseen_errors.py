"""Any exception, raised at any call of a port: the change is made exactly once, nobody is kept in the dark, and no
task is left behind. The same for every await of the adapters: an unknown outcome is never taken for a known one.
"""

import asyncio
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.collectors.service_bus.collector import ServiceBusQueueCollector
from scaling.collectors.storage_queue import StorageQueueCollector
from scaling.model import EffectOutcome, ScaleAction
from scaling.ports import CollectError, ScalerError
from scaling.scalers.app_service.scaler import AppServicePlanScaler
from scaling.scalers.cosmos.scaler import CosmosThroughputScaler
from scaling.scalers.cosmos.throughput import Throughput
from scaling.storage.poison_queues import QueuePoisonQueues
from tests.properties.odd_errors import chain, is_told, odd_errors
from tests.support.examples import examples
from tests.support.scaling.runner import MINUTE, NOW, World, metric, policy
from tidemark.foundation.azure.tables import Table
from tidemark.foundation.errors import ConflictError, StoreUnavailableError
from tidemark.foundation.keys import TooLargeError

CALLS = (
    "collector.collect",
    "scaler.current",
    "scaler.apply",
    "state.load",
    "state.save",
    "log.append",
    "log.get",
    "log.purge",
)
STEP = {"metrics": {"backlog": metric(span=60.0, min_samples=1)}, "maximum": 3}
MANY = examples(75)


class Once:
    """Raises `error` at the n-th call of a name, before or after it took effect."""

    def __init__(self, name: str, nth: int, error: Exception, *, after: bool) -> None:
        self.name, self.left, self.error, self.is_after, self.raised = name, nth, error, after, False

    def before(self, name: str) -> None:
        if not self.is_after:
            self.meet(name)

    def after(self, name: str) -> None:
        if self.is_after:
            self.meet(name)

    def meet(self, name: str) -> None:
        if name == self.name:
            self.left -= 1
            if self.left == -1:
                self.raised = True
                raise self.error


async def played(world: World, fault: Once) -> str:
    """Six minutes of the loop; what a function raises brings its message back. Returns all that was told."""
    told: list[str] = []

    async def function(work, *arguments):
        try:
            outcome = await work(*arguments)
        except Exception as error:  # as the host does
            told.append(chain(error))
            return None
        told.extend((*outcome.lines, *outcome.warnings))
        return outcome

    made = world.autoscaler()
    for _ in range(6):
        collected = await function(made.collect)
        assert collected is not None, "a timer has no second delivery"
        world.metrics += collected.messages
        for _ in range(3):  # deliveries
            for queue, work in ((world.metrics, made.evaluate), (world.actions, made.apply)):
                for message in list(queue):
                    outcome = await function(work, message)
                    if outcome is not None:
                        queue.remove(message)
                        world.actions += outcome.messages
        checked = await function(made.verify)
        assert checked is not None, "nor has this one"
        world.actions += checked.messages
        world.clock.now += MINUTE
    await made.findings()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return "\n".join((*told, *(entry.line for entry in await world.entries())))


@MANY
@given(st.sampled_from(CALLS), st.integers(0, 5), odd_errors, st.booleans())
def test_whatever_is_raised_at_any_call_the_change_is_made_once_and_the_error_is_told(
    name, nth, error, after
):
    async def play():
        world = World(policy(**STEP), capacity=2)
        world.backlog = 900.0
        fault = Once(name, nth, error, after=after)
        world.hook(fault.before, fault.after)
        told = await played(world, fault)
        state = await world.state()

        assert world.platform.ledger == [3]
        assert (world.metrics, world.actions) == ([], [])
        assert (state.expected, state.pending, state.external_change) == (3, None, None)
        assert len(state.effects) == 1
        if fault.raised and not isinstance(error, ConflictError):  # which means: load again
            assert is_told(error, told), told

    asyncio.run(play())


@MANY
@given(odd_errors, st.sampled_from(["first", "scaler"]))
def test_whatever_one_dependency_raises_every_other_target_has_its_report(error, which):
    from tests.support.scaling.fakes_azure import FakeCollector  # noqa: PLC0415 - beside it
    from tests.unit.scaling.service.test_runner import Odd, collecting, reports  # noqa: PLC0415 - a test module's support

    async def play():
        good = FakeCollector({"active": 8.0, "total": 9.0})
        odd = Odd(error)
        made = collecting(odd if which == "first" else good, good, odd if which == "scaler" else None)
        found, outcome = await reports(made)

        assert [sample.value for sample in found["two"].samples] == [9.0]
        assert found["two"].capacity.current == 4
        assert set(found) == {"one", "two"}
        assert any("collector one" in warning for warning in outcome.warnings)

    asyncio.run(play())


# The scaler of a plan


class Plan(SimpleNamespace):
    """A plan, its management API, and one call of it that raises."""

    def __init__(self, fails: str, error: Exception, *, after: bool) -> None:
        super().__init__(capacity=2, fails=fails, error=error, after=after, puts=[])

    async def meet(self, name: str, effect=lambda: None):
        if name == self.fails and not self.after:
            raise self.error
        effect()
        if name == self.fails:
            raise self.error

    async def get(self, group, name):
        await self.meet("get")
        properties = {"maximumNumberOfWorkers": 10, "provisioningState": "Succeeded"}
        return {
            "sku": {"name": "S1", "tier": "Standard", "capacity": self.capacity},
            "properties": properties,
        }

    async def begin_create_or_update(self, group, name, document, **_):
        wanted = document["sku"]["capacity"]
        self.puts.append(wanted)
        await self.meet("put", lambda: setattr(self, "capacity", wanted))
        return SimpleNamespace(result=lambda: self.meet("result"))

    async def autoscale_settings(self, scope):
        await self.meet("list")
        return
        yield


def plan_scaler(plan: Plan) -> AppServicePlanScaler:
    subscription = "11111111-2222-3333-4444-555555555555"
    path = f"/subscriptions/{subscription}/resourceGroups/rg/providers/Microsoft.Web/serverfarms/plan"

    async def no_wait(_seconds: float) -> None: ...

    made = AppServicePlanScaler(AppServicePlanScaler.Params(resource_id=path), {}, sleep=no_wait)
    plan.app_service_plans = plan
    made._arm.resources._client = made._arm.web(subscription)._client = plan
    return made


ACTION = ScaleAction("plan@1", "plan", 2, 4, NOW, NOW + 600, "scale_out")
MADE = {EffectOutcome.APPLIED, EffectOutcome.ALREADY_THERE}


@MANY
@given(st.sampled_from(["get", "list", "put", "result"]), odd_errors, st.booleans())
def test_a_plan_is_asked_what_became_of_an_order_whatever_was_raised_around_it(fails, error, after):
    async def play():
        plan = Plan(fails, error, after=after)
        scaler = plan_scaler(plan)
        try:
            effect = await scaler.apply(ACTION, now=NOW)
        except ScalerError:
            pass
        else:
            assert effect.outcome in MADE
            assert effect.reached == plan.capacity == 4
        plan.fails = "nothing any more"
        again = await scaler.apply(ACTION, now=NOW + 30)

        assert again.outcome in MADE
        assert plan.capacity == 4
        assert set(plan.puts) == {4}

    asyncio.run(play())


# The scaler of a throughput


class Offer(SimpleNamespace):
    label, account, role = "throughput", "account", "a role"

    async def read(self, now):
        if self.fails == "read":
            raise self.error
        return Throughput(self.value, autoscale=False, floor=400)

    async def write(self, value, seen):
        if self.fails == "write" and not self.after:
            raise self.error
        self.value = value
        if self.fails == "write":
            raise self.error


@MANY
@given(st.sampled_from(["read", "write"]), odd_errors, st.booleans())
def test_a_throughput_is_read_back_whatever_was_raised_around_an_order(fails, error, after):
    options = {"connection": "Cosmos", "database": "d", "container": "c"}
    keys = {"Cosmos": "AccountEndpoint=https://localhost/;AccountKey=AA==;"}

    async def no_wait(_seconds: float) -> None: ...

    async def play():
        scaler = CosmosThroughputScaler(
            msgspec.convert(options, CosmosThroughputScaler.Params), keys, sleep=no_wait
        )
        scaler._plane = offer = Offer(value=400, fails=fails, error=error, after=after)
        scaler._limiter = SimpleNamespace(take=lambda *_: (0.0, ""))
        action = msgspec.structs.replace(ACTION, from_capacity=400, to_capacity=1000)
        try:
            effect = await scaler.apply(action, now=NOW)
        except ScalerError:
            pass
        else:
            assert effect.outcome in MADE
            assert effect.reached == offer.value == 1000
        offer.fails = ""

        assert (await scaler.apply(action, now=NOW + 30)).outcome in MADE
        assert offer.value == 1000

    asyncio.run(play())


# Collectors and stores


class Raising:
    """A client whose every method raises."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.account_name, self.queue_name = "account", "queue"

    def __getattr__(self, name: str):
        async def method(*_, **__):
            raise self.error

        return method


@MANY
@given(odd_errors, st.sampled_from(["queue", "bus"]))
def test_a_collector_has_one_kind_of_error_whatever_its_sdk_raises(error, kind):
    made = (
        StorageQueueCollector(StorageQueueCollector.Params(connection="c", queue="q"), {})
        if kind == "queue"
        else ServiceBusQueueCollector(ServiceBusQueueCollector.Params(connection="c", queue="q"), {})
    )
    made._open = lambda: Raising(error)
    with pytest.raises(CollectError):
        asyncio.run(made.collect(now=NOW))


@MANY
@given(odd_errors, st.sampled_from(["rows", "get", "save", "put", "delete"]))
def test_a_table_has_its_own_errors_only_whatever_its_sdk_raises(error, name):
    table = Table({"Storage": "UseDevelopmentStorage=true"}, "Storage", "Rows")
    table._client = table._requests = Raising(error)
    row = {"PartitionKey": "p", "RowKey": "r"}
    arguments = {"rows": ("",), "get": ("p", "r"), "save": (row, None), "put": ([row],), "delete": ([row],)}
    try:
        asyncio.run(getattr(table, name)(*arguments[name]))
    except (StoreUnavailableError, ConflictError, TooLargeError):
        pass
    else:
        assert name == "get", "only a row that is not there is no error"
        assert type(error).__name__ == "ResourceNotFoundError"


@MANY
@given(odd_errors)
def test_the_poison_queues_are_unavailable_or_empty_whatever_the_sdk_raises(error):
    queues = QueuePoisonQueues({"Storage": "UseDevelopmentStorage=true"}, "Storage", queues=("metrics",))
    queues._clients._client = [Raising(error)]
    try:
        assert asyncio.run(queues.peek()) == (0, [])
    except StoreUnavailableError:
        return
    assert type(error).__name__ == "ResourceNotFoundError"
