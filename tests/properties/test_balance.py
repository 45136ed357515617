"""Any number of instances that follow their plans end up with fair shares, soon, and never share a partition."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from consumer.leasing.balance import plan, presence_of, split
from consumer.model import Lease

INTERVAL, EXPIRY = 10.0, 30.0


class World:
    """A lease store with its clock, and instances that act on their plans one after the other."""

    def __init__(self, partitions):
        self.now = 1_000_000.0
        self.partitions = [str(number) for number in range(partitions)]
        self.leases = {}
        self.memory = {}
        self.writes = 0

    def write(self, partition, owner):
        self.writes += 1
        self.leases[partition] = Lease(partition, owner, self.now, str(self.writes))

    def plan_of(self, owner):
        return plan(
            *split(self.leases.values()),
            self.partitions,
            owner,
            self.now,
            EXPIRY,
            excess_since=self.memory.get(owner, {}),
        )

    def act(self, owner):
        self.write(presence_of(owner), owner)
        made = self.plan_of(owner)
        self.memory[owner] = made.excess_since
        for lease in (*made.claim, *made.renew):
            assert lease.token == getattr(self.leases.get(lease.partition), "token", "")
            self.write(lease.partition, owner)
        for lease in made.release:
            self.write(lease.partition, "")

    def round(self, owners):
        self.now += INTERVAL
        for owner in owners:
            self.act(owner)

    def shares(self, owners):
        holders = Counter(
            lease.owner
            for partition, lease in self.leases.items()
            if not partition.startswith("~") and self.now - lease.renewed_at <= EXPIRY
        )
        return [holders.get(owner, 0) for owner in owners]

    def balanced(self, owners):
        shares = self.shares(owners)
        return sum(shares) == len(self.partitions) and max(shares) - min(shares) <= 1


@given(partitions=st.integers(1, 40), many=st.integers(2, 12), few=st.integers(1, 12), seed=st.randoms())
@settings(deadline=None)
def test_instances_come_and_leave_in_order_and_shares_are_soon_fair(partitions, many, few, seed):
    world = World(partitions)
    world.round(["0"])
    owners = [str(number) for number in range(many)]
    seed.shuffle(owners)  # each instance has its own phase within the interval
    for _ in range(4):  # three, but for what does not divide
        world.round(owners)

    assert world.balanced(owners)

    for leaver in owners[few:]:  # each gives back what it has, as at the end of a process
        for partition, lease in list(world.leases.items()):
            if lease.owner == leaver:
                world.write(partition, "")
    for _ in range(2):
        world.round(owners[:few])

    assert world.balanced(owners[:few])


@given(seed=st.randoms())
@settings(deadline=None)
def test_from_one_instance_to_eight_and_back_to_three_takes_three_rounds(seed):
    world = World(32)
    world.round(["0"])
    owners = [str(number) for number in range(8)]
    seed.shuffle(owners)
    for _ in range(3):
        world.round(owners)

    assert world.shares(owners) == [4] * 8

    world.now += EXPIRY  # five are killed, not asked
    for _ in range(2):
        world.round(owners[:3])

    assert sorted(world.shares(owners[:3])) == [10, 11, 11]


@given(
    partitions=st.integers(1, 40),
    owners=st.integers(1, 8),
    dead=st.integers(0, 7),
    lag=st.floats(0, INTERVAL),
)
@settings(deadline=None)
def test_partitions_of_a_killed_instance_are_claimed_within_expiry_and_one_interval(
    partitions, owners, dead, lag
):
    world = World(partitions)
    names = [str(number) for number in range(owners + 1)]
    for _ in range(4):
        world.round(names)
    alive = [name for name in names if name != str(dead % len(names))]
    killed_at = world.now
    world.now += lag

    while not world.balanced(alive):
        assert world.now - killed_at <= EXPIRY + INTERVAL + lag
        world.round(alive)


@given(
    partitions=st.integers(1, 20),
    holders=st.lists(
        st.tuples(st.sampled_from(["", "a", "b", "c", "foreign"]), st.floats(0, 100)), max_size=20
    ),
    presences=st.dictionaries(st.sampled_from(["a", "b", "c"]), st.floats(0, 100)),
)
def test_on_the_same_leases_no_two_plans_claim_the_same_partition_nor_a_fresh_one(
    partitions, holders, presences
):
    now = 1000.0
    leases = [Lease(str(number), owner, now - age, "t") for number, (owner, age) in enumerate(holders)]
    said = [Lease(presence_of(owner), owner, now - age, "t") for owner, age in presences.items()]
    live = [owner for owner, age in presences.items() if age <= EXPIRY]
    ids = [str(number) for number in range(partitions)]

    claims = Counter()
    for owner in live:
        made = plan(leases, said, ids, owner, now, EXPIRY)
        claims.update(lease.partition for lease in made.claim)
        for lease in made.claim:
            assert not lease.owner or now - lease.renewed_at > EXPIRY
        ours = {lease.partition for lease in leases if lease.owner == owner}
        kept_or_given = [lease.partition for lease in (*made.renew, *made.release)]
        assert sorted(kept_or_given) == sorted(ours)

    assert max(claims.values(), default=1) == 1


@given(partitions=st.integers(1, 20), shift=st.floats(-1e6, 1e6), owners=st.integers(1, 5))
@settings(deadline=None)
def test_the_same_store_at_another_time_gives_the_same_plan(partitions, shift, owners):
    one, other = World(partitions), World(partitions)
    other.now += shift
    names = [str(number) for number in range(owners)]
    for world in (one, other):
        for _ in range(2):
            world.round(names)

    assert one.shares(names) == other.shares(names)
