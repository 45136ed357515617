"""The next start: a consumer that ended in some way, in a world that changed meanwhile. One row is one case."""

import asyncio
from types import SimpleNamespace

import pytest
from msgspec import structs

from consumer.cli.checkpoints import NewPosition, _of_hub, _put_one, _targets
from consumer.errors import PositionError
from consumer.leasing import claiming
from consumer.options import OnDistrust, OnGap
from tests.support.consumer.next_starts import Receiver, Story, Trigger
from tests.support.virtual_time import all_in_virtual_time
from tidemark.foundation.errors import UnavailableError

ENDS = (
    "stopped in order",
    "killed",
    "stopped before anything was settled",
    "killed before anything was settled",
)
EARLIEST = {"on_foreign_checkpoint": OnDistrust.EARLIEST}


async def first_run(story, how, **policy):
    """Ten events are there before a start, ten come while it runs, ten when it has ended in one of ENDS."""
    story.send(10)
    first = story.start(**policy)
    story.sink.is_busy = "before anything" in how
    await first.claimed_all()
    story.send(10)
    await (first.idle() if not story.sink.is_busy else asyncio.sleep(5.0))
    await (first.kill() if "killed" in how else first.stop())
    story.sink.is_busy = False
    story.send(10)


CHANGES = {
    "nothing": lambda story: None,
    "the clock went back a day": lambda story: setattr(story, "skew", -86_400.0),
    "the clock went on a year": lambda story: setattr(story, "skew", 3.2e7),
    "a partition was added": lambda story: (story.hub.add_partition(), story.send(5)),
    "retention passed": lambda story: [story.hub.expire(partition, 15) for partition in story.hub.logs],
}


