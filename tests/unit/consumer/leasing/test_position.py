"""Where receiving begins: every row of the decision, and what is said about it."""

import pytest
from msgspec import structs

from consumer.errors import PositionError
from consumer.leasing.claiming import claim_partition
from consumer.leasing.start_position import Start, start
from consumer.model import Checkpoint, Origin, PartitionState
from consumer.options import OnDistrust, OnGap, PositionPolicy
from consumer.stores.memory import MemoryCheckpointStore
from tidemark.foundation.errors import SettingsError

DEFAULT = PositionPolicy()


def state(begin=0, last=99, *, last_offset="o99", empty=False):
    return PartitionState("3", begin, last, last_offset, 1000.0, empty)


def checkpoint(at, *, beyond=(), offset="", saved_at=0.0):
    return Checkpoint("3", at, offset, beyond=beyond, saved_at=saved_at)


def where(found):
    """Everything but the note."""
    return found.sequence_number, found.time, found.inclusive, found.gap, found.reset


EARLIEST = (None, None, False, 0, False)
NEVER_USED, ALL_EXPIRED = state(0, -1, empty=True), state(0, 99, empty=True)
LATEST, NO_GAPS = PositionPolicy(start="latest"), PositionPolicy(on_retention_gap=OnGap.FAIL)
FOREIGN_EARLIEST, FOREIGN_LATEST, UNREADABLE_EARLIEST = (
    PositionPolicy(on_foreign_checkpoint=OnDistrust.EARLIEST),
    PositionPolicy(on_foreign_checkpoint=OnDistrust.LATEST),
    PositionPolicy(on_unreadable_checkpoint=OnDistrust.EARLIEST),
)

