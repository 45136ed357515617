"""Signals to real consumer processes: killed, stopped, frozen, replaced.

Every event is a document of its own, so that what the sink did beyond one write per event is what was replayed.
"""

import contextlib
import json
import os
import re
import signal
from pathlib import Path

import aiohttp
import pytest

from devstack.processes.child import free_ports
from devstack.servers.faults import Fault
from tests.faults.consumer_processes import (
    QUICK_LEASES,
    Ledger,
    Stores,
    consumer_process,
    is_covered,
)
from tests.support.consumer.stack import consumer_world
from tests.support.waiting import until

pytestmark = [pytest.mark.wire, pytest.mark.timeout(180)]

PARTITIONS = 2


class Processes:
    """A world whose consumers are processes, and what they wrote."""

    def __init__(self, world, folder):
        self.world, self.folder = world, folder
        self.settings = {**world.settings, **QUICK_LEASES, "CONSUMER_BATCH_OPERATIONS": "10"}
        self.ledger = Ledger(world)
        self._count = 0

    def send(self, count):
        self._count += count
        for partition in range(PARTITIONS):
            ids = [f"d{self._count - number}" for number in range(partition, count, PARTITIONS)]
            self.ledger.send(str(partition), ids)

    def consumer(self, *arguments, **settings):
        return consumer_process({**self.settings, **settings}, self.folder, *arguments)

    @property
    def documents(self):
        return self.world.cosmos.document_count("db", "flights")

    @property
    def written(self):
        """Operations that the service carried out, each repetition counted."""
        probes = self.world.cosmos.stats().requests.get("containers.read", 0)  # one probe follows each
        return self.world.cosmos.stats().operations - probes

    async def until_written(self, consumer, count=None, within=40.0):
        count = self._count if count is None else count
        await until(
            lambda: self.documents >= count or not consumer.running,
            within=within,
            what=lambda: f"{self.documents} of {count} documents; {consumer.said()[-3000:]}",
        )
        assert consumer.running, consumer.said()[-3000:]

    async def until_saved(self, stores):
        async def saved():
            found = await stores.checkpoints()
            return all(is_covered(found, each) for each in self.ledger.sent)

        await until(saved, what="everything is in a checkpoint")


@pytest.fixture
async def processes(azurite, tmp_path):
    async with consumer_world(azurite, tmp_path, partitions=PARTITIONS, throughput=20_000) as world:
        yield Processes(world, tmp_path / "consumers")


async def test_what_was_written_around_one_event_that_waits_is_not_written_again_after_a_kill(processes):
    """The completion map: the mark stands at the first event, thousands beyond it are settled."""
    processes.send(3_000)
    processes.world.cosmos.inject(Fault("op.upsert.d3000", "error", count=None, status=449, retry_after=0.2))
    async with Stores(processes.settings) as stores, processes.consumer() as consumer:
        await processes.until_written(consumer, 2_999)

        async def all_but_one():
            found = await stores.checkpoints()
            return sum(is_covered(found, each) for each in processes.ledger.sent) == 2_999

        await until(all_but_one, what="the checkpoint says what is settled beyond the mark")
        assert (await stores.marks()) == {"0": -1, "1": 1_499}
        await consumer.kill()
        await stores.free_leases()
        processes.world.cosmos.faults.clear()
        before = processes.written

        async with processes.consumer() as again:
            await processes.until_written(again)
            await processes.until_saved(stores)
            assert await again.stop() == 0

    assert processes.written - before <= 0.01 * 3_000


