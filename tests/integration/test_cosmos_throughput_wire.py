"""The throughput scaler by managed identity, over the wire, against the local Resource Manager; azure-mgmt-cosmosdb too."""

from collections.abc import AsyncIterator
from itertools import count

import msgspec
import pytest
from azure.mgmt.cosmosdb.aio import CosmosDBManagementClient

from devstack.resource_manager import ResourceManagerServer, StandaloneAccount
from devstack.servers.faults import Fault
from scaling.model import EffectOutcome, ScaleAction
from scaling.ports import ScalerError
from scaling.scalers.arm import clients as arm
from scaling.scalers.carrying_out import TargetRefusedError
from scaling.scalers.cosmos.scaler import CosmosThroughputScaler
from tests.support.servers.resource_manager import SUBSCRIPTION, arm_settings, resource_manager
from tests.support.virtual_time import Clock

NOW = 1_700_000_000.0
_names = count()

pytestmark = pytest.mark.wire


def action(start: int, to: int, *, expires_in: float = 600) -> ScaleAction:
    return ScaleAction(
        action_id="flights@1",
        target="flights",
        from_capacity=start,
        to_capacity=to,
        decided_at=NOW - 10,
        expires_at=NOW + expires_in,
        reason="scale_out" if to > start else "scale_in",
    )


class World:
    """One account with an offer source of names only, and time that passes when somebody sleeps."""

    def __init__(self, server: ResourceManagerServer, clock: "Clock") -> None:
        self.server = server
        self.clock = clock
        self.account = StandaloneAccount()
        self.account_id = server.add_cosmos_account(
            SUBSCRIPTION, "rg", f"account{next(_names)}", self.account, poll_after=0
        )
        self.slept: list[float] = []
        self.scalers: list[CosmosThroughputScaler] = []

    def settings(self) -> dict[str, str]:
        return arm_settings(self.server, TIDEMARK_CALL_BUDGETS="management_reads=9999/1")

    def scaler(self, path: str = "demo/containers/flights", **options) -> CosmosThroughputScaler:
        params = {
            "resource_id": f"{self.account_id}/sqlDatabases/{path}",
            "poll_interval_seconds": 0.05,
            **options,
        }
        scaler = CosmosThroughputScaler(
            msgspec.convert(params, CosmosThroughputScaler.Params),
            self.settings(),
            sleep=self._sleep,
            monotonic=self.clock,
        )
        self.scalers.append(scaler)
        return scaler

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.clock.now += seconds

    def container(self, **options):
        """The offer of `flights` in `demo`, and its scaler."""
        offer = self.account.add("demo", "flights", **{"throughput": 1000, **options})
        return offer, self.scaler()

    def puts(self) -> list[int]:
        return [entry.capacity for entry in self.server.ledger if entry.method == "PUT"]

    def fault(self, point: str, kind: str, **options) -> None:
        self.server.faults.add(Fault(f"arm.{point}", kind, **options))


@pytest.fixture
async def world(tmp_path_factory, monkeypatch) -> AsyncIterator[World]:
    clock = Clock(NOW)
    async with resource_manager(tmp_path_factory, monkeypatch, clock=clock) as server:
        world = World(server, clock)
        yield world
        for scaler in world.scalers:
            await scaler.aclose()


async def test_current_tells_throughput_floor_and_what_is_instant(world):
    offer, scaler = world.container(throughput=12_000, partitions=2)
    offer.highest = 100_000

    capacity = await scaler.current("flights", now=NOW)

    assert (capacity.current, capacity.at) == (12_000, NOW)
    assert (capacity.floor, capacity.ceiling, capacity.pending) == (1000, 20_000, False)


async def test_manual_throughput_is_set_once_up_and_down(world):
    offer, scaler = world.container()

    up = await scaler.apply(action(1000, 6000), now=NOW)
    again = await scaler.apply(action(1000, 6000), now=NOW)
    down = await scaler.apply(action(6000, 400), now=NOW)

    assert [effect.outcome for effect in (up, again, down)] == [
        EffectOutcome.APPLIED,
        EffectOutcome.ALREADY_THERE,
        EffectOutcome.APPLIED,
    ]
    assert (up.reached, down.reached, offer.level.ru) == (6000, 400, 400)
    assert (up.detail, down.detail) == ("", "")  # nothing went wrong on the way that reading back made good
    assert world.puts() == [6000, 400]


