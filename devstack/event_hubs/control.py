"""What a test in another process may ask of the server, over plain HTTP.

    GET  /control                            hubs, where their partitions stand, and who reads them
    POST /control  {"call": ..., ...}        one of the calls below, named and spelled as its class:

    {"call": "Expire", "hub": "flights", "partition": "0", "before_sequence": 100}

Answers 200 with the result, 400 for a call that is not understood, 404 for a hub or partition
that is not there and 409 for what cannot be done now. `/faults` is described in devstack.servers.faults.
"""

import re
from collections.abc import Awaitable
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct
from msgspec.structs import astuple

from devstack.amqp.wire.errors import NOT_FOUND, AmqpError
from devstack.event_hubs.operations import Operations
from devstack.event_hubs.storage.hubs import DEFAULT_GROUP, Hub, HubExistsError, Partition
from devstack.event_hubs.storage.idempotence import Idempotence
from devstack.event_hubs.storage.log import Retention


class _Call(Struct, tag=True, tag_field="call", forbid_unknown_fields=True, frozen=True):
    def run(self, server: Operations) -> object:
        """Calls what is named as the class, in snake case, with the fields in their order."""
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()
        result: object = getattr(server, name)(*astuple(self))
        return result


class CreateHub(_Call, frozen=True):
    hub: str
    partitions: int
    consumer_groups: list[str] = []
    opaque_offsets: bool = False

    def run(self, server: Operations) -> object:
        hub = server.create_hub(
            self.hub,
            self.partitions,
            consumer_groups=self.consumer_groups,
            opaque_offsets=self.opaque_offsets,
        )
        return describe(hub)


class DeleteHub(_Call, frozen=True):
    hub: str


class RecreateHub(_Call, frozen=True):
    hub: str
    partitions: int | None = None

    def run(self, server: Operations) -> object:
        return describe(server.recreate_hub(self.hub, self.partitions))


class AddPartitions(_Call, frozen=True):
    hub: str
    count: int


class SetRetention(_Call, frozen=True):
    """Null is without limit."""

    hub: str
    seconds: float | None = None
    events: int | None = None

    def run(self, server: Operations) -> None:
        server.hubs.hub(self.hub).set_retention(Retention(self.seconds, self.events))


class SetIdempotence(_Call, frozen=True):
    hub: str
    settings: Idempotence

    def run(self, server: Operations) -> None:
        server.hubs.hub(self.hub).set_idempotence(self.settings)


class FenceProducers(_Call, frozen=True):
    """As producers of the same ids with higher epochs do."""

    hub: str
    partition: str

    def run(self, server: Operations) -> None:
        server.publishers(self.hub, self.partition).fence()


class ForgetProducers(_Call, frozen=True):
    hub: str
    partition: str

    def run(self, server: Operations) -> None:
        server.publishers(self.hub, self.partition).forget()


class Append(_Call, frozen=True):
    hub: str
    partition: str
    bodies: list[str]


class Expire(_Call, frozen=True):
    hub: str
    partition: str
    before_sequence: int


class SkipSequenceNumbers(_Call, frozen=True):
    hub: str
    partition: str
    count: int


class Rewind(_Call, frozen=True):
    hub: str
    partition: str
    sequence_number: int
    group: str = DEFAULT_GROUP


class Steal(_Call, frozen=True):
    """An intruder that stays until ReleaseIntruders."""

    hub: str
    partition: str
    epoch: int
    group: str = DEFAULT_GROUP

    def run(self, server: Operations) -> None:
        server.steal(self.hub, self.partition, self.epoch, self.group)


class ReleaseIntruders(_Call, frozen=True): ...


class DropConnections(_Call, frozen=True): ...


class FreezeConnections(_Call, frozen=True): ...


class FlushCapture(_Call, frozen=True):
    """Ends the windows; results in the paths of the files that this made whole."""

    async def run(self, server: Operations) -> object:
        return [str(path) for path in await server.flush_capture()]


class ExpireTokens(_Call, frozen=True): ...


Call = (
    AddPartitions
    | Append
    | CreateHub
    | DeleteHub
    | DropConnections
    | Expire
    | ExpireTokens
    | FenceProducers
    | FlushCapture
    | ForgetProducers
    | FreezeConnections
    | RecreateHub
    | ReleaseIntruders
    | Rewind
    | SetIdempotence
    | SetRetention
    | SkipSequenceNumbers
    | Steal
)


def add_control_routes(app: web.Application, server: Operations) -> None:
    async def get(_request: web.Request) -> web.Response:
        return web.json_response([describe(hub) for hub in server.hubs])

    async def post(request: web.Request) -> web.Response:
        try:
            result = msgspec.json.decode(await request.read(), type=Call).run(server)
            if isinstance(result, Awaitable):
                result = await result
        except HubExistsError as error:
            return web.json_response({"error": str(error)}, status=409)
        except AmqpError as error:
            status = 404 if error.condition == NOT_FOUND else 409
            return web.json_response({"error": error.description}, status=status)
        except ValueError as error:  # includes a malformed call
            return web.json_response({"error": str(error)}, status=400)
        return web.json_response(result)

    app.router.add_get("/control", get)
    app.router.add_post("/control", post)


def describe(hub: Hub) -> dict[str, Any]:
    """A hub as JSON."""
    return {
        "name": hub.name,
        "created_at": hub.created_at,
        "consumer_groups": list(hub.consumer_groups.values()),
        "partitions": [_describe_partition(partition) for partition in hub.partitions],
    }


def _describe_partition(partition: Partition) -> dict[str, Any]:
    log = partition.log
    return {
        "id": partition.id,
        "events": len(log),
        "begin_sequence_number": log.begin_sequence_number,
        "last_sequence_number": log.last_sequence_number,
        "last_offset": log.last_offset,
        "publishing": partition.publishers.describe(),
        "consumers": [
            {"group": group, "name": reader.name, "epoch": reader.epoch}
            for group, readers in partition.readers_by_group()
            for reader in readers
        ],
    }
