"""Hubs and queues that events are forwarded to, read without the code that wrote them."""

import json
import uuid
from contextlib import asynccontextmanager

from azure.eventhub._pyamqp._decode import decode_payload

from devstack.servers.faults import Fault
from tests.support.consumer.sinks import built
from tidemark.testing import SinkTarget


def decoded(message):
    return decode_payload(memoryview(bytes(message)))


class HubTarget(SinkTarget):
    """The key is in the document."""

    appends = True
    troubles = ("error", "detach", "drop_connection", "drop_ack_and_connection", "drop_ack_and_link")

    def cause(self, trouble):
        self.server.faults.add(Fault("send:*", trouble))

    def __init__(self, server, azurite):
        self.server = server
        self.unwritable = {"dest": 1.5}
        self.settings = {"Target": server.connection_string(), "AzureWebJobsStorage": azurite}
        self.states = f"states-{uuid.uuid4().hex}"

    def sink(self):
        options = {"hub": "copies", "connection": "Target", "state_container": self.states}
        return built("event_hubs", self.settings, **options, key="$.dest")

    async def stored(self):
        stored = [one for id_ in ("0", "1", "2") for one in self.server.events("copies", id_)]
        messages = [decoded(one.message) for one in stored]
        messages.sort(key=lambda message: message.application_properties[b"tidemark-sequence-number"])
        return [json.loads(b"".join(message.data)) for message in messages]

    async def remove(self):
        self.server.delete_hub("copies")

    @asynccontextmanager
    async def unreachable(self):
        self.server.faults.add(Fault("send:*", "drop_ack_and_connection", count=None))
        yield
        self.server.faults.clear()


class QueueTarget(SinkTarget):
    appends = True
    troubles = ("error", "size", "detach", "drop_connection", "drop_ack")

    def cause(self, trouble):
        self.server.faults.add(Fault("send:*", trouble))

    reads_documents = False

    def __init__(self, server):
        self.server = server
        self.settings = {"Target": server.connection_string}

    def sink(self):
        return built("service_bus", self.settings, connection="Target", queue="copies")

    async def stored(self):
        messages = self.server.broker.queues["copies"].peek(0, 1_000_000)
        return [json.loads(b"".join(decoded(each.sent.bare).data)) for each in messages]

    async def remove(self):
        del self.server.broker.queues["copies"]

    @asynccontextmanager
    async def unreachable(self):
        self.server.faults.add(Fault("send:*", "drop_ack", count=None))
        yield
        self.server.faults.clear()