async def test_the_maximum_of_autoscale_is_the_capacity_in_steps_of_1000(world):
    world.account.add("demo", "flights", autoscale_maximum=4000)
    scaler = world.scaler()

    capacity = await scaler.current("flights", now=NOW)
    effect = await scaler.apply(action(4000, 6300), now=NOW)

    assert (capacity.current, capacity.floor, capacity.ceiling, capacity.step) == (4000, 1000, 10_000, 1000)
    assert (effect.outcome, effect.reached) == (EffectOutcome.LIMITED, 7000)
    assert "steps of 1000" in effect.detail
    assert world.account.find_offer("demo", "flights").level.autoscale


async def test_throughput_shared_by_a_database_is_set_too(world):
    world.account.add("demo", throughput=1000)

    effect = await world.scaler("demo").apply(action(1000, 1500), now=NOW)

    assert (effect.outcome, effect.reached) == (EffectOutcome.APPLIED, 1500)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("demo/containers/shared", "has no throughput of its own"),
        ("demo/containers/nowhere", "not found"),
        ("demo", "has no throughput of its own"),
    ],
)
async def test_what_has_no_throughput_of_its_own_is_refused_clearly(world, path, words):
    world.account.add("demo", "shared")
    scaler = world.scaler(path)

    with pytest.raises(TargetRefusedError, match=words):
        await scaler.current("flights", now=NOW)
    effect = await scaler.apply(action(1000, 2000), now=NOW)

    assert (effect.outcome, effect.reached) == (EffectOutcome.REFUSED, None)
    assert words in effect.detail


async def test_below_the_floor_the_floor_is_asked_for(world):
    offer, scaler = world.container(throughput=5000)
    offer.highest = 200_000

    effect = await scaler.apply(action(5000, 400), now=NOW)

    assert (effect.outcome, effect.reached) == (EffectOutcome.LIMITED, 2000)
    assert "no less than 2000" in effect.detail


async def test_a_floor_above_what_there_is_turns_no_decrease_into_an_increase(world):
    offer, scaler = world.container()
    offer.highest = 200_000  # as if the data had grown since

    effect = await scaler.apply(action(1000, 500), now=NOW)

    assert (effect.outcome, world.puts()) == (EffectOutcome.REFUSED, [])
    assert "no less than 2000" in effect.detail


async def test_nothing_above_the_instant_maximum_is_asked_for_unless_splits_are_allowed(world):
    offer, scaler = world.container(split_delay=3600.0)

    guarded = await scaler.apply(action(1000, 24_000), now=NOW)
    at_the_limit = await scaler.apply(action(10_000, 24_000), now=NOW)

    assert (guarded.outcome, guarded.reached) == (EffectOutcome.LIMITED, 10_000)
    assert (at_the_limit.outcome, at_the_limit.reached) == (EffectOutcome.REFUSED, 10_000)
    assert "allow_split" in guarded.detail
    assert offer.pending is None
    assert world.puts() == [10_000]


async def test_a_split_is_accepted_and_pending_until_the_partitions_are_there(world):
    offer = world.account.add("demo", "flights", throughput=1000, split_delay=3600.0)
    scaler = world.scaler(allow_split=True)

    effect = await scaler.apply(action(1000, 24_000), now=NOW)
    during = await scaler.current("flights", now=NOW)
    again = await scaler.apply(action(1000, 24_000), now=NOW)
    offer.advance(offer.pending[1])
    after = await scaler.current("flights", now=NOW)

    assert (effect.outcome, effect.reached) == (EffectOutcome.ACCEPTED, 1000)
    assert (during.current, during.pending) == (1000, True)
    assert again.outcome is EffectOutcome.ACCEPTED
    assert (after.current, after.pending, after.ceiling) == (24_000, False, 1_000_000)
    assert world.puts() == [24_000]


async def test_a_writer_at_the_same_time_is_recognised_when_reading_back(world):
    offer, scaler = world.container()
    replace = offer.replace

    def replaced_at_once(level, now):
        replace(level, now)
        replace(msgspec.structs.replace(level, ru=2500), now)

    offer.replace = replaced_at_once
    effect = await scaler.apply(action(1000, 6000), now=NOW)

    assert (effect.outcome, effect.reached) == (EffectOutcome.EXTERNAL_CHANGE, 2500)
    assert "asked for 6000 RU/s, found 2500" in effect.detail


