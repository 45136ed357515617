"""What every CheckpointStore does. Another store: a subclass of CheckpointStoreContract with its own `place`."""

import asyncio
from contextlib import suppress

import msgspec
import pytest

from consumer.errors import FencedError, PositionError
from consumer.model import Checkpoint, Origin, Replacement
from consumer.stores.memory import MemoryCheckpointStore
from consumer.stores.sql.checkpoints import SqlCheckpointStore
from tests.support.consumer.store_places import GROUP, HUB, OnBlob, OnPostgres, OnSqlite, soon


def at(sequence_number, partition="0", *, offset=None, beyond=()):
    return Checkpoint(partition, sequence_number, offset or str(sequence_number * 64), beyond)


def position(checkpoint):
    """What a checkpoint says of the hub; who saved it, and when, are the store's to note."""
    if checkpoint is None:
        return None
    return checkpoint.partition, checkpoint.sequence_number, checkpoint.offset, checkpoint.beyond


class CheckpointStoreContract:
    SQL, BLOB = SqlCheckpointStore, "checkpoints"

    @pytest.fixture
    async def place(self):
        """Yields an empty place with two methods, and closes at the end what it gave.

        `store(hub, consumer_group)` gives a store on the place; twice with the same names, the same data.
        `await spoil(hub, consumer_group, partition)` makes what is stored for the partition unreadable.
        """
        raise NotImplementedError

    @pytest.fixture
    async def store(self, place):
        return place.store(HUB, GROUP)

    async def stored(self, store, partition="0"):
        found = (await store.load_all(deadline=soon())).get(partition)
        return found if isinstance(found, str) else position(found)

    async def test_the_first_claim_of_a_partition_has_no_checkpoint(self, store):
        claim = await store.claim("0", "a", deadline=soon())

        assert (claim.partition, claim.owner, claim.checkpoint) == ("0", "a", None)
        assert claim.epoch > 0
        assert await store.load_all(deadline=soon()) == {}

    async def test_a_checkpoint_comes_back_whole_with_the_next_claim(self, store):
        claim = await store.claim("0", "a", deadline=soon())
        saved = at(
            2**53 + 1, offset="geo:" + "x" * 120, beyond=((2**53 + 3, 2**53 + 3), (2**53 + 7, 2**53 + 90))
        )
        await store.save(claim, saved, deadline=soon())

        again = await store.claim("0", "b", deadline=soon())

        assert position(again.checkpoint) == position(saved)
        assert await self.stored(store) == position(saved)

    async def test_a_stored_checkpoint_says_who_saved_it_under_which_claim(self, store):
        claim = await store.claim("0", "a", deadline=soon())
        await store.save(claim, at(5), deadline=soon())

        found = (await store.load_all(deadline=soon()))["0"]

        assert (found.owner, found.epoch) == ("a", claim.epoch)

    async def test_every_claim_has_a_higher_epoch_whoever_makes_it(self, store):
        epochs = [(await store.claim("0", owner, deadline=soon())).epoch for owner in "aabba"]

        assert epochs == sorted(set(epochs))

    async def test_claims_at_the_same_time_get_different_epochs(self, store):
        claims = await asyncio.gather(*(store.claim("0", owner, deadline=soon()) for owner in "abcd"))

        assert len({claim.epoch for claim in claims}) == 4

    async def test_a_claim_does_not_move_the_position(self, store):
        claim = await store.claim("0", "a", deadline=soon())
        await store.save(claim, at(7, beyond=((9, 9),)), deadline=soon())
        await store.claim("0", "b", deadline=soon())

        assert await self.stored(store) == position(at(7, beyond=((9, 9),)))

    async def test_a_save_under_an_older_claim_is_refused_and_changes_nothing(self, store):
        old = await store.claim("0", "a", deadline=soon())
        new = await store.claim("0", "b", deadline=soon())
        await store.save(new, at(5), deadline=soon())

        with pytest.raises(FencedError, match="partition 0"):
            await store.save(old, at(9), deadline=soon())

        assert await self.stored(store) == position(at(5))

    async def test_an_older_claim_of_the_same_owner_is_refused_too(self, store):
        old = await store.claim("0", "a", deadline=soon())
        await store.claim("0", "a", deadline=soon())

        with pytest.raises(FencedError):
            await store.save(old, at(9), deadline=soon())

    async def test_the_first_save_after_somebody_elses_claim_is_refused(self, store):
        old = await store.claim("0", "a", deadline=soon())
        await store.save(old, at(3), deadline=soon())
        await store.claim("0", "b", deadline=soon())

        with pytest.raises(FencedError):
            await store.save(old, at(4), deadline=soon())

    async def test_a_lower_position_changes_nothing(self, store):
        claim = await store.claim("0", "a", deadline=soon())
        await store.save(claim, at(8, beyond=((10, 12),)), deadline=soon())
        await store.save(claim, at(7, beyond=((9, 20),)), deadline=soon())

        assert await self.stored(store) == position(at(8, beyond=((10, 12),)))

    async def test_the_same_position_with_more_settled_beyond_it_is_stored(self, store):
        claim = await store.claim("0", "a", deadline=soon())
        await store.save(claim, at(8, beyond=((10, 12),)), deadline=soon())
        await store.save(claim, at(8, beyond=((10, 19),)), deadline=soon())

        assert await self.stored(store) == position(at(8, beyond=((10, 19),)))

    async def test_saves_at_the_same_time_end_at_the_highest(self, store):
        claim = await store.claim("0", "a", deadline=soon())
        await asyncio.gather(*(store.save(claim, at(n), deadline=soon()) for n in (3, 9, 1, 6)))

        assert await self.stored(store) == position(at(9))

    async def test_saving_again_is_safe(self, store):
        claim = await store.claim("0", "a", deadline=soon())
        for _ in range(3):
            await store.save(claim, at(4), deadline=soon())

        assert await self.stored(store) == position(at(4))

    async def test_partitions_are_independent(self, store):
        first, second = [await store.claim(name, "a", deadline=soon()) for name in ("1", "10")]
        await store.save(first, at(5, "1"), deadline=soon())
        await store.save(second, at(6, "10"), deadline=soon())
        await store.claim("10", "b", deadline=soon())
        await store.save(first, at(7, "1"), deadline=soon())

        everything = await store.load_all(deadline=soon())

        assert {name: position(found) for name, found in everything.items()} == {
            "1": position(at(7, "1")),
            "10": position(at(6, "10")),
        }

    @pytest.mark.parametrize("names", [("orders2", GROUP), (HUB, "others"), ("order", "s" + GROUP)])
    async def test_hubs_and_consumer_groups_are_apart(self, place, store, names):
        other = place.store(*names)
        claim = await store.claim("0", "a", deadline=soon())
        await store.save(claim, at(5), deadline=soon())

        assert (await other.claim("0", "b", deadline=soon())).checkpoint is None
        assert await other.load_all(deadline=soon()) == {}
        await store.save(claim, at(6), deadline=soon())  # and the other's claim fences nobody here

    async def test_another_store_on_the_same_place_sees_the_same(self, place, store):
        claim = await store.claim("0", "a", deadline=soon())
        await store.save(claim, at(5), deadline=soon())
        second = place.store(HUB, GROUP)

        assert await self.stored(second) == position(at(5))
        assert (await second.claim("0", "b", deadline=soon())).epoch > claim.epoch

    async def test_put_moves_the_position_backwards_and_fences_the_owner(self, store):
        claim = await store.claim("0", "a", deadline=soon())
        await store.save(claim, at(50, beyond=((52, 60),)), deadline=soon())

        await store.put(at(10), deadline=soon())

        with pytest.raises(FencedError):
            await store.save(claim, at(51), deadline=soon())
        again = await store.claim("0", "a", deadline=soon())
        assert position(again.checkpoint) == position(at(10))
        await store.save(again, at(11), deadline=soon())
        assert await self.stored(store) == position(at(11))

    async def test_put_works_where_nobody_ever_claimed(self, store):
        await store.put(at(10), deadline=soon())

        assert await self.stored(store) == position(at(10))
        assert position((await store.claim("0", "a", deadline=soon())).checkpoint) == position(at(10))

    async def test_an_unreadable_checkpoint_is_named_and_does_not_hide_the_others(self, place, store):
        for name in ("0", "1"):
            claim = await store.claim(name, "a", deadline=soon())
            await store.save(claim, at(5, name), deadline=soon())
        await place.spoil(HUB, GROUP, "0")

        everything = await store.load_all(deadline=soon())

        assert isinstance(everything["0"], str)
        assert everything["0"]
        assert position(everything["1"]) == position(at(5, "1"))
        with pytest.raises(PositionError, match="partition 0"):
            await store.claim("0", "b", deadline=soon())

    async def test_put_replaces_an_unreadable_checkpoint(self, place, store):
        claim = await store.claim("0", "a", deadline=soon())
        await store.save(claim, at(5), deadline=soon())
        await place.spoil(HUB, GROUP, "0")

        await store.put(at(3), deadline=soon())

        assert position((await store.claim("0", "b", deadline=soon())).checkpoint) == position(at(3))
        with pytest.raises(FencedError):
            await store.save(claim, at(6), deadline=soon())

    async def test_a_claim_stores_what_was_decided_with_it_unless_somebody_was_faster(self, place, store):
        decided = msgspec.structs.replace(at(-1), origin=Origin(1_795_000_000_123, 4, "", 7))
        first = await store.claim("0", "a", deadline=soon(), replacement=Replacement(None, decided))
        late = await store.claim("0", "b", deadline=soon(), replacement=Replacement(None, at(50)))

        assert (first.replaced, first.origin) == (True, decided.origin)
        assert (late.replaced, late.origin) == (False, decided.origin)
        found = (await store.load_all(deadline=soon()))["0"]
        again = msgspec.structs.replace(at(9), origin=Origin(5, 1, "5"))
        third = await store.claim("0", "c", deadline=soon(), replacement=Replacement(found, again))
        assert (third.replaced, position(third.checkpoint), third.origin) == (
            True,
            position(at(9)),
            again.origin,
        )
        await store.save(third, msgspec.structs.replace(at(12), origin=third.origin), deadline=soon())
        stored = (await place.store(HUB, GROUP).load_all(deadline=soon()))["0"]
        assert (position(stored), stored.origin) == (position(at(12)), again.origin)

    async def test_a_claim_replaces_what_cannot_be_read_where_that_was_decided(self, place, store):
        claim = await store.claim("0", "a", deadline=soon())
        await store.save(claim, at(5), deadline=soon())
        await place.spoil(HUB, GROUP, "0")
        why = (await store.load_all(deadline=soon()))["0"]

        again = await store.claim("0", "b", deadline=soon(), replacement=Replacement(why, at(3)))

        assert (again.replaced, position(again.checkpoint)) == (True, position(at(3)))

    @pytest.mark.parametrize("who_is_first", ["the old owner", "the new owner"])
    async def test_a_checkpoint_that_was_deleted_is_fenced_again_by_the_next_claim(
        self, place, store, who_is_first
    ):
        """Epochs may begin anew: whose claim it is tells two of one epoch apart. No position is lower than what is settled."""
        old = await store.claim("0", "a", deadline=soon())
        await store.save(old, at(20), deadline=soon())
        await place.delete(HUB, GROUP, "0")
        if who_is_first == "the old owner":
            with suppress(FencedError):  # it is written anew by blobs; a table refuses it
                await store.save(old, at(21), deadline=soon())
        new = await place.store(HUB, GROUP).claim("0", "b", deadline=soon())
        with pytest.raises(FencedError):
            await store.save(old, at(22), deadline=soon())
        later = msgspec.structs.replace(at(30), origin=new.origin)
        await place.store(HUB, GROUP).save(new, later, deadline=soon())

        assert await self.stored(store) == position(at(30))

    async def test_of_all_hubs_of_a_name_the_first_one_asked_for_has_plain_keys(self, place, store):
        answers = await asyncio.gather(
            *(store.hub_with_plain_keys(hub, deadline=soon()) for hub in (7, 8, 9, 7))
        )

        assert len(set(answers)) == 1
        assert await place.store(HUB, "another group").hub_with_plain_keys(10, deadline=soon()) in {
            *answers
        } or (isinstance(store, MemoryCheckpointStore))


class MemoryPlace:
    def __init__(self):
        self.stores = {}

    def store(self, hub, consumer_group):
        return self.stores.setdefault((hub, consumer_group), MemoryCheckpointStore())

    async def spoil(self, hub, consumer_group, partition):
        self.stores[hub, consumer_group].unreadable[partition] = "spoilt by a test"

    async def delete(self, hub, consumer_group, partition):
        self.stores[hub, consumer_group]._checkpoints.pop(partition)


class TestMemory(CheckpointStoreContract):
    @pytest.fixture
    async def place(self):
        return MemoryPlace()


class TestSqlite(OnSqlite, CheckpointStoreContract):
    pass


@pytest.mark.wire
class TestPostgres(OnPostgres, CheckpointStoreContract):
    pass


@pytest.mark.wire
class TestBlob(OnBlob, CheckpointStoreContract):
    pass