async def test_a_consumer_told_to_stop_finishes_what_it_began_and_its_successor_writes_nothing_again(
    processes,
):
    processes.send(2_000)
    processes.world.cosmos.inject(Fault("docs.bulk", "latency", count=None, seconds=0.05))
    async with Stores(processes.settings) as stores:
        async with processes.consumer() as consumer:
            await processes.until_written(consumer, 300)
            assert await consumer.stop() == 0, consumer.said()
        assert processes.documents < 2_000, "it was in the middle"
        missing = processes.ledger.missing()
        found = await stores.checkpoints()
        assert {position for position in processes.ledger.sent if not is_covered(found, position)} == missing
        assert await stores.owners() == {}

        processes.world.cosmos.faults.clear()
        async with processes.consumer() as successor:
            await processes.until_written(successor)
            assert await successor.stop() == 0

    assert processes.written == 2_000


async def test_a_drain_that_takes_too_long_ends_with_status_6_and_leaves_the_checkpoint_where_it_is(
    processes,
):
    processes.send(200)
    processes.world.cosmos.inject(Fault("op.upsert.d200", "error", count=None, status=449, retry_after=0.2))
    async with Stores(processes.settings) as stores, processes.consumer(CONSUMER_SHUTDOWN="2s") as consumer:
        await processes.until_written(consumer, 199)

        assert await consumer.stop() == 6, consumer.said()

        assert "what was begun was not settled in time" in consumer.said()
        found = await stores.checkpoints()
        assert ("0", 0) in processes.ledger.missing()
        assert not is_covered(found, ("0", 0))
        assert found["1"].sequence_number == 99


async def test_a_consumer_frozen_for_longer_than_its_leases_is_fenced_when_it_wakes_up(processes):
    processes.send(200)
    async with Stores(processes.settings) as stores, processes.consumer() as zombie:
        await processes.until_written(zombie)
        await processes.until_saved(stores)
        processes.world.cosmos.inject(Fault("docs.bulk", "latency", count=None, seconds=0.05))
        processes.send(1_000)
        await processes.until_written(zombie, 300)
        zombie.signal(signal.SIGSTOP)
        async with processes.consumer() as heir:
            await processes.until_written(heir)
            epochs = {name: each.epoch for name, each in (await stores.checkpoints()).items()}
            heirs = set((await stores.owners()).values())
            assert len(heirs) == 1

            zombie.signal(signal.SIGCONT)
            processes.send(200)

            await processes.until_written(heir)
            await until(
                lambda: re.search("taken by|somebody else|took over", zombie.said()), what="it is fenced"
            )
            await processes.until_saved(stores)
            later = await stores.checkpoints()
            assert all(later[name].epoch >= epoch for name, epoch in epochs.items())
            assert await zombie.stop() == 0, zombie.said()
            assert await heir.stop() == 0, heir.said()

    assert not processes.ledger.missing()


async def test_a_killed_worker_is_replaced_and_sigterm_to_the_parent_stops_all(processes):
    processes.send(200)
    async with Stores(processes.settings) as stores, processes.consumer("--processes", "2") as parent:
        await processes.until_written(parent)
        workers = await until(lambda: workers_of(parent, 2))
        await until(lambda: shared(stores), what="each worker has a partition")
        os.kill(workers[0], signal.SIGKILL)
        processes.send(200)

        again = await until(lambda: workers_of(parent, 2, without=workers[0]), what="another worker")

        await processes.until_written(parent)
        assert workers[0] not in again
        # As a terminal, systemd and `timeout` do it: the parent passes it on besides.
        for worker in again:
            os.kill(worker, signal.SIGTERM)
        assert await parent.stop() == 0, parent.said()
        assert not any(is_alive(worker) for worker in again)


async def test_workers_whose_parent_is_killed_finish_what_they_began_and_leave(processes):
    processes.send(2_000)
    processes.world.cosmos.inject(Fault("docs.bulk", "latency", count=None, seconds=0.05))
    settings = {"CONSUMER_SHUTDOWN": "5s"}
    async with (
        Stores(processes.settings) as stores,
        processes.consumer("--processes", "2", **settings) as parent,
    ):
        await processes.until_written(parent, 300)
        workers = await until(lambda: workers_of(parent, 2))
        await until(lambda: shared(stores), what="each worker has a partition")

        await parent.kill()

        await until(lambda: not any(is_alive(worker) for worker in workers), within=40.0, what=parent.said)
        assert parent.said().count("the parent process is gone: stopping in order; 5 s at most") == 2
        assert parent.said().count("what was begun is finished") == 2  # the last word, with exit status 7
        assert await stores.owners() == {}, "leases were released, nobody has to wait for them"
        found = await stores.checkpoints()
        missing = processes.ledger.missing()
        assert {position for position in processes.ledger.sent if not is_covered(found, position)} == missing