@pytest.mark.parametrize(("status", "code"), [(423, "Locked"), (429, "TooManyRequests"), (409, "Conflict")])
async def test_a_busy_or_throttling_platform_is_waited_for_as_told(world, status, code):
    _, scaler = world.container()
    world.fault("put_throughput", "error", status=status, condition=code, retry_after=2)

    effect = await scaler.apply(action(1000, 6000), now=NOW)

    assert (effect.outcome, world.slept) == (EffectOutcome.APPLIED, [2.0])


async def test_a_wait_beyond_the_life_of_the_action_is_a_refusal(world):
    _, scaler = world.container(throughput=6000)
    world.fault("put_throughput", "error", status=429, condition="TooManyRequests", retry_after=14_000)

    effect = await scaler.apply(action(6000, 1000), now=NOW)

    assert (effect.outcome, effect.reached) == (EffectOutcome.REFUSED, 6000)
    assert "not before 14000 s" in effect.detail


async def test_a_refusal_that_names_the_range_is_asked_again_within_it(world):
    offer, scaler = world.container(throughput=5000)
    told = offer.minimum
    offer.minimum = lambda *, autoscale=None: told() if autoscale is None else 1200  # more than it tells

    effect = await scaler.apply(action(5000, 400), now=NOW)

    assert (effect.outcome, effect.reached) == (EffectOutcome.LIMITED, 1200)
    assert "accepts 1200 to 1000000" in effect.detail
    assert world.puts() == [400, 1200]


async def test_an_operation_that_fails_is_left_to_a_later_delivery(world):
    _, scaler = world.container()
    world.fault("put_throughput", "failed_operation")

    with pytest.raises(ScalerError, match="nothing was changed"):
        await scaler.apply(action(1000, 6000), now=NOW)


async def test_the_scalers_of_an_account_together_keep_to_25_updates_in_5_minutes(world):
    world.account.add("demo", "flights", throughput=1000)
    world.account.add("demo", "airports", throughput=1000)
    scalers = [world.scaler(), world.scaler("demo/containers/airports")]
    for index in range(24):
        here, there = (1000, 2000) if index // 2 % 2 == 0 else (2000, 1000)
        await scalers[index % 2].apply(action(here, there), now=NOW)
    await scalers[0].apply(action(1000, 2000), now=NOW)

    with pytest.raises(
        ScalerError, match=r"budget of cosmos_updates for \w+ \(25 calls in 300 s\) is used up"
    ) as raised:
        await scalers[1].apply(action(1000, 2000), now=NOW)

    assert raised.value.retry_after == 300
    assert len(world.puts()) == 25
    world.clock.now += 300
    assert (await scalers[1].apply(action(1000, 2000), now=NOW)).outcome is EffectOutcome.APPLIED


async def test_a_missing_role_is_named(world):
    _, scaler = world.container()
    world.fault("put_throughput", "error", status=403, condition="AuthorizationFailed")

    effect = await scaler.apply(action(1000, 6000), now=NOW)

    assert effect.outcome is EffectOutcome.REFUSED
    assert "Cosmos DB Operator" in effect.detail


async def test_the_local_resource_manager_migrates_between_manual_and_autoscale(world):
    offer, _ = world.container(throughput=2000)
    settings = world.settings()
    async with CosmosDBManagementClient(
        arm.identity_of(settings),
        SUBSCRIPTION,
        base_url=world.server.base_url,
        credential_scopes=[arm.scope(settings)],
        connection_verify=settings["TIDEMARK_CA_BUNDLE"],
        polling_interval=0.05,
    ) as client:
        path = ("rg", world.account_id.rpartition("/")[2], "demo", "flights")
        poller = await client.sql_resources.begin_migrate_sql_container_to_autoscale(*path)
        autoscale = (await poller.result()).properties.resource
        poller = await client.sql_resources.begin_migrate_sql_container_to_manual_throughput(*path)
        manual = (await poller.result()).properties.resource

    assert autoscale.autoscale_settings.max_throughput == 2000
    assert (manual.throughput, manual.autoscale_settings) == (2000, None)
    assert not offer.level.autoscale


@pytest.mark.parametrize(
    ("options", "option", "words"),
    [
        ({}, "connection", "is missing"),
        ({"connection": "c"}, "database", "is missing"),
        ({"resource_id": "/subscriptions/x"}, "resource_id", "databaseAccounts"),
        ({"resource_id": "x", "database": "d"}, "resource_id", "not both"),
    ],
)
def test_options_that_name_no_throughput_are_refused(options, option, words):
    problems = CosmosThroughputScaler.Params(**options).problems()

    assert words in problems[option]