@pytest.mark.parametrize("start", ["earliest", "latest", "a time"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("how", ENDS)
async def test_the_same_hub_is_gone_on_with_from_where_the_first_start_said(how, change, start):
    story = Story()
    policy = {"start": story.service_time() + 0.001 if start == "a time" else start}
    if start == "a time":
        story.send(10)  # too early for it
        await asyncio.sleep(1.0)
    await first_run(story, how, **policy)
    CHANGES[change](story)
    # what the settings say by then decides nothing any more
    await story.run(start="latest" if start != "latest" else "earliest")

    due = story.names({"earliest": 0, "latest": 10, "a time": 10}[start])
    if change == "a partition was added":
        due |= {name for name in story.names() if "/2/" in name}
    assert due <= story.written()
    early = story.names() - due
    assert not early & story.written()
    most = 2 if how == "killed" else 1
    assert max(story.sink.writes.values()) <= most
    story.check_old()


@pytest.mark.parametrize("count", [3, 40])
@pytest.mark.parametrize("how", ENDS)
async def test_a_hub_created_anew_is_refused_for_ever_and_read_whole_once_the_operator_says_so(how, count):
    story = Story()
    await first_run(story, how)
    old = story.written()
    await story.recreate()
    for _ in range(3):  # the platform starts it again and again, and the numbers pass the old ones
        story.send(count)
        said = await story.start().refused()
        assert "CONSUMER_ON_FOREIGN_CHECKPOINT" in said
    assert story.written() == old

    told = story.start(**EARLIEST)
    await told.idle()
    await told.kill()
    story.send(5)
    await story.run()  # without the setting: the hub is known by now

    assert story.names() | old <= story.written()
    story.check_old()


@pytest.mark.parametrize("where", [NewPosition(-1), NewPosition(4), NewPosition()])
async def test_a_hub_created_anew_is_read_from_where_checkpoints_set_puts_it(where):
    story = Story()
    await first_run(story, "stopped in order")
    old = story.written()
    await story.recreate()
    story.send(10)
    assert "tidemark checkpoints set" in await story.start().refused()
    store, receiver = story.namespaces["one"][0], Receiver(story)
    stored = await store.load_all(deadline=0)
    states = await receiver.states()
    for target in await _targets(receiver, (), where, stored, states, None):
        await _put_one(store, _of_hub(receiver, target, stored, states), stored)
    story.send(10)
    await story.run()

    settled = 9 if where.sequence_number is None else where.sequence_number
    assert story.written() == story.names(settled + 1) | old
    story.check_old()


@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize("how", ENDS)
async def test_a_checkpoint_that_was_deleted_costs_repetition_and_no_event(how, start, monkeypatch):
    story = Story()
    monkeypatch.setattr(claiming, "time", SimpleNamespace(time=story.clock))
    await first_run(story, how, start=start)
    await asyncio.sleep(60.0)
    story.delete("1")
    story.send(5)
    await story.run(start=start)

    due = story.names({"earliest": 0, "latest": 10}[start])
    assert due <= story.written()
    if start == "latest":
        assert not (story.names() - due) & story.written()
    story.check_old()


async def test_where_nobody_knows_since_when_others_were_claimed_a_partition_without_a_checkpoint_is_read_whole():
    story = Story()
    await first_run(story, "stopped in order", start="latest")
    story.forget_origins()  # an older version saved them
    story.delete("1")
    await story.run(start="latest")

    assert {name for name in story.names() if "/1/" in name} <= story.written()
    assert story.names(10) <= story.written()


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_a_partition_that_was_never_claimed_loses_nothing_that_came_after_the_first_start(
    start, monkeypatch
):
    story = Story()
    monkeypatch.setattr(claiming, "time", SimpleNamespace(time=story.clock))
    await first_run(story, "killed before anything was settled", start=start)
    story.delete("1")  # as if the process had died between the two claims
    story.send(5)
    await story.run(start=start)

    assert story.names({"earliest": 0, "latest": 10}[start]) <= story.written()


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_all_checkpoints_and_their_note_deleted_are_a_first_start(start):
    """What guarantees.md says: with earliest all comes again as the same documents, with latest what came meanwhile is out."""
    story = Story()
    await first_run(story, "stopped in order", start=start)
    written = story.written()
    story.delete(note=True)
    await story.run(start=start)

    assert story.written() == (story.names() if start == "earliest" else written)
    story.check_old()


async def test_a_trigger_refuses_events_behind_those_left_out_though_what_was_stored_of_the_partition_is_deleted():
    story = Story()
    trigger = Trigger(story)
    story.send(10)
    trigger.restart()
    await trigger.run()
    await story.recreate()
    story.send(30)
    story.delete("1")
    trigger.restart()
    with pytest.raises(PositionError, match="goes on at event 10 by its checkpoint of the hub before"):
        await trigger._bring("1", [story.hub.event("1", number) for number in range(10, 20)], 1)

    assert not {name for name in story.names() if "/1/" in name} & story.written()


@pytest.mark.parametrize("left", [("0",), ("0", "1")])
async def test_keys_stay_as_they_are_while_one_checkpoint_is_left_though_the_note_is_gone(left):
    story = Story(partitions=3)
    await first_run(story, "stopped in order")
    await story.recreate()
    story.send(10)
    await story.run(**EARLIEST)
    documents = len(story.sink.documents)
    story.delete(*{"0", "1", "2"}.difference(left), note=True)
    await story.run()

    assert len(story.sink.documents) == documents
    story.check_old()


@pytest.mark.parametrize("note", [True, False])
async def test_a_hub_created_anew_after_all_checkpoints_were_deleted_keeps_the_old_documents_by_the_note_alone(
    note,
):
    story = Story()
    await first_run(story, "stopped in order")
    old = story.written()
    await story.recreate()
    story.send(20)
    story.delete(note=note)
    await story.run()

    assert story.names() <= story.written()
    assert (old <= story.written()) is not note


async def test_a_hub_created_anew_twice_and_another_back_again_each_have_keys_of_their_own():
    story = Story()
    await first_run(story, "stopped in order")
    first = story.hub
    for _ in range(2):
        await story.recreate()
        story.send(20)
        await story.run(**EARLIEST)
    writes = dict(story.sink.writes)
    story.hub = first  # as after a failover and back: its events are written as the documents that they are
    await story.run(**EARLIEST)

    assert story.written() >= story.names()
    assert (
        len(story.sink.documents) == len(writes) + 20
    )  # the ten of each partition that came after the first run
    story.check_old()


@pytest.mark.parametrize("how", ENDS)
async def test_another_namespace_begins_anew_and_replaces_nothing(how):
    story = Story()
    await first_run(story, how)
    old = story.written()
    await story.move()
    story.send(20)
    await story.run()

    assert story.names() | old <= story.written()
    story.check_old()


@pytest.mark.parametrize("how", ["stopped in order", "killed"])
async def test_a_checkpoint_of_an_older_version_is_adopted_once_and_then_known_by_its_hub(how):
    story = Story()
    await first_run(story, how)
    story.forget_origins()
    await story.run()
    assert story.names() <= story.written()

    await story.recreate()
    story.send(100)  # its numbers would pass
    assert "created at" in await story.start().refused()
    story.check_old()


async def test_keys_stay_apart_when_another_program_writes_over_the_checkpoint_of_a_hub_created_anew():
    story = Story()
    await first_run(story, "stopped in order")
    await story.recreate()
    for policy in (EARLIEST, {}):
        story.send(10)
        await story.run(**policy)
        story.forget_origins()  # as an SDK's own store does, which knows position and offset

    assert story.names() <= story.written()
    story.check_old()


async def test_an_older_version_s_checkpoint_that_cannot_be_of_this_hub_leaves_the_old_keys_alone():
    story = Story()
    await first_run(story, "stopped in order")
    story.forget_origins()
    await story.recreate()
    story.send(5)
    assert "the hub's last event is 4" in await story.start().refused()
    await story.run(**EARLIEST)

    assert story.names() <= story.written()
    story.check_old()


async def test_retention_that_passed_before_anything_was_settled_is_told_and_refused_by_the_setting():
    story = Story()
    await first_run(story, "killed before anything was settled")
    story.hub.expire("0", 5)

    said = await story.start(on_retention_gap=OnGap.FAIL).refused()

    assert "retention took 5 unsettled events" in said


async def test_a_hub_that_is_away_at_the_start_is_waited_for():
    story = Story()
    await first_run(story, "stopped in order")
    await story.recreate()
    story.send(40)
    story.is_away = True
    again = story.start()
    await asyncio.sleep(60.0)
    assert again.claims == set()
    story.is_away = False

    await again.refused()


async def test_a_position_that_an_operator_sets_is_noticed_on_an_idle_partition():
    story = Story()
    story.send(10)
    first = story.start()
    await first.idle(20.0)
    store = story.namespaces["one"][0]
    stored = (await store.load_all(deadline=0))["0"]
    await store.put(structs.replace(stored, sequence_number=3, offset="", owner="operator"), deadline=0)
    await asyncio.sleep(60.0)
    await first.stop()

    assert {name: count for name, count in story.sink.writes.items() if count > 1} == {
        f"{story.hub.created_at:.3f}/0/{n}": 2 for n in range(4, 10)
    }


# --- behind the trigger: the host keeps the position


@pytest.mark.parametrize("is_same_process", [True, False])
@pytest.mark.parametrize("host", ["goes on", "was reset"])
async def test_a_trigger_refuses_a_hub_created_anew_until_host_and_operator_begin_anew(is_same_process, host):
    story = Story()
    trigger = Trigger(story)
    trigger.restart()
    story.send(20)
    await trigger.run()
    old = story.written()
    await story.recreate()
    story.send(50)
    if not is_same_process:
        await trigger.stop()
        trigger.restart()
    if host == "was reset":
        trigger.position.clear()
    for _ in range(2):
        with pytest.raises(PositionError, match="CONSUMER_ON_FOREIGN_CHECKPOINT"):
            await trigger.run()
    assert story.written() == old

    await trigger.stop()
    trigger.restart(**EARLIEST)
    if host == "goes on":
        with pytest.raises(PositionError, match="azure-webjobs-eventhub"):
            await trigger.run()
        trigger.position.clear()
    await trigger.run()
    await trigger.stop()

    assert story.names() | old <= story.written()
    story.check_old()


async def test_a_trigger_waits_for_a_hub_that_does_not_say_which_it_is_but_not_in_the_middle():
    story = Story()
    trigger = Trigger(story)
    trigger.restart()
    story.is_away = True
    story.send(10)
    with pytest.raises(UnavailableError):
        await trigger.run()
    assert story.written() == set()
    story.is_away = False
    await trigger.run()
    story.is_away = True
    story.send(10)
    await trigger.run()
    await trigger.stop()

    assert story.written() == story.names()


all_in_virtual_time(globals())
