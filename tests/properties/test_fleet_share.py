"""The rate of a fleet is never exceeded, whoever knows what of a hub that grows."""

from hypothesis import given
from hypothesis import strategies as st

from consumer.leasing.fleet_share import SETTLED_AFTER, FleetShare
from tests.support.examples import examples

WHOLE = 1_000.0


class Instance:
    """Asks the hub at its own times: every minute, a late answer comes half a minute after that."""

    def __init__(self):
        self.share = FleetShare()
        self.receivable = []
        self.owned = set()
        self.looks_at = None

    def look(self, world, now):
        first = not self.share.partitions
        running = any(other.owned for other in world.instances)
        known = world.partitions if first and not running else world.leased
        self.receivable = self.share.receivable(sorted(world.partitions), now, known_to_all=known)
        self.looks_at = now + world.draw(st.floats(60.0, 90.0))

    def rate(self):
        return self.share.rate(WHOLE, len(self.owned)) if self.owned else 0.0


class World:
    def __init__(self, draw):
        self.draw = draw
        self.partitions = {str(n) for n in range(draw(st.integers(1, 8)))}
        self.leased = set()
        self.instances = []

    def start(self, now):
        self.instances.append(Instance())
        self.instances[-1].look(self, now)

    def grow(self, _now):
        self.partitions |= {str(len(self.partitions) + n) for n in range(self.draw(st.integers(1, 8)))}

    def stop(self, _now):
        if len(self.instances) > 1:
            self.instances.remove(self.draw(st.sampled_from(self.instances)))

    def claim(self, _now):
        """A partition goes to somebody who may receive it, from whomever has it."""
        if not self.instances:
            return
        taker = self.draw(st.sampled_from(self.instances))
        for partition in taker.receivable if self.draw(st.booleans()) else taker.receivable[-1:]:
            for instance in self.instances:
                instance.owned.discard(partition)
            taker.owned.add(partition)
            self.leased.add(partition)

    def total(self):
        return sum(instance.rate() for instance in self.instances)


@examples(100)
@given(st.data())
def test_the_shares_never_add_up_to_more_than_the_whole(data):
    world, now = World(data.draw), 0.0
    world.start(now)
    world.claim(now)
    steps = [world.start, world.grow, world.stop, world.claim, world.claim, world.claim]
    for _ in range(data.draw(st.integers(1, 25))):
        now += data.draw(st.sampled_from([0.0, 1.0, 10.0, 30.0, 60.0, 120.0]))
        for instance in world.instances:
            if instance.looks_at <= now:
                instance.look(world, now)
        data.draw(st.sampled_from(steps))(now)

        assert world.total() <= WHOLE * (1 + 1e-9), [
            (instance.share.partitions, instance.owned) for instance in world.instances
        ]


def test_when_everybody_knows_them_the_new_partitions_get_their_share():
    share = FleetShare()
    assert share.receivable(["0", "1"], 0.0, known_to_all=["0", "1"]) == ["0", "1"]
    assert share.receivable(["0", "1", "2", "3"], 60.0) == ["0", "1"]
    assert share.rate(WHOLE, 2) == 500.0

    assert share.receivable(["0", "1", "2", "3"], 60.0 + SETTLED_AFTER) == ["0", "1", "2", "3"]
    assert share.rate(WHOLE, 4) == WHOLE