TABLE = [
    ("no checkpoint", None, state(), DEFAULT, EARLIEST),
    ("no checkpoint, nothing ever sent", None, NEVER_USED, DEFAULT, EARLIEST),
    ("no checkpoint, told latest", None, state(), LATEST, (99, None, False, 0, False)),
    ("told latest, nothing ever sent", None, NEVER_USED, LATEST, EARLIEST),
    ("told a time", None, state(), PositionPolicy(start=500.0), (None, 500.0, True, 0, False)),
    ("in the middle", checkpoint(41), state(), DEFAULT, (41, None, False, 0, False)),
    ("at the end", checkpoint(99, offset="o99"), state(), DEFAULT, (99, None, False, 0, False)),
    ("nothing settled yet", checkpoint(-1), state(7, 99), DEFAULT, EARLIEST),
    ("only runs beyond", checkpoint(-1, beyond=((2, 3),)), state(0, 99), DEFAULT, EARLIEST),
    ("retention just reached it", checkpoint(41), state(42, 99), DEFAULT, (41, None, False, 0, False)),
    ("retention took one", checkpoint(41), state(43, 99), DEFAULT, (43, None, True, 1, False)),
    ("retention took ten", checkpoint(41), state(52, 99), DEFAULT, (52, None, True, 10, False)),
    ("four of ten settled", checkpoint(41, beyond=((43, 44), (50, 60))), state(52), DEFAULT, (52, None, True, 6, False)),
    ("settled all that was taken", checkpoint(41, beyond=((42, 60),)), state(52), NO_GAPS, (52, None, True, 0, False)),
    ("retention took all", checkpoint(41), ALL_EXPIRED, DEFAULT, (100, None, True, 58, False)),
    ("all settled, all expired", checkpoint(99), ALL_EXPIRED, DEFAULT, (99, None, False, 0, False)),
    ("first runs beyond expired", checkpoint(-1, beyond=((0, 0),)), state(3, 9), DEFAULT, (3, None, True, 2, False)),
    ("ahead of the hub, told earliest", checkpoint(100), state(), FOREIGN_EARLIEST, (None, None, False, 0, True)),
    ("ahead of the hub, told latest", checkpoint(100), state(), FOREIGN_LATEST, (99, None, False, 0, True)),
    ("unreadable, told earliest", "no number", state(), UNREADABLE_EARLIEST, (None, None, False, 0, True)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("stored", "partition", "policy", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_receiving_begins_where_the_table_says(stored, partition, policy, expected):
    found = start(stored, partition, policy)

    assert where(found) == expected
    assert found.note


def test_the_default_is_the_earliest_event_and_never_the_latest():
    assert start(None, state(), PositionPolicy()) == Start(note="no checkpoint: from the earliest event")
    assert start(checkpoint(41, offset="4711"), state(), DEFAULT).offset == "4711"


@pytest.mark.parametrize(
    ("stored", "told"),
    [
        (checkpoint(-1, beyond=((2, 3),)), "nothing settled below event 2: from the earliest event"),
        (Checkpoint("3", -1, "", origin=Origin(number=0)), "nothing settled yet: from the earliest event"),
    ],
)
def test_a_start_at_the_first_event_says_what_is_settled(stored, told):
    assert start(stored, state(0, 99), DEFAULT).note == told


@pytest.mark.parametrize(
    ("stored", "partition", "policy", "created", "said"),
    [
        ("no number", state(), DEFAULT, None, "cannot be read: no number.*Set CONSUMER_ON_UNREADABLE_CHECKPOINT"),
        (checkpoint(100), state(), DEFAULT, None, "to 100, the hub's last event is 99.*Set CONSUMER_ON_FOREIGN_CHECKPOINT"),
        (checkpoint(5), NEVER_USED, DEFAULT, None, "reaches to 5, the hub's last event is -1"),
        (checkpoint(5, beyond=((7, 100),)), state(), DEFAULT, None, "reaches to 100"),
        (checkpoint(99, offset="other"), state(), DEFAULT, None, "offset 'o99', the checkpoint says 'other'"),
        (checkpoint(5, saved_at=1000.0), state(), DEFAULT, 1301.0, "created 301 s after the checkpoint"),
        (checkpoint(41), state(52), NO_GAPS, None, "took 10 unsettled events.*Set CONSUMER_ON_RETENTION_GAP"),
    ],
)  # fmt: skip
def test_a_position_that_cannot_be_trusted_is_refused_with_the_setting_that_decides(
    stored, partition, policy, created, said
):
    with pytest.raises(PositionError, match=said):
        start(stored, partition, policy, hub_created_at=created)


def test_a_hub_created_within_the_tolerance_of_clocks_is_no_reason_for_distrust():
    found = start(checkpoint(5, saved_at=1000.0), state(), DEFAULT, hub_created_at=1300.0)

    assert found.sequence_number == 5


@pytest.mark.parametrize("wrong", ["newest", "", float("nan"), float("inf")])
def test_a_start_that_is_none_is_refused(wrong):
    with pytest.raises(SettingsError, match="earliest"):
        PositionPolicy(start=wrong)


@pytest.mark.parametrize(
    ("told", "stored"),
    [
        (1000.5, (99, None)),  # behind the last event, at 1000.0: nothing that is there is wanted
        (1000.0, (-1, 1000.0)),
        (4_000_000_000.0, (-1, 4_000_000_000.0)),  # to come: what comes before it is left out
    ],
)
async def test_a_partition_without_an_event_since_the_time_begins_behind_its_last_one(told, stored):
    """With -1 as its position the lag would be all that it has, for as long as nothing comes: an autoscaler would go by it."""

    class Hub:
        created_at = 500.0

        async def partitions(self):
            return ["3"]

        async def state(self, partition):
            return state()

    claim, begin = await claim_partition(
        MemoryCheckpointStore(), Hub(), "3", "me", PositionPolicy(start=told)
    )

    assert (claim.checkpoint.sequence_number, claim.checkpoint.origin.time) == stored
    assert (begin.sequence_number, begin.time) == ((99, None) if stored[0] == 99 else (None, told))


async def test_a_claim_notes_and_logs_at_which_position_the_routes_were_found_changed(caplog):
    caplog.set_level("INFO")

    class Hub:
        created_at = 1_000.0

        async def partitions(self):
            return ["3"]

        async def state(self, partition):
            return state()

    store = MemoryCheckpointStore()

    async def claimed(routes, then=None):
        policy = PositionPolicy(routes=routes)
        claim, _ = await claim_partition(store, Hub(), "3", "me", policy)
        if then is not None:
            moved = structs.replace(claim.checkpoint, sequence_number=then)
            await store.save(claim, moved, deadline=0.0)
        return claim.checkpoint.origin.routes, claim.checkpoint.origin.rerouted

    assert await claimed("") == ("", None)  # without a file, or of an older version
    assert await claimed("a", then=41) == ("a", None)
    assert await claimed("a") == ("a", None)
    assert await claimed("b") == ("b", 41)
    assert await claimed("b", then=50) == ("b", 41)  # a start after a kill knows it too
    assert await claimed("") == ("b", 41)
    assert await claimed("a") == ("a", 50)
    said = [line for line in caplog.messages if "routes have changed" in line]
    assert [line.partition(" after ")[2] for line in said] == [
        f"event {number} of partition 3, and nothing before it" for number in (41, 50)
    ]
