"""The load generator of the demos sends flights to the local Event Hubs."""

import msgspec
import pytest
from typer.testing import CliRunner

from devstack.__main__ import app
from devstack.demo.common import flights
from devstack.servers.faults import Fault
from tests.support.servers.event_hubs import HUB, running_server

pytestmark = pytest.mark.wire


async def test_flights_are_sent_once_in_turn_to_all_partitions_whatever_gets_lost(tmp_path):
    async with running_server(tmp_path) as server:
        for partition, kind in (
            *(("0", "drop_ack_and_connection"), ("0", "error")),
            *(("1", "drop_connection"), ("1", "drop_ack_and_link")),
        ):
            server.faults.add(Fault(f"send:{HUB}/Partitions/{partition}", kind))

        await flights.send(server.connection_string(), HUB, flights.bodies(1000), at_once=100)

        stored = [server.events(HUB, partition) for partition in ("0", "1")]
        assert [len(events) for events in stored] == [500, 500]
        for start, events in enumerate(stored):
            assert flown(events) == [
                f"flight-{number}" for number in range(1000) if number // 100 % 2 == start
            ]
        dropped = [server.publishers(HUB, partition).counts["batches_dropped"] for partition in ("0", "1")]
        assert dropped == [1, 1]


async def test_a_batch_that_is_full_before_its_number_is_reached_is_sent_and_another_begun(tmp_path):
    async with running_server(tmp_path, max_message_size=20_000) as server:
        await flights.send(server.connection_string(), HUB, flights.bodies(300), at_once=300)

        assert sorted(flown([*server.events(HUB, "0"), *server.events(HUB, "1")])) == sorted(
            f"flight-{number}" for number in range(300)
        )


@pytest.mark.parametrize(
    ("command", "connection"),
    [("flights", "EventHubConnection"), ("send", "OrdersServiceBus"), ("send --queue q", "OrdersServiceBus")],
)
def test_sending_to_a_stack_that_is_not_running_ends_with_one_sentence(command, connection):
    nowhere = "Endpoint=sb://localhost:1;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"

    ended = CliRunner().invoke(app, command.split(), env={connection: nowhere})

    assert (ended.exit_code, ended.exception.code) == (1, 1)
    assert ended.output.startswith(f"error: the local stack is not running: {connection} names it")
    assert ended.output.count("\n") == 1


def flown(events):
    return [msgspec.json.decode(event.message[event.message.index(b'{"id"') :])["id"] for event in events]
