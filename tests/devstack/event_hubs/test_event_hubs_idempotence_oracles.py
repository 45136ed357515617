"""Idempotent producers that others wrote publish to the local Event Hubs: the SDK for JavaScript, Python's 5.4.0b1."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from devstack.event_hubs.storage.idempotence import EPOCH_STOLEN, OUT_OF_ORDER, Asked, Idempotence
from devstack.processes.node import ensure_node, ensure_packages
from devstack.servers.faults import Fault
from tests.support.servers.event_hubs import HUB

ORACLES = Path(__file__).parents[2] / "oracles"
SEND = f"send:{HUB}/Partitions/0"
BETA = ["--only-binary", ":all:", "azure-eventhub==5.4.0b1", "uamqp==1.6.11", "six"]

pytestmark = pytest.mark.wire


@pytest.fixture(scope="session")
def beta_python(tmp_path_factory):
    """An interpreter with azure-eventhub 5.4.0b1, which cannot live beside the version in use."""
    folder = tmp_path_factory.mktemp("beta")
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    installed = subprocess.run(
        [python, "-m", "pip", "install", "-q", *BETA],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if installed.returncode:
        pytest.skip(f"azure-eventhub 5.4.0b1 cannot be installed here: {installed.stderr.strip()[-300:]}")
    return python


async def run(*command, cwd=None):
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, errors.decode()[-2000:]
    return json.loads(output)


@pytest.fixture
def beta_publish(beta_python, server):
    """Runs steps with Python's client; returns what became of them."""
    connection = server.tls_connection_string().replace(server.endpoint, "localhost")
    script, certificate = ORACLES / "beta_producer.py", server.tls_options()["connection_verify"]

    async def publish(*steps):
        arguments = (connection, HUB, str(server.port), certificate, json.dumps(steps))
        return await run(beta_python, script, *arguments)

    publish.first, publish.options = 0, ("producer_group_id", "owner_level", "starting_sequence_number")
    return publish


@pytest.fixture
def javascript_publish(server):
    """Runs steps with the client for JavaScript; returns what became of them."""
    script = (ORACLES / "idempotent_producer.js").read_text()

    async def publish(*steps):
        node = await asyncio.to_thread(ensure_node)
        packages = await asyncio.to_thread(ensure_packages, node)
        arguments = (server.connection_string(), HUB, json.dumps(steps))
        return await run(node, "-e", script, "--", "", *arguments, cwd=packages.parent)

    publish.first, publish.options = 1, ("producerGroupId", "ownerLevel", "startingSequenceNumber")
    return publish


@pytest.fixture(params=["javascript_publish", "beta_publish"])
def publish(request):
    return request.getfixturevalue(request.param)


def counts(server):
    return server.publishers(HUB, "0").counts


@pytest.mark.parametrize("kind", ["drop_ack_and_connection", "drop_connection", "error"])
async def test_what_a_client_sends_again_is_stored_once(server, publish, kind):
    server.faults.add(Fault(SEND, kind))

    results = await publish(
        ["open", "p", {}], ["send", "p", ["a", "b"]], ["send", "p", ["c"]], ["send", "p", ["d", "e"]]
    )

    first = publish.first
    assert results == [first, first + 2, first + 3]
    assert len(server.events(HUB, "0")) == 5
    assert counts(server)["batches_dropped"] == (1 if kind == "drop_ack_and_connection" else 0)


async def test_a_producer_of_a_higher_owner_level_shuts_the_other_one_out(server, publish):
    server.publishers(HUB, "0").attach(Asked())
    id_name, level_name, _ = publish.options
    known = server.publishers(HUB, "0").describe()["producers"][0]["id"]

    results = await publish(
        *(["open", "old", {id_name: known, level_name: 0}], ["send", "old", ["a"]]),
        *(["open", "new", {id_name: known, level_name: 1}], ["send", "new", ["b"]]),
        ["send", "old", ["c"]],
    )

    assert results[:2] == [publish.first, publish.first]
    assert EPOCH_STOLEN in results[2] or "ProducerDisconnected" in results[2]
    assert len(server.events(HUB, "0")) == 2


async def test_a_producer_that_nobody_knows_is_refused(server, publish):
    id_name, level_name, number_name = publish.options

    [result] = await publish(["open", "p", {id_name: 5, level_name: 0, number_name: 3}], ["send", "p", ["a"]])

    assert "5 is unknown to this partition" in result
    assert server.events(HUB, "0") == []


async def test_a_sequence_that_the_partition_does_not_expect_is_an_error_of_the_client(server, publish):
    server.hubs.hub(HUB).set_idempotence(
        Idempotence(first_number="same" if publish.first else "after")  # the one that the client does not use
    )

    [result] = await publish(["open", "p", {}], ["send", "p", ["a"]])

    assert OUT_OF_ORDER in result or "SequenceOutOfOrder" in result
    assert counts(server)[f"rejected:{OUT_OF_ORDER}"] >= 1
    assert server.events(HUB, "0") == []


async def test_a_link_that_is_detached_after_its_batch_was_stored_doubles_nothing(server, beta_publish):
    # Not with the SDK for JavaScript: it waits a minute for the outcome of what it sent on a link that is gone.
    server.faults.add(Fault(SEND, "drop_ack_and_link"))

    assert await beta_publish(["open", "p", {}], ["send", "p", ["a"]], ["send", "p", ["b"]]) == [0, 1]

    assert len(server.events(HUB, "0")) == 2
    assert counts(server)["batches_dropped"] == 1


async def test_the_buffered_client_for_javascript_loses_and_doubles_nothing(server, javascript_publish):
    for kind in ("drop_ack_and_connection", "drop_connection", "error"):
        server.faults.add(Fault(SEND, kind))

    [failed] = await javascript_publish(["buffered", [f"event {number}" for number in range(40)]])

    assert failed == []
    assert len(server.events(HUB, "0")) == 40
