"""Everything that can go wrong with Event Hubs, on request, as the unmodified SDK takes it."""

import asyncio
import os
import signal
import sys
import time

import aiohttp
import pytest
from azure.eventhub import EventData
from azure.eventhub.exceptions import (
    AuthenticationError,
    ConnectError,
    EventDataSendError,
    EventHubError,
    OperationTimeoutError,
)

from devstack.event_hubs import EventHubsServer
from devstack.processes.child import free_ports
from devstack.servers.faults import Fault
from tests.support.servers.event_hubs import GROUP, HUB, producing, receiving, running_server
from tests.support.waiting import until

# The SDK drops its socket, open, when the server cuts the connection; the collector finds it at any time.
pytestmark = [
    pytest.mark.wire,
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore:loop is closed:ResourceWarning"),
]

DELIVER = f"deliver:{HUB}/ConsumerGroups/{GROUP}/Partitions/0"
SEND = f"send:{HUB}/Partitions/0"


def stored(server):
    return [event.sequence_number for event in server.events(HUB, "0")]


async def send(server, body="x", *, timeout=5, **options):
    async with producing(server, **options) as producer:
        await producer.send_event(EventData(body), partition_id="0", timeout=timeout)


# --- consumers ---


@pytest.mark.parametrize("kind", ["drop_connection", "detach"])
async def test_a_consumer_that_is_cut_off_goes_on_without_gap_or_duplicate(server, kind):
    server.append(HUB, "0", [f"event {number}" for number in range(3000)])
    server.faults.add(Fault(DELIVER, "latency", seconds=0.05))
    for _ in range(3):
        server.faults.add(Fault(DELIVER, kind))

    async with receiving(server) as received:
        await until(lambda: len(received.events) >= 3000)

    assert received.sequence_numbers() == list(range(3000))
    assert server.faults.list() == []


async def test_a_half_open_connection_delivers_nothing_more_and_hangs_up_on_nobody(server):
    server.append(HUB, "0", ["before"])

    async with receiving(server) as received:
        await received.take(1)
        server.faults.add(Fault(DELIVER, "half_open"))
        server.append(HUB, "0", ["never comes"])
        await until(lambda: server.faults.list() == [])
        [frozen] = server.consumers(HUB, "0")
        server.append(HUB, "0", ["neither"])
        async with receiving(server) as other:
            await other.take(3)
        assert server.consumers(HUB, "0")[0] is frozen
        assert (received.bodies(), received.errors, received.closed) == (["before"], [], [])


async def test_a_rewind_and_a_duplicate_deliver_again_what_was_delivered(server):
    server.append(HUB, "0", ["a", "b", "c"])

    async with receiving(server) as received:
        await received.take(3)
        server.rewind(HUB, "0", 1)
        await received.take(5)
        server.faults.add(Fault(DELIVER, "duplicate"))
        server.append(HUB, "0", ["d"])
        await received.take(7)

    assert received.sequence_numbers() == [0, 1, 2, 1, 2, 3, 3]


async def test_sequence_numbers_that_are_left_out_are_left_out_for_consumers(server):
    async with receiving(server) as received:
        server.append(HUB, "0", ["a"])
        server.skip_sequence_numbers(HUB, "0", 100)
        server.append(HUB, "0", ["b"])
        await received.take(2)

    assert received.sequence_numbers() == [0, 101]


async def test_retention_that_has_overtaken_a_position_leaves_a_gap_behind_it(server):
    server.append(HUB, "0", ["x"] * 10)
    server.expire(HUB, "0", 7)

    async with receiving(server, start=2) as received:
        await received.take(3)

    assert received.sequence_numbers() == [7, 8, 9]


async def test_an_intruder_takes_a_partition_until_it_is_released(server):
    options = {"owner_level": 0, "client_options": {"load_balancing_interval": 0.5}}
    async with receiving(server, **options) as received:
        await until(lambda: server.consumers(HUB, "0"))
        intruder = server.steal(HUB, "0", epoch=1)
        await until(lambda: received.errors and any("epoch" in each.description for each in server.refused))
        assert server.consumers(HUB, "0") == []
        intruder.release()
        server.append(HUB, "0", ["after"])
        await received.take(1)

    assert "link:stolen" in str(received.errors[0])


async def test_a_token_that_has_run_out_is_replaced_and_reading_goes_on(server):
    async with receiving(server) as received:
        server.append(HUB, "0", ["before"])
        await received.take(1)
        [before] = server.consumers(HUB, "0")
        server.expire_tokens()
        assert server.consumers(HUB, "0") == []
        server.append(HUB, "0", ["after"])
        await received.take(2)

    assert received.bodies() == ["before", "after"]
    assert before.link.attached is False


async def test_an_expiry_in_the_token_is_kept_to(tmp_path):
    skew = 0.0
    async with running_server(tmp_path, clock=lambda: time.time() + skew) as server, receiving(server):
        await until(lambda: server.consumers(HUB, "0"))
        [before] = server.consumers(HUB, "0")
        skew = 2 * 3600.0  # the SDK asks for an hour

        await until(lambda: not before.link.attached)


