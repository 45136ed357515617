"""The server: one port for AMQP, with and without TLS, and over plain HTTP the control of it."""

from collections.abc import Mapping

from devstack.amqp.listener import AMQP, ANYTHING_ELSE, TLS_HANDSHAKE, Route
from devstack.event_hubs.control import add_control_routes
from devstack.event_hubs.operations import Operations
from devstack.servers.faults import fault_routes


class EventHubsServer(Operations):
    """A namespace on the loopback address.

    `port` 0 takes a free one. The certificate for clients that want TLS is kept in `ca_dir`.
    `data_dir` keeps hubs and events over restarts and kills of the process, with `sync` also
    over those of the machine; without it they live as long as this object. `clock` (seconds
    since 1970) decides about enqueued times, retention and tokens, and is looked at four times
    a second. `capture` writes what the hubs receive to files, as Event Hubs Capture does; it needs
    fastavro. Not thread-safe: use it on the loop of its server.
    """

    async def _routes(self) -> Mapping[int | None, Route]:
        app = fault_routes(self.faults)
        add_control_routes(app, self)
        return {
            AMQP: Route(self._new_connection),
            TLS_HANDSHAKE: Route(self._new_connection, self._certificate.server_context()),
            ANYTHING_ELSE: Route(await self._serve(app)),
        }
