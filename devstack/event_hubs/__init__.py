"""Azure Event Hubs on one machine, for the unmodified SDKs.

    storage/       hubs, partitions and their logs, who publishes and reads, captured files
    management.py  properties over $management
    namespace.py   what all connections share
    sources.py     a consumer's end
    peer.py        an AMQP connection: producers, consumers, tokens
    operations.py  what a test may do to a namespace
    control.py     the same over HTTP
    server.py      all of it on one port

Left out: geo-replication, schema registry, the Kafka protocol,
throttling by throughput units, web sockets.

Fault points (see devstack.servers.faults), each followed by the address as the client wrote it, such as
"send:flights" (the gateway), "send:flights/Partitions/0" or
"deliver:flights/ConsumerGroups/$Default/Partitions/0"; "send:*" is all of them:

    put-token   error (refuses the token), drop_connection, half_open
    attach:     error (refuses the link), drop_connection, half_open
    send:       error (rejects), size (rejects as too large), drop_connection, detach, half_open
                (all before the events are stored), no_answer (neither stored nor answered),
                drop_ack (stored, not answered), drop_ack_and_connection, drop_ack_and_link (stored,
                then cut or detached), latency
    part:       drop_connection, detach, half_open (in the middle of a batch: after a frame that is
                not the last of its delivery; frames hold up to 64 KB)
    deliver:    drop_connection, detach, half_open (all before the events are sent), latency,
                duplicate (what is sent now is sent again)
    manage:     followed by the hub: error, drop_connection, half_open, no_answer, latency

`condition` is the AMQP condition to answer with, com.microsoft:server-busy if there is none.
half_open stops hearing and answering without hanging up. Everything else that can go wrong is a
call of the server, or of `/control`: an intruder with a higher owner level (`steal`), a rewind,
a gap in the sequence numbers, retention that overtakes a reader, a hub that is created anew,
tokens that expire, producers that are fenced or forgotten.

Idempotent publishing is offered on links to a partition. Each hub has settings for what of the
service is inferred (`Idempotence`); with `offered=False` it is a hub without it.
"""

from devstack.event_hubs.operations import DEFAULT_KEY, Intruder
from devstack.event_hubs.server import EventHubsServer
from devstack.event_hubs.storage.capture import CapturedEvent, CaptureError, CaptureSettings, write_capture
from devstack.event_hubs.storage.hubs import HubExistsError
from devstack.event_hubs.storage.idempotence import Idempotence
from devstack.event_hubs.storage.log import Retention, Stored

__all__ = [
    "DEFAULT_KEY",
    "CaptureError",
    "CaptureSettings",
    "CapturedEvent",
    "EventHubsServer",
    "HubExistsError",
    "Idempotence",
    "Intruder",
    "Retention",
    "Stored",
    "write_capture",
]