async def test_a_link_that_is_refused_is_attached_at_a_later_try(server):
    server.append(HUB, "0", ["x"])
    attach = f"attach:{HUB}/ConsumerGroups/{GROUP}/Partitions/0"
    server.faults.add(Fault(attach, "error", condition="com.microsoft:server-busy"))
    server.faults.add(Fault(attach, "drop_connection"))

    async with receiving(server) as received:
        await received.take(1)

    assert [each.condition for each in server.refused] == ["com.microsoft:server-busy"] * 2


# --- producers ---


async def test_a_rejection_stores_nothing_and_is_told_at_once(server):
    server.faults.add(Fault(SEND, "error"))

    with pytest.raises(EventDataSendError, match="server-busy"):
        await send(server)

    assert (stored(server), server.faults.list()) == ([], [])


async def test_an_acknowledgement_that_is_lost_leaves_an_event_that_the_producer_does_not_know_of(server):
    async with producing(server, retry_total=0) as producer:
        await producer.send_event(EventData("opens the link"), partition_id="0")
        server.faults.add(Fault(SEND, "drop_ack", count=None))

        with pytest.raises(OperationTimeoutError):
            await producer.send_event(EventData("x"), partition_id="0", timeout=1)

    assert stored(server)[:2] == [0, 1]


@pytest.mark.parametrize("kind", ["drop_connection", "detach", "half_open"])
async def test_a_producer_that_is_cut_off_before_its_event_is_stored_stores_nothing(server, kind):
    server.faults.add(Fault(SEND, kind, count=None))

    with pytest.raises(EventHubError):
        await send(server, timeout=1, retry_total=0)

    assert stored(server) == []


async def test_latency_delays_the_acknowledgement(server):
    async with producing(server) as producer:
        await producer.send_event(EventData("opens the link"), partition_id="0")
        server.faults.add(Fault(SEND, "latency", seconds=0.5))
        before = time.monotonic()
        await producer.send_event(EventData("x"), partition_id="0")
        waited = time.monotonic() - before

    assert waited >= 0.5


async def test_a_refused_token_is_an_authentication_error(server):
    server.faults.add(Fault("put-token", "error", count=None, condition="refused"))

    with pytest.raises(AuthenticationError):
        await send(server, retry_total=0)


async def test_a_failing_management_node_is_tried_again(server):
    server.faults.add(Fault(f"manage:{HUB}", "error"))
    async with producing(server) as producer:
        assert await producer.get_partition_ids() == ["0", "1"]

    server.faults.add(Fault(f"manage:{HUB}", "error", condition="amqp:not-found", count=None))
    async with producing(server, retry_total=0) as producer:
        with pytest.raises(ConnectError):
            await producer.get_partition_ids()


async def ask_and_send(server):
    """Comes by every point at which a producer may be left waiting."""
    async with producing(server) as producer:
        await producer.get_partition_ids()
        await producer.send_event(EventData("x"), partition_id="0")


POINTS = ["put-token", f"manage:{HUB}", f"attach:{HUB}/Partitions/0"]


@pytest.mark.parametrize("where", POINTS)
async def test_a_connection_that_is_cut_on_the_way_is_made_again(server, where):
    server.faults.add(Fault(where, "drop_connection"))

    await ask_and_send(server)

    assert (stored(server), server.faults.list()) == ([0], [])


@pytest.mark.parametrize(
    ("where", "kind"), [*((where, "half_open") for where in POINTS), (f"manage:{HUB}", "no_answer")]
)
async def test_a_producer_that_gets_no_answer_waits(server, where, kind):
    server.faults.add(Fault(where, kind, count=None))
    sending = asyncio.create_task(ask_and_send(server))
    reached = server.faults.take

    def take(point):
        fault = reached(point)
        if fault is not None:
            points.append(point)
        return fault

    points = []
    server.faults.take = take
    await until(lambda: points)
    await asyncio.sleep(0.2)  # an answer would have come

    assert (sending.done(), stored(server)) == (False, [])
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)


async def test_management_that_is_slow_answers_in_the_end(server):
    server.faults.add(Fault(f"manage:{HUB}", "latency", seconds=0.3))
    async with producing(server) as producer:
        before = time.monotonic()
        assert await producer.get_partition_ids() == ["0", "1"]

    assert time.monotonic() - before >= 0.3


# --- the server itself ---


async def test_a_server_that_was_down_is_found_again_with_all_its_events(tmp_path):
    [port] = free_ports(1)
    data = tmp_path / "data"
    async with running_server(tmp_path, port=port, data_dir=data) as first:
        first.append(HUB, "0", ["before"])
        receiver = receiving(first)
        received = await receiver.__aenter__()
        await received.take(1)
    try:
        async with running_server(tmp_path, port=port, data_dir=data) as second:
            assert second.append(HUB, "0", ["after"]) == 1
            await received.take(2)
    finally:
        await receiver.__aexit__(None, None, None)

    assert received.sequence_numbers() == [0, 1]


