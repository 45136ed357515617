"""The READ operation of the $management node: properties of a hub and of a partition."""

from typing import Any

from devstack.amqp.requests import Response
from devstack.amqp.wire.errors import NOT_FOUND, NOT_IMPLEMENTED, SERVER_BUSY, UNAUTHORIZED, AmqpError
from devstack.amqp.wire.messages import Request
from devstack.amqp.wire.values import Array, Int, Symbol, Timestamp
from devstack.event_hubs.storage.hubs import Hub, Hubs
from devstack.event_hubs.storage.log import ARGUMENT_ERROR

HUB_TYPE, PARTITION_TYPE = "com.microsoft:eventhub", "com.microsoft:partition"

_STATUS = {
    ARGUMENT_ERROR: 400,
    NOT_FOUND: 404,
    NOT_IMPLEMENTED: 501,
    SERVER_BUSY: 503,
    UNAUTHORIZED: 401,
    "com.microsoft:timeout": 408,
    "amqp:internal-error": 500,
}


def respond(hubs: Hubs, request: Request, refusal: AmqpError | None = None) -> Response:
    """Carry out a request, or refuse it with `refusal`; errors become part of the response."""
    try:
        if refusal is not None:
            raise refusal
        value = _read(hubs, request.application_properties)
    except AmqpError as error:
        return _status(_STATUS.get(error.condition, 400), error.description, error.condition), None
    return _status(200, "OK"), value


def _read(hubs: Hubs, asked: dict[Any, Any]) -> dict[str, Any]:
    if asked.get("operation") != "READ":
        raise AmqpError(NOT_IMPLEMENTED, f"operation {asked.get('operation')!r}, accepted: READ")
    hub = hubs.hub(str(asked.get("name")))
    if asked.get("type") == HUB_TYPE:
        return _hub_properties(hub)
    if asked.get("type") == PARTITION_TYPE:
        return _partition_properties(hub, str(asked.get("partition")))
    raise AmqpError(ARGUMENT_ERROR, f"type {asked.get('type')!r}, accepted: {HUB_TYPE} and {PARTITION_TYPE}")


def _hub_properties(hub: Hub) -> dict[str, Any]:
    return {
        "name": hub.name,
        "type": HUB_TYPE,
        "created_at": Timestamp(hub.created_at * 1000),
        "partition_count": Int(len(hub.partitions)),
        "partition_ids": Array(hub.partition_ids),
        "georeplication_factor": Int(2 if hub.opaque_offsets else 1),
    }


def _partition_properties(hub: Hub, id_: str) -> dict[str, Any]:
    log = hub.partition(id_).log
    return {
        "name": hub.name,
        "type": PARTITION_TYPE,
        "partition": id_,
        "begin_sequence_number": log.begin_sequence_number,
        "last_enqueued_sequence_number": log.last_sequence_number,
        "last_enqueued_offset": log.last_offset,
        "last_enqueued_time_utc": Timestamp(log.last_enqueued_ms),
        "is_partition_empty": len(log) == 0,
    }


def _status(code: int, description: str, condition: str | None = None) -> dict[str, Any]:
    # Hyphenated as Event Hubs has them; some clients look for the names of Service Bus.
    said: dict[str, Any] = {
        "status-code": Int(code),
        "status-description": description,
        "statusCode": Int(code),
        "statusDescription": description,
    }
    if condition is not None:
        said["error-condition"] = said["errorCondition"] = Symbol(condition)
    return said
