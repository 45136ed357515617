"""What every LeaseStore does. Another store: a subclass of LeaseStoreContract with its own `place`."""

import asyncio

import pytest

from consumer.model import Lease
from consumer.stores.memory import MemoryLeaseStore
from consumer.stores.sql.checkpoints import SqlLeaseStore
from tests.support.consumer.store_places import GROUP, HUB, OnBlob, OnPostgres, OnSqlite, soon
from tests.support.virtual_time import Clock


def nobody(partition="0"):
    """A lease nobody ever took."""
    return Lease(partition, "", 0.0, "")


class LeaseStoreContract:
    SQL, BLOB = SqlLeaseStore, "leases"

    @pytest.fixture
    async def place(self):
        """Yields an empty place, and closes at the end what it gave.

        `store(hub, consumer_group)` gives a store on the place; twice with the same names, the same data.
        """
        raise NotImplementedError

    @pytest.fixture
    async def store(self, place):
        return place.store(HUB, GROUP)

    async def listed(self, store):
        leases, _ = await store.list(deadline=soon())
        return {lease.partition: lease for lease in leases}

    async def test_at_first_there_is_no_lease(self, store):
        leases, now = await store.list(deadline=soon())

        assert list(leases) == []
        assert now > 0

    async def test_a_lease_nobody_has_is_taken_and_listed(self, store):
        taken = await store.claim(nobody(), "a", deadline=soon())
        leases, now = await store.list(deadline=soon())

        assert (taken.partition, taken.owner) == ("0", "a")
        assert taken.token
        assert [(lease.partition, lease.owner, lease.token) for lease in leases] == [("0", "a", taken.token)]
        assert now - 60 < leases[0].renewed_at <= now + 1  # blob times are whole seconds

    async def test_who_comes_second_gets_nothing(self, store):
        await store.claim(nobody(), "a", deadline=soon())

        assert await store.claim(nobody(), "b", deadline=soon()) is None
        assert (await self.listed(store))["0"].owner == "a"

    async def test_of_many_at_the_same_time_one_wins(self, store):
        outcomes = await asyncio.gather(*(store.claim(nobody(), owner, deadline=soon()) for owner in "abcd"))

        won = [lease.owner for lease in outcomes if lease]
        assert len(won) == 1
        assert (await self.listed(store))["0"].owner == won[0]

    async def test_a_renewal_makes_the_old_token_useless(self, store):
        first = await store.claim(nobody(), "a", deadline=soon())
        second = await store.claim(first, "a", deadline=soon())

        assert second.token != first.token
        assert second.renewed_at >= first.renewed_at
        assert await store.claim(first, "b", deadline=soon()) is None
        assert (await self.listed(store))["0"].token == second.token

    async def test_a_lease_is_stolen_by_its_token_and_the_loser_learns_it_when_it_renews(self, store):
        ours = await store.claim(nobody(), "a", deadline=soon())
        seen = (await self.listed(store))["0"]

        theirs = await store.claim(seen, "b", deadline=soon())

        assert theirs.owner == "b"
        assert await store.claim(ours, "a", deadline=soon()) is None
        assert (await self.listed(store))["0"].owner == "b"

    async def test_of_many_who_steal_at_the_same_time_one_wins(self, store):
        await store.claim(nobody(), "a", deadline=soon())
        seen = (await self.listed(store))["0"]

        outcomes = await asyncio.gather(*(store.claim(seen, owner, deadline=soon()) for owner in "bcde"))

        assert len([lease for lease in outcomes if lease]) == 1

    async def test_a_released_lease_is_nobodys_and_can_be_taken(self, store):
        ours = await store.claim(nobody(), "a", deadline=soon())
        await store.release(ours, deadline=soon())

        left = (await self.listed(store)).get("0", nobody())
        assert left.owner == ""
        assert (await store.claim(left, "b", deadline=soon())).owner == "b"

    async def test_a_released_lease_is_not_renewed_by_its_old_token(self, store):
        ours = await store.claim(nobody(), "a", deadline=soon())
        await store.release(ours, deadline=soon())

        assert await store.claim(ours, "a", deadline=soon()) is None

    async def test_a_lease_that_was_lost_cannot_be_released(self, store):
        ours = await store.claim(nobody(), "a", deadline=soon())
        await store.claim(ours, "b", deadline=soon())

        await store.release(ours, deadline=soon())
        await store.release(ours, deadline=soon())

        assert (await self.listed(store))["0"].owner == "b"

    async def test_a_lease_that_never_was_can_be_released(self, store):
        await store.release(nobody(), deadline=soon())

        assert (await self.listed(store)).get("0", nobody()).owner == ""

    async def test_partitions_are_independent(self, store):
        for partition, owner in (("1", "a"), ("10", "b"), ("2", "a")):
            await store.claim(nobody(partition), owner, deadline=soon())

        assert {name: lease.owner for name, lease in (await self.listed(store)).items()} == {
            "1": "a",
            "10": "b",
            "2": "a",
        }

    @pytest.mark.parametrize("names", [("orders2", GROUP), (HUB, "others"), ("order", "s" + GROUP)])
    async def test_hubs_and_consumer_groups_are_apart(self, place, store, names):
        other = place.store(*names)
        await store.claim(nobody(), "a", deadline=soon())

        assert await self.listed(other) == {}
        assert (await other.claim(nobody(), "b", deadline=soon())).owner == "b"
        assert (await self.listed(store))["0"].owner == "a"

    async def test_another_store_on_the_same_place_sees_the_same(self, place, store):
        ours = await store.claim(nobody(), "a", deadline=soon())
        second = place.store(HUB, GROUP)

        assert (await self.listed(second))["0"].token == ours.token
        assert (await second.claim(ours, "a", deadline=soon())).owner == "a"

    async def test_a_presence_is_a_lease_until_it_is_released_and_then_nothing(self, store):
        await store.claim(nobody(), "a", deadline=soon())
        first = await store.claim(nobody("~host~1~ab"), "host~1~ab", deadline=soon())
        renewed = await store.claim(first, "host~1~ab", deadline=soon())

        assert (await self.listed(store))["~host~1~ab"] == renewed

        await store.release(first, deadline=soon())

        assert (await self.listed(store))["~host~1~ab"] == renewed, "no longer what was to be released"

        await store.release(renewed, deadline=soon())

        assert list(await self.listed(store)) == ["0"]
        assert await store.claim(nobody("~host~1~ab"), "host~1~ab", deadline=soon())


class MemoryPlace:
    def __init__(self):
        self.stores = {}
        self.clock = Clock(1_795_000_000.0)

    def store(self, hub, consumer_group):
        return self.stores.setdefault((hub, consumer_group), MemoryLeaseStore(clock=self.clock))


class TestMemory(LeaseStoreContract):
    @pytest.fixture
    async def place(self):
        return MemoryPlace()

    async def test_times_are_those_of_the_stores_clock(self, place, store):
        ours = await store.claim(nobody(), "a", deadline=soon())
        place.clock.now += 90
        leases, now = await store.list(deadline=soon())

        assert (ours.renewed_at, leases[0].renewed_at, now) == (
            place.clock.now - 90,
            place.clock.now - 90,
            place.clock.now,
        )


class TestSqlite(OnSqlite, LeaseStoreContract):
    pass


@pytest.mark.wire
class TestPostgres(OnPostgres, LeaseStoreContract):
    pass


@pytest.mark.wire
class TestBlob(OnBlob, LeaseStoreContract):
    pass