SERVER = """
import asyncio, sys
from pathlib import Path
from devstack.event_hubs import EventHubsServer
async def main(folder, port):
    async with EventHubsServer(ca_dir=folder, port=port, data_dir=folder / "data") as server:
        server.ensure_hub("flights", 1)
        print("ready", flush=True)
        await asyncio.Event().wait()
asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
"""


async def test_what_was_accepted_is_there_after_a_kill(tmp_path):
    [port] = free_ports(1)
    accepted = []
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVER, str(tmp_path), str(port)), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()
    address = EventHubsServer(ca_dir=tmp_path, port=port)

    async def keep_sending():
        async with producing(address, retry_total=0) as producer:
            for number in range(1_000_000):
                await producer.send_batch([EventData(f"{number}")], partition_id="0", timeout=5)
                accepted.append(number)

    sending = asyncio.create_task(keep_sending())
    await until(lambda: len(accepted) >= 50)
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    await asyncio.wait([sending])

    assert isinstance(sending.exception(), EventHubError)
    async with running_server(tmp_path, data_dir=tmp_path / "data") as server:
        kept = [
            int(event.message.rpartition(b"\x00\x53\x75\xa0")[2][1:]) for event in server.events(HUB, "0")
        ]
    assert len(accepted) >= 50
    assert set(accepted) <= set(kept)
    assert sorted(set(kept)) == list(range(len(set(kept))))


async def test_stopping_releases_the_port_and_leaves_no_connection_open(tmp_path):
    server = EventHubsServer(ca_dir=tmp_path)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"AMQP\x00\x01\x00\x00")
    assert await reader.readexactly(8) == b"AMQP\x00\x01\x00\x00"
    server.freeze_connections()

    await server.stop()

    assert await reader.read() == b""
    writer.close()
    async with EventHubsServer(ca_dir=tmp_path, port=server.port):
        pass


# --- over HTTP ---


async def control(session, server, call, **arguments):
    async with session.post(f"{server.control_url}/control", json={"call": call, **arguments}) as response:
        return response.status, await response.json()


async def test_another_process_controls_the_server_over_http(server):
    async with aiohttp.ClientSession() as http:
        status, hub = await control(http, server, "CreateHub", hub="other", partitions=1)
        appended = await control(
            http, server, "Append", hub="other", partition="0", bodies=["a", "b", "c", "d"]
        )
        for call, arguments in (
            ("AddPartitions", {"hub": "other", "count": 1}),
            ("Expire", {"hub": "other", "partition": "0", "before_sequence": 1}),
            ("SkipSequenceNumbers", {"hub": "other", "partition": "0", "count": 10}),
            ("SetRetention", {"hub": "other", "events": 2}),
            ("Steal", {"hub": "other", "partition": "0", "epoch": 3}),
            ("Rewind", {"hub": "other", "partition": "0", "sequence_number": 0}),
            ("ExpireTokens", {}),
            ("FreezeConnections", {}),
        ):
            assert await control(http, server, call, **arguments) == (200, None)
        async with http.get(f"{server.control_url}/control") as response:
            [_, other] = await response.json()
        await control(http, server, "ReleaseIntruders")
        await control(http, server, "DeleteHub", hub=HUB)
        recreated = await control(http, server, "RecreateHub", hub="other", partitions=3)
        async with http.get(f"{server.control_url}/faults") as response:
            faults = await response.json()

    assert (status, hub["name"], appended) == (200, "other", (200, 0))
    assert [partition["id"] for partition in other["partitions"]] == ["0", "1"]
    first = other["partitions"][0]
    assert (first["events"], first["begin_sequence_number"], first["last_sequence_number"]) == (2, 2, 3)
    assert first["consumers"] == [{"group": "$default", "name": "intruder", "epoch": 3}]
    assert [len(recreated[1]["partitions"]), recreated[1]["partitions"][0]["last_sequence_number"]] == [3, -1]
    assert [hub.name for hub in server.hubs] == ["other"]
    assert list(server.hubs.hub("other").partition("0").readers(GROUP)) == []
    assert faults == []


@pytest.mark.parametrize(
    ("call", "status", "text"),
    [
        ({"call": "Explode"}, 400, "Explode"),
        ({"call": "Expire", "hub": HUB, "partition": "0"}, 400, "before_sequence"),
        ({"call": "Expire", "hub": HUB, "partition": "9", "before_sequence": 1}, 404, "'9'"),
        ({"call": "DeleteHub", "hub": "unknown"}, 404, "unknown"),
        ({"call": "CreateHub", "hub": HUB, "partitions": 1}, 409, HUB),
        ({"call": "CreateHub", "hub": "new", "partitions": 0}, 400, "0 partitions"),
    ],
)
async def test_a_call_that_cannot_be_carried_out_says_why(server, call, status, text):
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{server.control_url}/control", json=call) as response,
    ):
        answer = await response.json()

    assert response.status == status
    assert text in answer["error"]
