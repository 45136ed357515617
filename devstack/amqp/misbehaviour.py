"""The faults that both namespaces commit in the same way."""

from collections.abc import Callable
from dataclasses import replace

from devstack.amqp.links import Link
from devstack.amqp.ports import Delivery, Wire, rejected
from devstack.amqp.requests import Reply, Response
from devstack.amqp.timers import Timers
from devstack.amqp.wire.errors import DETACH_FORCED, MESSAGE_TOO_LARGE, SERVER_BUSY, AmqpError
from devstack.amqp.wire.values import Described
from devstack.servers.faults import Fault

_UNACKNOWLEDGED = {
    "drop_ack": None,
    "drop_ack_and_connection": "drop_connection",
    "drop_ack_and_link": "detach",
}


def refusal(fault: Fault) -> AmqpError:
    return AmqpError(fault.condition or SERVER_BUSY, "refused by a fault")


def sever(fault: Fault, link: Link) -> None:
    """Detach the link, cut the connection under it, or let that hang."""
    if fault.kind == "detach":
        link.detach(AmqpError(fault.condition or DETACH_FORCED, "detached by a fault"))
    else:
        cut(fault, link.session.connection)


def receive(
    delivery: Delivery,
    store: Callable[[Delivery], Described],
    fault: Fault | None,
    *,
    link: Link,
    timers: Timers,
) -> None:
    """Store what a sender sent and tell it the outcome, as far as the fault lets both happen."""
    if fault is None:
        delivery.settle(store(delivery))
    elif fault.kind == "error":
        delivery.settle(rejected(refusal(fault)))
    elif fault.kind == "size":
        delivery.settle(rejected(AmqpError(MESSAGE_TOO_LARGE, "refused for its size by a fault")))
    elif fault.kind == "latency":
        timers.later(fault.seconds, lambda: delivery.settle(store(delivery)))
    elif fault.kind in _UNACKNOWLEDGED:
        store(delivery)
        if instead := _UNACKNOWLEDGED[fault.kind]:
            sever(replace(fault, kind=instead), link)
    elif fault.kind != "no_answer":
        sever(fault, link)


def answer(
    fault: Fault | None,
    respond: Callable[[AmqpError | None], Response],
    reply: Reply,
    *,
    connection: Wire,
    timers: Timers,
) -> None:
    """Carry out a request, or refuse it with an error, and reply, as far as the fault lets both happen."""
    if fault is None:
        reply(*respond(None))
    elif fault.kind == "latency":
        timers.later(fault.seconds, lambda: reply(*respond(None)))
    elif fault.kind == "error":
        reply(*respond(refusal(fault)))
    elif fault.kind == "drop_ack":
        respond(None)
    elif fault.kind != "no_answer":
        cut(fault, connection)


def cut(fault: Fault, connection: Wire) -> None:
    """Cut a connection, or let it hang."""
    if fault.kind == "half_open":
        connection.freeze()
    else:
        connection.drop()
