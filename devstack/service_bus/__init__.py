"""Azure Service Bus on one machine, for the unmodified SDK.

    messages/      a message as the broker keeps it; what is scheduled (pure)
    rules/         what a subscription takes of its topic, and changes in its copy (pure)
    settings.py    what can be set for an entity
    sessions.py    who has locked which session (pure)
    queue.py       one queue: locks, deliveries, dead letters (pure, with a clock)
    broker.py      queues, topics, subscriptions by name and address (pure)
    transfers.py   what an entity takes at once: sizes, sessions, partitions
    management.py  operations of $management
    peer.py        an AMQP connection's senders and receivers
    atom.py        entities as Atom documents
    admin.py       the administration API
    server.py      all of it on one port

Left out: forwarding, transactions, persistence. A subscription collects messages
whatever its status is. A session is locked for as long as its receiver is attached, and who
asks for any session while none is free is refused at once. A partitioned entity checks what a
batch holds, numbers messages by partition, and is one queue otherwise. The subscriptions of a partitioned topic are partitioned
as their own settings say.

Fault points (see devstack.servers.faults), each followed by the address of its entity as the client
wrote it, such as "send:orders" or "settle:news/Subscriptions/all"; "send:*" is all of them:

    put-token   error
    attach:     error, drop_connection
    send:       error (rejects), size (rejects for its size, without figures), drop_connection, detach (both before the message is stored),
                drop_ack (stored, not answered), latency
    deliver:    drop_connection, detach (the message stays available)
    settle:     error (rejects), drop_connection, detach (not applied),
                drop_ack (applied, not answered), latency
    manage:     error, drop_connection, drop_ack (applied, not answered), latency

`condition` is the AMQP condition to answer with, com.microsoft:server-busy if there is none.
The points of the administration API are listed in admin.py.
"""

from devstack.service_bus.queue import Counts
from devstack.service_bus.server import ServiceBusServer
from devstack.service_bus.settings import EntityLimits, QueueSettings

STANDARD = EntityLimits(message=256 * 1024, batch=256 * 1024)
PREMIUM = EntityLimits(message=100 * 1024 * 1024, batch=1024 * 1024)
"""The limits of the service's tiers; of the premium one, for an entity set to large messages."""

__all__ = ["PREMIUM", "STANDARD", "Counts", "EntityLimits", "QueueSettings", "ServiceBusServer"]