async def test_a_worker_whose_parent_is_killed_before_it_can_consume_leaves_too(processes):
    async with processes.consumer("--processes", "2") as parent:
        workers = await until(lambda: children_of(parent.pid, 2))

        await parent.kill()

        await until(lambda: not any(is_alive(worker) for worker in workers), within=40.0, what=parent.said)
        assert "claimed" not in parent.said()


async def test_a_worker_that_cannot_finish_after_its_parent_was_killed_leaves_all_the_same(processes):
    processes.send(200)
    processes.world.cosmos.inject(Fault("op.upsert.d200", "error", count=None, status=449, retry_after=0.2))
    async with processes.consumer("--processes", "2", CONSUMER_SHUTDOWN="1s") as parent:
        await processes.until_written(parent, 199)
        workers = await until(lambda: workers_of(parent, 2))

        await parent.kill()

        await until(lambda: not any(is_alive(worker) for worker in workers), within=40.0, what=parent.said)


async def test_a_worker_whose_pipe_to_its_parent_ends_leaves_with_status_7(processes):
    async with processes.consumer("--worker", "0/1") as worker:  # its standard input is empty
        assert await worker.ended() == 7, worker.said()

        assert "error: the parent process is gone" in worker.said()


def children_of(pid, count):
    """The pids of a process's children, once there are so many."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return [int(each) for each in found] if len(found) == count else None


async def shared(stores):
    return len(set((await stores.owners()).values())) == 2


def workers_of(parent, count, *, without=None):
    """The pids of the workers, once there are so many."""
    found = {int(pid) for pid in re.findall(r"instance \S+?~(\d+)~", parent.said())} - {without}
    alive = sorted(pid for pid in found if is_alive(pid))
    return alive if len(alive) == count else None


def is_alive(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


async def settled_state(ask):
    """The state of each worker, once nothing is unsettled; else None."""
    found = [worker["consumers"][0] for worker in json.loads((await ask("/state"))[1])["workers"]]
    return None if any(each["unsettled"] for one in found for each in one["partitions"]) else found


async def test_the_parent_answers_the_probes_of_its_workers_until_it_ends_and_a_taken_port_ends_the_start(
    processes,
):
    port = free_ports(3)[0]
    processes.send(200)
    address = {"CONSUMER_HTTP_PORT": str(port)}
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:

        async def ask(path):
            async with session.get(path) as answer:
                return answer.status, await answer.text()

        async def ready():
            with contextlib.suppress(aiohttp.ClientError):
                return (await ask("/ready"))[0] == 200
            return False

        async with processes.consumer("--processes", "2", **address) as parent:
            await until(ready, within=40.0, what=parent.said)
            await processes.until_written(parent)
            # What is written is settled a moment later, when the answer has come.
            state = await until(lambda: settled_state(ask), within=40.0, what=parent.said)
            live, metrics = [await ask(path) for path in ("/live", "/metrics")]
            async with processes.consumer(**address) as another:
                assert await another.ended() == 2
                assert f"CONSUMER_HTTP_PORT: port {port}" in another.said()
            assert await parent.stop() == 0
        with pytest.raises(aiohttp.ClientError):
            await ask("/live")

    assert live == (200, "ok\n")
    assert metrics[1].count("consumer_partitions{") == 2
    assert {partition["partition"] for one in state for partition in one["partitions"]} == {
        str(n) for n in range(PARTITIONS)
    }
    assert all(one["ready"] for one in state)
