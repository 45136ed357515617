"""The operations on an entity's $management node, by name."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from devstack.amqp.requests import Response
from devstack.amqp.wire.errors import (
    MESSAGE_TOO_LARGE,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    UNAUTHORIZED,
    AmqpError,
    ProtocolError,
)
from devstack.amqp.wire.messages import Request
from devstack.amqp.wire.values import Array, Int, Symbol, Timestamp
from devstack.service_bus.broker import Broker, EntityExistsError
from devstack.service_bus.messages.messages import Message, Sent, to_milliseconds
from devstack.service_bus.messages.schedule import MESSAGE_NOT_FOUND
from devstack.service_bus.queue import LOCK_LOST
from devstack.service_bus.rules.documents import ARGUMENT_ERROR, decode_rule, encode_rules
from devstack.service_bus.sessions import SESSION_LOCK_LOST
from devstack.service_bus.transfers import check_transfer

ENTITY_EXISTS = "com.microsoft:entity-already-exists"

_STATUS = {
    NOT_FOUND: 404,
    MESSAGE_NOT_FOUND: 404,
    LOCK_LOST: 410,
    SESSION_LOCK_LOST: 410,
    UNAUTHORIZED: 401,
    NOT_IMPLEMENTED: 501,
    ARGUMENT_ERROR: 400,
    ENTITY_EXISTS: 409,
    MESSAGE_TOO_LARGE: 413,
    "com.microsoft:server-busy": 503,
    "com.microsoft:timeout": 408,
}
_RECEIVE_AND_DELETE = 0  # receiver-settle-mode "first"


def respond(broker: Broker, entity: str, request: Request, refusal: AmqpError | None = None) -> Response:
    """Carry out a request, or refuse it with `refusal`; errors become part of the response."""
    operation = request.application_properties.get("operation")
    try:
        if refusal is not None:
            raise refusal
        if operation not in _OPERATIONS:
            raise AmqpError(NOT_IMPLEMENTED, f"operation {operation!r}, accepted: {', '.join(_OPERATIONS)}")
        if not isinstance(request.value, dict):
            raise AmqpError(ARGUMENT_ERROR, f"the body of {operation} is {request.value!r}, accepted: a map")
        value = _OPERATIONS[operation](broker, entity, request.value)
    except AmqpError as error:
        return {
            "statusCode": Int(_STATUS.get(error.condition, 400)),
            "statusDescription": error.description,
            "errorCondition": Symbol(error.condition),
        }, None
    if value is None:
        return {"statusCode": Int(204), "statusDescription": "No Content"}, None
    return {"statusCode": Int(200), "statusDescription": "OK"}, value


def _elements(body: dict[Any, Any], name: str, kind: type) -> list[Any]:
    """A field of the body that lists values of one kind; raises AmqpError if it does not."""
    value = body.get(name)
    if not isinstance(value, list) or not all(isinstance(element, kind) for element in value):
        raise AmqpError(ARGUMENT_ERROR, f"{name} is {value!r}, accepted: {kind.__name__} elements")
    return value


def _integer(body: dict[Any, Any], name: str) -> int:
    value = body.get(name)
    if not isinstance(value, int):
        raise AmqpError(ARGUMENT_ERROR, f"{name} is {value!r}, accepted: a number")
    return value


def _renew_lock(broker: Broker, entity: str, body: dict[Any, Any]) -> dict[str, Any]:
    queue = broker.source(entity)
    tokens = _elements(body, "lock-tokens", UUID)
    return {"expirations": Array(Timestamp(to_milliseconds(queue.renew(token.bytes_le))) for token in tokens)}


def _peek(broker: Broker, entity: str, body: dict[Any, Any]) -> dict[str, Any] | None:
    messages = broker.source(entity).peek(
        _integer(body, "from-sequence-number"), _integer(body, "message-count")
    )
    return {"messages": [{"message": message.encode()} for message in messages]} if messages else None


def _list_sessions(broker: Broker, entity: str, body: dict[Any, Any]) -> dict[str, Any] | None:
    """The times at which states were stored are not kept, so that sessions are listed as without `last-updated-time`."""
    skip, top = _integer(body, "skip"), _integer(body, "top")
    sessions = broker.source(entity).sessions_listed()[skip : skip + top]
    return {"skip": Int(skip + len(sessions)), "sessions-ids": sessions} if sessions else None


def _update_disposition(broker: Broker, entity: str, body: dict[Any, Any]) -> dict[str, Any]:
    queue, status = broker.source(entity), body.get("disposition-status")
    reason = str(body.get("deadletter-reason") or "")
    description = str(body.get("deadletter-description") or "")
    changes = body.get("properties-to-modify") or {}
    decisions: dict[Any, Callable[[bytes], None]] = {
        "completed": queue.complete,
        "abandoned": lambda token: queue.abandon(token, changes),
        "defered": lambda token: queue.defer(token, changes),  # as the clients spell it
        "suspended": lambda token: queue.dead_letter(token, reason, description, changes),
    }
    if status not in decisions:
        raise AmqpError(ARGUMENT_ERROR, f"disposition-status is {status!r}, accepted: {', '.join(decisions)}")
    for token in _elements(body, "lock-tokens", UUID):
        decisions[status](token.bytes_le)
    return {}


def _schedule(broker: Broker, entity: str, body: dict[Any, Any]) -> dict[str, Any]:
    broker.check_sends(entity)
    target = broker.target(entity)
    entries = _elements(body, "messages", dict)
    try:
        payloads = [bytes(entry["message"]) for entry in entries]
        messages = [Sent.parse(payload) for payload in payloads]
    except (KeyError, TypeError, ProtocolError) as error:
        raise AmqpError(ARGUMENT_ERROR, f"messages holds something that is no message: {error}") from None
    size = sum(len(payload) for payload in payloads)
    check_transfer(target, payloads, size, 0, target.limits.message or size)
    return {"sequence-numbers": Array(target.send(message) for message in messages)}


def _cancel_scheduled(broker: Broker, entity: str, body: dict[Any, Any]) -> dict[str, Any]:
    broker.target(entity).cancel_scheduled(_elements(body, "sequence-numbers", int))
    return {}


def _text(body: dict[Any, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise AmqpError(ARGUMENT_ERROR, f"{name} is {value!r}, accepted: a text")
    return value


def _session(body: dict[Any, Any]) -> str:
    return _text(body, "session-id")


def _renew_session_lock(broker: Broker, entity: str, body: dict[Any, Any]) -> dict[str, Any]:
    queue = broker.source(entity)
    queue.sessions.check_locked(_session(body))
    until = queue.clock() + queue.settings.lock_duration
    return {"expiration": Timestamp(to_milliseconds(until))}


def _get_session_state(broker: Broker, entity: str, body: dict[Any, Any]) -> dict[str, Any]:
    return {"session-state": broker.source(entity).sessions.states.get(_session(body))}


def _set_session_state(broker: Broker, entity: str, body: dict[Any, Any]) -> dict[str, Any]:
    sessions, session, state = broker.source(entity).sessions, _session(body), body.get("session-state")
    sessions.check_locked(session)
    if state is None:
        sessions.states.pop(session, None)
    else:
        sessions.states[session] = bytes(state)
    return {}


def _receive_by_number(broker: Broker, entity: str, body: dict[Any, Any]) -> dict[str, Any]:
    broker.check_receives(entity)
    lock = _integer(body, "receiver-settle-mode") != _RECEIVE_AND_DELETE
    messages = broker.source(entity).receive_deferred(_elements(body, "sequence-numbers", int), lock=lock)
    return {"messages": [_received(message) for message in messages]}


def _add_rule(broker: Broker, entity: str, body: dict[Any, Any]) -> dict[str, Any]:
    rule = decode_rule(_text(body, "rule-name"), body.get("rule-description"))
    try:
        broker.put_rule(entity, rule)
    except EntityExistsError as error:
        raise AmqpError(ENTITY_EXISTS, str(error)) from None
    return {}


def _remove_rule(broker: Broker, entity: str, body: dict[Any, Any]) -> dict[str, Any]:
    broker.remove_rule(entity, _text(body, "rule-name"))
    return {}


def _enumerate_rules(broker: Broker, entity: str, body: dict[Any, Any]) -> dict[str, Any] | None:
    skip, top = _integer(body, "skip"), _integer(body, "top")
    rules = list(broker.rules(entity).values())[skip : skip + top]
    return {"rules": encode_rules(rules)} if rules else None


def _received(message: Message) -> dict[str, Any]:
    entry: dict[str, Any] = {"message": message.encode()}
    if message.lock_token is not None:
        entry["lock-token"] = UUID(bytes_le=message.lock_token)
    return entry


_OPERATIONS: dict[Any, Callable[[Broker, str, dict[Any, Any]], dict[str, Any] | None]] = {
    "com.microsoft:add-rule": _add_rule,
    "com.microsoft:cancel-scheduled-message": _cancel_scheduled,
    "com.microsoft:enumerate-rules": _enumerate_rules,
    "com.microsoft:get-message-sessions": _list_sessions,
    "com.microsoft:get-session-state": _get_session_state,
    "com.microsoft:peek-message": _peek,
    "com.microsoft:receive-by-sequence-number": _receive_by_number,
    "com.microsoft:remove-rule": _remove_rule,
    "com.microsoft:renew-lock": _renew_lock,
    "com.microsoft:renew-session-lock": _renew_session_lock,
    "com.microsoft:schedule-message": _schedule,
    "com.microsoft:set-session-state": _set_session_state,
    "com.microsoft:update-disposition": _update_disposition,
}
