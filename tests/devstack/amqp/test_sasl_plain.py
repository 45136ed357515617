"""Clients without claims-based security sign in by SASL PLAIN, with the name of a key and the key: rhea, unmodified."""

import json
import subprocess

import pytest

from devstack.amqp.requests import KEY_NAME
from devstack.event_hubs import EventHubsServer
from devstack.processes.node import ensure_node, ensure_packages
from devstack.service_bus import ServiceBusServer
from tests.support.servers.threaded import running_in_thread

pytestmark = pytest.mark.wire

JAVASCRIPT = """
const path = require("path");
const rhea = require(path.join(process.argv[1], "rhea"));
const [port, username, password, mechanism] = process.argv.slice(2);
const how = mechanism === "PLAIN" ? { username, password } : mechanism === "ANONYMOUS" ? { username: "anonymous" } : {};
const done = (what) => { console.log(JSON.stringify(what)); process.exit(0); };
const container = rhea.create_container();
container.on("sendable", (context) => { if (!context.sender.sent) {
  context.sender.sent = true;
  context.sender.send({ body: rhea.message.data_section(Buffer.from("hello")) });
} });
container.on("accepted", () => done("accepted"));
for (const event of ["sender_error", "connection_error", "rejected"])
  container.on(event, (context) => {
    const error = (context.sender && context.sender.error) || context.error || (context.connection && context.connection.error);
    done(String((error && (error.description || error.message)) || event));
  });
container.on("disconnected", (context) => done("disconnected: " + (context.error || "")));
container.connect({ host: "localhost", port: Number(port), transport: "tcp", reconnect: false, ...how }).open_sender("orders");
setTimeout(() => done("nothing happened"), 8000);
"""


def send(server, name, password, mechanism="PLAIN"):
    node = ensure_node()
    arguments = [str(ensure_packages(node)), str(server.server.port), name, password, mechanism]
    said = subprocess.run(
        [node, "-e", JAVASCRIPT, "--", *arguments], capture_output=True, check=True, timeout=30
    )
    return json.loads(said.stdout)


@pytest.mark.parametrize("kind", [EventHubsServer, ServiceBusServer])
def test_the_key_gives_its_rights_and_a_wrong_one_is_refused(tmp_path, kind):
    key = "the key"
    with running_in_thread(lambda: kind(ca_dir=tmp_path, key=key)) as server:
        make = server.server.create_queue if kind is ServiceBusServer else server.server.create_hub
        server.call(lambda: make("orders"))

        assert send(server, KEY_NAME, key) == "accepted"
        for name, password in ((KEY_NAME, "another"), ("AnotherName", key)):
            assert "Failed to authenticate" in send(server, name, password)
        assert "no accepted token on this connection" in send(server, "", "", "ANONYMOUS")
